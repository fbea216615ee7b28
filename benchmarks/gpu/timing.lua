--- Functions that the programs of gpu_check share: shapes, weights, timing, and lines that check.py reads.
--- The arguments of each program are the device, "full" or "tiny", a file for a trace, and then its own.

local core = require "lockstep.core"
local models = require "lockstep.models"
local plain = require "lockstep.plain"
local run = require "lockstep.run"
local torch = require "lockstep.torch"

local M = {}

M.device = run.args[1]
M.is_tiny = run.args[2] == "tiny"
M.trace = run.args[3]
M.dtype = M.is_tiny and torch.float32 or torch.bfloat16

--- Returns the first value, or the second where sizes are tiny.
function M.size(full, tiny)
  if M.is_tiny then return tiny end
  return full
end

--- Returns a shape of shapes.json: {batch =, tokens =, model =}, where `model` is a config of Qwen3.
function M.shape(name)
  local here = debug.getinfo(1, "S").source:match "^@(.*)/" or "."
  local shapes = core.json_decode(assert(plain.read_file(here .. "/shapes.json")))
  local shape = M.is_tiny and shapes.tiny or shapes[name]
  local config = plain.copy(shape.model, { architectures = { "Qwen3ForCausalLM" }, model_type = "qwen3",
    tie_word_embeddings = shapes[name].model.tie_word_embeddings, rope_theta = 1e6, rms_norm_eps = 1e-6,
    max_position_embeddings = 40960, attention_bias = false, hidden_act = "silu" })
  return { batch = shape.batch, tokens = shape.tokens, model = config }
end

--- Gives parameters the values that model.py gives those of the same names: integer arithmetic, so the same everywhere.
function M.fill(model)
  for name, p in model:named_parameters() do
    local seed = 7
    for i = 1, #name do seed = (seed * 31 + name:byte(i)) % 100003 end
    torch.no_grad(function()
      if name:find "norm%.weight$" then return p:fill_(1) end
      if name:find("lora_B", 1, true) then return p:zero_() end
      local x = torch.arange(p:numel(), { device = p.device, dtype = torch.int32 }):add_(seed):remainder_(2003)
      x:mul_(x):add_(seed):remainder_(2003)
      p:copy_((x:to(torch.float32):div_(2003):sub_(0.5):mul_(0.07)):view(p.shape))
    end)
    if p:numel() > 2 ^ 24 then collectgarbage() end
  end
  return model
end

--- Returns a model of a shape, with these values.
function M.model(shape)
  return M.fill(models.build(shape.model, { device = M.device, dtype = M.dtype }))
end

--- Returns `count` token ids.
function M.ids(count, vocabulary)
  return torch.arange(count, { device = M.device }):square():remainder(vocabulary - 1)
end

function M.synchronize()
  if M.device ~= "cpu" then torch.cuda.synchronize() end
end

--- Prints one figure as "name value", at once: check.py keeps what a program printed before it was ended.
function M.report(name, value)
  print(("%s %.9g"):format(name, value))
  io.stdout:flush()
end

--- Returns the least seconds of one call, of `rounds` rounds of `calls` calls, after one round of warm-up.
function M.seconds(calls, rounds, call)
  local best = math.huge
  for round = 0, rounds do
    M.synchronize()
    local start = core.now()
    for _ = 1, calls do call() end
    M.synchronize()
    if round > 0 then best = math.min(best, (core.now() - start) / calls) end
  end
  return best
end

--- Calls `call` and returns the MiB that the device held at its peak. On the CPU returns nil.
function M.peak_mib(call)
  collectgarbage()
  collectgarbage()
  if M.device == "cpu" then return call() and nil end
  torch.cuda.reset_peak_memory_stats()
  call()
  M.synchronize()
  return torch.cuda.max_memory_allocated() / 2 ^ 20
end

return M
