--- batching.survey: what a run would cut and not learn, before it begins.

local core = require "lockstep.core"
local core_batching = require "lockstep.core.batching"
local cutting = require "lockstep.batching.cutting"
local dist = require "lockstep.distributed"
local log = require "lockstep.log"
local loaders = require "lockstep.data.loader"
local options = require "lockstep.options"
local plain = require "lockstep.plain"
local sources = require "lockstep.data.source"

local M = {}

local NAME = "batching.survey"

--- The counts of batching.Report that the survey adds up.
local COUNTS = { "tokens", "loss_tokens", "truncated_samples", "truncated_tokens", "truncated_loss_tokens",
  "dropped_samples", "samples_without_loss" }

--- Samples that a rank names, of each kind. More of them are only counted.
local NAMED = 1000

--- Samples of a rank after which the ranks wait for each other.
local MEETING = 200

--- Returns what is to be said of a sample whose report is not clean, or nil.
local function remark(report, rule)
  local had_loss = report.loss_tokens + report.truncated_loss_tokens > 0
  if report.truncated_tokens > 0 and rule == "drop" then
    return ("is left out with its %d tokens, %d of them with a loss"):format(report.truncated_tokens,
      report.truncated_loss_tokens)
  end
  if report.truncated_tokens > 0 then
    local tokens = report.tokens + report.truncated_tokens
    local left = report.loss_tokens == 0 and had_loss and "; nothing is left to learn" or ""
    return ("%d of %d tokens are cut, %d of them with a loss%s"):format(report.truncated_tokens, tokens,
      report.truncated_loss_tokens, left)
  end
  if report.loss_tokens == 0 then return "no token has a loss" end
end

--- Counts the messages of each role. Private to the library.
---@param roles table<string, integer>
---@param messages any
function M.count_roles(roles, messages)
  for _, message in ipairs(type(messages) == "table" and messages or {}) do
    local role = type(message) == "table" and message.role
    if type(role) == "string" then roles[role] = (roles[role] or 0) + 1 end
  end
end

--- Prints how many messages of each role there are, if any. Private to the library.
---@param roles table<string, integer>
function M.print_roles(roles)
  local counts = {}
  for i, role in ipairs(plain.keys(roles)) do counts[i] = ("%s %d"):format(role, roles[role]) end
  if #counts > 0 then log.print("  messages  " .. table.concat(counts, "  ")) end
end

--- Notes the fields of a sample that have a value, and counts the messages of each role.
local function note_fields(found, sample)
  for name, value in pairs(type(sample) == "table" and sample or {}) do
    if value ~= core.null then found.fields[tostring(name)] = true end
  end
  M.count_roles(found.roles, type(sample) == "table" and sample.messages)
end

--- Returns the report on a mapped sample alone, or nil and why it cannot be trained on.
local function report_on(mapped, o, rule)
  local lost = rule == "drop" and cutting.left_out(mapped, o.seq_len)
  if lost then
    return { tokens = 0, loss_tokens = 0, truncated_samples = 0, truncated_tokens = lost.tokens,
      truncated_loss_tokens = lost.loss_tokens, dropped_samples = 1, samples_without_loss = 0 }
  end
  o.prepare.samples = { mapped }
  local ok, batches, report = pcall(core_batching.prepare, o.prepare)
  if ok then return report end
  return nil, batches
end

