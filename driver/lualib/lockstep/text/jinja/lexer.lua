--- Splits a template into tokens, with the white space rules of trim_blocks and lstrip_blocks.
---
--- A token is {type=, value=, line=}. Types: "data", "variable_begin", "variable_end", "block_begin", "block_end",
--- "name", "string", "number", "eof", and for operators the operator itself ("==", "|", "(").

local unicode = require "lockstep.text.jinja.unicode"
local values = require "lockstep.text.jinja.values"

local M = {}

local TWO_CHARACTERS = { ["**"] = true, ["//"] = true, ["=="] = true, ["!="] = true, ["<="] = true, [">="] = true }
local CLOSING = { ["("] = ")", ["["] = "]", ["{"] = "}" }
local ESCAPES = { n = "\n", t = "\t", r = "\r", a = "\a", b = "\b", f = "\f", v = "\v", ["\\"] = "\\", ["'"] = "'",
  ['"'] = '"', ["\n"] = "" }
local MAX_EXPONENT = 9999
local HEXADECIMAL = { x = 2, u = 4, U = 8 }

---@class lockstep.jinja.Lexer
---@field source string
---@field pos integer
---@field line integer
---@field tokens table[]
---@field line_starting boolean whether the last thing read ended with a newline
local Lexer = {}
Lexer.__index = Lexer

--- Raises an error of the template.
---@param message string
---@param line integer?
function Lexer:fail(message, line) values.fail_at(line or self.line, message) end

