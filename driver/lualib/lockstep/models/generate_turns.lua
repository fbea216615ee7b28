--- models.generate_turns: answers that may call tools, over several turns.

local core = require "lockstep.core"
local dist = require "lockstep.distributed"
local options = require "lockstep.options"
local plain = require "lockstep.plain"
local run = require "lockstep.run"
local text = require "lockstep.text"
local torch = require "lockstep.torch"

local M = {}

local NAME = "models.generate_turns"

-- Tools whose failure was printed: the model reads each one, the user the first.
local has_printed = {}

local function print_once(name, message)
  if has_printed[name] then return end
  has_printed[name] = true
  io.stderr:write(('lockstep: warning: rank %d: the tool "%s" failed; the model reads the error, and goes on: %s\n')
    :format(dist.rank(), name, message))
end

--- Returns a text as it is if it is UTF-8, else with ASCII alone.
local function as_utf8(given)
  return pcall(core.json_encode, given) and given or (given:gsub("[\128-\255]", "?"))
end

--- Returns what a tool answers to a call as text, and whether it failed.
local function answer_of(tools, call, problem)
  local function failed(message) return core.json_encode { error = message }, true end
  if call.error then return failed(call.error) end
  local tool = tools[call.name]
  if not tool then
    return failed(("there is no tool %s; there are %s"):format(call.name, table.concat(plain.keys(tools), ", ")))
  end
  local ok, result = pcall(tool.fn, call.arguments, problem)
  if ok and type(result) == "string" and as_utf8(result) ~= result then
    ok, result = false, "the result is not UTF-8"
  end
  if not ok then
    local message = as_utf8(tostring(result))
    print_once(call.name, message)
    return failed(message)
  end
  if type(result) == "string" then return result, false end
  local is_json, encoded = pcall(core.json_encode, result)
  if result == nil or not is_json then
    core.raise(('%s: the tool "%s" must return a string or a value that JSON can hold, got %s'):format(NAME, call.name,
      result == nil and "nil" or "a " .. type(result) .. ": " .. tostring(encoded)))
  end
  return encoded, false
end

local function check_calls(calls)
  local is_valid = type(calls) == "table"
  for _, call in ipairs(is_valid and calls or {}) do
    is_valid = is_valid and type(call) == "table" and (call.error or type(call.name) == "string"
      and type(call.arguments) == "table")
  end
  plain.check(is_valid, '%s: parse must return an array of { name = "add", arguments = {...} } or { error = "..." }, '
    .. "and the text without the calls", NAME)
end

--- Adds ids to an answer. Log-probabilities are those of the weights that wrote the ids, 0 for ids of tools.
local function append(answer, ids, counts, log_probs)
  for i, id in ipairs(ids) do
    local at = #answer.ids + 1
    answer.ids[at] = id
    if answer.loss_mask then answer.loss_mask[at] = counts end
    if answer.log_probs then answer.log_probs[at] = log_probs and log_probs[i] or 0 end
  end
end

--- Returns what the tools answer to calls, and whether each failed, as pairs. Where several ranks write the same
--- answers, the first runs the tools, and sends the others what they answer.
local function answers_of(o, calls, problem)
  local answers, is_first = {}, not o.group or o.group:rank() == 0
  for i, call in ipairs(is_first and calls or {}) do answers[i] = { run.alone(answer_of, o.by_name, call, problem) } end
  return o.group and o.group:size() > 1 and dist.all_gather_object(answers, { group = o.group })[1] or answers
end

