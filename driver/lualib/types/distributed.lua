---@meta lockstep.distributed
--- Ranks, groups of them, and what they do together. The program's side is driver/lua/bind/sharding/distributed.cc.
---
--- Every function that takes `group` is collective, save send and recv: all ranks of the group call it, in the
--- same order. Without a group it is the whole world's.

---@class lockstep.distributed
---@field functional lockstep.distributed.functional collectives that gradients pass through
local dist = {}

--- Some of the ranks: what dist.group makes.
---@class dist.Group
local Group = {}

--- This rank's position in the group, from 0; -1 where it is no member.
---@return integer
function Group:rank() end

---@return integer
function Group:size() end

--- The ranks of the world that are members, in the group's order.
---@return integer[]
function Group:ranks() end

---@alias dist.Reduction "sum"|"avg"|"min"|"max"

--- This process's rank, from 0.
---@return integer
function dist.rank() end

---@return integer
function dist.world_size() end

--- The rank among those on this machine, from 0.
---@return integer
function dist.local_rank() end

---@return string # "gloo" or "nccl"
function dist.backend() end

--- The device of this rank.
---@return string # "cpu", "cuda:0"
function dist.device() end

--- Makes a group of some ranks. Collective over the members; other ranks leave the call out.
---
---     local pair = dist.group { ranks = { 0, 1 } }
---@param options {ranks: integer[]}
---@return dist.Group
function dist.group(options) end

--- Reduces x over the ranks, in place. An x that requires a gradient is an error: dist.functional.all_reduce
--- passes gradients, x:detach() shares the values and has none. So it is for broadcast and recv.
---
---     dist.all_reduce(loss:detach(), "avg")
---@param x torch.Tensor
---@param op? dist.Reduction default "sum"
---@param options? {group: dist.Group?}
---@return torch.Tensor # x
function dist.all_reduce(x, op, options) end

--- Gives every rank the values of rank `src`'s x, in place.
---@param x torch.Tensor
---@param src integer a rank of the world
---@param options? {group: dist.Group?}
---@return torch.Tensor # x
function dist.broadcast(x, src, options) end

--- Every rank's x, of one shape, in the group's order. No gradient passes; dist.functional.all_gather has one.
---@param x torch.Tensor
---@param options? {group: dist.Group?}
---@return torch.Tensor[]
function dist.all_gather(x, options) end

--- Reduces parts[i] over the ranks and gives it to rank i - 1. No gradient passes; dist.functional.reduce_scatter
--- has one.
---@param parts torch.Tensor[] one for each rank of the group
---@param op? dist.Reduction default "sum"
---@param options? {group: dist.Group?}
---@return torch.Tensor
function dist.reduce_scatter(parts, op, options) end

--- Sends x to rank `dst`, which receives it with dist.recv.
---@param x torch.Tensor
---@param dst integer a rank of the world
---@param options? {group: dist.Group?, tag: integer?}
function dist.send(x, dst, options) end

--- Receives into x, which has the shape and dtype of what rank `src` sends. Anything else is an error.
---@param x torch.Tensor
---@param src integer a rank of the world
---@param options? {group: dist.Group?, tag: integer?}
---@return torch.Tensor # x
function dist.recv(x, src, options) end

--- Waits until every rank has come.
---@param options? {group: dist.Group?}
function dist.barrier(options) end

--- Every rank's value, in the group's order: nil, booleans, numbers, strings and tables of them.
---@generic T
---@param value T
---@param options? {group: dist.Group?}
---@return T[]
function dist.all_gather_object(value, options) end

--- Collectives that gradients pass through. Each returns a new tensor. Backward gives the gradient of the sum of
--- all ranks' losses, and is a collective, too: x requires a gradient on every rank or on none, and every rank's
--- loss uses the result, or none does.
---@class lockstep.distributed.functional
dist.functional = {}

--- The sum of every rank's x, or the mean.
---
---     local total = dist.functional.all_reduce(x:sum())
---@param x torch.Tensor
---@param op? "sum"|"avg" default "sum"
---@param options? {group: dist.Group?}
---@return torch.Tensor
function dist.functional.all_reduce(x, op, options) end

--- Every rank's x, of one shape, behind one another on `dim` in the group's order.
---
---     local features = dist.functional.all_gather(own_features, { dim = 0 })
---@param x torch.Tensor
---@param options? {dim: integer?, group: dist.Group?} dim: default 0
---@return torch.Tensor
function dist.functional.all_gather(x, options) end

--- The sum of every rank's x, cut into equal parts on `dim`: this rank's part.
---
---     local own = dist.functional.reduce_scatter(partial_sums, { dim = 0 })
---@param x torch.Tensor
---@param options? {dim: integer?, group: dist.Group?} dim: default 0
---@return torch.Tensor
function dist.functional.reduce_scatter(x, options) end

---@class dist.AllToAllOptions
---@field split_dim integer?
---@field concat_dim integer?
---@field sent integer[]? of each rank of the group
---@field received integer[]?
---@field group dist.Group?

--- Cuts x into equal parts on `split_dim`, sends one to each rank, and puts the parts that arrive behind one another
--- on `concat_dim`.
---
---     local heads = dist.functional.all_to_all(tokens, { split_dim = 1, concat_dim = 0 })
---
--- With counts it sends sent[i] rows of dimension 0 to the group's rank i - 1, and returns the rows that arrive in the
--- group's order, received[i] of each rank. Counts may be 0; received[i] is what that rank sends here.
---
---     local rows = dist.functional.all_to_all(x, { sent = { 2, 0 }, received = { 1, 3 } })
---@param x torch.Tensor
---@param options dist.AllToAllOptions
---@return torch.Tensor
function dist.functional.all_to_all(x, options) end

--- The x of rank `src`. Its gradient is the sum over all ranks; the other ranks' is 0.
---
---     local prompt = dist.functional.broadcast(x, 0)
---@param x torch.Tensor of the same dtype and shape on every rank
---@param src integer a rank of the world
---@param options? {group: dist.Group?}
---@return torch.Tensor
function dist.functional.broadcast(x, src, options) end

return dist
