--- sharding.grid against a list of all ranks that is made by loops.

local dist = require "lockstep.distributed"
local grids = require "lockstep.sharding.grid"
local nn = require "lockstep.nn"
local plain = require "lockstep.plain"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local RANK, WORLD = dist.rank(), dist.world_size()

--- Every rank with its place on each axis, as loops count them.
local function all_places(grid)
  local places, rank = {}, 0
  for pp = 0, grid.pp - 1 do
    for dp = 0, grid.dp - 1 do
      for cp = 0, grid.cp - 1 do
        for tp = 0, grid.tp - 1 do
          local shared = dp * grid.cp + cp
          places[rank] = { tp = tp, cp = cp, dp = dp, pp = pp, ep = shared % grid.ep,
            block = math.floor(shared / grid.ep) }
          rank = rank + 1
        end
      end
    end
  end
  return places, rank
end

--- What the ranks of a group have in common.
local SAME = {
  tp = { "cp", "dp", "pp" }, cp = { "tp", "dp", "pp" }, dp = { "tp", "cp", "pp" }, pp = { "tp", "cp", "dp" },
  tp_cp = { "dp", "pp" }, dp_cp = { "tp", "pp" }, tp_cp_dp = { "pp" }, tp_cp_pp = { "dp" },
  ep = { "tp", "pp", "block" }, tp_ep = { "pp", "block" }, expert_dp = { "tp", "pp", "ep" },
}

