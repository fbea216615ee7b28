---@meta _
--- What `require "lockstep.torch"` holds beside ATen's operators. The program's side is driver/lua/bind/torch/torch.cc.

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
---@field ops lockstep.torch.ops
local torch = {}

--- Operators of libraries other than ATen, by library and name. Those of //kernels: see kernels/kernels.h.
---@class lockstep.torch.ops
---@field lockstep lockstep.torch.ops.lockstep

---@class lockstep.torch.ops.lockstep
---@field rms_norm fun(x: torch.Tensor, weight: torch.Tensor, eps: number): torch.Tensor
---@field add_rms_norm fun(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: number): ...
---@field linear fun(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor?): torch.Tensor
---@field linears fun(x: torch.Tensor, weights: torch.Tensor[], biases: torch.Tensor[]): torch.Tensor[]
---@field rms_norm_and_input fun(x: torch.Tensor, weight: torch.Tensor, eps: number): torch.Tensor, torch.Tensor
---@field swiglu fun(gate: torch.Tensor, up: torch.Tensor): torch.Tensor
---@field rotate fun(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor): torch.Tensor
---@field turns_of fun(angles: torch.Tensor, factor: number, dtype: torch.dtype): torch.Tensor, torch.Tensor
---@field cached_attention fun(...: any): torch.Tensor see CachedAttention in kernels.h
---@field attention_backend fun(...: any): string see BackendFor in kernels/attention/backends.h
---@field attention_on_device fun(...: any): torch.Tensor see AttentionOnDevice in kernels/attention/on_device.h
---@field cached_attention_on_device fun(...: any): torch.Tensor see CachedAttentionOnDevice there
---@field attention_of_new_tokens fun(...: any): torch.Tensor see AttentionOfNewTokens in kernels.h
---@field mlp_of_new_tokens fun(...: any): torch.Tensor see MlpOfNewTokens in kernels.h

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

--- Calls fn(...) as torch.no_grad does, with less time for each operator. The tensors that it makes are only for
--- inference: outside, to write to one is an error, and so is an operator that has to save one for backward. Give such
--- an operator x:clone() instead.
---
---     local scores = torch.inference_mode(model, batch)
---@param fn fun(...): ...
---@param ... any
---@return any ...
function torch.inference_mode(fn, ...) end

--- Calls fn(...) with recording for backward, inside torch.no_grad.
---@param fn fun(...): ...
---@param ... any
---@return any ...
function torch.enable_grad(fn, ...) end

---@return boolean
function torch.is_grad_enabled() end

---@class torch.AutocastOptions
---@field dtype torch.dtype? torch.bfloat16 or torch.float16; default: that of the surrounding autocast, else float16 on
---CUDA and bfloat16 on the CPU
---@field device string? "cuda" or "cpu"; default: "cuda" where there is a GPU
---@field enabled boolean? default true; false switches a surrounding autocast off
---@field cache_enabled boolean? default true: a weight is cast once, until the outermost autocast ends

--- Calls fn(...), whose matrix products, convolutions and attention compute in a lower precision, and whose sums, norms
--- and losses in float32, and returns its results. Parameters stay float32. The settings before hold again afterwards,
--- also after an error; regions of lockstep.checkpoint are recomputed under those of their forward pass. backward()
--- belongs outside. With float16, optim.GradScaler keeps small gradients.
---
---     local loss = torch.autocast({ dtype = torch.bfloat16, device = "cuda" }, function() return model(x):sum() end)
---     loss:backward()
---
--- Source: torch.autocast of PyTorch 2.11; which operators compute in which precision is libtorch's own table.
---@param options torch.AutocastOptions
---@param fn fun(...): ...
---@param ... any
---@return any ...
function torch.autocast(options, fn, ...) end

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

--- Sets how exact products of float32 matrices are, as in PyTorch. A run begins with "highest". "high" and "medium"
--- let a GPU round the factors to TF32, with 10 bits of fraction instead of 23. With "medium" a CPU that has bfloat16
--- products may use them.
---@param precision "highest"|"high"|"medium"
function torch.set_float32_matmul_precision(precision) end

