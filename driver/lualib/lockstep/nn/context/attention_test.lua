-- Attention of chunks by a ring and by all-to-all over heads: the results and gradients of the whole on one rank.

local chunk_table = require "lockstep.nn.context.table"
local chunks = require "lockstep.nn.chunks"
local core_sharding = require "lockstep.core.sharding"
local dist = require "lockstep.distributed"
local nn = require "lockstep.nn"
local plain = require "lockstep.plain"
local products = require "lockstep.nn.context.products"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local rank, world = dist.rank(), dist.world_size()
local MEMBERS = { rank = rank, size = world, ranks = {} }
for r = 0, world - 1 do MEMBERS.ranks[r + 1] = r end

local function random_documents()
  local seq_lens = {}
  for i = 1, torch.randint(1, 6, { 1 }):item() do
    -- A third have 1 token, a third fewer than twice the ranks.
    local most = ({ 2, 2 * world, 40 })[torch.randint(0, 3, { 1 }):item() + 1]
    seq_lens[i] = torch.randint(1, most, { 1 }):item()
  end
  return seq_lens
end

--- Compares the chunk's attention with that of the whole. A chunk without a token has one that counts nowhere.
local function check_attention(form, seq_lens, heads, kv_heads, opts, dtype, tolerance)
  local own = chunk_table.balanced(seq_lens, world)
  local state = plain.copy(MEMBERS, { form = form, table = own })
  local options = plain.copy(opts, { seq_lens = seq_lens })
  local sinks = opts.sinks and torch.randn({ heads }, { dtype = dtype })
  options.sinks = sinks and sinks:clone():requires_grad_(true)
  local function random(count) return torch.randn({ own.tokens, count, 8 }, { dtype = dtype }) end
  local given, weight = { random(heads), random(kv_heads), random(kv_heads) }, random(heads)
  local whole, chunk = {}, {}
  for i, x in ipairs(given) do
    whole[i] = x:clone():requires_grad_(true)
    chunk[i] = chunks.own(state, x):clone():requires_grad_(true)
  end
  local expected = nn.attention(whole[1], whole[2], whole[3], options)
  torch.sum(expected * weight):backward()

  local whole_sinks = options.sinks
  options.sinks = sinks and sinks:clone():requires_grad_(true)
  local y = chunks.with(state, nn.attention, chunk[1], chunk[2], chunk[3], options)
  torch.sum(y * chunks.own(state, weight)):backward()

  if sinks then t.near(dist.all_reduce(options.sinks.grad, "sum"), whole_sinks.grad, tolerance, "gradient of sinks") end
  if own.counts[rank + 1] == 0 then
    t.equal(y, torch.zeros_like(y))
    for i = 1, 3 do t.equal(chunk[i].grad, torch.zeros_like(chunk[i])) end
    return
  end
  t.near(y, chunks.own(state, expected), tolerance)
  for i = 1, 3 do t.near(chunk[i].grad, chunks.own(state, whole[i].grad), tolerance, "gradient " .. i) end
end

local OPTIONS = { {}, { scale = 0.3 }, { causal = false }, { window = 3 }, { window = 1 }, { window = 700 },
  { window = 4, causal = false }, { sinks = true }, { sinks = true, window = 3 } }

for _, form in ipairs { "ring", "all_to_all" } do
  for i, opts in ipairs(OPTIONS) do
    t.test(("%s_RandomDocumentsAreThoseOfOneRank_%d"):format(form, i), function()
      for seed = 1, opts.sinks and 4 or 8 do
        torch.manual_seed(100 * i + seed)
        local kv_heads = ({ 1, 2, 4 })[seed % 3 + 1]
        check_attention(form, random_documents(), 4 * world, kv_heads, opts, torch.float64, 1e-12)
      end
    end)
  end

  t.test(form .. "_LongDocumentsAndShortOnes", function()
    torch.manual_seed(7)
    check_attention(form, { 1300, 1, 2, 170 }, 2 * world, 2, {}, torch.float64, 1e-12)
    check_attention(form, { 1300, 1, 2, 170 }, 2 * world, 2, { window = 100 }, torch.float64, 1e-12)
    check_attention(form, { 1 }, 2 * world, 2, {}, torch.float64, 1e-12)
    check_attention(form, { 33 }, 2 * world, 2, {}, torch.bfloat16, 0.2)
  end)
