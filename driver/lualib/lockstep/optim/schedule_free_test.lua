-- optim.ScheduleFreeAdamW against the paper's recursion in float64, and the average that others see.

local lora = require "lockstep.lora"
local models = require "lockstep.models"
local nn = require "lockstep.nn"
local optim = require "lockstep.optim"
local run = require "lockstep.run"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local F64 = { dtype = torch.float64 }

--- x, y and z as section 4.4 of the paper has them: x is kept, and y follows from x and z.
local function reference(start, o)
  local x, z, v = start:clone(), start:clone(), torch.zeros_like(start)
  local step, sum, most = 0, 0, 0
  local one = {}
  function one.y() return x * o.betas[1] + z * (1 - o.betas[1]) end
  function one.x() return x end
  function one.step(grad)
    step = step + 1
    local lr = o.lr * math.min(1, step / math.max(1, o.warmup_steps))
    v = v * o.betas[2] + grad * grad * (1 - o.betas[2])
    local move = grad / (torch.sqrt(v / (1 - o.betas[2] ^ step)) + o.eps) + one.y() * o.weight_decay
    z = z - move * lr
    most = math.max(most, lr)
    local weight = step ^ o.r * most ^ o.weight_lr_power
    sum = sum + weight
    x = x * (1 - weight / sum) + z * (weight / sum)
  end
  return one
end

local OPTIONS = {
  { lr = 2.5e-3, betas = { 0.9, 0.999 }, eps = 1e-8, weight_decay = 0, warmup_steps = 0, r = 0, weight_lr_power = 2 },
  { lr = 0.1, betas = { 0.95, 0.9 }, eps = 1e-3, weight_decay = 0.2, warmup_steps = 5, r = 1, weight_lr_power = 0 },
  { lr = 0.03, betas = { 0.5, 0.99 }, eps = 1e-6, weight_decay = 0.1, warmup_steps = 30, r = 0.5, weight_lr_power = 2 },
}

t.test("FollowsThePapersRecursion", function()
  torch.manual_seed(1)
  for case, o in ipairs(OPTIONS) do
    local p = torch.randn({ 3, 5 }, F64):requires_grad_(true)
    local expected = reference(p:detach(), o)
    local optimizer = optim.ScheduleFreeAdamW({ p }, o)
    for step = 1, 20 do
      local grad = torch.randn({ 3, 5 }, F64)
      p.grad = grad
      expected.step(grad)

      optimizer:step()

      t.near(p:detach(), expected.y(), 1e-10, ("y, options %d, step %d"):format(case, step))
      optimizer:averaged(function() t.near(p:detach(), expected.x(), 1e-10, "x") end)
      t.near(p:detach(), expected.y(), 1e-10)
    end
  end
end)

t.test("DefaultsAreTheAuthors", function()
  local p = torch.tensor({ 1, -2 }, F64):requires_grad_(true)
  local expected = reference(p:detach(), OPTIONS[1])
  local optimizer = optim.ScheduleFreeAdamW { p }
  p.grad = torch.tensor({ 3, 4 }, F64)
  expected.step(p.grad)

  optimizer:step()

  t.near(p:detach(), expected.y(), 1e-12)
end)

t.test("ValuesComeBackBitForBitAlsoAfterAnError", function()
  for _, dtype in ipairs { torch.float32, torch.bfloat16 } do
    local p = torch.randn({ 50 }, { dtype = dtype }):requires_grad_(true)
    local other = p:detach():clone():requires_grad_(true)
    local optimizer = optim.ScheduleFreeAdamW({ p }, { lr = 0.1 })
    local undisturbed = optim.ScheduleFreeAdamW({ other }, { lr = 0.1 })
    local function step()
      p.grad = torch.randn({ 50 }, { dtype = dtype })
      other.grad = p.grad:clone()
      optimizer:step()
      undisturbed:step()
    end
    for _ = 1, 4 do step() end
    local before = p:detach():clone()

    t.raises("stop", optimizer.averaged, optimizer, function()
      t.truthy(not torch.equal(p:detach(), before))
      error "stop"
    end)

    t.truthy(torch.equal(p:detach(), before))
    step()
    t.truthy(torch.equal(p:detach(), other:detach()))
    local master = optimizer.state[p].master
    t.truthy(not master or torch.equal(master, undisturbed.state[other].master), "the master is not rounded")
  end
end)

t.test("AStepOfTheAverageIsAnError", function()
  local p = torch.ones({ 2 }):requires_grad_(true)
  local optimizer = optim.ScheduleFreeAdamW { p }
  p.grad = torch.ones { 2 }
  optimizer:step()

  t.raises("step within optimizer:averaged", function() optimizer:averaged(function() optimizer:step() end) end)
end)

