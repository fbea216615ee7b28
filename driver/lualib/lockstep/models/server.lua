--- models.server: answers of a model that an inference server holds, and new weights for it.

local agreement = require "lockstep.state.agreement"
local core = require "lockstep.core"
local dist = require "lockstep.distributed"
local ffi = require "ffi"
local options = require "lockstep.options"
local picture_urls = require "lockstep.models.picture_urls"
local plain = require "lockstep.plain"
local run = require "lockstep.run"

ffi.cdef [[
  int poll(void* fds, unsigned long count, int milliseconds);
  int fileno(void* file);
  long read(int file, void* bytes, unsigned long count);
]]

local NAME = "models.server"

local M = {}
--- Seconds without an answer, before a line says so.
M.wait_s = 30

---@class models.Server
---@field kind "vllm"|"sglang"
---@field model string the name that requests give: the base model's, or that of the adapter which was loaded last
---@field private url string
---@field private parallel integer
---@field private timeout_s number
---@field private wait_s number
---@field private folder string? of requests and responses, on this machine
---@field private adapter string?
---@field private tag integer sets the adapters of this run apart from those that an earlier one left in the server
local Server = {}
Server.__index = Server

local check, fail = plain.checks(NAME .. ": ")

--- Calls fn() on all ranks. Where it fails on one, every rank raises that error, which names the rank itself.
local function together(fn)
  agreement.begin(NAME)
  local result, problem = agreement.try(fn)
  if problem then core.raise((problem:gsub("^rank %d+: ", ""))) end
  return result
end

--- Returns what curl prints, a line for each response. While curl runs, a line says so after `wait_s` seconds, and each
--- time that this has doubled.
local function read_output(pipe, wait_s, place, count)
  local output, waited, from = "", 0, core.now()
  local file = ffi.C.fileno(pipe)
  local fd, bytes = ffi.new("int[2]", file, 1), ffi.new "char[4096]" -- struct pollfd: POLLIN in a short
  while true do
    if ffi.C.poll(fd, 1, math.min(wait_s, 1) * 1000) > 0 then
      local size = tonumber(ffi.C.read(file, bytes, 4096)) -- what is there, maybe a part of a line
      if size == 0 then return output end
      output = output .. ffi.string(bytes, math.max(size, 0))
    end
    if core.now() - from >= math.max(wait_s, 2 * waited) then
      waited = core.now() - from
      io.stderr:write(("lockstep: %s: rank %d has waited %.0f s for %d answers of %s\n"):format(NAME, dist.rank(),
        waited, count, place))
    end
  end
end

