---@meta lockstep.core.sharding
--- The library `sharding`, as lockstep.sharding calls it. The program's side is driver/lua/bind/sharding/sharding.cc.

---@class lockstep.core.sharding
---@field data_parallel_defaults table<string, any> from sharding/data_parallel/data_parallel.h
---@field fully_shard_defaults table<string, any> from sharding/fully_shard/fully_shard.h
local sharding = {}

---@class lockstep.core.sharding.Loop
local Loop = {}

--- The next batch and whether it is the iterator's own; nothing when the loop is over. Collective.
---@return any batch
---@return boolean? real
function Loop:next() end

--- Ends the loop on every rank, after the batch that is agreed on already.
function Loop:stop() end

---@return integer
function Loop:steps() end

---@return integer
function Loop:filled() end

--- Batches of this rank that no step took; reads what is left, but at most 10,000: nil where more are left.
---@return integer?
function Loop:dropped() end

---@param iterator fun(): any
---@param options sharding.LockstepOptions
---@return lockstep.core.sharding.Loop
function sharding.lockstep(iterator, options) end

---@class lockstep.core.sharding.Shift
local Shift = {}

--- The previous rank's tensor, once it has arrived. Once only.
---@return torch.Tensor
function Shift:wait() end

--- Starts to pass x to the next rank of the group, and to take a tensor of these sizes from the previous one. With a
--- `subject` the call is compared with those of the other ranks first. Collective.
---@param x torch.Tensor
---@param sizes integer[]
---@param options {group: dist.Group?, subject: string?}?
---@return lockstep.core.sharding.Shift
function sharding.shift(x, sizes, options) end

---@class lockstep.core.sharding.Exchange
local Exchange = {}

--- What has come, of rank 0 first: one dimension. Once only.
---@return torch.Tensor
function Exchange:wait() end

--- Starts to send gives[i] elements of x to rank i - 1 of the group, and to take takes[i] from it. `subject` as for
--- shift. Collective.
---@param x torch.Tensor
---@param gives integer[]
---@param takes integer[]
---@param options {group: dist.Group?, subject: string?}?
---@return lockstep.core.sharding.Exchange
function sharding.exchange(x, gives, takes, options) end

--- A node of autograd: forward() returns a new tensor, and those to save; backward(dy, saved) the gradients of the
--- inputs. backward runs also where the result has no gradient, with zeros. It must not hold the result.
---@param inputs torch.Tensor[]
---@param forward fun(): torch.Tensor, torch.Tensor[]
---@param backward fun(dy: torch.Tensor, saved: torch.Tensor[]): torch.Tensor[]
---@return torch.Tensor
function sharding.node(inputs, forward, backward) end

---@class lockstep.core.sharding.Replicas
local Replicas = {}

--- Begins a pass: compares it over the ranks, and follows the module's parameters. Does nothing where gradients are
--- off.
---@param parameters table[] {{name, tensor}, ...} of the module now
---@param buffers table[] {{name, tensor}, ...}
---@return boolean has_changed whether parameters were frozen, unfrozen, added or removed
function Replicas:begin_pass(parameters, buffers) end

--- Prepares the forward pass that follows, and gives every rank rank 0's buffers.
---@param buffers table[] {{name, tensor}, ...}
function Replicas:before_forward(buffers) end

--- Raises if the last backward left gradients unaveraged.
function Replicas:check_backward() end

--- The outputs, tied to the averaging. With neither find_unused nor static_graph the array may be empty.
---@param outputs torch.Tensor[]
---@return torch.Tensor[]
function Replicas:after_forward(outputs) end

--- Calls fn(...) without averaging, and returns its results.
---@param fn fun(...): ...
---@param ... any
---@return any ...
function Replicas:no_sync(fn, ...) end

--- The trained parameters, by index from 0, that are averaged together. Collective, between steps.
---@return integer[][]
function Replicas:buckets() end

--- Averages in these from now on. Collective, between steps.
---@param buckets integer[][]
function Replicas:set_buckets(buckets) end

---@param parameters table[] {{name, tensor}, ...}
---@param buffers table[] {{name, tensor}, ...}
---@param options sharding.DataParallelOptions
---@return lockstep.core.sharding.Replicas
function sharding.data_parallel(parameters, buffers, options) end

---@class lockstep.core.sharding.FullyShard
local FullyShard = {}

--- fn(...), as a forward of the unit, counted from 0. Collective.
---@param unit integer
---@param fn fun(...): ...
---@param ... any
---@return any ...
function FullyShard:call(unit, fn, ...) end

--- This rank's parts by the parameters' names.
---@return table<string, torch.Tensor>
function FullyShard:shards() end

--- Calls fn(...) without reduction, and returns its results.
---@param fn fun(...): ...
---@param ... any
---@return any ...
function FullyShard:no_sync(fn, ...) end

