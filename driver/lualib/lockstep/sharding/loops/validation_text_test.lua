--- The validation of prime-rl's issue 2515 in its own setting: a text corpus (pages of docs/), shuffled with seed 0,
--- packed by concatenation into chunks of 100 tokens without the rest, and a sharded model. The ranks have different
--- numbers of chunks. What a script without the library does there: ValidationHang in tests/hang_test.cc.

local dist = require "lockstep.distributed"
local nn = require "lockstep.nn"
local sharding = require "lockstep.sharding"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local RANK, WORLD = dist.rank(), dist.world_size()
local SEQ_LEN = 100
torch.set_default_dtype(torch.float64)

--- Paragraphs of the pages, as tables with a token for each byte.
local function read_corpus()
  local samples = {}
  for _, page in ipairs { "sharding", "fully_shard", "batching", "mimo" } do
    local file = assert(io.open("docs/" .. page .. ".md"))
    local text = file:read "*a"
    file:close()
    for paragraph in (text .. "\n\n"):gmatch "(.-)\n\n+" do
      if paragraph ~= "" then
        local ids = {}
        for i = 1, #paragraph do ids[i] = paragraph:byte(i) end
        samples[#samples + 1] = { input_ids = torch.tensor(ids, { dtype = torch.int64 }) }
      end
    end
  end
  return samples
end

local corpus = read_corpus()

--- The packed chunks of a rank.
local function chunks_of(rank)
  local shard = sharding.dataset { size = #corpus, seed = 0, rank = rank, world = WORLD }
  return sharding.pack { seq_len = SEQ_LEN, source = function()
    local index = shard()
    return index and corpus[index]
  end }
end

local Net = nn.Module:subclass("Net")

function Net:init()
  self.embedding, self.up, self.down = nn.Embedding(256, 8), nn.Linear(8, 24), nn.Linear(24, 8)
  self.head = nn.Linear(8, 256, { bias = false })
end

--- Each token sees the mean of those before it.
function Net:forward(ids)
  local x = self.embedding(ids)
  local before = x:cumsum(0) / torch.arange(1, #ids + 1):unsqueeze(1)
  return self.head(x + self.down(torch.tanh(self.up(before))))
end

local function loss_of(model, chunk)
  local ids = chunk.input_ids
  local labels = ids:narrow(0, 1, SEQ_LEN - 1)
  return nn.cross_entropy(model(ids):narrow(0, 0, SEQ_LEN - 1), labels, { reduction = "sum" }), #labels
end

local function new_net()
  torch.manual_seed(7)
  return Net()
end

t.test("TheLossOfAPackedTextIsThatOfOneRank", function()
  local net, counts, sum, count = new_net(), {}, 0, 0
  torch.no_grad(function()
    for rank = 0, WORLD - 1 do
      counts[rank + 1] = 0
      for chunk in chunks_of(rank) do
        local loss, tokens = loss_of(net, chunk)
        sum, count, counts[rank + 1] = sum + loss:item(), count + tokens, counts[rank + 1] + 1
      end
    end
  end)
  if RANK == 0 then print(("chunks by rank: %s; loss %.17g"):format(table.concat(counts, ", "), sum / count)) end
  local model, calls = sharding.fully_shard(new_net(), { units = { "up", "down" } }), 0

  local loss, excluded = sharding.evaluate(model, chunks_of(RANK), function(chunk)
    calls = calls + 1
    return loss_of(model, chunk)
  end)

  t.truthy(math.abs(loss - sum / count) < 1e-12, ("%.17g instead of %.17g"):format(loss, sum / count))
  t.equal(excluded, 0)
  t.equal(calls, math.max(unpack(counts)))
  if WORLD == 1 then return end
  t.truthy(math.min(unpack(counts)) < math.max(unpack(counts)), "the counts differ, which is the point")
end)
