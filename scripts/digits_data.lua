--- The samples of digits_vlm.lua: real handwritten digits with the question what they show, and generated
--- text (sums and spellings of digits), as character tokens.

local data = require "lockstep.data"
local torch = require "lockstep.torch"

local M = {}

local WORDS = { [0] = "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine" }
local SIDE = 8          -- pixels of an image's side
local PATCH = 2         -- pixels of a patch's side
local MERGE = 2         -- patches of a token's side
local GRID = SIDE / PATCH
local IMAGE_TOKENS = (GRID / MERGE) ^ 2

-- Tokens: three of our own, then one for each character in use.
M.PAD, M.END, M.IMAGE = 0, 1, 2
local CHARACTERS = " 0123456789+=:abcdefghijklmnopqrstuvwxyz"
M.vocab_size = 3 + #CHARACTERS

local token_of, character_of = {}, {}
for i = 1, #CHARACTERS do
  local c = CHARACTERS:sub(i, i)
  token_of[c], character_of[2 + i] = 2 + i, c
end

---@param text string
---@return integer[]
function M.encode(text)
  local tokens = {}
  for c in text:gmatch(".") do tokens[#tokens + 1] = token_of[c] end
  return tokens
end

--- Characters up to the end token.
---@param tokens integer[]
---@return string
function M.decode(tokens)
  local text = {}
  for _, token in ipairs(tokens) do
    if token == M.END then break end
    text[#text + 1] = character_of[token] or "?"
  end
  return table.concat(text)
end

--- The 1,797 digits: pixels [8, 8] from 0 to 1, and the label. Every fifth is held out.
---@return {pixels: torch.Tensor, label: integer}[] train, {pixels: torch.Tensor, label: integer}[] held_out
function M.load()
  local train, held_out = {}, {}
  for line in data.lines(data.path("digits.csv.gz")) do
    local values = {}
    for value in line:gmatch("[^,]+") do values[#values + 1] = tonumber(value) end
    assert(#values == SIDE * SIDE + 1, "digits.csv.gz: a line must have 65 numbers")
    local label = table.remove(values)
    local digit = { pixels = torch.tensor(values):div(16):view(SIDE, SIDE), label = label }
    local set = (#train + #held_out) % 5 == 0 and held_out or train
    set[#set + 1] = digit
  end
  return train, held_out
end

--- Pixels [8, 8] as rows of patches [16, 4], those of one token behind one another.
local function patches_of(pixels)
  local tokens = GRID / MERGE
  return pixels:view(tokens, MERGE, PATCH, tokens, MERGE, PATCH):permute(0, 3, 1, 4, 2, 5)
    :reshape(GRID * GRID, PATCH * PATCH)
end

local function sample(prompt, answer, fields)
  local result = { input_ids = {}, loss_mask = {} }
  for _, token in ipairs(prompt) do
    table.insert(result.input_ids, token)
    table.insert(result.loss_mask, 0)
  end
  for _, token in ipairs(answer) do
    table.insert(result.input_ids, token)
    table.insert(result.loss_mask, 1)
  end
  for name, value in pairs(fields or {}) do result[name] = value end
  return result
end

local grid_thw = torch.tensor({ { 1, GRID, GRID } }, { dtype = torch.int64 })

local function image_prompt()
  local prompt = {}
  for i = 1, IMAGE_TOKENS do prompt[i] = M.IMAGE end
  for _, token in ipairs(M.encode("digit:")) do prompt[#prompt + 1] = token end
  return prompt
end

--- An image, the question, and the word for it.
---@param digit {pixels: torch.Tensor, label: integer}
---@return batching.Sample
function M.image_sample(digit)
  local prompt, answer = image_prompt(), M.encode(WORDS[digit.label])
  answer[#answer + 1] = M.END
  local types = {}
  for i = 1, #prompt + #answer do types[i] = prompt[i] == M.IMAGE and 1 or 0 end
  return sample(prompt, answer,
    { pixel_values = patches_of(digit.pixels), image_grid_thw = grid_thw, mm_token_type_ids = types })
end

--- The image and the question alone.
---@param digit {pixels: torch.Tensor, label: integer}
---@return {input_ids: integer[], pixel_values: torch.Tensor, image_grid_thw: torch.Tensor}
function M.image_prompt_sample(digit)
  return { input_ids = image_prompt(), pixel_values = patches_of(digit.pixels), image_grid_thw = grid_thw }
end

--- "3+4:7" or "spell 7:seven", drawn by `random(n)`, a whole number from 1 to n.
---@param random fun(n: integer): integer
---@return batching.Sample
function M.text_sample(random)
  local a, b = random(10) - 1, random(10) - 1
  local prompt, answer = ("spell %d:"):format(a), WORDS[a]
  if random(2) == 1 then prompt, answer = ("%d+%d:"):format(a, b), tostring(a + b) end
  local tokens = M.encode(answer)
  tokens[#tokens + 1] = M.END
  return sample(M.encode(prompt), tokens)
end

M.word = function(label) return WORDS[label] end

--- Moves the digit by up to a pixel each way.
---@param digit {pixels: torch.Tensor, label: integer}
---@param random fun(n: integer): integer
---@return {pixels: torch.Tensor, label: integer}
function M.jitter(digit, random)
  local down, right = random(3) - 2, random(3) - 2
  local padded = torch.constant_pad_nd(digit.pixels, { 1, 1, 1, 1 })
  return { pixels = padded[{ { 1 + down, 1 + down + SIDE }, { 1 + right, 1 + right + SIDE } }], label = digit.label }
end

--- Sample `number` of a set without end: two thirds of them images, the others text. Drawn from its number alone, so
--- that a rank can read any part of the set.
---@param train {pixels: torch.Tensor, label: integer}[]
---@param number integer
---@return batching.Sample
function M.draw(train, number)
  local state = (number * 69621 + 1) % 2147483647
  local function random(n) -- a Lehmer generator
    state = state * 16807 % 2147483647
    return 1 + math.floor(state / 2147483647 * n)
  end
  for _ = 1, 3 do random(1) end -- numbers close by begin alike
  if random(3) == 1 then return M.text_sample(random) end
  return M.image_sample(M.jitter(train[random(#train)], random))
end

--- Digits side by side as text, a caption under each.
---@param digits {pixels: torch.Tensor}[]
---@param captions string[]
---@return string
function M.art(digits, captions)
  local shades = " .:-=+*#%@"
  local lines = {}
  for row = 1, SIDE do
    local parts = {}
    for _, digit in ipairs(digits) do
      for _, value in ipairs(digit.pixels[row - 1]:totable()) do
        local shade = shades:sub(1 + math.floor(value * 9 + 0.5), 1 + math.floor(value * 9 + 0.5))
        parts[#parts + 1] = shade .. shade
      end
      parts[#parts + 1] = "  "
    end
    lines[row] = table.concat(parts)
  end
  local under = {}
  for i, caption in ipairs(captions) do under[i] = caption .. string.rep(" ", 2 * SIDE + 2 - #caption) end
  lines[#lines + 1] = table.concat(under)
  return table.concat(lines, "\n")
end

return M