end

t.test("ARingTakesHeadsThatTheRanksDoNotDivide", function()
  torch.manual_seed(8)
  check_attention("ring", { 9, 30, 1 }, 6, 3, {}, torch.float64, 1e-12)
  check_attention(nil, { 9, 30, 1 }, 6, 3, {}, torch.float64, 1e-12)
end)

-- Every device without a kernel has the product written out, which a window uses everywhere.
t.test("TheProductWrittenOutIsTheKernels", function()
  local choose = products.kernel
  products.kernel = function() return "plain" end
  local ok, message = pcall(check_attention, "ring", { 700, 5, 1, 90 }, 4, 2, {}, torch.float64, 1e-12)
  local ok_both, message_both = pcall(check_attention, "ring", { 50, 5 }, 4, 2, { causal = false }, torch.float64,
    1e-12)
  products.kernel = choose
  t.truthy(ok and ok_both, tostring(message) .. tostring(message_both))
end)

-- ATen's kernel gives a row without keys a logarithm of 0, which a sum would count as a key of weight 1.
t.test("RowsWithoutKeysLeaveASumAsItIs", function()
  local y, logs = torch.ones { 2, 1, 3 }, torch.tensor { { 1.5 }, { -math.huge } }
  products.merge(y, logs, torch.zeros { 2, 1, 3 }, torch.tensor { { -math.huge }, { -math.huge } })
  t.equal(y, torch.tensor { { { 1, 1, 1 } }, { { 0, 0, 0 } } })
  t.equal(logs, torch.tensor { { 1.5 }, { -math.huge } })
end)

t.test("AutocastComputesInItsDtype", function()
  torch.manual_seed(9)
  local own = chunk_table.balanced({ 30, 3 * world }, world)
  local state = plain.copy(MEMBERS, { form = "ring", table = own })
  local whole = torch.randn { own.tokens, 2, 8 }
  local x = chunks.own(state, whole)
  local y = torch.autocast({ device = "cpu", dtype = torch.bfloat16 }, chunks.with, state, nn.attention, x, x, x,
    { seq_lens = { 30, 3 * world } })
  t.equal(y.dtype, torch.bfloat16)
  local expected = nn.attention(whole, whole, whole, { seq_lens = { 30, 3 * world } })
  t.near(y:to(torch.float32), chunks.own(state, expected), 0.1)
end)

t.test("StepsHoldNoMemory", function()
  if world ~= 2 then return end -- it takes many steps
  local own = chunk_table.balanced({ 16 * world }, world)
  local state = plain.copy(MEMBERS, { form = "ring", table = own })
  local x = torch.randn { 16, 2, 8 }
  t.memory_is_flat(function()
    local q = x:clone():requires_grad_(true)
    chunks.with(state, nn.attention, q, q, q, { seq_lens = { 16 * world } }):sum():backward()
    chunks.with(state, nn.attention, q, q, q, { seq_lens = { 16 * world } }) -- no backward
  end)
end)

t.test("MistakesAreNamed", function()
  if world == 1 then return end
  local own = chunk_table.balanced({ 8 * world }, world)
  local x = torch.randn { 8, world + 1, 8 }
  local function attend(form, q, ...)
    local state = plain.copy(MEMBERS, { form = form, table = own })
    return chunks.with(state, nn.attention, q, q, q, ...)
  end
  t.raises(("all-to-all over %d ranks needs a multiple of %d query heads, got %d"):format(world, world, world + 1),
    attend, "all_to_all", x)
  local short = x:narrow(0, 0, 7)
  t.raises(("rank %d holds 8 tokens of this batch, but q has 7"):format(rank), attend, "ring", short)
  local q = x:clone():requires_grad_(true)
  local y = attend("ring", q)
  t.raises("cannot be differentiated again", torch.grad, { y:sum() }, { q }, { create_graph = true })
  t.raises("shift: the tensor has been taken before", function()
    local shift = core_sharding.shift(torch.ones { 1 }, { 1 })
    shift:wait()
    shift:wait()
  end)
end)
