--- Reads preferences of a source as samples for batching, and says what it found. Private to lockstep.losses.

local checks = require "lockstep.losses.checks"
local dist = require "lockstep.distributed"
local log = require "lockstep.log"
local pictures = require "lockstep.losses.pictures"
local survey = require "lockstep.batching.survey"

---@class losses.Reader
---@field name string what its samples are called: "pairs"
---@field caller string the function of losses: "pairs.read"
---@field encode fun(row: table): table[] the samples of a row, each as {sample, reason to skip it or nil}
---@field count_roles fun(roles: table<string, integer>, row: table)
---@field fields fun(samples: batching.Sample[]): table<string, number> the counts of samples, to be printed
---@field reads string[]? columns of its own

--- Returns the samples that teach something, and what was found. Prints the form of the data with its first sample, the
--- counts, how many messages each role has, and the skipped samples with file and line. All skipped samples are in
--- skipped.txt of the run's folder.
---@param source data.Conversations
---@param reader losses.Reader
---@param o {tokenizer: text.Tokenizer, seq_len: integer, on_cut: "error"|"drop"}
---@return batching.Sample[]
---@return losses.Found found
return function(source, reader, o)
  checks.choice(reader.caller, "on_cut", o.on_cut, { "drop", "error" })
  source:show { encode = function(row) return reader.encode(row)[1][1] end, tokenizer = o.tokenizer,
    reads = reader.reads }
  local samples, skipped, tokens, num_long = {}, {}, 0, 0
  local found = { roles = {}, ids = {}, rows = {}, tokens = 0, loss_tokens = 0 }
  for i = 1, #source do
    local row = source[i]
    reader.count_roles(found.roles, row)
    local function encode(row_of_source)
      local ok, encoded = pcall(reader.encode, row_of_source)
      -- Not the script's line that an error blames.
      return ok and encoded or error(source:place(i) .. ": " .. tostring(encoded):gsub("^[^\n]-%.lua:%d+: ", ""), 0)
    end
    for k, one in ipairs(encode(row)) do
      local sample, reason = unpack(one)
      found.ids[#found.ids + 1], tokens = sample.input_ids, tokens + #sample.input_ids
      if sample.pixel_values then
        local rows = sample.pixel_values:size(0)
        found.ids[#found.ids + 1] = pictures.set_aside(sample, function()
          local pixels = encode(source[i])[k][1].pixel_values
          if pixels and pixels:size(0) == rows then return pixels end
          error(source:place(i) .. ": its pictures have another size or number than when the run began", 0)
        end)
      end
      if reason then
        skipped[#skipped + 1] = source:place(i) .. ": " .. reason
      else
        samples[#samples + 1], found.rows[#samples + 1] = sample, i
        found.tokens = found.tokens + #sample.input_ids
        found.loss_tokens = found.loss_tokens + sample.loss_mask:sum():item()
      end
      if #sample.input_ids > o.seq_len then num_long = num_long + 1 end
    end
  end
  local fields = reader.fields(samples)
  fields.tokens, fields.counts = tokens, { skipped = #skipped, too_long = num_long }
  log.record(reader.name, fields)
  survey.print_roles(found.roles)
  local title = ("%d %s are skipped, %d of them longer than seq_len = %d"):format(#skipped, reader.name, num_long,
    o.seq_len)
  if num_long > 0 and o.on_cut == "error" then
    local listing = log.listing(title .. ". Raise seq_len, or --set on_cut=drop", skipped, "skipped.txt")
    dist.barrier() -- rank 0 has written the file: the first rank that raises ends the others
    error(listing, 0)
  end
  log.list(title, skipped, "skipped.txt")
  found.skipped = #skipped
  return samples, found
end
