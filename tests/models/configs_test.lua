-- The config.json of public models: a model of a supported architecture builds from it, without weights. For any other
-- architecture one error lists those that are supported.
--
-- configs.jsonl has the keys and values of each file, collected from copies in public repositories.

local core = require "lockstep.core"
local data = require "lockstep.data"
local models = require "lockstep.models"
local run = require "lockstep.run"
local t = require "lockstep.testing"

local PATH = "tests/models/configs.jsonl"

local SUPPORTED = { LlamaForCausalLM = true, Qwen2ForCausalLM = true, Qwen3ForCausalLM = true,
  Qwen3MoeForCausalLM = true, Qwen2_5_VLForConditionalGeneration = true, Qwen3VLForConditionalGeneration = true,
  Qwen3VLMoeForConditionalGeneration = true, MistralForCausalLM = true, MinistralForCausalLM = true,
  SmolLM3ForCausalLM = true, GraniteForCausalLM = true, Gemma3ForCausalLM = true, Olmo2ForCausalLM = true,
  Olmo3ForCausalLM = true, Phi3ForCausalLM = true, MixtralForCausalLM = true, GptOssForCausalLM = true,
  DeepseekV3ForCausalLM = true, Gemma3ForConditionalGeneration = true, Qwen3NextForCausalLM = true }

-- Numbers of parameters as they are published. A tied head counts once.
local PARAMETERS = {
  ["HuggingFaceTB/SmolLM2-135M-Instruct"] = 134515008, ["HuggingFaceTB/SmolLM2-1.7B-Instruct"] = 1711376384,
  ["TinyLlama/TinyLlama-1.1B-Chat-v1.0"] = 1100048384,
  ["meta-llama/Llama-3.2-1B-Instruct"] = 1235814400, ["meta-llama/Llama-3.2-3B-Instruct"] = 3212749824,
  ["meta-llama/Llama-3.1-8B-Instruct"] = 8030261248, ["meta-llama/Llama-3.1-70B-Instruct"] = 70553706496,
  ["meta-llama/Meta-Llama-3.1-405B"] = 405853388800, ["Qwen/Qwen2-0.5B-Instruct"] = 494032768,
  ["Qwen/Qwen2-1.5B-Instruct"] = 1543714304, ["Qwen/Qwen2.5-7B-Instruct"] = 7615616512,
  ["Qwen/Qwen2.5-VL-7B-Instruct"] = 8292166656, ["Qwen/Qwen3-8B"] = 8190735360, ["Qwen/Qwen3-32B"] = 32762123264,
  ["mistralai/Mistral-7B-Instruct-v0.3"] = 7248023552, ["google/gemma-3-1b-it"] = 999885952,
  ["microsoft/phi-4"] = 14659507200, ["mistralai/Mixtral-8x7B-v0.1"] = 46702792704,
  ["mistralai/Mixtral-8x22B-v0.1"] = 140620634112, ["Qwen/Qwen3-30B-A3B"] = 30532122624,
  ["Qwen/Qwen3-235B-A22B"] = 235093634560,
  ["openai/gpt-oss-20b"] = 20914757184, ["openai/gpt-oss-120b"] = 116829156672,
  ["deepseek-ai/DeepSeek-V3"] = 671026404352,
  ["google/gemma-3-4b-it"] = 4300079472, ["allenai/OLMo-2-1124-7B-Instruct"] = 7298617344,
}

local function num_parameters(model)
  local count = 0
  for _, p in ipairs(model:parameters()) do count = count + p:numel() end
  return count
end

t.test("SupportedArchitecturesBuildFromTheConfigsOfPublicModels", function()
  local built, counted = 0, 0
  for line in data.jsonl(PATH) do
    if SUPPORTED[line.config.architectures[1]] then
      local ok, model = pcall(models.build, line.config, { device = "meta" })
      t.truthy(ok, line.name .. ": " .. tostring(model))
      if PARAMETERS[line.name] then
        t.equal({ line.name, num_parameters(model) }, { line.name, PARAMETERS[line.name] })
        counted = counted + 1
      end
      built = built + 1
    end
  end
  t.equal({ built, counted }, { 49, 26 })
end)

t.test("AnyOtherArchitectureIsOneErrorThatListsTheSupportedOnes", function()
  local count = 0
  for line in data.jsonl(PATH) do
    local name = line.config.architectures[1]
    if not SUPPORTED[name] then
      local message = t.raises(('models.build: unknown architecture "%s" (known: '):format(name), models.build,
        line.config, { device = "meta" })
      for known in pairs(SUPPORTED) do t.truthy(message:find(known, 1, true), message) end
      count = count + 1
    end
  end
  t.equal(count, 30)
end)

-- Nemotron-H has "time_step_limit": [0.0, Infinity].
t.test("NumbersThatJsonLacksAreReadAsPythonWritesThem", function()
  local path = run.dir .. "/infinity"
  core.make_folder(path)
  core.write_file(path .. "/config.json", { '{"architectures": ["NemotronHForCausalLM"], "time_step_limit": [0.0, ',
    'Infinity], "a": -Infinity, "b":NaN, "c": [NaN, NaN]}' })
  t.raises('models.load: unknown architecture "NemotronHForCausalLM" (known: ', models.load, path)
  local read = require("lockstep.models.config").read
  t.equal((read(path)), { architectures = { "NemotronHForCausalLM" }, time_step_limit = { 0, 1e308 }, a = -1e308,
    b = data.null, c = { data.null, data.null } })
  core.write_file(path .. "/config.json", { '{"a": "x, NaN and: Infinity"}' })
  t.equal((read(path)), { a = "x, NaN and: Infinity" })
  core.write_file(path .. "/config.json", { '{"a": Infinit}' })
  t.raises(path .. "/config.json", read, path)
end)
