--- The fields of a batch. Models do not read those that they do not know: batches carry what a script needs elsewhere.
--- A field under another library's name, or a misspelt one, would train silently on something else, and is an error.

local core = require "lockstep.core"

local M = {}

--- The fields that models read.
M.READ = { "input_ids", "seq_lens", "position_ids", "loss_mask", "pixel_values", "image_grid_thw", "image_order",
  "pixel_values_videos", "video_grid_thw", "second_per_grid_ts", "visual", "shares" }

--- Fields that models read, too, and that differ between ranks with one batch.
local OWN = { "own_visual" }

local FOREIGN = {
  labels = "the labels are the next tokens; say with loss_mask which tokens count",
  attention_mask = "sequences are packed one behind the other, without padding; give their lengths as seq_lens",
  inputs_embeds = "models take input_ids",
}

--- Names that were checked before.
local harmless = {}
for _, name in ipairs(M.READ) do harmless[name] = true end
for _, name in ipairs(OWN) do harmless[name] = true end

--- Raises for a field that its writer takes for one that models read.
---@param batch table<any, any>
function M.check(batch)
  for name in pairs(batch) do
    if not harmless[name] and type(name) == "string" then
      local nearest = core.nearest(name, M.READ)
      if FOREIGN[name] or nearest then
        core.raise(string.format('models: a batch has the field "%s", which models do not read: %s', name,
          FOREIGN[name] or 'did you mean "' .. nearest .. '"?'))
      end
      harmless[name] = true
    end
  end
end

return M
