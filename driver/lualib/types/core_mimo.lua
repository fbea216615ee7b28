---@meta lockstep.core.mimo
--- The library `mimo`, as lockstep.mimo calls it. The program's side is driver/lua/bind/mimo/mimo.cc.

---@class lockstep.core.mimo
local mimo = {}

---@class lockstep.core.mimo.Topology
local Topology = {}

---@param rank? integer default: this rank, here and below
---@return string?
function Topology:module(rank) end

---@return {name: string, dp: integer, tp: integer, cp: integer, pp: integer, ranks: integer[]}[]
function Topology:modules() end

---@param rank? integer
---@param name? string
---@return integer dp_rank
---@return integer dp_size
function Topology:dp_info(rank, name) end

---@param rank? integer
---@param scalable_reads? boolean
---@return integer dp_rank
---@return integer dp_size
---@return boolean needs_data
function Topology:sampling_info(rank, scalable_reads) end

---@param rank? integer
---@param name? string
---@return {dp: integer, pp: integer, cp: integer, tp: integer}
function Topology:coordinates(rank, name) end

---@param sizes table<string, any>
function Topology:validate(sizes) end

---@param options table<string, any>
---@return integer operations
---@return integer transfers
---@return integer collectives
function Topology:check_schedule(options) end

---@param options table<string, any>
---@return string
function Topology:draw(options) end

---@param name string
---@param axes string
---@param rank? integer
---@return integer[]?
function Topology:peers(name, axes, rank) end

--- Raises an error, in the name of `function_name`, where the run has more or fewer ranks than the topology.
---@param function_name string
function Topology:check_world(function_name) end

---@param sizes {micro_batch_size: integer, num_samples: integer}
---@param micro_batch integer from 0
---@param dp_rank integer
---@param dp_size integer
---@return integer first position, from 0
---@return integer stop
---@return integer micro_batches
function Topology:reads(sizes, micro_batch, dp_rank, dp_size) end

--- Collective over the ranks of both modules.
---@param from string
---@param to string
---@param dim integer
---@param audit boolean
---@param needs "none"|"cp"|"tp-cp"
---@param rows_may_vary boolean between two ranks: each call may have another number of rows
---@return lockstep.core.mimo.Bridge
function Topology:bridge(from, to, dim, audit, needs, rows_may_vary) end

--- The norm of all modules' gradients: {{name, parameters, divided over tp, copy}, ...}. copy: which copy of a sharded
--- model has these shards; nil for whole parameters. Collective over the world.
---@param parts table[]
---@param max_norm number
---@return torch.Tensor norm
---@return torch.Tensor limits float64 [ranks]: each rank's max_norm
function Topology:gradient_norm(parts, max_norm) end

---@class lockstep.core.mimo.Bridge
local Bridge = {}

---@param tensors torch.Tensor[] none on ranks that receive
---@param rows_per_sample integer[]|torch.Tensor|nil
---@param ownership mimo.OwnedRows? instead
---@param samples string "" for none
---@return lockstep.core.mimo.Pending
function Bridge:start(tensors, rows_per_sample, ownership, samples) end

--- Tells the peers of a call whose arguments could not be read; the bridge is of no more use.
---@param text string
function Bridge:refuse(text) end

--- Why the bridge is of no more use on this rank; nil where it is sound.
---@return string?
function Bridge:failure() end

--- Raises an error where a call has had no backward here.
function Bridge:check_backward() end

---@class lockstep.core.mimo.Pending
local Pending = {}

---@return torch.Tensor[]
function Pending:wait() end

---@param options {world_size: integer?, modules: mimo.Module[], edges: {from: string, to: string}[]?}
---@return lockstep.core.mimo.Topology
function mimo.topology(options) end

--- Proves that the sends and receives of all ranks match and end if nothing buffers a message. Raises with those that
--- do not match, or with the ranks that wait for each other.
---@param names string[] of stages
---@param operations integer[][][] of each rank: {kind, gradient, with_previous, partner, subject, micro_batch}, from 0;
---kind: 0 sends, 1 receives
---@return integer operations
---@return integer transfers
function mimo.simulate_messages(names, operations) end

---@param batch table
---@param dp_rank integer
---@param dp_size integer
---@param options? table<string, any>
---@return table
function mimo.slice(batch, dp_rank, dp_size, options) end

--- The tokens of padded samples in one row.
---@param batch table
---@param options? {mask: string?, whole: string[]?}
---@return table
function mimo.pack(batch, options) end

--- The whole batch in another order.
---@param batch table
---@param order integer[] samples, from 1
---@param options table<string, any>
---@return table
function mimo.reorder(batch, order, options) end

---@param options mimo.OwnershipOptions
---@return mimo.Ownership
function mimo.ownership(options) end

---@param costs number[]
---@param num_groups integer
---@return integer[] # samples, from 1
function mimo.balanced_order(costs, num_groups) end

---@param costs number[]
---@param order integer[] samples, from 1
---@param num_groups integer
---@return number[]
function mimo.group_costs(costs, order, num_groups) end

---@param options table<string, any>
---@return number
function mimo.gradient_scale(options) end

--- Collective over the group.
---@param parameters torch.Tensor[]
---@param group dist.Group? nil: this rank alone
---@param factor number
function mimo.reduce_gradients(parameters, group, factor) end

---@class lockstep.core.mimo.ReducedGradients
local ReducedGradients = {}

---@param parameters torch.Tensor[]
function ReducedGradients:remember(parameters) end

--- Returns whether there are gradients, and all are those that were remembered, not modified since.
---@param parameters torch.Tensor[]
---@return boolean
function ReducedGradients:are_unchanged(parameters) end

---@return lockstep.core.mimo.ReducedGradients
function mimo.reduced_gradients() end

---@param parameters torch.Tensor[]
---@param norm torch.Tensor
---@param max_norm number
function mimo.clip_gradients(parameters, norm, max_norm) end

return mimo
