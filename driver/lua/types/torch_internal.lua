---@meta _
--- ATen's operators whose names start with an underscore: they may change.
--- Written by generate.lua from the dispatcher's schemas: do not edit; types_test says how to refresh it.

---@class lockstep.torch
local torch = {}

---@class torch.Tensor
local Tensor = {}

---@overload fun(self: torch.Tensor, other: torch.Scalar): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return torch.Tensor
function torch.__and__(self, other) end
Tensor.__and__ = torch.__and__
---@overload fun(self: torch.Tensor, other: torch.Scalar): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return torch.Tensor
function torch.__iand__(self, other) end
Tensor.__iand__ = torch.__iand__
---@overload fun(self: torch.Tensor, other: torch.Scalar): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return torch.Tensor
function torch.__ilshift__(self, other) end
Tensor.__ilshift__ = torch.__ilshift__
---@overload fun(self: torch.Tensor, other: torch.Scalar): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return torch.Tensor
function torch.__ior__(self, other) end
Tensor.__ior__ = torch.__ior__
---@overload fun(self: torch.Tensor, other: torch.Scalar): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return torch.Tensor
function torch.__irshift__(self, other) end
Tensor.__irshift__ = torch.__irshift__
---@overload fun(self: torch.Tensor, other: torch.Scalar): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return torch.Tensor
function torch.__ixor__(self, other) end
Tensor.__ixor__ = torch.__ixor__
---@overload fun(self: torch.Tensor, other: torch.Scalar, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.__lshift__(self, other, options) end
Tensor.__lshift__ = torch.__lshift__
---@overload fun(self: torch.Tensor, other: torch.Scalar): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return torch.Tensor
function torch.__or__(self, other) end
Tensor.__or__ = torch.__or__
---@overload fun(self: torch.Tensor, other: torch.Scalar, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.__rshift__(self, other, options) end
Tensor.__rshift__ = torch.__rshift__
---@overload fun(self: torch.Tensor, other: torch.Scalar): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return torch.Tensor
function torch.__xor__(self, other) end
Tensor.__xor__ = torch.__xor__
---@overload fun(self: torch.Tensor, options: {output_size: integer|integer[], out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param output_size integer|integer[]
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._adaptive_avg_pool2d(self, output_size, options) end
Tensor._adaptive_avg_pool2d = torch._adaptive_avg_pool2d
---@param grad_output torch.Tensor
---@param self torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._adaptive_avg_pool2d_backward(grad_output, self, options) end
Tensor._adaptive_avg_pool2d_backward = torch._adaptive_avg_pool2d_backward
---@overload fun(self: torch.Tensor, options: {output_size: integer|integer[], out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param output_size integer|integer[]
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._adaptive_avg_pool3d(self, output_size, options) end
Tensor._adaptive_avg_pool3d = torch._adaptive_avg_pool3d
---@param grad_output torch.Tensor
---@param self torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._adaptive_avg_pool3d_backward(grad_output, self, options) end
Tensor._adaptive_avg_pool3d_backward = torch._adaptive_avg_pool3d_backward
---@overload fun(self: torch.Tensor, options: {batch_dim: integer, level: integer}): torch.Tensor
---@param self torch.Tensor
---@param batch_dim integer
---@param level integer
---@return torch.Tensor
function torch._add_batch_dim(self, batch_dim, level) end
Tensor._add_batch_dim = torch._add_batch_dim
---@overload fun(self: torch.Tensor, other: torch.Scalar, alpha: torch.Scalar?, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar, alpha: torch.Scalar?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {alpha: torch.Scalar?, out: torch.Tensor?}
---@return torch.Tensor
function torch._add_relu(self, other, options) end
Tensor._add_relu = torch._add_relu
---@overload fun(self: torch.Tensor, other: torch.Scalar, alpha: torch.Scalar?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar, alpha: torch.Scalar?}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {alpha: torch.Scalar?}
---@return torch.Tensor
function torch._add_relu_(self, other, options) end
Tensor._add_relu_ = torch._add_relu_
---@param self torch.Tensor
---@param mat1 torch.Tensor
---@param mat2 torch.Tensor
---@param options? {beta: torch.Scalar?, alpha: torch.Scalar?, use_gelu: boolean?, out: torch.Tensor?}
---@return torch.Tensor
function torch._addmm_activation(self, mat1, mat2, options) end
Tensor._addmm_activation = torch._addmm_activation
---@overload fun(self: torch.Tensor, options: {dim: integer, keepdim: boolean?, out0: torch.Tensor?, out1: torch.Tensor?}): torch.Tensor, torch.Tensor
---@overload fun(self: torch.Tensor, options: {out0: torch.Tensor?, out1: torch.Tensor?}?): torch.Tensor, torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@param keepdim? boolean
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
function torch._aminmax(self, dim, keepdim, options) end
Tensor._aminmax = torch._aminmax
---@param self torch.Tensor[]
---@param found_inf torch.Tensor
---@param inv_scale torch.Tensor
---@param options? {out: torch.Tensor[]?}
---@return torch.Tensor[] self_out
---@return torch.Tensor found_inf_out
function torch._amp_foreach_non_finite_check_and_unscale(self, found_inf, inv_scale, options) end
---@param self torch.Tensor[]
---@param found_inf torch.Tensor
---@param inv_scale torch.Tensor
function torch._amp_foreach_non_finite_check_and_unscale_(self, found_inf, inv_scale) end
---@overload fun(self: torch.Tensor, growth_tracker: torch.Tensor, found_inf: torch.Tensor, options: {scale_growth_factor: number, scale_backoff_factor: number, growth_interval: integer, out: torch.Tensor?}): torch.Tensor, torch.Tensor
---@param self torch.Tensor
---@param growth_tracker torch.Tensor
---@param found_inf torch.Tensor
---@param scale_growth_factor number
---@param scale_backoff_factor number
---@param growth_interval integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor growth_tracker_out
function torch._amp_update_scale(self, growth_tracker, found_inf, scale_growth_factor, scale_backoff_factor, growth_interval, options) end
Tensor._amp_update_scale = torch._amp_update_scale
---@overload fun(self: torch.Tensor, growth_tracker: torch.Tensor, found_inf: torch.Tensor, options: {scale_growth_factor: number, scale_backoff_factor: number, growth_interval: integer}): torch.Tensor
---@param self torch.Tensor
---@param growth_tracker torch.Tensor
---@param found_inf torch.Tensor
---@param scale_growth_factor number
---@param scale_backoff_factor number
---@param growth_interval integer
---@return torch.Tensor
function torch._amp_update_scale_(self, growth_tracker, found_inf, scale_growth_factor, scale_backoff_factor, growth_interval) end
Tensor._amp_update_scale_ = torch._amp_update_scale_
---@overload fun(self: torch.Tensor, options: {assert_msg: string})
---@overload fun(self: torch.Tensor)
---@param self torch.Tensor
---@param assert_msg string
function torch._assert_async(self, assert_msg) end
Tensor._assert_async = torch._assert_async
---@param self torch.Scalar
---@param assert_msg string
function torch._assert_scalar(self, assert_msg) end
---@overload fun(a: torch.Tensor, options: {size: integer[]?, stride: integer[]?, dtype: torch.dtype?, device: string?, layout: torch.layout?})
---@param a torch.Tensor
---@param size? integer[]
---@param stride? integer[]
---@param dtype? torch.dtype
---@param options? {device: string?, layout: torch.layout?}
function torch._assert_tensor_metadata(a, size, stride, dtype, options) end
Tensor._assert_tensor_metadata = torch._assert_tensor_metadata
---@overload fun(self: torch.Tensor, options: {cuda_enabled: boolean, cpu_enabled: boolean}): torch.Tensor
---@param self torch.Tensor
---@param cuda_enabled boolean
---@param cpu_enabled boolean
---@return torch.Tensor
function torch._autocast_to_full_precision(self, cuda_enabled, cpu_enabled) end
Tensor._autocast_to_full_precision = torch._autocast_to_full_precision
---@overload fun(self: torch.Tensor, options: {cuda_enabled: boolean, cpu_enabled: boolean, cuda_dtype: torch.dtype, cpu_dtype: torch.dtype}): torch.Tensor
---@param self torch.Tensor
---@param cuda_enabled boolean
---@param cpu_enabled boolean
---@param cuda_dtype torch.dtype
---@param cpu_dtype torch.dtype
---@return torch.Tensor
function torch._autocast_to_reduced_precision(self, cuda_enabled, cpu_enabled, cuda_dtype, cpu_dtype) end
Tensor._autocast_to_reduced_precision = torch._autocast_to_reduced_precision
---@overload fun(self: torch.Tensor, inputs: torch.Tensor[], options: {gradient: torch.Tensor?, retain_graph: boolean?, create_graph: boolean?})
---@param self torch.Tensor
---@param inputs torch.Tensor[]
---@param gradient? torch.Tensor
---@param retain_graph? boolean
---@param create_graph? boolean
function torch._backward(self, inputs, gradient, retain_graph, create_graph) end
Tensor._backward = torch._backward
---@overload fun(input: torch.Tensor, weight: torch.Tensor?, bias: torch.Tensor?, running_mean: torch.Tensor?, running_var: torch.Tensor?, options: {training: boolean, momentum: number, eps: number, cudnn_enabled: boolean}): torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, integer
---@param input torch.Tensor
---@param weight torch.Tensor?
---@param bias torch.Tensor?
---@param running_mean torch.Tensor?
---@param running_var torch.Tensor?
---@param training boolean
---@param momentum number
---@param eps number
---@param cudnn_enabled boolean
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
---@return integer
function torch._batch_norm_impl_index(input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled) end
Tensor._batch_norm_impl_index = torch._batch_norm_impl_index
---@param impl_index integer
---@param input torch.Tensor
---@param grad_output torch.Tensor
---@param weight torch.Tensor?
---@param running_mean torch.Tensor?
---@param running_var torch.Tensor?
---@param save_mean torch.Tensor?
---@param save_var_transform torch.Tensor?
---@param train boolean
---@param eps number
---@param output_mask boolean[]
---@param reservedSpace torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch._batch_norm_impl_index_backward(impl_index, input, grad_output, weight, running_mean, running_var, save_mean, save_var_transform, train, eps, output_mask, reservedSpace) end
---@overload fun(input: torch.Tensor, weight: torch.Tensor?, bias: torch.Tensor?, running_mean: torch.Tensor?, running_var: torch.Tensor?, options: {momentum: number, eps: number, out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?, out3: torch.Tensor?}): torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor
---@param input torch.Tensor
---@param weight torch.Tensor?
---@param bias torch.Tensor?
---@param running_mean torch.Tensor?
---@param running_var torch.Tensor?
---@param momentum number
---@param eps number
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?, out3: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch._batch_norm_no_update(input, weight, bias, running_mean, running_var, momentum, eps, options) end
Tensor._batch_norm_no_update = torch._batch_norm_no_update
---@overload fun(input: torch.Tensor, weight: torch.Tensor?, bias: torch.Tensor?, running_mean: torch.Tensor, running_var: torch.Tensor, options: {momentum: number, eps: number, out: torch.Tensor?, save_mean: torch.Tensor?, save_invstd: torch.Tensor?, reserve: torch.Tensor?}): torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor
---@param input torch.Tensor
---@param weight torch.Tensor?
---@param bias torch.Tensor?
---@param running_mean torch.Tensor
---@param running_var torch.Tensor
---@param momentum number
---@param eps number
---@param options? {out: torch.Tensor?, save_mean: torch.Tensor?, save_invstd: torch.Tensor?, reserve: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch._batch_norm_with_update(input, weight, bias, running_mean, running_var, momentum, eps, options) end
Tensor._batch_norm_with_update = torch._batch_norm_with_update
---@overload fun(input: torch.Tensor, weight: torch.Tensor?, bias: torch.Tensor?, running_mean: torch.Tensor, running_var: torch.Tensor, options: {momentum: number, eps: number}): torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor
---@param input torch.Tensor
---@param weight torch.Tensor?
---@param bias torch.Tensor?
---@param running_mean torch.Tensor
---@param running_var torch.Tensor
---@param momentum number
---@param eps number
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor running_mean_out
---@return torch.Tensor running_var_out
function torch._batch_norm_with_update_functional(input, weight, bias, running_mean, running_var, momentum, eps) end
Tensor._batch_norm_with_update_functional = torch._batch_norm_with_update_functional
---@overload fun(self: torch.Tensor, options: {non_blocking: boolean?}): torch.Tensor
---@param self torch.Tensor
---@param non_blocking? boolean
---@return torch.Tensor
function torch._cast_Byte(self, non_blocking) end
Tensor._cast_Byte = torch._cast_Byte
---@overload fun(self: torch.Tensor, options: {non_blocking: boolean?}): torch.Tensor
---@param self torch.Tensor
---@param non_blocking? boolean
---@return torch.Tensor
function torch._cast_Char(self, non_blocking) end
Tensor._cast_Char = torch._cast_Char
---@overload fun(self: torch.Tensor, options: {non_blocking: boolean?}): torch.Tensor
---@param self torch.Tensor
---@param non_blocking? boolean
---@return torch.Tensor
function torch._cast_Double(self, non_blocking) end
Tensor._cast_Double = torch._cast_Double
---@overload fun(self: torch.Tensor, options: {non_blocking: boolean?}): torch.Tensor
---@param self torch.Tensor
---@param non_blocking? boolean
---@return torch.Tensor
function torch._cast_Float(self, non_blocking) end
Tensor._cast_Float = torch._cast_Float
---@overload fun(self: torch.Tensor, options: {non_blocking: boolean?}): torch.Tensor
---@param self torch.Tensor
---@param non_blocking? boolean
---@return torch.Tensor
function torch._cast_Half(self, non_blocking) end
Tensor._cast_Half = torch._cast_Half
---@overload fun(self: torch.Tensor, options: {non_blocking: boolean?}): torch.Tensor
---@param self torch.Tensor
---@param non_blocking? boolean
---@return torch.Tensor
function torch._cast_Int(self, non_blocking) end
Tensor._cast_Int = torch._cast_Int
---@overload fun(self: torch.Tensor, options: {non_blocking: boolean?}): torch.Tensor
---@param self torch.Tensor
---@param non_blocking? boolean
---@return torch.Tensor
function torch._cast_Long(self, non_blocking) end
Tensor._cast_Long = torch._cast_Long
---@overload fun(self: torch.Tensor, options: {non_blocking: boolean?}): torch.Tensor
---@param self torch.Tensor
---@param non_blocking? boolean
---@return torch.Tensor
function torch._cast_Short(self, non_blocking) end
Tensor._cast_Short = torch._cast_Short
---@overload fun(grad: torch.Tensor, x1: torch.Tensor, x2: torch.Tensor, options: {p: number, cdist: torch.Tensor, out: torch.Tensor?}): torch.Tensor
---@param grad torch.Tensor
---@param x1 torch.Tensor
---@param x2 torch.Tensor
---@param p number
---@param cdist torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._cdist_backward(grad, x1, x2, p, cdist, options) end
Tensor._cdist_backward = torch._cdist_backward
---@overload fun(x1: torch.Tensor, x2: torch.Tensor, options: {p: number, compute_mode: integer?, out: torch.Tensor?}): torch.Tensor
---@param x1 torch.Tensor
---@param x2 torch.Tensor
---@param p number
---@param compute_mode integer?
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._cdist_forward(x1, x2, p, compute_mode, options) end
Tensor._cdist_forward = torch._cdist_forward
---@overload fun(self: torch.Tensor, A: torch.Tensor, options: {upper: boolean, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param A torch.Tensor
---@param upper boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._cholesky_solve_helper(self, A, upper, options) end
Tensor._cholesky_solve_helper = torch._cholesky_solve_helper
---@overload fun(self: torch.Tensor, options: {reduce_range: boolean?}): number, integer
---@param self torch.Tensor
---@param reduce_range? boolean
---@return number
---@return integer
function torch._choose_qparams_per_tensor(self, reduce_range) end
Tensor._choose_qparams_per_tensor = torch._choose_qparams_per_tensor
---@overload fun(tensors: torch.Tensor[], options: {dim: integer, num_chunks: integer, out: torch.Tensor?}): torch.Tensor
---@param tensors torch.Tensor[]
---@param dim integer
---@param num_chunks integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._chunk_cat(tensors, dim, num_chunks, options) end
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._coalesce(self, options) end
Tensor._coalesce = torch._coalesce
---@overload fun(self: torch.Tensor, options: {coalesced: boolean, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param coalesced boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._coalesced(self, coalesced, options) end
Tensor._coalesced = torch._coalesced
---@overload fun(self: torch.Tensor, options: {coalesced: boolean}): torch.Tensor
---@param self torch.Tensor
---@param coalesced boolean
---@return torch.Tensor
function torch._coalesced_(self, coalesced) end
Tensor._coalesced_ = torch._coalesced_
---@param input torch.Tensor
---@param coefficients torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._compute_linear_combination(input, coefficients, options) end
Tensor._compute_linear_combination = torch._compute_linear_combination
---@param self torch.Tensor
---@return torch.Tensor
function torch._conj(self) end
Tensor._conj = torch._conj
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._conj_copy(self, options) end
Tensor._conj_copy = torch._conj_copy
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._conj_physical(self, options) end
Tensor._conj_physical = torch._conj_physical
---@overload fun(self: torch.Tensor, weight: torch.Tensor, options: {kernel_size: integer|integer[], bias: torch.Tensor?, stride: integer|integer[], padding: integer|integer[], dilation: integer|integer[], out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param weight torch.Tensor
---@param kernel_size integer|integer[]
---@param bias torch.Tensor?
---@param stride integer|integer[]
---@param padding integer|integer[]
---@param dilation integer|integer[]
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._conv_depthwise2d(self, weight, kernel_size, bias, stride, padding, dilation, options) end
Tensor._conv_depthwise2d = torch._conv_depthwise2d
---@overload fun(self: torch.Tensor, options: {size: integer, out_int32: boolean?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param size integer
---@param options? {out_int32: boolean?, out: torch.Tensor?}
---@return torch.Tensor
function torch._convert_indices_from_coo_to_csr(self, size, options) end
Tensor._convert_indices_from_coo_to_csr = torch._convert_indices_from_coo_to_csr
---@param crow_indices torch.Tensor
---@param col_indices torch.Tensor
---@param options? {out_int32: boolean?, transpose: boolean?, out: torch.Tensor?}
---@return torch.Tensor
function torch._convert_indices_from_csr_to_coo(crow_indices, col_indices, options) end
Tensor._convert_indices_from_csr_to_coo = torch._convert_indices_from_csr_to_coo
---@overload fun(self: torch.Tensor, options: {innerKTiles: integer}): torch.Tensor
---@param self torch.Tensor
---@param innerKTiles integer
---@return torch.Tensor
function torch._convert_weight_to_int4pack(self, innerKTiles) end
Tensor._convert_weight_to_int4pack = torch._convert_weight_to_int4pack
---@overload fun(self: torch.Tensor, options: {innerKTiles: integer}): torch.Tensor
---@param self torch.Tensor
---@param innerKTiles integer
---@return torch.Tensor
function torch._convert_weight_to_int4pack_for_cpu(self, innerKTiles) end
Tensor._convert_weight_to_int4pack_for_cpu = torch._convert_weight_to_int4pack_for_cpu
---@overload fun(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor?, options: {stride: integer[], padding: integer[], dilation: integer[], transposed: boolean, output_padding: integer[], groups: integer, benchmark: boolean, deterministic: boolean, cudnn_enabled: boolean, allow_tf32: boolean, out: torch.Tensor?}): torch.Tensor
---@overload fun(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor?, stride: integer[], padding: integer[], dilation: integer[], transposed: boolean, output_padding: integer[], groups: integer, benchmark: boolean, deterministic: boolean, cudnn_enabled: boolean): torch.Tensor
---@overload fun(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor?, options: {stride: integer[], padding: integer[], dilation: integer[], transposed: boolean, output_padding: integer[], groups: integer, benchmark: boolean, deterministic: boolean, cudnn_enabled: boolean}): torch.Tensor
---@param input torch.Tensor
---@param weight torch.Tensor
---@param bias torch.Tensor?
---@param stride integer[]
---@param padding integer[]
---@param dilation integer[]
---@param transposed boolean
---@param output_padding integer[]
---@param groups integer
---@param benchmark boolean
---@param deterministic boolean
---@param cudnn_enabled boolean
---@param allow_tf32 boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups, benchmark, deterministic, cudnn_enabled, allow_tf32, options) end
Tensor._convolution = torch._convolution
---@overload fun(ggI: torch.Tensor?, ggW: torch.Tensor?, ggb: torch.Tensor?, gO: torch.Tensor, weight: torch.Tensor, self: torch.Tensor|number, options: {stride: integer[], padding: integer[], dilation: integer[], transposed: boolean, output_padding: integer[], groups: integer, output_mask: boolean[]}): torch.Tensor, torch.Tensor, torch.Tensor
---@param ggI torch.Tensor?
---@param ggW torch.Tensor?
---@param ggb torch.Tensor?
---@param gO torch.Tensor
---@param weight torch.Tensor
---@param self torch.Tensor|number
---@param stride integer[]
---@param padding integer[]
---@param dilation integer[]
---@param transposed boolean
---@param output_padding integer[]
---@param groups integer
---@param output_mask boolean[]
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch._convolution_double_backward(ggI, ggW, ggb, gO, weight, self, stride, padding, dilation, transposed, output_padding, groups, output_mask) end
Tensor._convolution_double_backward = torch._convolution_double_backward
---@overload fun(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor?, options: {stride: integer[], padding: string, dilation: integer[], groups: integer}): torch.Tensor
---@param input torch.Tensor
---@param weight torch.Tensor
---@param bias torch.Tensor?
---@param stride integer[]
---@param padding string
---@param dilation integer[]
---@param groups integer
---@return torch.Tensor
function torch._convolution_mode(input, weight, bias, stride, padding, dilation, groups) end
Tensor._convolution_mode = torch._convolution_mode
---@overload fun(self: torch.Tensor, dst: torch.Tensor, options: {non_blocking: boolean?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param dst torch.Tensor
---@param non_blocking? boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._copy_from(self, dst, non_blocking, options) end
Tensor._copy_from = torch._copy_from
---@param self torch.Tensor
---@param dst torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._copy_from_and_resize(self, dst, options) end
Tensor._copy_from_and_resize = torch._copy_from_and_resize
---@param input torch.Tensor
---@return torch.Tensor
function torch._cslt_compress(input) end
Tensor._cslt_compress = torch._cslt_compress
---@overload fun(compressed_A: torch.Tensor, dense_B: torch.Tensor, options: {bias: torch.Tensor?, alpha: torch.Tensor?, out_dtype: torch.dtype?, transpose_result: boolean?, alg_id: integer?, split_k: integer?, split_k_mode: integer?}): torch.Tensor
---@param compressed_A torch.Tensor
---@param dense_B torch.Tensor
---@param bias? torch.Tensor
---@param alpha? torch.Tensor
---@param out_dtype? torch.dtype
---@param transpose_result? boolean
---@param alg_id? integer
---@param split_k? integer
---@param split_k_mode? integer
---@return torch.Tensor
function torch._cslt_sparse_mm(compressed_A, dense_B, bias, alpha, out_dtype, transpose_result, alg_id, split_k, split_k_mode) end
Tensor._cslt_sparse_mm = torch._cslt_sparse_mm
---@overload fun(compressed_A: torch.Tensor, dense_B: torch.Tensor, options: {bias: torch.Tensor?, alpha: torch.Tensor?, out_dtype: torch.dtype?, transpose_result: boolean?}): integer
---@param compressed_A torch.Tensor
---@param dense_B torch.Tensor
---@param bias? torch.Tensor
---@param alpha? torch.Tensor
---@param out_dtype? torch.dtype
---@param transpose_result? boolean
---@return integer
function torch._cslt_sparse_mm_search(compressed_A, dense_B, bias, alpha, out_dtype, transpose_result) end
Tensor._cslt_sparse_mm_search = torch._cslt_sparse_mm_search
---@overload fun(log_probs: torch.Tensor, targets: torch.Tensor, input_lengths: torch.Tensor, target_lengths: torch.Tensor, options: {blank: integer?, zero_infinity: boolean?, out0: torch.Tensor?, out1: torch.Tensor?}): torch.Tensor, torch.Tensor
---@overload fun(log_probs: torch.Tensor, targets: torch.Tensor, input_lengths: integer[], target_lengths: integer[], blank: integer?, zero_infinity: boolean?, options: {out0: torch.Tensor?, out1: torch.Tensor?}?): torch.Tensor, torch.Tensor
---@overload fun(log_probs: torch.Tensor, targets: torch.Tensor, options: {input_lengths: integer[], target_lengths: integer[], blank: integer?, zero_infinity: boolean?, out0: torch.Tensor?, out1: torch.Tensor?}): torch.Tensor, torch.Tensor
---@param log_probs torch.Tensor
---@param targets torch.Tensor
---@param input_lengths torch.Tensor
---@param target_lengths torch.Tensor
---@param blank? integer
---@param zero_infinity? boolean
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
function torch._ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity, options) end
Tensor._ctc_loss = torch._ctc_loss
---@overload fun(grad: torch.Tensor, log_probs: torch.Tensor, targets: torch.Tensor, input_lengths: torch.Tensor, target_lengths: torch.Tensor, neg_log_likelihood: torch.Tensor, log_alpha: torch.Tensor, options: {blank: integer, zero_infinity: boolean?}): torch.Tensor
---@overload fun(grad: torch.Tensor, log_probs: torch.Tensor, targets: torch.Tensor, input_lengths: integer[], target_lengths: integer[], neg_log_likelihood: torch.Tensor, log_alpha: torch.Tensor, blank: integer, zero_infinity: boolean?, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(grad: torch.Tensor, log_probs: torch.Tensor, targets: torch.Tensor, options: {input_lengths: integer[], target_lengths: integer[], neg_log_likelihood: torch.Tensor, log_alpha: torch.Tensor, blank: integer, zero_infinity: boolean?, out: torch.Tensor?}): torch.Tensor
---@param grad torch.Tensor
---@param log_probs torch.Tensor
---@param targets torch.Tensor
---@param input_lengths torch.Tensor
---@param target_lengths torch.Tensor
---@param neg_log_likelihood torch.Tensor
---@param log_alpha torch.Tensor
---@param blank integer
---@param zero_infinity? boolean
---@return torch.Tensor
function torch._ctc_loss_backward(grad, log_probs, targets, input_lengths, target_lengths, neg_log_likelihood, log_alpha, blank, zero_infinity) end
Tensor._ctc_loss_backward = torch._ctc_loss_backward
---@overload fun(grad_out: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, out: torch.Tensor, logsumexp: torch.Tensor, philox_seed: torch.Tensor, philox_offset: torch.Tensor, attn_bias: torch.Tensor, cum_seq_q: torch.Tensor, cum_seq_k: torch.Tensor, options: {max_q: integer, max_k: integer, dropout_p: number, is_causal: boolean, scale: number?}): torch.Tensor, torch.Tensor, torch.Tensor
---@param grad_out torch.Tensor
---@param query torch.Tensor
---@param key torch.Tensor
---@param value torch.Tensor
---@param out torch.Tensor
---@param logsumexp torch.Tensor
---@param philox_seed torch.Tensor
---@param philox_offset torch.Tensor
---@param attn_bias torch.Tensor
---@param cum_seq_q torch.Tensor
---@param cum_seq_k torch.Tensor
---@param max_q integer
---@param max_k integer
---@param dropout_p number
---@param is_causal boolean
---@param options? {scale: number?}
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch._cudnn_attention_backward(grad_out, query, key, value, out, logsumexp, philox_seed, philox_offset, attn_bias, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, options) end
Tensor._cudnn_attention_backward = torch._cudnn_attention_backward
---@overload fun(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_bias: torch.Tensor?, cum_seq_q: torch.Tensor?, cum_seq_k: torch.Tensor?, options: {max_q: integer, max_k: integer, compute_log_sumexp: boolean, dropout_p: number?, is_causal: boolean?, return_debug_mask: boolean?, scale: number?}): torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, integer, integer, torch.Tensor, torch.Tensor, torch.Tensor
---@param query torch.Tensor
---@param key torch.Tensor
---@param value torch.Tensor
---@param attn_bias torch.Tensor?
---@param cum_seq_q torch.Tensor?
---@param cum_seq_k torch.Tensor?
---@param max_q integer
---@param max_k integer
---@param compute_log_sumexp boolean
---@param dropout_p? number
---@param is_causal? boolean
---@param return_debug_mask? boolean
---@param options? {scale: number?}
---@return torch.Tensor output
---@return torch.Tensor logsumexp
---@return torch.Tensor cum_seq_q
---@return torch.Tensor cum_seq_k
---@return integer max_q
---@return integer max_k
---@return torch.Tensor philox_seed
---@return torch.Tensor philox_offset
---@return torch.Tensor debug_attn_mask
function torch._cudnn_attention_forward(query, key, value, attn_bias, cum_seq_q, cum_seq_k, max_q, max_k, compute_log_sumexp, dropout_p, is_causal, return_debug_mask, options) end
Tensor._cudnn_attention_forward = torch._cudnn_attention_forward
---@overload fun(log_probs: torch.Tensor, targets: torch.Tensor, input_lengths: torch.Tensor, target_lengths: torch.Tensor, options: {blank: integer, deterministic: boolean, zero_infinity: boolean}): torch.Tensor, torch.Tensor
---@overload fun(log_probs: torch.Tensor, targets: torch.Tensor, input_lengths: integer[], target_lengths: integer[], blank: integer, deterministic: boolean, zero_infinity: boolean, options: {out0: torch.Tensor?, out1: torch.Tensor?}?): torch.Tensor, torch.Tensor
---@overload fun(log_probs: torch.Tensor, targets: torch.Tensor, options: {input_lengths: integer[], target_lengths: integer[], blank: integer, deterministic: boolean, zero_infinity: boolean, out0: torch.Tensor?, out1: torch.Tensor?}): torch.Tensor, torch.Tensor
---@param log_probs torch.Tensor
---@param targets torch.Tensor
---@param input_lengths torch.Tensor
---@param target_lengths torch.Tensor
---@param blank integer
---@param deterministic boolean
---@param zero_infinity boolean
---@return torch.Tensor
---@return torch.Tensor
function torch._cudnn_ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, deterministic, zero_infinity) end
Tensor._cudnn_ctc_loss = torch._cudnn_ctc_loss
---@overload fun(dropout: number, train: boolean, dropout_seed: integer, options: {out: torch.Tensor}): torch.Tensor
---@param dropout number
---@param train boolean
---@param dropout_seed integer
---@param options? torch.FactoryOptions
---@return torch.Tensor
function torch._cudnn_init_dropout_state(dropout, train, dropout_seed, options) end
---@overload fun(input: torch.Tensor, weight: torch.Tensor[], options: {weight_stride0: integer, weight_buf: torch.Tensor?, hx: torch.Tensor, cx: torch.Tensor?, mode: integer, hidden_size: integer, proj_size: integer, num_layers: integer, batch_first: boolean, dropout: number, train: boolean, bidirectional: boolean, batch_sizes: integer[], dropout_state: torch.Tensor?, out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?, out3: torch.Tensor?, out4: torch.Tensor?}): torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor
---@param input torch.Tensor
---@param weight torch.Tensor[]
---@param weight_stride0 integer
---@param weight_buf torch.Tensor?
---@param hx torch.Tensor
---@param cx torch.Tensor?
---@param mode integer
---@param hidden_size integer
---@param proj_size integer
---@param num_layers integer
---@param batch_first boolean
---@param dropout number
---@param train boolean
---@param bidirectional boolean
---@param batch_sizes integer[]
---@param dropout_state torch.Tensor?
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?, out3: torch.Tensor?, out4: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch._cudnn_rnn(input, weight, weight_stride0, weight_buf, hx, cx, mode, hidden_size, proj_size, num_layers, batch_first, dropout, train, bidirectional, batch_sizes, dropout_state, options) end
Tensor._cudnn_rnn = torch._cudnn_rnn
---@overload fun(input: torch.Tensor, weight: torch.Tensor[], options: {weight_stride0: integer, weight_buf: torch.Tensor, hx: torch.Tensor, cx: torch.Tensor?, output: torch.Tensor, grad_output: torch.Tensor?, grad_hy: torch.Tensor?, grad_cy: torch.Tensor?, mode: integer, hidden_size: integer, proj_size: integer, num_layers: integer, batch_first: boolean, dropout: number, train: boolean, bidirectional: boolean, batch_sizes: integer[], dropout_state: torch.Tensor?, reserve: torch.Tensor, output_mask: boolean[], out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?, out3: torch.Tensor[]?}): torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor[]
---@param input torch.Tensor
---@param weight torch.Tensor[]
---@param weight_stride0 integer
---@param weight_buf torch.Tensor
---@param hx torch.Tensor
---@param cx torch.Tensor?
---@param output torch.Tensor
---@param grad_output torch.Tensor?
---@param grad_hy torch.Tensor?
---@param grad_cy torch.Tensor?
---@param mode integer
---@param hidden_size integer
---@param proj_size integer
---@param num_layers integer
---@param batch_first boolean
---@param dropout number
---@param train boolean
---@param bidirectional boolean
---@param batch_sizes integer[]
---@param dropout_state torch.Tensor?
---@param reserve torch.Tensor
---@param output_mask boolean[]
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?, out3: torch.Tensor[]?}
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor[]
function torch._cudnn_rnn_backward(input, weight, weight_stride0, weight_buf, hx, cx, output, grad_output, grad_hy, grad_cy, mode, hidden_size, proj_size, num_layers, batch_first, dropout, train, bidirectional, batch_sizes, dropout_state, reserve, output_mask, options) end
Tensor._cudnn_rnn_backward = torch._cudnn_rnn_backward
---@overload fun(weight_arr: torch.Tensor[], options: {weight_stride0: integer, input_size: integer, mode: integer, hidden_size: integer, proj_size: integer, num_layers: integer, batch_first: boolean, bidirectional: boolean, out: torch.Tensor?}): torch.Tensor
---@param weight_arr torch.Tensor[]
---@param weight_stride0 integer
---@param input_size integer
---@param mode integer
---@param hidden_size integer
---@param proj_size integer
---@param num_layers integer
---@param batch_first boolean
---@param bidirectional boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._cudnn_rnn_flatten_weight(weight_arr, weight_stride0, input_size, mode, hidden_size, proj_size, num_layers, batch_first, bidirectional, options) end
---@param device_index integer
function torch._cufft_clear_plan_cache(device_index) end
---@param device_index integer
---@return integer
function torch._cufft_get_plan_cache_max_size(device_index) end
---@param device_index integer
---@return integer
function torch._cufft_get_plan_cache_size(device_index) end
---@param device_index integer
---@param max_size integer
function torch._cufft_set_plan_cache_max_size(device_index, max_size) end
---@overload fun(self: torch.Tensor, values: torch.Tensor, indices: torch.Tensor, options: {dim: integer})
---@param self torch.Tensor
---@param values torch.Tensor
---@param indices torch.Tensor
---@param dim integer
function torch._cummax_helper(self, values, indices, dim) end
Tensor._cummax_helper = torch._cummax_helper
---@overload fun(self: torch.Tensor, values: torch.Tensor, indices: torch.Tensor, options: {dim: integer})
---@param self torch.Tensor
---@param values torch.Tensor
---@param indices torch.Tensor
---@param dim integer
function torch._cummin_helper(self, values, indices, dim) end
Tensor._cummin_helper = torch._cummin_helper
---@param self torch.Tensor
---@return integer
function torch._debug_has_internal_overlap(self) end
Tensor._debug_has_internal_overlap = torch._debug_has_internal_overlap
---@param self torch.Tensor
---@return integer
function torch._dimI(self) end
Tensor._dimI = torch._dimI
---@param self torch.Tensor
---@return integer
function torch._dimV(self) end
Tensor._dimV = torch._dimV
---@overload fun(like: torch.Tensor, options: {dim: integer}): torch.Tensor
---@param like torch.Tensor
---@param dim integer
---@return torch.Tensor
function torch._dim_arange(like, dim) end
Tensor._dim_arange = torch._dim_arange
---@param x torch.Tensor
---@param alpha torch.Tensor
---@param total torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._dirichlet_grad(x, alpha, total, options) end
Tensor._dirichlet_grad = torch._dirichlet_grad
---@overload fun(inp: torch.Tensor, packed_weights: torch.Tensor, options: {block_size: integer, in_features: integer, out_features: integer}): torch.Tensor
---@param inp torch.Tensor
---@param packed_weights torch.Tensor
---@param block_size integer
---@param in_features integer
---@param out_features integer
---@return torch.Tensor
function torch._dyn_quant_matmul_4bit(inp, packed_weights, block_size, in_features, out_features) end
Tensor._dyn_quant_matmul_4bit = torch._dyn_quant_matmul_4bit
---@overload fun(weights: torch.Tensor, scales_zeros: torch.Tensor, bias: torch.Tensor?, options: {block_size: integer, in_features: integer, out_features: integer}): torch.Tensor
---@param weights torch.Tensor
---@param scales_zeros torch.Tensor
---@param bias torch.Tensor?
---@param block_size integer
---@param in_features integer
---@param out_features integer
---@return torch.Tensor
function torch._dyn_quant_pack_4bit_weight(weights, scales_zeros, bias, block_size, in_features, out_features) end
Tensor._dyn_quant_pack_4bit_weight = torch._dyn_quant_pack_4bit_weight
---@overload fun(grad_out_: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor?, out: torch.Tensor, cu_seqlens_q: torch.Tensor?, cu_seqlens_k: torch.Tensor?, options: {max_seqlen_q: integer, max_seqlen_k: integer, logsumexp: torch.Tensor, dropout_p: number, philox_seed: torch.Tensor, philox_offset: torch.Tensor, custom_mask_type: integer, bias_requires_grad: boolean, scale: number?, num_splits_key: integer?, window_size: integer?, shared_storage_dqdkdv: boolean?}): torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor
---@param grad_out_ torch.Tensor
---@param query torch.Tensor
---@param key torch.Tensor
---@param value torch.Tensor
---@param bias torch.Tensor?
---@param out torch.Tensor
---@param cu_seqlens_q torch.Tensor?
---@param cu_seqlens_k torch.Tensor?
---@param max_seqlen_q integer
---@param max_seqlen_k integer
---@param logsumexp torch.Tensor
---@param dropout_p number
---@param philox_seed torch.Tensor
---@param philox_offset torch.Tensor
---@param custom_mask_type integer
---@param bias_requires_grad boolean
---@param options? {scale: number?, num_splits_key: integer?, window_size: integer?, shared_storage_dqdkdv: boolean?}
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch._efficient_attention_backward(grad_out_, query, key, value, bias, out, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, logsumexp, dropout_p, philox_seed, philox_offset, custom_mask_type, bias_requires_grad, options) end
Tensor._efficient_attention_backward = torch._efficient_attention_backward
---@overload fun(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: torch.Tensor?, cu_seqlens_q: torch.Tensor?, cu_seqlens_k: torch.Tensor?, options: {max_seqlen_q: integer?, max_seqlen_k: integer?, dropout_p: number, custom_mask_type: integer, compute_log_sumexp: boolean?, scale: number?, seqlen_k: torch.Tensor?, window_size: integer?}): torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, integer, integer
---@param query torch.Tensor
---@param key torch.Tensor
---@param value torch.Tensor
---@param bias torch.Tensor?
---@param cu_seqlens_q torch.Tensor?
---@param cu_seqlens_k torch.Tensor?
---@param max_seqlen_q integer?
---@param max_seqlen_k integer?
---@param dropout_p number
---@param custom_mask_type integer
---@param compute_log_sumexp? boolean
---@param options? {scale: number?, seqlen_k: torch.Tensor?, window_size: integer?}
---@return torch.Tensor output
---@return torch.Tensor logsumexp
---@return torch.Tensor philox_seed
---@return torch.Tensor philox_offset
---@return integer max_seqlen_batch_q
---@return integer max_seqlen_batch_k
function torch._efficient_attention_forward(query, key, value, bias, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p, custom_mask_type, compute_log_sumexp, options) end
Tensor._efficient_attention_forward = torch._efficient_attention_forward
---@overload fun(...: integer|table): torch.Tensor
---@overload fun(size: integer[], options: {out: torch.Tensor}): torch.Tensor
---@param size integer[]
---@param options? torch.FactoryOptions
---@return torch.Tensor
function torch._efficientzerotensor(size, options) end
---@overload fun(weight: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, options: {scale_grad_by_freq: boolean?, mode: integer?, sparse: boolean?, per_sample_weights: torch.Tensor?, include_last_offset: boolean?, padding_idx: integer?, out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?, out3: torch.Tensor?}): torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor
---@param weight torch.Tensor
---@param indices torch.Tensor
---@param offsets torch.Tensor
---@param scale_grad_by_freq? boolean
---@param mode? integer
---@param sparse? boolean
---@param per_sample_weights? torch.Tensor
---@param include_last_offset? boolean
---@param padding_idx? integer
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?, out3: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch._embedding_bag(weight, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights, include_last_offset, padding_idx, options) end
Tensor._embedding_bag = torch._embedding_bag
---@overload fun(grad: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, offset2bag: torch.Tensor, bag_size: torch.Tensor, maximum_indices: torch.Tensor, options: {num_weights: integer, scale_grad_by_freq: boolean, mode: integer, sparse: boolean, per_sample_weights: torch.Tensor?, padding_idx: integer?}): torch.Tensor
---@param grad torch.Tensor
---@param indices torch.Tensor
---@param offsets torch.Tensor
---@param offset2bag torch.Tensor
---@param bag_size torch.Tensor
---@param maximum_indices torch.Tensor
---@param num_weights integer
---@param scale_grad_by_freq boolean
---@param mode integer
---@param sparse boolean
---@param per_sample_weights torch.Tensor?
---@param padding_idx? integer
---@return torch.Tensor
function torch._embedding_bag_backward(grad, indices, offsets, offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode, sparse, per_sample_weights, padding_idx) end
Tensor._embedding_bag_backward = torch._embedding_bag_backward
---@overload fun(grad: torch.Tensor, indices: torch.Tensor, offset2bag: torch.Tensor, bag_size: torch.Tensor, maximum_indices: torch.Tensor, options: {num_weights: integer, scale_grad_by_freq: boolean, mode: integer, per_sample_weights: torch.Tensor?, padding_idx: integer?, out: torch.Tensor?}): torch.Tensor
---@param grad torch.Tensor
---@param indices torch.Tensor
---@param offset2bag torch.Tensor
---@param bag_size torch.Tensor
---@param maximum_indices torch.Tensor
---@param num_weights integer
---@param scale_grad_by_freq boolean
---@param mode integer
---@param per_sample_weights torch.Tensor?
---@param padding_idx? integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._embedding_bag_dense_backward(grad, indices, offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode, per_sample_weights, padding_idx, options) end
Tensor._embedding_bag_dense_backward = torch._embedding_bag_dense_backward
---@overload fun(weight: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, options: {scale_grad_by_freq: boolean?, mode: integer?, sparse: boolean?, per_sample_weights: torch.Tensor?, include_last_offset: boolean?, padding_idx: integer?, out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?, out3: torch.Tensor?}): torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor
---@param weight torch.Tensor
---@param indices torch.Tensor
---@param offsets torch.Tensor
---@param scale_grad_by_freq? boolean
---@param mode? integer
---@param sparse? boolean
---@param per_sample_weights? torch.Tensor
---@param include_last_offset? boolean
---@param padding_idx? integer
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?, out3: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch._embedding_bag_forward_only(weight, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights, include_last_offset, padding_idx, options) end
Tensor._embedding_bag_forward_only = torch._embedding_bag_forward_only
---@overload fun(grad: torch.Tensor, weight: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, offset2bag: torch.Tensor, options: {mode: integer, padding_idx: integer?, out: torch.Tensor?}): torch.Tensor
---@param grad torch.Tensor
---@param weight torch.Tensor
---@param indices torch.Tensor
---@param offsets torch.Tensor
---@param offset2bag torch.Tensor
---@param mode integer
---@param padding_idx? integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._embedding_bag_per_sample_weights_backward(grad, weight, indices, offsets, offset2bag, mode, padding_idx, options) end
Tensor._embedding_bag_per_sample_weights_backward = torch._embedding_bag_per_sample_weights_backward
---@overload fun(grad: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, offset2bag: torch.Tensor, bag_size: torch.Tensor, options: {num_weights: integer, scale_grad_by_freq: boolean, mode: integer, per_sample_weights: torch.Tensor?, padding_idx: integer?}): torch.Tensor
---@param grad torch.Tensor
---@param indices torch.Tensor
---@param offsets torch.Tensor
---@param offset2bag torch.Tensor
---@param bag_size torch.Tensor
---@param num_weights integer
---@param scale_grad_by_freq boolean
---@param mode integer
---@param per_sample_weights torch.Tensor?
---@param padding_idx? integer
---@return torch.Tensor
function torch._embedding_bag_sparse_backward(grad, indices, offsets, offset2bag, bag_size, num_weights, scale_grad_by_freq, mode, per_sample_weights, padding_idx) end
Tensor._embedding_bag_sparse_backward = torch._embedding_bag_sparse_backward
---@overload fun(...: integer|table): torch.Tensor
---@overload fun(size: integer[], options: {scale: number?, zero_point: integer?, memory_format: torch.memory_format?, out: torch.Tensor}): torch.Tensor
---@param size integer[]
---@param options? {dtype: torch.dtype?, layout: torch.layout?, device: string?, pin_memory: boolean?, requires_grad: boolean?, scale: number?, zero_point: integer?, memory_format: torch.memory_format?}
---@return torch.Tensor
function torch._empty_affine_quantized(size, options) end
---@overload fun(...: integer|table): torch.Tensor
---@overload fun(size: integer[], options: {scales: torch.Tensor, zero_points: torch.Tensor, axis: integer, memory_format: torch.memory_format?, out: torch.Tensor}): torch.Tensor
---@param size integer[]
---@param options {scales: torch.Tensor, zero_points: torch.Tensor, axis: integer, dtype: torch.dtype?, layout: torch.layout?, device: string?, pin_memory: boolean?, requires_grad: boolean?, memory_format: torch.memory_format?}
---@return torch.Tensor
function torch._empty_per_channel_affine_quantized(size, options) end
---@param x1 torch.Tensor
---@param x2 torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._euclidean_dist(x1, x2, options) end
Tensor._euclidean_dist = torch._euclidean_dist
---@overload fun(self: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, options: {axis: integer, quant_min: integer, quant_max: integer, grad_factor: number?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param scale torch.Tensor
---@param zero_point torch.Tensor
---@param axis integer
---@param quant_min integer
---@param quant_max integer
---@param grad_factor? number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._fake_quantize_learnable_per_channel_affine(self, scale, zero_point, axis, quant_min, quant_max, grad_factor, options) end
Tensor._fake_quantize_learnable_per_channel_affine = torch._fake_quantize_learnable_per_channel_affine
---@overload fun(grad: torch.Tensor, self: torch.Tensor|number, scale: torch.Tensor, zero_point: torch.Tensor, options: {axis: integer, quant_min: integer, quant_max: integer, grad_factor: number?}): torch.Tensor, torch.Tensor, torch.Tensor
---@param grad torch.Tensor
---@param self torch.Tensor|number
---@param scale torch.Tensor
---@param zero_point torch.Tensor
---@param axis integer
---@param quant_min integer
---@param quant_max integer
---@param grad_factor? number
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch._fake_quantize_learnable_per_channel_affine_backward(grad, self, scale, zero_point, axis, quant_min, quant_max, grad_factor) end
Tensor._fake_quantize_learnable_per_channel_affine_backward = torch._fake_quantize_learnable_per_channel_affine_backward
---@overload fun(self: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, options: {quant_min: integer, quant_max: integer, grad_factor: number?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param scale torch.Tensor
---@param zero_point torch.Tensor
---@param quant_min integer
---@param quant_max integer
---@param grad_factor? number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._fake_quantize_learnable_per_tensor_affine(self, scale, zero_point, quant_min, quant_max, grad_factor, options) end
Tensor._fake_quantize_learnable_per_tensor_affine = torch._fake_quantize_learnable_per_tensor_affine
---@overload fun(grad: torch.Tensor, self: torch.Tensor|number, scale: torch.Tensor, zero_point: torch.Tensor, options: {quant_min: integer, quant_max: integer, grad_factor: number?}): torch.Tensor, torch.Tensor, torch.Tensor
---@param grad torch.Tensor
---@param self torch.Tensor|number
---@param scale torch.Tensor
---@param zero_point torch.Tensor
---@param quant_min integer
---@param quant_max integer
---@param grad_factor? number
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch._fake_quantize_learnable_per_tensor_affine_backward(grad, self, scale, zero_point, quant_min, quant_max, grad_factor) end
Tensor._fake_quantize_learnable_per_tensor_affine_backward = torch._fake_quantize_learnable_per_tensor_affine_backward
---@overload fun(self: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, fake_quant_enabled: torch.Tensor, options: {quant_min: integer, quant_max: integer, out0: torch.Tensor?, out1: torch.Tensor?}): torch.Tensor, torch.Tensor
---@param self torch.Tensor
---@param scale torch.Tensor
---@param zero_point torch.Tensor
---@param fake_quant_enabled torch.Tensor
---@param quant_min integer
---@param quant_max integer
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?}
---@return torch.Tensor output
---@return torch.Tensor mask
function torch._fake_quantize_per_tensor_affine_cachemask_tensor_qparams(self, scale, zero_point, fake_quant_enabled, quant_min, quant_max, options) end
Tensor._fake_quantize_per_tensor_affine_cachemask_tensor_qparams = torch._fake_quantize_per_tensor_affine_cachemask_tensor_qparams
---@overload fun(self: torch.Tensor, options: {dim: integer[], normalization: integer, forward: boolean, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param dim integer[]
---@param normalization integer
---@param forward boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._fft_c2c(self, dim, normalization, forward, options) end
Tensor._fft_c2c = torch._fft_c2c
---@overload fun(self: torch.Tensor, options: {dim: integer[], normalization: integer, last_dim_size: integer, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param dim integer[]
---@param normalization integer
---@param last_dim_size integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._fft_c2r(self, dim, normalization, last_dim_size, options) end
Tensor._fft_c2r = torch._fft_c2r
---@overload fun(self: torch.Tensor, options: {dim: integer[], normalization: integer, onesided: boolean, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param dim integer[]
---@param normalization integer
---@param onesided boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._fft_r2c(self, dim, normalization, onesided, options) end
Tensor._fft_r2c = torch._fft_r2c
---@overload fun(self: torch.Tensor, options: {dropout_p: number, seed: integer, offset: integer}): torch.Tensor
---@param self torch.Tensor
---@param dropout_p number
---@param seed integer
---@param offset integer
---@return torch.Tensor
function torch._fill_mem_eff_dropout_mask_(self, dropout_p, seed, offset) end
Tensor._fill_mem_eff_dropout_mask_ = torch._fill_mem_eff_dropout_mask_
---@overload fun(grad_out: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, out: torch.Tensor, logsumexp: torch.Tensor, cum_seq_q: torch.Tensor, cum_seq_k: torch.Tensor, options: {max_q: integer, max_k: integer, dropout_p: number, is_causal: boolean, rng_state: torch.Tensor, unused: torch.Tensor, scale: number?, window_size_left: integer?, window_size_right: integer?}): torch.Tensor, torch.Tensor, torch.Tensor
---@param grad_out torch.Tensor
---@param query torch.Tensor
---@param key torch.Tensor
---@param value torch.Tensor
---@param out torch.Tensor
---@param logsumexp torch.Tensor
---@param cum_seq_q torch.Tensor
---@param cum_seq_k torch.Tensor
---@param max_q integer
---@param max_k integer
---@param dropout_p number
---@param is_causal boolean
---@param rng_state torch.Tensor
---@param unused torch.Tensor
---@param options? {scale: number?, window_size_left: integer?, window_size_right: integer?}
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch._flash_attention_backward(grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, rng_state, unused, options) end
Tensor._flash_attention_backward = torch._flash_attention_backward
---@overload fun(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cum_seq_q: torch.Tensor?, cum_seq_k: torch.Tensor?, options: {max_q: integer, max_k: integer, dropout_p: number, is_causal: boolean, return_debug_mask: boolean, q_descale: torch.Tensor?, k_descale: torch.Tensor?, v_descale: torch.Tensor?, scale: number?, window_size_left: integer?, window_size_right: integer?, seqused_k: torch.Tensor?, alibi_slopes: torch.Tensor?}): torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor
---@overload fun(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cum_seq_q: torch.Tensor?, cum_seq_k: torch.Tensor?, max_q: integer, max_k: integer, dropout_p: number, is_causal: boolean, return_debug_mask: boolean, options: {scale: number?, window_size_left: integer?, window_size_right: integer?, seqused_k: torch.Tensor?, alibi_slopes: torch.Tensor?}?): torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor
---@overload fun(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cum_seq_q: torch.Tensor?, cum_seq_k: torch.Tensor?, options: {max_q: integer, max_k: integer, dropout_p: number, is_causal: boolean, return_debug_mask: boolean, scale: number?, window_size_left: integer?, window_size_right: integer?, seqused_k: torch.Tensor?, alibi_slopes: torch.Tensor?}): torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor
---@param query torch.Tensor
---@param key torch.Tensor
---@param value torch.Tensor
---@param cum_seq_q torch.Tensor?
---@param cum_seq_k torch.Tensor?
---@param max_q integer
---@param max_k integer
---@param dropout_p number
---@param is_causal boolean
---@param return_debug_mask boolean
---@param q_descale torch.Tensor?
---@param k_descale torch.Tensor?
---@param v_descale torch.Tensor?
---@param options? {scale: number?, window_size_left: integer?, window_size_right: integer?, seqused_k: torch.Tensor?, alibi_slopes: torch.Tensor?}
---@return torch.Tensor output
---@return torch.Tensor softmax_logsumexp
---@return torch.Tensor rng_state
---@return torch.Tensor unused
---@return torch.Tensor debug_attn_mask
function torch._flash_attention_forward(query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, return_debug_mask, q_descale, k_descale, v_descale, options) end
Tensor._flash_attention_forward = torch._flash_attention_forward
---@overload fun(self: torch.Tensor, options: {arg1: boolean?, arg2: boolean?, arg3: boolean?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param arg1? boolean
---@param arg2? boolean
---@param options? {arg3: boolean?, out: torch.Tensor?}
---@return torch.Tensor
function torch._foobar(self, arg1, arg2, options) end
Tensor._foobar = torch._foobar
---@param self torch.Tensor[]
---@param options? {out: torch.Tensor[]?}
---@return torch.Tensor[]
function torch._foreach_abs(self, options) end
---@param self torch.Tensor[]
function torch._foreach_abs_(self) end
---@param self torch.Tensor[]
---@param options? {out: torch.Tensor[]?}
---@return torch.Tensor[]
function torch._foreach_acos(self, options) end
---@param self torch.Tensor[]
function torch._foreach_acos_(self) end
---@overload fun(self: torch.Tensor[], other: torch.Tensor|number, options: {alpha: torch.Scalar?, out: torch.Tensor[]?}?): torch.Tensor[]
---@overload fun(self: torch.Tensor[], scalar: torch.Scalar, options: {out: torch.Tensor[]?}?): torch.Tensor[]
---@overload fun(self: torch.Tensor[], options: {scalar: torch.Scalar, out: torch.Tensor[]?}): torch.Tensor[]
---@overload fun(self: torch.Tensor[], scalars: torch.Scalar[], options: {out: torch.Tensor[]?}?): torch.Tensor[]
---@overload fun(self: torch.Tensor[], options: {scalars: torch.Scalar[], out: torch.Tensor[]?}): torch.Tensor[]
---@param self torch.Tensor[]
---@param other torch.Tensor[]
---@param options? {alpha: torch.Scalar?, out: torch.Tensor[]?}
---@return torch.Tensor[]
function torch._foreach_add(self, other, options) end
---@overload fun(self: torch.Tensor[], other: torch.Tensor|number, options: {alpha: torch.Scalar?}?)
---@overload fun(self: torch.Tensor[], scalar: torch.Scalar)
---@overload fun(self: torch.Tensor[], options: {scalar: torch.Scalar})
---@overload fun(self: torch.Tensor[], scalars: torch.Scalar[])
---@overload fun(self: torch.Tensor[], options: {scalars: torch.Scalar[]})
---@param self torch.Tensor[]
---@param other torch.Tensor[]
---@param options? {alpha: torch.Scalar?}
function torch._foreach_add_(self, other, options) end
---@overload fun(self: torch.Tensor[], tensor1: torch.Tensor[], tensor2: torch.Tensor[], value: torch.Scalar?, options: {out: torch.Tensor[]?}?): torch.Tensor[]
---@overload fun(self: torch.Tensor[], tensor1: torch.Tensor[], tensor2: torch.Tensor[], options: {value: torch.Scalar?, out: torch.Tensor[]?}): torch.Tensor[]
---@overload fun(self: torch.Tensor[], tensor1: torch.Tensor[], tensor2: torch.Tensor[], scalars: torch.Scalar[], options: {out: torch.Tensor[]?}?): torch.Tensor[]
---@overload fun(self: torch.Tensor[], tensor1: torch.Tensor[], tensor2: torch.Tensor[], options: {scalars: torch.Scalar[], out: torch.Tensor[]?}): torch.Tensor[]
---@param self torch.Tensor[]
---@param tensor1 torch.Tensor[]
---@param tensor2 torch.Tensor[]
---@param scalars torch.Tensor
---@param options? {out: torch.Tensor[]?}
---@return torch.Tensor[]
function torch._foreach_addcdiv(self, tensor1, tensor2, scalars, options) end
---@overload fun(self: torch.Tensor[], tensor1: torch.Tensor[], tensor2: torch.Tensor[], value: torch.Scalar?)
---@overload fun(self: torch.Tensor[], tensor1: torch.Tensor[], tensor2: torch.Tensor[], options: {value: torch.Scalar?})
---@overload fun(self: torch.Tensor[], tensor1: torch.Tensor[], tensor2: torch.Tensor[], scalars: torch.Scalar[])
---@overload fun(self: torch.Tensor[], tensor1: torch.Tensor[], tensor2: torch.Tensor[], options: {scalars: torch.Scalar[]})
---@param self torch.Tensor[]
---@param tensor1 torch.Tensor[]
---@param tensor2 torch.Tensor[]
---@param scalars torch.Tensor
function torch._foreach_addcdiv_(self, tensor1, tensor2, scalars) end
---@overload fun(self: torch.Tensor[], tensor1: torch.Tensor[], tensor2: torch.Tensor[], value: torch.Scalar?, options: {out: torch.Tensor[]?}?): torch.Tensor[]
---@overload fun(self: torch.Tensor[], tensor1: torch.Tensor[], tensor2: torch.Tensor[], options: {value: torch.Scalar?, out: torch.Tensor[]?}): torch.Tensor[]
---@overload fun(self: torch.Tensor[], tensor1: torch.Tensor[], tensor2: torch.Tensor[], scalars: torch.Scalar[], options: {out: torch.Tensor[]?}?): torch.Tensor[]
---@overload fun(self: torch.Tensor[], tensor1: torch.Tensor[], tensor2: torch.Tensor[], options: {scalars: torch.Scalar[], out: torch.Tensor[]?}): torch.Tensor[]
---@param self torch.Tensor[]
---@param tensor1 torch.Tensor[]
---@param tensor2 torch.Tensor[]
---@param scalars torch.Tensor
---@param options? {out: torch.Tensor[]?}
---@return torch.Tensor[]
function torch._foreach_addcmul(self, tensor1, tensor2, scalars, options) end
---@overload fun(self: torch.Tensor[], tensor1: torch.Tensor[], tensor2: torch.Tensor[], value: torch.Scalar?)
---@overload fun(self: torch.Tensor[], tensor1: torch.Tensor[], tensor2: torch.Tensor[], options: {value: torch.Scalar?})
---@overload fun(self: torch.Tensor[], tensor1: torch.Tensor[], tensor2: torch.Tensor[], scalars: torch.Scalar[])
---@overload fun(self: torch.Tensor[], tensor1: torch.Tensor[], tensor2: torch.Tensor[], options: {scalars: torch.Scalar[]})
---@param self torch.Tensor[]
---@param tensor1 torch.Tensor[]
---@param tensor2 torch.Tensor[]
---@param scalars torch.Tensor
function torch._foreach_addcmul_(self, tensor1, tensor2, scalars) end
---@param self torch.Tensor[]
---@param options? {out: torch.Tensor[]?}
---@return torch.Tensor[]
function torch._foreach_asin(self, options) end
---@param self torch.Tensor[]
function torch._foreach_asin_(self) end
---@param self torch.Tensor[]
---@param options? {out: torch.Tensor[]?}
---@return torch.Tensor[]
function torch._foreach_atan(self, options) end
---@param self torch.Tensor[]
function torch._foreach_atan_(self) end
---@param self torch.Tensor[]
---@param options? {out: torch.Tensor[]?}
---@return torch.Tensor[]
function torch._foreach_ceil(self, options) end
---@param self torch.Tensor[]
function torch._foreach_ceil_(self) end
---@overload fun(self: torch.Tensor[], scalar: torch.Scalar, options: {out: torch.Tensor[]?}?): torch.Tensor[]
---@overload fun(self: torch.Tensor[], options: {scalar: torch.Scalar, out: torch.Tensor[]?}): torch.Tensor[]
---@overload fun(self: torch.Tensor[], scalars: torch.Scalar[], options: {out: torch.Tensor[]?}?): torch.Tensor[]
---@overload fun(self: torch.Tensor[], options: {scalars: torch.Scalar[], out: torch.Tensor[]?}): torch.Tensor[]
---@param self torch.Tensor[]
---@param other torch.Tensor[]
---@param options? {out: torch.Tensor[]?}
---@return torch.Tensor[]
function torch._foreach_clamp_max(self, other, options) end
---@overload fun(self: torch.Tensor[], scalar: torch.Scalar)
---@overload fun(self: torch.Tensor[], options: {scalar: torch.Scalar})
---@overload fun(self: torch.Tensor[], scalars: torch.Scalar[])
---@overload fun(self: torch.Tensor[], options: {scalars: torch.Scalar[]})
---@param self torch.Tensor[]
---@param other torch.Tensor[]
function torch._foreach_clamp_max_(self, other) end
---@overload fun(self: torch.Tensor[], scalar: torch.Scalar, options: {out: torch.Tensor[]?}?): torch.Tensor[]
---@overload fun(self: torch.Tensor[], options: {scalar: torch.Scalar, out: torch.Tensor[]?}): torch.Tensor[]
---@overload fun(self: torch.Tensor[], scalars: torch.Scalar[], options: {out: torch.Tensor[]?}?): torch.Tensor[]
---@overload fun(self: torch.Tensor[], options: {scalars: torch.Scalar[], out: torch.Tensor[]?}): torch.Tensor[]
---@param self torch.Tensor[]
---@param other torch.Tensor[]
---@param options? {out: torch.Tensor[]?}
---@return torch.Tensor[]
function torch._foreach_clamp_min(self, other, options) end
---@overload fun(self: torch.Tensor[], scalar: torch.Scalar)
---@overload fun(self: torch.Tensor[], options: {scalar: torch.Scalar})
---@overload fun(self: torch.Tensor[], scalars: torch.Scalar[])
---@overload fun(self: torch.Tensor[], options: {scalars: torch.Scalar[]})
---@param self torch.Tensor[]
---@param other torch.Tensor[]
function torch._foreach_clamp_min_(self, other) end
---@overload fun(self: torch.Tensor[], src: torch.Tensor[], options: {non_blocking: boolean?, out: torch.Tensor[]?}): torch.Tensor[]
---@param self torch.Tensor[]
---@param src torch.Tensor[]
---@param non_blocking? boolean
---@param options? {out: torch.Tensor[]?}
---@return torch.Tensor[] self_out
function torch._foreach_copy(self, src, non_blocking, options) end
---@overload fun(self: torch.Tensor[], src: torch.Tensor[], options: {non_blocking: boolean?})
---@param self torch.Tensor[]
---@param src torch.Tensor[]
---@param non_blocking? boolean
function torch._foreach_copy_(self, src, non_blocking) end
---@param self torch.Tensor[]
---@param options? {out: torch.Tensor[]?}
---@return torch.Tensor[]
function torch._foreach_cos(self, options) end
---@param self torch.Tensor[]
function torch._foreach_cos_(self) end
---@param self torch.Tensor[]
---@param options? {out: torch.Tensor[]?}
---@return torch.Tensor[]
function torch._foreach_cosh(self, options) end
---@param self torch.Tensor[]
function torch._foreach_cosh_(self) end
---@overload fun(self: torch.Tensor[], other: torch.Tensor|number, options: {out: torch.Tensor[]?}?): torch.Tensor[]
---@overload fun(self: torch.Tensor[], scalar: torch.Scalar, options: {out: torch.Tensor[]?}?): torch.Tensor[]
---@overload fun(self: torch.Tensor[], options: {scalar: torch.Scalar, out: torch.Tensor[]?}): torch.Tensor[]
---@overload fun(self: torch.Tensor[], scalars: torch.Scalar[], options: {out: torch.Tensor[]?}?): torch.Tensor[]
---@overload fun(self: torch.Tensor[], options: {scalars: torch.Scalar[], out: torch.Tensor[]?}): torch.Tensor[]
---@param self torch.Tensor[]
---@param other torch.Tensor[]
---@param options? {out: torch.Tensor[]?}
---@return torch.Tensor[]
function torch._foreach_div(self, other, options) end
---@overload fun(self: torch.Tensor[], other: torch.Tensor|number)
---@overload fun(self: torch.Tensor[], scalar: torch.Scalar)
---@overload fun(self: torch.Tensor[], options: {scalar: torch.Scalar})
---@overload fun(self: torch.Tensor[], scalars: torch.Scalar[])
---@overload fun(self: torch.Tensor[], options: {scalars: torch.Scalar[]})
---@param self torch.Tensor[]
---@param other torch.Tensor[]
function torch._foreach_div_(self, other) end
---@param self torch.Tensor[]
---@param options? {out: torch.Tensor[]?}
---@return torch.Tensor[]
function torch._foreach_erf(self, options) end
---@param self torch.Tensor[]
function torch._foreach_erf_(self) end
---@param self torch.Tensor[]
---@param options? {out: torch.Tensor[]?}
---@return torch.Tensor[]
function torch._foreach_erfc(self, options) end
---@param self torch.Tensor[]
function torch._foreach_erfc_(self) end
---@param self torch.Tensor[]
---@param options? {out: torch.Tensor[]?}
---@return torch.Tensor[]
function torch._foreach_exp(self, options) end
---@param self torch.Tensor[]
function torch._foreach_exp_(self) end
---@param self torch.Tensor[]
---@param options? {out: torch.Tensor[]?}
---@return torch.Tensor[]
function torch._foreach_expm1(self, options) end
---@param self torch.Tensor[]
function torch._foreach_expm1_(self) end
---@param self torch.Tensor[]
---@param options? {out: torch.Tensor[]?}
---@return torch.Tensor[]
function torch._foreach_floor(self, options) end
---@param self torch.Tensor[]
function torch._foreach_floor_(self) end
---@param self torch.Tensor[]
---@param options? {out: torch.Tensor[]?}
---@return torch.Tensor[]
function torch._foreach_frac(self, options) end
---@param self torch.Tensor[]
function torch._foreach_frac_(self) end
---@overload fun(self: torch.Tensor[], tensors1: torch.Tensor[], weight: torch.Scalar, options: {out: torch.Tensor[]?}?): torch.Tensor[]
---@overload fun(self: torch.Tensor[], tensors1: torch.Tensor[], options: {weight: torch.Scalar, out: torch.Tensor[]?}): torch.Tensor[]
---@overload fun(self: torch.Tensor[], tensors1: torch.Tensor[], weight: torch.Scalar[], options: {out: torch.Tensor[]?}?): torch.Tensor[]
---@overload fun(self: torch.Tensor[], tensors1: torch.Tensor[], options: {weight: torch.Scalar[], out: torch.Tensor[]?}): torch.Tensor[]
---@param self torch.Tensor[]
---@param tensors1 torch.Tensor[]
---@param weights torch.Tensor[]
---@param options? {out: torch.Tensor[]?}
---@return torch.Tensor[]
function torch._foreach_lerp(self, tensors1, weights, options) end
---@overload fun(self: torch.Tensor[], tensors1: torch.Tensor[], weight: torch.Scalar)
---@overload fun(self: torch.Tensor[], tensors1: torch.Tensor[], options: {weight: torch.Scalar})
---@overload fun(self: torch.Tensor[], tensors1: torch.Tensor[], weight: torch.Scalar[])
---@overload fun(self: torch.Tensor[], tensors1: torch.Tensor[], options: {weight: torch.Scalar[]})
---@param self torch.Tensor[]
---@param tensors1 torch.Tensor[]
---@param weights torch.Tensor[]
function torch._foreach_lerp_(self, tensors1, weights) end
---@param self torch.Tensor[]
---@param options? {out: torch.Tensor[]?}
---@return torch.Tensor[]
function torch._foreach_lgamma(self, options) end
---@param self torch.Tensor[]
function torch._foreach_lgamma_(self) end
---@param self torch.Tensor[]
---@param options? {out: torch.Tensor[]?}
---@return torch.Tensor[]
function torch._foreach_log(self, options) end
---@param self torch.Tensor[]
---@param options? {out: torch.Tensor[]?}
---@return torch.Tensor[]
function torch._foreach_log10(self, options) end
---@param self torch.Tensor[]
function torch._foreach_log10_(self) end
---@param self torch.Tensor[]
---@param options? {out: torch.Tensor[]?}
---@return torch.Tensor[]
function torch._foreach_log1p(self, options) end
---@param self torch.Tensor[]
function torch._foreach_log1p_(self) end
---@param self torch.Tensor[]
---@param options? {out: torch.Tensor[]?}
---@return torch.Tensor[]
function torch._foreach_log2(self, options) end
---@param self torch.Tensor[]
function torch._foreach_log2_(self) end
---@param self torch.Tensor[]
function torch._foreach_log_(self) end
---@param self torch.Tensor[]
---@param options? {out: torch.Tensor[]?}
---@return torch.Tensor[]
function torch._foreach_max(self, options) end
---@overload fun(self: torch.Tensor[], scalar: torch.Scalar, options: {out: torch.Tensor[]?}?): torch.Tensor[]
---@overload fun(self: torch.Tensor[], options: {scalar: torch.Scalar, out: torch.Tensor[]?}): torch.Tensor[]
---@overload fun(self: torch.Tensor[], scalars: torch.Scalar[], options: {out: torch.Tensor[]?}?): torch.Tensor[]
---@overload fun(self: torch.Tensor[], options: {scalars: torch.Scalar[], out: torch.Tensor[]?}): torch.Tensor[]
---@param self torch.Tensor[]
---@param other torch.Tensor[]
---@param options? {out: torch.Tensor[]?}
---@return torch.Tensor[]
function torch._foreach_maximum(self, other, options) end
---@overload fun(self: torch.Tensor[], scalar: torch.Scalar)
---@overload fun(self: torch.Tensor[], options: {scalar: torch.Scalar})
---@overload fun(self: torch.Tensor[], scalars: torch.Scalar[])
---@overload fun(self: torch.Tensor[], options: {scalars: torch.Scalar[]})
---@param self torch.Tensor[]
---@param other torch.Tensor[]
function torch._foreach_maximum_(self, other) end
---@overload fun(self: torch.Tensor[], scalar: torch.Scalar, options: {out: torch.Tensor[]?}?): torch.Tensor[]
---@overload fun(self: torch.Tensor[], options: {scalar: torch.Scalar, out: torch.Tensor[]?}): torch.Tensor[]
---@overload fun(self: torch.Tensor[], scalars: torch.Scalar[], options: {out: torch.Tensor[]?}?): torch.Tensor[]
---@overload fun(self: torch.Tensor[], options: {scalars: torch.Scalar[], out: torch.Tensor[]?}): torch.Tensor[]
---@param self torch.Tensor[]
---@param other torch.Tensor[]
---@param options? {out: torch.Tensor[]?}
---@return torch.Tensor[]
function torch._foreach_minimum(self, other, options) end
---@overload fun(self: torch.Tensor[], scalar: torch.Scalar)
---@overload fun(self: torch.Tensor[], options: {scalar: torch.Scalar})
---@overload fun(self: torch.Tensor[], scalars: torch.Scalar[])
---@overload fun(self: torch.Tensor[], options: {scalars: torch.Scalar[]})
---@param self torch.Tensor[]
---@param other torch.Tensor[]
function torch._foreach_minimum_(self, other) end
---@overload fun(self: torch.Tensor[], other: torch.Tensor|number, options: {out: torch.Tensor[]?}?): torch.Tensor[]
---@overload fun(self: torch.Tensor[], scalar: torch.Scalar, options: {out: torch.Tensor[]?}?): torch.Tensor[]
---@overload fun(self: torch.Tensor[], options: {scalar: torch.Scalar, out: torch.Tensor[]?}): torch.Tensor[]
---@overload fun(self: torch.Tensor[], scalars: torch.Scalar[], options: {out: torch.Tensor[]?}?): torch.Tensor[]
---@overload fun(self: torch.Tensor[], options: {scalars: torch.Scalar[], out: torch.Tensor[]?}): torch.Tensor[]
---@param self torch.Tensor[]
---@param other torch.Tensor[]
---@param options? {out: torch.Tensor[]?}
---@return torch.Tensor[]
function torch._foreach_mul(self, other, options) end
---@overload fun(self: torch.Tensor[], other: torch.Tensor|number)
---@overload fun(self: torch.Tensor[], scalar: torch.Scalar)
---@overload fun(self: torch.Tensor[], options: {scalar: torch.Scalar})
---@overload fun(self: torch.Tensor[], scalars: torch.Scalar[])
---@overload fun(self: torch.Tensor[], options: {scalars: torch.Scalar[]})
---@param self torch.Tensor[]
---@param other torch.Tensor[]
function torch._foreach_mul_(self, other) end
---@param self torch.Tensor[]
---@param options? {out: torch.Tensor[]?}
---@return torch.Tensor[]
function torch._foreach_neg(self, options) end
---@param self torch.Tensor[]
function torch._foreach_neg_(self) end
---@overload fun(self: torch.Tensor[], options: {ord: torch.Scalar?, dtype: torch.dtype?, out: torch.Tensor[]?}): torch.Tensor[]
---@param self torch.Tensor[]
---@param ord? torch.Scalar
---@param dtype? torch.dtype
---@param options? {out: torch.Tensor[]?}
---@return torch.Tensor[]
function torch._foreach_norm(self, ord, dtype, options) end
---@overload fun(self: torch.Tensor[], exponent: torch.Scalar, options: {out: torch.Tensor[]?}?): torch.Tensor[]
---@overload fun(self: torch.Tensor[], options: {exponent: torch.Scalar, out: torch.Tensor[]?}): torch.Tensor[]
---@overload fun(self: torch.Tensor[], exponent: torch.Scalar[], options: {out: torch.Tensor[]?}?): torch.Tensor[]
---@overload fun(self: torch.Tensor[], options: {exponent: torch.Scalar[], out: torch.Tensor[]?}): torch.Tensor[]
---@overload fun(self: torch.Scalar, exponent: torch.Tensor[]): torch.Tensor[]
---@param self torch.Tensor[]
---@param exponent torch.Tensor[]
---@param options? {out: torch.Tensor[]?}
---@return torch.Tensor[]
function torch._foreach_pow(self, exponent, options) end
---@overload fun(self: torch.Tensor[], exponent: torch.Scalar)
---@overload fun(self: torch.Tensor[], options: {exponent: torch.Scalar})
---@overload fun(self: torch.Tensor[], exponent: torch.Scalar[])
---@overload fun(self: torch.Tensor[], options: {exponent: torch.Scalar[]})
---@param self torch.Tensor[]
---@param exponent torch.Tensor[]
function torch._foreach_pow_(self, exponent) end
---@overload fun(self: torch.Tensor[], options: {ord: torch.Scalar?, dtype: torch.dtype?, out: torch.Tensor[]?}): torch.Tensor[]
---@param self torch.Tensor[]
---@param ord? torch.Scalar
---@param dtype? torch.dtype
---@param options? {out: torch.Tensor[]?}
---@return torch.Tensor[]
function torch._foreach_powsum(self, ord, dtype, options) end
---@param self torch.Tensor[]
---@param options? {out: torch.Tensor[]?}
---@return torch.Tensor[]
function torch._foreach_reciprocal(self, options) end
---@param self torch.Tensor[]
function torch._foreach_reciprocal_(self) end
---@param self torch.Tensor[]
---@param options? {out: torch.Tensor[]?}
---@return torch.Tensor[]
function torch._foreach_round(self, options) end
---@param self torch.Tensor[]
function torch._foreach_round_(self) end
---@param self torch.Tensor[]
---@param options? {out: torch.Tensor[]?}
---@return torch.Tensor[]
function torch._foreach_rsqrt(self, options) end
---@param self torch.Tensor[]
function torch._foreach_rsqrt_(self) end
---@param self torch.Tensor[]
---@param options? {out: torch.Tensor[]?}
---@return torch.Tensor[]
function torch._foreach_sigmoid(self, options) end
---@param self torch.Tensor[]
function torch._foreach_sigmoid_(self) end
---@param self torch.Tensor[]
---@param options? {out: torch.Tensor[]?}
---@return torch.Tensor[]
function torch._foreach_sign(self, options) end
---@param self torch.Tensor[]
function torch._foreach_sign_(self) end
---@param self torch.Tensor[]
---@param options? {out: torch.Tensor[]?}
---@return torch.Tensor[]
function torch._foreach_sin(self, options) end
---@param self torch.Tensor[]
function torch._foreach_sin_(self) end
---@param self torch.Tensor[]
---@param options? {out: torch.Tensor[]?}
---@return torch.Tensor[]
function torch._foreach_sinh(self, options) end
---@param self torch.Tensor[]
function torch._foreach_sinh_(self) end
---@param self torch.Tensor[]
---@param options? {out: torch.Tensor[]?}
---@return torch.Tensor[]
function torch._foreach_sqrt(self, options) end
---@param self torch.Tensor[]
function torch._foreach_sqrt_(self) end
---@overload fun(self: torch.Tensor[], scalar: torch.Scalar, options: {out: torch.Tensor[]?}?): torch.Tensor[]
---@overload fun(self: torch.Tensor[], options: {scalar: torch.Scalar, out: torch.Tensor[]?}): torch.Tensor[]
---@overload fun(self: torch.Tensor[], scalars: torch.Scalar[], options: {out: torch.Tensor[]?}?): torch.Tensor[]
---@overload fun(self: torch.Tensor[], options: {scalars: torch.Scalar[], out: torch.Tensor[]?}): torch.Tensor[]
---@param self torch.Tensor[]
---@param other torch.Tensor[]
---@param options? {alpha: torch.Scalar?, out: torch.Tensor[]?}
---@return torch.Tensor[]
function torch._foreach_sub(self, other, options) end
---@overload fun(self: torch.Tensor[], scalar: torch.Scalar)
---@overload fun(self: torch.Tensor[], options: {scalar: torch.Scalar})
---@overload fun(self: torch.Tensor[], scalars: torch.Scalar[])
---@overload fun(self: torch.Tensor[], options: {scalars: torch.Scalar[]})
---@param self torch.Tensor[]
---@param other torch.Tensor[]
---@param options? {alpha: torch.Scalar?}
function torch._foreach_sub_(self, other, options) end
---@param self torch.Tensor[]
---@param options? {out: torch.Tensor[]?}
---@return torch.Tensor[]
function torch._foreach_tan(self, options) end
---@param self torch.Tensor[]
function torch._foreach_tan_(self) end
---@param self torch.Tensor[]
---@param options? {out: torch.Tensor[]?}
---@return torch.Tensor[]
function torch._foreach_tanh(self, options) end
---@param self torch.Tensor[]
function torch._foreach_tanh_(self) end
---@param self torch.Tensor[]
---@param options? {out: torch.Tensor[]?}
---@return torch.Tensor[]
function torch._foreach_trunc(self, options) end
---@param self torch.Tensor[]
function torch._foreach_trunc_(self) end
---@param self torch.Tensor[]
---@param options? {out: torch.Tensor[]?}
---@return torch.Tensor[] self_out
function torch._foreach_zero(self, options) end
---@param self torch.Tensor[]
function torch._foreach_zero_(self) end
---@overload fun(self: torch.Tensor, options: {assert_msg: string, dep_token: torch.Tensor}): torch.Tensor
---@param self torch.Tensor
---@param assert_msg string
---@param dep_token torch.Tensor
---@return torch.Tensor
function torch._functional_assert_async(self, assert_msg, dep_token) end
Tensor._functional_assert_async = torch._functional_assert_async
---@param self torch.Scalar
---@param assert_msg string
---@param dep_token torch.Tensor
---@return torch.Tensor
function torch._functional_assert_scalar(self, assert_msg, dep_token) end
---@param size torch.Scalar
---@param min integer?
---@param max integer?
---@param dep_token torch.Tensor
---@return torch.Tensor
function torch._functional_sym_constrain_range(size, min, max, dep_token) end
---@param size torch.Scalar
---@param min integer?
---@param max integer?
---@param dep_token torch.Tensor
---@return torch.Tensor
function torch._functional_sym_constrain_range_for_size(size, min, max, dep_token) end
---@overload fun(self: torch.Tensor[], grads: torch.Tensor[], state_sums: torch.Tensor[], state_steps: torch.Tensor[], options: {lr: number, lr_decay: number, weight_decay: number, eps: number, maximize: boolean, grad_scale: torch.Tensor?, found_inf: torch.Tensor?, out: torch.Tensor[]?}): torch.Tensor[], torch.Tensor[], torch.Tensor[], torch.Tensor[]
---@param self torch.Tensor[]
---@param grads torch.Tensor[]
---@param state_sums torch.Tensor[]
---@param state_steps torch.Tensor[]
---@param options {lr: torch.Tensor, lr_decay: number, weight_decay: number, eps: number, maximize: boolean, grad_scale: torch.Tensor?, found_inf: torch.Tensor?, out: torch.Tensor[]?}
---@return torch.Tensor[] self_out
---@return torch.Tensor[] grads_out
---@return torch.Tensor[] state_sums_out
function torch._fused_adagrad(self, grads, state_sums, state_steps, options) end
---@overload fun(self: torch.Tensor[], grads: torch.Tensor[], state_sums: torch.Tensor[], state_steps: torch.Tensor[], options: {lr: number, lr_decay: number, weight_decay: number, eps: number, maximize: boolean, grad_scale: torch.Tensor?, found_inf: torch.Tensor?})
---@param self torch.Tensor[]
---@param grads torch.Tensor[]
---@param state_sums torch.Tensor[]
---@param state_steps torch.Tensor[]
---@param options {lr: torch.Tensor, lr_decay: number, weight_decay: number, eps: number, maximize: boolean, grad_scale: torch.Tensor?, found_inf: torch.Tensor?}
function torch._fused_adagrad_(self, grads, state_sums, state_steps, options) end
---@overload fun(self: torch.Tensor[], grads: torch.Tensor[], exp_avgs: torch.Tensor[], exp_avg_sqs: torch.Tensor[], max_exp_avg_sqs: torch.Tensor[], state_steps: torch.Tensor[], options: {lr: number, beta1: number, beta2: number, weight_decay: number, eps: number, amsgrad: boolean, maximize: boolean, grad_scale: torch.Tensor?, found_inf: torch.Tensor?, out: torch.Tensor[]?}): torch.Tensor[], torch.Tensor[], torch.Tensor[], torch.Tensor[], torch.Tensor[]
---@param self torch.Tensor[]
---@param grads torch.Tensor[]
---@param exp_avgs torch.Tensor[]
---@param exp_avg_sqs torch.Tensor[]
---@param max_exp_avg_sqs torch.Tensor[]
---@param state_steps torch.Tensor[]
---@param options {lr: torch.Tensor, beta1: number, beta2: number, weight_decay: number, eps: number, amsgrad: boolean, maximize: boolean, grad_scale: torch.Tensor?, found_inf: torch.Tensor?, out: torch.Tensor[]?}
---@return torch.Tensor[] self_out
---@return torch.Tensor[] grads_out
---@return torch.Tensor[] exp_avgs_out
---@return torch.Tensor[] exp_avg_sqs_out
---@return torch.Tensor[] max_exp_avg_sqs_out
function torch._fused_adam(self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, options) end
---@overload fun(self: torch.Tensor[], grads: torch.Tensor[], exp_avgs: torch.Tensor[], exp_avg_sqs: torch.Tensor[], max_exp_avg_sqs: torch.Tensor[], state_steps: torch.Tensor[], options: {lr: number, beta1: number, beta2: number, weight_decay: number, eps: number, amsgrad: boolean, maximize: boolean, grad_scale: torch.Tensor?, found_inf: torch.Tensor?})
---@param self torch.Tensor[]
---@param grads torch.Tensor[]
---@param exp_avgs torch.Tensor[]
---@param exp_avg_sqs torch.Tensor[]
---@param max_exp_avg_sqs torch.Tensor[]
---@param state_steps torch.Tensor[]
---@param options {lr: torch.Tensor, beta1: number, beta2: number, weight_decay: number, eps: number, amsgrad: boolean, maximize: boolean, grad_scale: torch.Tensor?, found_inf: torch.Tensor?}
function torch._fused_adam_(self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, options) end
---@overload fun(self: torch.Tensor[], grads: torch.Tensor[], exp_avgs: torch.Tensor[], exp_avg_sqs: torch.Tensor[], max_exp_avg_sqs: torch.Tensor[], state_steps: torch.Tensor[], options: {lr: number, beta1: number, beta2: number, weight_decay: number, eps: number, amsgrad: boolean, maximize: boolean, grad_scale: torch.Tensor?, found_inf: torch.Tensor?, out: torch.Tensor[]?}): torch.Tensor[], torch.Tensor[], torch.Tensor[], torch.Tensor[], torch.Tensor[]
---@param self torch.Tensor[]
---@param grads torch.Tensor[]
---@param exp_avgs torch.Tensor[]
---@param exp_avg_sqs torch.Tensor[]
---@param max_exp_avg_sqs torch.Tensor[]
---@param state_steps torch.Tensor[]
---@param options {lr: torch.Tensor, beta1: number, beta2: number, weight_decay: number, eps: number, amsgrad: boolean, maximize: boolean, grad_scale: torch.Tensor?, found_inf: torch.Tensor?, out: torch.Tensor[]?}
---@return torch.Tensor[] self_out
---@return torch.Tensor[] grads_out
---@return torch.Tensor[] exp_avgs_out
---@return torch.Tensor[] exp_avg_sqs_out
---@return torch.Tensor[] max_exp_avg_sqs_out
function torch._fused_adamw(self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, options) end
---@overload fun(self: torch.Tensor[], grads: torch.Tensor[], exp_avgs: torch.Tensor[], exp_avg_sqs: torch.Tensor[], max_exp_avg_sqs: torch.Tensor[], state_steps: torch.Tensor[], options: {lr: number, beta1: number, beta2: number, weight_decay: number, eps: number, amsgrad: boolean, maximize: boolean, grad_scale: torch.Tensor?, found_inf: torch.Tensor?})
---@param self torch.Tensor[]
---@param grads torch.Tensor[]
---@param exp_avgs torch.Tensor[]
---@param exp_avg_sqs torch.Tensor[]
---@param max_exp_avg_sqs torch.Tensor[]
---@param state_steps torch.Tensor[]
---@param options {lr: torch.Tensor, beta1: number, beta2: number, weight_decay: number, eps: number, amsgrad: boolean, maximize: boolean, grad_scale: torch.Tensor?, found_inf: torch.Tensor?}
function torch._fused_adamw_(self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, options) end
---@overload fun(self: torch.Tensor, options: {p: number, out0: torch.Tensor?, out1: torch.Tensor?}): torch.Tensor, torch.Tensor
---@param self torch.Tensor
---@param p number
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
function torch._fused_dropout(self, p, options) end
Tensor._fused_dropout = torch._fused_dropout
---@overload fun(self: torch.Tensor, observer_on: torch.Tensor, fake_quant_on: torch.Tensor, running_min: torch.Tensor, running_max: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, options: {averaging_const: number, quant_min: integer, quant_max: integer, ch_axis: integer, per_row_fake_quant: boolean?, symmetric_quant: boolean?, out0: torch.Tensor?, out1: torch.Tensor?}): torch.Tensor, torch.Tensor
---@param self torch.Tensor
---@param observer_on torch.Tensor
---@param fake_quant_on torch.Tensor
---@param running_min torch.Tensor
---@param running_max torch.Tensor
---@param scale torch.Tensor
---@param zero_point torch.Tensor
---@param averaging_const number
---@param quant_min integer
---@param quant_max integer
---@param ch_axis integer
---@param per_row_fake_quant? boolean
---@param symmetric_quant? boolean
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?}
---@return torch.Tensor output
---@return torch.Tensor mask
function torch._fused_moving_avg_obs_fq_helper(self, observer_on, fake_quant_on, running_min, running_max, scale, zero_point, averaging_const, quant_min, quant_max, ch_axis, per_row_fake_quant, symmetric_quant, options) end
Tensor._fused_moving_avg_obs_fq_helper = torch._fused_moving_avg_obs_fq_helper
---@overload fun(self: torch.Tensor, observer_on: torch.Tensor, fake_quant_on: torch.Tensor, running_min: torch.Tensor, running_max: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, options: {averaging_const: number, quant_min: integer, quant_max: integer, ch_axis: integer, per_row_fake_quant: boolean?, symmetric_quant: boolean?}): torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor
---@param self torch.Tensor
---@param observer_on torch.Tensor
---@param fake_quant_on torch.Tensor
---@param running_min torch.Tensor
---@param running_max torch.Tensor
---@param scale torch.Tensor
---@param zero_point torch.Tensor
---@param averaging_const number
---@param quant_min integer
---@param quant_max integer
---@param ch_axis integer
---@param per_row_fake_quant? boolean
---@param symmetric_quant? boolean
---@return torch.Tensor output
---@return torch.Tensor mask
---@return torch.Tensor running_min_out
---@return torch.Tensor running_max_out
---@return torch.Tensor scale_out
---@return torch.Tensor zero_point_out
function torch._fused_moving_avg_obs_fq_helper_functional(self, observer_on, fake_quant_on, running_min, running_max, scale, zero_point, averaging_const, quant_min, quant_max, ch_axis, per_row_fake_quant, symmetric_quant) end
Tensor._fused_moving_avg_obs_fq_helper_functional = torch._fused_moving_avg_obs_fq_helper_functional
---@overload fun(input: torch.Tensor, options: {normalized_shape: integer[], weight: torch.Tensor?, eps: number?}): torch.Tensor, torch.Tensor
---@param input torch.Tensor
---@param normalized_shape integer[]
---@param weight torch.Tensor?
---@param eps number?
---@return torch.Tensor
---@return torch.Tensor
function torch._fused_rms_norm(input, normalized_shape, weight, eps) end
Tensor._fused_rms_norm = torch._fused_rms_norm
---@overload fun(grad_out: torch.Tensor, input: torch.Tensor, options: {normalized_shape: integer[], rstd: torch.Tensor, weight: torch.Tensor?, output_mask: boolean[]}): torch.Tensor, torch.Tensor
---@param grad_out torch.Tensor
---@param input torch.Tensor
---@param normalized_shape integer[]
---@param rstd torch.Tensor
---@param weight torch.Tensor?
---@param output_mask boolean[]
---@return torch.Tensor
---@return torch.Tensor
function torch._fused_rms_norm_backward(grad_out, input, normalized_shape, rstd, weight, output_mask) end
Tensor._fused_rms_norm_backward = torch._fused_rms_norm_backward
---@overload fun(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: {attn_mask: torch.Tensor?, dropout_p: number?, is_causal: boolean?, scale: number?, enable_gqa: boolean?}): integer
---@param query torch.Tensor
---@param key torch.Tensor
---@param value torch.Tensor
---@param attn_mask? torch.Tensor
---@param dropout_p? number
---@param is_causal? boolean
---@param options? {scale: number?, enable_gqa: boolean?}
---@return integer
function torch._fused_sdp_choice(query, key, value, attn_mask, dropout_p, is_causal, options) end
Tensor._fused_sdp_choice = torch._fused_sdp_choice
---@overload fun(self: torch.Tensor[], grads: torch.Tensor[], momentum_buffer_list: torch.Tensor[], options: {weight_decay: number, momentum: number, lr: number, dampening: number, nesterov: boolean, maximize: boolean, is_first_step: boolean, grad_scale: torch.Tensor?, found_inf: torch.Tensor?, out: torch.Tensor[]?}): torch.Tensor[], torch.Tensor[], torch.Tensor[]
---@param self torch.Tensor[]
---@param grads torch.Tensor[]
---@param momentum_buffer_list torch.Tensor[]
---@param options {weight_decay: number, momentum: number, lr: torch.Tensor, dampening: number, nesterov: boolean, maximize: boolean, is_first_step: boolean, grad_scale: torch.Tensor?, found_inf: torch.Tensor?, out: torch.Tensor[]?}
---@return torch.Tensor[] self_out
---@return torch.Tensor[] grads_out
---@return torch.Tensor[] momentum_buffer_list_out
function torch._fused_sgd(self, grads, momentum_buffer_list, options) end
---@overload fun(self: torch.Tensor[], grads: torch.Tensor[], momentum_buffer_list: torch.Tensor[], options: {weight_decay: number, momentum: number, lr: number, dampening: number, nesterov: boolean, maximize: boolean, is_first_step: boolean, grad_scale: torch.Tensor?, found_inf: torch.Tensor?})
---@param self torch.Tensor[]
---@param grads torch.Tensor[]
---@param momentum_buffer_list torch.Tensor[]
---@param options {weight_decay: number, momentum: number, lr: torch.Tensor, dampening: number, nesterov: boolean, maximize: boolean, is_first_step: boolean, grad_scale: torch.Tensor?, found_inf: torch.Tensor?}
function torch._fused_sgd_(self, grads, momentum_buffer_list, options) end
---@overload fun(self: torch.Tensor, options: {level: integer}): torch.Tensor
---@param self torch.Tensor
---@param level integer
---@return torch.Tensor
function torch._fw_primal(self, level) end
Tensor._fw_primal = torch._fw_primal
---@overload fun(self: torch.Tensor, options: {level: integer, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param level integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._fw_primal_copy(self, level, options) end
Tensor._fw_primal_copy = torch._fw_primal_copy
---@overload fun(self: torch.Tensor, options: {dim: integer, index: torch.Tensor, grad: torch.Tensor}): torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@param index torch.Tensor
---@param grad torch.Tensor
---@return torch.Tensor
function torch._gather_sparse_backward(self, dim, index, grad) end
Tensor._gather_sparse_backward = torch._gather_sparse_backward
---@overload fun(input: torch.Tensor, grid: torch.Tensor, options: {interpolation_mode: integer, padding_mode: integer, align_corners: boolean, out: torch.Tensor?}): torch.Tensor
---@param input torch.Tensor
---@param grid torch.Tensor
---@param interpolation_mode integer
---@param padding_mode integer
---@param align_corners boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._grid_sampler_2d_cpu_fallback(input, grid, interpolation_mode, padding_mode, align_corners, options) end
Tensor._grid_sampler_2d_cpu_fallback = torch._grid_sampler_2d_cpu_fallback
---@overload fun(grad_output: torch.Tensor, input: torch.Tensor, grid: torch.Tensor, options: {interpolation_mode: integer, padding_mode: integer, align_corners: boolean}): torch.Tensor, torch.Tensor
---@param grad_output torch.Tensor
---@param input torch.Tensor
---@param grid torch.Tensor
---@param interpolation_mode integer
---@param padding_mode integer
---@param align_corners boolean
---@return torch.Tensor
---@return torch.Tensor
function torch._grid_sampler_2d_cpu_fallback_backward(grad_output, input, grid, interpolation_mode, padding_mode, align_corners) end
Tensor._grid_sampler_2d_cpu_fallback_backward = torch._grid_sampler_2d_cpu_fallback_backward
---@overload fun(self: torch.Tensor, mat2: torch.Tensor, options: {offs: torch.Tensor?, bias: torch.Tensor?, out_dtype: torch.dtype?}): torch.Tensor
---@param self torch.Tensor
---@param mat2 torch.Tensor
---@param offs? torch.Tensor
---@param bias? torch.Tensor
---@param out_dtype? torch.dtype
---@return torch.Tensor
function torch._grouped_mm(self, mat2, offs, bias, out_dtype) end
Tensor._grouped_mm = torch._grouped_mm
---@param self torch.Tensor
---@param from torch.Tensor
---@return boolean
function torch._has_compatible_shallow_copy_type(self, from) end
Tensor._has_compatible_shallow_copy_type = torch._has_compatible_shallow_copy_type
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return boolean
function torch._has_same_storage_numel(self, other) end
Tensor._has_same_storage_numel = torch._has_same_storage_numel
---@overload fun(self: torch.Tensor, ...: integer|table): torch.Tensor[]
---@param self torch.Tensor
---@param bins integer[]
---@param options? {range: number[]?, weight: torch.Tensor?, density: boolean?, out: torch.Tensor[]?}
---@return torch.Tensor[]
function torch._histogramdd_bin_edges(self, bins, options) end
Tensor._histogramdd_bin_edges = torch._histogramdd_bin_edges
---@overload fun(self: torch.Tensor, ...: integer|table): torch.Tensor
---@param self torch.Tensor
---@param bins integer[]
---@param options? {range: number[]?, weight: torch.Tensor?, density: boolean?, out: torch.Tensor?}
---@return torch.Tensor
function torch._histogramdd_from_bin_cts(self, bins, options) end
Tensor._histogramdd_from_bin_cts = torch._histogramdd_from_bin_cts
---@param self torch.Tensor
---@param bins torch.Tensor[]
---@param options? {weight: torch.Tensor?, density: boolean?, out: torch.Tensor?}
---@return torch.Tensor
function torch._histogramdd_from_bin_tensors(self, bins, options) end
Tensor._histogramdd_from_bin_tensors = torch._histogramdd_from_bin_tensors
---@overload fun(self: torch.Tensor, indices: (torch.Tensor|false)[], values: torch.Tensor, options: {accumulate: boolean?, unsafe: boolean?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param indices (torch.Tensor|false)[]
---@param values torch.Tensor
---@param accumulate? boolean
---@param unsafe? boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._index_put_impl(self, indices, values, accumulate, unsafe, options) end
Tensor._index_put_impl = torch._index_put_impl
---@overload fun(self: torch.Tensor, indices: (torch.Tensor|false)[], values: torch.Tensor, options: {accumulate: boolean?, unsafe: boolean?}): torch.Tensor
---@param self torch.Tensor
---@param indices (torch.Tensor|false)[]
---@param values torch.Tensor
---@param accumulate? boolean
---@param unsafe? boolean
---@return torch.Tensor
function torch._index_put_impl_(self, indices, values, accumulate, unsafe) end
Tensor._index_put_impl_ = torch._index_put_impl_
---@param self torch.Tensor
---@return torch.Tensor
function torch._indices(self) end
Tensor._indices = torch._indices
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._indices_copy(self, options) end
Tensor._indices_copy = torch._indices_copy
---@param self torch.Tensor
---@param mat2 torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._int_mm(self, mat2, options) end
Tensor._int_mm = torch._int_mm
---@param self torch.Tensor
---@return torch.Tensor
function torch._is_all_true(self) end
Tensor._is_all_true = torch._is_all_true
---@param self torch.Tensor
---@return torch.Tensor
function torch._is_any_true(self) end
Tensor._is_any_true = torch._is_any_true
---@param self torch.Tensor
---@return boolean
function torch._is_zerotensor(self) end
Tensor._is_zerotensor = torch._is_zerotensor
---@overload fun(values: torch.Tensor, offsets: torch.Tensor[], options: {max_lengths: integer[], padding_value: number?}): torch.Tensor
---@param values torch.Tensor
---@param offsets torch.Tensor[]
---@param max_lengths integer[]
---@param padding_value? number
---@return torch.Tensor
function torch._jagged_to_padded_dense_forward(values, offsets, max_lengths, padding_value) end
Tensor._jagged_to_padded_dense_forward = torch._jagged_to_padded_dense_forward
---@param self torch.Tensor
---@return torch.Tensor
function torch._lazy_clone(self) end
Tensor._lazy_clone = torch._lazy_clone
---@overload fun(info: torch.Tensor, options: {api_name: string, is_matrix: boolean})
---@param info torch.Tensor
---@param api_name string
---@param options {is_matrix: boolean}
function torch._linalg_check_errors(info, api_name, options) end
Tensor._linalg_check_errors = torch._linalg_check_errors
---@param A torch.Tensor
---@param options? {result: torch.Tensor?, LU: torch.Tensor?, pivots: torch.Tensor?}
---@return torch.Tensor result
---@return torch.Tensor LU
---@return torch.Tensor pivots
function torch._linalg_det(A, options) end
Tensor._linalg_det = torch._linalg_det
---@overload fun(A: torch.Tensor, options: {UPLO: string?, compute_v: boolean?, eigenvalues: torch.Tensor?, eigenvectors: torch.Tensor?}): torch.Tensor, torch.Tensor
---@param A torch.Tensor
---@param UPLO? string
---@param compute_v? boolean
---@param options? {eigenvalues: torch.Tensor?, eigenvectors: torch.Tensor?}
---@return torch.Tensor eigenvalues
---@return torch.Tensor eigenvectors
function torch._linalg_eigh(A, UPLO, compute_v, options) end
Tensor._linalg_eigh = torch._linalg_eigh
---@param self torch.Tensor
---@return torch.Tensor
function torch._linalg_eigvals(self) end
Tensor._linalg_eigvals = torch._linalg_eigvals
---@param A torch.Tensor
---@param options? {sign: torch.Tensor?, logabsdet: torch.Tensor?, LU: torch.Tensor?, pivots: torch.Tensor?}
---@return torch.Tensor sign
---@return torch.Tensor logabsdet
---@return torch.Tensor LU
---@return torch.Tensor pivots
function torch._linalg_slogdet(A, options) end
Tensor._linalg_slogdet = torch._linalg_slogdet
---@param A torch.Tensor
---@param B torch.Tensor
---@param options? {left: boolean?, check_errors: boolean?, result: torch.Tensor?, LU: torch.Tensor?, pivots: torch.Tensor?, info: torch.Tensor?}
---@return torch.Tensor result
---@return torch.Tensor LU
---@return torch.Tensor pivots
---@return torch.Tensor info
function torch._linalg_solve_ex(A, B, options) end
Tensor._linalg_solve_ex = torch._linalg_solve_ex
---@overload fun(A: torch.Tensor, options: {full_matrices: boolean?, compute_uv: boolean?, driver: string?, U: torch.Tensor?, S: torch.Tensor?, Vh: torch.Tensor?}): torch.Tensor, torch.Tensor, torch.Tensor
---@param A torch.Tensor
---@param full_matrices? boolean
---@param compute_uv? boolean
---@param options? {driver: string?, U: torch.Tensor?, S: torch.Tensor?, Vh: torch.Tensor?}
---@return torch.Tensor U
---@return torch.Tensor S
---@return torch.Tensor Vh
function torch._linalg_svd(A, full_matrices, compute_uv, options) end
Tensor._linalg_svd = torch._linalg_svd
---@param self torch.Tensor
---@return number
function torch._local_scalar_dense(self) end
Tensor._local_scalar_dense = torch._local_scalar_dense
---@overload fun(self: torch.Tensor, options: {dim: integer, half_to_float: boolean, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@param half_to_float boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._log_softmax(self, dim, half_to_float, options) end
Tensor._log_softmax = torch._log_softmax
---@overload fun(grad_output: torch.Tensor, output: torch.Tensor, options: {dim: integer, input_dtype: torch.dtype, out: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param output torch.Tensor
---@param dim integer
---@param input_dtype torch.dtype
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._log_softmax_backward_data(grad_output, output, dim, input_dtype, options) end
Tensor._log_softmax_backward_data = torch._log_softmax_backward_data
---@overload fun(self: torch.Tensor, options: {dim: integer, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._logcumsumexp(self, dim, options) end
Tensor._logcumsumexp = torch._logcumsumexp
---@overload fun(input: torch.Tensor, hx: torch.Tensor[], params: torch.Tensor[], options: {has_biases: boolean, num_layers: integer, dropout: number, train: boolean, bidirectional: boolean, batch_first: boolean, out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?, out3: torch.Tensor?, out4: torch.Tensor?, out5: torch.Tensor?}): torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor
---@param input torch.Tensor
---@param hx torch.Tensor[]
---@param params torch.Tensor[]
---@param has_biases boolean
---@param num_layers integer
---@param dropout number
---@param train boolean
---@param bidirectional boolean
---@param batch_first boolean
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?, out3: torch.Tensor?, out4: torch.Tensor?, out5: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch._lstm_mps(input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first, options) end
Tensor._lstm_mps = torch._lstm_mps
---@overload fun(self: torch.Tensor, options: {pivot: boolean?, check_errors: boolean?}): torch.Tensor, torch.Tensor, torch.Tensor
---@param self torch.Tensor
---@param pivot? boolean
---@param check_errors? boolean
---@return torch.Tensor LU
---@return torch.Tensor pivots
---@return torch.Tensor info
function torch._lu_with_info(self, pivot, check_errors) end
Tensor._lu_with_info = torch._lu_with_info
---@param options? {dtype: torch.dtype?, layout: torch.layout?, device: string?, pin_memory: boolean?, requires_grad: boolean?, memory_format: torch.memory_format?}
---@return torch.Tensor
function torch._make_dep_token(options) end
---@overload fun(primal: torch.Tensor, tangent: torch.Tensor, options: {level: integer}): torch.Tensor
---@param primal torch.Tensor
---@param tangent torch.Tensor
---@param level integer
---@return torch.Tensor
function torch._make_dual(primal, tangent, level) end
Tensor._make_dual = torch._make_dual
---@overload fun(primal: torch.Tensor, tangent: torch.Tensor, options: {level: integer, out: torch.Tensor?}): torch.Tensor
---@param primal torch.Tensor
---@param tangent torch.Tensor
---@param level integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._make_dual_copy(primal, tangent, level, options) end
Tensor._make_dual_copy = torch._make_dual_copy
---@overload fun(self: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, options: {axis: integer, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param scale torch.Tensor
---@param zero_point torch.Tensor
---@param axis integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._make_per_channel_quantized_tensor(self, scale, zero_point, axis, options) end
Tensor._make_per_channel_quantized_tensor = torch._make_per_channel_quantized_tensor
---@overload fun(self: torch.Tensor, options: {scale: number, zero_point: integer, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param scale number
---@param zero_point integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._make_per_tensor_quantized_tensor(self, scale, zero_point, options) end
Tensor._make_per_tensor_quantized_tensor = torch._make_per_tensor_quantized_tensor
---@overload fun(self: torch.Tensor, mask: torch.Tensor, options: {scale: number, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param mask torch.Tensor
---@param scale number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._masked_scale(self, mask, scale, options) end
Tensor._masked_scale = torch._masked_scale
---@overload fun(self: torch.Tensor, mask: torch.Tensor, options: {dim: integer?, mask_type: integer?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param mask torch.Tensor
---@param dim? integer
---@param mask_type? integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._masked_softmax(self, mask, dim, mask_type, options) end
Tensor._masked_softmax = torch._masked_softmax
---@overload fun(grad_output: torch.Tensor, output: torch.Tensor, mask: torch.Tensor, options: {dim: integer?, out: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param output torch.Tensor
---@param mask torch.Tensor
---@param dim? integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._masked_softmax_backward(grad_output, output, mask, dim, options) end
Tensor._masked_softmax_backward = torch._masked_softmax_backward
---@param input torch.Tensor
---@param weight torch.Tensor
---@param scale torch.Tensor
---@param options? {bias: torch.Tensor?, activation: string?}
---@return torch.Tensor
function torch._mixed_dtypes_linear(input, weight, scale, options) end
Tensor._mixed_dtypes_linear = torch._mixed_dtypes_linear
---@overload fun(self: torch.Tensor, ...: integer|table): torch.Tensor
---@param self torch.Tensor
---@param shape integer[]
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._mkldnn_reshape(self, shape, options) end
Tensor._mkldnn_reshape = torch._mkldnn_reshape
---@overload fun(self: torch.Tensor, options: {dim0: integer, dim1: integer, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param dim0 integer
---@param dim1 integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._mkldnn_transpose(self, dim0, dim1, options) end
Tensor._mkldnn_transpose = torch._mkldnn_transpose
---@overload fun(self: torch.Tensor, options: {dim0: integer, dim1: integer}): torch.Tensor
---@param self torch.Tensor
---@param dim0 integer
---@param dim1 integer
---@return torch.Tensor
function torch._mkldnn_transpose_(self, dim0, dim1) end
Tensor._mkldnn_transpose_ = torch._mkldnn_transpose_
---@overload fun(self: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor?, options: {padding: integer[], stride: integer[], dilation: integer[], groups: integer, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param weight torch.Tensor
---@param bias torch.Tensor?
---@param padding integer[]
---@param stride integer[]
---@param dilation integer[]
---@param groups integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._mps_convolution(self, weight, bias, padding, stride, dilation, groups, options) end
Tensor._mps_convolution = torch._mps_convolution
---@overload fun(self: torch.Tensor, weight: torch.Tensor, options: {padding: integer[], output_padding: integer[], stride: integer[], dilation: integer[], groups: integer, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param weight torch.Tensor
---@param padding integer[]
---@param output_padding integer[]
---@param stride integer[]
---@param dilation integer[]
---@param groups integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._mps_convolution_transpose(self, weight, padding, output_padding, stride, dilation, groups, options) end
Tensor._mps_convolution_transpose = torch._mps_convolution_transpose
---@overload fun(input: torch.Tensor, weight: torch.Tensor?, bias: torch.Tensor?, running_mean: torch.Tensor, running_var: torch.Tensor, options: {training: boolean, momentum: number, eps: number, out: torch.Tensor?, save_mean: torch.Tensor?, save_invstd: torch.Tensor?}): torch.Tensor, torch.Tensor, torch.Tensor
---@overload fun(input: torch.Tensor, weight: torch.Tensor?, bias: torch.Tensor?, training: boolean, momentum: number, eps: number, options: {out: torch.Tensor?, save_mean: torch.Tensor?, save_invstd: torch.Tensor?}?): torch.Tensor, torch.Tensor, torch.Tensor
---@overload fun(input: torch.Tensor, weight: torch.Tensor?, bias: torch.Tensor?, options: {training: boolean, momentum: number, eps: number, out: torch.Tensor?, save_mean: torch.Tensor?, save_invstd: torch.Tensor?}): torch.Tensor, torch.Tensor, torch.Tensor
---@param input torch.Tensor
---@param weight torch.Tensor?
---@param bias torch.Tensor?
---@param running_mean torch.Tensor
---@param running_var torch.Tensor
---@param training boolean
---@param momentum number
---@param eps number
---@param options? {out: torch.Tensor?, save_mean: torch.Tensor?, save_invstd: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch._native_batch_norm_legit(input, weight, bias, running_mean, running_var, training, momentum, eps, options) end
Tensor._native_batch_norm_legit = torch._native_batch_norm_legit
---@overload fun(input: torch.Tensor, weight: torch.Tensor?, bias: torch.Tensor?, running_mean: torch.Tensor, running_var: torch.Tensor, options: {training: boolean, momentum: number, eps: number}): torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor
---@param input torch.Tensor
---@param weight torch.Tensor?
---@param bias torch.Tensor?
---@param running_mean torch.Tensor
---@param running_var torch.Tensor
---@param training boolean
---@param momentum number
---@param eps number
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor running_mean_out
---@return torch.Tensor running_var_out
function torch._native_batch_norm_legit_functional(input, weight, bias, running_mean, running_var, training, momentum, eps) end
Tensor._native_batch_norm_legit_functional = torch._native_batch_norm_legit_functional
---@overload fun(input: torch.Tensor, weight: torch.Tensor?, bias: torch.Tensor?, running_mean: torch.Tensor, running_var: torch.Tensor, options: {momentum: number, eps: number, out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?}): torch.Tensor, torch.Tensor, torch.Tensor
---@param input torch.Tensor
---@param weight torch.Tensor?
---@param bias torch.Tensor?
---@param running_mean torch.Tensor
---@param running_var torch.Tensor
---@param momentum number
---@param eps number
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch._native_batch_norm_legit_no_training(input, weight, bias, running_mean, running_var, momentum, eps, options) end
Tensor._native_batch_norm_legit_no_training = torch._native_batch_norm_legit_no_training
---@overload fun(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: {embed_dim: integer, num_head: integer, qkv_weight: torch.Tensor, qkv_bias: torch.Tensor, proj_weight: torch.Tensor, proj_bias: torch.Tensor, mask: torch.Tensor?, need_weights: boolean?, average_attn_weights: boolean?, mask_type: integer?, out0: torch.Tensor?, out1: torch.Tensor?}): torch.Tensor, torch.Tensor
---@param query torch.Tensor
---@param key torch.Tensor
---@param value torch.Tensor
---@param embed_dim integer
---@param num_head integer
---@param qkv_weight torch.Tensor
---@param qkv_bias torch.Tensor
---@param proj_weight torch.Tensor
---@param proj_bias torch.Tensor
---@param mask? torch.Tensor
---@param need_weights? boolean
---@param average_attn_weights? boolean
---@param mask_type? integer
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
function torch._native_multi_head_attention(query, key, value, embed_dim, num_head, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, need_weights, average_attn_weights, mask_type, options) end
Tensor._native_multi_head_attention = torch._native_multi_head_attention
---@param self torch.Tensor
---@return torch.Tensor
function torch._neg_view(self) end
Tensor._neg_view = torch._neg_view
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._neg_view_copy(self, options) end
Tensor._neg_view_copy = torch._neg_view_copy
---@param nested_size torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch._nested_compute_contiguous_strides_offsets(nested_size) end
Tensor._nested_compute_contiguous_strides_offsets = torch._nested_compute_contiguous_strides_offsets
---@overload fun(padded: torch.Tensor, cpu_nested_shape_example: torch.Tensor, options: {fuse_transform_0213: boolean?, out: torch.Tensor?}): torch.Tensor
---@param padded torch.Tensor
---@param cpu_nested_shape_example torch.Tensor
---@param fuse_transform_0213? boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._nested_from_padded(padded, cpu_nested_shape_example, fuse_transform_0213, options) end
Tensor._nested_from_padded = torch._nested_from_padded
---@param padded torch.Tensor
---@param nt_example torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._nested_from_padded_and_nested_example(padded, nt_example, options) end
Tensor._nested_from_padded_and_nested_example = torch._nested_from_padded_and_nested_example
---@overload fun(padded: torch.Tensor, offsets: torch.Tensor, dummy: torch.Tensor, options: {ragged_idx: integer?, min_seqlen: torch.Tensor?, max_seqlen: torch.Tensor?, sum_S: integer?}): torch.Tensor
---@param padded torch.Tensor
---@param offsets torch.Tensor
---@param dummy torch.Tensor
---@param ragged_idx? integer
---@param min_seqlen? torch.Tensor
---@param max_seqlen? torch.Tensor
---@param sum_S? integer
---@return torch.Tensor
function torch._nested_from_padded_tensor(padded, offsets, dummy, ragged_idx, min_seqlen, max_seqlen, sum_S) end
Tensor._nested_from_padded_tensor = torch._nested_from_padded_tensor
---@param any torch.Tensor
---@return torch.Tensor
function torch._nested_get_jagged_dummy(any) end
Tensor._nested_get_jagged_dummy = torch._nested_get_jagged_dummy
---@param self torch.Tensor
---@return torch.Tensor
function torch._nested_get_lengths(self) end
Tensor._nested_get_lengths = torch._nested_get_lengths
---@param self torch.Tensor
---@return torch.Tensor
function torch._nested_get_max_seqlen(self) end
Tensor._nested_get_max_seqlen = torch._nested_get_max_seqlen
---@param self torch.Tensor
---@return torch.Tensor
function torch._nested_get_min_seqlen(self) end
Tensor._nested_get_min_seqlen = torch._nested_get_min_seqlen
---@param self torch.Tensor
---@return torch.Tensor
function torch._nested_get_offsets(self) end
Tensor._nested_get_offsets = torch._nested_get_offsets
---@param self torch.Tensor
---@return integer
function torch._nested_get_ragged_idx(self) end
Tensor._nested_get_ragged_idx = torch._nested_get_ragged_idx
---@param self torch.Tensor
---@return torch.Tensor
function torch._nested_get_values(self) end
Tensor._nested_get_values = torch._nested_get_values
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._nested_get_values_copy(self, options) end
Tensor._nested_get_values_copy = torch._nested_get_values_copy
---@overload fun(grad_output: torch.Tensor, self: torch.Tensor|number, options: {dim: integer, index: integer}): torch.Tensor
---@param grad_output torch.Tensor
---@param self torch.Tensor|number
---@param dim integer
---@param index integer
---@return torch.Tensor
function torch._nested_select_backward(grad_output, self, dim, index) end
Tensor._nested_select_backward = torch._nested_select_backward
---@overload fun(grad: torch.Tensor, self: torch.Tensor|number, options: {dim: (integer|integer[])?, keepdim: boolean?}): torch.Tensor
---@param grad torch.Tensor
---@param self torch.Tensor|number
---@param dim (integer|integer[])?
---@param keepdim? boolean
---@return torch.Tensor
function torch._nested_sum_backward(grad, self, dim, keepdim) end
Tensor._nested_sum_backward = torch._nested_sum_backward
---@overload fun(t: torch.Tensor, mask: torch.Tensor, options: {mask_check: boolean?, out: torch.Tensor?}): torch.Tensor
---@param t torch.Tensor
---@param mask torch.Tensor
---@param mask_check? boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._nested_tensor_from_mask(t, mask, mask_check, options) end
Tensor._nested_tensor_from_mask = torch._nested_tensor_from_mask
---@param t torch.Tensor
---@param mask torch.Tensor
---@return boolean
function torch._nested_tensor_from_mask_left_aligned(t, mask) end
Tensor._nested_tensor_from_mask_left_aligned = torch._nested_tensor_from_mask_left_aligned
---@overload fun(list: torch.Tensor[], options: {dtype: torch.dtype?, layout: torch.layout?, device: string?, pin_memory: boolean?, requires_grad: boolean?, out: torch.Tensor?}): torch.Tensor
---@param list torch.Tensor[]
---@param dtype? torch.dtype
---@param layout? torch.layout
---@param device? string
---@param pin_memory? boolean
---@param options? {requires_grad: boolean?, out: torch.Tensor?}
---@return torch.Tensor
function torch._nested_tensor_from_tensor_list(list, dtype, layout, device, pin_memory, options) end
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._nested_tensor_size(self, options) end
Tensor._nested_tensor_size = torch._nested_tensor_size
---@param self torch.Tensor
---@param query torch.Tensor
---@return torch.Tensor
function torch._nested_tensor_softmax_with_shape(self, query) end
Tensor._nested_tensor_softmax_with_shape = torch._nested_tensor_softmax_with_shape
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._nested_tensor_storage_offsets(self, options) end
Tensor._nested_tensor_storage_offsets = torch._nested_tensor_storage_offsets
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._nested_tensor_strides(self, options) end
Tensor._nested_tensor_strides = torch._nested_tensor_strides
---@param self torch.Tensor
---@param nested_size torch.Tensor
---@param nested_strides torch.Tensor
---@param offsets torch.Tensor
---@return torch.Tensor
function torch._nested_view_from_buffer(self, nested_size, nested_strides, offsets) end
Tensor._nested_view_from_buffer = torch._nested_view_from_buffer
---@param self torch.Tensor
---@param nested_size torch.Tensor
---@param nested_strides torch.Tensor
---@param offsets torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._nested_view_from_buffer_copy(self, nested_size, nested_strides, offsets, options) end
Tensor._nested_view_from_buffer_copy = torch._nested_view_from_buffer_copy
---@overload fun(self: torch.Tensor, offsets: torch.Tensor, dummy: torch.Tensor, options: {lengths: torch.Tensor?, ragged_idx: integer?, min_seqlen: torch.Tensor?, max_seqlen: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param offsets torch.Tensor
---@param dummy torch.Tensor
---@param lengths? torch.Tensor
---@param ragged_idx? integer
---@param min_seqlen? torch.Tensor
---@param max_seqlen? torch.Tensor
---@return torch.Tensor
function torch._nested_view_from_jagged(self, offsets, dummy, lengths, ragged_idx, min_seqlen, max_seqlen) end
Tensor._nested_view_from_jagged = torch._nested_view_from_jagged
---@overload fun(self: torch.Tensor, offsets: torch.Tensor, dummy: torch.Tensor, options: {lengths: torch.Tensor?, ragged_idx: integer?, min_seqlen: torch.Tensor?, max_seqlen: torch.Tensor?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param offsets torch.Tensor
---@param dummy torch.Tensor
---@param lengths? torch.Tensor
---@param ragged_idx? integer
---@param min_seqlen? torch.Tensor
---@param max_seqlen? torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._nested_view_from_jagged_copy(self, offsets, dummy, lengths, ragged_idx, min_seqlen, max_seqlen, options) end
Tensor._nested_view_from_jagged_copy = torch._nested_view_from_jagged_copy
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {self_num_batch_dims: integer?, out: torch.Tensor?}
---@return torch.Tensor
function torch._new_zeros_with_same_feature_meta(self, other, options) end
Tensor._new_zeros_with_same_feature_meta = torch._new_zeros_with_same_feature_meta
---@return boolean
function torch._nnpack_available() end
---@overload fun(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor?, options: {padding: integer|integer[], stride: (integer|integer[])?, out: torch.Tensor?}): torch.Tensor
---@param input torch.Tensor
---@param weight torch.Tensor
---@param bias torch.Tensor?
---@param padding integer|integer[]
---@param stride? integer|integer[]
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._nnpack_spatial_convolution(input, weight, bias, padding, stride, options) end
Tensor._nnpack_spatial_convolution = torch._nnpack_spatial_convolution
---@param self torch.Tensor
---@return integer
function torch._nnz(self) end
Tensor._nnz = torch._nnz
---@overload fun(input: torch.Tensor, lengths: torch.Tensor, options: {batch_first: boolean, out0: torch.Tensor?, out1: torch.Tensor?}): torch.Tensor, torch.Tensor
---@param input torch.Tensor
---@param lengths torch.Tensor
---@param batch_first boolean
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
function torch._pack_padded_sequence(input, lengths, batch_first, options) end
Tensor._pack_padded_sequence = torch._pack_padded_sequence
---@overload fun(grad: torch.Tensor, options: {input_size: integer[], batch_sizes: torch.Tensor, batch_first: boolean}): torch.Tensor
---@param grad torch.Tensor
---@param input_size integer[]
---@param batch_sizes torch.Tensor
---@param batch_first boolean
---@return torch.Tensor
function torch._pack_padded_sequence_backward(grad, input_size, batch_sizes, batch_first) end
Tensor._pack_padded_sequence_backward = torch._pack_padded_sequence_backward
---@overload fun(self: torch.Tensor, ...: integer): torch.Tensor
---@param self torch.Tensor
---@param pad integer[]
---@return torch.Tensor
function torch._pad_circular(self, pad) end
Tensor._pad_circular = torch._pad_circular
---@overload fun(self: torch.Tensor, options: {pad: integer[], mode: integer, value: number?}): torch.Tensor
---@param self torch.Tensor
---@param pad integer[]
---@param mode integer
---@param value? number
---@return torch.Tensor
function torch._pad_enum(self, pad, mode, value) end
Tensor._pad_enum = torch._pad_enum
---@overload fun(data: torch.Tensor, batch_sizes: torch.Tensor, options: {batch_first: boolean, padding_value: torch.Scalar, total_length: integer}): torch.Tensor, torch.Tensor
---@param data torch.Tensor
---@param batch_sizes torch.Tensor
---@param batch_first boolean
---@param padding_value torch.Scalar
---@param total_length integer
---@return torch.Tensor
---@return torch.Tensor
function torch._pad_packed_sequence(data, batch_sizes, batch_first, padding_value, total_length) end
Tensor._pad_packed_sequence = torch._pad_packed_sequence
---@overload fun(dense: torch.Tensor, offsets: torch.Tensor[], options: {total_L: integer?}): torch.Tensor
---@param dense torch.Tensor
---@param offsets torch.Tensor[]
---@param total_L? integer
---@return torch.Tensor
function torch._padded_dense_to_jagged_forward(dense, offsets, total_L) end
Tensor._padded_dense_to_jagged_forward = torch._padded_dense_to_jagged_forward
---@overload fun(grad: torch.Tensor, self: torch.Tensor|number, options: {p: number, pdist: torch.Tensor, out: torch.Tensor?}): torch.Tensor
---@param grad torch.Tensor
---@param self torch.Tensor|number
---@param p number
---@param pdist torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._pdist_backward(grad, self, p, pdist, options) end
Tensor._pdist_backward = torch._pdist_backward
---@overload fun(self: torch.Tensor, options: {p: number?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param p? number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._pdist_forward(self, p, options) end
Tensor._pdist_forward = torch._pdist_forward
---@overload fun(self: torch.Tensor, options: {device: string?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param device? string
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._pin_memory(self, device, options) end
Tensor._pin_memory = torch._pin_memory
---@param self torch.Tensor
---@param weight torch.Tensor
---@return torch.Tensor
function torch._prelu_kernel(self, weight) end
Tensor._prelu_kernel = torch._prelu_kernel
---@param grad_output torch.Tensor
---@param self torch.Tensor|number
---@param weight torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch._prelu_kernel_backward(grad_output, self, weight) end
Tensor._prelu_kernel_backward = torch._prelu_kernel_backward
---@param s string
function torch._print(s) end
---@param input torch.Tensor
---@param output torch.Tensor
function torch._propagate_xla_data(input, output) end
Tensor._propagate_xla_data = torch._propagate_xla_data
---@overload fun(self: torch.Tensor, options: {level: integer, batch_size: integer, out_dim: integer}): torch.Tensor
---@param self torch.Tensor
---@param level integer
---@param batch_size integer
---@param out_dim integer
---@return torch.Tensor
function torch._remove_batch_dim(self, level, batch_size, out_dim) end
Tensor._remove_batch_dim = torch._remove_batch_dim
---@overload fun(self: torch.Tensor, size: integer[], ...: integer): torch.Tensor
---@overload fun(self: torch.Tensor, options: {size: integer[], stride: integer[]}): torch.Tensor
---@param self torch.Tensor
---@param size integer[]
---@param stride integer[]
---@return torch.Tensor
function torch._reshape_alias(self, size, stride) end
Tensor._reshape_alias = torch._reshape_alias
---@overload fun(self: torch.Tensor, size: integer[], ...: integer|table): torch.Tensor
---@overload fun(self: torch.Tensor, options: {size: integer[], stride: integer[], out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param size integer[]
---@param stride integer[]
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._reshape_alias_copy(self, size, stride, options) end
Tensor._reshape_alias_copy = torch._reshape_alias_copy
---@overload fun(self: torch.Tensor, ...: integer): torch.Tensor
---@param self torch.Tensor
---@param size integer[]
---@return torch.Tensor
function torch._reshape_copy(self, size) end
Tensor._reshape_copy = torch._reshape_copy
---@param self torch.Tensor
---@param shape torch.Tensor
---@return torch.Tensor
function torch._reshape_from_tensor(self, shape) end
Tensor._reshape_from_tensor = torch._reshape_from_tensor
---@overload fun(self: torch.Tensor, options: {size: integer[], device: string, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param size integer[]
---@param device string
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._resize_output(self, size, device, options) end
Tensor._resize_output = torch._resize_output
---@overload fun(self: torch.Tensor, options: {size: integer[], device: string}): torch.Tensor
---@param self torch.Tensor
---@param size integer[]
---@param device string
---@return torch.Tensor
function torch._resize_output_(self, size, device) end
Tensor._resize_output_ = torch._resize_output_
---@overload fun(weight: torch.Tensor, mask: torch.Tensor, options: {compressed_indices_dtype: torch.dtype}): torch.Tensor, torch.Tensor
---@param weight torch.Tensor
---@param mask torch.Tensor
---@param compressed_indices_dtype torch.dtype
---@return torch.Tensor
---@return torch.Tensor
function torch._rowwise_prune(weight, mask, compressed_indices_dtype) end
Tensor._rowwise_prune = torch._rowwise_prune
---@overload fun(self: torch.Tensor, options: {dim: integer, dtype: torch.dtype?}): torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@param dtype? torch.dtype
---@return torch.Tensor
function torch._safe_softmax(self, dim, dtype) end
Tensor._safe_softmax = torch._safe_softmax
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._sample_dirichlet(self, options) end
Tensor._sample_dirichlet = torch._sample_dirichlet
---@param weight torch.Tensor
---@return torch.Tensor
function torch._saturate_weight_to_fp16(weight) end
Tensor._saturate_weight_to_fp16 = torch._saturate_weight_to_fp16
---@overload fun(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: {attn_mask: torch.Tensor?, dropout_p: number?, is_causal: boolean?, dropout_mask: torch.Tensor?, scale: number?, enable_gqa: boolean?}): torch.Tensor, torch.Tensor
---@param query torch.Tensor
---@param key torch.Tensor
---@param value torch.Tensor
---@param attn_mask? torch.Tensor
---@param dropout_p? number
---@param is_causal? boolean
---@param dropout_mask? torch.Tensor
---@param options? {scale: number?, enable_gqa: boolean?}
---@return torch.Tensor
---@return torch.Tensor
function torch._scaled_dot_product_attention_math(query, key, value, attn_mask, dropout_p, is_causal, dropout_mask, options) end
Tensor._scaled_dot_product_attention_math = torch._scaled_dot_product_attention_math
---@overload fun(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: {attn_mask: torch.Tensor?, dropout_p: number?, is_causal: boolean?, dropout_mask: torch.Tensor?, scale: number?}): torch.Tensor, torch.Tensor
---@param query torch.Tensor
---@param key torch.Tensor
---@param value torch.Tensor
---@param attn_mask? torch.Tensor
---@param dropout_p? number
---@param is_causal? boolean
---@param dropout_mask? torch.Tensor
---@param options? {scale: number?}
---@return torch.Tensor
---@return torch.Tensor
function torch._scaled_dot_product_attention_math_for_mps(query, key, value, attn_mask, dropout_p, is_causal, dropout_mask, options) end
Tensor._scaled_dot_product_attention_math_for_mps = torch._scaled_dot_product_attention_math_for_mps
---@overload fun(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_bias: torch.Tensor?, options: {compute_log_sumexp: boolean, dropout_p: number?, is_causal: boolean?, return_debug_mask: boolean?, scale: number?}): torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, integer, integer, torch.Tensor, torch.Tensor, torch.Tensor
---@param query torch.Tensor
---@param key torch.Tensor
---@param value torch.Tensor
---@param attn_bias torch.Tensor?
---@param compute_log_sumexp boolean
---@param dropout_p? number
---@param is_causal? boolean
---@param return_debug_mask? boolean
---@param options? {scale: number?}
---@return torch.Tensor output
---@return torch.Tensor logsumexp
---@return torch.Tensor cum_seq_q
---@return torch.Tensor cum_seq_k
---@return integer max_q
---@return integer max_k
---@return torch.Tensor philox_seed
---@return torch.Tensor philox_offset
---@return torch.Tensor debug_attn_mask
function torch._scaled_dot_product_cudnn_attention(query, key, value, attn_bias, compute_log_sumexp, dropout_p, is_causal, return_debug_mask, options) end
Tensor._scaled_dot_product_cudnn_attention = torch._scaled_dot_product_cudnn_attention
---@overload fun(grad_out: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, out: torch.Tensor, logsumexp: torch.Tensor, philox_seed: torch.Tensor, philox_offset: torch.Tensor, attn_bias: torch.Tensor, cum_seq_q: torch.Tensor, cum_seq_k: torch.Tensor, options: {max_q: integer, max_k: integer, dropout_p: number, is_causal: boolean, scale: number?}): torch.Tensor, torch.Tensor, torch.Tensor
---@param grad_out torch.Tensor
---@param query torch.Tensor
---@param key torch.Tensor
---@param value torch.Tensor
---@param out torch.Tensor
---@param logsumexp torch.Tensor
---@param philox_seed torch.Tensor
---@param philox_offset torch.Tensor
---@param attn_bias torch.Tensor
---@param cum_seq_q torch.Tensor
---@param cum_seq_k torch.Tensor
---@param max_q integer
---@param max_k integer
---@param dropout_p number
---@param is_causal boolean
---@param options? {scale: number?}
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch._scaled_dot_product_cudnn_attention_backward(grad_out, query, key, value, out, logsumexp, philox_seed, philox_offset, attn_bias, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, options) end
Tensor._scaled_dot_product_cudnn_attention_backward = torch._scaled_dot_product_cudnn_attention_backward
---@overload fun(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_bias: torch.Tensor?, options: {compute_log_sumexp: boolean, dropout_p: number?, is_causal: boolean?, scale: number?}): torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor
---@param query torch.Tensor
---@param key torch.Tensor
---@param value torch.Tensor
---@param attn_bias torch.Tensor?
---@param compute_log_sumexp boolean
---@param dropout_p? number
---@param is_causal? boolean
---@param options? {scale: number?}
---@return torch.Tensor output
---@return torch.Tensor log_sumexp
---@return torch.Tensor philox_seed
---@return torch.Tensor philox_offset
function torch._scaled_dot_product_efficient_attention(query, key, value, attn_bias, compute_log_sumexp, dropout_p, is_causal, options) end
Tensor._scaled_dot_product_efficient_attention = torch._scaled_dot_product_efficient_attention
---@overload fun(grad_out_: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_bias: torch.Tensor, out: torch.Tensor, logsumexp: torch.Tensor, philox_seed: torch.Tensor, philox_offset: torch.Tensor, options: {dropout_p: number, grad_input_mask: boolean[], is_causal: boolean?, scale: number?}): torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor
---@param grad_out_ torch.Tensor
---@param query torch.Tensor
---@param key torch.Tensor
---@param value torch.Tensor
---@param attn_bias torch.Tensor
---@param out torch.Tensor
---@param logsumexp torch.Tensor
---@param philox_seed torch.Tensor
---@param philox_offset torch.Tensor
---@param dropout_p number
---@param grad_input_mask boolean[]
---@param is_causal? boolean
---@param options? {scale: number?}
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch._scaled_dot_product_efficient_attention_backward(grad_out_, query, key, value, attn_bias, out, logsumexp, philox_seed, philox_offset, dropout_p, grad_input_mask, is_causal, options) end
Tensor._scaled_dot_product_efficient_attention_backward = torch._scaled_dot_product_efficient_attention_backward
---@overload fun(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, q_descale: torch.Tensor?, k_descale: torch.Tensor?, v_descale: torch.Tensor?, options: {dropout_p: number?, is_causal: boolean?, return_debug_mask: boolean?, scale: number?}): torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, integer, integer, torch.Tensor, torch.Tensor, torch.Tensor
---@overload fun(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout_p: number?, is_causal: boolean?, return_debug_mask: boolean?, options: {scale: number?}?): torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, integer, integer, torch.Tensor, torch.Tensor, torch.Tensor
---@overload fun(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: {dropout_p: number?, is_causal: boolean?, return_debug_mask: boolean?, scale: number?}): torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, integer, integer, torch.Tensor, torch.Tensor, torch.Tensor
---@param query torch.Tensor
---@param key torch.Tensor
---@param value torch.Tensor
---@param q_descale torch.Tensor?
---@param k_descale torch.Tensor?
---@param v_descale torch.Tensor?
---@param dropout_p? number
---@param is_causal? boolean
---@param return_debug_mask? boolean
---@param options? {scale: number?}
---@return torch.Tensor output
---@return torch.Tensor logsumexp
---@return torch.Tensor cum_seq_q
---@return torch.Tensor cum_seq_k
---@return integer max_q
---@return integer max_k
---@return torch.Tensor rng_state
---@return torch.Tensor unused
---@return torch.Tensor debug_attn_mask
function torch._scaled_dot_product_flash_attention(query, key, value, q_descale, k_descale, v_descale, dropout_p, is_causal, return_debug_mask, options) end
Tensor._scaled_dot_product_flash_attention = torch._scaled_dot_product_flash_attention
---@overload fun(grad_out: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, out: torch.Tensor, logsumexp: torch.Tensor, cum_seq_q: torch.Tensor, cum_seq_k: torch.Tensor, options: {max_q: integer, max_k: integer, dropout_p: number, is_causal: boolean, philox_seed: torch.Tensor, philox_offset: torch.Tensor, scale: number?}): torch.Tensor, torch.Tensor, torch.Tensor
---@param grad_out torch.Tensor
---@param query torch.Tensor
---@param key torch.Tensor
---@param value torch.Tensor
---@param out torch.Tensor
---@param logsumexp torch.Tensor
---@param cum_seq_q torch.Tensor
---@param cum_seq_k torch.Tensor
---@param max_q integer
---@param max_k integer
---@param dropout_p number
---@param is_causal boolean
---@param philox_seed torch.Tensor
---@param philox_offset torch.Tensor
---@param options? {scale: number?}
---@return torch.Tensor grad_query
---@return torch.Tensor grad_key
---@return torch.Tensor grad_value
function torch._scaled_dot_product_flash_attention_backward(grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, philox_seed, philox_offset, options) end
Tensor._scaled_dot_product_flash_attention_backward = torch._scaled_dot_product_flash_attention_backward
---@overload fun(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: {dropout_p: number?, is_causal: boolean?, attn_mask: torch.Tensor?, scale: number?}): torch.Tensor, torch.Tensor
---@param query torch.Tensor
---@param key torch.Tensor
---@param value torch.Tensor
---@param dropout_p? number
---@param is_causal? boolean
---@param options? {attn_mask: torch.Tensor?, scale: number?}
---@return torch.Tensor output
---@return torch.Tensor logsumexp
function torch._scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout_p, is_causal, options) end
Tensor._scaled_dot_product_flash_attention_for_cpu = torch._scaled_dot_product_flash_attention_for_cpu
---@overload fun(grad_out: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, out: torch.Tensor, logsumexp: torch.Tensor, options: {dropout_p: number, is_causal: boolean, attn_mask: torch.Tensor?, scale: number?}): torch.Tensor, torch.Tensor, torch.Tensor
---@param grad_out torch.Tensor
---@param query torch.Tensor
---@param key torch.Tensor
---@param value torch.Tensor
---@param out torch.Tensor
---@param logsumexp torch.Tensor
---@param dropout_p number
---@param is_causal boolean
---@param options? {attn_mask: torch.Tensor?, scale: number?}
---@return torch.Tensor grad_query
---@return torch.Tensor grad_key
---@return torch.Tensor grad_value
function torch._scaled_dot_product_flash_attention_for_cpu_backward(grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, options) end
Tensor._scaled_dot_product_flash_attention_for_cpu_backward = torch._scaled_dot_product_flash_attention_for_cpu_backward
---@overload fun(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: {attn_bias: torch.Tensor?, dropout_p: number?, is_causal: boolean?, return_debug_mask: boolean?, scale: number?}): torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, integer, integer, torch.Tensor, torch.Tensor, torch.Tensor
---@param query torch.Tensor
---@param key torch.Tensor
---@param value torch.Tensor
---@param attn_bias? torch.Tensor
---@param dropout_p? number
---@param is_causal? boolean
---@param return_debug_mask? boolean
---@param options? {scale: number?}
---@return torch.Tensor output
---@return torch.Tensor logsumexp
---@return torch.Tensor cum_seq_q
---@return torch.Tensor cum_seq_k
---@return integer max_q
---@return integer max_k
---@return torch.Tensor philox_seed
---@return torch.Tensor philox_offset
---@return torch.Tensor debug_attn_mask
function torch._scaled_dot_product_fused_attention_overrideable(query, key, value, attn_bias, dropout_p, is_causal, return_debug_mask, options) end
Tensor._scaled_dot_product_fused_attention_overrideable = torch._scaled_dot_product_fused_attention_overrideable
---@overload fun(grad_out: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_bias: torch.Tensor, options: {grad_input_mask: boolean[], out: torch.Tensor, logsumexp: torch.Tensor, cum_seq_q: torch.Tensor, cum_seq_k: torch.Tensor, max_q: integer, max_k: integer, dropout_p: number, is_causal: boolean, philox_seed: torch.Tensor, philox_offset: torch.Tensor, scale: number?}): torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor
---@param grad_out torch.Tensor
---@param query torch.Tensor
---@param key torch.Tensor
---@param value torch.Tensor
---@param attn_bias torch.Tensor
---@param grad_input_mask boolean[]
---@param out torch.Tensor
---@param logsumexp torch.Tensor
---@param cum_seq_q torch.Tensor
---@param cum_seq_k torch.Tensor
---@param max_q integer
---@param max_k integer
---@param dropout_p number
---@param is_causal boolean
---@param philox_seed torch.Tensor
---@param philox_offset torch.Tensor
---@param options? {scale: number?}
---@return torch.Tensor grad_query
---@return torch.Tensor grad_key
---@return torch.Tensor grad_value
---@return torch.Tensor grad_attn_bias
function torch._scaled_dot_product_fused_attention_overrideable_backward(grad_out, query, key, value, attn_bias, grad_input_mask, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, philox_seed, philox_offset, options) end
Tensor._scaled_dot_product_fused_attention_overrideable_backward = torch._scaled_dot_product_fused_attention_overrideable_backward
---@overload fun(self: torch.Tensor, mat2: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor, options: {offs: torch.Tensor?, bias: torch.Tensor?, scale_result: torch.Tensor?, out_dtype: torch.dtype?, use_fast_accum: boolean?}): torch.Tensor
---@param self torch.Tensor
---@param mat2 torch.Tensor
---@param scale_a torch.Tensor
---@param scale_b torch.Tensor
---@param offs? torch.Tensor
---@param bias? torch.Tensor
---@param scale_result? torch.Tensor
---@param out_dtype? torch.dtype
---@param use_fast_accum? boolean
---@return torch.Tensor
function torch._scaled_grouped_mm(self, mat2, scale_a, scale_b, offs, bias, scale_result, out_dtype, use_fast_accum) end
Tensor._scaled_grouped_mm = torch._scaled_grouped_mm
---@overload fun(self: torch.Tensor, mat2: torch.Tensor, scale_a: torch.Tensor[], options: {recipe_a: integer[], swizzle_a: integer[], scale_b: torch.Tensor[], recipe_b: integer[], swizzle_b: integer[], offs: torch.Tensor?, bias: torch.Tensor?, out_dtype: torch.dtype?, contraction_dim: integer[]?, use_fast_accum: boolean?}): torch.Tensor
---@param self torch.Tensor
---@param mat2 torch.Tensor
---@param scale_a torch.Tensor[]
---@param recipe_a integer[]
---@param swizzle_a integer[]
---@param scale_b torch.Tensor[]
---@param recipe_b integer[]
---@param swizzle_b integer[]
---@param offs? torch.Tensor
---@param bias? torch.Tensor
---@param out_dtype? torch.dtype
---@param contraction_dim? integer[]
---@param use_fast_accum? boolean
---@return torch.Tensor
function torch._scaled_grouped_mm_v2(self, mat2, scale_a, recipe_a, swizzle_a, scale_b, recipe_b, swizzle_b, offs, bias, out_dtype, contraction_dim, use_fast_accum) end
Tensor._scaled_grouped_mm_v2 = torch._scaled_grouped_mm_v2
---@overload fun(self: torch.Tensor, mat2: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor, options: {bias: torch.Tensor?, scale_result: torch.Tensor?, out_dtype: torch.dtype?, use_fast_accum: boolean?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param mat2 torch.Tensor
---@param scale_a torch.Tensor
---@param scale_b torch.Tensor
---@param bias? torch.Tensor
---@param scale_result? torch.Tensor
---@param out_dtype? torch.dtype
---@param use_fast_accum? boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._scaled_mm(self, mat2, scale_a, scale_b, bias, scale_result, out_dtype, use_fast_accum, options) end
Tensor._scaled_mm = torch._scaled_mm
---@overload fun(self: torch.Tensor, mat2: torch.Tensor, scale_a: torch.Tensor[], options: {recipe_a: integer[], swizzle_a: integer[], scale_b: torch.Tensor[], recipe_b: integer[], swizzle_b: integer[], bias: torch.Tensor?, out_dtype: torch.dtype?, contraction_dim: integer[]?, use_fast_accum: boolean?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param mat2 torch.Tensor
---@param scale_a torch.Tensor[]
---@param recipe_a integer[]
---@param swizzle_a integer[]
---@param scale_b torch.Tensor[]
---@param recipe_b integer[]
---@param swizzle_b integer[]
---@param bias torch.Tensor?
---@param out_dtype torch.dtype?
---@param contraction_dim? integer[]
---@param use_fast_accum? boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._scaled_mm_v2(self, mat2, scale_a, recipe_a, swizzle_a, scale_b, recipe_b, swizzle_b, bias, out_dtype, contraction_dim, use_fast_accum, options) end
Tensor._scaled_mm_v2 = torch._scaled_mm_v2
---@overload fun(grad: torch.Tensor, output: torch.Tensor, data: torch.Tensor, options: {reduce: string, lengths: torch.Tensor?, offsets: torch.Tensor?, axis: integer?, initial: torch.Scalar?, out: torch.Tensor?}): torch.Tensor
---@param grad torch.Tensor
---@param output torch.Tensor
---@param data torch.Tensor
---@param reduce string
---@param options? {lengths: torch.Tensor?, offsets: torch.Tensor?, axis: integer?, initial: torch.Scalar?, out: torch.Tensor?}
---@return torch.Tensor
function torch._segment_reduce_backward(grad, output, data, reduce, options) end
Tensor._segment_reduce_backward = torch._segment_reduce_backward
---@param self torch.Tensor
---@return torch.Tensor
function torch._shape_as_tensor(self) end
Tensor._shape_as_tensor = torch._shape_as_tensor
---@overload fun(grad_output: torch.Tensor, self: torch.Tensor|number, weight: torch.Tensor, options: {kernel_size: integer|integer[], stride: integer|integer[], padding: integer|integer[], output_mask: boolean[], out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?}): torch.Tensor, torch.Tensor, torch.Tensor
---@overload fun(grad_output: torch.Tensor, self: torch.Tensor|number, weight: torch.Tensor, kernel_size: integer|integer[], stride: integer|integer[], padding: integer|integer[], options: {grad_input: torch.Tensor, grad_weight: torch.Tensor, grad_bias: torch.Tensor}): torch.Tensor, torch.Tensor, torch.Tensor
---@overload fun(grad_output: torch.Tensor, self: torch.Tensor|number, weight: torch.Tensor, options: {kernel_size: integer|integer[], stride: integer|integer[], padding: integer|integer[], grad_input: torch.Tensor, grad_weight: torch.Tensor, grad_bias: torch.Tensor}): torch.Tensor, torch.Tensor, torch.Tensor
---@param grad_output torch.Tensor
---@param self torch.Tensor|number
---@param weight torch.Tensor
---@param kernel_size integer|integer[]
---@param stride integer|integer[]
---@param padding integer|integer[]
---@param output_mask boolean[]
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?}
---@return torch.Tensor grad_input
---@return torch.Tensor grad_weight
---@return torch.Tensor grad_bias
function torch._slow_conv2d_backward(grad_output, self, weight, kernel_size, stride, padding, output_mask, options) end
Tensor._slow_conv2d_backward = torch._slow_conv2d_backward
---@overload fun(self: torch.Tensor, weight: torch.Tensor, options: {kernel_size: integer|integer[], bias: torch.Tensor?, stride: integer|integer[], padding: integer|integer[], output: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param weight torch.Tensor
---@param kernel_size integer|integer[]
---@param bias torch.Tensor?
---@param stride integer|integer[]
---@param padding integer|integer[]
---@param options? {output: torch.Tensor?}
---@return torch.Tensor
function torch._slow_conv2d_forward(self, weight, kernel_size, bias, stride, padding, options) end
Tensor._slow_conv2d_forward = torch._slow_conv2d_forward
---@overload fun(quasi: torch.Tensor, options: {n: integer, sobolstate: torch.Tensor, dimension: integer, num_generated: integer, dtype: torch.dtype?}): torch.Tensor, torch.Tensor
---@param quasi torch.Tensor
---@param n integer
---@param sobolstate torch.Tensor
---@param dimension integer
---@param num_generated integer
---@param dtype torch.dtype?
---@return torch.Tensor
---@return torch.Tensor
function torch._sobol_engine_draw(quasi, n, sobolstate, dimension, num_generated, dtype) end
Tensor._sobol_engine_draw = torch._sobol_engine_draw
---@overload fun(self: torch.Tensor, options: {n: integer, sobolstate: torch.Tensor, dimension: integer, num_generated: integer}): torch.Tensor
---@param self torch.Tensor
---@param n integer
---@param sobolstate torch.Tensor
---@param dimension integer
---@param num_generated integer
---@return torch.Tensor
function torch._sobol_engine_ff_(self, n, sobolstate, dimension, num_generated) end
Tensor._sobol_engine_ff_ = torch._sobol_engine_ff_
---@overload fun(self: torch.Tensor, options: {dimension: integer}): torch.Tensor
---@param self torch.Tensor
---@param dimension integer
---@return torch.Tensor
function torch._sobol_engine_initialize_state_(self, dimension) end
Tensor._sobol_engine_initialize_state_ = torch._sobol_engine_initialize_state_
---@overload fun(self: torch.Tensor, ltm: torch.Tensor, options: {dimension: integer}): torch.Tensor
---@param self torch.Tensor
---@param ltm torch.Tensor
---@param dimension integer
---@return torch.Tensor
function torch._sobol_engine_scramble_(self, ltm, dimension) end
Tensor._sobol_engine_scramble_ = torch._sobol_engine_scramble_
---@overload fun(self: torch.Tensor, options: {dim: integer, half_to_float: boolean, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@param half_to_float boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._softmax(self, dim, half_to_float, options) end
Tensor._softmax = torch._softmax
---@overload fun(grad_output: torch.Tensor, output: torch.Tensor, options: {dim: integer, input_dtype: torch.dtype, grad_input: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param output torch.Tensor
---@param dim integer
---@param input_dtype torch.dtype
---@param options? {grad_input: torch.Tensor?}
---@return torch.Tensor
function torch._softmax_backward_data(grad_output, output, dim, input_dtype, options) end
Tensor._softmax_backward_data = torch._softmax_backward_data
---@param self torch.Tensor
---@param mat1 torch.Tensor
---@param mat2 torch.Tensor
---@param options? {beta: torch.Scalar?, alpha: torch.Scalar?, out: torch.Tensor?}
---@return torch.Tensor
function torch._sparse_addmm(self, mat1, mat2, options) end
Tensor._sparse_addmm = torch._sparse_addmm
---@overload fun(self: torch.Tensor, ...: integer): torch.Tensor
---@param self torch.Tensor
---@param size integer[]
---@return torch.Tensor
function torch._sparse_broadcast_to(self, size) end
Tensor._sparse_broadcast_to = torch._sparse_broadcast_to
---@overload fun(self: torch.Tensor, ...: integer|table): torch.Tensor
---@param self torch.Tensor
---@param size integer[]
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._sparse_broadcast_to_copy(self, size, options) end
Tensor._sparse_broadcast_to_copy = torch._sparse_broadcast_to_copy
---@overload fun(ccol_indices: torch.Tensor, row_indices: torch.Tensor, values: torch.Tensor, ...: integer|table): torch.Tensor
---@param ccol_indices torch.Tensor
---@param row_indices torch.Tensor
---@param values torch.Tensor
---@param size integer[]
---@param options? torch.FactoryOptions
---@return torch.Tensor
function torch._sparse_bsc_tensor_unsafe(ccol_indices, row_indices, values, size, options) end
Tensor._sparse_bsc_tensor_unsafe = torch._sparse_bsc_tensor_unsafe
---@overload fun(crow_indices: torch.Tensor, col_indices: torch.Tensor, values: torch.Tensor, ...: integer|table): torch.Tensor
---@param crow_indices torch.Tensor
---@param col_indices torch.Tensor
---@param values torch.Tensor
---@param size integer[]
---@param options? torch.FactoryOptions
---@return torch.Tensor
function torch._sparse_bsr_tensor_unsafe(crow_indices, col_indices, values, size, options) end
Tensor._sparse_bsr_tensor_unsafe = torch._sparse_bsr_tensor_unsafe
---@overload fun(compressed_indices: torch.Tensor, plain_indices: torch.Tensor, values: torch.Tensor, ...: integer|table): torch.Tensor
---@param compressed_indices torch.Tensor
---@param plain_indices torch.Tensor
---@param values torch.Tensor
---@param size integer[]
---@param options? torch.FactoryOptions
---@return torch.Tensor
function torch._sparse_compressed_tensor_unsafe(compressed_indices, plain_indices, values, size, options) end
Tensor._sparse_compressed_tensor_unsafe = torch._sparse_compressed_tensor_unsafe
---@param nnz integer
---@param dense_dim integer
---@param size integer[]
---@param blocksize integer[]
---@param index_dtype torch.dtype
---@param options? torch.FactoryOptions
---@return torch.Tensor
function torch._sparse_compressed_tensor_with_dims(nnz, dense_dim, size, blocksize, index_dtype, options) end
---@overload fun(indices: torch.Tensor, values: torch.Tensor, ...: integer|table): torch.Tensor
---@param indices torch.Tensor
---@param values torch.Tensor
---@param size integer[]
---@param options? {dtype: torch.dtype?, layout: torch.layout?, device: string?, pin_memory: boolean?, requires_grad: boolean?, is_coalesced: boolean?}
---@return torch.Tensor
function torch._sparse_coo_tensor_unsafe(indices, values, size, options) end
Tensor._sparse_coo_tensor_unsafe = torch._sparse_coo_tensor_unsafe
---@overload fun(sparse_dim: integer, dense_dim: integer, ...: integer|table): torch.Tensor
---@overload fun(sparse_dim: integer, dense_dim: integer, size: integer[], options: {out: torch.Tensor}): torch.Tensor
---@param sparse_dim integer
---@param dense_dim integer
---@param size integer[]
---@param options? torch.FactoryOptions
---@return torch.Tensor
function torch._sparse_coo_tensor_with_dims(sparse_dim, dense_dim, size, options) end
---@overload fun(sparse_dim: integer, dense_dim: integer, size: integer[], indices: torch.Tensor, values: torch.Tensor, options: {is_coalesced: boolean?, out: torch.Tensor}): torch.Tensor
---@param sparse_dim integer
---@param dense_dim integer
---@param size integer[]
---@param indices torch.Tensor
---@param values torch.Tensor
---@param options? {dtype: torch.dtype?, layout: torch.layout?, device: string?, pin_memory: boolean?, requires_grad: boolean?, is_coalesced: boolean?}
---@return torch.Tensor
function torch._sparse_coo_tensor_with_dims_and_tensors(sparse_dim, dense_dim, size, indices, values, options) end
---@overload fun(ccol_indices: torch.Tensor, row_indices: torch.Tensor, values: torch.Tensor, ...: integer|table): torch.Tensor
---@param ccol_indices torch.Tensor
---@param row_indices torch.Tensor
---@param values torch.Tensor
---@param size integer[]
---@param options? torch.FactoryOptions
---@return torch.Tensor
function torch._sparse_csc_tensor_unsafe(ccol_indices, row_indices, values, size, options) end
Tensor._sparse_csc_tensor_unsafe = torch._sparse_csc_tensor_unsafe
---@overload fun(self: torch.Tensor, options: {dim: integer|integer[], keepdim: boolean?, dtype: torch.dtype?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param dim integer|integer[]
---@param keepdim? boolean
---@param options? {dtype: torch.dtype?, out: torch.Tensor?}
---@return torch.Tensor
function torch._sparse_csr_prod(self, dim, keepdim, options) end
Tensor._sparse_csr_prod = torch._sparse_csr_prod
---@overload fun(self: torch.Tensor, options: {dim: integer|integer[], keepdim: boolean?, dtype: torch.dtype?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param dim integer|integer[]
---@param keepdim? boolean
---@param options? {dtype: torch.dtype?, out: torch.Tensor?}
---@return torch.Tensor
function torch._sparse_csr_sum(self, dim, keepdim, options) end
Tensor._sparse_csr_sum = torch._sparse_csr_sum
---@overload fun(crow_indices: torch.Tensor, col_indices: torch.Tensor, values: torch.Tensor, ...: integer|table): torch.Tensor
---@param crow_indices torch.Tensor
---@param col_indices torch.Tensor
---@param values torch.Tensor
---@param size integer[]
---@param options? torch.FactoryOptions
---@return torch.Tensor
function torch._sparse_csr_tensor_unsafe(crow_indices, col_indices, values, size, options) end
Tensor._sparse_csr_tensor_unsafe = torch._sparse_csr_tensor_unsafe
---@overload fun(self: torch.Tensor, options: {dim: integer, half_to_float: boolean, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Tensor, dim: integer, dtype: torch.dtype?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {dim: integer, dtype: torch.dtype?}): torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@param half_to_float boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._sparse_log_softmax(self, dim, half_to_float, options) end
Tensor._sparse_log_softmax = torch._sparse_log_softmax
---@overload fun(grad_output: torch.Tensor, output: torch.Tensor, options: {dim: integer, self: torch.Tensor|number, out: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param output torch.Tensor
---@param dim integer
---@param self torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._sparse_log_softmax_backward_data(grad_output, output, dim, self, options) end
Tensor._sparse_log_softmax_backward_data = torch._sparse_log_softmax_backward_data
---@overload fun(self: torch.Tensor, mask: torch.Tensor, options: {accumulate_matches: boolean?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param mask torch.Tensor
---@param accumulate_matches? boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._sparse_mask_projection(self, mask, accumulate_matches, options) end
Tensor._sparse_mask_projection = torch._sparse_mask_projection
---@overload fun(sparse: torch.Tensor, dense: torch.Tensor, options: {reduce: string}): torch.Tensor
---@overload fun(sparse: torch.Tensor, dense: torch.Tensor): torch.Tensor
---@param sparse torch.Tensor
---@param dense torch.Tensor
---@param reduce string
---@return torch.Tensor
function torch._sparse_mm(sparse, dense, reduce) end
Tensor._sparse_mm = torch._sparse_mm
---@overload fun(self: torch.Tensor, other: torch.Tensor|number, options: {reduce: string}): torch.Tensor, torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param reduce string
---@return torch.Tensor
---@return torch.Tensor
function torch._sparse_mm_reduce_impl(self, other, reduce) end
Tensor._sparse_mm_reduce_impl = torch._sparse_mm_reduce_impl
---@overload fun(self: torch.Tensor, grad_out: torch.Tensor, weight: torch.Tensor, options: {reduce: string, arg_out: torch.Tensor, output_mask: boolean[]}): torch.Tensor, torch.Tensor
---@param self torch.Tensor
---@param grad_out torch.Tensor
---@param weight torch.Tensor
---@param reduce string
---@param arg_out torch.Tensor
---@param output_mask boolean[]
---@return torch.Tensor
---@return torch.Tensor
function torch._sparse_mm_reduce_impl_backward(self, grad_out, weight, reduce, arg_out, output_mask) end
Tensor._sparse_mm_reduce_impl_backward = torch._sparse_mm_reduce_impl_backward
---@param input torch.Tensor
---@param mat1 torch.Tensor
---@param mat1_meta torch.Tensor
---@param mat2 torch.Tensor
---@param options? {alpha: torch.Scalar?, beta: torch.Scalar?, out_dtype: torch.dtype?}
---@return torch.Tensor
function torch._sparse_semi_structured_addmm(input, mat1, mat1_meta, mat2, options) end
Tensor._sparse_semi_structured_addmm = torch._sparse_semi_structured_addmm
---@param input torch.Tensor
---@param thread_masks torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch._sparse_semi_structured_apply(input, thread_masks) end
Tensor._sparse_semi_structured_apply = torch._sparse_semi_structured_apply
---@param input torch.Tensor
---@param thread_masks torch.Tensor
---@return torch.Tensor
function torch._sparse_semi_structured_apply_dense(input, thread_masks) end
Tensor._sparse_semi_structured_apply_dense = torch._sparse_semi_structured_apply_dense
---@param input torch.Tensor
---@param weight torch.Tensor
---@param meta torch.Tensor
---@param options? {bias: torch.Tensor?, activation: string?, out_dtype: torch.dtype?}
---@return torch.Tensor
function torch._sparse_semi_structured_linear(input, weight, meta, options) end
Tensor._sparse_semi_structured_linear = torch._sparse_semi_structured_linear
---@param mat1 torch.Tensor
---@param mat1_meta torch.Tensor
---@param mat2 torch.Tensor
---@param options? {out_dtype: torch.dtype?}
---@return torch.Tensor
function torch._sparse_semi_structured_mm(mat1, mat1_meta, mat2, options) end
Tensor._sparse_semi_structured_mm = torch._sparse_semi_structured_mm
---@overload fun(input: torch.Tensor, options: {algorithm: string?, use_cutlass: boolean?}): torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor
---@param input torch.Tensor
---@param algorithm? string
---@param use_cutlass? boolean
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch._sparse_semi_structured_tile(input, algorithm, use_cutlass) end
Tensor._sparse_semi_structured_tile = torch._sparse_semi_structured_tile
---@overload fun(self: torch.Tensor, options: {dim: integer, half_to_float: boolean, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Tensor, dim: integer, dtype: torch.dtype?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {dim: integer, dtype: torch.dtype?}): torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@param half_to_float boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._sparse_softmax(self, dim, half_to_float, options) end
Tensor._sparse_softmax = torch._sparse_softmax
---@overload fun(grad_output: torch.Tensor, output: torch.Tensor, options: {dim: integer, self: torch.Tensor|number, out: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param output torch.Tensor
---@param dim integer
---@param self torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._sparse_softmax_backward_data(grad_output, output, dim, self, options) end
Tensor._sparse_softmax_backward_data = torch._sparse_softmax_backward_data
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._sparse_sparse_matmul(self, other, options) end
Tensor._sparse_sparse_matmul = torch._sparse_sparse_matmul
---@overload fun(self: torch.Tensor, options: {dim: integer|integer[], out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Tensor, dim: integer|integer[], options: {dtype: torch.dtype}): torch.Tensor
---@overload fun(self: torch.Tensor, options: {dim: integer|integer[], dtype: torch.dtype}): torch.Tensor
---@overload fun(self: torch.Tensor, options: {dtype: torch.dtype}): torch.Tensor
---@overload fun(self: torch.Tensor): torch.Tensor
---@param self torch.Tensor
---@param dim integer|integer[]
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._sparse_sum(self, dim, options) end
Tensor._sparse_sum = torch._sparse_sum
---@overload fun(grad: torch.Tensor, self: torch.Tensor|number, ...: integer|table): torch.Tensor
---@param grad torch.Tensor
---@param self torch.Tensor|number
---@param dim integer[]
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._sparse_sum_backward(grad, self, dim, options) end
Tensor._sparse_sum_backward = torch._sparse_sum_backward
---@overload fun(diagonals: torch.Tensor, offsets: torch.Tensor, options: {shape: integer[], layout: torch.layout?, out: torch.Tensor?}): torch.Tensor
---@param diagonals torch.Tensor
---@param offsets torch.Tensor
---@param shape integer[]
---@param layout? torch.layout
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._spdiags(diagonals, offsets, shape, layout, options) end
Tensor._spdiags = torch._spdiags
---@param A torch.Tensor
---@param B torch.Tensor
---@param options? {left: boolean?}
---@return torch.Tensor
function torch._spsolve(A, B, options) end
Tensor._spsolve = torch._spsolve
---@overload fun(tensors: torch.Tensor[], options: {dim: integer?, out: torch.Tensor?}): torch.Tensor
---@param tensors torch.Tensor[]
---@param dim? integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._stack(tensors, dim, options) end
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._standard_gamma(self, options) end
Tensor._standard_gamma = torch._standard_gamma
---@param self torch.Tensor
---@param output torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._standard_gamma_grad(self, output, options) end
Tensor._standard_gamma_grad = torch._standard_gamma_grad
---@overload fun(dummy: torch.Tensor, options: {a: integer?, b: integer?}): torch.Tensor
---@overload fun(dummy: torch.Tensor, a: integer?, b: string?): torch.Tensor
---@overload fun(dummy: torch.Tensor, options: {a: integer?, b: string?}): torch.Tensor
---@param dummy torch.Tensor
---@param a? integer
---@param b? integer
---@return torch.Tensor
function torch._test_ambiguous_defaults(dummy, a, b) end
Tensor._test_ambiguous_defaults = torch._test_ambiguous_defaults
---@overload fun(self: torch.Tensor, b: boolean): torch.Tensor
---@overload fun(self: torch.Tensor, options: {b: boolean}): torch.Tensor
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._test_autograd_multiple_dispatch(self, options) end
Tensor._test_autograd_multiple_dispatch = torch._test_autograd_multiple_dispatch
---@param self torch.Tensor
---@return torch.Tensor
function torch._test_autograd_multiple_dispatch_view(self) end
Tensor._test_autograd_multiple_dispatch_view = torch._test_autograd_multiple_dispatch_view
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._test_autograd_multiple_dispatch_view_copy(self, options) end
Tensor._test_autograd_multiple_dispatch_view_copy = torch._test_autograd_multiple_dispatch_view_copy
---@param self torch.Tensor
---@return torch.Tensor
function torch._test_check_tensor(self) end
Tensor._test_check_tensor = torch._test_check_tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._test_functorch_fallback(self, other, options) end
Tensor._test_functorch_fallback = torch._test_functorch_fallback
---@overload fun(values: torch.Tensor, options: {addends: (integer|integer[])?, out: torch.Tensor?}): torch.Tensor
---@param values torch.Tensor
---@param addends (integer|integer[])?
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._test_optional_filled_intlist(values, addends, options) end
Tensor._test_optional_filled_intlist = torch._test_optional_filled_intlist
---@overload fun(values: torch.Tensor, options: {addends: number[]?, out: torch.Tensor?}): torch.Tensor
---@param values torch.Tensor
---@param addends number[]?
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._test_optional_floatlist(values, addends, options) end
Tensor._test_optional_floatlist = torch._test_optional_floatlist
---@overload fun(values: torch.Tensor, ...: integer|table): torch.Tensor
---@param values torch.Tensor
---@param addends integer[]?
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._test_optional_intlist(values, addends, options) end
Tensor._test_optional_intlist = torch._test_optional_intlist
---@overload fun(self: torch.Tensor, options: {num_parallel: integer, skip_first: boolean?}): torch.Tensor
---@param self torch.Tensor
---@param num_parallel integer
---@param skip_first? boolean
---@return torch.Tensor
function torch._test_parallel_materialize(self, num_parallel, skip_first) end
Tensor._test_parallel_materialize = torch._test_parallel_materialize
---@overload fun(self: torch.Tensor, other: torch.Tensor|number, options: {alpha: torch.Scalar?}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param alpha? torch.Scalar
---@return torch.Tensor
function torch._test_serialization_subcmul(self, other, alpha) end
Tensor._test_serialization_subcmul = torch._test_serialization_subcmul
---@overload fun(dummy: torch.Tensor, options: {a: string?, b: string?}): torch.Tensor
---@param dummy torch.Tensor
---@param a? string
---@param b? string
---@return torch.Tensor
function torch._test_string_default(dummy, a, b) end
Tensor._test_string_default = torch._test_string_default
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._test_warn_in_autograd(self, options) end
Tensor._test_warn_in_autograd = torch._test_warn_in_autograd
---@param grad_hy torch.Tensor
---@param input_gates torch.Tensor
---@param hidden_gates torch.Tensor
---@param hx torch.Tensor
---@param input_bias torch.Tensor?
---@param hidden_bias torch.Tensor?
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch._thnn_differentiable_gru_cell_backward(grad_hy, input_gates, hidden_gates, hx, input_bias, hidden_bias) end
Tensor._thnn_differentiable_gru_cell_backward = torch._thnn_differentiable_gru_cell_backward
---@param grad_hy torch.Tensor?
---@param grad_cy torch.Tensor?
---@param input_gates torch.Tensor
---@param hidden_gates torch.Tensor
---@param input_bias torch.Tensor?
---@param hidden_bias torch.Tensor?
---@param cx torch.Tensor
---@param cy torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch._thnn_differentiable_lstm_cell_backward(grad_hy, grad_cy, input_gates, hidden_gates, input_bias, hidden_bias, cx, cy) end
Tensor._thnn_differentiable_lstm_cell_backward = torch._thnn_differentiable_lstm_cell_backward
---@overload fun(input_gates: torch.Tensor, hidden_gates: torch.Tensor, hx: torch.Tensor, options: {input_bias: torch.Tensor?, hidden_bias: torch.Tensor?, out0: torch.Tensor?, out1: torch.Tensor?}): torch.Tensor, torch.Tensor
---@param input_gates torch.Tensor
---@param hidden_gates torch.Tensor
---@param hx torch.Tensor
---@param input_bias? torch.Tensor
---@param hidden_bias? torch.Tensor
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
function torch._thnn_fused_gru_cell(input_gates, hidden_gates, hx, input_bias, hidden_bias, options) end
Tensor._thnn_fused_gru_cell = torch._thnn_fused_gru_cell
---@overload fun(grad_hy: torch.Tensor, workspace: torch.Tensor, options: {has_bias: boolean, out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?, out3: torch.Tensor?, out4: torch.Tensor?}): torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor
---@param grad_hy torch.Tensor
---@param workspace torch.Tensor
---@param has_bias boolean
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?, out3: torch.Tensor?, out4: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch._thnn_fused_gru_cell_backward(grad_hy, workspace, has_bias, options) end
Tensor._thnn_fused_gru_cell_backward = torch._thnn_fused_gru_cell_backward
---@overload fun(input_gates: torch.Tensor, hidden_gates: torch.Tensor, cx: torch.Tensor, options: {input_bias: torch.Tensor?, hidden_bias: torch.Tensor?, out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?}): torch.Tensor, torch.Tensor, torch.Tensor
---@param input_gates torch.Tensor
---@param hidden_gates torch.Tensor
---@param cx torch.Tensor
---@param input_bias? torch.Tensor
---@param hidden_bias? torch.Tensor
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch._thnn_fused_lstm_cell(input_gates, hidden_gates, cx, input_bias, hidden_bias, options) end
Tensor._thnn_fused_lstm_cell = torch._thnn_fused_lstm_cell
---@overload fun(grad_hy: torch.Tensor?, grad_cy: torch.Tensor?, cx: torch.Tensor, cy: torch.Tensor, workspace: torch.Tensor, options: {has_bias: boolean}): torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor
---@param grad_hy torch.Tensor?
---@param grad_cy torch.Tensor?
---@param cx torch.Tensor
---@param cy torch.Tensor
---@param workspace torch.Tensor
---@param has_bias boolean
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch._thnn_fused_lstm_cell_backward(grad_hy, grad_cy, cx, cy, workspace, has_bias) end
Tensor._thnn_fused_lstm_cell_backward = torch._thnn_fused_lstm_cell_backward
---@overload fun(grad_hy: torch.Tensor?, grad_cy: torch.Tensor?, cx: torch.Tensor, cy: torch.Tensor, workspace: torch.Tensor, options: {has_bias: boolean, out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?}): torch.Tensor, torch.Tensor, torch.Tensor
---@param grad_hy torch.Tensor?
---@param grad_cy torch.Tensor?
---@param cx torch.Tensor
---@param cy torch.Tensor
---@param workspace torch.Tensor
---@param has_bias boolean
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch._thnn_fused_lstm_cell_backward_impl(grad_hy, grad_cy, cx, cy, workspace, has_bias, options) end
Tensor._thnn_fused_lstm_cell_backward_impl = torch._thnn_fused_lstm_cell_backward_impl
---@overload fun(self: torch.Tensor, options: {non_blocking: boolean?, memory_format: torch.memory_format?, out: torch.Tensor}): torch.Tensor
---@param self torch.Tensor
---@param options? {dtype: torch.dtype?, layout: torch.layout?, device: string?, pin_memory: boolean?, requires_grad: boolean?, non_blocking: boolean?, memory_format: torch.memory_format?}
---@return torch.Tensor
function torch._to_copy(self, options) end
Tensor._to_copy = torch._to_copy
---@param tensors torch.Tensor[]
---@return torch.Tensor[]
function torch._to_cpu(tensors) end
---@overload fun(self: torch.Tensor, options: {dtype: torch.dtype?, masked_grad: boolean?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param dtype? torch.dtype
---@param masked_grad? boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._to_dense(self, dtype, masked_grad, options) end
Tensor._to_dense = torch._to_dense
---@overload fun(self: torch.Tensor, sparse_dim: integer, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {sparse_dim: integer, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param options? {layout: torch.layout?, blocksize: (integer|integer[])?, dense_dim: integer?, out: torch.Tensor?}
---@return torch.Tensor
function torch._to_sparse(self, options) end
Tensor._to_sparse = torch._to_sparse
---@overload fun(self: torch.Tensor, options: {blocksize: integer|integer[], dense_dim: integer?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param blocksize integer|integer[]
---@param dense_dim? integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._to_sparse_bsc(self, blocksize, dense_dim, options) end
Tensor._to_sparse_bsc = torch._to_sparse_bsc
---@overload fun(self: torch.Tensor, options: {blocksize: integer|integer[], dense_dim: integer?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param blocksize integer|integer[]
---@param dense_dim? integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._to_sparse_bsr(self, blocksize, dense_dim, options) end
Tensor._to_sparse_bsr = torch._to_sparse_bsr
---@overload fun(self: torch.Tensor, options: {dense_dim: integer?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param dense_dim? integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._to_sparse_csc(self, dense_dim, options) end
Tensor._to_sparse_csc = torch._to_sparse_csc
---@overload fun(self: torch.Tensor, options: {dense_dim: integer?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param dense_dim? integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._to_sparse_csr(self, dense_dim, options) end
Tensor._to_sparse_csr = torch._to_sparse_csr
---@param dense torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch._to_sparse_semi_structured(dense) end
Tensor._to_sparse_semi_structured = torch._to_sparse_semi_structured
---@overload fun(qkv: torch.Tensor, qkv_bias: torch.Tensor, options: {num_heads: integer, out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?}): torch.Tensor, torch.Tensor, torch.Tensor
---@param qkv torch.Tensor
---@param qkv_bias torch.Tensor
---@param num_heads integer
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch._transform_bias_rescale_qkv(qkv, qkv_bias, num_heads, options) end
Tensor._transform_bias_rescale_qkv = torch._transform_bias_rescale_qkv
---@overload fun(src: torch.Tensor, options: {embed_dim: integer, num_heads: integer, qkv_weight: torch.Tensor, qkv_bias: torch.Tensor, proj_weight: torch.Tensor, proj_bias: torch.Tensor, use_gelu: boolean, norm_first: boolean, eps: number, norm_weight_1: torch.Tensor, norm_bias_1: torch.Tensor, norm_weight_2: torch.Tensor, norm_bias_2: torch.Tensor, ffn_weight_1: torch.Tensor, ffn_bias_1: torch.Tensor, ffn_weight_2: torch.Tensor, ffn_bias_2: torch.Tensor, mask: torch.Tensor?, mask_type: integer?, out: torch.Tensor?}): torch.Tensor
---@param src torch.Tensor
---@param embed_dim integer
---@param num_heads integer
---@param qkv_weight torch.Tensor
---@param qkv_bias torch.Tensor
---@param proj_weight torch.Tensor
---@param proj_bias torch.Tensor
---@param use_gelu boolean
---@param norm_first boolean
---@param eps number
---@param norm_weight_1 torch.Tensor
---@param norm_bias_1 torch.Tensor
---@param norm_weight_2 torch.Tensor
---@param norm_bias_2 torch.Tensor
---@param ffn_weight_1 torch.Tensor
---@param ffn_bias_1 torch.Tensor
---@param ffn_weight_2 torch.Tensor
---@param ffn_bias_2 torch.Tensor
---@param mask? torch.Tensor
---@param mask_type? integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._transformer_encoder_layer_fwd(src, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, use_gelu, norm_first, eps, norm_weight_1, norm_bias_1, norm_weight_2, norm_bias_2, ffn_weight_1, ffn_bias_1, ffn_weight_2, ffn_bias_2, mask, mask_type, options) end
Tensor._transformer_encoder_layer_fwd = torch._transformer_encoder_layer_fwd
---@overload fun(i1: torch.Tensor, i2: torch.Tensor, i3: torch.Tensor, options: {expand1: integer[], expand2: integer[], expand3: integer[], sumdim: integer[], unroll_dim: integer?, out: torch.Tensor?}): torch.Tensor
---@param i1 torch.Tensor
---@param i2 torch.Tensor
---@param i3 torch.Tensor
---@param expand1 integer[]
---@param expand2 integer[]
---@param expand3 integer[]
---@param sumdim integer[]
---@param unroll_dim? integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._trilinear(i1, i2, i3, expand1, expand2, expand3, sumdim, unroll_dim, options) end
Tensor._trilinear = torch._trilinear
---@overload fun(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: {embed_dim: integer, num_head: integer, qkv_weight: torch.Tensor, qkv_bias: torch.Tensor, proj_weight: torch.Tensor, proj_bias: torch.Tensor, mask: torch.Tensor?, out: torch.Tensor?}): torch.Tensor
---@param query torch.Tensor
---@param key torch.Tensor
---@param value torch.Tensor
---@param embed_dim integer
---@param num_head integer
---@param qkv_weight torch.Tensor
---@param qkv_bias torch.Tensor
---@param proj_weight torch.Tensor
---@param proj_bias torch.Tensor
---@param mask? torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._triton_multi_head_attention(query, key, value, embed_dim, num_head, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, options) end
Tensor._triton_multi_head_attention = torch._triton_multi_head_attention
---@overload fun(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: {dropout_p: number?, out: torch.Tensor?}): torch.Tensor
---@param q torch.Tensor
---@param k torch.Tensor
---@param v torch.Tensor
---@param dropout_p? number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._triton_scaled_dot_attention(q, k, v, dropout_p, options) end
Tensor._triton_scaled_dot_attention = torch._triton_scaled_dot_attention
---@overload fun(self: torch.Tensor, options: {sorted: boolean?, return_inverse: boolean?, out0: torch.Tensor?, out1: torch.Tensor?}): torch.Tensor, torch.Tensor
---@param self torch.Tensor
---@param sorted? boolean
---@param return_inverse? boolean
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
function torch._unique(self, sorted, return_inverse, options) end
Tensor._unique = torch._unique
---@overload fun(self: torch.Tensor, options: {sorted: boolean?, return_inverse: boolean?, return_counts: boolean?, out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?}): torch.Tensor, torch.Tensor, torch.Tensor
---@param self torch.Tensor
---@param sorted? boolean
---@param return_inverse? boolean
---@param return_counts? boolean
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch._unique2(self, sorted, return_inverse, return_counts, options) end
Tensor._unique2 = torch._unique2
---@overload fun(dual: torch.Tensor, options: {level: integer}): torch.Tensor, torch.Tensor
---@param dual torch.Tensor
---@param level integer
---@return torch.Tensor primal
---@return torch.Tensor tangent
function torch._unpack_dual(dual, level) end
Tensor._unpack_dual = torch._unpack_dual
---@param self torch.Tensor
---@param indices (torch.Tensor|false)[]
---@return torch.Tensor
function torch._unsafe_index(self, indices) end
Tensor._unsafe_index = torch._unsafe_index
---@overload fun(self: torch.Tensor, indices: (torch.Tensor|false)[], values: torch.Tensor, options: {accumulate: boolean?}): torch.Tensor
---@param self torch.Tensor
---@param indices (torch.Tensor|false)[]
---@param values torch.Tensor
---@param accumulate? boolean
---@return torch.Tensor
function torch._unsafe_index_put(self, indices, values, accumulate) end
Tensor._unsafe_index_put = torch._unsafe_index_put
---@overload fun(self: torch.Tensor, mask: torch.Tensor, indices: (torch.Tensor|false)[], options: {fill: torch.Scalar}): torch.Tensor
---@param self torch.Tensor
---@param mask torch.Tensor
---@param indices (torch.Tensor|false)[]
---@param fill torch.Scalar
---@return torch.Tensor
function torch._unsafe_masked_index(self, mask, indices, fill) end
Tensor._unsafe_masked_index = torch._unsafe_masked_index
---@param self torch.Tensor
---@param mask torch.Tensor
---@param indices (torch.Tensor|false)[]
---@param values torch.Tensor
---@return torch.Tensor
function torch._unsafe_masked_index_put_accumulate(self, mask, indices, values) end
Tensor._unsafe_masked_index_put_accumulate = torch._unsafe_masked_index_put_accumulate
---@overload fun(self: torch.Tensor, ...: integer|table): torch.Tensor
---@param self torch.Tensor
---@param size integer[]
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._unsafe_view(self, size, options) end
Tensor._unsafe_view = torch._unsafe_view
---@overload fun(self: torch.Tensor, options: {output_size: integer|integer[], align_corners: boolean, scales_h: number?, scales_w: number?, out: torch.Tensor?}): torch.Tensor
---@overload fun(input: torch.Tensor, output_size: integer[]?, align_corners: boolean, scale_factors: number[]?): torch.Tensor
---@overload fun(input: torch.Tensor, options: {output_size: integer[]?, align_corners: boolean, scale_factors: number[]?}): torch.Tensor
---@param self torch.Tensor
---@param output_size integer|integer[]
---@param align_corners boolean
---@param scales_h? number
---@param scales_w? number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._upsample_bicubic2d_aa(self, output_size, align_corners, scales_h, scales_w, options) end
Tensor._upsample_bicubic2d_aa = torch._upsample_bicubic2d_aa
---@overload fun(grad_output: torch.Tensor, options: {output_size: integer|integer[], input_size: integer|integer[], align_corners: boolean, scales_h: number?, scales_w: number?, grad_input: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param output_size integer|integer[]
---@param input_size integer|integer[]
---@param align_corners boolean
---@param scales_h? number
---@param scales_w? number
---@param options? {grad_input: torch.Tensor?}
---@return torch.Tensor
function torch._upsample_bicubic2d_aa_backward(grad_output, output_size, input_size, align_corners, scales_h, scales_w, options) end
Tensor._upsample_bicubic2d_aa_backward = torch._upsample_bicubic2d_aa_backward
---@overload fun(self: torch.Tensor, options: {output_size: integer|integer[], align_corners: boolean, scales_h: number?, scales_w: number?, out: torch.Tensor?}): torch.Tensor
---@overload fun(input: torch.Tensor, output_size: integer[]?, align_corners: boolean, scale_factors: number[]?): torch.Tensor
---@overload fun(input: torch.Tensor, options: {output_size: integer[]?, align_corners: boolean, scale_factors: number[]?}): torch.Tensor
---@param self torch.Tensor
---@param output_size integer|integer[]
---@param align_corners boolean
---@param scales_h? number
---@param scales_w? number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._upsample_bilinear2d_aa(self, output_size, align_corners, scales_h, scales_w, options) end
Tensor._upsample_bilinear2d_aa = torch._upsample_bilinear2d_aa
---@overload fun(grad_output: torch.Tensor, options: {output_size: integer|integer[], input_size: integer|integer[], align_corners: boolean, scales_h: number?, scales_w: number?, grad_input: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param output_size integer|integer[]
---@param input_size integer|integer[]
---@param align_corners boolean
---@param scales_h? number
---@param scales_w? number
---@param options? {grad_input: torch.Tensor?}
---@return torch.Tensor
function torch._upsample_bilinear2d_aa_backward(grad_output, output_size, input_size, align_corners, scales_h, scales_w, options) end
Tensor._upsample_bilinear2d_aa_backward = torch._upsample_bilinear2d_aa_backward
---@overload fun(self: torch.Tensor, options: {output_size: integer|integer[], scales: number?, out: torch.Tensor?}): torch.Tensor
---@overload fun(input: torch.Tensor, output_size: integer[]?, scale_factors: number[]?): torch.Tensor
---@overload fun(input: torch.Tensor, options: {output_size: integer[]?, scale_factors: number[]?}): torch.Tensor
---@param self torch.Tensor
---@param output_size integer|integer[]
---@param scales? number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._upsample_nearest_exact1d(self, output_size, scales, options) end
Tensor._upsample_nearest_exact1d = torch._upsample_nearest_exact1d
---@overload fun(grad_output: torch.Tensor, options: {output_size: integer|integer[], input_size: integer|integer[], scales: number?, grad_input: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param output_size integer|integer[]
---@param input_size integer|integer[]
---@param scales? number
---@param options? {grad_input: torch.Tensor?}
---@return torch.Tensor
function torch._upsample_nearest_exact1d_backward(grad_output, output_size, input_size, scales, options) end
Tensor._upsample_nearest_exact1d_backward = torch._upsample_nearest_exact1d_backward
---@overload fun(self: torch.Tensor, options: {output_size: integer|integer[], scales_h: number?, scales_w: number?, out: torch.Tensor?}): torch.Tensor
---@overload fun(input: torch.Tensor, output_size: integer[]?, scale_factors: number[]?): torch.Tensor
---@overload fun(input: torch.Tensor, options: {output_size: integer[]?, scale_factors: number[]?}): torch.Tensor
---@param self torch.Tensor
---@param output_size integer|integer[]
---@param scales_h? number
---@param scales_w? number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._upsample_nearest_exact2d(self, output_size, scales_h, scales_w, options) end
Tensor._upsample_nearest_exact2d = torch._upsample_nearest_exact2d
---@overload fun(grad_output: torch.Tensor, options: {output_size: integer|integer[], input_size: integer|integer[], scales_h: number?, scales_w: number?, grad_input: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param output_size integer|integer[]
---@param input_size integer|integer[]
---@param scales_h? number
---@param scales_w? number
---@param options? {grad_input: torch.Tensor?}
---@return torch.Tensor
function torch._upsample_nearest_exact2d_backward(grad_output, output_size, input_size, scales_h, scales_w, options) end
Tensor._upsample_nearest_exact2d_backward = torch._upsample_nearest_exact2d_backward
---@overload fun(self: torch.Tensor, options: {output_size: integer|integer[], scales_d: number?, scales_h: number?, scales_w: number?, out: torch.Tensor?}): torch.Tensor
---@overload fun(input: torch.Tensor, output_size: integer[]?, scale_factors: number[]?): torch.Tensor
---@overload fun(input: torch.Tensor, options: {output_size: integer[]?, scale_factors: number[]?}): torch.Tensor
---@param self torch.Tensor
---@param output_size integer|integer[]
---@param scales_d? number
---@param scales_h? number
---@param scales_w? number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._upsample_nearest_exact3d(self, output_size, scales_d, scales_h, scales_w, options) end
Tensor._upsample_nearest_exact3d = torch._upsample_nearest_exact3d
---@overload fun(grad_output: torch.Tensor, options: {output_size: integer|integer[], input_size: integer|integer[], scales_d: number?, scales_h: number?, scales_w: number?, grad_input: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param output_size integer|integer[]
---@param input_size integer|integer[]
---@param scales_d? number
---@param scales_h? number
---@param scales_w? number
---@param options? {grad_input: torch.Tensor?}
---@return torch.Tensor
function torch._upsample_nearest_exact3d_backward(grad_output, output_size, input_size, scales_d, scales_h, scales_w, options) end
Tensor._upsample_nearest_exact3d_backward = torch._upsample_nearest_exact3d_backward
---@overload fun(log_probs: torch.Tensor, targets: torch.Tensor, input_lengths: torch.Tensor, target_lengths: torch.Tensor, options: {blank: integer}): boolean
---@overload fun(log_probs: torch.Tensor, targets: torch.Tensor, input_lengths: integer[], target_lengths: integer[], blank: integer): boolean
---@overload fun(log_probs: torch.Tensor, targets: torch.Tensor, options: {input_lengths: integer[], target_lengths: integer[], blank: integer}): boolean
---@param log_probs torch.Tensor
---@param targets torch.Tensor
---@param input_lengths torch.Tensor
---@param target_lengths torch.Tensor
---@param blank integer
---@return boolean
function torch._use_cudnn_ctc_loss(log_probs, targets, input_lengths, target_lengths, blank) end
Tensor._use_cudnn_ctc_loss = torch._use_cudnn_ctc_loss
---@return boolean
function torch._use_cudnn_rnn_flatten_weight() end
---@overload fun(log_probs: torch.Tensor, targets: torch.Tensor, input_lengths: torch.Tensor, target_lengths: torch.Tensor, options: {blank: integer}): boolean
---@overload fun(log_probs: torch.Tensor, targets: torch.Tensor, input_lengths: integer[], target_lengths: integer[], blank: integer): boolean
---@overload fun(log_probs: torch.Tensor, targets: torch.Tensor, options: {input_lengths: integer[], target_lengths: integer[], blank: integer}): boolean
---@param log_probs torch.Tensor
---@param targets torch.Tensor
---@param input_lengths torch.Tensor
---@param target_lengths torch.Tensor
---@param blank integer
---@return boolean
function torch._use_miopen_ctc_loss(log_probs, targets, input_lengths, target_lengths, blank) end
Tensor._use_miopen_ctc_loss = torch._use_miopen_ctc_loss
---@param is_crow boolean
---@param compressed_idx torch.Tensor
---@param plain_idx torch.Tensor
---@param cdim integer
---@param dim integer
---@param nnz integer
function torch._validate_compressed_sparse_indices(is_crow, compressed_idx, plain_idx, cdim, dim, nnz) end
---@overload fun(ccol_indices: torch.Tensor, row_indices: torch.Tensor, values: torch.Tensor, options: {size: integer[], check_pinning: boolean?})
---@param ccol_indices torch.Tensor
---@param row_indices torch.Tensor
---@param values torch.Tensor
---@param size integer[]
---@param check_pinning? boolean
function torch._validate_sparse_bsc_tensor_args(ccol_indices, row_indices, values, size, check_pinning) end
Tensor._validate_sparse_bsc_tensor_args = torch._validate_sparse_bsc_tensor_args
---@overload fun(crow_indices: torch.Tensor, col_indices: torch.Tensor, values: torch.Tensor, options: {size: integer[], check_pinning: boolean?})
---@param crow_indices torch.Tensor
---@param col_indices torch.Tensor
---@param values torch.Tensor
---@param size integer[]
---@param check_pinning? boolean
function torch._validate_sparse_bsr_tensor_args(crow_indices, col_indices, values, size, check_pinning) end
Tensor._validate_sparse_bsr_tensor_args = torch._validate_sparse_bsr_tensor_args
---@overload fun(compressed_indices: torch.Tensor, plain_indices: torch.Tensor, values: torch.Tensor, options: {size: integer[], layout: torch.layout, check_pinning: boolean?})
---@param compressed_indices torch.Tensor
---@param plain_indices torch.Tensor
---@param values torch.Tensor
---@param size integer[]
---@param layout torch.layout
---@param check_pinning? boolean
function torch._validate_sparse_compressed_tensor_args(compressed_indices, plain_indices, values, size, layout, check_pinning) end
Tensor._validate_sparse_compressed_tensor_args = torch._validate_sparse_compressed_tensor_args
---@overload fun(indices: torch.Tensor, values: torch.Tensor, options: {size: integer[], is_coalesced: boolean?, check_pinning: boolean?})
---@param indices torch.Tensor
---@param values torch.Tensor
---@param size integer[]
---@param is_coalesced? boolean
---@param check_pinning? boolean
function torch._validate_sparse_coo_tensor_args(indices, values, size, is_coalesced, check_pinning) end
Tensor._validate_sparse_coo_tensor_args = torch._validate_sparse_coo_tensor_args
---@overload fun(ccol_indices: torch.Tensor, row_indices: torch.Tensor, values: torch.Tensor, options: {size: integer[], check_pinning: boolean?})
---@param ccol_indices torch.Tensor
---@param row_indices torch.Tensor
---@param values torch.Tensor
---@param size integer[]
---@param check_pinning? boolean
function torch._validate_sparse_csc_tensor_args(ccol_indices, row_indices, values, size, check_pinning) end
Tensor._validate_sparse_csc_tensor_args = torch._validate_sparse_csc_tensor_args
---@overload fun(crow_indices: torch.Tensor, col_indices: torch.Tensor, values: torch.Tensor, options: {size: integer[], check_pinning: boolean?})
---@param crow_indices torch.Tensor
---@param col_indices torch.Tensor
---@param values torch.Tensor
---@param size integer[]
---@param check_pinning? boolean
function torch._validate_sparse_csr_tensor_args(crow_indices, col_indices, values, size, check_pinning) end
Tensor._validate_sparse_csr_tensor_args = torch._validate_sparse_csr_tensor_args
---@param self torch.Tensor
---@return torch.Tensor
function torch._values(self) end
Tensor._values = torch._values
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch._values_copy(self, options) end
Tensor._values_copy = torch._values_copy
---@param self torch.Tensor
---@return integer
function torch._version(self) end
Tensor._version = torch._version
---@overload fun(self: torch.Tensor, mat2: torch.Tensor, options: {qGroupSize: integer, qScaleAndZeros: torch.Tensor}): torch.Tensor
---@param self torch.Tensor
---@param mat2 torch.Tensor
---@param qGroupSize integer
---@param qScaleAndZeros torch.Tensor
---@return torch.Tensor
function torch._weight_int4pack_mm(self, mat2, qGroupSize, qScaleAndZeros) end
Tensor._weight_int4pack_mm = torch._weight_int4pack_mm
---@overload fun(self: torch.Tensor, mat2: torch.Tensor, options: {qGroupSize: integer, qScaleAndZeros: torch.Tensor}): torch.Tensor
---@param self torch.Tensor
---@param mat2 torch.Tensor
---@param qGroupSize integer
---@param qScaleAndZeros torch.Tensor
---@return torch.Tensor
function torch._weight_int4pack_mm_for_cpu(self, mat2, qGroupSize, qScaleAndZeros) end
Tensor._weight_int4pack_mm_for_cpu = torch._weight_int4pack_mm_for_cpu
---@overload fun(self: torch.Tensor, mat2: torch.Tensor, options: {qGroupSize: integer, qScale: torch.Tensor, qZeros: torch.Tensor}): torch.Tensor
---@param self torch.Tensor
---@param mat2 torch.Tensor
---@param qGroupSize integer
---@param qScale torch.Tensor
---@param qZeros torch.Tensor
---@return torch.Tensor
function torch._weight_int4pack_mm_with_scales_and_zeros(self, mat2, qGroupSize, qScale, qZeros) end
Tensor._weight_int4pack_mm_with_scales_and_zeros = torch._weight_int4pack_mm_with_scales_and_zeros
---@param self torch.Tensor
---@param mat2 torch.Tensor
---@param scales torch.Tensor
---@return torch.Tensor
function torch._weight_int8pack_mm(self, mat2, scales) end
Tensor._weight_int8pack_mm = torch._weight_int8pack_mm
---@overload fun(v: torch.Tensor, g: torch.Tensor, options: {dim: integer?}): torch.Tensor
---@param v torch.Tensor
---@param g torch.Tensor
---@param dim? integer
---@return torch.Tensor
function torch._weight_norm(v, g, dim) end
Tensor._weight_norm = torch._weight_norm
---@overload fun(grad_w: torch.Tensor, saved_v: torch.Tensor, saved_g: torch.Tensor, saved_norms: torch.Tensor, options: {dim: integer}): torch.Tensor, torch.Tensor
---@param grad_w torch.Tensor
---@param saved_v torch.Tensor
---@param saved_g torch.Tensor
---@param saved_norms torch.Tensor
---@param dim integer
---@return torch.Tensor
---@return torch.Tensor
function torch._weight_norm_differentiable_backward(grad_w, saved_v, saved_g, saved_norms, dim) end
Tensor._weight_norm_differentiable_backward = torch._weight_norm_differentiable_backward
---@overload fun(v: torch.Tensor, g: torch.Tensor, options: {dim: integer?, out0: torch.Tensor?, out1: torch.Tensor?}): torch.Tensor, torch.Tensor
---@param v torch.Tensor
---@param g torch.Tensor
---@param dim? integer
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
function torch._weight_norm_interface(v, g, dim, options) end
Tensor._weight_norm_interface = torch._weight_norm_interface
---@overload fun(grad_w: torch.Tensor, saved_v: torch.Tensor, saved_g: torch.Tensor, saved_norms: torch.Tensor, options: {dim: integer, out0: torch.Tensor?, out1: torch.Tensor?}): torch.Tensor, torch.Tensor
---@param grad_w torch.Tensor
---@param saved_v torch.Tensor
---@param saved_g torch.Tensor
---@param saved_norms torch.Tensor
---@param dim integer
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
function torch._weight_norm_interface_backward(grad_w, saved_v, saved_g, saved_norms, dim, options) end
Tensor._weight_norm_interface_backward = torch._weight_norm_interface_backward
---@param weight torch.Tensor
---@param weight_scale torch.Tensor
---@param weight_zero_point torch.Tensor
---@param bias torch.Tensor
---@return torch.Tensor
function torch._wrapped_linear_prepack(weight, weight_scale, weight_zero_point, bias) end
Tensor._wrapped_linear_prepack = torch._wrapped_linear_prepack
---@overload fun(input: torch.Tensor, input_scale: torch.Tensor, input_zero_point: torch.Tensor, packed_weight: torch.Tensor, output_scale: torch.Tensor, output_zero_point: torch.Tensor, options: {out_channel: integer}): torch.Tensor
---@param input torch.Tensor
---@param input_scale torch.Tensor
---@param input_zero_point torch.Tensor
---@param packed_weight torch.Tensor
---@param output_scale torch.Tensor
---@param output_zero_point torch.Tensor
---@param out_channel integer
---@return torch.Tensor
function torch._wrapped_quantized_linear_prepacked(input, input_scale, input_zero_point, packed_weight, output_scale, output_zero_point, out_channel) end
Tensor._wrapped_quantized_linear_prepacked = torch._wrapped_quantized_linear_prepacked

-- They take or return what has no form in Lua: align_to, get_gradients, qscheme, record_stream, refine_names.
