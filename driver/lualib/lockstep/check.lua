--- Tries every rank's device and the ways between them before a run does, and names what is wrong or slow.
---
---     ./run check                          -- on a cluster: srun lockstep check
---     require("lockstep.check").ranks()    -- at the start of a script

local core = require "lockstep.core"
local dist = require "lockstep.distributed"
local log = require "lockstep.log"
local options = require "lockstep.options"
local plain = require "lockstep.plain"
local tables = require "lockstep.log.tables"
local torch = require "lockstep.torch"

local M = {}

local SHOWN = 16    -- ranks of the table; the slowest come first
local ROUND_TRIPS = 20

---@class lockstep.check.Rank
---@field rank integer
---@field host string
---@field device string
---@field rates table<string, number> "float32", "bfloat16": FLOP/s of products; "memory": bytes/s; "to next": bytes/s
---@field latency_s number? half a round trip to the next rank
---@field wrong string[] what gave a wrong result

local function finish(device)
  if device:find("^cuda") then torch.cuda.synchronize() end
end

--- Numbers between -0.5 and 0.5 that look random, are the same on every rank, and leave the generators as they are.
---@param shape integer[]
---@param seed integer
---@param device string
---@param dtype torch.dtype
---@return torch.Tensor
function M.numbers(shape, seed, device, dtype)
  local count = 1
  for _, size in ipairs(shape) do count = count * size end
  local x = torch.arange(count, { device = device, dtype = torch.int64 }) + seed * 2 ^ 26
  for _ = 1, 3 do -- the products stay below 2^63
    x = x * 1103515245 % 2 ^ 31
    x = x:bitwise_xor_(x:bitwise_right_shift(15))
  end
  return (x:to(torch.float32) / 2 ^ 31 - 0.5):reshape(shape):to(dtype)
end

--- Calls `work` for so many seconds, at least three times. Returns the least time of a call.
local function least_time(seconds, device, work)
  local best, started, calls = math.huge, core.now(), 0
  repeat
    local before = core.now()
    work()
    finish(device)
    best, calls = math.min(best, core.now() - before), calls + 1
  until calls >= 3 and core.now() - started >= seconds
  return best
end

--- Returns what is wrong with the product c of a and b, or nil. Freivalds' check compares c v with a (b v) in float64,
--- where v are random signs. An error is larger than eight times the expected rounding of a row.
---@param a torch.Tensor {n, n}, of numbers between -0.5 and 0.5
---@param b torch.Tensor {n, n}
---@param c torch.Tensor {n, n}
---@param epsilon number how far a number may be rounded, of 1
---@return string?
function M.product_problem(a, b, c, epsilon)
  local n = a:size(1)
  local signs = M.numbers({ n }, 3, a.device, torch.float64):sign()
  local off = torch.matmul(c:to(torch.float64), signs)
    - torch.matmul(a:to(torch.float64), torch.matmul(b:to(torch.float64), signs))
  -- A number of c is about n^0.5 / 12, and is summed in float32.
  local most, bound = off:abs():max():item(), 8 * (epsilon * n / 12 + 2 ^ -24 * n ^ 1.5 / 17)
  if not (most <= bound) then -- NaN is wrong, too
    return ("a row of a product of matrices is off by %.3g, more than the %.3g of rounding"):format(most, bound)
  end
end

--- Returns how far products of a dtype may round a number, of 1. float32 on a GPU may be TF32, with 11 bits.
local function epsilon_of(name, on_gpu)
  if name == "bfloat16" then return 2 ^ -9 end
  return on_gpu and torch.get_float32_matmul_precision() ~= "highest" and 2 ^ -11 or 2 ^ -24
end

