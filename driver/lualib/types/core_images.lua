---@meta lockstep.core.images
--- Pictures, as lockstep.images reads and cuts them. The program's side is driver/lua/bind/images/images.cc.

---@class lockstep.core.images
local images = {}

--- Returns whether the bytes begin as a JPEG, PNG or WebP file does.
---@param bytes string
---@return boolean
function images.is_image(bytes) end

---@param bytes string
---@param white boolean blends over white where there is alpha; else alpha is dropped
---@param max_pixels integer
---@param caller string what errors begin with
---@return torch.Tensor # uint8 [3, H, W], a view of [H, W, 3]
function images.decode(bytes, white, max_pixels, caller) end

---@param path string
---@param white boolean
---@param max_pixels integer
---@param caller string
---@return torch.Tensor # uint8 [3, H, W], a view of [H, W, 3]
function images.read(path, white, max_pixels, caller) end

---@param frames torch.Tensor uint8 [F, 3, H, W], H and W multiples of patch * merge
---@param table torch.Tensor float32 [3, 256], what a byte of each channel becomes
---@param patch integer pixels of a patch's side
---@param temporal integer frames of a patch
---@param merge integer patches of a block's side
---@return torch.Tensor # float32 [patches, 3 * temporal * patch * patch]
function images.patches(frames, table, patch, temporal, merge) end

return images
