--- A picture as SVG text, an element at a time: for the curves of lockstep.log and the plans of lockstep.batching.

local M = {}

local ENTITIES = { ["<"] = "&lt;", [">"] = "&gt;", ["&"] = "&amp;", ['"'] = "&quot;" }

--- Returns text as an element or an attribute holds it.
---@param text string
---@return string
function M.escape(text) return (text:gsub('[<>&"]', ENTITIES)) end

--- Begins a white picture. Both functions: `add(format, ...)` adds an element, `finish()` returns the whole.
---@param width integer
---@param height integer
---@return fun(format: string, ...: any) add
---@return fun(): string finish
function M.begin(width, height)
  local out = {}
  local function add(format, ...) out[#out + 1] = format:format(...) end
  add('<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" '
    .. 'font-family="sans-serif" font-size="12">', width, height, width, height)
  add('<rect width="%d" height="%d" fill="white"/>', width, height)
  return add, function() return table.concat(out, "\n") .. "\n</svg>\n" end
end

return M
