-- A step of QLoRA: python benchmarks/qlora_benchmark.py FOLDER makes the model; then
--   OMP_NUM_THREADS=1 bazel-bin/driver/lockstep --nproc 1 benchmarks/qlora_benchmark.lua FOLDER 4
--   OMP_NUM_THREADS=1 python benchmarks/qlora_benchmark.py FOLDER 4
-- A fourth argument (of Python the third) "whole" leaves the base in bfloat16. The adapter's A is sines, so that both
-- begin alike: losses are compared by eye.

local lora = require "lockstep.lora"
local models = require "lockstep.models"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local torch = require "lockstep.torch"

local folder, steps, kind = run.args[1], tonumber(run.args[2] or 4), run.args[3]
local TOKENS = 256

local function rss_mib()
  local status = assert(io.open "/proc/self/status"):read "*a"
  return tonumber(status:match "VmRSS:%s*(%d+)") / 1024, tonumber(status:match "VmHWM:%s*(%d+)") / 1024
end

local begin = os.clock()
local model = models.load(folder, { dtype = torch.bfloat16, load_in_4bit = kind ~= "whole" })
lora.apply(model, { r = 16, alpha = 32, targets = "all-linear" })
torch.no_grad(function()
  for name, p in model:named_parameters() do
    if name:find "lora_A" then
      p:copy_((torch.arange(p:numel(), { dtype = torch.float32 }) * 0.7):sin():view(p.shape) * 0.02)
    end
  end
end)
local bytes = 0
for _, tensor in pairs(model:state_dict()) do bytes = bytes + tensor:numel() * tensor:element_size() end
print(("load_s %.2f"):format(os.clock() - begin))
print(("model_mib %.1f"):format(bytes / 2 ^ 20))
print(("rss_loaded_mib %.0f"):format((rss_mib())))

local ids = (torch.arange(TOKENS) * 7919):remainder(model.settings.vocab_size)
local batch = { input_ids = ids, seq_lens = { TOKENS } }
local optimizer = optim.AdamW(model:parameters(), { lr = 1e-3, weight_decay = 0 })
for step = 1, steps do
  local start = os.clock()
  local sum, count = model:loss(batch)
  local loss = sum / count
  loss:backward()
  optimizer:step()
  optimizer:zero_grad()
  print(("step %d loss %.4f cpu_s %.2f"):format(step, loss:item(), os.clock() - start))
end
print(("peak_mib %.0f"):format(select(2, rss_mib())))
