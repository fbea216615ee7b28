--- Replaces pieces of a text and moves byte ranges with it. Returns the function.

--- Returns the text with the pieces in it, and the spans as they lie then. A span may begin or end where an edit does,
--- but not inside one.
---@param text string
---@param spans integer[][] {first, last} of bytes
---@param edits {first: integer, last: integer, piece: string}[] in their order
---@return string text
---@return integer[][] spans
return function(text, spans, edits)
  local pieces, from = {}, 1
  for _, edit in ipairs(edits) do
    pieces[#pieces + 1], pieces[#pieces + 2] = text:sub(from, edit.first - 1), edit.piece
    from = edit.last + 1
  end
  pieces[#pieces + 1] = text:sub(from)
  local function moved(byte)
    local sum = byte
    for _, edit in ipairs(edits) do
      if edit.first < byte then sum = sum + #edit.piece - (edit.last - edit.first + 1) end
    end
    return sum
  end
  local new = {}
  for i, span in ipairs(spans) do new[i] = { moved(span[1]), moved(span[2]) } end
  return table.concat(pieces), new
end