--- Runs the calls of a turn, and adds their results to the answer. Returns whether the answer goes on.
local function call_tools(answer, calls, content, o, problem, turn)
  answer.tool_calls = answer.tool_calls + #calls
  if turn == o.max_turns then
    answer.is_cut = true
    return false
  end
  local results, bytes = {}, 0
  for i, one in ipairs(answers_of(o, calls, problem)) do
    local has_failed
    results[i], has_failed = unpack(one)
    bytes = bytes + #results[i]
    answer.tool_failures = answer.tool_failures + (has_failed and 1 or 0)
  end
  local message, answers = require("lockstep.text.chat.tools").messages(content, calls, results)
  answer.messages[#answer.messages] = message
  for _, one in ipairs(answers) do table.insert(answer.messages, one) end
  -- Megabytes take seconds to encode. No token has as many bytes as this.
  local fits = bytes <= 1024 * (o.max_new_tokens - #answer.ids)
  local ids = fits and o.chat:tool_results(problem.messages, calls, results, problem.options or { tools = o.schemas })
  if not ids or #answer.ids + #ids >= o.max_new_tokens then
    answer.is_cut = true
    return false
  end
  append(answer, ids, 0)
  return true
end

---@class models.TurnOptions
---@field generate fun(prompts: models.Batch[], limits: integer[], turn: integer, problems: (table|false)[], places:
--- integer[]): integer[][], number[][]? returns the new ids of each prompt, and their log-probabilities where it knows
--- them; `limits` are most new tokens of each, `problems` those that are asked, or false in turns after the first, and
--- `places` the place of each prompt's problem in the list
---@field group dist.Group? ranks that write the same answers, as grid:group "tp_ep": the first one runs the tools
---@field max_new_tokens integer of an answer: all turns, and what tools answer in between
---@field tools text.Tool[]? default: none, and a single turn
---@field chat lockstep.text.Chat? for tools
---@field tokenizer text.Tokenizer? for tools
---@field max_turns integer? of the assistant in an answer; default 4
---@field stop integer[]? ids that end a turn, also one that has as many ids as it may have
---@field parse (fun(written: string): text.ToolCall[], string)? default text.tool_calls

--- Returns an answer to each problem, in order: `ids`, and their `log_probs` where generate knows them. If a turn of
--- the model calls tools, their functions run, their results are appended as the chat template writes them, and the
--- model goes on. The ids that the model wrote stay as they are; `loss_mask` is 0 for those that it did not write.
---
---     local answers = models.generate_turns(problems, { chat = chat, tokenizer = tokenizer, tools = task.tools,
---       stop = stop, max_new_tokens = 512, generate = function(prompts, limits)
---         return models.generate(net, prompts, { max_new_tokens = limits, temperature = 1 })
---       end })
---
--- A problem has `prompt`, and for tools `messages`, and `options` of chat:encode if its prompt has others than the
--- tools. A function's error, a result that is not UTF-8, an unknown tool and a call that cannot be read are results,
--- {"error": ...}, and count as `tool_failures`. The first failure of each tool is printed, too. `is_cut` marks answers
--- that a limit ended: a call in the last turn, or a result that does not fit in max_new_tokens. `messages` are those
--- of the answer.
---@param problems {prompt: models.Batch, messages: table[]?, options: table?}[]
---@param opts models.TurnOptions
---@return losses.Answer[]
function M.generate_turns(problems, opts)
  local o = options.read(NAME, opts, { generate = options.required, max_new_tokens = options.required, tools = {},
    chat = options.optional, tokenizer = options.optional, group = options.optional, max_turns = 4, stop = {},
    parse = text.tool_calls })
  local has_tools = #o.tools > 0
  plain.check(not has_tools or o.chat and o.tokenizer, "%s: tools need chat and tokenizer", NAME)
  plain.check(plain.is_whole(o.max_turns, 1), "%s: max_turns must be a whole number of at least 1, got %s", NAME,
    o.max_turns)
  o.by_name, o.schemas = {}, text.tool_schemas(o.tools)
  for _, tool in ipairs(o.tools) do o.by_name[tool.name] = tool end
  local stops, answers, active = {}, {}, {}
  for _, id in ipairs(o.stop) do stops[id] = true end
  for i, problem in ipairs(problems) do
    plain.check(not has_tools or type(problem.messages) == "table", "%s: problem %d has no messages", NAME, i)
    answers[i], active[i] = has_tools and { ids = {}, loss_mask = {}, messages = {}, tool_calls = 0,
      tool_failures = 0 } or { ids = {} }, i
  end
  for turn = 1, o.max_turns do
    if #active == 0 then break end
    local prompts, limits, asked, going_on = {}, {}, {}, {}
    for k, i in ipairs(active) do
      local prompt, ids = problems[i].prompt, answers[i].ids
      prompts[k] = #ids == 0 and prompt or plain.copy(prompt, {
        input_ids = torch.cat { prompt.input_ids, torch.tensor(ids, { dtype = torch.int64 }) } })
      if #ids > 0 then prompts[k].position_ids = nil end -- those of the prompt alone; generate counts them anew
      limits[k] = o.max_new_tokens - #ids
      asked[k] = #ids == 0 and problems[i]
    end
    local drawn, log_probs = o.generate(prompts, limits, turn, asked, plain.copy(active))
    plain.check(#drawn == #active, "%s: generate returned %d answers to %d prompts", NAME, #drawn, #active)
    for k, i in ipairs(active) do
      local answer, ids = answers[i], drawn[k]
      if log_probs and turn == 1 then answer.log_probs = {} end
      append(answer, ids, 1, log_probs and log_probs[k])
      if has_tools then
        local written = o.tokenizer:decode(ids, { skip_special = true })
        local calls, content = o.parse(written)
        check_calls(calls)
        answer.messages[#answer.messages + 1] = { role = "assistant", content = written }
        local has_ended = #ids < limits[k] or stops[ids[#ids]]
        if has_ended and #calls > 0 and call_tools(answer, calls, content, o, problems[i], turn) then
          going_on[#going_on + 1] = i
        end
      end
    end
    active = going_on
  end
  return answers
end

return M
