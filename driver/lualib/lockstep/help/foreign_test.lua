-- Options under the names that they have in PyTorch, transformers and PEFT: each error names the option here.

local data = require "lockstep.data"
local foreign = require "lockstep.help.foreign"
local lora = require "lockstep.lora"
local models = require "lockstep.models"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local schedule = require "lockstep.schedule"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"

local CONFIG = { architectures = { "LlamaForCausalLM" }, vocab_size = 8, hidden_size = 8, intermediate_size = 8,
  num_hidden_layers = 1, num_attention_heads = 2, num_key_value_heads = 1, rms_norm_eps = 1e-5,
  max_position_embeddings = 8 }

--- Expects the error of fn(..., {[given] = 1}) to name the option.
local function named(given, expected, fn, ...)
  local arguments = { ... }
  arguments[#arguments + 1] = { [given] = 1 }
  local message = t.raises(('unknown option "%s"; '):format(given), fn, unpack(arguments))
  t.truthy(message:find(expected, 1, true), message)
end

local function means(given, name, fn, ...) named(given, ('did you mean "%s"? (known: '):format(name), fn, ...) end

t.test("NamesOfPeft", function()
  local model = models.build(CONFIG)
  for given, name in pairs { lora_alpha = "alpha", lora_dropout = "dropout", target_modules = "targets",
    use_rslora = "rslora", use_dora = "dora", target_parameters = "parameters" } do
    means(given, name, lora.apply, model)
  end
end)

t.test("NamesOfTransformers", function()
  means("torch_dtype", "dtype", models.load, "somewhere")
  named("device_map", "device = dist.device() loads onto this rank's GPU", models.load, "somewhere")
  local model = models.build(CONFIG)
  means("max_length", "max_new_tokens", models.generate, model, { { 1 } })
  means("eos_token_id", "stop", models.generate, model, { { 1 } })
  named("do_sample", "temperature = 0 takes the most probable token", models.generate, model, { { 1 } })
  means("num_warmup_steps", "warmup_steps", schedule.warmup_cosine)
end)

t.test("NamesOfPyTorch", function()
  local net = nn.Linear(2, 2)
  means("learning_rate", "lr", optim.AdamW, net:parameters())
  means("learning_rate", "lr", optim.SGD, net:parameters())
  named("fused", "always runs fused kernels", optim.AdamW, net:parameters())
  means("num_workers", "workers", data.loader)
  named("batch_size", "batching.stream and sharding.pack make micro-batches", data.loader)
  means("find_unused_parameters", "find_unused", sharding.data_parallel, net)
  means("bucket_cap_mb", "bucket_mb", sharding.data_parallel, net)
  means("mp_policy", "param_dtype", sharding.fully_shard, net)
end)

t.test("ANameCountsOnlyWhereTheFunctionHasTheOption", function()
  t.equal(foreign.hint("nn.Linear", "learning_rate", { "bias" }), nil)
  t.equal(foreign.hint("nn.Linear", "batch_size", { "bias" }), nil)
  -- A word that is near to an option stays the suggestion for one that other libraries do not know.
  t.raises('unknown option "lrr"; did you mean "lr"?', optim.AdamW, nn.Linear(2, 2):parameters(), { lrr = 1 })
end)
