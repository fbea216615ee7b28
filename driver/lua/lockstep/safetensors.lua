--- Files of named tensors in the safetensors format (https://github.com/huggingface/safetensors):
--- eight bytes with the header's length, the header in JSON, then the tensors' bytes back to back. A file
--- comes from elsewhere: nothing in it is believed before it is checked.

local core = require "lockstep.core"
local options = require "lockstep.options"
local torch = require "lockstep.torch"

local M = {}

local MAX_HEADER_BYTES = 100e6 -- as the format says
local METADATA = "__metadata__"

local DTYPES = {
  F64 = torch.float64, F32 = torch.float32, F16 = torch.float16, BF16 = torch.bfloat16,
  F8_E4M3 = torch.float8_e4m3fn, F8_E5M2 = torch.float8_e5m2, C64 = torch.complex64,
  I64 = torch.int64, I32 = torch.int32, I16 = torch.int16, I8 = torch.int8,
  U64 = torch.uint64, U32 = torch.uint32, U16 = torch.uint16, U8 = torch.uint8, BOOL = torch.bool,
}
local NAMES = {}
for name, dtype in pairs(DTYPES) do NAMES[dtype] = name end

--- Raises what is wrong with the file.
local function refuse(path, format, ...)
  core.raise(string.format("data.safetensors: %s " .. format, path, ...))
end

local function is_count(value) return type(value) == "number" and value >= 0 and value % 1 == 0 end

-- Reading -------------------------------------------------------------------------------------------

--- The header's text, where the data starts, and how long the file is.
local function read_header(path)
  local file, reason = io.open(path, "rb")
  if not file then core.raise("data.safetensors: cannot open " .. reason) end
  local function read()
    local head, problem = file:read(8)
    if problem then refuse(path, "cannot be read: %s", problem) end
    local size = file:seek("end")
    if not head or #head < 8 then refuse(path, "is %d bytes long, too short to be a safetensors file", size) end
    local length = 0
    for i = 8, 1, -1 do length = length * 256 + head:byte(i) end
    if length > MAX_HEADER_BYTES then
      refuse(path, "claims a header of %.0f bytes; it is no safetensors file, or a broken one", length)
    elseif 8 + length > size then
      refuse(path, "is cut short: it has %d bytes, and its header alone needs %d", size, 8 + length)
    end
    file:seek("set", 8)
    return length == 0 and "" or file:read(length), 8 + length, size
  end
  local ok, text, start, size = pcall(read)
  file:close()
  if not ok then error(text, 0) end
  return text, start, size
end

--- Checks an entry of the header; returns it with its dtype in our terms.
local function read_entry(path, name, entry, data_bytes)
  if type(entry) ~= "table" then refuse(path, 'has no description of "%s"', name) end
  local dtype, shape, offsets = DTYPES[entry.dtype], entry.shape, entry.data_offsets
  if not dtype then refuse(path, 'has "%s" in the unknown dtype %s', name, tostring(entry.dtype)) end
  if type(shape) ~= "table" then refuse(path, 'has no shape for "%s"', name) end
  local bytes = torch.empty({ 0 }, { dtype = dtype }):element_size()
  for key, size in pairs(shape) do
    if not (is_count(key) and is_count(size)) then refuse(path, 'has a shape for "%s" that is none', name) end
    bytes = bytes * size
  end
  if type(offsets) ~= "table" or #offsets ~= 2 or not (is_count(offsets[1]) and is_count(offsets[2])) then
    refuse(path, 'has no two data_offsets for "%s"', name)
  end
  local first, last = offsets[1], offsets[2]
  if last > data_bytes then
    refuse(path, 'is cut short: "%s" ends at byte %d of the data, which has %d', name, last, data_bytes)
  elseif last - first ~= bytes then
    refuse(path, 'gives "%s" %d bytes, but %s {%s} takes %.0f', name, last - first, entry.dtype,
      table.concat(shape, ", "), bytes)
  end
  return { name = name, dtype = dtype, shape = shape, first = first, last = last }
end

--- The tensors must cover the data without gap or overlap, as the format says.
local function check_layout(path, entries, data_bytes)
  table.sort(entries, function(a, b)
    if a.first ~= b.first then return a.first < b.first end
    return a.last < b.last
  end)
  local covered, previous = 0, nil
  for _, entry in ipairs(entries) do
    if entry.first < covered then refuse(path, 'lets "%s" and "%s" overlap', previous, entry.name) end
    if entry.first > covered then
      refuse(path, 'has a gap of %d bytes before "%s"', entry.first - covered, entry.name)
    end
    covered, previous = entry.last, entry.name
  end
  if covered < data_bytes then refuse(path, "has %d bytes after its last tensor", data_bytes - covered) end
end

--- The tensors of a file by name, and its metadata, a table of strings. The tensors own their memory.
---
---     model:load_state_dict(data.safetensors("model.safetensors"))
---@param path string
---@param opts {device: string?}? where the tensors go; default "cpu"
---@return table<string, torch.Tensor> tensors, table<string, string> metadata
function M.read(path, opts)
  if type(path) ~= "string" then core.raise("data.safetensors: the path must be a string, not a " .. type(path)) end
  local o = options.read("data.safetensors", opts, { device = "cpu" })
  local text, start, size = read_header(path)
  local header = core.json_decode(text, "data.safetensors: the header of " .. path)
  if type(header) ~= "table" or header[1] ~= nil then refuse(path, "has a header that is no JSON object") end
  local entries, metadata = {}, header[METADATA] or {}
  for name, entry in pairs(header) do
    if name ~= METADATA then entries[#entries + 1] = read_entry(path, name, entry, size - start) end
  end
  check_layout(path, entries, size - start)

  -- Mapped, not read: each page is touched once, by the copy that a tensor makes of its part.
  local file = torch.from_file(path, false, size, { dtype = torch.uint8 })
  local tensors = {}
  for _, entry in ipairs(entries) do
    local bytes = file:narrow(0, start + entry.first, entry.last - entry.first):clone()
    -- A byte other than 0 and 1 makes no bool that code may rely on.
    local values = entry.dtype == torch.bool and bytes:ne(0) or bytes:view(entry.dtype)
    tensors[entry.name] = values:view(entry.shape):to { device = o.device }
  end
  return tensors, metadata
end

-- Writing -------------------------------------------------------------------------------------------

--- Writes tensors by name, as read returns them and model:state_dict() gives them. The file appears under
--- its name once it is complete.
---
---     if dist.rank() == 0 then data.save_safetensors(run.dir .. "/model.safetensors", model:state_dict()) end
---@param path string
---@param tensors table<string, torch.Tensor>
---@param opts {metadata: table<string, string>?}?
function M.write(path, tensors, opts)
  local o = options.read("data.save_safetensors", opts, { metadata = {} })
  if type(tensors) ~= "table" then
    core.raise("data.save_safetensors: the tensors must be a table by name, not a " .. type(tensors))
  end
  local names = {}
  for name, tensor in pairs(tensors) do
    if type(name) ~= "string" or name == METADATA or not torch.is_tensor(tensor) then
      core.raise(string.format("data.save_safetensors: %s must be a tensor under a name", tostring(name)))
    elseif not NAMES[tensor.dtype] then
      core.raise(string.format('data.save_safetensors: "%s" is %s, which the format lacks', name,
        tostring(tensor.dtype)))
    end
    names[#names + 1] = name
  end
  -- Wide dtypes first: so every tensor starts at a multiple of its element's size.
  table.sort(names, function(a, b)
    local size_a, size_b = tensors[a]:element_size(), tensors[b]:element_size()
    if size_a ~= size_b then return size_a > size_b end
    return a < b
  end)

  local parts, pieces, offset = {}, { "", "" }, 0
  if next(o.metadata) ~= nil then parts[1] = string.format('"%s":%s', METADATA, core.json_encode(o.metadata)) end
  for _, name in ipairs(names) do
    local tensor = tensors[name]
    local last = offset + tensor:numel() * tensor:element_size()
    parts[#parts + 1] = string.format('%s:{"dtype":"%s","shape":[%s],"data_offsets":[%d,%d]}', core.json_encode(name),
      NAMES[tensor.dtype], table.concat(tensor.shape, ","), offset, last)
    pieces[#pieces + 1], offset = tensor:detach(), last
  end
  local header = "{" .. table.concat(parts, ",") .. "}"
  header = header .. string.rep(" ", -#header % 8)
  local length = {}
  for i = 1, 8 do length[i] = string.char(math.floor(#header / 256 ^ (i - 1)) % 256) end
  pieces[1], pieces[2] = table.concat(length), header
  core.write_file(path, pieces)
end

return M
