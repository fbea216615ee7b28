--- losses.deal and losses.each: preferences as micro-batches of the ranks.

local batching = require "lockstep.batching"
local options = require "lockstep.options"
local pairs_of = require "lockstep.losses.pairs"
local pictures = require "lockstep.losses.pictures"

local M = {}

--- Returns this rank's micro-batches of samples of losses.pairs.read or losses.unpaired.read, and batching's report.
--- Deals the samples out to the rows of dp; each row gets equally many micro-batches. Reads the pictures of the
--- samples that this rank gets.
---
---     local micro_batches = losses.deal(drawn, { seq_len = 1024, grid = grid })
---
--- Collective: every rank calls this with the same samples.
---@param samples batching.Sample[]
---@param opts {seq_len: integer, grid: sharding.Grid}
---@return batching.MicroBatch[]
---@return batching.Report
function M.deal(samples, opts)
  local o = options.read("losses.deal", opts, { seq_len = options.required, grid = options.required })
  local row, index = o.grid:rank "dp", {}
  local how = { seq_len = o.seq_len, rank = row, ranks = o.grid.dp, own_rows = { "image_order" },
    pad_to_multiple_of = o.grid.token_multiple }
  for i, sample in ipairs(samples) do
    if sample.pictures then how.index = index end
    index[i] = pictures.loaded(sample, false)
  end
  if how.index then
    for i, sample in ipairs(index) do index[i] = batching.describe(sample) end
    function how.load(_, i) return pictures.loaded(samples[i], true) end
  else
    how.samples = samples
  end
  local batches, report = batching.prepare(how)
  for _, batch in ipairs(batches[row + 1]) do -- both conversations of a pair are sequences
    if batch.lengths then batch.seq_lens = pairs_of.batch(batch).seq_lens end
  end
  return batches[row + 1], report
end

--- Returns a function that yields this rank's micro-batches of all samples, one by one, and how many samples come
--- before those that batch.samples numbers. It deals `count` samples out at a time: no more pictures are in memory.
---
---     for batch, before in losses.each(samples, 32, { seq_len = 1024, grid = grid }) do ... end
---
--- Collective: every rank calls this with the same samples, and takes all micro-batches.
---@param samples batching.Sample[]|data.Source
---@param count integer
---@param opts {seq_len: integer, grid: sharding.Grid}
---@return fun(): batching.MicroBatch?, integer?
function M.each(samples, count, opts)
  local batches, i, before, after = {}, 0, 0, 0
  return function()
    while i == #batches do
      if after == #samples then return nil end
      local chunk = {}
      before, after, i = after, math.min(after + count, #samples), 0
      for k = before + 1, after do chunk[#chunk + 1] = samples[k] end
      batches = M.deal(chunk, opts)
    end
    i = i + 1
    return batches[i], before
  end
end

return M