--- Surveys this rank's part of the samples in `part`. Returns its counts, and the samples to name: {position, text}.
---@param o table the survey's options
---@param part {source: data.Source|table[], count: integer, rule: string, shuffle: boolean, prefix: string}
local function survey_part(o, part)
  local count = part.count
  local found = { rank = dist.rank(), samples = 0, failed = 0, failures = {}, remarks = {}, fields = {},
    roles = {} }
  for _, key in ipairs(COUNTS) do found[key] = 0 end
  local function map(sample)
    note_fields(found, sample)
    local ok, mapped = pcall(o.map, sample)
    return { ok = ok, mapped = mapped }
  end
  local loader = loaders { source = part.source, seed = o.seed, shuffle = part.shuffle, epochs = 1, map = map }
  local function name(list, text)
    local place = loader:place() .. ": "
    if text:sub(1, #place) ~= place then text = place .. text end -- what cannot be read names its place itself
    if #list < NAMED then list[#list + 1] = { loader:last_position(), part.prefix .. text } end
  end
  local function survey_next()
    local is_read, result = pcall(loader)
    local report, reason
    if not is_read then
      loader:pass_over()
      reason = result:gsub("^.-data%.loader: ", "")
    elseif result.ok then
      report, reason = report_on(result.mapped, o, part.rule)
    else
      reason = result.mapped
    end
    found.samples = found.samples + 1
    if not report then
      found.failed = found.failed + 1
      name(found.failures, (tostring(reason):gsub("^[^\n]-%.lua:%d+: ", "")))
      return
    end
    for _, key in ipairs(COUNTS) do found[key] = found[key] + report[key] end
    local text = remark(report, part.rule)
    if text then name(found.remarks, text) end
  end
  for first = 0, count - 1, dist.world_size() do
    if first + dist.rank() < count then survey_next() end
    -- No rank may wait longer than --timeout for a slower one.
    if first / dist.world_size() % MEETING == MEETING - 1 then dist.barrier() end
  end
  return found
end

--- Surveys a part of each rank. Returns the sums of all ranks. Their lists are in the order of the samples.
local function survey_parts(o, part)
  local all = { samples = 0, failed = 0, fields = {}, roles = {}, failures = {}, remarks = {} }
  for _, key in ipairs(COUNTS) do all[key] = 0 end
  for i, found in ipairs(dist.all_gather_object(survey_part(o, part))) do
    if found.rank == i - 1 then -- in a dry run the others are copies of rank 0's
      for _, key in ipairs { "samples", "failed", unpack(COUNTS) } do all[key] = all[key] + found[key] end
      for _, key in ipairs { "failures", "remarks" } do
        for _, entry in ipairs(found[key]) do table.insert(all[key], entry) end
      end
      for field in pairs(found.fields) do all.fields[field] = true end
      for role, count in pairs(found.roles) do all.roles[role] = (all.roles[role] or 0) + count end
    end
  end
  for _, key in ipairs { "failures", "remarks" } do
    table.sort(all[key], function(a, b) return a[1] < b[1] end)
    for i, entry in ipairs(all[key]) do all[key][i] = entry[2] end
  end
  return all
end

---@class batching.Survey
---@field samples integer
---@field tokens integer after the cut, as the other counts: see batching.Report
---@field loss_tokens integer
---@field truncated_samples integer
---@field truncated_tokens integer
---@field truncated_loss_tokens integer
---@field dropped_samples integer
---@field samples_without_loss integer
---@field roles table<string, integer> messages of each role, of samples that have `messages`
---@field held_out_samples integer? the held-out ones
---@field held_out_truncated_samples integer? those that are cut
---@field held_out_truncated_tokens integer?

--- Maps samples as a data.loader would, each rank a part of them, and reports before the training what batching will
--- cut and what has no loss. Rank 0 prints the counts, as log.record does, and the first of these samples with file and
--- line. All are in `survey.txt` of the run's folder.
---
---     batching.survey { source = train, map = encode, seed = 1, samples = 200 * 16, seq_len = 2048 }
---
--- Samples that the source, the map or batching refuses are collected: every rank gets one error that counts them, and
--- names the first with their reasons. If no sample has a loss at all, that is an error, too. With on_cut = "error" a
--- sample that is longer than seq_len is one.
---
--- Options: source; map; seq_len; seed = 0, the loader's; samples (default: all), the number that will be drawn. With
--- `reads`, the fields of a sample that the map reads, others are named. on_cut is as for batching.stream. streams,
--- own_rows, token_types, image_token_id, video_token_id and audio_token_id are those of batching.prepare.
---
--- `held_out` is the source of an evaluation, and held_out_samples (default: all) how many of its first samples are
--- evaluated. An evaluation cuts samples, whatever on_cut is: those are counted and named apart. Samples that cannot be
--- mapped are left to the evaluation.
---
--- Collective.
---@param opts {source: data.Source|table[], map: (fun(sample: any): batching.Sample), seq_len: integer, [string]: any}
---@return batching.Survey
function M.survey(opts)
  local o = options.read(NAME, opts, { source = options.required, map = options.required, seq_len = options.required,
    held_out = options.optional, held_out_samples = math.huge, seed = 0, samples = math.huge,
    reads = options.optional, on_cut = "cut", streams = {},
    token_types = "mm_token_type_ids", own_rows = {}, image_token_id = options.optional,
    video_token_id = options.optional, audio_token_id = options.optional })
  sources.check(o.source, NAME .. ": source")
  plain.check(plain.is_callable(o.map), "%s: map must be a function that returns a sample, not a %s", NAME, type(o.map))
  cutting.check(NAME, o.on_cut)
  plain.check(o.samples >= 1, "%s: samples must be at least 1, not %s", NAME, o.samples)
  o.prepare = { seq_len = o.seq_len, ranks = 1, streams = o.streams, token_types = o.token_types,
    own_rows = o.own_rows, image_token_id = o.image_token_id, video_token_id = o.video_token_id,
    audio_token_id = o.audio_token_id }
  local all = survey_parts(o, { source = o.source, count = math.min(#o.source, o.samples), rule = o.on_cut,
    shuffle = true, prefix = "" })
  local found, roles, fields = { samples = all.samples, roles = all.roles }, all.roles, all.fields
  for _, key in ipairs(COUNTS) do found[key] = all[key] end
  local counts = require("lockstep.batching").lost(found)
  if o.held_out and #o.held_out > 0 then
    local held_out = survey_parts(o, { source = o.held_out, count = math.min(#o.held_out, o.held_out_samples),
      rule = "cut", shuffle = false, prefix = "held out: " })
    for _, text in ipairs(held_out.remarks) do table.insert(all.remarks, text) end
    for _, key in ipairs { "samples", "truncated_samples", "truncated_tokens" } do
      found["held_out_" .. key] = held_out[key]
    end
    counts.held_out_truncated_samples = held_out.truncated_samples
    counts.held_out_truncated_tokens = held_out.truncated_tokens
  end
  if all.failed > 0 then
    local title = ("%s: %d of %d samples cannot be trained on"):format(NAME, all.failed, found.samples)
    local listing = log.listing(title, all.failures, "survey.txt")
    dist.barrier() -- rank 0 has written the file: the first rank that raises ends the others
    core.raise(listing)
  end
  log.record("survey", { samples = found.samples, tokens = found.tokens, loss_tokens = found.loss_tokens,
    counts = counts })
  M.print_roles(roles)
  for _, field in ipairs(o.reads or {}) do fields[field] = nil end
  if o.reads and next(fields) then
    log.print("fields of samples that are not read: " .. table.concat(plain.keys(fields), ", "))
  end
  cutting.refuse(NAME, o.on_cut, found, found.samples, o.seq_len, function(title)
    local listing = log.listing(title, all.remarks, "survey.txt")
    dist.barrier() -- as above
    return listing
  end)
  log.list(("with seq_len = %d these samples are not learnt as a whole"):format(o.seq_len), all.remarks, "survey.txt")
  plain.check(found.loss_tokens ~= 0,
    "%s: no token of %d samples has a loss with seq_len = %d; has any an assistant's message?", NAME, found.samples,
    o.seq_len)
  return found
end

--- Returns how many samples of a source are learnt in an epoch: all, or with on_cut = "drop" those that fit into
--- seq_len. All are mapped for it, each rank a part. The length of a run in epochs counts them.
---
---     local count = batching.samples_kept { source = train, map = encode, seq_len = 2048, on_cut = config.on_cut }
---
--- Collective.
---@param opts {source: data.Source|table[], map: (fun(sample: any): batching.Sample), seq_len: integer, on_cut: string}
---@return integer
function M.samples_kept(opts)
  local o = options.read("batching.samples_kept", opts, { source = options.required, map = options.required,
    seq_len = options.required, on_cut = options.required })
  cutting.check("batching.samples_kept", o.on_cut)
  if o.on_cut ~= "drop" then return #o.source end
  o.prepare = { seq_len = o.seq_len, ranks = 1 }
  return #o.source - survey_parts(o, { source = o.source, count = #o.source, rule = "drop", shuffle = false,
    prefix = "" }).dropped_samples
end

return M
