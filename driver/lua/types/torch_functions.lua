---@meta _
--- What `require "lockstep.torch"` holds beside ATen's operators. The program's side is driver/lua/torch.cc.

---@class torch.GradOptions
---@field grad_outputs torch.Tensor|torch.Tensor[]? gradients of the outputs; default: ones
---@field allow_unused boolean? an input that took no part has no gradient, in place of an error
---@field retain_graph boolean? default: create_graph
---@field create_graph boolean? default false

---@class lockstep.torch
---@field float32 torch.dtype
---@field float64 torch.dtype
---@field float16 torch.dtype
---@field bfloat16 torch.dtype
---@field float8_e4m3fn torch.dtype
---@field float8_e5m2 torch.dtype
---@field complex64 torch.dtype
---@field complex128 torch.dtype
---@field uint8 torch.dtype
---@field uint16 torch.dtype
---@field uint32 torch.dtype
---@field uint64 torch.dtype
---@field int8 torch.dtype
---@field int16 torch.dtype
---@field int32 torch.dtype
---@field int64 torch.dtype
---@field bool torch.dtype
---@field float torch.dtype float32
---@field double torch.dtype float64
---@field half torch.dtype float16
---@field short torch.dtype int16
---@field int torch.dtype int32
---@field long torch.dtype int64
---@field cuda lockstep.torch.cuda
local torch = {}

--- A tensor of these values: float32 unless `dtype` says otherwise, or bool where they are booleans.
---
---     torch.tensor({ { 1, 2 }, { 3, 4 } }, { dtype = torch.int64, device = "cuda:0" })
---@param values number|boolean|table|torch.Tensor nested arrays; a tensor is copied
---@param options? {dtype: torch.dtype?, device: string?, requires_grad: boolean?}
---@return torch.Tensor
function torch.tensor(values, options) end

---@param value any
---@return boolean
function torch.is_tensor(value) end

--- A tensor full of one value: float32 unless `dtype` says otherwise, whatever the value.
---@param size integer[]
---@param fill_value torch.Scalar
---@param options? torch.FactoryOptions
---@return torch.Tensor
function torch.full(size, fill_value, options) end

--- The gradients of the outputs' sum with respect to the inputs, in their order; `grad` fields stay as they are.
---
---     local dx, dw = unpack(torch.grad({ y:sum() }, { x, w }))
---@param outputs torch.Tensor|torch.Tensor[]
---@param inputs torch.Tensor|torch.Tensor[]
---@param options? torch.GradOptions
---@return (torch.Tensor?)[]
function torch.grad(outputs, inputs, options) end

--- Calls fn(...) without recording for backward, and returns its results.
---
---     local norm = torch.no_grad(function() return x:norm() end)
---@param fn fun(...): ...
---@param ... any
---@return any ...
function torch.no_grad(fn, ...) end

--- Calls fn(...) with recording for backward, inside torch.no_grad.
---@param fn fun(...): ...
---@param ... any
---@return any ...
function torch.enable_grad(fn, ...) end

---@return boolean
function torch.is_grad_enabled() end

--- Seeds the generators of every device.
---@param seed integer
function torch.manual_seed(seed) end

--- The state of a device's default generator, to give back to torch.set_rng_state.
---@param device? string default "cpu"
---@return torch.Tensor
function torch.get_rng_state(device) end

---@param state torch.Tensor
---@param device? string default "cpu"
function torch.set_rng_state(state, device) end

--- Threads that one operator uses on the CPU.
---@return integer
function torch.get_num_threads() end

---@param threads integer at least 1
function torch.set_num_threads(threads) end

---@return torch.dtype
function torch.get_default_dtype() end

---@param dtype torch.dtype a floating-point one
function torch.set_default_dtype(dtype) end

---@class lockstep.torch.cuda
local cuda = {}

---@return boolean
function cuda.is_available() end

---@return integer # 0 without a GPU
function cuda.device_count() end

--- Waits until the device has done all that was asked of it.
---@param device? integer default: the current one
function cuda.synchronize(device) end

--- Bytes of tensors on the device.
---@param device? integer default: the current one
---@return integer
function cuda.memory_allocated(device) end

--- The most there were since the program began.
---@param device? integer default: the current one
---@return integer
function cuda.max_memory_allocated(device) end
