---@meta _
--- Tensors: their methods that are not ATen's operators. The program's side is driver/lua/bind/torch/tensor_methods.cc.

--- torch.float32, torch.int64 and kin.
---@class torch.dtype

--- A number or a boolean where an operator takes one of any type.
---@alias torch.Scalar number|boolean

---@alias torch.layout "strided"|"sparse_coo"|"sparse_csr"

---@alias torch.memory_format "contiguous_format"|"preserve_format"|"channels_last"|"channels_last_3d"

--- The shape that x.shape and x:size() give: an array that prints itself and equals another of the same sizes.
---@alias torch.Shape integer[]

--- One dimension of an index: a position from 0, a range {from, to[, step]} that ends before `to`, {} for all,
--- positions or a mask as a tensor, "..." for as many full dimensions as are left.
---@alias torch.DimensionIndex integer|integer[]|torch.Tensor|"..."

--- The named options of torch.zeros, torch.full and similar functions.
---@class torch.FactoryOptions
---@field dtype torch.dtype?
---@field layout torch.layout?
---@field device string? "cpu", "cuda:0"
---@field pin_memory boolean?
---@field requires_grad boolean?

--- Where x:to moves its values, and as what.
---@class torch.Target
---@field device string?
---@field dtype torch.dtype?
---@field non_blocking boolean?
---@field copy boolean?

---@class torch.BackwardOptions
---@field gradient torch.Tensor? of the shape of x; may be left out where x has one element
---@field retain_graph boolean? default: create_graph
---@field create_graph boolean? default false
---@field inputs torch.Tensor[]? leaves that get gradients; default: all

---@class torch.Tensor
---@field shape torch.Shape
---@field dtype torch.dtype
---@field device string "cpu", "cuda:0"
---@field grad torch.Tensor? can be set
---@field requires_grad boolean can be set, on a leaf
---@field is_leaf boolean
---@field ndim integer
---@field T torch.Tensor the transpose, of at most two dimensions
---@field [torch.DimensionIndex|torch.DimensionIndex[]] torch.Tensor x[i], x[{i, {a, b}, {}}], x[mask]; can be set
---@operator add(torch.Tensor|number): torch.Tensor
---@operator sub(torch.Tensor|number): torch.Tensor
---@operator mul(torch.Tensor|number): torch.Tensor
---@operator div(torch.Tensor|number): torch.Tensor
---@operator mod(torch.Tensor|number): torch.Tensor
---@operator pow(torch.Tensor|number): torch.Tensor
---@operator unm: torch.Tensor
---@operator len: integer
local Tensor = {}

--- x:size(): the shape; x:size(d): one dimension of it, counted from 0, or from the end with -1.
---@overload fun(self: torch.Tensor): torch.Shape
---@param dim integer
---@return integer
function Tensor:size(dim) end

--- The number of dimensions.
---@return integer
function Tensor:dim() end

--- The number of elements.
---@return integer
function Tensor:numel() end

--- Bytes of one element.
---@return integer
function Tensor:element_size() end

--- x:stride(): of every dimension, in elements; x:stride(d): of one.
---@overload fun(self: torch.Tensor): integer[]
---@param dim integer
---@return integer
function Tensor:stride(dim) end

--- Whether the elements lie one after the other, in order.
---@return boolean
function Tensor:is_contiguous() end

--- The value of a tensor of one element.
---@return number
function Tensor:item() end

--- The elements as nested arrays; of a tensor without dimensions its value.
---@return any
function Tensor:totable() end

--- The tensor itself where it already is as asked.
---
---     x:to("cuda:0"); x:to(torch.bfloat16); x:to(y); x:to { device = "cpu", dtype = torch.float32 }
---@param where string|torch.dtype|torch.Tensor|torch.Target
---@param ... string|torch.dtype|torch.Target
---@return torch.Tensor
function Tensor:to(where, ...) end

---@return torch.Tensor
function Tensor:cpu() end

---@return torch.Tensor
function Tensor:cuda() end

---@return torch.Tensor
function Tensor:float() end

---@return torch.Tensor
function Tensor:double() end

---@return torch.Tensor
function Tensor:half() end

---@return torch.Tensor
function Tensor:bfloat16() end

---@return torch.Tensor
function Tensor:byte() end

---@return torch.Tensor
function Tensor:char() end

---@return torch.Tensor
function Tensor:short() end

---@return torch.Tensor
function Tensor:int() end

---@return torch.Tensor
function Tensor:long() end

---@return torch.Tensor
function Tensor:bool() end

--- Adds the gradients of this tensor to the `grad` of every leaf it was made from.
---
---     loss:backward(); y:backward(torch.ones_like(y), { retain_graph = true })
---@overload fun(self: torch.Tensor, options: torch.BackwardOptions?)
---@param gradient torch.Tensor
---@param options? torch.BackwardOptions
function Tensor:backward(gradient, options) end

---@class torch.HookHandle
local HookHandle = {}

--- Takes the hook away. A second call does nothing.
function HookHandle:remove() end

--- Calls `hook` with the gradient whenever one is computed; a tensor that it returns takes its place.
---
---     local handle = x:register_hook(function(gradient) return gradient * 2 end)
---     loss:backward()
---     handle:remove()
---
--- The hook lives as long as the tensor or a graph that leads to it; it may use the tensor itself.
---@param hook fun(gradient: torch.Tensor): torch.Tensor?
---@return torch.HookHandle
function Tensor:register_hook(hook) end