--- Adds a token.
---@param type_ string
---@param value any
---@param line integer?
function Lexer:add(type_, value, line)
  self.tokens[#self.tokens + 1] = { type = type_, value = value, line = line or self.line }
end

--- Moves to `pos` and counts the lines passed.
---@param pos integer
function Lexer:advance(pos)
  local at = self.pos
  while true do
    at = self.source:find("\n", at, true)
    if not at or at >= pos then break end
    self.line, at = self.line + 1, at + 1
  end
  self.line_starting = pos > self.pos and self.source:sub(pos - 1, pos - 1) == "\n"
  self.pos = pos
end

--- Returns the text before a tag as it is shown: the tag's sign and lstrip_blocks may take white space from its end.
---@param text string
---@param sign string
---@param is_variable boolean
---@return string
function Lexer:strip_before(text, sign, is_variable)
  if sign == "-" then return unicode.rstrip(text) end
  if sign == "+" or is_variable then return text end
  local last_line = text:match("^.*\n()") or 1
  if last_line == 1 and not self.line_starting then return text end
  if unicode.skip_space(text, last_line) == #text + 1 then return text:sub(1, last_line - 1) end
  return text
end

--- Returns the position behind a tag's end that starts at `at`: "-%}" takes all white space that follows, "%}" one
--- newline, "+%}" nothing; or nil where no end is there.
---@param closing string
---@param at integer
---@param trims_newline boolean
---@return integer?
function Lexer:end_of_tag(closing, at, trims_newline)
  local source = self.source
  if source:sub(at, at + 2) == "-" .. closing then return unicode.skip_space(source, at + 3) end
  if trims_newline and source:sub(at, at + 2) == "+" .. closing then return at + 3 end
  if source:sub(at, at + 1) ~= closing then return nil end
  if trims_newline and source:sub(at + 2, at + 2) == "\n" then return at + 3 end
  return at + 2
end

local function unescape(self, text)
  if not text:find("\\", 1, true) then return text end
  local parts, at = {}, 1
  while true do
    local slash = text:find("\\", at, true)
    if not slash then break end
    parts[#parts + 1] = text:sub(at, slash - 1)
    local letter = text:sub(slash + 1, slash + 1)
    local octal = text:match("^[0-7][0-7]?[0-7]?", slash + 1)
    if HEXADECIMAL[letter] then
      local digits = text:sub(slash + 2, slash + 1 + HEXADECIMAL[letter])
      if #digits < HEXADECIMAL[letter] or digits:find("%X") then
        self:fail(("the escape \\%s needs %d hexadecimal digits"):format(letter, HEXADECIMAL[letter]))
      end
      parts[#parts + 1] = unicode.character(tonumber(digits, 16))
        or self:fail(("the escape \\%s%s is not a Unicode character"):format(letter, digits))
      at = slash + 2 + #digits
    elseif octal then
      parts[#parts + 1] = unicode.character(tonumber(octal, 8))
      at = slash + 1 + #octal
    elseif letter == "N" then
      self:fail("the escape \\N{...} is not supported; write the character itself")
    else
      parts[#parts + 1] = ESCAPES[letter] or "\\" .. letter
      at = slash + 1 + math.max(#letter, 1)
    end
  end
  parts[#parts + 1] = text:sub(at)
  return table.concat(parts)
end

--- Reads a string literal at the current position.
---@param quote string
---@return any
function Lexer:string(quote)
  local at = self.pos + 1
  while true do
    local found = self.source:find("[\\" .. quote .. "]", at)
    if not found then self:fail("a string literal is not closed") end
    if self.source:byte(found) == 92 then
      at = found + 2
    else
      self:add("string", unescape(self, self.source:sub(self.pos + 1, found - 1)))
      return self:advance(found + 1)
    end
  end
end

--- Returns the digits at `at`, which single underscores may part, and the position behind them; nil without digits.
local function digits_at(self, at)
  local digits = self.source:match("^%d[%d_]*", at)
  if not digits then return nil, at end
  if digits:find("__", 1, true) or digits:find("_$") then self:fail(digits .. " is not a number") end
  return (digits:gsub("_", "")), at + #digits
end

--- Returns an integer that was read. Fails where a Lua number would not hold it exactly.
---@param number integer
---@return integer
function Lexer:integer(number)
  if number > 2 ^ 53 - 1 then
    self:fail "an integer is beyond 2^53 - 1, the largest that this interpreter holds exactly"
  end
  return number
end

--- Reads a number at the current position: 10, 1_000, 0x1f, 2.5, 1e-3. Floats are kept apart from integers.
---@return any
function Lexer:number()
  local source, start = self.source, self.pos
  local prefix, rest = source:match("^0([xXbBoO])_?(%w[%w_]*)", start)
  if prefix then
    local base = ({ x = 16, b = 2, o = 8 })[prefix:lower()]
    local number = tonumber((rest:gsub("_", "")), base)
    if not number then self:fail(("0%s%s is not a number"):format(prefix, rest)) end
    self:add("number", self:integer(number))
    return self:advance(start + #source:match("^0[xXbBoO]_?%w[%w_]*", start))
  end
  local whole, at = digits_at(self, start)
  local text, is_float = whole, false
  if source:sub(start - 1, start - 1) ~= "." then
    local fraction, behind = digits_at(self, at + 1)
    if source:sub(at, at) == "." and fraction then text, at, is_float = text .. "." .. fraction, behind, true end
    local sign = source:match("^[eE]([+-]?)%d", at)
    if sign then
      local exponent
      exponent, at = digits_at(self, at + 1 + #sign)
      -- Lua reads no exponent of many digits. All of them mean infinity, or 0.
      text, is_float = ("%se%s%d"):format(text, sign, math.min(tonumber(exponent), MAX_EXPONENT)), true
    end
  end
  if not is_float and text:find("^0%d*[1-9]") then self:fail(text .. " is not a number: it begins with 0") end
  self:add("number", is_float and values.float(tonumber(text)) or self:integer(tonumber(text)))
  self:advance(at)
end

--- Reads the tokens of a tag up to its end.
---@param kind string
---@param closing string
---@return any
function Lexer:tag(kind, closing)
  local source, open = self.source, {}
  while true do
    local after = #open == 0 and self:end_of_tag(closing, self.pos, kind == "block")
    if after then
      self:add(kind .. "_end")
      return self:advance(after)
    end
    local character = source:sub(self.pos, self.pos)
    local past_space = unicode.skip_space(source, self.pos)
    if character == "" then
      self:fail(("the template ends within a tag; expected %s"):format(closing))
    elseif past_space > self.pos then
      self:advance(past_space)
    elseif character:find("%d") then
      self:number()
    elseif character:find("[%a_\128-\255]") then
      local name = source:match("^[%w_\128-\255]+", self.pos)
      self:add("name", name)
      self:advance(self.pos + #name)
    elseif character == "'" or character == '"' then
      self:string(character)
    elseif character:find("[-+/*%%%[%](){}<>=.:|,;~!]") then
      local operator = source:sub(self.pos, self.pos + 1)
      if not TWO_CHARACTERS[operator] then operator = character end
      if operator == "!" then self:fail("unexpected character !") end
      if CLOSING[operator] then
        open[#open + 1] = CLOSING[operator]
      elseif operator:find("^[])}]$") and table.remove(open) ~= operator then
        self:fail(("unexpected %s"):format(operator))
      end
      self:add(operator)
      self:advance(self.pos + #operator)
    else
      self:fail(("unexpected character %s"):format(character))
    end
  end
end

--- Reads a comment, whose start has been passed.
function Lexer:comment()
  local at = self.source:find("#}", self.pos, true)
  if not at then self:fail("a comment is not closed; expected #}") end
  if at > self.pos and self.source:find("^[-+]", at - 1) then at = at - 1 end
  self:advance(self:end_of_tag("#}", at, true))
end

--- Reads what follows {% raw %} up to and with {% endraw %}.
---@return any
function Lexer:raw()
  local at = self.pos
  while true do
    local tag, sign = self.source:match("(){%%([-+]?)", at)
    if not tag then self:fail("{% raw %} is not closed; expected {% endraw %}") end
    local word = unicode.skip_space(self.source, tag + 2 + #sign)
    if self.source:sub(word, word + 5) == "endraw" then
      local after = self:end_of_tag("%}", unicode.skip_space(self.source, word + 6), true)
      if after then
        local text = self:strip_before(self.source:sub(self.pos, tag - 1), sign, false)
        if text ~= "" then self:add("data", text) end
        return self:advance(after)
      end
    end
    at = tag + 1
  end
end

--- Returns the tokens of a template.
---@param source string
---@return table[] tokens
function M.tokenize(source)
  source = source:gsub("\r\n", "\n"):gsub("\r", "\n"):gsub("\n$", "")
  local self = setmetatable({ source = source, pos = 1, line = 1, tokens = {}, line_starting = true }, Lexer)
  while self.pos <= #source do
    local at, bracket = source:match("(){([%%{#])", self.pos)
    if not at then
      self:add("data", source:sub(self.pos))
      break
    end
    local sign = source:match("^[-+]?", at + 2)
    local text = self:strip_before(source:sub(self.pos, at - 1), sign, bracket == "{")
    if text ~= "" then self:add("data", text) end
    local word = unicode.skip_space(source, at + 2 + #sign)
    local raw = bracket == "%" and source:sub(word, word + 2) == "raw"
      and self:end_of_tag("%}", unicode.skip_space(source, word + 3), false)
    self:advance(raw or at + 2 + #sign)
    if raw then
      self:raw()
    elseif bracket == "#" then
      self:comment()
    elseif bracket == "%" then
      self:add("block_begin")
      self:tag("block", "%}")
    else
      self:add("variable_begin")
      self:tag("variable", "}}")
    end
  end
  self:add("eof")
  return self.tokens
end

return M
