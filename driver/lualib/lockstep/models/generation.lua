--- Text from a model: prompts in, new ids out, with a cache of keys and values.

local chunks = require "lockstep.nn.chunks"
local dist = require "lockstep.distributed"
local options = require "lockstep.options"
local plain = require "lockstep.plain"
local processors = require "lockstep.models.processors"
local rows = require "lockstep.models.rows"
local splits = require "lockstep.nn.splits"
local token_graph = require "lockstep.models.token_graph"
local torch = require "lockstep.torch"

local M = {}

local check, fail = plain.checks "models.generate: "

local function check_positions(positions, index, tokens)
  if not torch.is_tensor(positions) or positions:is_floating_point() or positions:dim() < 1 or positions:dim() > 2
      or positions:size(-1) ~= tokens or positions:dim() == 2 and positions:size(0) ~= 3 then
    fail("prompt %d: position_ids must be a tensor of whole numbers of shape [%d] or [3, %d], got %s", index, tokens,
      tokens, torch.is_tensor(positions) and tostring(positions.dtype) .. " " .. tostring(positions.shape)
        or "a " .. type(positions))
  end
  local least = positions:min():item()
  if least < 0 then fail("prompt %d: position_ids must be at least 0, got %d", index, least) end
end

--- A prompt as {input_ids = tensor, position_ids = tensor, ...}.
local function read_prompt(model, prompt, index)
  local sample = {}
  if torch.is_tensor(prompt) or type(prompt) == "table" and prompt.input_ids == nil then
    sample.input_ids = prompt
  elseif type(prompt) == "table" then
    sample = plain.copy(prompt)
  else
    fail("prompt %d must be an array of ids or a table with input_ids, got a %s", index, type(prompt))
  end
  if not torch.is_tensor(sample.input_ids) then
    if #sample.input_ids == 0 then fail("prompt %d holds no token", index) end
    sample.input_ids = torch.tensor(sample.input_ids, { dtype = torch.int64 })
  elseif sample.input_ids:dim() ~= 1 or sample.input_ids:numel() == 0 then
    fail("prompt %d must be a list of ids, at least one, got shape %s", index, tostring(sample.input_ids.shape))
  end
  sample.position_ids = sample.position_ids or model:position_ids(sample)
  check_positions(sample.position_ids, index, sample.input_ids:size(0))
  return sample
end

--- The value of a key of config.json. Models with pictures have some of them among the settings of the text model.
local function config_of(model, key)
  local value = model.config[key]
  if value == nil and type(model.config.text_config) == "table" then value = model.config.text_config[key] end
  return value
end

--- Counts the prompts whose positions may pass the model's max_position_embeddings, and warns of the first.
local function count_too_long(model, samples, limits)
  local limit = config_of(model, "max_position_embeddings")
  if type(limit) ~= "number" then return end
  for i, sample in ipairs(samples) do
    local used = sample.position_ids:max():item() + 1
    if used + limits[i] - 1 > limit then -- the last id is drawn, and not read
      if model.num_too_long == nil then
        io.stderr:write(("lockstep: warning: models.generate: prompt %d has %d positions and max_new_tokens is %d, but "
          .. "the model has max_position_embeddings = %d; text beyond may be bad. model.num_too_long counts such "
          .. "prompts\n"):format(i, used, limits[i], limit))
      end
      model.num_too_long = (model.num_too_long or 0) + 1
    end
  end
end

--- Raises unless these are ids of the vocabulary.
local function check_ids(name, ids, vocab_size)
  for key in pairs(ids) do
    if not plain.is_whole(key, 1) or key > #ids then
      fail("%s must be an array of ids, got the key %s", name, tostring(key))
    end
  end
  for i = 1, #ids do
    local id = ids[i]
    if type(id) ~= "number" or not (id >= 0 and id < vocab_size and id % 1 == 0) then
      fail("%s[%d] must be an id from 0 to %d, got %s", name, i, vocab_size - 1, tostring(id))
    end
  end
end

