-- Measures attention over a packed batch whose tokens lie on several ranks, forward and backward: gathering all keys
-- and values (equal parts of the batch, a mask), a ring and all-to-all over heads (a balanced chunk table). Prints for
-- each the processor time of the slowest rank and of the mean, and the most memory that a rank took besides its chunk.
--
--     lockstep --nproc 2 benchmarks/context_benchmark.lua [--set tokens=4096 --set one_document=true]

local chunk_table = require "lockstep.nn.context.table"
local chunks = require "lockstep.nn.chunks"
local dist = require "lockstep.distributed"
local ffi = require "ffi"
local nn = require "lockstep.nn"
local run = require "lockstep.run"
local torch = require "lockstep.torch"
local watching = require "lockstep.watching"

local config = run.config { tokens = 8192, heads = 4, kv_heads = 2, dim = 64, rounds = 2, seed = 1,
  one_document = false }
torch.set_num_threads(1)
local rank, world = dist.rank(), dist.world_size()

ffi.cdef "typedef struct { long s, ns; } bench_time; int clock_gettime(int clock, bench_time *time);"
local function cpu_seconds()
  local time = ffi.new "bench_time"
  ffi.C.clock_gettime(3, time) -- of this thread: others send and receive
  return tonumber(time.s) + 1e-9 * tonumber(time.ns)
end

--- Lengths of documents from a lognormal distribution, cut at the end of the batch.
local function packing()
  if config.one_document then return { config.tokens } end
  torch.manual_seed(config.seed)
  local seq_lens, sum = {}, 0
  while sum < config.tokens do
    local length = math.max(1, math.floor(math.exp(torch.randn(1):item() * 1.3 + 6)))
    length = math.min(length, config.tokens - sum)
    seq_lens[#seq_lens + 1], sum = length, sum + length
  end
  return seq_lens
end

local seq_lens = packing()
local members = { rank = rank, size = world, ranks = {} }
for r = 0, world - 1 do members.ranks[r + 1] = r end

--- One document's queries on this rank, from its position `offset` on, with all of its keys before their end.
local function masked(q, k, v, offset)
  local mask = torch.ones({ q:size(0), k:size(0) }, { dtype = torch.bool }):tril(offset)
  local group = q:size(1) / k:size(1)
  local function heads(x, times)
    return x:permute(1, 0, 2):unsqueeze(1):expand(x:size(1), times, x:size(0), x:size(2))
      :reshape(x:size(1) * times, x:size(0), x:size(2)):unsqueeze(0)
  end
  return torch.scaled_dot_product_attention(heads(q, 1), heads(k, group), heads(v, group), mask):squeeze(0)
    :permute(1, 0, 2)
end

--- The chunks of the form: equal parts of the batch, all keys and values gathered.
local function gathering(q, k, v)
  local all = dist.functional.all_gather(torch.stack { k, v }, { dim = 1 })
  local tokens = q:size(0)
  local first, start, results = rank * tokens, 0, {}
  for _, length in ipairs(seq_lens) do
    local from, to = math.max(start, first), math.min(start + length, first + tokens)
    if from < to then
      results[#results + 1] = masked(q:narrow(0, from - first, to - from), all[0]:narrow(0, start, to - start),
        all[1]:narrow(0, start, to - start), from - start)
    end
    start = start + length
  end
  return torch.cat(results)
end

local function of_table(own, form)
  local state = { rank = rank, size = world, ranks = members.ranks, form = form, table = own }
  return own, function(q, k, v) return chunks.with(state, nn.attention, q, k, v, { seq_lens = seq_lens }) end
end

local equal, balanced = chunk_table.contiguous(seq_lens, world), chunk_table.balanced(seq_lens, world)
local FORMS = {
  { "gather", equal, gathering },
  { "ring, equal parts", of_table(equal, "ring") },
  { "ring, balanced", of_table(balanced, "ring") },
  { "all-to-all, balanced", of_table(balanced, "all_to_all") },
}

--- Returns the most bytes that a call needs: garbage is collected all the time, as on a GPU that is short of memory.
local function bytes_of(step)
  jit.off()
  debug.sethook(function() collectgarbage() end, "", 300)
  local report = watching.memory_by_line(step)
  debug.sethook()
  jit.on()
  return report.peak_bytes
end

--- Each rank's number, as an array.
local function of_ranks(value)
  local all = {}
  for i, x in ipairs(dist.all_gather(torch.tensor({ value }, { dtype = torch.float64 }))) do all[i] = x:item() end
  return all
end

local function mean(list)
  local sum = 0
  for _, x in ipairs(list) do sum = sum + x end
  return sum / #list
end

torch.manual_seed(config.seed)
local whole = {}
for i, heads in ipairs { config.heads, config.kv_heads, config.kv_heads } do
  whole[i] = torch.randn { config.tokens, heads, config.dim }
end

local expected
for _, form in ipairs(FORMS) do
  local name, own, attend = unpack(form)
  local index, given = own:index(rank, "cpu"), {}
  for i, x in ipairs(whole) do given[i] = x:index_select(0, index) end
  local function step()
    local inputs = {}
    for i, x in ipairs(given) do inputs[i] = x:detach():requires_grad_(true) end
    local y = attend(unpack(inputs))
    y:sum():backward()
    return y:detach()
  end
  local peak = bytes_of(step)
  local y = step()
  local sum = dist.all_reduce(y:double():abs():sum()):item()
  expected = expected or sum
  assert(math.abs(sum - expected) < 1e-4 * expected, name .. " differs")
  local least = math.huge
  for _ = 1, config.rounds do
    dist.barrier()
    local start = cpu_seconds()
    step()
    least = math.min(least, cpu_seconds() - start)
  end
  local times, bytes = of_ranks(least), of_ranks(peak)
  if rank == 0 then
    print(("%-22s slowest %7.0f ms, mean %7.0f ms, ratio %.3f; planned %.3f; memory %6.2f MiB"):format(name,
      1e3 * math.max(unpack(times)), 1e3 * mean(times), math.max(unpack(times)) / mean(times), own:slowest(),
      math.max(unpack(bytes)) / 2 ^ 20))
  end
end
