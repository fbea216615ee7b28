---@meta lockstep.core.tiled_mlp
--- The library `tiled_mlp` for lockstep.tiled_mlp. The program's side is driver/lua/bind/tiled_mlp/tiled_mlp.cc.

---@class lockstep.core.tiled_mlp
---@field defaults table<string, any> of the options of new, from tiled_mlp/tiled.h
---@field cross_entropy_defaults table<string, any> from tiled_mlp/cross_entropy.h
local tiled_mlp = {}

---@class lockstep.core.tiled_mlp.Tiles
local Tiles = {}

--- fn's results for all of x. With places fn is called with the tile alone, while each {fields, name, index} holds
--- the tile's alias of weights[index].
---@param fn function|nn.Module
---@param x torch.Tensor
---@param weights torch.Tensor[]
---@param places table[]?
---@return torch.Tensor ...
function Tiles:run(fn, x, weights, places) end

---@param options table<string, torch.Tensor|string> as tiled_mlp.TiledMlp:dense takes them
---@return torch.Tensor
function Tiles:dense(options) end

---@return tiled_mlp.Stats
function Tiles:stats() end

---@param options table<string, integer|boolean> as tiled_mlp.new takes them
---@return lockstep.core.tiled_mlp.Tiles
function tiled_mlp.new(options) end

---@param options table<string, any> tiled_mlp.cross_entropy's, less over_ranks and group; divisor: a tensor
---@return torch.Tensor loss
---@return torch.Tensor count
function tiled_mlp.cross_entropy(options) end

return tiled_mlp
