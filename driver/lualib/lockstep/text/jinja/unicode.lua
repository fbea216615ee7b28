--- Strings as Python sees them: characters, white space, upper and lower case. Strings are UTF-8.
---
--- Case and printability are of the Unicode version that unicode_tables.lua names.

local bit = require "bit"
local limits = require "lockstep.text.jinja.limits"

jit.off(true, true) -- compiling traces of a template takes longer than it saves

local M = {}

local byte, char, find, match, sub = string.byte, string.char, string.find, string.match, string.sub

--- One character of UTF-8.
local CHARACTER = "[%z\1-\127\194-\244][\128-\191]*"

-- White space beyond ASCII, as str.isspace() has it.
local SPACES = { ["\194\133"] = true, ["\194\160"] = true, ["\225\154\128"] = true, ["\226\128\168"] = true,
  ["\226\128\169"] = true, ["\226\128\175"] = true, ["\226\129\159"] = true, ["\227\128\128"] = true }
for last = 128, 138 do SPACES["\226\128" .. char(last)] = true end

-- Line ends of str.splitlines() beyond \n and \r.
local LINE_ENDS = "[\n\v\f\r\28\29\30\194\226]"
local WIDE_LINE_ENDS = { ["\194\133"] = true, ["\226\128\168"] = true, ["\226\128\169"] = true }

--- Returns whether all characters are ASCII.
---@param s string
---@return boolean
function M.is_ascii(s) return find(s, "^[^\128-\255]*$") ~= nil end

--- Returns a code point as UTF-8; nil where it is a surrogate or beyond Unicode.
---@param point integer
---@return string?
function M.character(point)
  if point < 0x80 then return char(point) end
  if point < 0x800 then return char(0xC0 + bit.rshift(point, 6), 0x80 + bit.band(point, 63)) end
  if point >= 0xD800 and point <= 0xDFFF or point > 0x10FFFF then return nil end
  local low, middle = 0x80 + bit.band(point, 63), 0x80 + bit.band(bit.rshift(point, 6), 63)
  if point < 0x10000 then return char(0xE0 + bit.rshift(point, 12), middle, low) end
  return char(0xF0 + bit.rshift(point, 18), 0x80 + bit.band(bit.rshift(point, 12), 63), middle, low)
end

--- Returns the code point of a character.
---@param character string
---@return integer
function M.code_point(character)
  local a, b, c, d = byte(character, 1, 4)
  if a < 0x80 then return a end
  if a < 0xE0 then return (a - 0xC0) * 64 + b - 128 end
  if a < 0xF0 then return ((a - 0xE0) * 64 + b - 128) * 64 + c - 128 end
  return (((a - 0xF0) * 64 + b - 128) * 64 + c - 128) * 64 + d - 128
end

--- Returns the first byte that is not UTF-8, or nil where all are.
---@param s string
---@return integer?
function M.find_invalid(s)
  -- Anchored patterns pass ASCII five times as fast as a search for the first other byte.
  local at = match(s, "^[^\128-\255]*()")
  while at <= #s do
    local a, b, c, d = byte(s, at, at + 3)
    b, c, d = b or 0, c or 0, d or 0
    local low, high, size = 128, 191, nil -- of the second byte
    if a >= 0xC2 and a <= 0xDF then
      size = 2
    elseif a >= 0xE0 and a <= 0xEF then
      if a == 0xE0 then low = 0xA0 elseif a == 0xED then high = 0x9F end
      size = c >= 128 and c <= 191 and 3
    elseif a >= 0xF0 and a <= 0xF4 then
      if a == 0xF0 then low = 0x90 elseif a == 0xF4 then high = 0x8F end
      size = c >= 128 and c <= 191 and d >= 128 and d <= 191 and 4
    end
    if not size or b < low or b > high then return at end
    at = match(s, "^[^\128-\255]*()", at + size)
  end
end

