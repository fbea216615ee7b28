--- Pictures in columns of their own, `images` or `image`, next to messages whose parts {"type": "image"} have no path:
--- the form of TRL and of the processors of transformers.

local core = require "lockstep.core"
local nulls = require "lockstep.text.chat.nulls"
local pictures = require "lockstep.text.chat.pictures"
local plain = require "lockstep.plain"
local torch = require "lockstep.torch"

local M = {}

--- The columns, as forms list what they read.
M.NAMES = { "images", "image" }

local given = plain.given

--- Returns a picture of a column as the part of a message. Files of `datasets` hold {bytes, path}.
local function part_of(caller, name, i, value)
  local picture, got = given(value), "absent"
  if type(picture) == "table" then
    if picture.bytes == nil and picture.path == nil then got = "a table without these keys" end
    picture = given(picture.bytes) or given(picture.path)
  end
  plain.check(type(picture) == "string" and picture ~= "" or torch.is_tensor(picture),
    '%s: picture %d of "%s" must be a path, the bytes of a file, {"bytes", "path"} or a tensor, not %s', caller, i,
    name, picture == nil and got or picture == "" and "an empty string" or "a " .. type(picture))
  return { type = "image", image = picture }
end

---@class text.PictureColumn
---@field name string
---@field parts table[] as in the content of a message

--- Returns the pictures of a sample, or nil without the column or without a value in it. The column `image` counts if
--- `images` has none.
---@param caller string for messages
---@param sample table
---@return text.PictureColumn?
function M.read(caller, sample)
  local column
  for _, name in ipairs(M.NAMES) do
    local value, parts = given(sample[name]), {}
    if value ~= nil and value ~= "" then -- CSV files have no nulls
      local is_list = type(value) == "table" and (value[1] ~= nil or next(value) == nil)
      for i, picture in ipairs(is_list and value or { value }) do parts[i] = part_of(caller, name, i, picture) end
      column = { name = name, parts = parts }
      if #parts > 0 then break end
    end
  end
  return column
end

local function is_place(part)
  return type(part) == "table" and part.type == "image" and pictures.value(part) == nil
end

local function count_places(messages)
  local count = 0
  for _, message in ipairs(messages) do
    for _, part in ipairs(type(message.content) == "table" and message.content or {}) do
      if is_place(part) then count = count + 1 end
    end
  end
  return count
end

--- Returns a copy of a message with these parts, whose keys keep their order.
local function with_content(message, content)
  local shapes, copy = core.json_shapes(), plain.copy(message, { content = content })
  shapes[copy] = shapes[message]
  return copy
end

--- Returns messages whose places hold the pictures, in their order. Messages that change are copies. If there is no
--- place, all pictures come before the text of the first message of the user.
---@param caller string for messages
---@param messages table[]
---@param column text.PictureColumn?
---@return table[]
function M.fill(caller, messages, column)
  if not column then return messages end
  local num_places, filled, next_part = count_places(messages), { unpack(messages) }, 1
  if num_places == 0 and #column.parts > 0 then
    for i, message in ipairs(messages) do
      if message.role == "user" then
        if type(message.content) ~= "string" then break end
        local content = { unpack(column.parts) }
        content[#content + 1] = { type = "text", text = message.content }
        filled[i] = with_content(message, content)
        return filled
      end
    end
  end
  plain.check(num_places == #column.parts, '%s: the messages have %d places {"type": "image"} without a path, but "%s" '
    .. "has %d pictures", caller, num_places, column.name, #column.parts)
  for i, message in ipairs(messages) do
    if type(message.content) == "table" then
      local content = {}
      for j, part in ipairs(message.content) do
        content[j] = nulls.dropped(part)
        if is_place(part) then content[j], next_part = column.parts[next_part], next_part + 1 end
      end
      filled[i] = with_content(message, content)
    end
  end
  return filled
end

return M
