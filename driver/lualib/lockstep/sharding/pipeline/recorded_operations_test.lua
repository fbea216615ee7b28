-- What 200 random pipelines really do is what their proven schedules say: each forward, backward and message, in order,
-- and each message with the rows of its own micro-batch. The stages are light: y = w x.

local core_sharding = require "lockstep.core.sharding"
local dist = require "lockstep.distributed"
local runner = require "lockstep.sharding.pipeline.runner"
local schedule = require "lockstep.sharding.pipeline.schedule"
local t = require "lockstep.testing"
local torch = require "lockstep.torch"

local WORLD, RANK = dist.world_size(), dist.rank()
local COUNT, HIDDEN = 200, 2
local F64 = { dtype = torch.float64 }

--- Draws the same numbers on every rank.
local state = 20261128
local function draw(n)
  state = (state * 1103515245 + 12345) % 2 ^ 31
  return math.floor(state / 65536) % n + 1
end

--- The link of this rank with each other.
local links = {}
for one = 0, WORLD - 2 do
  for other = one + 1, WORLD - 1 do
    if RANK == one or RANK == other then
      local pair = dist.group { ranks = { one, other } }
      dist.barrier { group = pair }
      links[RANK == one and other or one] = core_sharding.link(pair)
    end
  end
end

--- Stages of a chain of products. A batch is {rows =, index =}: each row of the first stage's input is the index.
---@param weights torch.Tensor[] by stage
---@param record fun(text: string)
local function new_net(weights, record)
  local net = { settings = { hidden_size = HIDDEN }, stage_device = "cpu" }
  local function forward(batch)
    local stage, x = net.stage_input.stage.index, net.stage_input.x
    record(("forward of micro-batch %d on stage %d"):format(batch.index, stage))
    local y = (x or torch.full({ batch.rows, HIDDEN }, batch.index, F64)) * weights[stage]
    if y.requires_grad then
      y:register_hook(function() record(("backward of micro-batch %d on stage %d"):format(batch.index, stage)) end)
    end
    return y
  end
  function net.hidden(_, batch) return forward(batch) end
  function net.loss(_, batch) return forward(batch):sum(), batch.rows end
  return net
end