--- Sends requests, a child process of curl for all of them, and returns the decoded responses in their order. A request
--- is { path, body }, without a body a GET. A response that is no table of JSON is { text = ... }.
---@private
---@param requests {[1]: string, [2]: table?}[]
---@return table[]
function Server:send(requests)
  if not self.folder then
    self.folder = ("%s/requests-%d"):format(run.dir, dist.rank())
    core.make_folder(self.folder)
  end
  local function path_of(kind, i) return ("%s/%s-%d"):format(self.folder, kind, i) end
  local lines, written = {}, { self.folder .. "/curl" }
  for i, request in ipairs(requests) do
    if i > 1 then lines[#lines + 1] = "next" end
    local function add(name, value) lines[#lines + 1] = ('%s = "%s"'):format(name, value:gsub('[\\"]', "\\%0")) end
    add("url", self.url .. request[1])
    add("noproxy", "*") -- a server of the same cluster
    add("connect-timeout", "20")
    add("max-time", tostring(self.timeout_s))
    lines[#lines + 1] = ('write-out = "%d %%{http_code} %%{errormsg}\\n"'):format(i)
    add("output", path_of("response", i))
    written[#written + 1] = path_of("response", i)
    if request[2] then
      core.write_file(path_of("request", i), { core.json_encode(request[2]) })
      written[#written + 1] = path_of("request", i)
      add("header", "Content-Type: application/json")
      add("data-binary", "@" .. path_of("request", i))
    end
  end
  core.write_file(self.folder .. "/curl", { table.concat(lines, "\n"), "\n" })
  local pipe = assert(io.popen(("curl --silent --no-progress-meter --parallel --parallel-max %d --config '%s/curl' "
    .. "2>&1"):format(self.parallel, self.folder:gsub("'", "'\\''"))))
  local status, output = {}, run.alone(read_output, pipe, self.wait_s, self.url .. requests[1][1], #requests)
  pipe:close()
  for i, code, message in output:gmatch "(%d+) (%d%d%d) ([^\n]*)\n" do status[tonumber(i)] = { code, message } end
  local results = {}
  for i, request in ipairs(requests) do
    local code, message = unpack(status[i] or {})
    local text = plain.read_file(path_of("response", i)) or ""
    if not code and not next(status) then
      fail("curl did not run (Debian: apt-get install curl): %s", output)
    elseif not code then
      fail("curl ended on rank %d before it had the answer of %s%s: %s", dist.rank(), self.url, request[1], output)
    elseif code == "000" then
      fail("rank %d got no answer of %s%s: %s%s", dist.rank(), self.url, request[1], message,
        message:find "^Operation timed out" and "; longer answers need a larger timeout_s" or "")
    elseif code:sub(1, 1) ~= "2" then
      fail("%s%s answered rank %d with status %s: %s", self.url, request[1], dist.rank(), code, text:sub(1, 500))
    end
    local ok, value = pcall(core.json_decode, text, self.url .. request[1])
    results[i] = ok and type(value) == "table" and value or { text = text }
    if results[i].success == false then -- of SGLang
      fail("%s%s did not succeed: %s", self.url, request[1], text:sub(1, 500))
    end
  end
  for _, path in ipairs(written) do os.remove(path) end
  return results
end

-- The parts that differ from server to server: a request, the ids and log-probabilities of its answer, new weights. A
-- conversation is given for prompts with pictures alone: see conversation_of.
local vllm, sglang = {}, {}
local KINDS = { vllm = vllm, sglang = sglang }

local function table_of(value) return type(value) == "table" and value or {} end

-- Servers else take top_p and others from the model's generation_config.json, and the old log-probabilities of a loss
-- are those of all tokens.
local function whole_distribution(more)
  return plain.copy({ top_p = 1, top_k = -1, min_p = 0, repetition_penalty = 1 }, more)
end

vllm.request = function(self, prompt, o, conversation)
  local request = whole_distribution { model = self.model, max_tokens = o.max_new_tokens, temperature = o.temperature,
    seed = o.seed, stop_token_ids = o.stop, logit_bias = o.bias, return_token_ids = true }
  if not conversation then
    request.prompt, request.logprobs = prompt, 0
    return { "/v1/completions", request }
  end
  request.messages, request.logprobs, request.top_logprobs = conversation.messages, true, 0
  request.documents, request.chat_template_kwargs = conversation.documents, conversation.variables
  return { "/v1/chat/completions", request }
end

vllm.read = function(response)
  local choice = table_of(table_of(response.choices)[1])
  local log_probs, of_chat = table_of(choice.logprobs).token_logprobs, table_of(choice.logprobs).content
  if type(of_chat) == "table" then
    log_probs = {}
    for i, token in ipairs(of_chat) do log_probs[i] = table_of(token).logprob or false end
  end
  return table_of(choice.token_ids), table_of(log_probs)
end

-- Returns how many ids the server read as the prompt, and the ids if it tells them.
vllm.prompt = function(response)
  local ids = table_of(response.prompt_token_ids)
  return #ids, ids
end

sglang.request = function(self, prompt, o, conversation)
  return { "/generate", { input_ids = prompt, image_data = conversation and conversation.urls, return_logprob = true,
    lora_path = self.adapter, sampling_params = whole_distribution { max_new_tokens = o.max_new_tokens,
      temperature = o.temperature, stop_token_ids = o.stop, logit_bias = o.bias } } }
end

sglang.read = function(response)
  local ids, log_probs = {}, {}
  for i, token in ipairs(table_of(table_of(response.meta_info).output_token_logprobs)) do
    log_probs[i], ids[i] = table_of(token)[1] or false, table_of(token)[2] or false
  end
  return ids, log_probs
end

sglang.prompt = function(response) return table_of(response.meta_info).prompt_tokens or 0 end

vllm.load = function(self, folder)
  self:send { { "/collective_rpc", { method = "reload_weights", kwargs = { weights_path = folder } } } }
  self:send { { "/reset_prefix_cache", {} } }
end

sglang.load = function(self, folder) self:send { { "/update_weights_from_disk", { model_path = folder } } } end

-- Options of chat:encode that are no variables of a template.
local NO_VARIABLES = { tools = true, documents = true, folder = true, processor = true, loss = true, loss_from = true,
  generation_prompt = true, template = true, renderer = true }

--- Returns the messages of a problem whose prompt has pictures, as servers take them.
local function conversation_of(problem, i)
  if problem == false or problem and problem.options and problem.options.tools then
    fail("prompt %d has pictures and tools; a server answers a single turn about pictures, so leave the task's tools "
      .. "out, or sample without a server", i)
  end
  check(problem and type(problem.messages) == "table",
    "prompt %d has pictures, but its problem has no messages with them; servers are sent files, not pixel values", i)
  local o, variables = problem.options or {}, nil
  for name, value in pairs(o) do
    if not NO_VARIABLES[name] then variables = plain.copy(variables or {}, { [name] = value }) end
  end
  local messages, urls = picture_urls.of(problem.messages, o.folder or ".")
  if #urls == 0 then fail("prompt %d has pictures, but the messages of its problem have none", i) end
  return { messages = messages, urls = urls, documents = o.documents, variables = variables }
end

--- Raises unless the server has read the ids of a prompt with pictures as they are here: log-probabilities of an answer
--- to another prompt would be no old ones of the loss.
local function check_prompt(self, i, prompt, response)
  local count, ids = KINDS[self.kind].prompt(response)
  if count ~= #prompt then
    fail("%s read prompt %d as %d tokens, and it has %d here; its chat template or its processor of pictures is not "
      .. "that of the model's folder%s", self.url, i, count, #prompt, count > 0 and "" or ", or it tells no count")
  end
  for k, id in ipairs(ids or {}) do
    if id ~= prompt[k] then
      fail("%s read token %d of prompt %d as %s, and it is %d here; its chat template is not that of the model's "
        .. "folder", self.url, k, i, tostring(id), prompt[k])
    end
  end
end

--- Returns the new ids of each prompt, as models.generate does, and their log-probabilities. Each prompt is a request
--- of its own; the server batches them.
---
---     local ids, log_probs = server:generate(prompts, { max_new_tokens = limits, temperature = 1, seed = 7 })
---
--- A prompt with pictures needs its problem: `messages`, whose parts name the pictures' files, and `options` of
--- chat:encode. vLLM gets the messages, with the pictures as data URLs in their places. SGLang gets the ids and a list
--- of the pictures. It is an error if the server then reads other ids as the prompt, or another number of them.
---@param prompts models.Batch[]
---@param opts {max_new_tokens: integer[], temperature: number?, seed: integer?, numbers: integer[]?, stop: integer[]?,
--- suppress: integer[]?, problems: ({messages: table[]?, options: table?}|false)[]?} problems: of each prompt; numbers:
--- as of models.generate
---@return integer[][] ids with the id that ended an answer
---@return number[][] log_probs
function Server:generate(prompts, opts)
  local o = options.read("server:generate", opts, { max_new_tokens = options.required, temperature = 1,
    seed = options.optional, numbers = {}, stop = options.optional, suppress = {}, problems = {} })
  local requests, all_ids, all_log_probs, bias = {}, {}, {}, nil
  for _, id in ipairs(o.suppress) do bias = plain.copy(bias or {}, { [tostring(id)] = -100 }) end
  local of_problem = {} -- samples of a group ask the same
  for i, prompt in ipairs(prompts) do
    local problem, conversation = o.problems[i], nil
    if prompt.pixel_values then
      conversation = problem and of_problem[problem] or conversation_of(problem, i)
      of_problem[problem] = conversation
    end
    requests[i] = KINDS[self.kind].request(self, prompt.input_ids:totable(), { max_new_tokens = o.max_new_tokens[i],
      temperature = o.temperature, seed = o.seed and (o.seed % 2 ^ 31 * 65537 + (o.numbers[i] or i)) % 2 ^ 31,
      stop = o.stop, bias = bias }, conversation)
  end
  if #requests == 0 then return {}, {} end
  for i, response in ipairs(self:send(requests)) do
    local ids, log_probs = KINDS[self.kind].read(response)
    local function fail_with(message, ...)
      fail("%s gave rank %d %s for prompt %d. Its answer: %s", self.url, dist.rank(), message:format(...), i,
        (response.text or core.json_encode(response)):sub(1, 300))
    end
    if #ids == 0 or #ids ~= #log_probs then
      fail_with("%d ids and %d log-probabilities (vLLM needs return_token_ids, 0.10.2 and newer)", #ids, #log_probs)
    elseif #ids > o.max_new_tokens[i] then
      fail_with("%d ids, more than max_new_tokens = %d,", #ids, o.max_new_tokens[i])
    end
    for k, id in ipairs(ids) do
      if not plain.is_whole(id, 0) then fail_with("the id %s", tostring(id)) end
      local log_prob = log_probs[k]
      if type(log_prob) ~= "number" or log_prob - log_prob ~= 0 or log_prob > 1e-3 then
        fail_with("the log-probability %s of an id", tostring(log_prob))
      end
    end
    if prompts[i].pixel_values then check_prompt(self, i, prompts[i].input_ids:totable(), response) end
    all_ids[i], all_log_probs[i] = ids, log_probs
  end
  return all_ids, all_log_probs
end

--- Makes the server load the weights of a folder: those of models.save, or with is_adapter an adapter of lora.save,
--- which takes the place of the one before. The server must see the folder under this path. Collective: rank 0 asks.
---
---     server:load(run.dir .. "/weights/step-000012", true)
---@param folder string
---@param is_adapter boolean?
function Server:load(folder, is_adapter)
  local path = folder:sub(1, 1) == "/" and folder or (os.getenv "PWD" or fail("give an absolute path, not %s", folder))
    .. "/" .. folder
  local name, before = is_adapter and ("%s-%d"):format(folder:match "([^/]+)/*$", self.tag) or nil, self.adapter
  local prefix = self.kind == "vllm" and "/v1" or ""
  together(function()
    if dist.rank() > 0 then return end
    if not is_adapter then return KINDS[self.kind].load(self, path) end
    self:send { { prefix .. "/load_lora_adapter", { lora_name = name, lora_path = path } } }
    if before then self:send { { prefix .. "/unload_lora_adapter", { lora_name = before } } } end
  end)
  self.adapter, self.model = name or before, name or self.model
end

--- Opens a server of vLLM or SGLang, which says which of them it is. Needs the program curl.
--- Collective.
---
---     local server = models.server("http://127.0.0.1:8000")
---@param url string without a path: "http://node7:8000"
---@param opts {parallel: integer?, timeout_s: number?}? parallel: requests at a time, default 256; timeout_s: most time
---that a response may take, default 1800
---@return models.Server
function M.server(url, opts)
  local o = options.read(NAME, opts, { parallel = 256, timeout_s = 1800 })
  plain.check(type(url) == "string" and url:find "^https?://[%w%.%-_:%[%]]+/?$",
    '%s: the address must be like "http://127.0.0.1:8000", not %s', NAME, url)
  plain.check(plain.is_whole(o.parallel, 1) and o.parallel <= 300,
    "%s: parallel must be a whole number from 1 to 300, not %s", NAME, o.parallel) -- 300 is curl's limit
  plain.check(type(o.timeout_s) == "number" and o.timeout_s > 0 and o.timeout_s < math.huge,
    "%s: timeout_s must be a number above 0, not %s", NAME, o.timeout_s)
  local self = setmetatable({ url = url:gsub("/$", ""), parallel = o.parallel, timeout_s = o.timeout_s,
    wait_s = M.wait_s }, Server)
  local first = together(function()
    return table_of(table_of(self:send({ { "/v1/models" } })[1].data)[1])
  end)
  plain.check(KINDS[first.owned_by], "%s: %s is a server of %s, not of vllm or sglang", NAME, url,
    tostring(first.owned_by or "an unknown kind"))
  plain.check(type(first.id) == "string", "%s: %s names no model in /v1/models", NAME, url)
  self.kind, self.model, self.tag = first.owned_by, first.id, dist.all_gather_object(os.time())[1]
  return self
end

return M