--- Calls fn(...) with all parameters gathered, and returns its results. Collective.
---@param fn fun(...): ...
---@param ... any
---@return any ...
function FullyShard:full(fn, ...) end

--- The norm before. Collective.
---@param max_norm number
---@param p number
---@return torch.Tensor
function FullyShard:clip_grad_norm(max_norm, p) end

--- Whole masters of a unit by name, or whole tensors of which `pieces` are the parts. Collective.
---@param unit integer
---@param pieces torch.Tensor[]?
---@return table<string, torch.Tensor>
function FullyShard:gather(unit, pieces) end

--- Takes this rank's part of a whole value.
---@param name string
---@param whole torch.Tensor
---@param into torch.Tensor? the parameter's shard unless given
function FullyShard:load(name, whole, into) end

--- Forgets the whole gradients that no_sync has left.
function FullyShard:drop_gradients() end

---@return sharding.FullyShardStats
function FullyShard:stats() end

---@param units sharding.Unit[]
---@param buffers table[] {{name, tensor}, ...}
---@param options table<string, any> as sharding.fully_shard takes them; has_values = false: masters begin as zeros, and
--- the parameters are not read
---@return lockstep.core.sharding.FullyShard
function sharding.fully_shard(units, buffers, options) end

--- One rank's samples of an epoch.
---@class lockstep.core.sharding.Shard
local Shard = {}

--- The next sample's index, from 1; nothing at the end.
---@return integer?
function Shard:next() end

---@return integer length
---@return integer taken
---@return integer padded
---@return integer dropped
function Shard:counts() end

--- Where another world's ranks start once every rank has taken so many samples.
---@param taken integer
---@return integer
function Shard:start_after(taken) end

---@param options table<string, any> as sharding.dataset takes them, with rank, world and start
---@return lockstep.core.sharding.Shard
function sharding.dataset(options) end

--- The order of an epoch that shards share, computed and not stored.
---@param size integer
---@param seed integer
---@param epoch integer
---@param position integer from 0 to size - 1
---@return integer index from 1 to size
function sharding.permute(size, seed, epoch, position) end

--- A chunk: sample (from 1), first token, end, and again for each piece.
---@alias lockstep.core.sharding.Chunk integer[]

---@class lockstep.core.sharding.Packer
local Packer = {}

--- The chunks that this many more tokens complete.
---@param tokens integer of the next sample
---@return lockstep.core.sharding.Chunk[]
function Packer:add(tokens) end

--- The rest at the end; nothing if it is empty or dropped.
---@return lockstep.core.sharding.Chunk?
function Packer:finish() end

--- The chunk that is not full yet.
---@return lockstep.core.sharding.Chunk
function Packer:waiting() end

---@return integer
function Packer:dropped_tokens() end

---@param seq_len integer
---@param split boolean a sample may reach over a chunk's end
---@param drop_last boolean
---@return lockstep.core.sharding.Packer
function sharding.packer(seq_len, split, drop_last) end

---@class lockstep.core.sharding.Guard
local Guard = {}

--- Raises on every rank where the ranks' texts differ. Collective.
---@param label string
---@param fingerprint string
function Guard:check(label, fingerprint) end

--- timeout_s: the run's --timeout unless given.
---@param options {group: dist.Group?, timeout_s: number?}
---@return lockstep.core.sharding.Guard
function sharding.guard(options) end

--- Texts of all ranks of the run, compared with the training's collectives.
---@class lockstep.core.sharding.Gathering
local Gathering = {}

--- The text of every rank, by rank. Collective.
---@param text string
---@param call string? the function in reports; default: the purpose
---@return string[]
function Gathering:gather(text, call) end

--- The same in half the time, for texts of one length on every rank. Collective.
---@param text string
---@param call string? the function in reports; default: the purpose
---@return string[]
function Gathering:gather_flags(text, call) end

--- Collective.
---@param purpose string as reports of a hang name it
---@return lockstep.core.sharding.Gathering
function sharding.gathering(purpose) end

--- How many calls of the script this rank has begun or refused.
---@return integer
function sharding.num_calls() end

--- Counts a call that this rank has refused to make, so that its later calls meet their own.
---@param reason string
---@param options {group: dist.Group?}? the call's
function sharding.refuse_call(reason, options) end

---@class lockstep.core.sharding.MessageBatch
local MessageBatch = {}

--- Waits until all tensors are sent and received.
function MessageBatch:wait() end

---@class lockstep.core.sharding.Link
local Link = {}

--- Starts to send tensors to the other rank, and to receive others, which both know beforehand.
---@param sends torch.Tensor[]
---@param receives torch.Tensor[] contiguous
---@param subject string what they are, for reports
---@return lockstep.core.sharding.MessageBatch
function Link:start(sends, receives, subject) end

--- Connects this rank with another one.
---@param group dist.Group of the two
---@return lockstep.core.sharding.Link
function sharding.link(group) end

return sharding
