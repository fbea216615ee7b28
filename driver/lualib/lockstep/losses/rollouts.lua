--- losses.rollouts: groups of answers with rewards as samples for batching.

local core = require "lockstep.core"
local options = require "lockstep.options"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

local NAME = "losses.rollouts"
local I64 = { dtype = torch.int64 }

---@class losses.Answer
---@field ids integer[] what the model wrote, and what tools answered in between
---@field loss_mask (integer|boolean)[]? 0 or false for ids that the model did not write
---@field reward number
---@field rewards table<string, number>? of each function of losses.reward_functions that scored the answer
---@field log_probs number[]? of the ids, under the weights that wrote them
---@field is_cut boolean? ended by a limit of models.generate_turns
---@field tool_calls integer?
---@field tool_failures integer?

---@class losses.Group
---@field answers losses.Answer[] to one problem

local function check_length(answer, name)
  local values = plain.given(answer[name])
  if #(values or {}) ~= #answer.ids then
    core.raise(("%s: an answer has %d ids and %s; every id needs one%s"):format(NAME, #answer.ids, values and
      #values .. " " .. name or "no " .. name, name == "log_probs" and ", under the weights that drew it" or ""))
  end
end

--- Returns a prompt and an answer as a sample for batching: the loss is on the answer.
local function sample_of(prompt, answer, advantage, with_log_probs)
  local before = prompt.input_ids:size(0)
  if with_log_probs then check_length(answer, "log_probs") end
  local ids = torch.cat { prompt.input_ids, torch.tensor(answer.ids, I64) }
  local mask = torch.arange(ids:size(0)):ge(before)
  if plain.given(answer.loss_mask) then
    check_length(answer, "loss_mask")
    mask = torch.cat { mask:narrow(0, 0, before), torch.tensor(answer.loss_mask):bool() }
  end
  return { input_ids = ids, loss_mask = mask, advantages = advantage,
    pixel_values = prompt.pixel_values, image_grid_thw = prompt.image_grid_thw,
    old_log_probs = with_log_probs and torch.cat { torch.zeros { before }, torch.tensor(answer.log_probs) } or nil }
end

--- Returns the mean and the standard deviation, a sample's, with n - 1; without a second value no deviation.
local function moments(values)
  local mean, squares = 0, 0
  for _, value in ipairs(values) do mean = mean + value / #values end
  for _, value in ipairs(values) do squares = squares + (value - mean) ^ 2 end
  return mean, #values > 1 and math.sqrt(squares / (#values - 1)) or nil
end

--- Adds the values of each reward function to `by_name`. Returns whether one function at least scored the answer.
local function collect(by_name, rewards)
  local is_scored = false
  for name, value in pairs(rewards) do
    if plain.given(value) ~= nil then -- a line of another engine may have null
      by_name[name] = by_name[name] or {}
      table.insert(by_name[name], value)
      is_scored = true
    end
  end
  return is_scored
end

--- Returns groups of answers as samples for batching.prepare, their mean reward, counts of what teaches less than it
--- seems to, for `counts` of log.step, and statistics of the rewards, for its fields.
---
---     local samples, reward, counts, stats = losses.rollouts(groups, {
---       prompt = function(group) return task.problem(group.problem).prompt end, seq_len = 1024,
---     })
---
--- A sample has `advantages`, by losses.advantages of its group. With `log_probs = true` every answer must have
--- log_probs, and the sample has `old_log_probs`, too. Name both as streams. `prompt` returns a group's prompt,
--- {input_ids = tensor, pixel_values = tensor, image_grid_thw = tensor}. Ids with a loss_mask of 0 are not learnt.
---
--- The counts: `skipped_answers` are longer than seq_len with their prompt, and no sample; it is an error if all are.
--- `cut_answers` have max_new_tokens and do not end with an id of `stop`, or were ended by a limit of
--- models.generate_turns. `equal_groups` have one reward for all answers, so no advantage. `unrewarded_answers` were
--- scored by no function of losses.reward_functions. `tool_calls` and `tool_failures` are those of
--- models.generate_turns.
---
--- The statistics have TRL's names: `reward_std`, the mean of the groups' deviations, and `rewards/NAME/mean` and
--- `rewards/NAME/std` of each function of losses.reward_functions, over the answers that it scored.
---@param groups losses.Group[]
---@param opts {prompt: (fun(group: table): models.Batch), seq_len: integer, scale: string?, log_probs: boolean?,
--- max_new_tokens: integer?, stop: integer[]?}
---@return batching.Sample[] samples
---@return number reward
---@return table<string, integer> counts
---@return table<string, number> stats
local function rollouts(groups, opts)
  local o = options.read(NAME, opts, { prompt = options.required, seq_len = options.required, scale = "group",
    log_probs = false, max_new_tokens = math.huge, stop = {} })
  local advantages_of = require("lockstep.losses").advantages
  local samples, counts, sum, num_answers = {}, { skipped_answers = 0, cut_answers = 0, equal_groups = 0 }, 0, 0
  local stops, deviations, by_name, shortest = {}, {}, {}, math.huge
  for _, id in ipairs(o.stop) do stops[id] = true end
  local function count(name, more) counts[name] = (counts[name] or 0) + more end
  for _, group in ipairs(groups) do
    local prompt, rewards = o.prompt(group), {}
    for i, answer in ipairs(group.answers) do
      rewards[i] = plain.given(answer.reward) or core.raise(("%s: answer %d of a group has no reward"):format(NAME, i))
      if answer.is_cut or #answer.ids >= o.max_new_tokens and not stops[answer.ids[#answer.ids]] then
        count("cut_answers", 1)
      end
      if plain.given(answer.rewards) then count("unrewarded_answers", collect(by_name, answer.rewards) and 0 or 1) end
      for _, name in ipairs { "tool_calls", "tool_failures" } do
        if answer[name] then count(name, answer[name]) end
      end
    end
    local advantages = advantages_of(rewards, { group_size = #rewards, scale = o.scale }):totable()
    local is_equal = true
    for i, answer in ipairs(group.answers) do
      sum, num_answers, is_equal = sum + rewards[i], num_answers + 1, is_equal and rewards[i] == rewards[1]
      local length = prompt.input_ids:size(0) + #answer.ids
      shortest = math.min(shortest, length)
      if length > o.seq_len then
        count("skipped_answers", 1)
      else
        samples[#samples + 1] = sample_of(prompt, answer, advantages[i], o.log_probs)
      end
    end
    deviations[#deviations + 1] = is_equal and 0 or select(2, moments(rewards))
    if is_equal then count("equal_groups", 1) end
  end
  if num_answers == 0 then core.raise(NAME .. ": there is no answer in any group") end
  if #samples == 0 then
    core.raise(("%s: all %d answers are longer than seq_len = %d with their prompts, the shortest has %d tokens; raise "
      .. "seq_len, or take shorter prompts"):format(NAME, num_answers, o.seq_len, shortest))
  end
  local stats = { reward_std = moments(deviations) }
  for name, values in pairs(by_name) do
    stats[("rewards/%s/mean"):format(name)], stats[("rewards/%s/std"):format(name)] = moments(values)
  end
  return samples, sum / num_answers, counts, stats
end

return rollouts
