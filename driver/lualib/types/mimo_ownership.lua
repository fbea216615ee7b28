---@meta _
--- The class of tables that mimo.ownership makes. The program's side is driver/lua/bind/mimo/mimo_ownership.cc.

---@alias mimo.RowsOf "samples"|"items"|"tokens"

---@class mimo.Ownership
local Ownership = {}

--- The number of rows of each sample in a tensor of items, or of their tokens.
---@param rows_of? mimo.RowsOf default "tokens"
---@return integer[]
function Ownership:rows_per_sample(rows_of) end

--- The number of tokens of each item.
---@return integer[]
function Ownership:tokens_per_item() end

--- The number of rows of a tensor of samples, of items or of tokens.
---@param rows_of? mimo.RowsOf default "tokens"
---@return integer
function Ownership:num_rows(rows_of) end

--- The table of a replica's samples by themselves, as mimo.slice cuts one that is in the batch. uneven: replicas may
--- differ by a sample.
---@param dp_rank integer
---@param dp_size integer
---@param options? {uneven: boolean?}
---@return mimo.Ownership
function Ownership:slice(dp_rank, dp_size, options) end

--- The table of the samples in another order, as mimo.reorder moves one that is in the batch.
---@param order integer[] samples, from 1
---@return mimo.Ownership
function Ownership:reordered(order) end

--- The cost of each sample: its tokens times per_item_token, and its text_tokens times per_text_token, which are 1.
---
---     mimo.balanced_order(images:costs(), 4)
---@param options? {text_tokens: integer[]|torch.Tensor|nil, per_item_token: number?, per_text_token: number?}
---@return number[]
function Ownership:costs(options) end
