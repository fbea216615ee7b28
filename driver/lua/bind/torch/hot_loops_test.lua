-- Training steps whose Lua loops LuaJIT compiles: a rank that dies of its machine code ends this test by a signal.
-- Debian 12's LuaJIT did in about one of 14 runs (docs/LOG.md). To run it many times:
--     for i in $(seq 1000); do bazel-bin/driver/lockstep --nproc 2 driver/lualib/run_test.lua FILE || echo $?; done

local batching = require "lockstep.batching"
local data = require "lockstep.data"
local dist = require "lockstep.distributed"
local mimo = require "lockstep.mimo"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local t = require "lockstep.testing"
local template = require "lockstep.text.jinja"
local torch = require "lockstep.torch"

-- Loops are compiled early, so that a short test reaches what long runs do.
jit.opt.start("hotloop=5", "hotexit=2")

t.test("StepsOverABridgeWithValidationBetweenThem", function()
  local topology = mimo.topology { modules = { { name = "vision" }, { name = "language", first_rank = 1 } } }
  local bridge = mimo.bridge { topology = topology, from = "vision", to = "language" }
  torch.manual_seed(1)
  local modules = { vision = nn.Linear(3, 4), language = nn.Linear(4, 2) }
  local name = topology:module()
  local functions = {
    vision = function(part) return modules.vision(part.x) end,
    language = function(part, x) return (modules.language(x) - part.y):square():sum() end,
  }
  local step = mimo.step { topology = topology, bridges = { bridge }, micro_batches = 2,
    modules = { [name] = functions[name] } }
  local optimizer = optim.AdamW(modules[name]:parameters(), { lr = 1e-3 })
  local function loader()
    local meta = { size = { 1, 2, 3, 4 }, note = { a = 1, b = 2 } }
    return { x = torch.ones { 4, 3 }, y = torch.zeros { 4, 2 }, meta = meta },
      { samples = { 1, 2, 3, 4 }, rows_per_sample = { 1, 1, 1, 1 } }
  end
  local first, last
  for i = 1, 60 do
    local losses = step(loader)
    optimizer:step()
    optimizer:zero_grad()
    if i % 3 == 0 then losses = torch.no_grad(step, loader) end
    if losses[1] then
      first, last = first or losses[1]:item(), losses[1]:item()
    end
  end

  if name == "language" then t.truthy(last < first, "the loss falls") end
end)

t.test("WindowsOfAStream", function()
  local drawn, tokens = 0, 0
  local stream = batching.stream { buffer = 16, seq_len = 64, source = function()
    drawn = drawn + 1
    if drawn > 400 then return nil end
    local ids, mask = {}, {}
    for i = 1, 1 + drawn * 37 % 64 do ids[i], mask[i] = i, 1 end
    return { input_ids = ids, loss_mask = mask, kind = drawn % 3 == 0 and "image" or nil }
  end }
  for micro_batches in stream do
    for _, micro_batch in ipairs(micro_batches) do
      for _, length in pairs(micro_batch.seq_lens) do tokens = tokens + (micro_batch.padding and 0 or length) end
    end
  end

  local expected = 0
  for i = 1, 400 do expected = expected + 1 + i * 37 % 64 end
  t.equal(dist.all_reduce(torch.tensor { tokens }):item(), expected)
end)

t.test("SamplesOfALoader", function()
  local path = run.dir .. "/hot.jsonl"
  if dist.rank() == 0 then
    local file = assert(io.open(path, "w"))
    for i = 1, 300 do file:write(('{"id": %d, "tags": {"a": %d, "b": [1, 2, %d]}}\n'):format(i, i, i)) end
    file:close()
  end
  dist.barrier()
  local loader = data.loader { source = data.source(path, { cache = run.dir .. "/cache" }), seed = 1, epochs = 3,
    drop_last = true, map = function(sample)
      local sum = 0
      for _, value in pairs(sample.tags) do
        for _, n in pairs(type(value) == "table" and value or { value }) do sum = sum + n end
      end
      return { sum = sum - 3 }
    end }
  local sum = 0
  for sample in loader do
    for key, value in pairs(sample) do if key == "sum" then sum = sum + value end end
  end

  t.equal(dist.all_reduce(torch.tensor({ sum }, { dtype = torch.float64 })):item(), 3 * 2 * 300 * 301 / 2)
end)

t.test("RenderingsOfATemplate", function()
  local compiled = template.compile("{% for m in messages %}{{ m.role }}: {% for k, v in m.fields.items() %}"
    .. "{{ k }}={{ v }} {% endfor %}{{ loop.index }};{% endfor %}")
  local expected = "user: a=1 b=2 1;assistant: c=3 2;"
  for _ = 1, 500 do
    local messages = { { role = "user", fields = { a = 1, b = 2 } }, { role = "assistant", fields = { c = 3 } } }
    local text = compiled:render { messages = messages }
    if text ~= expected and text ~= expected:gsub("a=1 b=2", "b=2 a=1") then error(text) end
  end
end)
