--- losses.rollouts: groups of answers with rewards as samples for batching.

local core = require "lockstep.core"
local options = require "lockstep.options"
local torch = require "lockstep.torch"

local NAME = "losses.rollouts"
local I64 = { dtype = torch.int64 }

---@class losses.Answer
---@field ids integer[] what the model wrote
---@field reward number
---@field log_probs number[]? of the ids, under the weights that wrote them

---@class losses.Group
---@field answers losses.Answer[] to one problem

--- Returns a prompt and an answer as a sample for batching: the loss is on the answer.
local function sample_of(prompt, answer, advantage, with_log_probs)
  local before = prompt.input_ids:size(0)
  if with_log_probs and #(answer.log_probs or {}) ~= #answer.ids then
    core.raise(("%s: an answer has %d ids and %s; every id needs one, under the weights that drew it"):format(NAME,
      #answer.ids, answer.log_probs and #answer.log_probs .. " log_probs" or "no log_probs"))
  end
  local ids = torch.cat { prompt.input_ids, torch.tensor(answer.ids, I64) }
  return { input_ids = ids, loss_mask = torch.arange(ids:size(0)):ge(before), advantages = advantage,
    pixel_values = prompt.pixel_values, image_grid_thw = prompt.image_grid_thw,
    old_log_probs = with_log_probs and torch.cat { torch.zeros { before }, torch.tensor(answer.log_probs) } or nil }
end

--- Returns groups of answers as samples for batching.prepare, their mean reward, and counts of what teaches less than
--- it seems to: for `counts` of log.step.
---
---     local samples, reward, counts = losses.rollouts(groups, {
---       prompt = function(group) return task.problem(group.problem).prompt end, seq_len = 1024,
---     })
---
--- A sample has `advantages`, by losses.advantages of its group. With `log_probs = true` every answer must have
--- log_probs, and the sample has `old_log_probs`, too. Name both as streams. `prompt` returns a group's prompt,
--- {input_ids = tensor, pixel_values = tensor, image_grid_thw = tensor}.
---
--- The counts: `skipped_answers` are longer than seq_len with their prompt, and no sample. `cut_answers` have
--- max_new_tokens and do not end with an id of `stop`. `equal_groups` have one reward for all answers, so no advantage.
---@param groups losses.Group[]
---@param opts {prompt: (fun(group: table): models.Batch), seq_len: integer, scale: string?, log_probs: boolean?,
--- max_new_tokens: integer?, stop: integer[]?}
---@return batching.Sample[] samples
---@return number reward
---@return {skipped_answers: integer, cut_answers: integer, equal_groups: integer} counts
local function rollouts(groups, opts)
  local o = options.read(NAME, opts, { prompt = options.required, seq_len = options.required, scale = "group",
    log_probs = false, max_new_tokens = math.huge, stop = {} })
  local advantages_of = require("lockstep.losses").advantages
  local samples, counts, sum, num_answers = {}, { skipped_answers = 0, cut_answers = 0, equal_groups = 0 }, 0, 0
  local stops = {}
  for _, id in ipairs(o.stop) do stops[id] = true end
  for _, group in ipairs(groups) do
    local prompt, rewards = o.prompt(group), {}
    for i, answer in ipairs(group.answers) do
      rewards[i] = answer.reward
      if #answer.ids >= o.max_new_tokens and not stops[answer.ids[#answer.ids]] then
        counts.cut_answers = counts.cut_answers + 1
      end
    end
    local advantages = advantages_of(rewards, { group_size = #rewards, scale = o.scale }):totable()
    local is_equal = true
    for i, answer in ipairs(group.answers) do
      sum, num_answers, is_equal = sum + rewards[i], num_answers + 1, is_equal and rewards[i] == rewards[1]
      if prompt.input_ids:size(0) + #answer.ids > o.seq_len then
        counts.skipped_answers = counts.skipped_answers + 1
      else
        samples[#samples + 1] = sample_of(prompt, answer, advantages[i], o.log_probs)
      end
    end
    if is_equal then counts.equal_groups = counts.equal_groups + 1 end
  end
  if num_answers == 0 then core.raise(NAME .. ": there is no answer in any group") end
  return samples, sum / num_answers, counts
end

return rollouts