local function try_products(row, seconds)
  local on_gpu = row.device:find("^cuda")
  for _, name in ipairs(on_gpu and { "float32", "bfloat16" } or { "float32" }) do
    local n = on_gpu and 8192 or 768
    local a, b = M.numbers({ n, n }, 1, row.device, torch[name]), M.numbers({ n, n }, 2, row.device, torch[name])
    local first, differs
    row.rates[name] = 2 * n ^ 3 / least_time(seconds, row.device, function()
      local c = torch.matmul(a, b)
      first = first or c
      differs = differs or not torch.equal(first, c)
    end)
    if differs then row.wrong[#row.wrong + 1] = name .. " products of the same matrices differ" end
    local problem = M.product_problem(a, b, first, epsilon_of(name, on_gpu))
    if problem then row.wrong[#row.wrong + 1] = name .. ": " .. problem end
  end
end

local function try_memory(row, seconds, bytes)
  local from = M.numbers({ bytes / 4 }, 1, row.device, torch.float32)
  local to = torch.zeros_like(from)
  row.rates.memory = 2 * bytes / least_time(seconds, row.device, function() to:copy_(from) end)
  if not torch.equal(from, to) then row.wrong[#row.wrong + 1] = "a copy in memory differs" end
end

--- The turns in which pairs of neighbours send, so that no rank is in two pairs of a turn: the lower rank of each.
---@param world integer
---@return integer[][]
function M.turns(world)
  local turns = { {}, {}, {} }
  for rank = 0, world - 1 do
    local last = rank == world - 1
    if not last then
      table.insert(turns[rank % 2 + 1], rank)
    elseif world > 2 then
      table.insert(world % 2 == 0 and turns[2] or turns[3], rank) -- back to rank 0
    end
  end
  return turns
end

--- Sends to the next rank and back, as its first or second of a pair.
local function try_pair(row, first, second, bytes)
  local peer, sends = row.rank == first and second or first, row.rank == first
  local function round_trip(x, back)
    if sends then
      dist.send(x, peer)
      dist.recv(back, peer)
    else
      dist.recv(back, peer)
      dist.send(back, peer)
    end
    finish(row.device)
  end
  local large = M.numbers({ bytes / 4 }, 1, row.device, torch.float32)
  local large_back, small = torch.zeros_like(large), large:narrow(0, 0, 1)
  local small_back = torch.zeros_like(small)
  local latency, time = math.huge, math.huge
  for _ = 1, ROUND_TRIPS do
    local before = core.now()
    round_trip(small, small_back)
    latency = math.min(latency, core.now() - before)
  end
  for _ = 1, 3 do
    local before = core.now()
    round_trip(large, large_back)
    time = math.min(time, core.now() - before)
  end
  if not torch.equal(large, large_back) then
    row.wrong[#row.wrong + 1] = ("what rank %d and rank %d send each other differs"):format(first, second)
  end
  if sends then row.rates["to next"], row.latency_s = 2 * bytes / time, latency / 2 end
end

local function try_neighbours(row, world, bytes)
  for _, turn in ipairs(M.turns(world)) do
    dist.barrier()
    for _, first in ipairs(turn) do
      local second = (first + 1) % world
      if row.rank == first or row.rank == second then try_pair(row, first, second, bytes) end
    end
  end
  if world == 1 then return end
  local sum = dist.all_reduce(torch.full({ bytes / 4 }, row.rank + 1, { device = row.device }), "sum")
  if not torch.equal(sum, torch.full_like(sum, world * (world + 1) / 2)) then
    row.wrong[#row.wrong + 1] = "the sum of an all_reduce is wrong"
  end
end

local RATES = { "float32", "bfloat16", "memory", "to next" }

--- The median, of an even number of values the larger of both in the middle: of two ranks the slower one stands out.
local function median(rows, rate)
  local values = {}
  for _, row in ipairs(rows) do values[#values + 1] = row.rates[rate] end
  table.sort(values)
  return values[math.floor(#values / 2) + 1]
end

local function name_of(row) return ("rank %d (%s, %s)"):format(row.rank, row.host, row.device) end

--- Returns a sentence for each wrong or slow rank or link, wrong results first.
---@param rows lockstep.check.Rank[] by rank
---@param slower number how many times slower than the median is slow
---@return string[]
function M.findings(rows, slower)
  local found = {}
  for _, row in ipairs(rows) do
    for _, what in ipairs(row.wrong) do found[#found + 1] = ("%s: %s"):format(name_of(row), what) end
  end
  for _, rate in ipairs(RATES) do
    local typical = median(rows, rate)
    for _, row in ipairs(rows) do
      local value = row.rates[rate]
      if value and value * slower < typical then
        local unit = (rate == "float32" or rate == "bfloat16") and "FLOP/s" or "B/s"
        local next_row = rate == "to next" and rows[(row.rank + 1) % #rows + 1]
        found[#found + 1] = ("%s: %s %.1f times slower than the median, %s%s of %s%s"):format(name_of(row),
          next_row and "to " .. name_of(next_row) or rate, typical / value, tables.rounded(value), unit,
          tables.rounded(typical), unit)
      end
    end
  end
  return found
end

local function share(row, medians)
  local least = math.huge
  for rate, value in pairs(row.rates) do least = math.min(least, value / medians[rate]) end
  return least
end

--- The table of all ranks, those with the least share of a median first.
---@param rows lockstep.check.Rank[]
---@return string
function M.drawing(rows)
  local medians, head, shown = {}, { "rank", "host", "device" }, {}
  for _, rate in ipairs(RATES) do
    medians[rate] = median(rows, rate)
    if medians[rate] then
      head[#head + 1] = rate .. ((rate == "memory" or rate == "to next") and " B/s" or " FLOP/s")
    end
  end
  head[#head + 1] = "latency"
  for i, row in ipairs(rows) do shown[i] = row end
  table.sort(shown, function(a, b)
    local x, y = share(a, medians), share(b, medians)
    if x ~= y then return x < y end
    return a.rank < b.rank
  end)
  local lines = { head }
  for i = 1, math.min(SHOWN, #shown) do
    local row = shown[i]
    local cells = { tostring(row.rank), row.host, row.device }
    for _, rate in ipairs(RATES) do
      local value = row.rates[rate]
      if medians[rate] then cells[#cells + 1] = value and tables.rounded(value) or "" end
    end
    cells[#cells + 1] = row.latency_s and ("%.0f us"):format(1e6 * row.latency_s) or ""
    lines[#lines + 1] = cells
  end
  local text = tables.columns(lines)
  if #shown > SHOWN then
    text = text .. ("\nand %d more, each at least %.2f of the medians"):format(#shown - SHOWN,
      share(shown[SHOWN + 1], medians))
  end
  return text
end

--- Every rank multiplies matrices on its device, copies memory, and sends to the next rank and back; then all reduce.
--- Each result is compared with what it must be, each speed with the median of all ranks. Rank 0 prints a table. A
--- wrong result, or a speed `slower` times below the median, is an error on every rank that names rank, host and
--- device. A device or a link that does not answer ends the run as in a step: after --timeout, with the table of
--- ranks. Collective. Products are checked as in Freivalds, "Probabilistic machines can use less running time" (1977).
---
--- `seconds`: of the products of each dtype, and of the copies; default 1. `slower`: default 1.5. `megabytes`: of each
--- message; default 64. On a GPU the matrices take 2.5 GB.
---
---     require("lockstep.check").ranks { slower = 1.3 }
---@param given? {seconds: number?, slower: number?, megabytes: number?}
---@return lockstep.check.Rank[] # by rank, the same on every rank
function M.ranks(given)
  local o = options.read("check.ranks", given, { seconds = 1, slower = 1.5, megabytes = 64 })
  plain.check(o.seconds >= 0 and o.seconds < math.huge,
    "check.ranks: seconds must be a finite number of at least 0, not %s", o.seconds)
  plain.check(o.slower > 1, "check.ranks: slower must be more than 1, not %s", o.slower)
  plain.check(o.megabytes >= 1 and o.megabytes % 1 == 0 and o.megabytes <= 4096,
    "check.ranks: megabytes must be a whole number from 1 to 4096, not %s", o.megabytes)
  local row = { rank = dist.rank(), host = plain.host_name(), device = dist.device(), rates = {}, wrong = {} }
  local bytes = o.megabytes * 2 ^ 20
  torch.no_grad(function()
    try_products(row, o.seconds)
    try_memory(row, o.seconds, bytes)
    try_neighbours(row, dist.world_size(), bytes)
  end)
  local rows = dist.all_gather_object(row)
  log.print(M.drawing(rows))
  local found = M.findings(rows, o.slower)
  if #found > 0 then core.raise("check.ranks: " .. table.concat(found, "\n  ")) end
  return rows
end

return M