---@return "highest"|"high"|"medium"
function torch.get_float32_matmul_precision() end

--- Lets operators repeat their bits: one that has a deterministic kernel uses it, and one without is an error, as in
--- PyTorch. With `warn_only` it is a warning. Where there is a GPU it also sets CUBLAS_WORKSPACE_CONFIG, so call it
--- before the first tensor on a GPU.
---
---     torch.use_deterministic_algorithms(true)
---@param mode boolean
---@param opts {warn_only: boolean?}?
function torch.use_deterministic_algorithms(mode, opts) end

---@return boolean
function torch.are_deterministic_algorithms_enabled() end

---@class lockstep.torch.cuda
local cuda = {}

---@return boolean
function cuda.is_available() end

--- Returns the compute capability of a GPU: 9 and 0 of an H100.
---@param device integer? default: the current one
---@return integer major
---@return integer minor
function cuda.get_device_capability(device) end

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

--- Bytes that the allocator holds of the device, in use or not.
---@param device? integer default: the current one
---@return integer
function cuda.memory_reserved(device) end

---@param device? integer default: the current one
---@return integer
function cuda.max_memory_reserved(device) end

--- Bytes now and at most, and how often an allocation had to be tried again or failed.
---@param device? integer default: the current one
---@return torch.cuda.MemoryStats
function cuda.memory_stats(device) end

---@class torch.cuda.MemoryStats
---@field allocated_bytes integer of tensors
---@field peak_allocated_bytes integer
---@field reserved_bytes integer held of the device
---@field peak_reserved_bytes integer
---@field active_bytes integer of tensors, and of freed ones that a stream may still read
---@field peak_active_bytes integer
---@field alloc_retries integer
---@field ooms integer

--- Bytes of the device that no process holds, and all that it has.
---@param device? integer default: the current one
---@return integer free
---@return integer total
function cuda.mem_get_info(device) end

--- Peaks count from here on.
---@param device? integer default: the current one
function cuda.reset_peak_memory_stats(device) end

--- Gives the device back what the allocator holds and no tensor uses.
function cuda.empty_cache() end

--- A stream: work on it waits for no other's unless it is told to.
---@class torch.cuda.Stream
local Stream = {}

--- Waits until the stream has done all that was asked of it.
function Stream:synchronize() end

--- Whether it has.
---@return boolean
function Stream:query() end

--- What is asked of this stream from now on waits for the event.
---@param event torch.cuda.Event
function Stream:wait_event(event) end

--- What is asked of this stream from now on waits for what the other was asked so far.
---@param other torch.cuda.Stream
function Stream:wait_stream(other) end

--- A mark in a stream's work.
---@class torch.cuda.Event
local Event = {}

---@param stream? torch.cuda.Stream default: the current one
function Event:record(stream) end

--- Waits until the work before the mark is done.
function Event:synchronize() end

---@return boolean # whether it is
function Event:query() end

--- Milliseconds from this mark to a later one; both made with enable_timing.
---@param later torch.cuda.Event
---@return number
function Event:elapsed_time(later) end

--- One of the device's pool of streams.
---@param device? integer default: the current one
---@return torch.cuda.Stream
function cuda.Stream(device) end

--- Calls fn(...) with `stream` as the current one, and returns its results. A tensor that another stream made must have
--- been waited for.
---
---     local side = torch.cuda.Stream()
---     side:wait_stream(torch.cuda.current_stream())
---     local y = torch.cuda.stream(side, model, x)
---     torch.cuda.current_stream():wait_stream(side)
---@param stream torch.cuda.Stream
---@param fn function
---@param ... any
---@return any ...
function cuda.stream(stream, fn, ...) end

---@param device? integer default: the current one
---@return torch.cuda.Stream
function cuda.current_stream(device) end

---@param device? integer default: the current one
---@return torch.cuda.Stream
function cuda.default_stream(device) end

---@param enable_timing? boolean default false
---@return torch.cuda.Event
function cuda.Event(enable_timing) end

--- Whether lockstep.graph is recording.
---@return boolean
function cuda.is_current_stream_capturing() end