--- The ids that end a sequence.
local function stop_ids(model, given)
  local stop = given or model.stop_ids or config_of(model, "eos_token_id")
  if type(stop) == "number" then stop = { stop } end
  if given ~= nil then
    if type(stop) ~= "table" then fail("stop must be an id or an array of ids, got %s", tostring(given)) end
    check_ids("stop", stop, model.settings.vocab_size)
  end
  local set = {}
  for _, id in ipairs(type(stop) == "table" and stop or {}) do set[id] = true end
  return set
end

local function check_suppressed(ids, vocab_size)
  check_ids("suppress", ids, vocab_size)
  local seen, count = {}, 0
  for _, id in ipairs(ids) do
    count = count + (seen[id] and 0 or 1)
    seen[id] = true
  end
  if count == vocab_size then fail("suppress holds all %d ids of the vocabulary; leave some to draw", count) end
end

--- Raises unless each prompt has a number.
local function check_numbers(numbers, num_prompts)
  if numbers == nil then return end
  check(type(numbers) == "table" and #numbers == num_prompts,
    "numbers must be an array of one for each of %d prompts, got %s", num_prompts,
    type(numbers) == "table" and #numbers or "a " .. type(numbers))
  for _, number in ipairs(numbers) do
    check(plain.is_whole(number, 1), "numbers must be whole and at least 1, got %s", tostring(number))
  end
end

--- Returns max_new_tokens of each prompt.
local function limits_of(given, num_prompts)
  local limits = given == nil and 64 or given
  if type(limits) ~= "table" then
    local same = limits
    limits = {}
    for i = 1, num_prompts do limits[i] = same end
  elseif #limits ~= num_prompts then
    fail("max_new_tokens must be a number, or one for each of %d prompts, got %d", num_prompts, #limits)
  end
  for _, limit in ipairs(limits) do
    check(plain.is_whole(limit, 1), "max_new_tokens must be a whole number of at least 1, got %s", tostring(limit))
  end
  return limits
end

--- See models.generate.
---@param model models.CausalLM
---@param prompts any[]
---@param opts table?
---@return integer[][]
function M.generate(model, prompts, opts)
  local o = options.read("models.generate", opts, { max_new_tokens = options.optional,
    max_batch_size = options.optional, temperature = 0, top_k = options.optional, top_p = options.optional,
    min_p = options.optional, seed = options.optional, numbers = options.optional, stop = options.optional,
    on_token = options.optional,
    suppress = {}, begin_suppress = {}, forced_begin = options.optional, forced_end = options.optional,
    repetition_penalty = 1, graph = options.optional })
  chunks.refuse("models.generate", "call it outside, on whole prompts")
  check(o.max_batch_size == nil or plain.is_whole(o.max_batch_size, 1),
    "max_batch_size must be a whole number of at least 1, got %s", tostring(o.max_batch_size))
  check(o.graph == nil or type(o.graph) == "boolean", "graph must be true or false, got %s", tostring(o.graph))
  if o.graph == nil then o.graph = token_graph.is_default(dist.device()) end
  check(o.on_token == nil or type(o.on_token) == "function", "on_token must be a function, got a %s", type(o.on_token))
  if type(prompts) ~= "table" or #prompts == 0 then fail("prompts must be an array of at least one prompt") end
  if type(prompts[1]) == "number" then fail("prompts must be an array of arrays of ids, got one array of ids") end
  o.max_new_tokens, o.stop = limits_of(o.max_new_tokens, #prompts), stop_ids(model, o.stop)
  check_suppressed(o.suppress, model.settings.vocab_size)
  for _, name in ipairs { "begin_suppress", "forced_begin", "forced_end" } do
    if o[name] ~= nil then check_ids(name, o[name], model.settings.vocab_size) end
  end
  check_numbers(o.numbers, #prompts)
  processors.check(o)
  local owner = splits.owner_of(model)
  if not o.seed then
    o.seed = torch.randint(0, 2 ^ 31, { 1 }):item()
    -- The ranks of sharding.tensor_parallel draw the same ids.
    if owner then o.seed = dist.all_gather_object(o.seed, { group = owner.group })[1] end
  end
  local samples = {}
  for i, prompt in ipairs(prompts) do samples[i] = read_prompt(model, prompt, i) end
  count_too_long(model, samples, o.max_new_tokens)
  return splits.with_whole_tokens(model, torch.no_grad, rows.run, model, samples, o)
end

return M
