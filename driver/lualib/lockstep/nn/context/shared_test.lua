-- Attention of samples that groups of ranks share, next to samples that ranks hold whole: the results and gradients of
-- one rank.

local chunk_table = require "lockstep.nn.context.table"
local dist = require "lockstep.distributed"
local nn = require "lockstep.nn"
local products = require "lockstep.nn.context.products"
local shared = require "lockstep.nn.context.shared"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local RANK, WORLD = dist.rank(), dist.world_size()

local function random(from, to) return torch.randint(from, to + 1, { 1 }):item() end

--- Draws which samples are shared, and by which ranks, and what each rank holds besides; the same on every rank.
--- Returns the lengths of all samples, the shares of this rank, and its other samples as indices.
local function draw()
  local lengths, own, has_share = {}, {}, {}
  local shares = { largest_group = 1, rank = RANK, num_ranks = WORLD }
  for _ = 1, random(0, 4) do
    local ranks = 2 ^ random(1, 2)
    if ranks <= WORLD then
      lengths[#lengths + 1] = random(2 * ranks, 40)
      local first = ranks * random(0, math.floor(WORLD / ranks) - 1)
      for rank = first, first + ranks - 1 do has_share[rank] = true end
      shares.largest_group = math.max(shares.largest_group, ranks)
      if RANK >= first and RANK < first + ranks then
        shares[#shares + 1] = { sample = #lengths, tokens = lengths[#lengths], first_rank = first, ranks = ranks,
          place = RANK - first }
      end
    end
  end
  for rank = 0, WORLD - 1 do
    for _ = 1, random(has_share[rank] and 0 or 1, 3) do -- no micro-batch is empty
      lengths[#lengths + 1] = random(1, 12)
      if rank == RANK then own[#own + 1] = #lengths end
    end
  end
  return lengths, shares, own
end

--- Returns where this rank's tokens stand among those of all samples, and its seq_lens.
local function places_of(lengths, shares, own)
  local starts, sum = {}, 0
  for i, length in ipairs(lengths) do starts[i], sum = sum, sum + length end
  local places, seq_lens = { torch.zeros({ 0 }, { dtype = torch.int64 }) }, {}
  for _, share in ipairs(shares) do
    local index = chunk_table.balanced({ share.tokens }, share.ranks):index(share.place, "cpu")
    places[#places + 1], seq_lens[#seq_lens + 1] = index + starts[share.sample], index:size(0)
  end
  for _, i in ipairs(own) do
    places[#places + 1], seq_lens[#seq_lens + 1] = torch.arange(lengths[i]) + starts[i], lengths[i]
  end
  return torch.cat(places), seq_lens, sum
end

--- Compares this rank's rows with those of the whole.
local function check(lengths, shares, own, heads, kv_heads, opts, dtype, tolerance)
  local places, seq_lens, tokens = places_of(lengths, shares, own)
  local function values(count) return torch.randn({ tokens, count, 8 }, { dtype = dtype }) end
  local given, weight = { values(heads), values(kv_heads), values(kv_heads) }, values(heads)
  local whole, part = {}, {}
  for i, x in ipairs(given) do
    whole[i] = x:clone():requires_grad_(true)
    part[i] = x:index_select(0, places):requires_grad_(true)
  end
  opts = require("lockstep.plain").copy(opts, { seq_lens = lengths })
  local sinks = opts.sinks and torch.randn({ heads }, { dtype = dtype })
  opts.sinks = sinks and sinks:clone():requires_grad_(true)
  local whole_sinks = opts.sinks
  local expected = nn.attention(whole[1], whole[2], whole[3], opts)
  torch.sum(expected * weight):backward()

  opts.seq_lens, opts.shares, opts.sinks = seq_lens, shares, sinks and sinks:clone():requires_grad_(true)
  local y = nn.attention(part[1], part[2], part[3], opts)
  torch.sum(y * weight:index_select(0, places)):backward()

  t.near(y, expected:index_select(0, places), tolerance)
  for i = 1, 3 do t.near(part[i].grad, whole[i].grad:index_select(0, places), tolerance, "gradient " .. i) end
  if sinks then t.near(dist.all_reduce(opts.sinks.grad, "sum"), whole_sinks.grad, tolerance, "gradient of sinks") end
end

local OPTIONS = { {}, { scale = 0.3 }, { window = 3 }, { window = 700 }, { sinks = true },
  { sinks = true, window = 3 } }

for i, opts in ipairs(OPTIONS) do
  t.test("RandomSharesAreThoseOfOneRank_" .. i, function()
    for seed = 1, opts.sinks and 5 or 25 do
      torch.manual_seed(1000 * i + seed)
      local lengths, shares, own = draw()
      check(lengths, shares, own, 4, ({ 1, 2, 4 })[seed % 3 + 1], opts, torch.float64, 1e-12)
    end
  end)
end

--- A sample that all ranks share.
local function for_all(tokens)
  return { { sample = 1, tokens = tokens, first_rank = 0, ranks = WORLD, place = RANK }, largest_group = WORLD,
    rank = RANK, num_ranks = WORLD }
end

t.test("LongSamplesAndOtherKernels", function()
  if WORLD == 1 or WORLD == 3 then return end
  torch.manual_seed(5)
  check({ 1300 }, for_all(1300), {}, 4, 2, {}, torch.float64, 1e-12)
  check({ 33 }, for_all(33), {}, 4, 2, {}, torch.bfloat16, 0.2)
  local choose = products.kernel
  products.kernel = function() return "plain" end
  local ok, message = pcall(check, { 700 }, for_all(700), {}, 4, 2, {}, torch.float64, 1e-12)
  products.kernel = choose
  t.truthy(ok, message)
end)

-- Without the exchange each share sees only its own chunk: the failure that it prevents.
t.test("ASharesTokensDoNotSeeTheSampleWithoutTheExchange", function()
  if WORLD == 1 or WORLD == 3 then return end
  torch.manual_seed(6)
  local x = torch.randn({ 40, 2, 8 }, { dtype = torch.float64 })
  local own = x:index_select(0, chunk_table.balanced({ 40 }, WORLD):index(RANK, "cpu"))
  local expected = nn.attention(x, x, x):index_select(0, chunk_table.balanced({ 40 }, WORLD):index(RANK, "cpu"))
  local alone = nn.attention(own, own, own)
  t.truthy((alone - expected):abs():max():item() > 0.01)
  t.near(nn.attention(own, own, own, { seq_lens = { own:size(0) }, shares = for_all(40) }), expected, 1e-12)
end)

t.test("StepsHoldNoMemory", function()
  if WORLD ~= 2 then return end -- it takes many steps
  local x, shares = torch.randn { 16, 2, 8 }, for_all(32)
  t.memory_is_flat(function()
    local q = x:clone():requires_grad_(true)
    nn.attention(q, q, q, { seq_lens = { 16 }, shares = shares }):sum():backward()
    nn.attention(q, q, q, { seq_lens = { 16 }, shares = shares }) -- no backward
  end)
end)

t.test("MistakesAreNamed", function()
  if WORLD == 1 or WORLD == 3 then return end
  local shares = for_all(8 * WORLD)
  local x = torch.randn { 8, 2, 8 }
  local function attend(opts)
    return nn.attention(x, x, x, require("lockstep.plain").copy({ seq_lens = { 8 }, shares = shares }, opts))
  end
  t.raises("shares of samples need causal attention without blocks", attend, { causal = false })
  t.raises("sinks must be a tensor [heads] of 2 numbers, got shape", attend, { sinks = torch.zeros { 3 } })
  t.raises("the share of sample 1 has 8 tokens", attend, { seq_lens = { 5, 3 } })
  local others = for_all(8 * WORLD)
  others.rank = (RANK + 1) % WORLD
  t.raises(("shares of rank %d of %d, but this is rank %d of %d"):format(others.rank, WORLD, RANK, WORLD), attend,
    { shares = others })
  t.equal(shared.plan_of(shares), shared.plan_of(shares))
end)
