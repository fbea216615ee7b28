---@meta lockstep.core.batching
--- The library `batching`, as lockstep.batching calls it. The program's side is driver/lua/bind/batching/batching.cc.

---@class lockstep.core.batching
---@field defaults table<string, any> of the options of prepare, from batching/prepare.h
local batching = {}

---@param options {samples: batching.Sample[]?, seq_len: integer, ranks: integer?, rank: integer?, [string]: any}
---@return batching.MicroBatch[][] batches
---@return batching.Report report
---@return integer[] held samples that wait, by their index
function batching.prepare(options) end

---@param sample batching.Sample
---@param options {streams: table, token_types: string, [string]: any}
---@return batching.Entry
function batching.describe(sample, options) end

--- A preparation under way on a thread of its own.
---@class lockstep.core.batching.Preparation
local Preparation = {}

--- The result of batching.prepare. Call it once for each preparation.
---@return batching.MicroBatch[][] batches
---@return batching.Report report
---@return integer[] held samples that wait, by their index
function Preparation:wait() end

--- Prepares in the background; the cost may be no Lua function.
---@param options {samples: batching.Sample[], seq_len: integer, ranks: integer?, rank: integer?, [string]: any}
---@return lockstep.core.batching.Preparation
function batching.start(options) end

--- Floating-point operations of a sequence of n tokens, linear * n + quadratic * n * n, and of an image likewise.
---@param shape table<string, integer> the fields of batching::TransformerShape
---@return number linear
---@return number quadratic
---@return number image_linear
---@return number image_quadratic
function batching.transformer_cost(shape) end

return batching
