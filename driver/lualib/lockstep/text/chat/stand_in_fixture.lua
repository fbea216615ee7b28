--- A tokenizer for tests of masks: special tokens, pairs of letters, and single bytes.

local M = {}

local Tokenizer = {}
Tokenizer.__index = Tokenizer

--- Returns a tokenizer. `tokens` are special tokens, whose ids begin at 1000; `pairs_` are texts of several bytes that
--- are one token, whose ids begin at 2000.
function M.new(tokens, pairs_)
  local self = setmetatable({ ids = {}, texts = {}, lists = { tokens, pairs_ } }, Tokenizer)
  for byte = 0, 255 do self.texts[byte] = string.char(byte) end
  for i, token in ipairs(tokens) do self.ids[token], self.texts[999 + i] = 999 + i, token end
  for i, token in ipairs(pairs_) do self.ids[token], self.texts[1999 + i] = 1999 + i, token end
  return self
end

function Tokenizer:encode(text, opts)
  assert(opts.special == false, "a template writes its own beginning of text")
  local ids, at = {}, 1
  while at <= #text do
    local found
    for _, list in ipairs(self.lists) do
      for _, token in ipairs(list) do
        if not found and text:sub(at, at + #token - 1) == token then found = token end
      end
    end
    ids[#ids + 1] = found and self.ids[found] or text:byte(at)
    at = at + (found and #found or 1)
  end
  return ids
end

--- Returns a sample as text, with [ ] around the learned parts.
function Tokenizer:shown(sample)
  local parts, inside = {}, 0
  for i, id in ipairs(sample.input_ids) do
    if sample.loss_mask[i] ~= inside then parts[#parts + 1] = inside == 0 and "[" or "]" end
    inside = sample.loss_mask[i]
    parts[#parts + 1] = self.texts[id]
  end
  return table.concat(parts) .. (inside == 1 and "]" or "")
end

function Tokenizer:id(token) return self.ids[token] end

--- Returns a stream that keeps bytes back until they are whole characters.
function Tokenizer:stream()
  local texts, kept = self.texts, ""
  return { push = function(_, id)
    kept = kept .. texts[id]
    local whole = kept:match("^.*[%z\1-\127]()") or 1
    for character, behind in kept:sub(whole):gmatch "([\192-\247][\128-\191]*)()" do
      local first = character:byte()
      if #character == (first < 224 and 2 or first < 240 and 3 or 4) then whole = whole + behind - 1 end
    end
    local text = kept:sub(1, whole - 1)
    kept = kept:sub(whole)
    return text
  end }
end

return M