local function expected_ranks(places, count, axis, own)
  local ranks = {}
  for rank = 0, count - 1 do
    local is_member = true
    for _, name in ipairs(SAME[axis]) do is_member = is_member and places[rank][name] == places[own][name] end
    if is_member then ranks[#ranks + 1] = rank end
  end
  return ranks
end

--- All sizes {tp, cp, dp, pp, ep} of a number of ranks.
local function all_sizes(world)
  local found = {}
  for tp = 1, world do
    for cp = 1, world / tp do
      for pp = 1, world / tp / cp do
        if world % (tp * cp * pp) == 0 then
          local dp = world / (tp * cp * pp)
          for ep = 1, dp * cp do
            if dp * cp % ep == 0 then found[#found + 1] = { tp = tp, cp = cp, pp = pp, dp = dp, ep = ep } end
          end
        end
      end
    end
  end
  return found
end

t.test("GridsOfTheWorldHaveTheGroupsThatLoopsFind", function()
  local sizes_of = all_sizes(WORLD)
  torch.manual_seed(1)
  local order = torch.randperm(#sizes_of)
  for i = 1, math.min(#sizes_of, 12) do -- of a small world these are all
    local sizes = sizes_of[order[i - 1]:item() + 1]
    local dp = sizes.dp
    if i % 2 == 0 then sizes.dp = nil end
    local grid = sharding.grid(sizes)
    t.equal({ grid.tp, grid.cp, grid.ep, grid.pp, grid.dp }, { sizes.tp, sizes.cp, sizes.ep, sizes.pp, dp })
    local places, count = all_places(grid)
    t.equal(count, WORLD)
    for _, axis in ipairs { "tp", "cp", "dp", "pp" } do t.equal(grid:rank(axis), places[RANK][axis], axis) end
    t.equal(grid:rank "ep", places[RANK].ep)
    for axis in pairs(SAME) do
      local expected = expected_ranks(places, count, axis, RANK)
      t.equal(grid:group(axis):ranks(), expected, axis)
      t.equal(grid:size(axis), #expected)
      t.equal(expected[grid:rank(axis) + 1], RANK)
    end
  end
end)

t.test("AGridOfSomeRanksIsThatOfAsManyRanks", function()
  if WORLD == 1 then return end
  local ranks = {}
  for rank = 1, WORLD - 1 do ranks[rank] = rank end
  if RANK > 0 then
    local sizes = (WORLD - 1) % 2 == 0 and { tp = 2 } or { cp = WORLD - 1 }
    local grid = sharding.grid(sizes, dist.group { ranks = ranks })
    t.equal(grid.tp * grid.cp * grid.dp, WORLD - 1)
    t.equal(grid:ranks "tp_cp_dp", ranks)
    t.equal(grid:group("tp_cp"):ranks(), grid:ranks "tp_cp")
    local sum = dist.all_reduce(torch.tensor(RANK + 0.0), "sum", { group = grid:group "tp_cp_dp" }):item()
    t.equal(sum, WORLD * (WORLD - 1) / 2)
  end
  dist.barrier()
  t.raises("group must have consecutive ranks, got {0, 2}", sharding.grid, {},
    { ranks = function() return { 0, 2 } end })
end)

t.test("AModelOnAGridOfSomeRanksLearnsWithoutTheOthers", function()
  if WORLD ~= 3 or RANK == 0 then return end -- rank 0 calls nothing
  local group = dist.group { ranks = { 1, 2 } }
  local net = nn.Linear(4, 1, { bias = false })
  local model = sharding.parallelize(net, sharding.grid({}, group))
  local function loss_of(x) return model(x):sum() end
  local x = torch.full({ 2, 4 }, RANK)

  local mean = sharding.accumulate(model, { x }, 4, loss_of)

  local left = { x }
  local function next_batch() return table.remove(left) end
  t.near(mean, sharding.evaluate(model, next_batch, function(batch) return loss_of(batch), 2 end), 1e-6)
end)

t.test("AGridOfSomeRanksHasNoPipelines", function()
  local all = sharding.grid {}
  local some = setmetatable(plain.copy(all, { pp = 2, ranks_of_all = all:group "dp" }), getmetatable(all))
  t.raises("pp needs a grid of all ranks of the run", sharding.parallelize, nn.Linear(4, 1), some)
end)

t.test("EachGroupCommunicates", function()
  local sizes = all_sizes(WORLD)
  local grid = sharding.grid(sizes[math.ceil(#sizes / 2)])
  for _, axis in ipairs { "tp", "cp", "dp", "dp_cp", "pp", "ep", "tp_cp", "tp_ep", "expert_dp", "tp_cp_dp",
    "tp_cp_pp" } do
    local sum = 0
    for _, rank in ipairs(grid:group(axis):ranks()) do sum = sum + rank end
    t.equal(dist.all_reduce(torch.tensor(RANK), "sum", { group = grid:group(axis) }):item(), sum, axis)
  end
end)

t.test("RanksOfOtherGroupsAreKnownWithoutCommunication", function()
  local grid = setmetatable(grids.sizes({ tp = 2, cp = 3, pp = 2, ep = 6 }, 48), getmetatable(sharding.grid {}))
  local places, count = all_places(grid)
  for rank = 0, 47 do
    for axis in pairs(SAME) do t.equal(grid:ranks(axis, rank), expected_ranks(places, count, axis, rank), axis) end
  end
end)

t.test("SizesThatDoNotFitNameTheProductAndTheWorld", function()
  local function refused(text, sizes, world) t.raises(text, grids.sizes, sizes, world) end
  refused("tp 4 x cp 2 x pp 2 = 16 ranks, but the world has 8; start more ranks", { tp = 4, cp = 2, pp = 2 }, 8)
  refused("tp 3 x cp 1 x pp 1 = 3 ranks, which do not divide the world of 8 ranks; start 6 or 9 ranks", { tp = 3 }, 8)
  refused("tp 2 x cp 1 x pp 1 = 2, x dp 2 = 4 ranks, but the world has 8; leave dp out, it is 4", { tp = 2, dp = 2 },
    8)
  refused("ep 3 does not divide dp 4 x cp 1 = 4", { tp = 2, ep = 3 }, 8)
  refused("replicas 3 does not divide dp 4", { tp = 2, replicas = 3 }, 8)
  refused("tp must be a whole number of at least 1, not 0", { tp = 0 }, 8)
  refused("tp must be a whole number of at least 1, not 1.5", { tp = 1.5 }, 8)
  refused("pp must be a whole number of at least 1, not a string", { pp = "2" }, 8)
  refused("dp must be a whole number of at least 1, not nan", { dp = 0 / 0 }, 8)
  refused('unknown option "fp"', { fp = 2 }, 8)
  refused("options must be a table, not 4", 4, 8)
  t.raises(("but the world has %d"):format(WORLD), sharding.grid, { tp = WORLD + 1 })
end)

t.test("AnAxisThatIsNotThereIsNamedWithTheNearest", function()
  local grid = sharding.grid {}
  t.raises('no axis is named "dpcp"; did you mean "dp_cp"?', grid.group, grid, "dpcp")
  t.raises("no axis is named by a nil", grid.rank, grid)
  t.equal(tostring(grid), "dp " .. WORLD)
end)

t.test("RanksThatGiveDifferentSizesAreNamed", function()
  if WORLD % 2 ~= 0 then return end
  t.raises("every rank must give the same sizes, got tp 1", sharding.grid, { tp = RANK == WORLD - 1 and 2 or 1 })
end)
