--- Notes which parameters some ranks have and others have not, for saved states and models: those of a stage of a
--- pipeline, or of a module with ranks of its own. Norms know it from nn.spread.

local M = {}

---@class pipeline.Place
---@field group dist.Group? of all stages that hold this part of the model; nil for a module with ranks of its own
---@field is_copy boolean the last stage's copy of a tied embedding, which counts on the first stage

---@type table<torch.Tensor, pipeline.Place>
local places = setmetatable({}, { __mode = "k" })

---@param p torch.Tensor
---@param place pipeline.Place
function M.note(p, place) places[p] = place end

---@param p torch.Tensor
---@return pipeline.Place?
function M.of(p) return places[p] end

--- Returns the place of the first parameter that is a stage's; nil where none is.
---@param params torch.Tensor[]
---@return pipeline.Place?
function M.of_any(params)
  for _, p in ipairs(params) do
    if places[p] then return places[p] end
  end
end

return M
