-- The Lua side of generation_benchmark.py, which runs it.

local core = require "lockstep.core"
local models = require "lockstep.models"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

local folder = os.getenv "LOCKSTEP_BENCHMARK_FOLDER"
local cases = core.json_decode(assert(plain.read_file(folder .. "/cases.json")))
local model = models.load(folder, { dtype = torch.float32 })

--- Generates in batches of prompts, one batch after the other.
local function in_batches(size, limits_of)
  local results = {}
  for from = 1, #cases.prompts, size do
    local prompts, limits = {}, {}
    for i = from, math.min(from + size - 1, #cases.prompts) do
      prompts[#prompts + 1], limits[#limits + 1] = cases.prompts[i], cases.limits[i]
    end
    for _, ids in ipairs(models.generate(model, prompts, { max_new_tokens = limits_of(limits) })) do
      results[#results + 1] = ids
    end
  end
  return results
end

local function longest(limits) return math.max(unpack(limits)) end
local function own(limits) return limits end

local function measure(name, call)
  local start = os.clock()
  local results = call()
  print(("%s %.9g"):format(name, 1e3 * (os.clock() - start)))
  local sum = 0
  for i, ids in ipairs(results) do
    for k = 1, cases.limits[i] do sum = sum + ids[k] * (k % 7 + 1) end
  end
  print(("check: ids, %s %d"):format(name, sum))
end

models.generate(model, { cases.prompts[1] }, { max_new_tokens = 4 })
for _, size in ipairs(cases.sizes) do
  measure(("padded, %d at a time"):format(size), function() return in_batches(size, longest) end)
  measure(("ended ones leave, %d at a time"):format(size), function() return in_batches(size, own) end)
  measure(("continuous, %d at a time"):format(size), function()
    return models.generate(model, cases.prompts, { max_new_tokens = cases.limits, max_batch_size = size })
  end)
end

-- A group: samples of one prompt, against prompts that differ in the last id.
local same, different = {}, {}
for i = 1, cases.group do
  same[i] = cases.long
  different[i] = { unpack(cases.long) }
  different[i][#cases.long] = i
end
measure("group, one prompt", function()
  models.generate(model, same, { max_new_tokens = 16 })
  return {}
end)
measure("group, as many prompts", function()
  models.generate(model, different, { max_new_tokens = 16 })
  return {}
end)
