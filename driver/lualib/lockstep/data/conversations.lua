--- data.conversations: samples of files as messages, whatever form the files have.

local core = require "lockstep.core"
local core_files = require "lockstep.core.files"
local dist = require "lockstep.distributed"
local first_sample = require "lockstep.data.first_sample"
local forms = require "lockstep.text.chat.forms"
local hub = require "lockstep.hub"
local log = require "lockstep.log"
local nulls = require "lockstep.text.chat.nulls"
local options = require "lockstep.options"
local plain = require "lockstep.plain"
local samples = require "lockstep.text.chat.samples"
local sources = require "lockstep.data.source"
local splits = require "lockstep.data.splits"

local NAME = "data.conversations"

local KINDS = { "preference", "conversation", "prompt" }

--- Samples at the beginning of a source that are looked at: for the form, and for columns that nothing reads.
local LOOKED_AT = 100

--- The fields of rows that have a meaning. Columns of these names that were not read do not become fields.
local FIELDS = plain.words [[
  chat_template_kwargs chosen documents first lockstep_is_completed messages prompt rejected text tools
]]

--- Returns the folder of a data set's name, "openai/gsm8k", or of a folder in it, "openai/gsm8k/main".
local function find(name)
  local repository, subset = name:match "^([^/]+/[^/]+)(.*)$"
  plain.check(repository and hub.is_name(repository),
    "%s: there is no file or folder %s, and a name of the Hub would be OWNER/DATASET", NAME, name)
  local folder = hub.snapshot("dataset", repository, NAME) .. subset
  plain.check(core_files.kind(folder) == "folder", "%s: %s has no folder %s", NAME, repository, subset:sub(2))
  return folder
end

--- Returns what a path or a list of paths holds, before it is read as conversations, and the folder of the first file.
local function open(path, o)
  if type(path) == "table" and type(path[1]) == "table" then return path, "." end
  local folder = type(path) == "string" and not path:find("*", 1, true) and not core_files.kind(path) and find(path)
  if o.split and not folder then
    plain.check(type(path) == "string" and core_files.kind(path) == "folder",
      "%s: a split is of a folder or of a name of the Hub, not of %s", NAME,
      type(path) == "string" and path or "a list")
    folder = path
  end
  if folder then
    path = splits.files(folder, { split = o.split or "train", name = path, caller = NAME })
  end
  local first = type(path) == "table" and path[1] or path
  local source = sources.source(path, { cache = o.cache })
  if #source > 0 and source:place(1):find "%.parquet, row" then
    source = sources.changed("conversations", source, nulls.dropped, {}) -- every row has all keys of the file's type
  end
  return source, first:match "^(.*)/[^/]*$" or "."
end

--- Returns a message without the place in a script that it begins with.
local function without_place(message) return (tostring(message):gsub("^[^\n]-%.lua:%d+: ", "")) end

--- Returns the kind of the first samples, and the name of the form of the first one that can be read.
local function recognise(source, path, o, roles)
  if #source == 0 then
    core.raise(NAME .. ": there are no samples in " .. (type(path) == "string" and path or table.concat(path, ", ")))
  end
  local reason
  for i = 1, math.min(#source, LOOKED_AT) do
    local ok, sample = pcall(function() return source[i] end)
    if ok then
      local kind = o.kind or forms.kind_of(sample, KINDS, roles) or "sample"
      local is_read, name_or_reason, name = pcall(samples.read, NAME, kind, sample, roles, o.form)
      if is_read then return kind, name end
      sample = sources.place(source, i) .. ": " .. without_place(name_or_reason)
    end
    reason = reason or without_place(sample)
  end
  core.raise(reason)
end

--- Returns the columns of the first samples that neither this library nor the script (`more`) reads.
local function unread(source, kind, roles, form, more)
  local found = {}
  for i = 1, math.min(#source, LOOKED_AT) do
    local ok, _, _, reads = pcall(samples.read, NAME, kind, source[i], roles, form)
    local is_read = {}
    for _, column in ipairs(ok and reads or {}) do is_read[column] = true end
    for column, value in pairs(ok and source[i] or {}) do
      if value ~= core.null and not is_read[column] then found[tostring(column)] = true end
    end
  end
  for _, column in ipairs(more) do found[column] = nil end
  return plain.keys(found)
end

--- See data.conversations.
---@param path string|string[]|table[]
---@param opts table?
---@return data.Conversations
return function(path, opts)
  local o = options.read(NAME, opts, { form = options.optional, kind = options.optional, roles = "",
    split = options.optional, cache = options.optional })
  plain.check(o.kind == nil or o.kind == "conversation" or o.kind == "preference" or o.kind == "prompt",
    '%s: kind must be "conversation", "preference" or "prompt", not %s', NAME, tostring(o.kind))
  if o.split == "" then o.split = nil end -- scripts' settings are strings
  if o.form ~= nil then o.kind = forms.kind_of_form(NAME, o.form) end
  local roles, source, base = samples.roles_of(o.roles), open(path, o)
  local kind, name = recognise(source, path, o, roles)

  local function change(sample)
    local row, _, reads = samples.read(NAME, kind, sample, roles, o.form)
    local is_read = {}
    for _, column in ipairs(reads) do is_read[column] = true end
    for column, value in pairs(sample) do
      if value ~= core.null and not is_read[column] and not FIELDS[column] then row[column] = value end
    end
    return row
  end

  local function show(_, how)
    local s = options.read("conversations:show", how, { encode = options.required, tokenizer = options.required,
      reads = {} })
    local other = unread(source, kind, roles, o.form, s.reads)
    log.print(("data: %s, %d samples%s"):format(name, #source,
      #other > 0 and "; not read: " .. table.concat(other, ", ") or ""))
    local ok, sample = pcall(function() return s.encode(change(source[1])) end)
    if ok and dist.rank() == 0 then log.print("  first: " .. first_sample.text(sample, s.tokenizer)) end
    local reads = plain.keys(FIELDS)
    for _, list in ipairs { s.reads, other } do
      for _, column in ipairs(list) do reads[#reads + 1] = column end
    end
    return reads
  end

  return sources.changed("conversations", source, change, { form = forms.form_of(name), kind = kind, show = show,
    folder = base })
end
