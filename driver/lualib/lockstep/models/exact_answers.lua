--- models.exact_answers: how many questions of conversations a model answers word for word.

local dist = require "lockstep.distributed"
local log = require "lockstep.log"
local options = require "lockstep.options"
local plain = require "lockstep.plain"
local schedule_free = require "lockstep.optim.schedule_free"
local sharding = require "lockstep.sharding"
local text = require "lockstep.text"

local M = {}

--- Returns the share of conversations whose last answer the model writes exactly, over all ranks; nil if none of them
--- ends with an answer. Rank 0 prints its first three answers after `title`. Each rank answers its part of the
--- questions, in evaluation mode.
---
---     local exact = models.exact_answers(model, net, { rows = rows, encode = encode, tokenizer = tokenizer })
---
--- Options: rows, samples of data.conversations; encode(row, is_prompt), which returns a sample, or with is_prompt a
--- prompt; tokenizer; most (default: all), the number of questions; max_new_tokens = 64; title = ""; rank and ranks,
--- which say whose part of the questions this rank answers (default: those of the run). On a grid give grid:rank
--- "expert_dp" and grid:size "expert_dp": ranks of tp and ep write the same answers together.
---
--- Collective.
---@param model any of sharding.parallel
---@param net models.CausalLM the model inside
---@param opts {rows: table[], encode: fun(row: table, is_prompt: boolean?), tokenizer: text.Tokenizer, [string]: any}
---@return number? # from 0 to 1
function M.exact_answers(model, net, opts)
  local o = options.read("models.exact_answers", opts, { rows = options.required, encode = options.required,
    tokenizer = options.required, most = math.huge, max_new_tokens = 64, title = "", rank = dist.rank(),
    ranks = dist.world_size() })
  local questions, own, prompts, right = {}, {}, {}, 0
  for _, row in ipairs(o.rows) do
    local messages, answer = text.last_answer(row.messages or {})
    if messages and #questions < o.most then
      questions[#questions + 1] = plain.copy(row, { messages = messages, answer = answer })
    end
  end
  if #questions == 0 then return nil end
  for i = o.rank + 1, #questions, o.ranks do
    own[#own + 1], prompts[#prompts + 1] = questions[i], o.encode(questions[i], true)
  end
  net:eval()
  local models = require "lockstep.models" -- which requires this part
  local answers = schedule_free.around(model:parameters(), function()
    return model:full(models.answers, net, o.tokenizer, prompts, { max_new_tokens = o.max_new_tokens, seed = 1 })
  end)
  net:train()
  for i, answer in ipairs(answers) do
    if answer == own[i].answer then right = right + 1 end
    if dist.rank() == 0 and i <= 3 then
      local asked = o.tokenizer:decode(o.encode(own[i]).input_ids, { skip_special = true })
      log.print((("%s: %s -> %s"):format(o.title, asked, answer):gsub("%s+", " ")))
    end
  end
  return sharding.weighted_mean(right, #own)
end

return M