--- Returns the number of characters.
---@param s string
---@return integer
function M.length(s)
  if M.is_ascii(s) then return #s end
  local _, count = s:gsub("[%z\1-\127\192-\255]", "")
  return count
end

--- Returns the characters as an array.
---@param s string
---@return string[]
function M.characters(s)
  local result, n = {}, 0
  for character in s:gmatch(CHARACTER) do
    n = n + 1
    result[n] = character
    limits.grow(n)
  end
  return result
end

-- White space -------------------------------------------------------------------------------------------

--- Returns the size of the white space character at a byte, or nil where no such character is.
local function space_at(s, at)
  local first = byte(s, at)
  if not first then return nil end
  if first < 128 then return (first == 32 or first >= 9 and first <= 13 or first >= 28 and first <= 31) and 1 or nil end
  if first == 194 then return SPACES[sub(s, at, at + 1)] and 2 end
  return first >= 225 and first <= 227 and SPACES[sub(s, at, at + 2)] and 3 or nil
end

--- Returns the position of the first byte from `at` on that is not white space; #s + 1 where all is.
---@param s string
---@param at integer
---@return integer
function M.skip_space(s, at)
  local size = space_at(s, at)
  while size do
    at = at + size
    size = space_at(s, at)
  end
  return at
end

---@param s string
---@return string
function M.lstrip(s)
  local first = M.skip_space(s, 1)
  return first == 1 and s or sub(s, first)
end

---@param s string
---@return string
function M.rstrip(s)
  local last = #s
  while last > 0 do
    local code = byte(s, last)
    if code < 128 then
      if space_at(s, last) ~= 1 then break end
      last = last - 1
    elseif space_at(s, last - 1) == 2 then
      last = last - 2
    elseif space_at(s, last - 2) == 3 then
      last = last - 3
    else
      break
    end
  end
  return last == #s and s or sub(s, 1, last)
end

