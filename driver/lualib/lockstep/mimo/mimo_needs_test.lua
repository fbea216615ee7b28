--- Bridges whose receivers take only the rows that they need, on random topologies, against one process in float64.
--- Each part of a replica has a loss of its own of its rows, so a row that several parts need has several gradients.

local dist = require "lockstep.distributed"
local fixture = require "mimo_fixture"
local mimo = require "lockstep.mimo"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

torch.set_num_threads(1)

local WORLD, RANK = dist.world_size(), dist.rank()
local CASES, CALLS, WIDTH, TOLERANCE = 12, 3, 3, 1e-10

--- Returns a module whose dp, tp and cp have the product `ranks`.
local function draw_module(draw, name, ranks, first_rank)
  local function factor(n)
    local of = {}
    for i = 1, n do of[#of + 1] = n % i == 0 and i or nil end
    return of[draw(1, #of)]
  end
  local tp = factor(ranks)
  local cp = factor(ranks / tp)
  return { name = name, tp = tp, cp = cp, dp = ranks / tp / cp, first_rank = first_rank,
    order = draw(0, 1) == 0 and "tp-cp-dp-pp" or "cp-dp-tp-pp" }
end

--- Returns two modules on ranks of their own, or with other grids on the same ranks.
local function draw_modules(draw)
  if draw(1, 4) > 1 then
    local count = draw(1, WORLD - 1)
    return draw_module(draw, "vision", count, 0), draw_module(draw, "language", WORLD - count, count)
  end
  local from, to
  repeat
    from, to = draw_module(draw, "vision", WORLD, 0), draw_module(draw, "language", WORLD, 0)
  until from.dp ~= to.dp or from.cp ~= to.cp
  return from, to
end

--- Returns the first sample of a replica and the one behind its last, from 1: the first replicas have one more.
local function samples_of(count, replica, replicas)
  local each, more = math.floor(count / replicas), count % replicas
  local first = replica * each + math.min(replica, more)
  return first + 1, first + each + (replica < more and 1 or 0)
end

--- Returns the rows of the micro-batch [first, last) of a replica.
local function shard_of(rows, replica, replicas)
  local first, last = samples_of(#rows, replica, replicas)
  local begin, size = 0, 0
  for i = 1, last do
    if i < first then begin = begin + rows[i] else size = size + rows[i] end
  end
  return begin, size
end

local function draw_call(draw, to, parts)
  local call = { rows = {}, needs = {}, all = 0 }
  for i = 1, draw(1, 9) do
    call.rows[i] = math.max(0, draw(-1, 5))
    call.all = call.all + call.rows[i]
  end
  for replica = 0, to.dp - 1 do
    local _, size = shard_of(call.rows, replica, to.dp)
    for _ = 1, parts do
      local chance, list = draw(0, 4), {}
      for row = 0, size - 1 do list[#list + 1] = draw(1, 4) <= chance and row or nil end
      call.needs[#call.needs + 1] = draw(0, 1) == 0 and list or torch.tensor(list, { dtype = torch.int64 })
    end
  end
  call.x = torch.randn({ call.all, WIDTH }, { dtype = torch.float64 })
  return call
end

local function index_of(list) return torch.is_tensor(list) and list or torch.tensor(list, { dtype = torch.int64 }) end

--- Fails unless both have the same shape and nearly the same values; they may have none.
local function same(actual, expected, tolerance, text)
  t.equal(actual.shape, expected.shape)
  if expected:numel() > 0 then t.near(actual, expected, tolerance, text) end
end

--- Returns the loss of one part's rows.
local function loss_of(y, part) return (torch.sin(y) * (part + 1)):sum() + (y * y):sum() / (part + 2) end

--- Returns what each part receives, and the gradient of x, in one process.
local function reference(call, to, parts)
  local x = call.x:clone():requires_grad_(true)
  local total, received = torch.zeros({}, { dtype = torch.float64 }) + x:sum() * 0, {}
  for i, list in ipairs(call.needs) do
    local begin = shard_of(call.rows, math.floor((i - 1) / parts), to.dp)
    received[i] = x:index_select(0, index_of(list) + begin)
    total = total + loss_of(received[i], i)
  end
  total:backward()
  return received, x.grad
end

for number = 1, CASES do
  t.test(("TheRowsThatAPartNeedsAndTheirGradientsAreThoseOfOneProcess_%d"):format(number), function()
    local draw = fixture.new_draw(number + 100 * WORLD)
    torch.manual_seed(number)
    local from, to = draw_modules(draw)
    local axes = draw(0, 1) == 0 and "cp" or "tp-cp"
    local parts = axes == "cp" and to.cp or to.tp * to.cp
    local text = ("%s; dp %d tp %d cp %d -> dp %d tp %d cp %d"):format(axes, from.dp, from.tp, from.cp, to.dp, to.tp,
      to.cp)
    local topology = mimo.topology { modules = { from, to } }
    local bridge = mimo.bridge { topology = topology, from = "vision", to = "language", needs = axes,
      audit = axes == "cp" and draw(0, 1) == 0 }
    local own = topology:peers("vision", "dp") and topology:coordinates(RANK, "vision")
    local place = topology:peers("language", "dp") and topology:coordinates(RANK, "language")

    for _ = 1, CALLS do
      local call = draw_call(draw, to, parts)
      local received, gradient = reference(call, to, parts)
      local begin, size, x
      if own then
        begin, size = shard_of(call.rows, own.dp, from.dp)
        x = call.x:narrow(0, begin, size):clone():requires_grad_(true)
      end

      local y = bridge(x, { rows_per_sample = call.rows, needs = call.needs })
      local part = place and place.dp * parts + (axes == "cp" and place.cp or place.cp * to.tp + place.tp) + 1
      local loss = place and loss_of(y, part) or y:sum()
      loss:backward()

      if part then same(y:detach(), received[part]:detach(), 0, text) end
      -- The gradients of cp ranks add up to that of x; each tp rank has it.
      local all = dist.all_gather_object(own and { own.dp, own.tp, x.grad:flatten():totable() } or {})
      local sum = own and torch.zeros({ size * WIDTH }, { dtype = torch.float64 })
      for _, other in ipairs(all) do
        if own and other[1] == own.dp and other[2] == own.tp then
          sum = sum + torch.tensor(other[3], { dtype = torch.float64 })
        end
      end
      if own then same(sum:view(size, WIDTH), gradient:narrow(0, begin, size), TOLERANCE, text) end
    end
  end)
end

-- Mistakes ----------------------------------------------------------------------------------------------

local function cut() return mimo.topology { modules = {
  { name = "vision" }, { name = "language", cp = WORLD - 1, first_rank = 1 } } } end
local function bridge_of(axes, audit)
  return mimo.bridge { topology = cut(), from = "vision", to = "language", needs = axes, audit = audit }
end
local function x_of(rows) return RANK == 0 and torch.ones { rows, 2 } or nil end
--- Needs of row 0 on every rank but the last, which needs `last`.
local function needs_of(last)
  local needs = {}
  for i = 1, WORLD - 1 do needs[i] = i == WORLD - 1 and last or { 0 } end
  return needs
end

for _, case in ipairs {
  { { rows_per_sample = { 3 } }, "gives a call no needs, but the bridge was made with needs" },
  { { needs = needs_of { 1 } }, "gives needs, but not which rows are whose" },
  { { rows_per_sample = { 3 }, needs = { { 0 } } }, "needs has 1 lists, expected " .. WORLD - 1 },
  { { rows_per_sample = { 3 }, needs = needs_of { 3 } }, "has the rows [3, 4) after row 0" },
  { { rows_per_sample = { 3 }, needs = needs_of { 1, 1 } }, "row 1 follows row 1" },
  { { rows_per_sample = { 3 }, needs = needs_of { -1 } }, "row -1 is negative" },
  { { rows_per_sample = { 3 }, needs = needs_of { 1 }, differs = true }, "disagree about the micro-batch" },
} do
  t.test("AMistakeIsAnErrorOnEveryRank: " .. case[2], function()
    local bridge, opts = bridge_of "cp", case[1]
    t.raises(case[2], function()
      local own = { rows_per_sample = opts.rows_per_sample, needs = opts.needs }
      if opts.differs and RANK == 0 then own.needs = needs_of { 2 } end
      bridge(x_of(3), own)
      bridge(x_of(3), own) -- a sender does not wait for the first
      bridge(x_of(3), own)
    end)
  end)
end

t.test("NeedsOfABridgeWithoutThemAreAnError", function()
  local bridge = bridge_of()
  t.raises("gives a call needs, but the bridge was made without", bridge, x_of(3),
    { rows_per_sample = { 3 }, needs = needs_of { 1 } })
end)

t.test("OptionsThatDoNotFitAreErrors", function()
  t.raises('needs must be "cp" or "tp-cp", not "dp"', bridge_of, "dp")
  t.raises("audit compares tp ranks with the same rows", bridge_of, "tp-cp", true)
  t.raises('rank 1 (language) with needs = "cp"; give every rank the same', bridge_of,
    RANK == 1 and "cp" or "tp-cp")
  local alike = mimo.topology { modules = { { name = "vision", dp = WORLD }, { name = "language", dp = WORLD } } }
  t.raises("both modules have the same grid, so that nothing travels", mimo.bridge, { topology = alike,
    from = "vision", to = "language", needs = "cp" })
end)
