-- The Lua side of models_benchmark.py, which runs it.

local models = require "lockstep.models"
local optim = require "lockstep.optim"
local torch = require "lockstep.torch"

local folder = os.getenv "LOCKSTEP_BENCHMARK_FOLDER"
local LENGTHS = { 512, 64, 96, 128, 32, 200, 80, 48 }

local function report(name, value) print(("%s %.9g"):format(name, value)) end

local function measure(calls, call)
  call()
  local best = math.huge
  for _ = 1, calls do
    local start = os.clock()
    call()
    best = math.min(best, os.clock() - start)
  end
  return 1e3 * best
end

local function load(size) return models.load(folder .. "/" .. size, { dtype = torch.float32 }) end

local function ids_of(tokens, vocabulary) return torch.arange(tokens):square():remainder(vocabulary - 1) end

local function training(name, size, batch, calls)
  local model = load(size)
  local optimizer = optim.AdamW(model:parameters(), { lr = 1e-3, weight_decay = 0 })
  local function step()
    local sum, count = model:loss(batch)
    local loss = sum / count
    loss:backward()
    optimizer:step()
    optimizer:zero_grad()
    return loss:item()
  end
  report(name, measure(calls, step))
  report("check: loss, " .. name, step())
end

local function generation(size, vocabulary, prompts, calls)
  local model = load(size)
  local ids = ids_of(prompts * 32, vocabulary):view(prompts, 32):totable()
  local sum
  local function generate()
    sum = 0
    for _, new_ids in ipairs(models.generate(model, ids, { max_new_tokens = 128 })) do
      for _, id in ipairs(new_ids) do sum = sum + id end
    end
  end
  local name = ("128 tokens, %s, %d prompts"):format(size, prompts)
  report(name, measure(calls, generate))
  report("check: ids, " .. name, sum)
end

local function loading()
  local function read_pages(model)
    for _, p in ipairs(model:parameters()) do p:detach():view(-1):slice(0, 0, nil, 2048):sum():item() end
  end
  report("load", measure(2, function() models.load(folder .. "/big") end))
  report("load and read each page", measure(2, function() read_pages(models.load(folder .. "/big")) end))
end

training("step, hidden 64, 64 tokens", "small", { input_ids = ids_of(64, 512) }, 30)
training("step, hidden 512, 512 tokens", "large", { input_ids = ids_of(512, 4096) }, 5)
training("step of eight sequences", "large", { input_ids = ids_of(1160, 4096), seq_lens = LENGTHS }, 2)
generation("small", 512, 1, 3)
generation("large", 4096, 1, 2)
generation("large", 4096, 4, 2)
loading()