local function text_of_messages(peer, subject, sends, receives)
  local rows = {}
  for i, list in ipairs { sends, receives } do
    for _, one in ipairs(list) do rows[#rows + 1] = (i == 1 and "sends %d" or "receives %d"):format(one) end
  end
  return ("with %d: %s: %s"):format(peer, subject, table.concat(rows, ", "))
end

--- Returns a link that records what it carries.
local function recorder(link, peer, record)
  return { start = function(_, sends, receives, subject)
    local rows = { {}, {} }
    for i, list in ipairs { sends, receives } do
      for k, x in ipairs(list) do rows[i][k] = x:size(0) end
    end
    record(text_of_messages(peer, subject, rows[1], rows[2]))
    return link:start(sends, receives, subject)
  end }
end

--- Returns a rank's list of a schedule as the recorder writes it.
local function expected_of(list, rows)
  local texts = {}
  for i, op in ipairs(list) do
    if op.kind ~= "messages" then
      texts[i] = schedule.describe(op)
    else
      local sizes = { {}, {} }
      for k, messages in ipairs { op.sends, op.receives } do
        for n, one in ipairs(messages) do sizes[k][n] = rows[one.micro_batch] end
      end
      texts[i] = text_of_messages(op.peer, schedule.subject(op), sizes[1], sizes[2])
    end
  end
  return texts
end

--- Runs a pipeline on the ranks from `first_rank` on. Returns what this rank recorded, its losses, and its weights.
local function run(o, first_rank, rows)
  local own, recorded, losses, stages, weights = RANK - first_rank + 1, {}, {}, {}, {}
  local function record(text) recorded[#recorded + 1] = text end
  local count = o.ranks * o.chunks
  for s = 1, count do
    stages[s] = { index = s, is_first = s == 1, is_last = s == count }
    weights[s] = torch.full({}, 1 + 1 / s, F64):requires_grad_(not o.forward_only and s >= o.first_trained)
  end
  local net, own_links = new_net(weights, record), {}
  for peer = 1, o.ranks do
    if peer ~= own then own_links[peer] = recorder(links[first_rank + peer - 1], peer, record) end
  end
  local one = runner.new { net = net, callee = net, stages = stages, links = own_links, dtype = torch.float64 }
  local batches = {}
  for m = 1, o.micro_batches do batches[m] = { index = m, rows = rows[m] } end
  one:run { list = schedule.make(o).lists[own], micro_batches = batches, rows = rows, scale = 1,
    first_trained = o.first_trained, is_forward_only = o.forward_only,
    fn = function(batch) return one:call(batch, "loss") end,
    take_results = function(op, stage, loss)
      if not stage.is_last then return end
      losses[op.micro_batch] = loss:item()
      if not o.forward_only then one:keep_loss(op, loss) end
    end }
  return recorded, losses, weights, own
end

--- Draws a pipeline and compares what it does. Returns the number of its operations on this rank.
local function check(case)
  local o = { ranks = 1 + draw(WORLD - 1), micro_batches = draw(8), order = schedule.ORDERS[draw(3)] }
  o.chunks = o.order == "1f1b" and 1 or draw(3)
  o.first_trained = draw(3) == 1 and draw(o.ranks * o.chunks) or 1
  o.forward_only = draw(8) == 1
  local rows, factor, total = {}, 1, 0
  for m = 1, o.micro_batches do
    rows[m] = draw(9)
    total = total + m * rows[m] * HIDDEN
  end
  local first_rank = draw(WORLD - o.ranks + 1) - 1
  if RANK < first_rank or RANK >= first_rank + o.ranks then return 0 end

  local recorded, losses, weights, own = run(o, first_rank, rows)

  local what = ("case %d: %d ranks, %d chunks, %d micro-batches, %s, first trained %d, forward only %s, rank %d")
    :format(case, o.ranks, o.chunks, o.micro_batches, o.order, o.first_trained, tostring(o.forward_only), own)
  local expected = expected_of(schedule.make(o).lists[own], rows)
  for i = 1, math.max(#recorded, #expected) do t.equal(recorded[i], expected[i], what .. ", operation " .. i) end
  for s = 1, #weights do factor = factor * (1 + 1 / s) end
  for m, loss in pairs(losses) do t.near(loss, m * rows[m] * HIDDEN * factor, 1e-9 * loss, what) end
  for s, weight in ipairs(weights) do
    if (s - 1) % o.ranks + 1 == own and weight.requires_grad then
      t.near(weight.grad:item(), total * factor / (1 + 1 / s), 1e-9 * total * factor, what)
    end
  end
  return #recorded
end

t.test("200RandomPipelinesDoWhatTheirSchedulesSay", function()
  local count = 0
  for case = 1, COUNT do count = count + check(case) end
  t.truthy(count > 10 * COUNT, count)
end)

t.test("TheRecorderSeesTheWholeList", function()
  local o = { ranks = 2, chunks = 1, micro_batches = 2, order = "1f1b", first_trained = 1 }
  if RANK > 1 then return end
  local recorded = run(o, 0, { 3, 5 })

  t.equal(recorded, RANK == 0 and { "forward of micro-batch 1 on stage 1",
    "with 2: activations of micro-batch 1 for stage 2: sends 3", "forward of micro-batch 2 on stage 1",
    "with 2: activations of micro-batch 2 for stage 2: sends 5",
    "with 2: gradient of micro-batch 1 for stage 1: receives 3",
    "backward of micro-batch 1 on stage 1", "with 2: gradient of micro-batch 2 for stage 1: receives 5",
    "backward of micro-batch 2 on stage 1" } or recorded)
end)
