--- What happens to samples that are longer than seq_len: the option on_cut of batching.stream and batching.survey.

local core = require "lockstep.core"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

local M = {}

local RULES = { cut = true, drop = true, error = true }

--- Samples in a row that are left out, after which none is expected to fit.
local PATIENCE = 100000

--- Throws unless `rule` is a value of on_cut.
---@param caller string for messages
---@param rule any
function M.check(caller, rule)
  plain.check(RULES[rule], '%s: on_cut must be "cut", "drop" or "error", not "%s"', caller, tostring(rule))
end

---@class batching.Lost what samples that were left out had
---@field samples integer
---@field tokens integer
---@field loss_tokens integer

--- Returns the counts of no sample.
---@return batching.Lost
function M.none() return { samples = 0, tokens = 0, loss_tokens = 0 } end

--- Returns how many tokens after the first have a loss.
local function loss_tokens_of(mask, length)
  if torch.is_tensor(mask) then return mask:narrow(0, 1, length - 1):ne(0):sum():item() end
  local count = 0
  for i = 2, type(mask) == "table" and length or 0 do
    if mask[i] ~= 0 and mask[i] ~= false and mask[i] ~= nil then count = count + 1 end
  end
  return count
end

--- Returns what a sample loses if it is left out because it is longer than seq_len; nil if it fits.
---@param sample any
---@param seq_len integer
---@return batching.Lost?
function M.left_out(sample, seq_len)
  local ids = type(sample) == "table" and sample.input_ids
  if not (torch.is_tensor(ids) or type(ids) == "table") or #ids <= seq_len then return nil end
  return { samples = 1, tokens = #ids, loss_tokens = loss_tokens_of(sample.loss_mask, #ids) }
end

--- Draws a sample from `source`; with the rule "drop", until one fits. Adds what the others have to `lost`.
---@param source fun(): batching.Sample?
---@param rule string
---@param seq_len integer
---@param lost batching.Lost
---@return batching.Sample? sample
---@return integer drawn
function M.draw(source, rule, seq_len, lost)
  for drawn = 1, PATIENCE do
    local sample = source()
    local left_out = rule == "drop" and M.left_out(sample, seq_len)
    if not left_out then return sample, sample == nil and drawn - 1 or drawn end
    for key, count in pairs(left_out) do lost[key] = lost[key] + count end
  end
  core.raise(('batching.stream: %d samples in a row are longer than seq_len = %d, and on_cut = "drop" leaves them out')
    :format(PATIENCE, seq_len))
  return nil, 0
end

--- Adds samples that were left out to a report.
---@param report batching.Report
---@param lost batching.Lost
function M.add(report, lost)
  report.dropped_samples = report.dropped_samples + lost.samples
  report.truncated_tokens = report.truncated_tokens + lost.tokens
  report.truncated_loss_tokens = report.truncated_loss_tokens + lost.loss_tokens
end

--- Throws, with on_cut = "error", if a report has a cut.
---@param caller string for messages
---@param rule string
---@param report batching.Report|batching.Survey
---@param samples integer of which these were cut
---@param seq_len integer
---@param listing (fun(title: string): string)? adds the samples to the message
function M.refuse(caller, rule, report, samples, seq_len, listing)
  if rule ~= "error" or report.truncated_tokens == 0 then return end
  local message = ('%s: %d of %d samples are longer than seq_len = %d. A cut would lose %d tokens, %d of them with a '
    .. 'loss. Raise seq_len, or set on_cut to "cut", or to "drop" to leave the samples out'):format(caller,
    report.truncated_samples + report.dropped_samples, samples, seq_len, report.truncated_tokens,
    report.truncated_loss_tokens)
  core.raise(listing and listing(message) or message)
end

return M