--- Returns the lines as str.splitlines() does.
---@param s string
---@return string[]
function M.lines(s)
  local lines, start, at = {}, 1, 1
  while true do
    local found = find(s, LINE_ENDS, at)
    if not found then break end
    local first = byte(s, found)
    local size = 1
    if first == 13 and byte(s, found + 1) == 10 then size = 2 end
    if first >= 128 then size = first == 194 and 2 or 3 end
    if first < 128 or WIDE_LINE_ENDS[sub(s, found, found + size - 1)] then
      lines[#lines + 1] = sub(s, start, found - 1)
      start = found + size
      limits.grow(#lines)
    end
    at = found + size
  end
  if start <= #s then lines[#lines + 1] = sub(s, start) end
  return lines
end

-- Tables ------------------------------------------------------------------------------------------------

-- Read when a string beyond ASCII first needs them.
local tables

--- Returns {first, last, first, last, ...} of "step:length" words.
local function read_ranges(text)
  local ranges, at = {}, 0
  for step, length in text:gmatch("(%x+):?(%x*)") do
    local first = at + tonumber(step, 16)
    at = first + (tonumber(length, 16) or 1)
    ranges[#ranges + 1], ranges[#ranges + 2] = first, at - 1
  end
  return ranges
end

--- Returns a table from characters to what they become, of "step=difference+difference" words.
local function read_pairs(text)
  local map, at = {}, 0
  for step, differences in text:gmatch("(%x+)=([-%x+]+)") do
    at = at + tonumber(step, 16)
    local mapped = {}
    for difference in differences:gmatch("-?%x+") do
      mapped[#mapped + 1] = M.character(at + tonumber(difference, 16))
    end
    map[M.character(at)] = table.concat(mapped)
  end
  return map
end

local function load_tables()
  local packed = require "lockstep.text.jinja.unicode_tables"
  tables = {}
  for _, name in ipairs { "upper", "title", "lower" } do tables[name] = read_pairs(packed[name]) end
  setmetatable(tables.title, { __index = tables.upper })
  for _, name in ipairs { "cased", "upper_case", "case_ignorable", "unprintable" } do
    tables[name] = read_ranges(packed[name])
  end
  return tables
end

local function is_in(name, character)
  local ranges, point = (tables or load_tables())[name], M.code_point(character)
  local low, high = 1, #ranges / 2
  while low <= high do
    local middle = math.floor((low + high) / 2)
    if point > ranges[2 * middle] then
      low = middle + 1
    elseif point < ranges[2 * middle - 1] then
      high = middle - 1
    else
      return true
    end
  end
  return false
end

--- Returns whether repr() shows a character as it is.
---@param character string
---@return boolean
function M.is_printable(character)
  local first = byte(character)
  if first < 128 then return first >= 32 and first < 127 end
  return not is_in("unprintable", character)
end

---@param character string
---@return boolean
function M.is_cased(character)
  if byte(character) < 128 then return find(character, "%a") ~= nil end
  return is_in("cased", character)
end

--- Returns whether a character is an upper case letter.
---@param character string
---@return boolean
function M.is_upper(character)
  if byte(character) < 128 then return find(character, "%u") ~= nil end
  return is_in("upper_case", character)
end

-- Case --------------------------------------------------------------------------------------------------

---@param s string
---@return string
function M.upper(s)
  if M.is_ascii(s) then return s:upper() end
  return (s:upper():gsub("[\194-\244][\128-\191]*", (tables or load_tables()).upper))
end

--- Returns the first character, or nothing, in title case: "ǆ" becomes "ǅ".
---@param s string
---@return string
function M.title_character(s)
  if M.is_ascii(s) then return s:upper() end
  return (tables or load_tables()).title[s] or s
end

--- Returns whether the next character that counts, from `at` on in steps of `step`, is a cased one.
local function has_cased(characters, at, step)
  local character = characters[at]
  while character do
    local is_ignorable
    if byte(character) < 128 then
      is_ignorable = find(character, "['.:^`]") ~= nil
    else
      is_ignorable = is_in("case_ignorable", character)
    end
    if not is_ignorable then return M.is_cased(character) end
    at = at + step
    character = characters[at]
  end
  return false
end

--- Puts the sigma of word ends where a word ends.
local function with_final_sigmas(s)
  local characters = M.characters(s)
  for i, character in ipairs(characters) do
    if character == "Σ" and has_cased(characters, i - 1, -1) and not has_cased(characters, i + 1, 1) then
      characters[i] = "ς"
    end
  end
  return table.concat(characters)
end

---@param s string
---@return string
function M.lower(s)
  if M.is_ascii(s) then return s:lower() end
  if find(s, "Σ", 1, true) then s = with_final_sigmas(s) end
  return (s:lower():gsub("[\194-\244][\128-\191]*", (tables or load_tables()).lower))
end

--- Returns the string with its first character in title case and all others in lower case.
---@param s string
---@return string
function M.capitalize(s)
  if M.is_ascii(s) then return s:sub(1, 1):upper() .. s:sub(2):lower() end
  local characters = M.characters(s)
  -- A sigma at the end needs the whole word.
  local lowered = M.characters(M.lower(s))
  local first = characters[1]
  local size = M.length(M.lower(first))
  return M.title_character(first) .. table.concat(lowered, "", size + 1)
end

--- Returns the string with each word capitalized, as str.title() does.
---@param s string
---@return string
function M.title(s)
  local characters, result, after_cased = M.characters(s), {}, false
  for i, character in ipairs(characters) do
    if not after_cased then
      result[i] = M.title_character(character)
    elseif character == "Σ" then
      local is_final = has_cased(characters, i - 1, -1) and not has_cased(characters, i + 1, 1)
      result[i] = is_final and "ς" or "σ"
    else
      result[i] = M.lower(character)
    end
    after_cased = M.is_cased(character)
  end
  return table.concat(result)
end

return M
