-- The chunk table: every token on one rank, equal numbers of tokens, equal work.

local chunk_table = require "lockstep.nn.context.table"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

--- Lengths of documents that add up to `tokens`, from a lognormal distribution.
local function packing(seed, tokens, mu, sigma)
  torch.manual_seed(seed)
  local lengths, sum = {}, 0
  while sum < tokens do
    local length = math.max(1, math.floor(math.exp(torch.randn(1):item() * sigma + mu)))
    length = math.min(length, tokens - sum)
    lengths[#lengths + 1], sum = length, sum + length
  end
  return lengths
end

local function ones(count)
  local lengths = {}
  for i = 1, count do lengths[i] = 1 end
  return lengths
end

local function check_complete(own, seq_lens)
  local seen = {}
  for rank = 0, own.size - 1 do
    local index = own:index(rank, "cpu"):totable()
    t.equal(#index, own.counts[rank + 1])
    for i, token in ipairs(index) do
      t.truthy(not seen[token], "token " .. token .. " is on one rank")
      t.truthy(i == 1 or index[i - 1] < token, "a chunk is in the batch's order")
      seen[token] = true
    end
  end
  local total = 0
  for _, length in ipairs(seq_lens) do total = total + length end
  t.equal(#require "lockstep.plain".keys(seen), total)
  local places, tokens_at = own:places "cpu", own:tokens_at "cpu"
  t.equal(tokens_at:index_select(0, places), torch.arange(total))
end

t.test("EveryTokenIsOnOneRank", function()
  for seed = 1, 30 do
    torch.manual_seed(seed)
    local seq_lens = {}
    for i = 1, torch.randint(1, 9, { 1 }):item() do seq_lens[i] = torch.randint(1, 40, { 1 }):item() end
    for _, size in ipairs { 1, 2, 3, 4, 8 } do
      local own = chunk_table.balanced(seq_lens, size)
      check_complete(own, seq_lens)
      t.truthy(math.max(unpack(own.counts)) - math.min(unpack(own.counts)) <= 1, "tokens differ by 1 at most")
      t.truthy(own.padding < size)
      local divisible = { 7 * size, 5 * size - 3, 3 }
      check_complete(chunk_table.contiguous(divisible, size), divisible)
    end
  end
end)

t.test("TheSlowestRankIsWithinFivePercentOfTheMean", function()
  for _, size in ipairs { 2, 4, 8 } do
    local worst, worst_contiguous = 1, 1
    for seed = 1, 20 do
      local seq_lens = packing(seed, 16384, 6, 1.3)
      worst = math.max(worst, chunk_table.balanced(seq_lens, size):slowest())
      worst_contiguous = math.max(worst_contiguous, chunk_table.contiguous(seq_lens, size):slowest())
    end
    t.truthy(worst <= 1.01, ("cp %d: %.4f"):format(size, worst))
    t.truthy(worst_contiguous > 1.3, "equal chunks have unequal work")
  end
end)

-- Cutting a document into equal pieces would give one rank the last token of each of these.
t.test("ShortDocumentsAreEqualWork", function()
  for _, length in ipairs { 1, 2, 3, 5, 8, 11, 16, 17 } do
    local seq_lens = {}
    for i = 1, 400 do seq_lens[i] = length end
    for _, size in ipairs { 2, 4, 8 } do
      local slowest = chunk_table.balanced(seq_lens, size):slowest()
      t.truthy(slowest <= 1.05, ("documents of %d tokens, cp %d: %.4f"):format(length, size, slowest))
    end
  end
end)

t.test("ADocumentNeedsNoPadding", function()
  local own = chunk_table.balanced({ 9, 4 }, 2)
  t.equal(own.counts, { 7, 6 })
  t.equal(own.padding, 1)
  t.equal(chunk_table.balanced(ones(3), 4).counts, { 1, 1, 1, 0 })
end)