t.test("OtherOptimizersCallTheFunction", function()
  local p = torch.ones({ 2 }):requires_grad_(true)
  t.equal({ optim.AdamW({ p }):averaged(function(...) return ... end, 1, 2) }, { 1, 2 })
end)

--- A tiny model after a few steps, whose parameters are y.
local function trained(adapts)
  torch.manual_seed(6)
  local model = models.load "tests/models/qwen3"
  if adapts then lora.apply(model, { r = 2 }) end
  local optimizer = optim.ScheduleFreeAdamW(model:parameters(), { lr = 0.05 })
  local batch = { input_ids = torch.arange(12), seq_lens = { 12 } }
  for _ = 1, 3 do
    local sum, count = model:loss(batch)
    ;(sum / count):backward()
    optimizer:step()
    optimizer:zero_grad()
  end
  local y, x = {}, {}
  for name, p in model:named_parameters() do y[name] = p:detach():clone() end
  optimizer:averaged(function()
    for name, p in model:named_parameters() do x[name] = p:detach():clone() end
  end)
  return model, optimizer, batch, x, y
end

local function same(model, expected)
  for name, p in model:named_parameters() do t.truthy(torch.equal(p:detach(), expected[name]), name) end
end

t.test("EvaluationSavingAndGenerationUseTheAverage", function()
  local model, optimizer, batch, x, y = trained()
  local expected = optimizer:averaged(function()
    return torch.no_grad(function()
      local sum, count = model:loss(batch)
      return sum:item() / count
    end)
  end)

  local left = { batch }
  local loss = sharding.evaluate(model, function() return table.remove(left) end,
    function(one) return model:loss(one) end)
  t.near(loss, expected, 1e-6)
  models.save(model, run.dir .. "/averaged", { like = "tests/models/qwen3" })
  local saved = models.load(run.dir .. "/averaged")
  same(saved, x)
  t.equal(models.generate(model, { { 1, 2 } }, { max_new_tokens = 6 }),
    models.generate(saved, { { 1, 2 } }, { max_new_tokens = 6 }))
  same(model, y)
end)

t.test("AdaptersAreSavedAndMergedAsTheAverage", function()
  local model, optimizer, batch = trained(true)
  local expected = optimizer:averaged(function() return torch.no_grad(model, batch) end)
  lora.save(model, run.dir .. "/averaged_adapter")
  local other = models.load "tests/models/qwen3"
  lora.load(other, run.dir .. "/averaged_adapter")
  t.near(torch.no_grad(other, batch), expected, 1e-5)

  lora.merge(model)

  t.near(torch.no_grad(model, batch), expected, 1e-5)
end)

t.test("AStateHoldsBothAndTheBestTheAverage", function()
  local model, optimizer, _, x, y = trained()
  run:state { model = model, optimizer = optimizer }
  run:keep_best("loss", 1, { step = 3 })
  run:save { step = 3 }
  same(model, y)
  torch.no_grad(function()
    for _, p in model:named_parameters() do p:zero_() end
    for _, state in pairs(optimizer.state) do state.z:zero_() end
  end)

  run:resume()

  same(model, y)
  optimizer:averaged(function() same(model, x) end)
  run:load_best()
  same(model, x)
  models.save(model, run.dir .. "/best_of_all", { like = "tests/models/qwen3" })
  same(models.load(run.dir .. "/best_of_all"), x)
end)

t.test("TrainingDoesNotGoOnFromTheAverage", function()
  local model, optimizer = trained()
  run:state { model = model, optimizer = optimizer }
  run:keep_best("loss", 0, { step = 4 })

  t.raises('a best state has the averaged weights of "optimizer"', run.resume, run, { from = run.dir .. "/best" })
end)

t.test("LearnsWithoutASchedule", function()
  torch.manual_seed(2)
  local x, w = torch.randn { 128, 10 }, torch.randn { 10, 1 }
  local net = nn.Linear(10, 1)
  local optimizer = optim.ScheduleFreeAdamW(net:parameters(), { lr = 0.1, warmup_steps = 10 })
  local function loss() return (net(x) - torch.matmul(x, w)):square():mean() end
  local before = loss():item()
  for _ = 1, 200 do
    loss():backward()
    optimizer:step()
    optimizer:zero_grad()
  end

  t.truthy(optimizer:averaged(function() return loss():item() end) < 1e-2 * before)
end)

t.test("OptionsThatDoNotFitAreErrors", function()
  local p = torch.ones({ 2 }):requires_grad_(true)
  t.raises("betas must be numbers between 0 and 1", optim.ScheduleFreeAdamW, { p }, { betas = { 0, 0.9 } })
  t.raises("warmup_steps must be a whole number", optim.ScheduleFreeAdamW, { p }, { warmup_steps = 1.5 })
end)
