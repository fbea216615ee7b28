---@meta lockstep.torch
--- ATen's operators, as functions and as methods of tensors.
--- Written by generate.lua from the dispatcher's schemas: do not edit; types_test says how to refresh it.

---@class lockstep.torch
local torch = {}

---@class torch.Tensor
local Tensor = {}

---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.abs(self, options) end
Tensor.abs = torch.abs
---@param self torch.Tensor
---@return torch.Tensor
function torch.abs_(self) end
Tensor.abs_ = torch.abs_
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.absolute(self, options) end
Tensor.absolute = torch.absolute
---@param self torch.Tensor
---@return torch.Tensor
function torch.absolute_(self) end
Tensor.absolute_ = torch.absolute_
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.acos(self, options) end
Tensor.acos = torch.acos
---@param self torch.Tensor
---@return torch.Tensor
function torch.acos_(self) end
Tensor.acos_ = torch.acos_
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.acosh(self, options) end
Tensor.acosh = torch.acosh
---@param self torch.Tensor
---@return torch.Tensor
function torch.acosh_(self) end
Tensor.acosh_ = torch.acosh_
---@overload fun(self: torch.Tensor, options: {output_size: integer|integer[], out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param output_size integer|integer[]
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.adaptive_avg_pool1d(self, output_size, options) end
Tensor.adaptive_avg_pool1d = torch.adaptive_avg_pool1d
---@overload fun(self: torch.Tensor, options: {output_size: integer|integer[], out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param output_size integer|integer[]
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.adaptive_avg_pool2d(self, output_size, options) end
Tensor.adaptive_avg_pool2d = torch.adaptive_avg_pool2d
---@overload fun(self: torch.Tensor, options: {output_size: integer|integer[], out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param output_size integer|integer[]
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.adaptive_avg_pool3d(self, output_size, options) end
Tensor.adaptive_avg_pool3d = torch.adaptive_avg_pool3d
---@param grad_output torch.Tensor
---@param self torch.Tensor|number
---@param options {grad_input: torch.Tensor}
---@return torch.Tensor
function torch.adaptive_avg_pool3d_backward(grad_output, self, options) end
Tensor.adaptive_avg_pool3d_backward = torch.adaptive_avg_pool3d_backward
---@overload fun(self: torch.Tensor, options: {output_size: integer|integer[]}): torch.Tensor, torch.Tensor
---@param self torch.Tensor
---@param output_size integer|integer[]
---@return torch.Tensor
---@return torch.Tensor
function torch.adaptive_max_pool1d(self, output_size) end
Tensor.adaptive_max_pool1d = torch.adaptive_max_pool1d
---@overload fun(self: torch.Tensor, options: {output_size: integer|integer[], out: torch.Tensor?, indices: torch.Tensor?}): torch.Tensor, torch.Tensor
---@param self torch.Tensor
---@param output_size integer|integer[]
---@param options? {out: torch.Tensor?, indices: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
function torch.adaptive_max_pool2d(self, output_size, options) end
Tensor.adaptive_max_pool2d = torch.adaptive_max_pool2d
---@param grad_output torch.Tensor
---@param self torch.Tensor|number
---@param indices torch.Tensor
---@param options? {grad_input: torch.Tensor?}
---@return torch.Tensor
function torch.adaptive_max_pool2d_backward(grad_output, self, indices, options) end
Tensor.adaptive_max_pool2d_backward = torch.adaptive_max_pool2d_backward
---@overload fun(self: torch.Tensor, options: {output_size: integer|integer[], out: torch.Tensor?, indices: torch.Tensor?}): torch.Tensor, torch.Tensor
---@param self torch.Tensor
---@param output_size integer|integer[]
---@param options? {out: torch.Tensor?, indices: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
function torch.adaptive_max_pool3d(self, output_size, options) end
Tensor.adaptive_max_pool3d = torch.adaptive_max_pool3d
---@param grad_output torch.Tensor
---@param self torch.Tensor|number
---@param indices torch.Tensor
---@param options? {grad_input: torch.Tensor?}
---@return torch.Tensor
function torch.adaptive_max_pool3d_backward(grad_output, self, indices, options) end
Tensor.adaptive_max_pool3d_backward = torch.adaptive_max_pool3d_backward
---@overload fun(self: torch.Tensor, other: torch.Scalar, alpha: torch.Scalar?, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar, alpha: torch.Scalar?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {alpha: torch.Scalar?, out: torch.Tensor?}
---@return torch.Tensor
function torch.add(self, other, options) end
Tensor.add = torch.add
---@overload fun(self: torch.Tensor, other: torch.Scalar, alpha: torch.Scalar?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar, alpha: torch.Scalar?}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {alpha: torch.Scalar?}
---@return torch.Tensor
function torch.add_(self, other, options) end
Tensor.add_ = torch.add_
---@param self torch.Tensor
---@param batch1 torch.Tensor
---@param batch2 torch.Tensor
---@param options? {beta: torch.Scalar?, alpha: torch.Scalar?, out: torch.Tensor?}
---@return torch.Tensor
function torch.addbmm(self, batch1, batch2, options) end
Tensor.addbmm = torch.addbmm
---@param self torch.Tensor
---@param batch1 torch.Tensor
---@param batch2 torch.Tensor
---@param options? {beta: torch.Scalar?, alpha: torch.Scalar?}
---@return torch.Tensor
function torch.addbmm_(self, batch1, batch2, options) end
Tensor.addbmm_ = torch.addbmm_
---@param self torch.Tensor
---@param tensor1 torch.Tensor
---@param tensor2 torch.Tensor
---@param options? {value: torch.Scalar?, out: torch.Tensor?}
---@return torch.Tensor
function torch.addcdiv(self, tensor1, tensor2, options) end
Tensor.addcdiv = torch.addcdiv
---@param self torch.Tensor
---@param tensor1 torch.Tensor
---@param tensor2 torch.Tensor
---@param options? {value: torch.Scalar?}
---@return torch.Tensor
function torch.addcdiv_(self, tensor1, tensor2, options) end
Tensor.addcdiv_ = torch.addcdiv_
---@param self torch.Tensor
---@param tensor1 torch.Tensor
---@param tensor2 torch.Tensor
---@param options? {value: torch.Scalar?, out: torch.Tensor?}
---@return torch.Tensor
function torch.addcmul(self, tensor1, tensor2, options) end
Tensor.addcmul = torch.addcmul
---@param self torch.Tensor
---@param tensor1 torch.Tensor
---@param tensor2 torch.Tensor
---@param options? {value: torch.Scalar?}
---@return torch.Tensor
function torch.addcmul_(self, tensor1, tensor2, options) end
Tensor.addcmul_ = torch.addcmul_
---@overload fun(self: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, options: {out_dtype: torch.dtype, beta: torch.Scalar?, alpha: torch.Scalar?, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, options: {beta: torch.Scalar?, alpha: torch.Scalar?, out: torch.Tensor?}?): torch.Tensor
---@param self torch.Tensor
---@param mat1 torch.Tensor
---@param mat2 torch.Tensor
---@param out_dtype torch.dtype
---@param options? {beta: torch.Scalar?, alpha: torch.Scalar?, out: torch.Tensor?}
---@return torch.Tensor
function torch.addmm(self, mat1, mat2, out_dtype, options) end
Tensor.addmm = torch.addmm
---@param self torch.Tensor
---@param mat1 torch.Tensor
---@param mat2 torch.Tensor
---@param options? {beta: torch.Scalar?, alpha: torch.Scalar?}
---@return torch.Tensor
function torch.addmm_(self, mat1, mat2, options) end
Tensor.addmm_ = torch.addmm_
---@param self torch.Tensor
---@param mat torch.Tensor
---@param vec torch.Tensor
---@param options? {beta: torch.Scalar?, alpha: torch.Scalar?, out: torch.Tensor?}
---@return torch.Tensor
function torch.addmv(self, mat, vec, options) end
Tensor.addmv = torch.addmv
---@param self torch.Tensor
---@param mat torch.Tensor
---@param vec torch.Tensor
---@param options? {beta: torch.Scalar?, alpha: torch.Scalar?}
---@return torch.Tensor
function torch.addmv_(self, mat, vec, options) end
Tensor.addmv_ = torch.addmv_
---@param self torch.Tensor
---@param vec1 torch.Tensor
---@param vec2 torch.Tensor
---@param options? {beta: torch.Scalar?, alpha: torch.Scalar?, out: torch.Tensor?}
---@return torch.Tensor
function torch.addr(self, vec1, vec2, options) end
Tensor.addr = torch.addr
---@param self torch.Tensor
---@param vec1 torch.Tensor
---@param vec2 torch.Tensor
---@param options? {beta: torch.Scalar?, alpha: torch.Scalar?}
---@return torch.Tensor
function torch.addr_(self, vec1, vec2, options) end
Tensor.addr_ = torch.addr_
---@param self torch.Tensor
---@return torch.Tensor
function torch.adjoint(self) end
Tensor.adjoint = torch.adjoint
---@overload fun(theta: torch.Tensor, options: {size: integer[], align_corners: boolean, out: torch.Tensor?}): torch.Tensor
---@param theta torch.Tensor
---@param size integer[]
---@param align_corners boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.affine_grid_generator(theta, size, align_corners, options) end
Tensor.affine_grid_generator = torch.affine_grid_generator
---@overload fun(grad: torch.Tensor, options: {size: integer[], align_corners: boolean}): torch.Tensor
---@param grad torch.Tensor
---@param size integer[]
---@param align_corners boolean
---@return torch.Tensor
function torch.affine_grid_generator_backward(grad, size, align_corners) end
Tensor.affine_grid_generator_backward = torch.affine_grid_generator_backward
---@param self torch.Tensor
---@return torch.Tensor
function torch.alias(self) end
Tensor.alias = torch.alias
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.alias_copy(self, options) end
Tensor.alias_copy = torch.alias_copy
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return torch.Tensor
function torch.align_as(self, other) end
Tensor.align_as = torch.align_as
---@param tensors torch.Tensor[]
---@return torch.Tensor[]
function torch.align_tensors(tensors) end
---@overload fun(self: torch.Tensor, options: {dim: integer, keepdim: boolean?, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Tensor, dim: integer[]?, keepdim: boolean?, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {dim: integer[]?, keepdim: boolean?, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Tensor, options: {out: torch.Tensor?}?): torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@param keepdim? boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.all(self, dim, keepdim, options) end
Tensor.all = torch.all
---@overload fun(self: torch.Tensor, other: torch.Tensor|number, options: {rtol: number?, atol: number?, equal_nan: boolean?}): boolean
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param rtol? number
---@param atol? number
---@param equal_nan? boolean
---@return boolean
function torch.allclose(self, other, rtol, atol, equal_nan) end
Tensor.allclose = torch.allclose
---@overload fun(input: torch.Tensor, options: {p: number, train: boolean}): torch.Tensor
---@param input torch.Tensor
---@param p number
---@param train boolean
---@return torch.Tensor
function torch.alpha_dropout(input, p, train) end
Tensor.alpha_dropout = torch.alpha_dropout
---@overload fun(self: torch.Tensor, options: {p: number, train: boolean}): torch.Tensor
---@param self torch.Tensor
---@param p number
---@param train boolean
---@return torch.Tensor
function torch.alpha_dropout_(self, p, train) end
Tensor.alpha_dropout_ = torch.alpha_dropout_
---@overload fun(self: torch.Tensor, options: {dim: (integer|integer[])?, keepdim: boolean?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param dim? integer|integer[]
---@param keepdim? boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.amax(self, dim, keepdim, options) end
Tensor.amax = torch.amax
---@overload fun(self: torch.Tensor, options: {dim: (integer|integer[])?, keepdim: boolean?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param dim? integer|integer[]
---@param keepdim? boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.amin(self, dim, keepdim, options) end
Tensor.amin = torch.amin
---@param self torch.Tensor
---@param options? {dim: integer?, keepdim: boolean?, min: torch.Tensor?, max: torch.Tensor?}
---@return torch.Tensor min
---@return torch.Tensor max
function torch.aminmax(self, options) end
Tensor.aminmax = torch.aminmax
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.angle(self, options) end
Tensor.angle = torch.angle
---@overload fun(self: torch.Tensor, options: {dim: integer, keepdim: boolean?, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Tensor, dim: integer[]?, keepdim: boolean?, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {dim: integer[]?, keepdim: boolean?, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Tensor, options: {out: torch.Tensor?}?): torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@param keepdim? boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.any(self, dim, keepdim, options) end
Tensor.any = torch.any
---@overload fun(start: torch.Scalar, end_: torch.Scalar, options: {step: torch.Scalar?, dtype: torch.dtype?, layout: torch.layout?, device: string?, pin_memory: boolean?, requires_grad: boolean?}): torch.Tensor
---@overload fun(start: torch.Scalar, end_: torch.Scalar, options: torch.FactoryOptions?): torch.Tensor
---@overload fun(end_: torch.Scalar, options: torch.FactoryOptions?): torch.Tensor
---@overload fun(start: torch.Scalar, end_: torch.Scalar, step: torch.Scalar?, options: {out: torch.Tensor}): torch.Tensor
---@overload fun(start: torch.Scalar, end_: torch.Scalar, options: {step: torch.Scalar?, out: torch.Tensor}): torch.Tensor
---@overload fun(end_: torch.Scalar, options: {out: torch.Tensor}): torch.Tensor
---@param start torch.Scalar
---@param end_ torch.Scalar
---@param step? torch.Scalar
---@param options? torch.FactoryOptions
---@return torch.Tensor
function torch.arange(start, end_, step, options) end
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.arccos(self, options) end
Tensor.arccos = torch.arccos
---@param self torch.Tensor
---@return torch.Tensor
function torch.arccos_(self) end
Tensor.arccos_ = torch.arccos_
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.arccosh(self, options) end
Tensor.arccosh = torch.arccosh
---@param self torch.Tensor
---@return torch.Tensor
function torch.arccosh_(self) end
Tensor.arccosh_ = torch.arccosh_
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.arcsin(self, options) end
Tensor.arcsin = torch.arcsin
---@param self torch.Tensor
---@return torch.Tensor
function torch.arcsin_(self) end
Tensor.arcsin_ = torch.arcsin_
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.arcsinh(self, options) end
Tensor.arcsinh = torch.arcsinh
---@param self torch.Tensor
---@return torch.Tensor
function torch.arcsinh_(self) end
Tensor.arcsinh_ = torch.arcsinh_
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.arctan(self, options) end
Tensor.arctan = torch.arctan
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.arctan2(self, other, options) end
Tensor.arctan2 = torch.arctan2
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return torch.Tensor
function torch.arctan2_(self, other) end
Tensor.arctan2_ = torch.arctan2_
---@param self torch.Tensor
---@return torch.Tensor
function torch.arctan_(self) end
Tensor.arctan_ = torch.arctan_
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.arctanh(self, options) end
Tensor.arctanh = torch.arctanh
---@param self torch.Tensor
---@return torch.Tensor
function torch.arctanh_(self) end
Tensor.arctanh_ = torch.arctanh_
---@overload fun(self: torch.Tensor, options: {dim: integer?, keepdim: boolean?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param dim? integer
---@param keepdim? boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.argmax(self, dim, keepdim, options) end
Tensor.argmax = torch.argmax
---@overload fun(self: torch.Tensor, options: {dim: integer?, keepdim: boolean?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param dim? integer
---@param keepdim? boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.argmin(self, dim, keepdim, options) end
Tensor.argmin = torch.argmin
---@overload fun(self: torch.Tensor, dim: integer?, descending: boolean?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {dim: integer?, descending: boolean?}): torch.Tensor
---@param self torch.Tensor
---@param options {stable: boolean, dim: integer?, descending: boolean?, out: torch.Tensor?}
---@return torch.Tensor
function torch.argsort(self, options) end
Tensor.argsort = torch.argsort
---@param self torch.Tensor
---@return torch.Tensor
function torch.argwhere(self) end
Tensor.argwhere = torch.argwhere
---@overload fun(self: torch.Tensor, options: {size: integer[], stride: integer[], storage_offset: integer?}): torch.Tensor
---@param self torch.Tensor
---@param size integer[]
---@param stride integer[]
---@param storage_offset? integer
---@return torch.Tensor
function torch.as_strided(self, size, stride, storage_offset) end
Tensor.as_strided = torch.as_strided
---@overload fun(self: torch.Tensor, options: {size: integer[], stride: integer[], storage_offset: integer?}): torch.Tensor
---@param self torch.Tensor
---@param size integer[]
---@param stride integer[]
---@param storage_offset? integer
---@return torch.Tensor
function torch.as_strided_(self, size, stride, storage_offset) end
Tensor.as_strided_ = torch.as_strided_
---@overload fun(self: torch.Tensor, options: {size: integer[], stride: integer[], storage_offset: integer?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param size integer[]
---@param stride integer[]
---@param storage_offset? integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.as_strided_copy(self, size, stride, storage_offset, options) end
Tensor.as_strided_copy = torch.as_strided_copy
---@overload fun(self: torch.Tensor, src: torch.Tensor, options: {size: integer[], stride: integer[], storage_offset: integer?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param src torch.Tensor
---@param size integer[]
---@param stride integer[]
---@param storage_offset? integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.as_strided_scatter(self, src, size, stride, storage_offset, options) end
Tensor.as_strided_scatter = torch.as_strided_scatter
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.asin(self, options) end
Tensor.asin = torch.asin
---@param self torch.Tensor
---@return torch.Tensor
function torch.asin_(self) end
Tensor.asin_ = torch.asin_
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.asinh(self, options) end
Tensor.asinh = torch.asinh
---@param self torch.Tensor
---@return torch.Tensor
function torch.asinh_(self) end
Tensor.asinh_ = torch.asinh_
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.atan(self, options) end
Tensor.atan = torch.atan
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.atan2(self, other, options) end
Tensor.atan2 = torch.atan2
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return torch.Tensor
function torch.atan2_(self, other) end
Tensor.atan2_ = torch.atan2_
---@param self torch.Tensor
---@return torch.Tensor
function torch.atan_(self) end
Tensor.atan_ = torch.atan_
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.atanh(self, options) end
Tensor.atanh = torch.atanh
---@param self torch.Tensor
---@return torch.Tensor
function torch.atanh_(self) end
Tensor.atanh_ = torch.atanh_
---@overload fun(tensors: torch.Tensor[]): torch.Tensor[]
---@param self torch.Tensor
---@return torch.Tensor
function torch.atleast_1d(self) end
Tensor.atleast_1d = torch.atleast_1d
---@overload fun(tensors: torch.Tensor[]): torch.Tensor[]
---@param self torch.Tensor
---@return torch.Tensor
function torch.atleast_2d(self) end
Tensor.atleast_2d = torch.atleast_2d
---@overload fun(tensors: torch.Tensor[]): torch.Tensor[]
---@param self torch.Tensor
---@return torch.Tensor
function torch.atleast_3d(self) end
Tensor.atleast_3d = torch.atleast_3d
---@overload fun(self: torch.Tensor, options: {kernel_size: integer|integer[], stride: (integer|integer[])?, padding: (integer|integer[])?, ceil_mode: boolean?, count_include_pad: boolean?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param kernel_size integer|integer[]
---@param stride? integer|integer[]
---@param padding? integer|integer[]
---@param ceil_mode? boolean
---@param count_include_pad? boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.avg_pool1d(self, kernel_size, stride, padding, ceil_mode, count_include_pad, options) end
Tensor.avg_pool1d = torch.avg_pool1d
---@overload fun(self: torch.Tensor, options: {kernel_size: integer|integer[], stride: (integer|integer[])?, padding: (integer|integer[])?, ceil_mode: boolean?, count_include_pad: boolean?, divisor_override: integer?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param kernel_size integer|integer[]
---@param stride? integer|integer[]
---@param padding? integer|integer[]
---@param ceil_mode? boolean
---@param count_include_pad? boolean
---@param divisor_override? integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.avg_pool2d(self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override, options) end
Tensor.avg_pool2d = torch.avg_pool2d
---@overload fun(grad_output: torch.Tensor, self: torch.Tensor|number, options: {kernel_size: integer|integer[], stride: integer|integer[], padding: integer|integer[], ceil_mode: boolean, count_include_pad: boolean, divisor_override: integer?, grad_input: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param self torch.Tensor|number
---@param kernel_size integer|integer[]
---@param stride integer|integer[]
---@param padding integer|integer[]
---@param ceil_mode boolean
---@param count_include_pad boolean
---@param divisor_override integer?
---@param options? {grad_input: torch.Tensor?}
---@return torch.Tensor
function torch.avg_pool2d_backward(grad_output, self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override, options) end
Tensor.avg_pool2d_backward = torch.avg_pool2d_backward
---@overload fun(self: torch.Tensor, options: {kernel_size: integer|integer[], stride: (integer|integer[])?, padding: (integer|integer[])?, ceil_mode: boolean?, count_include_pad: boolean?, divisor_override: integer?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param kernel_size integer|integer[]
---@param stride? integer|integer[]
---@param padding? integer|integer[]
---@param ceil_mode? boolean
---@param count_include_pad? boolean
---@param divisor_override? integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.avg_pool3d(self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override, options) end
Tensor.avg_pool3d = torch.avg_pool3d
---@overload fun(grad_output: torch.Tensor, self: torch.Tensor|number, options: {kernel_size: integer|integer[], stride: integer|integer[], padding: integer|integer[], ceil_mode: boolean, count_include_pad: boolean, divisor_override: integer?, grad_input: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param self torch.Tensor|number
---@param kernel_size integer|integer[]
---@param stride integer|integer[]
---@param padding integer|integer[]
---@param ceil_mode boolean
---@param count_include_pad boolean
---@param divisor_override integer?
---@param options? {grad_input: torch.Tensor?}
---@return torch.Tensor
function torch.avg_pool3d_backward(grad_output, self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override, options) end
Tensor.avg_pool3d_backward = torch.avg_pool3d_backward
---@overload fun(self: torch.Tensor, batch1: torch.Tensor, batch2: torch.Tensor, options: {out_dtype: torch.dtype, beta: torch.Scalar?, alpha: torch.Scalar?, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Tensor, batch1: torch.Tensor, batch2: torch.Tensor, options: {beta: torch.Scalar?, alpha: torch.Scalar?, out: torch.Tensor?}?): torch.Tensor
---@param self torch.Tensor
---@param batch1 torch.Tensor
---@param batch2 torch.Tensor
---@param out_dtype torch.dtype
---@param options? {beta: torch.Scalar?, alpha: torch.Scalar?, out: torch.Tensor?}
---@return torch.Tensor
function torch.baddbmm(self, batch1, batch2, out_dtype, options) end
Tensor.baddbmm = torch.baddbmm
---@param self torch.Tensor
---@param batch1 torch.Tensor
---@param batch2 torch.Tensor
---@param options? {beta: torch.Scalar?, alpha: torch.Scalar?}
---@return torch.Tensor
function torch.baddbmm_(self, batch1, batch2, options) end
Tensor.baddbmm_ = torch.baddbmm_
---@overload fun(window_length: integer, options: torch.FactoryOptions?): torch.Tensor
---@overload fun(window_length: integer, periodic: boolean, options: {out: torch.Tensor}): torch.Tensor
---@overload fun(window_length: integer, options: {out: torch.Tensor}): torch.Tensor
---@param window_length integer
---@param periodic boolean
---@param options? torch.FactoryOptions
---@return torch.Tensor
function torch.bartlett_window(window_length, periodic, options) end
---@overload fun(input: torch.Tensor, weight: torch.Tensor?, bias: torch.Tensor?, running_mean: torch.Tensor?, running_var: torch.Tensor?, options: {training: boolean, momentum: number, eps: number, cudnn_enabled: boolean}): torch.Tensor
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
function torch.batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled) end
Tensor.batch_norm = torch.batch_norm
---@overload fun(grad_out: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, running_mean: torch.Tensor?, running_var: torch.Tensor?, save_mean: torch.Tensor?, save_var: torch.Tensor?, options: {update: boolean, eps: number, output_mask: boolean[], reserve: torch.Tensor}): torch.Tensor, torch.Tensor, torch.Tensor
---@param grad_out torch.Tensor
---@param input torch.Tensor
---@param weight torch.Tensor
---@param running_mean torch.Tensor?
---@param running_var torch.Tensor?
---@param save_mean torch.Tensor?
---@param save_var torch.Tensor?
---@param update boolean
---@param eps number
---@param output_mask boolean[]
---@param reserve torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch.batch_norm_backward(grad_out, input, weight, running_mean, running_var, save_mean, save_var, update, eps, output_mask, reserve) end
Tensor.batch_norm_backward = torch.batch_norm_backward
---@param grad_out torch.Tensor
---@param input torch.Tensor
---@param mean torch.Tensor
---@param invstd torch.Tensor
---@param weight torch.Tensor?
---@param sum_dy torch.Tensor
---@param sum_dy_xmu torch.Tensor
---@param count torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.batch_norm_backward_elemt(grad_out, input, mean, invstd, weight, sum_dy, sum_dy_xmu, count, options) end
Tensor.batch_norm_backward_elemt = torch.batch_norm_backward_elemt
---@overload fun(grad_out: torch.Tensor, input: torch.Tensor, mean: torch.Tensor, invstd: torch.Tensor, weight: torch.Tensor?, options: {input_g: boolean, weight_g: boolean, bias_g: boolean, out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?, out3: torch.Tensor?}): torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor
---@param grad_out torch.Tensor
---@param input torch.Tensor
---@param mean torch.Tensor
---@param invstd torch.Tensor
---@param weight torch.Tensor?
---@param input_g boolean
---@param weight_g boolean
---@param bias_g boolean
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?, out3: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch.batch_norm_backward_reduce(grad_out, input, mean, invstd, weight, input_g, weight_g, bias_g, options) end
Tensor.batch_norm_backward_reduce = torch.batch_norm_backward_reduce
---@overload fun(input: torch.Tensor, weight: torch.Tensor?, bias: torch.Tensor?, mean: torch.Tensor, invstd: torch.Tensor, options: {eps: number, out: torch.Tensor?}): torch.Tensor
---@param input torch.Tensor
---@param weight torch.Tensor?
---@param bias torch.Tensor?
---@param mean torch.Tensor
---@param invstd torch.Tensor
---@param eps number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.batch_norm_elemt(input, weight, bias, mean, invstd, eps, options) end
Tensor.batch_norm_elemt = torch.batch_norm_elemt
---@overload fun(input: torch.Tensor, mean: torch.Tensor, invstd: torch.Tensor, running_mean: torch.Tensor?, running_var: torch.Tensor?, options: {momentum: number, eps: number, count: integer, out0: torch.Tensor?, out1: torch.Tensor?}): torch.Tensor, torch.Tensor
---@param input torch.Tensor
---@param mean torch.Tensor
---@param invstd torch.Tensor
---@param running_mean torch.Tensor?
---@param running_var torch.Tensor?
---@param momentum number
---@param eps number
---@param count integer
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
function torch.batch_norm_gather_stats(input, mean, invstd, running_mean, running_var, momentum, eps, count, options) end
Tensor.batch_norm_gather_stats = torch.batch_norm_gather_stats
---@overload fun(input: torch.Tensor, mean: torch.Tensor, invstd: torch.Tensor, running_mean: torch.Tensor?, running_var: torch.Tensor?, options: {momentum: number, eps: number, counts: torch.Tensor, out0: torch.Tensor?, out1: torch.Tensor?}): torch.Tensor, torch.Tensor
---@param input torch.Tensor
---@param mean torch.Tensor
---@param invstd torch.Tensor
---@param running_mean torch.Tensor?
---@param running_var torch.Tensor?
---@param momentum number
---@param eps number
---@param counts torch.Tensor
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
function torch.batch_norm_gather_stats_with_counts(input, mean, invstd, running_mean, running_var, momentum, eps, counts, options) end
Tensor.batch_norm_gather_stats_with_counts = torch.batch_norm_gather_stats_with_counts
---@overload fun(input: torch.Tensor, options: {eps: number, out0: torch.Tensor?, out1: torch.Tensor?}): torch.Tensor, torch.Tensor
---@param input torch.Tensor
---@param eps number
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
function torch.batch_norm_stats(input, eps, options) end
Tensor.batch_norm_stats = torch.batch_norm_stats
---@overload fun(input: torch.Tensor, running_mean: torch.Tensor?, running_var: torch.Tensor?, options: {momentum: number, out0: torch.Tensor?, out1: torch.Tensor?}): torch.Tensor, torch.Tensor
---@param input torch.Tensor
---@param running_mean torch.Tensor?
---@param running_var torch.Tensor?
---@param momentum number
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
function torch.batch_norm_update_stats(input, running_mean, running_var, momentum, options) end
Tensor.batch_norm_update_stats = torch.batch_norm_update_stats
---@overload fun(self: torch.Tensor, p: number, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {p: number, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Tensor, options: {out: torch.Tensor?}?): torch.Tensor
---@param self torch.Tensor
---@param p torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.bernoulli(self, p, options) end
Tensor.bernoulli = torch.bernoulli
---@overload fun(self: torch.Tensor, p: number?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {p: number?}): torch.Tensor
---@param self torch.Tensor
---@param p torch.Tensor
---@return torch.Tensor
function torch.bernoulli_(self, p) end
Tensor.bernoulli_ = torch.bernoulli_
---@overload fun(input1: torch.Tensor, input2: torch.Tensor, weight: torch.Tensor, options: {bias: torch.Tensor?}): torch.Tensor
---@param input1 torch.Tensor
---@param input2 torch.Tensor
---@param weight torch.Tensor
---@param bias? torch.Tensor
---@return torch.Tensor
function torch.bilinear(input1, input2, weight, bias) end
Tensor.bilinear = torch.bilinear
---@overload fun(self: torch.Tensor, target: torch.Tensor, options: {weight: torch.Tensor?, reduction: integer?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param target torch.Tensor
---@param weight? torch.Tensor
---@param reduction? integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.binary_cross_entropy(self, target, weight, reduction, options) end
Tensor.binary_cross_entropy = torch.binary_cross_entropy
---@overload fun(grad_output: torch.Tensor, self: torch.Tensor|number, target: torch.Tensor, options: {weight: torch.Tensor?, reduction: integer?, grad_input: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param self torch.Tensor|number
---@param target torch.Tensor
---@param weight? torch.Tensor
---@param reduction? integer
---@param options? {grad_input: torch.Tensor?}
---@return torch.Tensor
function torch.binary_cross_entropy_backward(grad_output, self, target, weight, reduction, options) end
Tensor.binary_cross_entropy_backward = torch.binary_cross_entropy_backward
---@overload fun(self: torch.Tensor, target: torch.Tensor, options: {weight: torch.Tensor?, pos_weight: torch.Tensor?, reduction: integer?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param target torch.Tensor
---@param weight? torch.Tensor
---@param pos_weight? torch.Tensor
---@param reduction? integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.binary_cross_entropy_with_logits(self, target, weight, pos_weight, reduction, options) end
Tensor.binary_cross_entropy_with_logits = torch.binary_cross_entropy_with_logits
---@overload fun(self: torch.Tensor, options: {weights: torch.Tensor?, minlength: integer?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param weights? torch.Tensor
---@param minlength? integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.bincount(self, weights, minlength, options) end
Tensor.bincount = torch.bincount
---@param count torch.Tensor
---@param prob torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.binomial(count, prob, options) end
Tensor.binomial = torch.binomial
---@overload fun(self: torch.Tensor, other: torch.Scalar, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Scalar, other: torch.Tensor|number, options: {out: torch.Tensor?}?): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.bitwise_and(self, other, options) end
Tensor.bitwise_and = torch.bitwise_and
---@overload fun(self: torch.Tensor, other: torch.Scalar): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return torch.Tensor
function torch.bitwise_and_(self, other) end
Tensor.bitwise_and_ = torch.bitwise_and_
---@overload fun(self: torch.Scalar, other: torch.Tensor|number, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, other: torch.Scalar, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.bitwise_left_shift(self, other, options) end
Tensor.bitwise_left_shift = torch.bitwise_left_shift
---@overload fun(self: torch.Tensor, other: torch.Scalar): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return torch.Tensor
function torch.bitwise_left_shift_(self, other) end
Tensor.bitwise_left_shift_ = torch.bitwise_left_shift_
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.bitwise_not(self, options) end
Tensor.bitwise_not = torch.bitwise_not
---@param self torch.Tensor
---@return torch.Tensor
function torch.bitwise_not_(self) end
Tensor.bitwise_not_ = torch.bitwise_not_
---@overload fun(self: torch.Tensor, other: torch.Scalar, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Scalar, other: torch.Tensor|number, options: {out: torch.Tensor?}?): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.bitwise_or(self, other, options) end
Tensor.bitwise_or = torch.bitwise_or
---@overload fun(self: torch.Tensor, other: torch.Scalar): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return torch.Tensor
function torch.bitwise_or_(self, other) end
Tensor.bitwise_or_ = torch.bitwise_or_
---@overload fun(self: torch.Scalar, other: torch.Tensor|number, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, other: torch.Scalar, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.bitwise_right_shift(self, other, options) end
Tensor.bitwise_right_shift = torch.bitwise_right_shift
---@overload fun(self: torch.Tensor, other: torch.Scalar): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return torch.Tensor
function torch.bitwise_right_shift_(self, other) end
Tensor.bitwise_right_shift_ = torch.bitwise_right_shift_
---@overload fun(self: torch.Tensor, other: torch.Scalar, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Scalar, other: torch.Tensor|number, options: {out: torch.Tensor?}?): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.bitwise_xor(self, other, options) end
Tensor.bitwise_xor = torch.bitwise_xor
---@overload fun(self: torch.Tensor, other: torch.Scalar): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return torch.Tensor
function torch.bitwise_xor_(self, other) end
Tensor.bitwise_xor_ = torch.bitwise_xor_
---@overload fun(window_length: integer, options: torch.FactoryOptions?): torch.Tensor
---@overload fun(window_length: integer, periodic: boolean, options: {out: torch.Tensor}): torch.Tensor
---@overload fun(window_length: integer, options: {out: torch.Tensor}): torch.Tensor
---@param window_length integer
---@param periodic boolean
---@param options? torch.FactoryOptions
---@return torch.Tensor
function torch.blackman_window(window_length, periodic, options) end
---@param tensors torch.Tensor[]
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.block_diag(tensors, options) end
---@overload fun(self: torch.Tensor, mat2: torch.Tensor, options: {out_dtype: torch.dtype, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Tensor, mat2: torch.Tensor, options: {out: torch.Tensor?}?): torch.Tensor
---@param self torch.Tensor
---@param mat2 torch.Tensor
---@param out_dtype torch.dtype
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.bmm(self, mat2, out_dtype, options) end
Tensor.bmm = torch.bmm
---@param tensors torch.Tensor[]
---@return torch.Tensor[]
function torch.broadcast_tensors(tensors) end
---@overload fun(self: torch.Tensor, ...: integer): torch.Tensor
---@param self torch.Tensor
---@param size integer[]
---@return torch.Tensor
function torch.broadcast_to(self, size) end
Tensor.broadcast_to = torch.broadcast_to
---@overload fun(self: torch.Scalar, boundaries: torch.Tensor, options: {out_int32: boolean?, right: boolean?, out: torch.Tensor?}?): torch.Tensor
---@param self torch.Tensor
---@param boundaries torch.Tensor
---@param options? {out_int32: boolean?, right: boolean?, out: torch.Tensor?}
---@return torch.Tensor
function torch.bucketize(self, boundaries, options) end
Tensor.bucketize = torch.bucketize
---@param from_ torch.dtype
---@param to torch.dtype
---@return boolean
function torch.can_cast(from_, to) end
---@param tensors torch.Tensor[]
---@return torch.Tensor
function torch.cartesian_prod(tensors) end
---@overload fun(tensors: torch.Tensor[], options: {dim: integer?, out: torch.Tensor?}): torch.Tensor
---@param tensors torch.Tensor[]
---@param dim? integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.cat(tensors, dim, options) end
---@overload fun(self: torch.Tensor, options: {median: number?, sigma: number?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param median? number
---@param sigma? number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.cauchy(self, median, sigma, options) end
Tensor.cauchy = torch.cauchy
---@overload fun(self: torch.Tensor, options: {median: number?, sigma: number?}): torch.Tensor
---@param self torch.Tensor
---@param median? number
---@param sigma? number
---@return torch.Tensor
function torch.cauchy_(self, median, sigma) end
Tensor.cauchy_ = torch.cauchy_
---@param self torch.Tensor
---@return torch.Tensor
function torch.ccol_indices(self) end
Tensor.ccol_indices = torch.ccol_indices
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.ccol_indices_copy(self, options) end
Tensor.ccol_indices_copy = torch.ccol_indices_copy
---@overload fun(x1: torch.Tensor, x2: torch.Tensor, options: {p: number?, compute_mode: integer?}): torch.Tensor
---@param x1 torch.Tensor
---@param x2 torch.Tensor
---@param p? number
---@param compute_mode? integer
---@return torch.Tensor
function torch.cdist(x1, x2, p, compute_mode) end
Tensor.cdist = torch.cdist
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.ceil(self, options) end
Tensor.ceil = torch.ceil
---@param self torch.Tensor
---@return torch.Tensor
function torch.ceil_(self) end
Tensor.ceil_ = torch.ceil_
---@overload fun(self: torch.Tensor, options: {alpha: torch.Scalar?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param alpha? torch.Scalar
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.celu(self, alpha, options) end
Tensor.celu = torch.celu
---@overload fun(self: torch.Tensor, options: {alpha: torch.Scalar?}): torch.Tensor
---@param self torch.Tensor
---@param alpha? torch.Scalar
---@return torch.Tensor
function torch.celu_(self, alpha) end
Tensor.celu_ = torch.celu_
---@param matrices torch.Tensor[]
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.chain_matmul(matrices, options) end
---@param self torch.Tensor
---@param options? {memory_format: torch.memory_format?}
---@return torch.Tensor
function torch.chalf(self, options) end
Tensor.chalf = torch.chalf
---@overload fun(self: torch.Tensor, options: {groups: integer, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param groups integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.channel_shuffle(self, groups, options) end
Tensor.channel_shuffle = torch.channel_shuffle
---@overload fun(self: torch.Tensor, options: {upper: boolean?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param upper? boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.cholesky(self, upper, options) end
Tensor.cholesky = torch.cholesky
---@overload fun(self: torch.Tensor, options: {upper: boolean?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param upper? boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.cholesky_inverse(self, upper, options) end
Tensor.cholesky_inverse = torch.cholesky_inverse
---@overload fun(self: torch.Tensor, input2: torch.Tensor, options: {upper: boolean?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param input2 torch.Tensor
---@param upper? boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.cholesky_solve(self, input2, upper, options) end
Tensor.cholesky_solve = torch.cholesky_solve
---@overload fun(input: torch.Tensor, options: {numel: integer, n_bins: integer, ratio: number, bit_width: integer}): torch.Tensor, torch.Tensor
---@param input torch.Tensor
---@param numel integer
---@param n_bins integer
---@param ratio number
---@param bit_width integer
---@return torch.Tensor
---@return torch.Tensor
function torch.choose_qparams_optimized(input, numel, n_bins, ratio, bit_width) end
Tensor.choose_qparams_optimized = torch.choose_qparams_optimized
---@overload fun(self: torch.Tensor, options: {chunks: integer, dim: integer?}): torch.Tensor[]
---@param self torch.Tensor
---@param chunks integer
---@param dim? integer
---@return torch.Tensor[]
function torch.chunk(self, chunks, dim) end
Tensor.chunk = torch.chunk
---@overload fun(self: torch.Tensor, options: {min: torch.Tensor?, max: torch.Tensor?, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Tensor, min: torch.Scalar?, max: torch.Scalar?, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {min: torch.Scalar?, max: torch.Scalar?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param min? torch.Tensor
---@param max? torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.clamp(self, min, max, options) end
Tensor.clamp = torch.clamp
---@overload fun(self: torch.Tensor, options: {min: torch.Tensor?, max: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Tensor, min: torch.Scalar?, max: torch.Scalar?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {min: torch.Scalar?, max: torch.Scalar?}): torch.Tensor
---@param self torch.Tensor
---@param min? torch.Tensor
---@param max? torch.Tensor
---@return torch.Tensor
function torch.clamp_(self, min, max) end
Tensor.clamp_ = torch.clamp_
---@overload fun(self: torch.Tensor, max: torch.Scalar, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {max: torch.Scalar, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param max torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.clamp_max(self, max, options) end
Tensor.clamp_max = torch.clamp_max
---@overload fun(self: torch.Tensor, max: torch.Scalar): torch.Tensor
---@overload fun(self: torch.Tensor, options: {max: torch.Scalar}): torch.Tensor
---@param self torch.Tensor
---@param max torch.Tensor
---@return torch.Tensor
function torch.clamp_max_(self, max) end
Tensor.clamp_max_ = torch.clamp_max_
---@overload fun(self: torch.Tensor, min: torch.Scalar, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {min: torch.Scalar, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param min torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.clamp_min(self, min, options) end
Tensor.clamp_min = torch.clamp_min
---@overload fun(self: torch.Tensor, min: torch.Scalar): torch.Tensor
---@overload fun(self: torch.Tensor, options: {min: torch.Scalar}): torch.Tensor
---@param self torch.Tensor
---@param min torch.Tensor
---@return torch.Tensor
function torch.clamp_min_(self, min) end
Tensor.clamp_min_ = torch.clamp_min_
---@overload fun(self: torch.Tensor, options: {min: torch.Tensor?, max: torch.Tensor?, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Tensor, min: torch.Scalar?, max: torch.Scalar?, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {min: torch.Scalar?, max: torch.Scalar?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param min? torch.Tensor
---@param max? torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.clip(self, min, max, options) end
Tensor.clip = torch.clip
---@overload fun(self: torch.Tensor, options: {min: torch.Tensor?, max: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Tensor, min: torch.Scalar?, max: torch.Scalar?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {min: torch.Scalar?, max: torch.Scalar?}): torch.Tensor
---@param self torch.Tensor
---@param min? torch.Tensor
---@param max? torch.Tensor
---@return torch.Tensor
function torch.clip_(self, min, max) end
Tensor.clip_ = torch.clip_
---@param self torch.Tensor
---@param options? {memory_format: torch.memory_format?, out: torch.Tensor?}
---@return torch.Tensor
function torch.clone(self, options) end
Tensor.clone = torch.clone
---@param self torch.Tensor
---@return torch.Tensor
function torch.coalesce(self) end
Tensor.coalesce = torch.coalesce
---@overload fun(self: torch.Tensor, options: {output_size: integer|integer[], kernel_size: integer|integer[], dilation: integer|integer[], padding: integer|integer[], stride: integer|integer[], out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param output_size integer|integer[]
---@param kernel_size integer|integer[]
---@param dilation integer|integer[]
---@param padding integer|integer[]
---@param stride integer|integer[]
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.col2im(self, output_size, kernel_size, dilation, padding, stride, options) end
Tensor.col2im = torch.col2im
---@param self torch.Tensor
---@return torch.Tensor
function torch.col_indices(self) end
Tensor.col_indices = torch.col_indices
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.col_indices_copy(self, options) end
Tensor.col_indices_copy = torch.col_indices_copy
---@param tensors torch.Tensor[]
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.column_stack(tensors, options) end
---@overload fun(self: torch.Tensor, options: {r: integer?, with_replacement: boolean?}): torch.Tensor
---@param self torch.Tensor
---@param r? integer
---@param with_replacement? boolean
---@return torch.Tensor
function torch.combinations(self, r, with_replacement) end
Tensor.combinations = torch.combinations
---@param real torch.Tensor
---@param imag torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.complex(real, imag, options) end
Tensor.complex = torch.complex
---@overload fun(tensors: torch.Tensor[], options: {dim: integer?, out: torch.Tensor?}): torch.Tensor
---@param tensors torch.Tensor[]
---@param dim? integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.concat(tensors, dim, options) end
---@overload fun(tensors: torch.Tensor[], options: {dim: integer?, out: torch.Tensor?}): torch.Tensor
---@param tensors torch.Tensor[]
---@param dim? integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.concatenate(tensors, dim, options) end
---@param self torch.Tensor
---@return torch.Tensor
function torch.conj(self) end
Tensor.conj = torch.conj
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.conj_physical(self, options) end
Tensor.conj_physical = torch.conj_physical
---@param self torch.Tensor
---@return torch.Tensor
function torch.conj_physical_(self) end
Tensor.conj_physical_ = torch.conj_physical_
---@overload fun(self: torch.Tensor, options: {pad: integer[], value: torch.Scalar?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param pad integer[]
---@param value? torch.Scalar
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.constant_pad_nd(self, pad, value, options) end
Tensor.constant_pad_nd = torch.constant_pad_nd
---@param self torch.Tensor
---@param options? {memory_format: torch.memory_format?}
---@return torch.Tensor
function torch.contiguous(self, options) end
Tensor.contiguous = torch.contiguous
---@overload fun(input: torch.Tensor, weight: torch.Tensor, options: {bias: torch.Tensor?, stride: (integer|integer[])?, padding: (integer|integer[])?, dilation: (integer|integer[])?, groups: integer?}): torch.Tensor
---@overload fun(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor?, stride: (integer|integer[])?, padding: string?, dilation: (integer|integer[])?, groups: integer?): torch.Tensor
---@overload fun(input: torch.Tensor, weight: torch.Tensor, options: {bias: torch.Tensor?, stride: (integer|integer[])?, padding: string?, dilation: (integer|integer[])?, groups: integer?}): torch.Tensor
---@param input torch.Tensor
---@param weight torch.Tensor
---@param bias? torch.Tensor
---@param stride? integer|integer[]
---@param padding? integer|integer[]
---@param dilation? integer|integer[]
---@param groups? integer
---@return torch.Tensor
function torch.conv1d(input, weight, bias, stride, padding, dilation, groups) end
Tensor.conv1d = torch.conv1d
---@overload fun(input: torch.Tensor, weight: torch.Tensor, options: {bias: torch.Tensor?, stride: (integer|integer[])?, padding: (integer|integer[])?, dilation: (integer|integer[])?, groups: integer?}): torch.Tensor
---@overload fun(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor?, stride: (integer|integer[])?, padding: string?, dilation: (integer|integer[])?, groups: integer?): torch.Tensor
---@overload fun(input: torch.Tensor, weight: torch.Tensor, options: {bias: torch.Tensor?, stride: (integer|integer[])?, padding: string?, dilation: (integer|integer[])?, groups: integer?}): torch.Tensor
---@param input torch.Tensor
---@param weight torch.Tensor
---@param bias? torch.Tensor
---@param stride? integer|integer[]
---@param padding? integer|integer[]
---@param dilation? integer|integer[]
---@param groups? integer
---@return torch.Tensor
function torch.conv2d(input, weight, bias, stride, padding, dilation, groups) end
Tensor.conv2d = torch.conv2d
---@overload fun(input: torch.Tensor, weight: torch.Tensor, options: {bias: torch.Tensor?, stride: (integer|integer[])?, padding: (integer|integer[])?, dilation: (integer|integer[])?, groups: integer?}): torch.Tensor
---@overload fun(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor?, stride: (integer|integer[])?, padding: string?, dilation: (integer|integer[])?, groups: integer?): torch.Tensor
---@overload fun(input: torch.Tensor, weight: torch.Tensor, options: {bias: torch.Tensor?, stride: (integer|integer[])?, padding: string?, dilation: (integer|integer[])?, groups: integer?}): torch.Tensor
---@param input torch.Tensor
---@param weight torch.Tensor
---@param bias? torch.Tensor
---@param stride? integer|integer[]
---@param padding? integer|integer[]
---@param dilation? integer|integer[]
---@param groups? integer
---@return torch.Tensor
function torch.conv3d(input, weight, bias, stride, padding, dilation, groups) end
Tensor.conv3d = torch.conv3d
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
function torch.conv_depthwise3d(self, weight, kernel_size, bias, stride, padding, dilation, options) end
Tensor.conv_depthwise3d = torch.conv_depthwise3d
---@overload fun(self: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, options: {pad: integer?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param weight torch.Tensor
---@param bias torch.Tensor
---@param pad? integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.conv_tbc(self, weight, bias, pad, options) end
Tensor.conv_tbc = torch.conv_tbc
---@overload fun(self: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, options: {pad: integer}): torch.Tensor, torch.Tensor, torch.Tensor
---@param self torch.Tensor
---@param input torch.Tensor
---@param weight torch.Tensor
---@param bias torch.Tensor
---@param pad integer
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch.conv_tbc_backward(self, input, weight, bias, pad) end
Tensor.conv_tbc_backward = torch.conv_tbc_backward
---@overload fun(input: torch.Tensor, weight: torch.Tensor, options: {bias: torch.Tensor?, stride: (integer|integer[])?, padding: (integer|integer[])?, output_padding: (integer|integer[])?, groups: integer?, dilation: (integer|integer[])?}): torch.Tensor
---@param input torch.Tensor
---@param weight torch.Tensor
---@param bias? torch.Tensor
---@param stride? integer|integer[]
---@param padding? integer|integer[]
---@param output_padding? integer|integer[]
---@param groups? integer
---@param dilation? integer|integer[]
---@return torch.Tensor
function torch.conv_transpose1d(input, weight, bias, stride, padding, output_padding, groups, dilation) end
Tensor.conv_transpose1d = torch.conv_transpose1d
---@overload fun(input: torch.Tensor, weight: torch.Tensor, options: {bias: torch.Tensor?, stride: (integer|integer[])?, padding: (integer|integer[])?, output_padding: (integer|integer[])?, groups: integer?, dilation: (integer|integer[])?}): torch.Tensor
---@param input torch.Tensor
---@param weight torch.Tensor
---@param bias? torch.Tensor
---@param stride? integer|integer[]
---@param padding? integer|integer[]
---@param output_padding? integer|integer[]
---@param groups? integer
---@param dilation? integer|integer[]
---@return torch.Tensor
function torch.conv_transpose2d(input, weight, bias, stride, padding, output_padding, groups, dilation) end
Tensor.conv_transpose2d = torch.conv_transpose2d
---@overload fun(input: torch.Tensor, weight: torch.Tensor, options: {bias: torch.Tensor?, stride: (integer|integer[])?, padding: (integer|integer[])?, output_padding: (integer|integer[])?, groups: integer?, dilation: (integer|integer[])?}): torch.Tensor
---@param input torch.Tensor
---@param weight torch.Tensor
---@param bias? torch.Tensor
---@param stride? integer|integer[]
---@param padding? integer|integer[]
---@param output_padding? integer|integer[]
---@param groups? integer
---@param dilation? integer|integer[]
---@return torch.Tensor
function torch.conv_transpose3d(input, weight, bias, stride, padding, output_padding, groups, dilation) end
Tensor.conv_transpose3d = torch.conv_transpose3d
---@overload fun(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor?, options: {stride: integer[], padding: integer[], dilation: integer[], transposed: boolean, output_padding: integer[], groups: integer, out: torch.Tensor?}): torch.Tensor
---@param input torch.Tensor
---@param weight torch.Tensor
---@param bias torch.Tensor?
---@param stride integer[]
---@param padding integer[]
---@param dilation integer[]
---@param transposed boolean
---@param output_padding integer[]
---@param groups integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups, options) end
Tensor.convolution = torch.convolution
---@overload fun(grad_output: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, options: {bias_sizes: integer[]?, stride: integer[], padding: integer[], dilation: integer[], transposed: boolean, output_padding: integer[], groups: integer, output_mask: boolean[], out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?}): torch.Tensor, torch.Tensor, torch.Tensor
---@param grad_output torch.Tensor
---@param input torch.Tensor
---@param weight torch.Tensor
---@param bias_sizes integer[]?
---@param stride integer[]
---@param padding integer[]
---@param dilation integer[]
---@param transposed boolean
---@param output_padding integer[]
---@param groups integer
---@param output_mask boolean[]
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch.convolution_backward(grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask, options) end
Tensor.convolution_backward = torch.convolution_backward
---@overload fun(grad_output: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, options: {stride: integer[], padding: integer[], dilation: integer[], transposed: boolean, output_padding: integer[], groups: integer, output_mask: boolean[], out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?}): torch.Tensor, torch.Tensor, torch.Tensor
---@param grad_output torch.Tensor
---@param input torch.Tensor
---@param weight torch.Tensor
---@param stride integer[]
---@param padding integer[]
---@param dilation integer[]
---@param transposed boolean
---@param output_padding integer[]
---@param groups integer
---@param output_mask boolean[]
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?}
---@return torch.Tensor grad_input
---@return torch.Tensor grad_weight
---@return torch.Tensor grad_bias
function torch.convolution_backward_overrideable(grad_output, input, weight, stride, padding, dilation, transposed, output_padding, groups, output_mask, options) end
Tensor.convolution_backward_overrideable = torch.convolution_backward_overrideable
---@overload fun(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor?, options: {stride: integer[], padding: integer[], dilation: integer[], transposed: boolean, output_padding: integer[], groups: integer, out: torch.Tensor?}): torch.Tensor
---@param input torch.Tensor
---@param weight torch.Tensor
---@param bias torch.Tensor?
---@param stride integer[]
---@param padding integer[]
---@param dilation integer[]
---@param transposed boolean
---@param output_padding integer[]
---@param groups integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.convolution_overrideable(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups, options) end
Tensor.convolution_overrideable = torch.convolution_overrideable
---@overload fun(self: torch.Tensor, src: torch.Tensor, options: {non_blocking: boolean?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param src torch.Tensor
---@param non_blocking? boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.copy(self, src, non_blocking, options) end
Tensor.copy = torch.copy
---@overload fun(self: torch.Tensor, src: torch.Tensor, options: {non_blocking: boolean?}): torch.Tensor
---@param self torch.Tensor
---@param src torch.Tensor
---@param non_blocking? boolean
---@return torch.Tensor
function torch.copy_(self, src, non_blocking) end
Tensor.copy_ = torch.copy_
---@overload fun(self: torch.Tensor, src: torch.Tensor, options: {non_blocking: boolean?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param src torch.Tensor
---@param non_blocking? boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.copy_sparse_to_sparse(self, src, non_blocking, options) end
Tensor.copy_sparse_to_sparse = torch.copy_sparse_to_sparse
---@overload fun(self: torch.Tensor, src: torch.Tensor, options: {non_blocking: boolean?}): torch.Tensor
---@param self torch.Tensor
---@param src torch.Tensor
---@param non_blocking? boolean
---@return torch.Tensor
function torch.copy_sparse_to_sparse_(self, src, non_blocking) end
Tensor.copy_sparse_to_sparse_ = torch.copy_sparse_to_sparse_
---@overload fun(self: torch.Tensor, other: torch.Scalar, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.copysign(self, other, options) end
Tensor.copysign = torch.copysign
---@overload fun(self: torch.Tensor, other: torch.Scalar): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return torch.Tensor
function torch.copysign_(self, other) end
Tensor.copysign_ = torch.copysign_
---@param self torch.Tensor
---@return torch.Tensor
function torch.corrcoef(self) end
Tensor.corrcoef = torch.corrcoef
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.cos(self, options) end
Tensor.cos = torch.cos
---@param self torch.Tensor
---@return torch.Tensor
function torch.cos_(self) end
Tensor.cos_ = torch.cos_
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.cosh(self, options) end
Tensor.cosh = torch.cosh
---@param self torch.Tensor
---@return torch.Tensor
function torch.cosh_(self) end
Tensor.cosh_ = torch.cosh_
---@overload fun(input1: torch.Tensor, input2: torch.Tensor, target: torch.Tensor, options: {margin: number?, reduction: integer?}): torch.Tensor
---@param input1 torch.Tensor
---@param input2 torch.Tensor
---@param target torch.Tensor
---@param margin? number
---@param reduction? integer
---@return torch.Tensor
function torch.cosine_embedding_loss(input1, input2, target, margin, reduction) end
Tensor.cosine_embedding_loss = torch.cosine_embedding_loss
---@overload fun(x1: torch.Tensor, x2: torch.Tensor, options: {dim: integer?, eps: number?}): torch.Tensor
---@param x1 torch.Tensor
---@param x2 torch.Tensor
---@param dim? integer
---@param eps? number
---@return torch.Tensor
function torch.cosine_similarity(x1, x2, dim, eps) end
Tensor.cosine_similarity = torch.cosine_similarity
---@overload fun(self: torch.Tensor, options: {dim: integer?, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Tensor, dim: integer[], options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, ...: integer|table): torch.Tensor
---@param self torch.Tensor
---@param dim? integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.count_nonzero(self, dim, options) end
Tensor.count_nonzero = torch.count_nonzero
---@param self torch.Tensor
---@param options? {correction: integer?, fweights: torch.Tensor?, aweights: torch.Tensor?}
---@return torch.Tensor
function torch.cov(self, options) end
Tensor.cov = torch.cov
---@overload fun(self: torch.Tensor, other: torch.Tensor|number, options: {dim: integer?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param dim? integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.cross(self, other, dim, options) end
Tensor.cross = torch.cross
---@overload fun(self: torch.Tensor, target: torch.Tensor, options: {weight: torch.Tensor?, reduction: integer?, ignore_index: integer?, label_smoothing: number?}): torch.Tensor
---@param self torch.Tensor
---@param target torch.Tensor
---@param weight? torch.Tensor
---@param reduction? integer
---@param ignore_index? integer
---@param label_smoothing? number
---@return torch.Tensor
function torch.cross_entropy_loss(self, target, weight, reduction, ignore_index, label_smoothing) end
Tensor.cross_entropy_loss = torch.cross_entropy_loss
---@param self torch.Tensor
---@return torch.Tensor
function torch.crow_indices(self) end
Tensor.crow_indices = torch.crow_indices
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.crow_indices_copy(self, options) end
Tensor.crow_indices_copy = torch.crow_indices_copy
---@overload fun(log_probs: torch.Tensor, targets: torch.Tensor, input_lengths: torch.Tensor, target_lengths: torch.Tensor, options: {blank: integer?, reduction: integer?, zero_infinity: boolean?}): torch.Tensor
---@overload fun(log_probs: torch.Tensor, targets: torch.Tensor, input_lengths: integer[], target_lengths: integer[], blank: integer?, reduction: integer?, zero_infinity: boolean?): torch.Tensor
---@overload fun(log_probs: torch.Tensor, targets: torch.Tensor, options: {input_lengths: integer[], target_lengths: integer[], blank: integer?, reduction: integer?, zero_infinity: boolean?}): torch.Tensor
---@param log_probs torch.Tensor
---@param targets torch.Tensor
---@param input_lengths torch.Tensor
---@param target_lengths torch.Tensor
---@param blank? integer
---@param reduction? integer
---@param zero_infinity? boolean
---@return torch.Tensor
function torch.ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, reduction, zero_infinity) end
Tensor.ctc_loss = torch.ctc_loss
---@overload fun(theta: torch.Tensor, options: {N: integer, C: integer, H: integer, W: integer, out: torch.Tensor?}): torch.Tensor
---@param theta torch.Tensor
---@param N integer
---@param C integer
---@param H integer
---@param W integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor grid
function torch.cudnn_affine_grid_generator(theta, N, C, H, W, options) end
Tensor.cudnn_affine_grid_generator = torch.cudnn_affine_grid_generator
---@overload fun(grad: torch.Tensor, options: {N: integer, C: integer, H: integer, W: integer, out: torch.Tensor?}): torch.Tensor
---@param grad torch.Tensor
---@param N integer
---@param C integer
---@param H integer
---@param W integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor grad_theta
function torch.cudnn_affine_grid_generator_backward(grad, N, C, H, W, options) end
Tensor.cudnn_affine_grid_generator_backward = torch.cudnn_affine_grid_generator_backward
---@overload fun(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor?, running_mean: torch.Tensor?, running_var: torch.Tensor?, options: {training: boolean, exponential_average_factor: number, epsilon: number, out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?, out3: torch.Tensor?}): torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor
---@param input torch.Tensor
---@param weight torch.Tensor
---@param bias torch.Tensor?
---@param running_mean torch.Tensor?
---@param running_var torch.Tensor?
---@param training boolean
---@param exponential_average_factor number
---@param epsilon number
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?, out3: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch.cudnn_batch_norm(input, weight, bias, running_mean, running_var, training, exponential_average_factor, epsilon, options) end
Tensor.cudnn_batch_norm = torch.cudnn_batch_norm
---@overload fun(input: torch.Tensor, grad_output: torch.Tensor, weight: torch.Tensor, running_mean: torch.Tensor?, running_var: torch.Tensor?, save_mean: torch.Tensor?, save_var: torch.Tensor?, options: {epsilon: number, reserveSpace: torch.Tensor, out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?}): torch.Tensor, torch.Tensor, torch.Tensor
---@param input torch.Tensor
---@param grad_output torch.Tensor
---@param weight torch.Tensor
---@param running_mean torch.Tensor?
---@param running_var torch.Tensor?
---@param save_mean torch.Tensor?
---@param save_var torch.Tensor?
---@param epsilon number
---@param reserveSpace torch.Tensor
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch.cudnn_batch_norm_backward(input, grad_output, weight, running_mean, running_var, save_mean, save_var, epsilon, reserveSpace, options) end
Tensor.cudnn_batch_norm_backward = torch.cudnn_batch_norm_backward
---@overload fun(self: torch.Tensor, weight: torch.Tensor, options: {padding: integer[], stride: integer[], dilation: integer[], groups: integer, benchmark: boolean, deterministic: boolean, allow_tf32: boolean, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param weight torch.Tensor
---@param padding integer[]
---@param stride integer[]
---@param dilation integer[]
---@param groups integer
---@param benchmark boolean
---@param deterministic boolean
---@param allow_tf32 boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.cudnn_convolution(self, weight, padding, stride, dilation, groups, benchmark, deterministic, allow_tf32, options) end
Tensor.cudnn_convolution = torch.cudnn_convolution
---@overload fun(self: torch.Tensor, weight: torch.Tensor, z: torch.Tensor, options: {alpha: torch.Scalar?, bias: torch.Tensor?, stride: integer[], padding: integer[], dilation: integer[], groups: integer, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param weight torch.Tensor
---@param z torch.Tensor
---@param alpha torch.Scalar?
---@param bias torch.Tensor?
---@param stride integer[]
---@param padding integer[]
---@param dilation integer[]
---@param groups integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.cudnn_convolution_add_relu(self, weight, z, alpha, bias, stride, padding, dilation, groups, options) end
Tensor.cudnn_convolution_add_relu = torch.cudnn_convolution_add_relu
---@overload fun(self: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor?, options: {stride: integer[], padding: integer[], dilation: integer[], groups: integer, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param weight torch.Tensor
---@param bias torch.Tensor?
---@param stride integer[]
---@param padding integer[]
---@param dilation integer[]
---@param groups integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.cudnn_convolution_relu(self, weight, bias, stride, padding, dilation, groups, options) end
Tensor.cudnn_convolution_relu = torch.cudnn_convolution_relu
---@overload fun(self: torch.Tensor, weight: torch.Tensor, options: {padding: integer[], output_padding: integer[], stride: integer[], dilation: integer[], groups: integer, benchmark: boolean, deterministic: boolean, allow_tf32: boolean, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param weight torch.Tensor
---@param padding integer[]
---@param output_padding integer[]
---@param stride integer[]
---@param dilation integer[]
---@param groups integer
---@param benchmark boolean
---@param deterministic boolean
---@param allow_tf32 boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.cudnn_convolution_transpose(self, weight, padding, output_padding, stride, dilation, groups, benchmark, deterministic, allow_tf32, options) end
Tensor.cudnn_convolution_transpose = torch.cudnn_convolution_transpose
---@param self torch.Tensor
---@param grid torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor output
function torch.cudnn_grid_sampler(self, grid, options) end
Tensor.cudnn_grid_sampler = torch.cudnn_grid_sampler
---@param self torch.Tensor
---@param grid torch.Tensor
---@param grad_output torch.Tensor
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?}
---@return torch.Tensor grad_self
---@return torch.Tensor grad_grid
function torch.cudnn_grid_sampler_backward(self, grid, grad_output, options) end
Tensor.cudnn_grid_sampler_backward = torch.cudnn_grid_sampler_backward
---@param self torch.Tensor
---@return boolean
function torch.cudnn_is_acceptable(self) end
Tensor.cudnn_is_acceptable = torch.cudnn_is_acceptable
---@overload fun(self: torch.Tensor, options: {dim: integer, values: torch.Tensor?, indices: torch.Tensor?}): torch.Tensor, torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@param options? {values: torch.Tensor?, indices: torch.Tensor?}
---@return torch.Tensor values
---@return torch.Tensor indices
function torch.cummax(self, dim, options) end
Tensor.cummax = torch.cummax
---@overload fun(grad: torch.Tensor, input: torch.Tensor, indices: torch.Tensor, options: {dim: integer}): torch.Tensor
---@param grad torch.Tensor
---@param input torch.Tensor
---@param indices torch.Tensor
---@param dim integer
---@return torch.Tensor
function torch.cummaxmin_backward(grad, input, indices, dim) end
Tensor.cummaxmin_backward = torch.cummaxmin_backward
---@overload fun(self: torch.Tensor, options: {dim: integer, values: torch.Tensor?, indices: torch.Tensor?}): torch.Tensor, torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@param options? {values: torch.Tensor?, indices: torch.Tensor?}
---@return torch.Tensor values
---@return torch.Tensor indices
function torch.cummin(self, dim, options) end
Tensor.cummin = torch.cummin
---@overload fun(self: torch.Tensor, options: {dim: integer, dtype: torch.dtype?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@param options? {dtype: torch.dtype?, out: torch.Tensor?}
---@return torch.Tensor
function torch.cumprod(self, dim, options) end
Tensor.cumprod = torch.cumprod
---@overload fun(self: torch.Tensor, options: {dim: integer, dtype: torch.dtype?}): torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@param options? {dtype: torch.dtype?}
---@return torch.Tensor
function torch.cumprod_(self, dim, options) end
Tensor.cumprod_ = torch.cumprod_
---@overload fun(grad: torch.Tensor, input: torch.Tensor, options: {dim: integer, output: torch.Tensor}): torch.Tensor
---@param grad torch.Tensor
---@param input torch.Tensor
---@param dim integer
---@param output torch.Tensor
---@return torch.Tensor
function torch.cumprod_backward(grad, input, dim, output) end
Tensor.cumprod_backward = torch.cumprod_backward
---@overload fun(self: torch.Tensor, options: {dim: integer, dtype: torch.dtype?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@param options? {dtype: torch.dtype?, out: torch.Tensor?}
---@return torch.Tensor
function torch.cumsum(self, dim, options) end
Tensor.cumsum = torch.cumsum
---@overload fun(self: torch.Tensor, options: {dim: integer, dtype: torch.dtype?}): torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@param options? {dtype: torch.dtype?}
---@return torch.Tensor
function torch.cumsum_(self, dim, options) end
Tensor.cumsum_ = torch.cumsum_
---@overload fun(y: torch.Tensor, options: {dx: torch.Scalar?, dim: integer?}?): torch.Tensor
---@param y torch.Tensor
---@param x torch.Tensor
---@param options? {dim: integer?}
---@return torch.Tensor
function torch.cumulative_trapezoid(y, x, options) end
Tensor.cumulative_trapezoid = torch.cumulative_trapezoid
---@param self torch.Tensor
---@return torch.Tensor
function torch.data(self) end
Tensor.data = torch.data
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.deg2rad(self, options) end
Tensor.deg2rad = torch.deg2rad
---@param self torch.Tensor
---@return torch.Tensor
function torch.deg2rad_(self) end
Tensor.deg2rad_ = torch.deg2rad_
---@param self torch.Tensor
---@return integer
function torch.dense_dim(self) end
Tensor.dense_dim = torch.dense_dim
---@overload fun(tensors: torch.Tensor[], options: {out: torch.Tensor[]?}?): torch.Tensor[]
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.dequantize(self, options) end
Tensor.dequantize = torch.dequantize
---@param self torch.Tensor
---@return torch.Tensor
function torch.det(self) end
Tensor.det = torch.det
---@param self torch.Tensor
---@return torch.Tensor
function torch.detach(self) end
Tensor.detach = torch.detach
---@param self torch.Tensor
---@return torch.Tensor
function torch.detach_(self) end
Tensor.detach_ = torch.detach_
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.detach_copy(self, options) end
Tensor.detach_copy = torch.detach_copy
---@overload fun(self: torch.Tensor, options: {diagonal: integer?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param diagonal? integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.diag(self, diagonal, options) end
Tensor.diag = torch.diag
---@overload fun(self: torch.Tensor, options: {offset: integer?, dim1: integer?, dim2: integer?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param offset? integer
---@param dim1? integer
---@param dim2? integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.diag_embed(self, offset, dim1, dim2, options) end
Tensor.diag_embed = torch.diag_embed
---@overload fun(self: torch.Tensor, options: {offset: integer?}): torch.Tensor
---@param self torch.Tensor
---@param offset? integer
---@return torch.Tensor
function torch.diagflat(self, offset) end
Tensor.diagflat = torch.diagflat
---@overload fun(self: torch.Tensor, options: {offset: integer?, dim1: integer?, dim2: integer?}): torch.Tensor
---@param self torch.Tensor
---@param offset? integer
---@param dim1? integer
---@param dim2? integer
---@return torch.Tensor
function torch.diagonal(self, offset, dim1, dim2) end
Tensor.diagonal = torch.diagonal
---@overload fun(grad_output: torch.Tensor, options: {input_sizes: integer[], offset: integer, dim1: integer, dim2: integer, out: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param input_sizes integer[]
---@param offset integer
---@param dim1 integer
---@param dim2 integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.diagonal_backward(grad_output, input_sizes, offset, dim1, dim2, options) end
Tensor.diagonal_backward = torch.diagonal_backward
---@overload fun(self: torch.Tensor, options: {offset: integer?, dim1: integer?, dim2: integer?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param offset? integer
---@param dim1? integer
---@param dim2? integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.diagonal_copy(self, offset, dim1, dim2, options) end
Tensor.diagonal_copy = torch.diagonal_copy
---@overload fun(self: torch.Tensor, src: torch.Tensor, options: {offset: integer?, dim1: integer?, dim2: integer?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param src torch.Tensor
---@param offset? integer
---@param dim1? integer
---@param dim2? integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.diagonal_scatter(self, src, offset, dim1, dim2, options) end
Tensor.diagonal_scatter = torch.diagonal_scatter
---@overload fun(self: torch.Tensor, options: {n: integer?, dim: integer?, prepend: torch.Tensor?, append: torch.Tensor?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param n? integer
---@param dim? integer
---@param prepend? torch.Tensor
---@param append? torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.diff(self, n, dim, prepend, append, options) end
Tensor.diff = torch.diff
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.digamma(self, options) end
Tensor.digamma = torch.digamma
---@param self torch.Tensor
---@return torch.Tensor
function torch.digamma_(self) end
Tensor.digamma_ = torch.digamma_
---@overload fun(self: torch.Tensor, other: torch.Tensor|number, options: {p: torch.Scalar?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param p? torch.Scalar
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.dist(self, other, p, options) end
Tensor.dist = torch.dist
---@overload fun(self: torch.Tensor, other: torch.Tensor|number, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, other: torch.Scalar, options: {rounding_mode: string?, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar, rounding_mode: string?, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Tensor, other: torch.Scalar, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options {rounding_mode: string?, out: torch.Tensor?}
---@return torch.Tensor
function torch.div(self, other, options) end
Tensor.div = torch.div
---@overload fun(self: torch.Tensor, other: torch.Tensor|number): torch.Tensor
---@overload fun(self: torch.Tensor, other: torch.Scalar, options: {rounding_mode: string?}): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar, rounding_mode: string?}): torch.Tensor
---@overload fun(self: torch.Tensor, other: torch.Scalar): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options {rounding_mode: string?}
---@return torch.Tensor
function torch.div_(self, other, options) end
Tensor.div_ = torch.div_
---@overload fun(self: torch.Tensor, other: torch.Tensor|number, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, other: torch.Scalar, options: {rounding_mode: string?}): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar, rounding_mode: string?}): torch.Tensor
---@overload fun(self: torch.Tensor, other: torch.Scalar): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options {rounding_mode: string?, out: torch.Tensor?}
---@return torch.Tensor
function torch.divide(self, other, options) end
Tensor.divide = torch.divide
---@overload fun(self: torch.Tensor, other: torch.Tensor|number): torch.Tensor
---@overload fun(self: torch.Tensor, other: torch.Scalar, options: {rounding_mode: string?}): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar, rounding_mode: string?}): torch.Tensor
---@overload fun(self: torch.Tensor, other: torch.Scalar): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options {rounding_mode: string?}
---@return torch.Tensor
function torch.divide_(self, other, options) end
Tensor.divide_ = torch.divide_
---@param self torch.Tensor
---@param tensor torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.dot(self, tensor, options) end
Tensor.dot = torch.dot
---@overload fun(input: torch.Tensor, options: {p: number, train: boolean}): torch.Tensor
---@param input torch.Tensor
---@param p number
---@param train boolean
---@return torch.Tensor
function torch.dropout(input, p, train) end
Tensor.dropout = torch.dropout
---@overload fun(self: torch.Tensor, options: {p: number, train: boolean}): torch.Tensor
---@param self torch.Tensor
---@param p number
---@param train boolean
---@return torch.Tensor
function torch.dropout_(self, p, train) end
Tensor.dropout_ = torch.dropout_
---@overload fun(self: torch.Tensor, ...: integer): torch.Tensor[]
---@overload fun(self: torch.Tensor, sections: integer): torch.Tensor[]
---@overload fun(self: torch.Tensor, options: {sections: integer}): torch.Tensor[]
---@param self torch.Tensor
---@param indices integer[]
---@return torch.Tensor[]
function torch.dsplit(self, indices) end
Tensor.dsplit = torch.dsplit
---@param tensors torch.Tensor[]
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.dstack(tensors, options) end
---@param equation string
---@param tensors torch.Tensor[]
---@param options? {path: integer[]?}
---@return torch.Tensor
function torch.einsum(equation, tensors, options) end
---@overload fun(self: torch.Tensor, options: {alpha: torch.Scalar?, scale: torch.Scalar?, input_scale: torch.Scalar?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param alpha? torch.Scalar
---@param scale? torch.Scalar
---@param input_scale? torch.Scalar
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.elu(self, alpha, scale, input_scale, options) end
Tensor.elu = torch.elu
---@overload fun(self: torch.Tensor, options: {alpha: torch.Scalar?, scale: torch.Scalar?, input_scale: torch.Scalar?}): torch.Tensor
---@param self torch.Tensor
---@param alpha? torch.Scalar
---@param scale? torch.Scalar
---@param input_scale? torch.Scalar
---@return torch.Tensor
function torch.elu_(self, alpha, scale, input_scale) end
Tensor.elu_ = torch.elu_
---@overload fun(grad_output: torch.Tensor, options: {alpha: torch.Scalar, scale: torch.Scalar, input_scale: torch.Scalar, is_result: boolean, self_or_result: torch.Tensor, grad_input: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param alpha torch.Scalar
---@param scale torch.Scalar
---@param input_scale torch.Scalar
---@param is_result boolean
---@param self_or_result torch.Tensor
---@param options? {grad_input: torch.Tensor?}
---@return torch.Tensor
function torch.elu_backward(grad_output, alpha, scale, input_scale, is_result, self_or_result, options) end
Tensor.elu_backward = torch.elu_backward
---@overload fun(weight: torch.Tensor, indices: torch.Tensor, options: {padding_idx: integer?, scale_grad_by_freq: boolean?, sparse: boolean?, out: torch.Tensor?}): torch.Tensor
---@param weight torch.Tensor
---@param indices torch.Tensor
---@param padding_idx? integer
---@param scale_grad_by_freq? boolean
---@param sparse? boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.embedding(weight, indices, padding_idx, scale_grad_by_freq, sparse, options) end
Tensor.embedding = torch.embedding
---@overload fun(grad: torch.Tensor, indices: torch.Tensor, options: {num_weights: integer, padding_idx: integer, scale_grad_by_freq: boolean, sparse: boolean}): torch.Tensor
---@param grad torch.Tensor
---@param indices torch.Tensor
---@param num_weights integer
---@param padding_idx integer
---@param scale_grad_by_freq boolean
---@param sparse boolean
---@return torch.Tensor
function torch.embedding_backward(grad, indices, num_weights, padding_idx, scale_grad_by_freq, sparse) end
Tensor.embedding_backward = torch.embedding_backward
---@overload fun(weight: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, options: {scale_grad_by_freq: boolean, mode: integer, sparse: boolean, per_sample_weights: torch.Tensor?, include_last_offset: boolean, padding_idx: integer?}): torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor
---@overload fun(weight: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, scale_grad_by_freq: boolean?, mode: integer?, sparse: boolean?, per_sample_weights: torch.Tensor?, include_last_offset: boolean?): torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor
---@overload fun(weight: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, options: {scale_grad_by_freq: boolean?, mode: integer?, sparse: boolean?, per_sample_weights: torch.Tensor?, include_last_offset: boolean?}): torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor
---@param weight torch.Tensor
---@param indices torch.Tensor
---@param offsets torch.Tensor
---@param scale_grad_by_freq boolean
---@param mode integer
---@param sparse boolean
---@param per_sample_weights torch.Tensor?
---@param include_last_offset boolean
---@param padding_idx integer?
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch.embedding_bag(weight, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights, include_last_offset, padding_idx) end
Tensor.embedding_bag = torch.embedding_bag
---@overload fun(grad_output: torch.Tensor, indices: torch.Tensor, options: {num_weights: integer, padding_idx: integer, scale_grad_by_freq: boolean, out: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param indices torch.Tensor
---@param num_weights integer
---@param padding_idx integer
---@param scale_grad_by_freq boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.embedding_dense_backward(grad_output, indices, num_weights, padding_idx, scale_grad_by_freq, options) end
Tensor.embedding_dense_backward = torch.embedding_dense_backward
---@overload fun(self: torch.Tensor, indices: torch.Tensor, options: {max_norm: number, norm_type: number, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param indices torch.Tensor
---@param max_norm number
---@param norm_type number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.embedding_renorm(self, indices, max_norm, norm_type, options) end
Tensor.embedding_renorm = torch.embedding_renorm
---@overload fun(self: torch.Tensor, indices: torch.Tensor, options: {max_norm: number, norm_type: number}): torch.Tensor
---@param self torch.Tensor
---@param indices torch.Tensor
---@param max_norm number
---@param norm_type number
---@return torch.Tensor
function torch.embedding_renorm_(self, indices, max_norm, norm_type) end
Tensor.embedding_renorm_ = torch.embedding_renorm_
---@overload fun(grad: torch.Tensor, indices: torch.Tensor, options: {num_weights: integer, padding_idx: integer, scale_grad_by_freq: boolean}): torch.Tensor
---@param grad torch.Tensor
---@param indices torch.Tensor
---@param num_weights integer
---@param padding_idx integer
---@param scale_grad_by_freq boolean
---@return torch.Tensor
function torch.embedding_sparse_backward(grad, indices, num_weights, padding_idx, scale_grad_by_freq) end
Tensor.embedding_sparse_backward = torch.embedding_sparse_backward
---@overload fun(...: integer|table): torch.Tensor
---@overload fun(size: integer[], options: {memory_format: torch.memory_format?, out: torch.Tensor}): torch.Tensor
---@param size integer[]
---@param options? {dtype: torch.dtype?, layout: torch.layout?, device: string?, pin_memory: boolean?, requires_grad: boolean?, memory_format: torch.memory_format?}
---@return torch.Tensor
function torch.empty(size, options) end
---@overload fun(self: torch.Tensor, options: {memory_format: torch.memory_format?, out: torch.Tensor}): torch.Tensor
---@param self torch.Tensor
---@param options? {dtype: torch.dtype?, layout: torch.layout?, device: string?, pin_memory: boolean?, requires_grad: boolean?, memory_format: torch.memory_format?}
---@return torch.Tensor
function torch.empty_like(self, options) end
Tensor.empty_like = torch.empty_like
---@overload fun(size: integer[], ...: integer|table): torch.Tensor
---@overload fun(size: integer[], physical_layout: integer[], options: {out: torch.Tensor}): torch.Tensor
---@param size integer[]
---@param physical_layout integer[]
---@param options? torch.FactoryOptions
---@return torch.Tensor
function torch.empty_permuted(size, physical_layout, options) end
---@overload fun(size: integer[], qtensor: torch.Tensor, options: {memory_format: torch.memory_format?, out: torch.Tensor}): torch.Tensor
---@param size integer[]
---@param qtensor torch.Tensor
---@param options? {dtype: torch.dtype?, layout: torch.layout?, device: string?, pin_memory: boolean?, requires_grad: boolean?, memory_format: torch.memory_format?}
---@return torch.Tensor
function torch.empty_quantized(size, qtensor, options) end
---@overload fun(size: integer[], ...: integer|table): torch.Tensor
---@overload fun(size: integer[], stride: integer[], options: {out: torch.Tensor}): torch.Tensor
---@param size integer[]
---@param stride integer[]
---@param options? torch.FactoryOptions
---@return torch.Tensor
function torch.empty_strided(size, stride, options) end
---@overload fun(self: torch.Tensor, other: torch.Scalar, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.eq(self, other, options) end
Tensor.eq = torch.eq
---@overload fun(self: torch.Tensor, other: torch.Scalar): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return torch.Tensor
function torch.eq_(self, other) end
Tensor.eq_ = torch.eq_
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return boolean
function torch.equal(self, other) end
Tensor.equal = torch.equal
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.erf(self, options) end
Tensor.erf = torch.erf
---@param self torch.Tensor
---@return torch.Tensor
function torch.erf_(self) end
Tensor.erf_ = torch.erf_
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.erfc(self, options) end
Tensor.erfc = torch.erfc
---@param self torch.Tensor
---@return torch.Tensor
function torch.erfc_(self) end
Tensor.erfc_ = torch.erfc_
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.erfinv(self, options) end
Tensor.erfinv = torch.erfinv
---@param self torch.Tensor
---@return torch.Tensor
function torch.erfinv_(self) end
Tensor.erfinv_ = torch.erfinv_
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.exp(self, options) end
Tensor.exp = torch.exp
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.exp2(self, options) end
Tensor.exp2 = torch.exp2
---@param self torch.Tensor
---@return torch.Tensor
function torch.exp2_(self) end
Tensor.exp2_ = torch.exp2_
---@param self torch.Tensor
---@return torch.Tensor
function torch.exp_(self) end
Tensor.exp_ = torch.exp_
---@overload fun(self: torch.Tensor, ...: integer|table): torch.Tensor
---@param self torch.Tensor
---@param size integer[]
---@param options? {implicit: boolean?}
---@return torch.Tensor
function torch.expand(self, size, options) end
Tensor.expand = torch.expand
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return torch.Tensor
function torch.expand_as(self, other) end
Tensor.expand_as = torch.expand_as
---@overload fun(self: torch.Tensor, ...: integer|table): torch.Tensor
---@param self torch.Tensor
---@param size integer[]
---@param options? {implicit: boolean?, out: torch.Tensor?}
---@return torch.Tensor
function torch.expand_copy(self, size, options) end
Tensor.expand_copy = torch.expand_copy
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.expm1(self, options) end
Tensor.expm1 = torch.expm1
---@param self torch.Tensor
---@return torch.Tensor
function torch.expm1_(self) end
Tensor.expm1_ = torch.expm1_
---@overload fun(self: torch.Tensor, options: {lambd: number?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param lambd? number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.exponential(self, lambd, options) end
Tensor.exponential = torch.exponential
---@overload fun(self: torch.Tensor, options: {lambd: number?}): torch.Tensor
---@param self torch.Tensor
---@param lambd? number
---@return torch.Tensor
function torch.exponential_(self, lambd) end
Tensor.exponential_ = torch.exponential_
---@overload fun(n: integer, options: torch.FactoryOptions?): torch.Tensor
---@overload fun(n: integer, m: integer, options: {out: torch.Tensor}): torch.Tensor
---@overload fun(n: integer, options: {out: torch.Tensor}): torch.Tensor
---@param n integer
---@param m integer
---@param options? torch.FactoryOptions
---@return torch.Tensor
function torch.eye(n, m, options) end
---@overload fun(self: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, options: {axis: integer, quant_min: integer, quant_max: integer}): torch.Tensor
---@param self torch.Tensor
---@param scale torch.Tensor
---@param zero_point torch.Tensor
---@param axis integer
---@param quant_min integer
---@param quant_max integer
---@return torch.Tensor
function torch.fake_quantize_per_channel_affine(self, scale, zero_point, axis, quant_min, quant_max) end
Tensor.fake_quantize_per_channel_affine = torch.fake_quantize_per_channel_affine
---@overload fun(self: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, options: {axis: integer, quant_min: integer, quant_max: integer, out0: torch.Tensor?, out1: torch.Tensor?}): torch.Tensor, torch.Tensor
---@param self torch.Tensor
---@param scale torch.Tensor
---@param zero_point torch.Tensor
---@param axis integer
---@param quant_min integer
---@param quant_max integer
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?}
---@return torch.Tensor output
---@return torch.Tensor mask
function torch.fake_quantize_per_channel_affine_cachemask(self, scale, zero_point, axis, quant_min, quant_max, options) end
Tensor.fake_quantize_per_channel_affine_cachemask = torch.fake_quantize_per_channel_affine_cachemask
---@param grad torch.Tensor
---@param mask torch.Tensor
---@return torch.Tensor
function torch.fake_quantize_per_channel_affine_cachemask_backward(grad, mask) end
Tensor.fake_quantize_per_channel_affine_cachemask_backward = torch.fake_quantize_per_channel_affine_cachemask_backward
---@overload fun(self: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, options: {quant_min: integer, quant_max: integer}): torch.Tensor
---@overload fun(self: torch.Tensor, scale: number, zero_point: integer, quant_min: integer, quant_max: integer): torch.Tensor
---@overload fun(self: torch.Tensor, options: {scale: number, zero_point: integer, quant_min: integer, quant_max: integer}): torch.Tensor
---@param self torch.Tensor
---@param scale torch.Tensor
---@param zero_point torch.Tensor
---@param quant_min integer
---@param quant_max integer
---@return torch.Tensor
function torch.fake_quantize_per_tensor_affine(self, scale, zero_point, quant_min, quant_max) end
Tensor.fake_quantize_per_tensor_affine = torch.fake_quantize_per_tensor_affine
---@overload fun(self: torch.Tensor, options: {scale: number, zero_point: integer, quant_min: integer, quant_max: integer, out0: torch.Tensor?, out1: torch.Tensor?}): torch.Tensor, torch.Tensor
---@param self torch.Tensor
---@param scale number
---@param zero_point integer
---@param quant_min integer
---@param quant_max integer
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?}
---@return torch.Tensor output
---@return torch.Tensor mask
function torch.fake_quantize_per_tensor_affine_cachemask(self, scale, zero_point, quant_min, quant_max, options) end
Tensor.fake_quantize_per_tensor_affine_cachemask = torch.fake_quantize_per_tensor_affine_cachemask
---@param grad torch.Tensor
---@param mask torch.Tensor
---@return torch.Tensor
function torch.fake_quantize_per_tensor_affine_cachemask_backward(grad, mask) end
Tensor.fake_quantize_per_tensor_affine_cachemask_backward = torch.fake_quantize_per_tensor_affine_cachemask_backward
---@overload fun(input: torch.Tensor, packed_weight: torch.Tensor, bias: torch.Tensor): torch.Tensor
---@param input torch.Tensor
---@param packed_weight torch.Tensor
---@param bias torch.Tensor
---@param output torch.Tensor
---@return torch.Tensor
function torch.fbgemm_linear_fp16_weight(input, packed_weight, bias, output) end
Tensor.fbgemm_linear_fp16_weight = torch.fbgemm_linear_fp16_weight
---@overload fun(input: torch.Tensor, packed_weight: torch.Tensor, bias: torch.Tensor?): torch.Tensor
---@param input torch.Tensor
---@param packed_weight torch.Tensor
---@param bias torch.Tensor?
---@param output torch.Tensor
---@return torch.Tensor
function torch.fbgemm_linear_fp16_weight_fp32_activation(input, packed_weight, bias, output) end
Tensor.fbgemm_linear_fp16_weight_fp32_activation = torch.fbgemm_linear_fp16_weight_fp32_activation
---@overload fun(input: torch.Tensor, weight: torch.Tensor, packed: torch.Tensor, col_offsets: torch.Tensor, options: {weight_scale: torch.Scalar, weight_zero_point: torch.Scalar, bias: torch.Tensor}): torch.Tensor
---@param input torch.Tensor
---@param weight torch.Tensor
---@param packed torch.Tensor
---@param col_offsets torch.Tensor
---@param weight_scale torch.Scalar
---@param weight_zero_point torch.Scalar
---@param bias torch.Tensor
---@return torch.Tensor
function torch.fbgemm_linear_int8_weight(input, weight, packed, col_offsets, weight_scale, weight_zero_point, bias) end
Tensor.fbgemm_linear_int8_weight = torch.fbgemm_linear_int8_weight
---@overload fun(input: torch.Tensor, weight: torch.Tensor, packed: torch.Tensor, col_offsets: torch.Tensor, options: {weight_scale: torch.Scalar, weight_zero_point: torch.Scalar, bias: torch.Tensor}): torch.Tensor
---@param input torch.Tensor
---@param weight torch.Tensor
---@param packed torch.Tensor
---@param col_offsets torch.Tensor
---@param weight_scale torch.Scalar
---@param weight_zero_point torch.Scalar
---@param bias torch.Tensor
---@return torch.Tensor
function torch.fbgemm_linear_int8_weight_fp32_activation(input, weight, packed, col_offsets, weight_scale, weight_zero_point, bias) end
Tensor.fbgemm_linear_int8_weight_fp32_activation = torch.fbgemm_linear_int8_weight_fp32_activation
---@param input torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
---@return number
---@return integer
function torch.fbgemm_linear_quantize_weight(input) end
Tensor.fbgemm_linear_quantize_weight = torch.fbgemm_linear_quantize_weight
---@param input torch.Tensor
---@return torch.Tensor
function torch.fbgemm_pack_gemm_matrix_fp16(input) end
Tensor.fbgemm_pack_gemm_matrix_fp16 = torch.fbgemm_pack_gemm_matrix_fp16
---@overload fun(input: torch.Tensor, options: {K: integer, N: integer}): torch.Tensor
---@overload fun(input: torch.Tensor): torch.Tensor
---@param input torch.Tensor
---@param K integer
---@param N integer
---@return torch.Tensor
function torch.fbgemm_pack_quantized_matrix(input, K, N) end
Tensor.fbgemm_pack_quantized_matrix = torch.fbgemm_pack_quantized_matrix
---@overload fun(input: torch.Tensor, options: {p: number, train: boolean}): torch.Tensor
---@param input torch.Tensor
---@param p number
---@param train boolean
---@return torch.Tensor
function torch.feature_alpha_dropout(input, p, train) end
Tensor.feature_alpha_dropout = torch.feature_alpha_dropout
---@overload fun(self: torch.Tensor, options: {p: number, train: boolean}): torch.Tensor
---@param self torch.Tensor
---@param p number
---@param train boolean
---@return torch.Tensor
function torch.feature_alpha_dropout_(self, p, train) end
Tensor.feature_alpha_dropout_ = torch.feature_alpha_dropout_
---@overload fun(input: torch.Tensor, options: {p: number, train: boolean}): torch.Tensor
---@param input torch.Tensor
---@param p number
---@param train boolean
---@return torch.Tensor
function torch.feature_dropout(input, p, train) end
Tensor.feature_dropout = torch.feature_dropout
---@overload fun(self: torch.Tensor, options: {p: number, train: boolean}): torch.Tensor
---@param self torch.Tensor
---@param p number
---@param train boolean
---@return torch.Tensor
function torch.feature_dropout_(self, p, train) end
Tensor.feature_dropout_ = torch.feature_dropout_
---@overload fun(self: torch.Tensor, options: {n: integer?, dim: integer?, norm: string?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param n? integer
---@param dim? integer
---@param norm? string
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.fft_fft(self, n, dim, norm, options) end
Tensor.fft_fft = torch.fft_fft
---@overload fun(self: torch.Tensor, options: {s: (integer|integer[])?, dim: (integer|integer[])?, norm: string?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param s? integer|integer[]
---@param dim? integer|integer[]
---@param norm? string
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.fft_fft2(self, s, dim, norm, options) end
Tensor.fft_fft2 = torch.fft_fft2
---@overload fun(n: integer, options: {d: number?, dtype: torch.dtype?, layout: torch.layout?, device: string?, pin_memory: boolean?, requires_grad: boolean?}): torch.Tensor
---@overload fun(n: integer, d: number?, options: {out: torch.Tensor}): torch.Tensor
---@overload fun(n: integer, options: {d: number?, out: torch.Tensor}): torch.Tensor
---@param n integer
---@param d? number
---@param options? torch.FactoryOptions
---@return torch.Tensor
function torch.fft_fftfreq(n, d, options) end
---@overload fun(self: torch.Tensor, options: {s: (integer|integer[])?, dim: (integer|integer[])?, norm: string?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param s? integer|integer[]
---@param dim? integer|integer[]
---@param norm? string
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.fft_fftn(self, s, dim, norm, options) end
Tensor.fft_fftn = torch.fft_fftn
---@overload fun(self: torch.Tensor, options: {dim: (integer|integer[])?}): torch.Tensor
---@param self torch.Tensor
---@param dim? integer|integer[]
---@return torch.Tensor
function torch.fft_fftshift(self, dim) end
Tensor.fft_fftshift = torch.fft_fftshift
---@overload fun(self: torch.Tensor, options: {n: integer?, dim: integer?, norm: string?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param n? integer
---@param dim? integer
---@param norm? string
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.fft_hfft(self, n, dim, norm, options) end
Tensor.fft_hfft = torch.fft_hfft
---@overload fun(self: torch.Tensor, options: {s: (integer|integer[])?, dim: (integer|integer[])?, norm: string?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param s? integer|integer[]
---@param dim? integer|integer[]
---@param norm? string
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.fft_hfft2(self, s, dim, norm, options) end
Tensor.fft_hfft2 = torch.fft_hfft2
---@overload fun(self: torch.Tensor, options: {s: (integer|integer[])?, dim: (integer|integer[])?, norm: string?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param s? integer|integer[]
---@param dim? integer|integer[]
---@param norm? string
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.fft_hfftn(self, s, dim, norm, options) end
Tensor.fft_hfftn = torch.fft_hfftn
---@overload fun(self: torch.Tensor, options: {n: integer?, dim: integer?, norm: string?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param n? integer
---@param dim? integer
---@param norm? string
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.fft_ifft(self, n, dim, norm, options) end
Tensor.fft_ifft = torch.fft_ifft
---@overload fun(self: torch.Tensor, options: {s: (integer|integer[])?, dim: (integer|integer[])?, norm: string?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param s? integer|integer[]
---@param dim? integer|integer[]
---@param norm? string
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.fft_ifft2(self, s, dim, norm, options) end
Tensor.fft_ifft2 = torch.fft_ifft2
---@overload fun(self: torch.Tensor, options: {s: (integer|integer[])?, dim: (integer|integer[])?, norm: string?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param s? integer|integer[]
---@param dim? integer|integer[]
---@param norm? string
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.fft_ifftn(self, s, dim, norm, options) end
Tensor.fft_ifftn = torch.fft_ifftn
---@overload fun(self: torch.Tensor, options: {dim: (integer|integer[])?}): torch.Tensor
---@param self torch.Tensor
---@param dim? integer|integer[]
---@return torch.Tensor
function torch.fft_ifftshift(self, dim) end
Tensor.fft_ifftshift = torch.fft_ifftshift
---@overload fun(self: torch.Tensor, options: {n: integer?, dim: integer?, norm: string?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param n? integer
---@param dim? integer
---@param norm? string
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.fft_ihfft(self, n, dim, norm, options) end
Tensor.fft_ihfft = torch.fft_ihfft
---@overload fun(self: torch.Tensor, options: {s: (integer|integer[])?, dim: (integer|integer[])?, norm: string?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param s? integer|integer[]
---@param dim? integer|integer[]
---@param norm? string
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.fft_ihfft2(self, s, dim, norm, options) end
Tensor.fft_ihfft2 = torch.fft_ihfft2
---@overload fun(self: torch.Tensor, options: {s: (integer|integer[])?, dim: (integer|integer[])?, norm: string?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param s? integer|integer[]
---@param dim? integer|integer[]
---@param norm? string
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.fft_ihfftn(self, s, dim, norm, options) end
Tensor.fft_ihfftn = torch.fft_ihfftn
---@overload fun(self: torch.Tensor, options: {n: integer?, dim: integer?, norm: string?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param n? integer
---@param dim? integer
---@param norm? string
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.fft_irfft(self, n, dim, norm, options) end
Tensor.fft_irfft = torch.fft_irfft
---@overload fun(self: torch.Tensor, options: {s: (integer|integer[])?, dim: (integer|integer[])?, norm: string?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param s? integer|integer[]
---@param dim? integer|integer[]
---@param norm? string
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.fft_irfft2(self, s, dim, norm, options) end
Tensor.fft_irfft2 = torch.fft_irfft2
---@overload fun(self: torch.Tensor, options: {s: (integer|integer[])?, dim: (integer|integer[])?, norm: string?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param s? integer|integer[]
---@param dim? integer|integer[]
---@param norm? string
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.fft_irfftn(self, s, dim, norm, options) end
Tensor.fft_irfftn = torch.fft_irfftn
---@overload fun(self: torch.Tensor, options: {n: integer?, dim: integer?, norm: string?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param n? integer
---@param dim? integer
---@param norm? string
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.fft_rfft(self, n, dim, norm, options) end
Tensor.fft_rfft = torch.fft_rfft
---@overload fun(self: torch.Tensor, options: {s: (integer|integer[])?, dim: (integer|integer[])?, norm: string?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param s? integer|integer[]
---@param dim? integer|integer[]
---@param norm? string
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.fft_rfft2(self, s, dim, norm, options) end
Tensor.fft_rfft2 = torch.fft_rfft2
---@overload fun(n: integer, options: {d: number?, dtype: torch.dtype?, layout: torch.layout?, device: string?, pin_memory: boolean?, requires_grad: boolean?}): torch.Tensor
---@overload fun(n: integer, d: number?, options: {out: torch.Tensor}): torch.Tensor
---@overload fun(n: integer, options: {d: number?, out: torch.Tensor}): torch.Tensor
---@param n integer
---@param d? number
---@param options? torch.FactoryOptions
---@return torch.Tensor
function torch.fft_rfftfreq(n, d, options) end
---@overload fun(self: torch.Tensor, options: {s: (integer|integer[])?, dim: (integer|integer[])?, norm: string?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param s? integer|integer[]
---@param dim? integer|integer[]
---@param norm? string
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.fft_rfftn(self, s, dim, norm, options) end
Tensor.fft_rfftn = torch.fft_rfftn
---@overload fun(self: torch.Tensor, value: torch.Scalar, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {value: torch.Scalar, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param value torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.fill(self, value, options) end
Tensor.fill = torch.fill
---@overload fun(self: torch.Tensor, value: torch.Scalar): torch.Tensor
---@overload fun(self: torch.Tensor, options: {value: torch.Scalar}): torch.Tensor
---@param self torch.Tensor
---@param value torch.Tensor
---@return torch.Tensor
function torch.fill_(self, value) end
Tensor.fill_ = torch.fill_
---@overload fun(self: torch.Tensor, options: {fill_value: torch.Scalar, wrap: boolean?}): torch.Tensor
---@param self torch.Tensor
---@param fill_value torch.Scalar
---@param wrap? boolean
---@return torch.Tensor
function torch.fill_diagonal_(self, fill_value, wrap) end
Tensor.fill_diagonal_ = torch.fill_diagonal_
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.fix(self, options) end
Tensor.fix = torch.fix
---@param self torch.Tensor
---@return torch.Tensor
function torch.fix_(self) end
Tensor.fix_ = torch.fix_
---@overload fun(self: torch.Tensor, options: {start_dim: integer, end_dim: integer, out_dim: string}): torch.Tensor
---@overload fun(self: torch.Tensor, start_dim: integer?, end_dim: integer?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {start_dim: integer?, end_dim: integer?}): torch.Tensor
---@param self torch.Tensor
---@param start_dim integer
---@param end_dim integer
---@param out_dim string
---@return torch.Tensor
function torch.flatten(self, start_dim, end_dim, out_dim) end
Tensor.flatten = torch.flatten
---@param tensors torch.Tensor[]
---@return torch.Tensor
function torch.flatten_dense_tensors(tensors) end
---@overload fun(self: torch.Tensor, ...: integer|table): torch.Tensor
---@param self torch.Tensor
---@param dims integer[]
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.flip(self, dims, options) end
Tensor.flip = torch.flip
---@param self torch.Tensor
---@return torch.Tensor
function torch.fliplr(self) end
Tensor.fliplr = torch.fliplr
---@param self torch.Tensor
---@return torch.Tensor
function torch.flipud(self) end
Tensor.flipud = torch.flipud
---@overload fun(self: torch.Scalar, exponent: torch.Tensor|number, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, exponent: torch.Scalar, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {exponent: torch.Scalar, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param exponent torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.float_power(self, exponent, options) end
Tensor.float_power = torch.float_power
---@overload fun(self: torch.Tensor, exponent: torch.Scalar): torch.Tensor
---@overload fun(self: torch.Tensor, options: {exponent: torch.Scalar}): torch.Tensor
---@param self torch.Tensor
---@param exponent torch.Tensor|number
---@return torch.Tensor
function torch.float_power_(self, exponent) end
Tensor.float_power_ = torch.float_power_
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.floor(self, options) end
Tensor.floor = torch.floor
---@param self torch.Tensor
---@return torch.Tensor
function torch.floor_(self) end
Tensor.floor_ = torch.floor_
---@overload fun(self: torch.Tensor, other: torch.Scalar, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.floor_divide(self, other, options) end
Tensor.floor_divide = torch.floor_divide
---@overload fun(self: torch.Tensor, other: torch.Scalar): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return torch.Tensor
function torch.floor_divide_(self, other) end
Tensor.floor_divide_ = torch.floor_divide_
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.fmax(self, other, options) end
Tensor.fmax = torch.fmax
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.fmin(self, other, options) end
Tensor.fmin = torch.fmin
---@overload fun(self: torch.Tensor, other: torch.Scalar, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.fmod(self, other, options) end
Tensor.fmod = torch.fmod
---@overload fun(self: torch.Tensor, other: torch.Scalar): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return torch.Tensor
function torch.fmod_(self, other) end
Tensor.fmod_ = torch.fmod_
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.frac(self, options) end
Tensor.frac = torch.frac
---@param self torch.Tensor
---@return torch.Tensor
function torch.frac_(self) end
Tensor.frac_ = torch.frac_
---@overload fun(self: torch.Tensor, options: {kernel_size: integer|integer[], output_size: integer|integer[], random_samples: torch.Tensor, output: torch.Tensor?, indices: torch.Tensor?}): torch.Tensor, torch.Tensor
---@param self torch.Tensor
---@param kernel_size integer|integer[]
---@param output_size integer|integer[]
---@param random_samples torch.Tensor
---@param options? {output: torch.Tensor?, indices: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
function torch.fractional_max_pool2d(self, kernel_size, output_size, random_samples, options) end
Tensor.fractional_max_pool2d = torch.fractional_max_pool2d
---@overload fun(grad_output: torch.Tensor, self: torch.Tensor|number, options: {kernel_size: integer|integer[], output_size: integer|integer[], indices: torch.Tensor, grad_input: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param self torch.Tensor|number
---@param kernel_size integer|integer[]
---@param output_size integer|integer[]
---@param indices torch.Tensor
---@param options? {grad_input: torch.Tensor?}
---@return torch.Tensor
function torch.fractional_max_pool2d_backward(grad_output, self, kernel_size, output_size, indices, options) end
Tensor.fractional_max_pool2d_backward = torch.fractional_max_pool2d_backward
---@overload fun(self: torch.Tensor, options: {kernel_size: integer|integer[], output_size: integer|integer[], random_samples: torch.Tensor, output: torch.Tensor?, indices: torch.Tensor?}): torch.Tensor, torch.Tensor
---@param self torch.Tensor
---@param kernel_size integer|integer[]
---@param output_size integer|integer[]
---@param random_samples torch.Tensor
---@param options? {output: torch.Tensor?, indices: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
function torch.fractional_max_pool3d(self, kernel_size, output_size, random_samples, options) end
Tensor.fractional_max_pool3d = torch.fractional_max_pool3d
---@overload fun(grad_output: torch.Tensor, self: torch.Tensor|number, options: {kernel_size: integer|integer[], output_size: integer|integer[], indices: torch.Tensor, grad_input: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param self torch.Tensor|number
---@param kernel_size integer|integer[]
---@param output_size integer|integer[]
---@param indices torch.Tensor
---@param options? {grad_input: torch.Tensor?}
---@return torch.Tensor
function torch.fractional_max_pool3d_backward(grad_output, self, kernel_size, output_size, indices, options) end
Tensor.fractional_max_pool3d_backward = torch.fractional_max_pool3d_backward
---@param self torch.Tensor
---@param options? {mantissa: torch.Tensor?, exponent: torch.Tensor?}
---@return torch.Tensor mantissa
---@return torch.Tensor exponent
function torch.frexp(self, options) end
Tensor.frexp = torch.frexp
---@overload fun(self: torch.Tensor, options: {dim: integer|integer[], keepdim: boolean?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param dim integer|integer[]
---@param keepdim? boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.frobenius_norm(self, dim, keepdim, options) end
Tensor.frobenius_norm = torch.frobenius_norm
---@overload fun(filename: string, options: {shared: boolean?, size: integer?, dtype: torch.dtype?, layout: torch.layout?, device: string?, pin_memory: boolean?, requires_grad: boolean?}): torch.Tensor
---@overload fun(filename: string, shared: boolean?, size: integer?, options: {out: torch.Tensor}): torch.Tensor
---@overload fun(filename: string, options: {shared: boolean?, size: integer?, out: torch.Tensor}): torch.Tensor
---@param filename string
---@param shared? boolean
---@param size? integer
---@param options? torch.FactoryOptions
---@return torch.Tensor
function torch.from_file(filename, shared, size, options) end
---@overload fun(self: torch.Tensor, options: {fill_value: torch.Scalar, dtype: torch.dtype?, layout: torch.layout?, device: string?, pin_memory: boolean?, requires_grad: boolean?, memory_format: torch.memory_format?}): torch.Tensor
---@overload fun(self: torch.Tensor, fill_value: torch.Scalar, options: {memory_format: torch.memory_format?, out: torch.Tensor}): torch.Tensor
---@overload fun(self: torch.Tensor, options: {fill_value: torch.Scalar, memory_format: torch.memory_format?, out: torch.Tensor}): torch.Tensor
---@param self torch.Tensor
---@param fill_value torch.Scalar
---@param options? {dtype: torch.dtype?, layout: torch.layout?, device: string?, pin_memory: boolean?, requires_grad: boolean?, memory_format: torch.memory_format?}
---@return torch.Tensor
function torch.full_like(self, fill_value, options) end
Tensor.full_like = torch.full_like
---@overload fun(self: torch.Tensor, observer_on: torch.Tensor, fake_quant_on: torch.Tensor, running_min: torch.Tensor, running_max: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, options: {averaging_const: number, quant_min: integer, quant_max: integer, ch_axis: integer, per_row_fake_quant: boolean?, symmetric_quant: boolean?}): torch.Tensor
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
---@return torch.Tensor
function torch.fused_moving_avg_obs_fake_quant(self, observer_on, fake_quant_on, running_min, running_max, scale, zero_point, averaging_const, quant_min, quant_max, ch_axis, per_row_fake_quant, symmetric_quant) end
Tensor.fused_moving_avg_obs_fake_quant = torch.fused_moving_avg_obs_fake_quant
---@overload fun(self: torch.Tensor, options: {dim: integer, index: torch.Tensor, sparse_grad: boolean?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@param index torch.Tensor
---@param options? {sparse_grad: boolean?, out: torch.Tensor?}
---@return torch.Tensor
function torch.gather(self, dim, index, options) end
Tensor.gather = torch.gather
---@overload fun(grad: torch.Tensor, self: torch.Tensor|number, options: {dim: integer, index: torch.Tensor, sparse_grad: boolean}): torch.Tensor
---@param grad torch.Tensor
---@param self torch.Tensor|number
---@param dim integer
---@param index torch.Tensor
---@param sparse_grad boolean
---@return torch.Tensor
function torch.gather_backward(grad, self, dim, index, sparse_grad) end
Tensor.gather_backward = torch.gather_backward
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.gcd(self, other, options) end
Tensor.gcd = torch.gcd
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return torch.Tensor
function torch.gcd_(self, other) end
Tensor.gcd_ = torch.gcd_
---@overload fun(self: torch.Tensor, other: torch.Scalar, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.ge(self, other, options) end
Tensor.ge = torch.ge
---@overload fun(self: torch.Tensor, other: torch.Scalar): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return torch.Tensor
function torch.ge_(self, other) end
Tensor.ge_ = torch.ge_
---@param self torch.Tensor
---@param options? {approximate: string?, out: torch.Tensor?}
---@return torch.Tensor
function torch.gelu(self, options) end
Tensor.gelu = torch.gelu
---@param self torch.Tensor
---@param options? {approximate: string?}
---@return torch.Tensor
function torch.gelu_(self, options) end
Tensor.gelu_ = torch.gelu_
---@param grad_output torch.Tensor
---@param self torch.Tensor|number
---@param options? {approximate: string?, grad_input: torch.Tensor?}
---@return torch.Tensor
function torch.gelu_backward(grad_output, self, options) end
Tensor.gelu_backward = torch.gelu_backward
---@overload fun(self: torch.Tensor, options: {p: number, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param p number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.geometric(self, p, options) end
Tensor.geometric = torch.geometric
---@overload fun(self: torch.Tensor, options: {p: number}): torch.Tensor
---@param self torch.Tensor
---@param p number
---@return torch.Tensor
function torch.geometric_(self, p) end
Tensor.geometric_ = torch.geometric_
---@param self torch.Tensor
---@param options? {a: torch.Tensor?, tau: torch.Tensor?}
---@return torch.Tensor a
---@return torch.Tensor tau
function torch.geqrf(self, options) end
Tensor.geqrf = torch.geqrf
---@param self torch.Tensor
---@param vec2 torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.ger(self, vec2, options) end
Tensor.ger = torch.ger
---@overload fun(self: torch.Tensor, options: {dim: integer?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param dim? integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.glu(self, dim, options) end
Tensor.glu = torch.glu
---@overload fun(grad_output: torch.Tensor, self: torch.Tensor|number, options: {dim: integer, grad_input: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param self torch.Tensor|number
---@param dim integer
---@param options? {grad_input: torch.Tensor?}
---@return torch.Tensor
function torch.glu_backward(grad_output, self, dim, options) end
Tensor.glu_backward = torch.glu_backward
---@overload fun(grad_x: torch.Tensor, grad_glu: torch.Tensor, x: torch.Tensor, dgrad_glu: torch.Tensor, dx: torch.Tensor, options: {dim: integer, out: torch.Tensor?}): torch.Tensor
---@param grad_x torch.Tensor
---@param grad_glu torch.Tensor
---@param x torch.Tensor
---@param dgrad_glu torch.Tensor
---@param dx torch.Tensor
---@param dim integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.glu_backward_jvp(grad_x, grad_glu, x, dgrad_glu, dx, dim, options) end
Tensor.glu_backward_jvp = torch.glu_backward_jvp
---@overload fun(glu: torch.Tensor, x: torch.Tensor, dx: torch.Tensor, options: {dim: integer, out: torch.Tensor?}): torch.Tensor
---@param glu torch.Tensor
---@param x torch.Tensor
---@param dx torch.Tensor
---@param dim integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.glu_jvp(glu, x, dx, dim, options) end
Tensor.glu_jvp = torch.glu_jvp
---@overload fun(self: torch.Tensor, options: {spacing: torch.Tensor[], dim: integer?, edge_order: integer?}): torch.Tensor[]
---@overload fun(self: torch.Tensor, options: {spacing: torch.Scalar, dim: integer[], edge_order: integer?}): torch.Tensor[]
---@overload fun(self: torch.Tensor, options: {spacing: torch.Scalar?, dim: integer?, edge_order: integer?}?): torch.Tensor[]
---@overload fun(self: torch.Tensor, options: {spacing: torch.Scalar[], dim: integer[], edge_order: integer?}): torch.Tensor[]
---@overload fun(self: torch.Tensor, options: {spacing: torch.Scalar[], dim: integer?, edge_order: integer?}): torch.Tensor[]
---@overload fun(self: torch.Tensor, options: {dim: integer[], edge_order: integer?}): torch.Tensor[]
---@param self torch.Tensor
---@param options {spacing: torch.Tensor[], dim: integer[], edge_order: integer?}
---@return torch.Tensor[]
function torch.gradient(self, options) end
Tensor.gradient = torch.gradient
---@overload fun(self: torch.Tensor, other: torch.Scalar, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.greater(self, other, options) end
Tensor.greater = torch.greater
---@overload fun(self: torch.Tensor, other: torch.Scalar): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return torch.Tensor
function torch.greater_(self, other) end
Tensor.greater_ = torch.greater_
---@overload fun(self: torch.Tensor, other: torch.Scalar, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.greater_equal(self, other, options) end
Tensor.greater_equal = torch.greater_equal
---@overload fun(self: torch.Tensor, other: torch.Scalar): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return torch.Tensor
function torch.greater_equal_(self, other) end
Tensor.greater_equal_ = torch.greater_equal_
---@overload fun(input: torch.Tensor, grid: torch.Tensor, options: {interpolation_mode: integer, padding_mode: integer, align_corners: boolean}): torch.Tensor
---@param input torch.Tensor
---@param grid torch.Tensor
---@param interpolation_mode integer
---@param padding_mode integer
---@param align_corners boolean
---@return torch.Tensor
function torch.grid_sampler(input, grid, interpolation_mode, padding_mode, align_corners) end
Tensor.grid_sampler = torch.grid_sampler
---@overload fun(input: torch.Tensor, grid: torch.Tensor, options: {interpolation_mode: integer, padding_mode: integer, align_corners: boolean, out: torch.Tensor?}): torch.Tensor
---@param input torch.Tensor
---@param grid torch.Tensor
---@param interpolation_mode integer
---@param padding_mode integer
---@param align_corners boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.grid_sampler_2d(input, grid, interpolation_mode, padding_mode, align_corners, options) end
Tensor.grid_sampler_2d = torch.grid_sampler_2d
---@overload fun(grad_output: torch.Tensor, input: torch.Tensor, grid: torch.Tensor, options: {interpolation_mode: integer, padding_mode: integer, align_corners: boolean, output_mask: boolean[], out0: torch.Tensor?, out1: torch.Tensor?}): torch.Tensor, torch.Tensor
---@param grad_output torch.Tensor
---@param input torch.Tensor
---@param grid torch.Tensor
---@param interpolation_mode integer
---@param padding_mode integer
---@param align_corners boolean
---@param output_mask boolean[]
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
function torch.grid_sampler_2d_backward(grad_output, input, grid, interpolation_mode, padding_mode, align_corners, output_mask, options) end
Tensor.grid_sampler_2d_backward = torch.grid_sampler_2d_backward
---@overload fun(input: torch.Tensor, grid: torch.Tensor, options: {interpolation_mode: integer, padding_mode: integer, align_corners: boolean, out: torch.Tensor?}): torch.Tensor
---@param input torch.Tensor
---@param grid torch.Tensor
---@param interpolation_mode integer
---@param padding_mode integer
---@param align_corners boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.grid_sampler_3d(input, grid, interpolation_mode, padding_mode, align_corners, options) end
Tensor.grid_sampler_3d = torch.grid_sampler_3d
---@overload fun(grad_output: torch.Tensor, input: torch.Tensor, grid: torch.Tensor, options: {interpolation_mode: integer, padding_mode: integer, align_corners: boolean, output_mask: boolean[], out0: torch.Tensor?, out1: torch.Tensor?}): torch.Tensor, torch.Tensor
---@param grad_output torch.Tensor
---@param input torch.Tensor
---@param grid torch.Tensor
---@param interpolation_mode integer
---@param padding_mode integer
---@param align_corners boolean
---@param output_mask boolean[]
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
function torch.grid_sampler_3d_backward(grad_output, input, grid, interpolation_mode, padding_mode, align_corners, output_mask, options) end
Tensor.grid_sampler_3d_backward = torch.grid_sampler_3d_backward
---@overload fun(input: torch.Tensor, options: {num_groups: integer, weight: torch.Tensor?, bias: torch.Tensor?, eps: number?, cudnn_enabled: boolean?}): torch.Tensor
---@param input torch.Tensor
---@param num_groups integer
---@param weight? torch.Tensor
---@param bias? torch.Tensor
---@param eps? number
---@param cudnn_enabled? boolean
---@return torch.Tensor
function torch.group_norm(input, num_groups, weight, bias, eps, cudnn_enabled) end
Tensor.group_norm = torch.group_norm
---@overload fun(data: torch.Tensor, batch_sizes: torch.Tensor, hx: torch.Tensor, params: torch.Tensor[], options: {has_biases: boolean, num_layers: integer, dropout: number, train: boolean, bidirectional: boolean}): torch.Tensor, torch.Tensor
---@overload fun(input: torch.Tensor, hx: torch.Tensor, params: torch.Tensor[], has_biases: boolean, num_layers: integer, dropout: number, train: boolean, bidirectional: boolean, batch_first: boolean): torch.Tensor, torch.Tensor
---@overload fun(input: torch.Tensor, hx: torch.Tensor, params: torch.Tensor[], options: {has_biases: boolean, num_layers: integer, dropout: number, train: boolean, bidirectional: boolean, batch_first: boolean}): torch.Tensor, torch.Tensor
---@param data torch.Tensor
---@param batch_sizes torch.Tensor
---@param hx torch.Tensor
---@param params torch.Tensor[]
---@param has_biases boolean
---@param num_layers integer
---@param dropout number
---@param train boolean
---@param bidirectional boolean
---@return torch.Tensor
---@return torch.Tensor
function torch.gru(data, batch_sizes, hx, params, has_biases, num_layers, dropout, train, bidirectional) end
Tensor.gru = torch.gru
---@overload fun(input: torch.Tensor, hx: torch.Tensor, w_ih: torch.Tensor, w_hh: torch.Tensor, options: {b_ih: torch.Tensor?, b_hh: torch.Tensor?}): torch.Tensor
---@param input torch.Tensor
---@param hx torch.Tensor
---@param w_ih torch.Tensor
---@param w_hh torch.Tensor
---@param b_ih? torch.Tensor
---@param b_hh? torch.Tensor
---@return torch.Tensor
function torch.gru_cell(input, hx, w_ih, w_hh, b_ih, b_hh) end
Tensor.gru_cell = torch.gru_cell
---@overload fun(self: torch.Tensor, other: torch.Scalar, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.gt(self, other, options) end
Tensor.gt = torch.gt
---@overload fun(self: torch.Tensor, other: torch.Scalar): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return torch.Tensor
function torch.gt_(self, other) end
Tensor.gt_ = torch.gt_
---@overload fun(window_length: integer, periodic: boolean, alpha: number, options: torch.FactoryOptions?): torch.Tensor
---@overload fun(window_length: integer, periodic: boolean, options: torch.FactoryOptions?): torch.Tensor
---@overload fun(window_length: integer, options: torch.FactoryOptions?): torch.Tensor
---@overload fun(window_length: integer, periodic: boolean, alpha: number, beta: number, options: {out: torch.Tensor}): torch.Tensor
---@overload fun(window_length: integer, periodic: boolean, alpha: number, options: {out: torch.Tensor}): torch.Tensor
---@overload fun(window_length: integer, periodic: boolean, options: {out: torch.Tensor}): torch.Tensor
---@overload fun(window_length: integer, options: {out: torch.Tensor}): torch.Tensor
---@param window_length integer
---@param periodic boolean
---@param alpha number
---@param beta number
---@param options? torch.FactoryOptions
---@return torch.Tensor
function torch.hamming_window(window_length, periodic, alpha, beta, options) end
---@overload fun(window_length: integer, options: torch.FactoryOptions?): torch.Tensor
---@overload fun(window_length: integer, periodic: boolean, options: {out: torch.Tensor}): torch.Tensor
---@overload fun(window_length: integer, options: {out: torch.Tensor}): torch.Tensor
---@param window_length integer
---@param periodic boolean
---@param options? torch.FactoryOptions
---@return torch.Tensor
function torch.hann_window(window_length, periodic, options) end
---@overload fun(self: torch.Tensor, options: {lambd: torch.Scalar?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param lambd? torch.Scalar
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.hardshrink(self, lambd, options) end
Tensor.hardshrink = torch.hardshrink
---@overload fun(grad_out: torch.Tensor, self: torch.Tensor|number, options: {lambd: torch.Scalar, grad_input: torch.Tensor?}): torch.Tensor
---@param grad_out torch.Tensor
---@param self torch.Tensor|number
---@param lambd torch.Scalar
---@param options? {grad_input: torch.Tensor?}
---@return torch.Tensor
function torch.hardshrink_backward(grad_out, self, lambd, options) end
Tensor.hardshrink_backward = torch.hardshrink_backward
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.hardsigmoid(self, options) end
Tensor.hardsigmoid = torch.hardsigmoid
---@param self torch.Tensor
---@return torch.Tensor
function torch.hardsigmoid_(self) end
Tensor.hardsigmoid_ = torch.hardsigmoid_
---@param grad_output torch.Tensor
---@param self torch.Tensor|number
---@param options? {grad_input: torch.Tensor?}
---@return torch.Tensor
function torch.hardsigmoid_backward(grad_output, self, options) end
Tensor.hardsigmoid_backward = torch.hardsigmoid_backward
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.hardswish(self, options) end
Tensor.hardswish = torch.hardswish
---@param self torch.Tensor
---@return torch.Tensor
function torch.hardswish_(self) end
Tensor.hardswish_ = torch.hardswish_
---@param grad_output torch.Tensor
---@param self torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.hardswish_backward(grad_output, self, options) end
Tensor.hardswish_backward = torch.hardswish_backward
---@overload fun(self: torch.Tensor, options: {min_val: torch.Scalar?, max_val: torch.Scalar?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param min_val? torch.Scalar
---@param max_val? torch.Scalar
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.hardtanh(self, min_val, max_val, options) end
Tensor.hardtanh = torch.hardtanh
---@overload fun(self: torch.Tensor, options: {min_val: torch.Scalar?, max_val: torch.Scalar?}): torch.Tensor
---@param self torch.Tensor
---@param min_val? torch.Scalar
---@param max_val? torch.Scalar
---@return torch.Tensor
function torch.hardtanh_(self, min_val, max_val) end
Tensor.hardtanh_ = torch.hardtanh_
---@overload fun(grad_output: torch.Tensor, self: torch.Tensor|number, options: {min_val: torch.Scalar, max_val: torch.Scalar, grad_input: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param self torch.Tensor|number
---@param min_val torch.Scalar
---@param max_val torch.Scalar
---@param options? {grad_input: torch.Tensor?}
---@return torch.Tensor
function torch.hardtanh_backward(grad_output, self, min_val, max_val, options) end
Tensor.hardtanh_backward = torch.hardtanh_backward
---@overload fun(self: torch.Tensor, options: {dim: (integer|integer[])?, keepdim: boolean?, mode: integer?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param dim? integer|integer[]
---@param options? {keepdim: boolean?, mode: integer?, out: torch.Tensor?}
---@return torch.Tensor
function torch.hash_tensor(self, dim, options) end
Tensor.hash_tensor = torch.hash_tensor
---@param self torch.Tensor
---@param values torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.heaviside(self, values, options) end
Tensor.heaviside = torch.heaviside
---@param self torch.Tensor
---@param values torch.Tensor
---@return torch.Tensor
function torch.heaviside_(self, values) end
Tensor.heaviside_ = torch.heaviside_
---@overload fun(self: torch.Tensor, target: torch.Tensor, options: {margin: number?, reduction: integer?}): torch.Tensor
---@param self torch.Tensor
---@param target torch.Tensor
---@param margin? number
---@param reduction? integer
---@return torch.Tensor
function torch.hinge_embedding_loss(self, target, margin, reduction) end
Tensor.hinge_embedding_loss = torch.hinge_embedding_loss
---@overload fun(self: torch.Tensor, options: {bins: integer?, min: torch.Scalar?, max: torch.Scalar?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param bins? integer
---@param min? torch.Scalar
---@param max? torch.Scalar
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.histc(self, bins, min, max, options) end
Tensor.histc = torch.histc
---@overload fun(self: torch.Tensor, bins: integer?, options: {range: number[]?, weight: torch.Tensor?, density: boolean?, hist: torch.Tensor?, bin_edges: torch.Tensor?}?): torch.Tensor, torch.Tensor
---@overload fun(self: torch.Tensor, options: {bins: integer?, range: number[]?, weight: torch.Tensor?, density: boolean?, hist: torch.Tensor?, bin_edges: torch.Tensor?}): torch.Tensor, torch.Tensor
---@param self torch.Tensor
---@param bins torch.Tensor
---@param options? {weight: torch.Tensor?, density: boolean?, hist: torch.Tensor?, bin_edges: torch.Tensor?}
---@return torch.Tensor hist
---@return torch.Tensor bin_edges
function torch.histogram(self, bins, options) end
Tensor.histogram = torch.histogram
---@overload fun(self: torch.Tensor, bins: torch.Tensor[], options: {range: number[]?, weight: torch.Tensor?, density: boolean?}): torch.Tensor, torch.Tensor[]
---@overload fun(self: torch.Tensor, bins: integer[], range: number[]?, weight: torch.Tensor?, density: boolean?): torch.Tensor, torch.Tensor[]
---@overload fun(self: torch.Tensor, options: {bins: integer[], range: number[]?, weight: torch.Tensor?, density: boolean?}): torch.Tensor, torch.Tensor[]
---@overload fun(self: torch.Tensor, bins: integer, range: number[]?, weight: torch.Tensor?, density: boolean?): torch.Tensor, torch.Tensor[]
---@overload fun(self: torch.Tensor, options: {bins: integer, range: number[]?, weight: torch.Tensor?, density: boolean?}): torch.Tensor, torch.Tensor[]
---@param self torch.Tensor
---@param bins torch.Tensor[]
---@param range? number[]
---@param weight? torch.Tensor
---@param density? boolean
---@return torch.Tensor hist
---@return torch.Tensor[] bin_edges
function torch.histogramdd(self, bins, range, weight, density) end
Tensor.histogramdd = torch.histogramdd
---@overload fun(self: torch.Tensor, ...: integer): torch.Tensor[]
---@overload fun(self: torch.Tensor, sections: integer): torch.Tensor[]
---@overload fun(self: torch.Tensor, options: {sections: integer}): torch.Tensor[]
---@param self torch.Tensor
---@param indices integer[]
---@return torch.Tensor[]
function torch.hsplit(self, indices) end
Tensor.hsplit = torch.hsplit
---@param mat1 torch.Tensor
---@param mat2 torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.hspmm(mat1, mat2, options) end
Tensor.hspmm = torch.hspmm
---@param tensors torch.Tensor[]
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.hstack(tensors, options) end
---@overload fun(self: torch.Tensor, target: torch.Tensor, options: {reduction: integer?, delta: number?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param target torch.Tensor
---@param reduction? integer
---@param delta? number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.huber_loss(self, target, reduction, delta, options) end
Tensor.huber_loss = torch.huber_loss
---@overload fun(grad_output: torch.Tensor, self: torch.Tensor|number, target: torch.Tensor, options: {reduction: integer, delta: number, grad_input: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param self torch.Tensor|number
---@param target torch.Tensor
---@param reduction integer
---@param delta number
---@param options? {grad_input: torch.Tensor?}
---@return torch.Tensor
function torch.huber_loss_backward(grad_output, self, target, reduction, delta, options) end
Tensor.huber_loss_backward = torch.huber_loss_backward
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.hypot(self, other, options) end
Tensor.hypot = torch.hypot
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return torch.Tensor
function torch.hypot_(self, other) end
Tensor.hypot_ = torch.hypot_
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.i0(self, options) end
Tensor.i0 = torch.i0
---@param self torch.Tensor
---@return torch.Tensor
function torch.i0_(self) end
Tensor.i0_ = torch.i0_
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.igamma(self, other, options) end
Tensor.igamma = torch.igamma
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return torch.Tensor
function torch.igamma_(self, other) end
Tensor.igamma_ = torch.igamma_
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.igammac(self, other, options) end
Tensor.igammac = torch.igammac
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return torch.Tensor
function torch.igammac_(self, other) end
Tensor.igammac_ = torch.igammac_
---@overload fun(self: torch.Tensor, options: {kernel_size: integer|integer[], dilation: integer|integer[], padding: integer|integer[], stride: integer|integer[], out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param kernel_size integer|integer[]
---@param dilation integer|integer[]
---@param padding integer|integer[]
---@param stride integer|integer[]
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.im2col(self, kernel_size, dilation, padding, stride, options) end
Tensor.im2col = torch.im2col
---@param self torch.Tensor
---@return torch.Tensor
function torch.imag(self) end
Tensor.imag = torch.imag
---@param self torch.Tensor
---@param indices (torch.Tensor|false)[]
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.index(self, indices, options) end
Tensor.index = torch.index
---@overload fun(self: torch.Tensor, options: {dim: integer, index: torch.Tensor, source: torch.Tensor, alpha: torch.Scalar?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@param index torch.Tensor
---@param source torch.Tensor
---@param options? {alpha: torch.Scalar?, out: torch.Tensor?}
---@return torch.Tensor
function torch.index_add(self, dim, index, source, options) end
Tensor.index_add = torch.index_add
---@overload fun(self: torch.Tensor, options: {dim: integer, index: torch.Tensor, source: torch.Tensor, alpha: torch.Scalar?}): torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@param index torch.Tensor
---@param source torch.Tensor
---@param options? {alpha: torch.Scalar?}
---@return torch.Tensor
function torch.index_add_(self, dim, index, source, options) end
Tensor.index_add_ = torch.index_add_
---@overload fun(self: torch.Tensor, options: {dim: integer, index: torch.Tensor, source: torch.Tensor, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@param index torch.Tensor
---@param source torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.index_copy(self, dim, index, source, options) end
Tensor.index_copy = torch.index_copy
---@overload fun(self: torch.Tensor, options: {dim: integer, index: torch.Tensor, source: torch.Tensor}): torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@param index torch.Tensor
---@param source torch.Tensor
---@return torch.Tensor
function torch.index_copy_(self, dim, index, source) end
Tensor.index_copy_ = torch.index_copy_
---@overload fun(self: torch.Tensor, options: {dim: integer, index: torch.Tensor, value: torch.Tensor, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Tensor, dim: integer, index: torch.Tensor, value: torch.Scalar, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {dim: integer, index: torch.Tensor, value: torch.Scalar, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@param index torch.Tensor
---@param value torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.index_fill(self, dim, index, value, options) end
Tensor.index_fill = torch.index_fill
---@overload fun(self: torch.Tensor, options: {dim: integer, index: torch.Tensor, value: torch.Tensor}): torch.Tensor
---@overload fun(self: torch.Tensor, dim: integer, index: torch.Tensor, value: torch.Scalar): torch.Tensor
---@overload fun(self: torch.Tensor, options: {dim: integer, index: torch.Tensor, value: torch.Scalar}): torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@param index torch.Tensor
---@param value torch.Tensor
---@return torch.Tensor
function torch.index_fill_(self, dim, index, value) end
Tensor.index_fill_ = torch.index_fill_
---@overload fun(self: torch.Tensor, indices: (torch.Tensor|false)[], values: torch.Tensor, options: {accumulate: boolean?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param indices (torch.Tensor|false)[]
---@param values torch.Tensor
---@param accumulate? boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.index_put(self, indices, values, accumulate, options) end
Tensor.index_put = torch.index_put
---@overload fun(self: torch.Tensor, indices: (torch.Tensor|false)[], values: torch.Tensor, options: {accumulate: boolean?}): torch.Tensor
---@param self torch.Tensor
---@param indices (torch.Tensor|false)[]
---@param values torch.Tensor
---@param accumulate? boolean
---@return torch.Tensor
function torch.index_put_(self, indices, values, accumulate) end
Tensor.index_put_ = torch.index_put_
---@overload fun(self: torch.Tensor, options: {dim: integer, index: torch.Tensor, source: torch.Tensor, reduce: string, include_self: boolean?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@param index torch.Tensor
---@param source torch.Tensor
---@param reduce string
---@param options? {include_self: boolean?, out: torch.Tensor?}
---@return torch.Tensor
function torch.index_reduce(self, dim, index, source, reduce, options) end
Tensor.index_reduce = torch.index_reduce
---@overload fun(self: torch.Tensor, options: {dim: integer, index: torch.Tensor, source: torch.Tensor, reduce: string, include_self: boolean?}): torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@param index torch.Tensor
---@param source torch.Tensor
---@param reduce string
---@param options? {include_self: boolean?}
---@return torch.Tensor
function torch.index_reduce_(self, dim, index, source, reduce, options) end
Tensor.index_reduce_ = torch.index_reduce_
---@overload fun(self: torch.Tensor, options: {dim: integer, index: torch.Tensor, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@param index torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.index_select(self, dim, index, options) end
Tensor.index_select = torch.index_select
---@overload fun(grad: torch.Tensor, options: {self_sizes: integer[], dim: integer, index: torch.Tensor}): torch.Tensor
---@param grad torch.Tensor
---@param self_sizes integer[]
---@param dim integer
---@param index torch.Tensor
---@return torch.Tensor
function torch.index_select_backward(grad, self_sizes, dim, index) end
Tensor.index_select_backward = torch.index_select_backward
---@param self torch.Tensor
---@return torch.Tensor
function torch.indices(self) end
Tensor.indices = torch.indices
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.indices_copy(self, options) end
Tensor.indices_copy = torch.indices_copy
---@param grad torch.Tensor
---@param self torch.Tensor|number
---@return torch.Tensor
function torch.infinitely_differentiable_gelu_backward(grad, self) end
Tensor.infinitely_differentiable_gelu_backward = torch.infinitely_differentiable_gelu_backward
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.inner(self, other, options) end
Tensor.inner = torch.inner
---@overload fun(input: torch.Tensor, weight: torch.Tensor?, bias: torch.Tensor?, running_mean: torch.Tensor?, running_var: torch.Tensor?, options: {use_input_stats: boolean, momentum: number, eps: number, cudnn_enabled: boolean}): torch.Tensor
---@param input torch.Tensor
---@param weight torch.Tensor?
---@param bias torch.Tensor?
---@param running_mean torch.Tensor?
---@param running_var torch.Tensor?
---@param use_input_stats boolean
---@param momentum number
---@param eps number
---@param cudnn_enabled boolean
---@return torch.Tensor
function torch.instance_norm(input, weight, bias, running_mean, running_var, use_input_stats, momentum, eps, cudnn_enabled) end
Tensor.instance_norm = torch.instance_norm
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.int_repr(self, options) end
Tensor.int_repr = torch.int_repr
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.inverse(self, options) end
Tensor.inverse = torch.inverse
---@param self torch.Tensor
---@return boolean
function torch.is_coalesced(self) end
Tensor.is_coalesced = torch.is_coalesced
---@param self torch.Tensor
---@return boolean
function torch.is_complex(self) end
Tensor.is_complex = torch.is_complex
---@param self torch.Tensor
---@return boolean
function torch.is_conj(self) end
Tensor.is_conj = torch.is_conj
---@param self torch.Tensor
---@return boolean
function torch.is_distributed(self) end
Tensor.is_distributed = torch.is_distributed
---@param self torch.Tensor
---@return boolean
function torch.is_floating_point(self) end
Tensor.is_floating_point = torch.is_floating_point
---@param self torch.Tensor
---@return boolean
function torch.is_inference(self) end
Tensor.is_inference = torch.is_inference
---@param self torch.Tensor
---@return boolean
function torch.is_leaf(self) end
---@param self torch.Tensor
---@return boolean
function torch.is_neg(self) end
Tensor.is_neg = torch.is_neg
---@param self torch.Tensor
---@return boolean
function torch.is_nonzero(self) end
Tensor.is_nonzero = torch.is_nonzero
---@overload fun(self: torch.Tensor, options: {device: string?}): boolean
---@param self torch.Tensor
---@param device? string
---@return boolean
function torch.is_pinned(self, device) end
Tensor.is_pinned = torch.is_pinned
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return boolean
function torch.is_same_size(self, other) end
Tensor.is_same_size = torch.is_same_size
---@param self torch.Tensor
---@param tensor torch.Tensor
---@return boolean
function torch.is_set_to(self, tensor) end
Tensor.is_set_to = torch.is_set_to
---@param self torch.Tensor
---@return boolean
function torch.is_signed(self) end
Tensor.is_signed = torch.is_signed
---@return boolean
function torch.is_vulkan_available() end
---@overload fun(self: torch.Tensor, other: torch.Tensor|number, options: {rtol: number?, atol: number?, equal_nan: boolean?}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param rtol? number
---@param atol? number
---@param equal_nan? boolean
---@return torch.Tensor
function torch.isclose(self, other, rtol, atol, equal_nan) end
Tensor.isclose = torch.isclose
---@param self torch.Tensor
---@return torch.Tensor
function torch.isfinite(self) end
Tensor.isfinite = torch.isfinite
---@overload fun(element: torch.Scalar, test_elements: torch.Tensor, options: {assume_unique: boolean?, invert: boolean?, out: torch.Tensor?}?): torch.Tensor
---@overload fun(elements: torch.Tensor, test_element: torch.Scalar, options: {assume_unique: boolean?, invert: boolean?, out: torch.Tensor?}?): torch.Tensor
---@overload fun(elements: torch.Tensor, options: {test_element: torch.Scalar, assume_unique: boolean?, invert: boolean?, out: torch.Tensor?}): torch.Tensor
---@param elements torch.Tensor
---@param test_elements torch.Tensor
---@param options? {assume_unique: boolean?, invert: boolean?, out: torch.Tensor?}
---@return torch.Tensor
function torch.isin(elements, test_elements, options) end
Tensor.isin = torch.isin
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.isinf(self, options) end
Tensor.isinf = torch.isinf
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.isnan(self, options) end
Tensor.isnan = torch.isnan
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.isneginf(self, options) end
Tensor.isneginf = torch.isneginf
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.isposinf(self, options) end
Tensor.isposinf = torch.isposinf
---@param self torch.Tensor
---@return torch.Tensor
function torch.isreal(self) end
Tensor.isreal = torch.isreal
---@overload fun(self: torch.Tensor, options: {n_fft: integer, hop_length: integer?, win_length: integer?, window: torch.Tensor?, center: boolean?, normalized: boolean?, onesided: boolean?, length: integer?, return_complex: boolean?}): torch.Tensor
---@param self torch.Tensor
---@param n_fft integer
---@param hop_length? integer
---@param win_length? integer
---@param window? torch.Tensor
---@param center? boolean
---@param normalized? boolean
---@param onesided? boolean
---@param length? integer
---@param return_complex? boolean
---@return torch.Tensor
function torch.istft(self, n_fft, hop_length, win_length, window, center, normalized, onesided, length, return_complex) end
Tensor.istft = torch.istft
---@param self torch.Tensor
---@return number
function torch.item(self) end
---@overload fun(window_length: integer, periodic: boolean, options: torch.FactoryOptions?): torch.Tensor
---@overload fun(window_length: integer, options: torch.FactoryOptions?): torch.Tensor
---@overload fun(window_length: integer, periodic: boolean, beta: number, options: {out: torch.Tensor}): torch.Tensor
---@overload fun(window_length: integer, periodic: boolean, options: {out: torch.Tensor}): torch.Tensor
---@overload fun(window_length: integer, options: {out: torch.Tensor}): torch.Tensor
---@param window_length integer
---@param periodic boolean
---@param beta number
---@param options? torch.FactoryOptions
---@return torch.Tensor
function torch.kaiser_window(window_length, periodic, beta, options) end
---@overload fun(self: torch.Tensor, target: torch.Tensor, options: {reduction: integer?, log_target: boolean?}): torch.Tensor
---@param self torch.Tensor
---@param target torch.Tensor
---@param reduction? integer
---@param options? {log_target: boolean?}
---@return torch.Tensor
function torch.kl_div(self, target, reduction, options) end
Tensor.kl_div = torch.kl_div
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.kron(self, other, options) end
Tensor.kron = torch.kron
---@overload fun(self: torch.Tensor, options: {k: integer, dim: integer?, keepdim: boolean?, values: torch.Tensor?, indices: torch.Tensor?}): torch.Tensor, torch.Tensor
---@param self torch.Tensor
---@param k integer
---@param dim? integer
---@param keepdim? boolean
---@param options? {values: torch.Tensor?, indices: torch.Tensor?}
---@return torch.Tensor values
---@return torch.Tensor indices
function torch.kthvalue(self, k, dim, keepdim, options) end
Tensor.kthvalue = torch.kthvalue
---@overload fun(self: torch.Tensor, target: torch.Tensor, options: {reduction: integer?}): torch.Tensor
---@param self torch.Tensor
---@param target torch.Tensor
---@param reduction? integer
---@return torch.Tensor
function torch.l1_loss(self, target, reduction) end
Tensor.l1_loss = torch.l1_loss
---@overload fun(input: torch.Tensor, options: {normalized_shape: integer[], weight: torch.Tensor?, bias: torch.Tensor?, eps: number?, cudnn_enable: boolean?}): torch.Tensor
---@param input torch.Tensor
---@param normalized_shape integer[]
---@param weight? torch.Tensor
---@param bias? torch.Tensor
---@param eps? number
---@param cudnn_enable? boolean
---@return torch.Tensor
function torch.layer_norm(input, normalized_shape, weight, bias, eps, cudnn_enable) end
Tensor.layer_norm = torch.layer_norm
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.lcm(self, other, options) end
Tensor.lcm = torch.lcm
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return torch.Tensor
function torch.lcm_(self, other) end
Tensor.lcm_ = torch.lcm_
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.ldexp(self, other, options) end
Tensor.ldexp = torch.ldexp
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return torch.Tensor
function torch.ldexp_(self, other) end
Tensor.ldexp_ = torch.ldexp_
---@overload fun(self: torch.Tensor, other: torch.Scalar, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.le(self, other, options) end
Tensor.le = torch.le
---@overload fun(self: torch.Tensor, other: torch.Scalar): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return torch.Tensor
function torch.le_(self, other) end
Tensor.le_ = torch.le_
---@overload fun(self: torch.Tensor, options: {negative_slope: torch.Scalar?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param negative_slope? torch.Scalar
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.leaky_relu(self, negative_slope, options) end
Tensor.leaky_relu = torch.leaky_relu
---@overload fun(self: torch.Tensor, options: {negative_slope: torch.Scalar?}): torch.Tensor
---@param self torch.Tensor
---@param negative_slope? torch.Scalar
---@return torch.Tensor
function torch.leaky_relu_(self, negative_slope) end
Tensor.leaky_relu_ = torch.leaky_relu_
---@overload fun(grad_output: torch.Tensor, self: torch.Tensor|number, options: {negative_slope: torch.Scalar, self_is_result: boolean, grad_input: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param self torch.Tensor|number
---@param negative_slope torch.Scalar
---@param self_is_result boolean
---@param options? {grad_input: torch.Tensor?}
---@return torch.Tensor
function torch.leaky_relu_backward(grad_output, self, negative_slope, self_is_result, options) end
Tensor.leaky_relu_backward = torch.leaky_relu_backward
---@overload fun(self: torch.Tensor, end_: torch.Tensor, weight: torch.Scalar, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, end_: torch.Tensor, options: {weight: torch.Scalar, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param end_ torch.Tensor
---@param weight torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.lerp(self, end_, weight, options) end
Tensor.lerp = torch.lerp
---@overload fun(self: torch.Tensor, end_: torch.Tensor, weight: torch.Scalar): torch.Tensor
---@overload fun(self: torch.Tensor, end_: torch.Tensor, options: {weight: torch.Scalar}): torch.Tensor
---@param self torch.Tensor
---@param end_ torch.Tensor
---@param weight torch.Tensor
---@return torch.Tensor
function torch.lerp_(self, end_, weight) end
Tensor.lerp_ = torch.lerp_
---@overload fun(self: torch.Tensor, other: torch.Scalar, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.less(self, other, options) end
Tensor.less = torch.less
---@overload fun(self: torch.Tensor, other: torch.Scalar): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return torch.Tensor
function torch.less_(self, other) end
Tensor.less_ = torch.less_
---@overload fun(self: torch.Tensor, other: torch.Scalar, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.less_equal(self, other, options) end
Tensor.less_equal = torch.less_equal
---@overload fun(self: torch.Tensor, other: torch.Scalar): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return torch.Tensor
function torch.less_equal_(self, other) end
Tensor.less_equal_ = torch.less_equal_
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.lgamma(self, options) end
Tensor.lgamma = torch.lgamma
---@param self torch.Tensor
---@return torch.Tensor
function torch.lgamma_(self) end
Tensor.lgamma_ = torch.lgamma_
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.lift(self, options) end
Tensor.lift = torch.lift
---@param self torch.Tensor
---@return torch.Tensor
function torch.lift_fresh(self) end
Tensor.lift_fresh = torch.lift_fresh
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.lift_fresh_copy(self, options) end
Tensor.lift_fresh_copy = torch.lift_fresh_copy
---@overload fun(self: torch.Tensor, options: {ord: torch.Scalar?, dim: (integer|integer[])?, keepdim: boolean?, dtype: torch.dtype?}): torch.Tensor
---@param self torch.Tensor
---@param ord? torch.Scalar
---@param dim? integer|integer[]
---@param keepdim? boolean
---@param options? {dtype: torch.dtype?}
---@return torch.Tensor
function torch.linalg__powsum(self, ord, dim, keepdim, options) end
Tensor.linalg__powsum = torch.linalg__powsum
---@param self torch.Tensor
---@param options? {upper: boolean?, out: torch.Tensor?}
---@return torch.Tensor
function torch.linalg_cholesky(self, options) end
Tensor.linalg_cholesky = torch.linalg_cholesky
---@param self torch.Tensor
---@param options? {upper: boolean?, check_errors: boolean?, L: torch.Tensor?, info: torch.Tensor?}
---@return torch.Tensor L
---@return torch.Tensor info
function torch.linalg_cholesky_ex(self, options) end
Tensor.linalg_cholesky_ex = torch.linalg_cholesky_ex
---@overload fun(self: torch.Tensor, options: {p: torch.Scalar?, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Tensor, p: string, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {p: string, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param p? torch.Scalar
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.linalg_cond(self, p, options) end
Tensor.linalg_cond = torch.linalg_cond
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {dim: integer?, out: torch.Tensor?}
---@return torch.Tensor
function torch.linalg_cross(self, other, options) end
Tensor.linalg_cross = torch.linalg_cross
---@param A torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.linalg_det(A, options) end
Tensor.linalg_det = torch.linalg_det
---@param A torch.Tensor
---@param options? {offset: integer?, dim1: integer?, dim2: integer?}
---@return torch.Tensor
function torch.linalg_diagonal(A, options) end
Tensor.linalg_diagonal = torch.linalg_diagonal
---@param self torch.Tensor
---@param options? {eigenvalues: torch.Tensor?, eigenvectors: torch.Tensor?}
---@return torch.Tensor eigenvalues
---@return torch.Tensor eigenvectors
function torch.linalg_eig(self, options) end
Tensor.linalg_eig = torch.linalg_eig
---@overload fun(self: torch.Tensor, options: {UPLO: string?, eigvals: torch.Tensor?, eigvecs: torch.Tensor?}): torch.Tensor, torch.Tensor
---@param self torch.Tensor
---@param UPLO? string
---@param options? {eigvals: torch.Tensor?, eigvecs: torch.Tensor?}
---@return torch.Tensor eigenvalues
---@return torch.Tensor eigenvectors
function torch.linalg_eigh(self, UPLO, options) end
Tensor.linalg_eigh = torch.linalg_eigh
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.linalg_eigvals(self, options) end
Tensor.linalg_eigvals = torch.linalg_eigvals
---@overload fun(self: torch.Tensor, options: {UPLO: string?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param UPLO? string
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.linalg_eigvalsh(self, UPLO, options) end
Tensor.linalg_eigvalsh = torch.linalg_eigvalsh
---@param input torch.Tensor
---@param tau torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.linalg_householder_product(input, tau, options) end
Tensor.linalg_householder_product = torch.linalg_householder_product
---@param A torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.linalg_inv(A, options) end
Tensor.linalg_inv = torch.linalg_inv
---@param A torch.Tensor
---@param options? {check_errors: boolean?, inverse: torch.Tensor?, info: torch.Tensor?}
---@return torch.Tensor inverse
---@return torch.Tensor info
function torch.linalg_inv_ex(A, options) end
Tensor.linalg_inv_ex = torch.linalg_inv_ex
---@param self torch.Tensor
---@param options? {hermitian: boolean?, LD: torch.Tensor?, pivots: torch.Tensor?}
---@return torch.Tensor LD
---@return torch.Tensor pivots
function torch.linalg_ldl_factor(self, options) end
Tensor.linalg_ldl_factor = torch.linalg_ldl_factor
---@param self torch.Tensor
---@param options? {hermitian: boolean?, check_errors: boolean?, LD: torch.Tensor?, pivots: torch.Tensor?, info: torch.Tensor?}
---@return torch.Tensor LD
---@return torch.Tensor pivots
---@return torch.Tensor info
function torch.linalg_ldl_factor_ex(self, options) end
Tensor.linalg_ldl_factor_ex = torch.linalg_ldl_factor_ex
---@param LD torch.Tensor
---@param pivots torch.Tensor
---@param B torch.Tensor
---@param options? {hermitian: boolean?, out: torch.Tensor?}
---@return torch.Tensor
function torch.linalg_ldl_solve(LD, pivots, B, options) end
Tensor.linalg_ldl_solve = torch.linalg_ldl_solve
---@overload fun(self: torch.Tensor, b: torch.Tensor, options: {rcond: number?, driver: string?, solution: torch.Tensor?, residuals: torch.Tensor?, rank: torch.Tensor?, singular_values: torch.Tensor?}): torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor
---@param self torch.Tensor
---@param b torch.Tensor
---@param rcond? number
---@param options? {driver: string?, solution: torch.Tensor?, residuals: torch.Tensor?, rank: torch.Tensor?, singular_values: torch.Tensor?}
---@return torch.Tensor solution
---@return torch.Tensor residuals
---@return torch.Tensor rank
---@return torch.Tensor singular_values
function torch.linalg_lstsq(self, b, rcond, options) end
Tensor.linalg_lstsq = torch.linalg_lstsq
---@param A torch.Tensor
---@param options? {pivot: boolean?, P: torch.Tensor?, L: torch.Tensor?, U: torch.Tensor?}
---@return torch.Tensor P
---@return torch.Tensor L
---@return torch.Tensor U
function torch.linalg_lu(A, options) end
Tensor.linalg_lu = torch.linalg_lu
---@param A torch.Tensor
---@param options? {pivot: boolean?, LU: torch.Tensor?, pivots: torch.Tensor?}
---@return torch.Tensor LU
---@return torch.Tensor pivots
function torch.linalg_lu_factor(A, options) end
Tensor.linalg_lu_factor = torch.linalg_lu_factor
---@param A torch.Tensor
---@param options? {pivot: boolean?, check_errors: boolean?, LU: torch.Tensor?, pivots: torch.Tensor?, info: torch.Tensor?}
---@return torch.Tensor LU
---@return torch.Tensor pivots
---@return torch.Tensor info
function torch.linalg_lu_factor_ex(A, options) end
Tensor.linalg_lu_factor_ex = torch.linalg_lu_factor_ex
---@param LU torch.Tensor
---@param pivots torch.Tensor
---@param B torch.Tensor
---@param options? {left: boolean?, adjoint: boolean?, out: torch.Tensor?}
---@return torch.Tensor
function torch.linalg_lu_solve(LU, pivots, B, options) end
Tensor.linalg_lu_solve = torch.linalg_lu_solve
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.linalg_matmul(self, other, options) end
Tensor.linalg_matmul = torch.linalg_matmul
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.linalg_matrix_exp(self, options) end
Tensor.linalg_matrix_exp = torch.linalg_matrix_exp
---@overload fun(self: torch.Tensor, options: {ord: torch.Scalar, dim: integer[]?, keepdim: boolean?, dtype: torch.dtype?, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Tensor, ord: string?, dim: integer[]?, keepdim: boolean?, options: {dtype: torch.dtype?, out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {ord: string?, dim: integer[]?, keepdim: boolean?, dtype: torch.dtype?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param ord torch.Scalar
---@param dim? integer[]
---@param keepdim? boolean
---@param options? {dtype: torch.dtype?, out: torch.Tensor?}
---@return torch.Tensor
function torch.linalg_matrix_norm(self, ord, dim, keepdim, options) end
Tensor.linalg_matrix_norm = torch.linalg_matrix_norm
---@overload fun(self: torch.Tensor, options: {n: integer, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param n integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.linalg_matrix_power(self, n, options) end
Tensor.linalg_matrix_power = torch.linalg_matrix_power
---@overload fun(input: torch.Tensor, tol: torch.Tensor, hermitian: boolean?, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(input: torch.Tensor, tol: torch.Tensor, options: {hermitian: boolean?, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Tensor, options: {atol: number?, rtol: number?, hermitian: boolean?, out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, tol: number, hermitian: boolean?, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {tol: number, hermitian: boolean?, out: torch.Tensor?}): torch.Tensor
---@param input torch.Tensor
---@param options? {atol: torch.Tensor?, rtol: torch.Tensor?, hermitian: boolean?, out: torch.Tensor?}
---@return torch.Tensor
function torch.linalg_matrix_rank(input, options) end
Tensor.linalg_matrix_rank = torch.linalg_matrix_rank
---@param tensors torch.Tensor[]
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.linalg_multi_dot(tensors, options) end
---@overload fun(self: torch.Tensor, options: {ord: torch.Scalar?, dim: (integer|integer[])?, keepdim: boolean?, dtype: torch.dtype?, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Tensor, ord: string, dim: (integer|integer[])?, keepdim: boolean?, options: {dtype: torch.dtype?, out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {ord: string, dim: (integer|integer[])?, keepdim: boolean?, dtype: torch.dtype?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param ord? torch.Scalar
---@param dim? integer|integer[]
---@param keepdim? boolean
---@param options? {dtype: torch.dtype?, out: torch.Tensor?}
---@return torch.Tensor
function torch.linalg_norm(self, ord, dim, keepdim, options) end
Tensor.linalg_norm = torch.linalg_norm
---@overload fun(self: torch.Tensor, rcond: torch.Tensor, hermitian: boolean?, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, rcond: torch.Tensor, options: {hermitian: boolean?, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Tensor, options: {atol: number?, rtol: number?, hermitian: boolean?, out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, rcond: number, hermitian: boolean?, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {rcond: number, hermitian: boolean?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param options? {atol: torch.Tensor?, rtol: torch.Tensor?, hermitian: boolean?, out: torch.Tensor?}
---@return torch.Tensor
function torch.linalg_pinv(self, options) end
Tensor.linalg_pinv = torch.linalg_pinv
---@overload fun(A: torch.Tensor, options: {mode: string?, Q: torch.Tensor?, R: torch.Tensor?}): torch.Tensor, torch.Tensor
---@param A torch.Tensor
---@param mode? string
---@param options? {Q: torch.Tensor?, R: torch.Tensor?}
---@return torch.Tensor Q
---@return torch.Tensor R
function torch.linalg_qr(A, mode, options) end
Tensor.linalg_qr = torch.linalg_qr
---@param A torch.Tensor
---@param options? {sign: torch.Tensor?, logabsdet: torch.Tensor?}
---@return torch.Tensor sign
---@return torch.Tensor logabsdet
function torch.linalg_slogdet(A, options) end
Tensor.linalg_slogdet = torch.linalg_slogdet
---@param A torch.Tensor
---@param B torch.Tensor
---@param options? {left: boolean?, out: torch.Tensor?}
---@return torch.Tensor
function torch.linalg_solve(A, B, options) end
Tensor.linalg_solve = torch.linalg_solve
---@param A torch.Tensor
---@param B torch.Tensor
---@param options? {left: boolean?, check_errors: boolean?, result: torch.Tensor?, info: torch.Tensor?}
---@return torch.Tensor result
---@return torch.Tensor info
function torch.linalg_solve_ex(A, B, options) end
Tensor.linalg_solve_ex = torch.linalg_solve_ex
---@param self torch.Tensor
---@param B torch.Tensor
---@param options {upper: boolean, left: boolean?, unitriangular: boolean?, out: torch.Tensor?}
---@return torch.Tensor
function torch.linalg_solve_triangular(self, B, options) end
Tensor.linalg_solve_triangular = torch.linalg_solve_triangular
---@overload fun(A: torch.Tensor, options: {full_matrices: boolean?, driver: string?, U: torch.Tensor?, S: torch.Tensor?, Vh: torch.Tensor?}): torch.Tensor, torch.Tensor, torch.Tensor
---@param A torch.Tensor
---@param full_matrices? boolean
---@param options? {driver: string?, U: torch.Tensor?, S: torch.Tensor?, Vh: torch.Tensor?}
---@return torch.Tensor U
---@return torch.Tensor S
---@return torch.Tensor Vh
function torch.linalg_svd(A, full_matrices, options) end
Tensor.linalg_svd = torch.linalg_svd
---@param A torch.Tensor
---@param options? {driver: string?, out: torch.Tensor?}
---@return torch.Tensor
function torch.linalg_svdvals(A, options) end
Tensor.linalg_svdvals = torch.linalg_svdvals
---@overload fun(self: torch.Tensor, options: {ind: integer?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param ind? integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.linalg_tensorinv(self, ind, options) end
Tensor.linalg_tensorinv = torch.linalg_tensorinv
---@overload fun(self: torch.Tensor, other: torch.Tensor|number, ...: integer|table): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param dims? integer[]
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.linalg_tensorsolve(self, other, dims, options) end
Tensor.linalg_tensorsolve = torch.linalg_tensorsolve
---@param x torch.Tensor
---@param options? {N: integer?}
---@return torch.Tensor
function torch.linalg_vander(x, options) end
Tensor.linalg_vander = torch.linalg_vander
---@param x torch.Tensor
---@param y torch.Tensor
---@param options? {dim: integer?, out: torch.Tensor?}
---@return torch.Tensor
function torch.linalg_vecdot(x, y, options) end
Tensor.linalg_vecdot = torch.linalg_vecdot
---@overload fun(self: torch.Tensor, options: {ord: torch.Scalar?, dim: (integer|integer[])?, keepdim: boolean?, dtype: torch.dtype?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param ord? torch.Scalar
---@param dim? integer|integer[]
---@param keepdim? boolean
---@param options? {dtype: torch.dtype?, out: torch.Tensor?}
---@return torch.Tensor
function torch.linalg_vector_norm(self, ord, dim, keepdim, options) end
Tensor.linalg_vector_norm = torch.linalg_vector_norm
---@overload fun(input: torch.Tensor, weight: torch.Tensor, options: {bias: torch.Tensor?, out: torch.Tensor?}): torch.Tensor
---@param input torch.Tensor
---@param weight torch.Tensor
---@param bias? torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.linear(input, weight, bias, options) end
Tensor.linear = torch.linear
---@overload fun(self: torch.Tensor, grad_output: torch.Tensor, weight: torch.Tensor, options: {output_mask: boolean[], out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?}): torch.Tensor, torch.Tensor, torch.Tensor
---@param self torch.Tensor
---@param grad_output torch.Tensor
---@param weight torch.Tensor
---@param output_mask boolean[]
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch.linear_backward(self, grad_output, weight, output_mask, options) end
Tensor.linear_backward = torch.linear_backward
---@overload fun(start: torch.Scalar, end_: torch.Scalar, steps: integer, options: {out: torch.Tensor}): torch.Tensor
---@overload fun(start: torch.Scalar, end_: torch.Tensor, steps: integer, options: torch.FactoryOptions?): torch.Tensor
---@overload fun(start: torch.Tensor, end_: torch.Scalar, steps: integer, options: torch.FactoryOptions?): torch.Tensor
---@overload fun(start: torch.Tensor, options: {["end"]: torch.Scalar, steps: integer, dtype: torch.dtype?, layout: torch.layout?, device: string?, pin_memory: boolean?, requires_grad: boolean?}): torch.Tensor
---@overload fun(start: torch.Scalar, end_: torch.Tensor, steps: integer, options: {out: torch.Tensor}): torch.Tensor
---@overload fun(start: torch.Tensor, end_: torch.Scalar, steps: integer, options: {out: torch.Tensor}): torch.Tensor
---@overload fun(start: torch.Tensor, options: {["end"]: torch.Scalar, steps: integer, out: torch.Tensor}): torch.Tensor
---@overload fun(start: torch.Tensor, end_: torch.Tensor, steps: integer, options: torch.FactoryOptions?): torch.Tensor
---@overload fun(start: torch.Tensor, end_: torch.Tensor, options: {steps: integer, dtype: torch.dtype?, layout: torch.layout?, device: string?, pin_memory: boolean?, requires_grad: boolean?}): torch.Tensor
---@overload fun(start: torch.Tensor, end_: torch.Tensor, steps: integer, options: {out: torch.Tensor}): torch.Tensor
---@overload fun(start: torch.Tensor, end_: torch.Tensor, options: {steps: integer, out: torch.Tensor}): torch.Tensor
---@param start torch.Scalar
---@param end_ torch.Scalar
---@param steps integer
---@param options? torch.FactoryOptions
---@return torch.Tensor
function torch.linspace(start, end_, steps, options) end
Tensor.linspace = torch.linspace
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.log(self, options) end
Tensor.log = torch.log
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.log10(self, options) end
Tensor.log10 = torch.log10
---@param self torch.Tensor
---@return torch.Tensor
function torch.log10_(self) end
Tensor.log10_ = torch.log10_
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.log1p(self, options) end
Tensor.log1p = torch.log1p
---@param self torch.Tensor
---@return torch.Tensor
function torch.log1p_(self) end
Tensor.log1p_ = torch.log1p_
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.log2(self, options) end
Tensor.log2 = torch.log2
---@param self torch.Tensor
---@return torch.Tensor
function torch.log2_(self) end
Tensor.log2_ = torch.log2_
---@param self torch.Tensor
---@return torch.Tensor
function torch.log_(self) end
Tensor.log_ = torch.log_
---@overload fun(self: torch.Tensor, options: {mean: number?, std: number?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param mean? number
---@param std? number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.log_normal(self, mean, std, options) end
Tensor.log_normal = torch.log_normal
---@overload fun(self: torch.Tensor, options: {mean: number?, std: number?}): torch.Tensor
---@param self torch.Tensor
---@param mean? number
---@param std? number
---@return torch.Tensor
function torch.log_normal_(self, mean, std) end
Tensor.log_normal_ = torch.log_normal_
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.log_sigmoid(self, options) end
Tensor.log_sigmoid = torch.log_sigmoid
---@param grad_output torch.Tensor
---@param self torch.Tensor|number
---@param buffer torch.Tensor
---@param options? {grad_input: torch.Tensor?}
---@return torch.Tensor
function torch.log_sigmoid_backward(grad_output, self, buffer, options) end
Tensor.log_sigmoid_backward = torch.log_sigmoid_backward
---@param self torch.Tensor
---@param options? {output: torch.Tensor?, buffer: torch.Tensor?}
---@return torch.Tensor output
---@return torch.Tensor buffer
function torch.log_sigmoid_forward(self, options) end
Tensor.log_sigmoid_forward = torch.log_sigmoid_forward
---@overload fun(self: torch.Tensor, options: {dim: integer, dtype: torch.dtype?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@param dtype? torch.dtype
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.log_softmax(self, dim, dtype, options) end
Tensor.log_softmax = torch.log_softmax
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.logaddexp(self, other, options) end
Tensor.logaddexp = torch.logaddexp
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.logaddexp2(self, other, options) end
Tensor.logaddexp2 = torch.logaddexp2
---@overload fun(self: torch.Tensor, options: {dim: integer, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.logcumsumexp(self, dim, options) end
Tensor.logcumsumexp = torch.logcumsumexp
---@param self torch.Tensor
---@return torch.Tensor
function torch.logdet(self) end
Tensor.logdet = torch.logdet
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.logical_and(self, other, options) end
Tensor.logical_and = torch.logical_and
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return torch.Tensor
function torch.logical_and_(self, other) end
Tensor.logical_and_ = torch.logical_and_
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.logical_not(self, options) end
Tensor.logical_not = torch.logical_not
---@param self torch.Tensor
---@return torch.Tensor
function torch.logical_not_(self) end
Tensor.logical_not_ = torch.logical_not_
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.logical_or(self, other, options) end
Tensor.logical_or = torch.logical_or
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return torch.Tensor
function torch.logical_or_(self, other) end
Tensor.logical_or_ = torch.logical_or_
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.logical_xor(self, other, options) end
Tensor.logical_xor = torch.logical_xor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return torch.Tensor
function torch.logical_xor_(self, other) end
Tensor.logical_xor_ = torch.logical_xor_
---@overload fun(self: torch.Tensor, options: {eps: number?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param eps? number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.logit(self, eps, options) end
Tensor.logit = torch.logit
---@overload fun(self: torch.Tensor, options: {eps: number?}): torch.Tensor
---@param self torch.Tensor
---@param eps? number
---@return torch.Tensor
function torch.logit_(self, eps) end
Tensor.logit_ = torch.logit_
---@overload fun(grad_output: torch.Tensor, self: torch.Tensor|number, options: {eps: number?, grad_input: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param self torch.Tensor|number
---@param eps? number
---@param options? {grad_input: torch.Tensor?}
---@return torch.Tensor
function torch.logit_backward(grad_output, self, eps, options) end
Tensor.logit_backward = torch.logit_backward
---@overload fun(start: torch.Scalar, end_: torch.Scalar, steps: integer, options: {base: number?, dtype: torch.dtype?, layout: torch.layout?, device: string?, pin_memory: boolean?, requires_grad: boolean?}): torch.Tensor
---@overload fun(start: torch.Scalar, end_: torch.Scalar, steps: integer, base: number?, options: {out: torch.Tensor}): torch.Tensor
---@overload fun(start: torch.Scalar, end_: torch.Scalar, steps: integer, options: {base: number?, out: torch.Tensor}): torch.Tensor
---@overload fun(start: torch.Scalar, end_: torch.Tensor, steps: integer, base: number?, options: torch.FactoryOptions?): torch.Tensor
---@overload fun(start: torch.Scalar, end_: torch.Tensor, steps: integer, options: {base: number?, dtype: torch.dtype?, layout: torch.layout?, device: string?, pin_memory: boolean?, requires_grad: boolean?}): torch.Tensor
---@overload fun(start: torch.Tensor, end_: torch.Scalar, steps: integer, base: number?, options: torch.FactoryOptions?): torch.Tensor
---@overload fun(start: torch.Tensor, options: {["end"]: torch.Scalar, steps: integer, base: number?, dtype: torch.dtype?, layout: torch.layout?, device: string?, pin_memory: boolean?, requires_grad: boolean?}): torch.Tensor
---@overload fun(start: torch.Scalar, end_: torch.Tensor, steps: integer, base: number?, options: {out: torch.Tensor}): torch.Tensor
---@overload fun(start: torch.Scalar, end_: torch.Tensor, steps: integer, options: {base: number?, out: torch.Tensor}): torch.Tensor
---@overload fun(start: torch.Tensor, end_: torch.Scalar, steps: integer, base: number?, options: {out: torch.Tensor}): torch.Tensor
---@overload fun(start: torch.Tensor, options: {["end"]: torch.Scalar, steps: integer, base: number?, out: torch.Tensor}): torch.Tensor
---@overload fun(start: torch.Tensor, end_: torch.Tensor, steps: integer, base: number?, options: torch.FactoryOptions?): torch.Tensor
---@overload fun(start: torch.Tensor, end_: torch.Tensor, options: {steps: integer, base: number?, dtype: torch.dtype?, layout: torch.layout?, device: string?, pin_memory: boolean?, requires_grad: boolean?}): torch.Tensor
---@overload fun(start: torch.Tensor, end_: torch.Tensor, steps: integer, base: number?, options: {out: torch.Tensor}): torch.Tensor
---@overload fun(start: torch.Tensor, end_: torch.Tensor, options: {steps: integer, base: number?, out: torch.Tensor}): torch.Tensor
---@param start torch.Scalar
---@param end_ torch.Scalar
---@param steps integer
---@param base? number
---@param options? torch.FactoryOptions
---@return torch.Tensor
function torch.logspace(start, end_, steps, base, options) end
Tensor.logspace = torch.logspace
---@overload fun(self: torch.Tensor, options: {dim: integer|integer[], keepdim: boolean?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param dim integer|integer[]
---@param keepdim? boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.logsumexp(self, dim, keepdim, options) end
Tensor.logsumexp = torch.logsumexp
---@overload fun(data: torch.Tensor, batch_sizes: torch.Tensor, hx: torch.Tensor[], params: torch.Tensor[], options: {has_biases: boolean, num_layers: integer, dropout: number, train: boolean, bidirectional: boolean}): torch.Tensor, torch.Tensor, torch.Tensor
---@overload fun(input: torch.Tensor, hx: torch.Tensor[], params: torch.Tensor[], has_biases: boolean, num_layers: integer, dropout: number, train: boolean, bidirectional: boolean, batch_first: boolean): torch.Tensor, torch.Tensor, torch.Tensor
---@overload fun(input: torch.Tensor, hx: torch.Tensor[], params: torch.Tensor[], options: {has_biases: boolean, num_layers: integer, dropout: number, train: boolean, bidirectional: boolean, batch_first: boolean}): torch.Tensor, torch.Tensor, torch.Tensor
---@param data torch.Tensor
---@param batch_sizes torch.Tensor
---@param hx torch.Tensor[]
---@param params torch.Tensor[]
---@param has_biases boolean
---@param num_layers integer
---@param dropout number
---@param train boolean
---@param bidirectional boolean
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch.lstm(data, batch_sizes, hx, params, has_biases, num_layers, dropout, train, bidirectional) end
Tensor.lstm = torch.lstm
---@overload fun(input: torch.Tensor, hx: torch.Tensor[], w_ih: torch.Tensor, w_hh: torch.Tensor, options: {b_ih: torch.Tensor?, b_hh: torch.Tensor?}): torch.Tensor, torch.Tensor
---@param input torch.Tensor
---@param hx torch.Tensor[]
---@param w_ih torch.Tensor
---@param w_hh torch.Tensor
---@param b_ih? torch.Tensor
---@param b_hh? torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch.lstm_cell(input, hx, w_ih, w_hh, b_ih, b_hh) end
Tensor.lstm_cell = torch.lstm_cell
---@overload fun(grad_y: torch.Tensor?, grad_hy: torch.Tensor?, grad_cy: torch.Tensor?, z_state: torch.Tensor, cell_state_fwd: torch.Tensor, input: torch.Tensor, layersOutputs: torch.Tensor, hx: torch.Tensor[], params: torch.Tensor[], options: {has_biases: boolean, num_layers: integer, dropout: number, train: boolean, bidirectional: boolean, batch_first: boolean, out0: torch.Tensor?, out1: torch.Tensor[]?, out2: torch.Tensor[]?}): torch.Tensor, torch.Tensor[], torch.Tensor[]
---@param grad_y torch.Tensor?
---@param grad_hy torch.Tensor?
---@param grad_cy torch.Tensor?
---@param z_state torch.Tensor
---@param cell_state_fwd torch.Tensor
---@param input torch.Tensor
---@param layersOutputs torch.Tensor
---@param hx torch.Tensor[]
---@param params torch.Tensor[]
---@param has_biases boolean
---@param num_layers integer
---@param dropout number
---@param train boolean
---@param bidirectional boolean
---@param batch_first boolean
---@param options? {out0: torch.Tensor?, out1: torch.Tensor[]?, out2: torch.Tensor[]?}
---@return torch.Tensor
---@return torch.Tensor[]
---@return torch.Tensor[]
function torch.lstm_mps_backward(grad_y, grad_hy, grad_cy, z_state, cell_state_fwd, input, layersOutputs, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first, options) end
Tensor.lstm_mps_backward = torch.lstm_mps_backward
---@overload fun(self: torch.Tensor, other: torch.Scalar, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.lt(self, other, options) end
Tensor.lt = torch.lt
---@overload fun(self: torch.Tensor, other: torch.Scalar): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return torch.Tensor
function torch.lt_(self, other) end
Tensor.lt_ = torch.lt_
---@param self torch.Tensor
---@param LU_data torch.Tensor
---@param LU_pivots torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.lu_solve(self, LU_data, LU_pivots, options) end
Tensor.lu_solve = torch.lu_solve
---@overload fun(LU_data: torch.Tensor, LU_pivots: torch.Tensor, options: {unpack_data: boolean?, unpack_pivots: boolean?, P: torch.Tensor?, L: torch.Tensor?, U: torch.Tensor?}): torch.Tensor, torch.Tensor, torch.Tensor
---@param LU_data torch.Tensor
---@param LU_pivots torch.Tensor
---@param unpack_data? boolean
---@param unpack_pivots? boolean
---@param options? {P: torch.Tensor?, L: torch.Tensor?, U: torch.Tensor?}
---@return torch.Tensor P
---@return torch.Tensor L
---@return torch.Tensor U
function torch.lu_unpack(LU_data, LU_pivots, unpack_data, unpack_pivots, options) end
Tensor.lu_unpack = torch.lu_unpack
---@param self torch.Tensor
---@return torch.Tensor
function torch.mH(self) end
Tensor.mH = torch.mH
---@param self torch.Tensor
---@return torch.Tensor
function torch.mT(self) end
Tensor.mT = torch.mT
---@overload fun(input1: torch.Tensor, input2: torch.Tensor, target: torch.Tensor, options: {margin: number?, reduction: integer?}): torch.Tensor
---@param input1 torch.Tensor
---@param input2 torch.Tensor
---@param target torch.Tensor
---@param margin? number
---@param reduction? integer
---@return torch.Tensor
function torch.margin_ranking_loss(input1, input2, target, margin, reduction) end
Tensor.margin_ranking_loss = torch.margin_ranking_loss
---@overload fun(self: torch.Tensor, mask: torch.Tensor, value: torch.Scalar, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, mask: torch.Tensor, options: {value: torch.Scalar, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param mask torch.Tensor
---@param value torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.masked_fill(self, mask, value, options) end
Tensor.masked_fill = torch.masked_fill
---@overload fun(self: torch.Tensor, mask: torch.Tensor, value: torch.Scalar): torch.Tensor
---@overload fun(self: torch.Tensor, mask: torch.Tensor, options: {value: torch.Scalar}): torch.Tensor
---@param self torch.Tensor
---@param mask torch.Tensor
---@param value torch.Tensor
---@return torch.Tensor
function torch.masked_fill_(self, mask, value) end
Tensor.masked_fill_ = torch.masked_fill_
---@param self torch.Tensor
---@param mask torch.Tensor
---@param source torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.masked_scatter(self, mask, source, options) end
Tensor.masked_scatter = torch.masked_scatter
---@param self torch.Tensor
---@param mask torch.Tensor
---@param source torch.Tensor
---@return torch.Tensor
function torch.masked_scatter_(self, mask, source) end
Tensor.masked_scatter_ = torch.masked_scatter_
---@overload fun(grad_output: torch.Tensor, mask: torch.Tensor, ...: integer): torch.Tensor
---@param grad_output torch.Tensor
---@param mask torch.Tensor
---@param sizes integer[]
---@return torch.Tensor
function torch.masked_scatter_backward(grad_output, mask, sizes) end
Tensor.masked_scatter_backward = torch.masked_scatter_backward
---@param self torch.Tensor
---@param mask torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.masked_select(self, mask, options) end
Tensor.masked_select = torch.masked_select
---@param grad torch.Tensor
---@param input torch.Tensor
---@param mask torch.Tensor
---@return torch.Tensor
function torch.masked_select_backward(grad, input, mask) end
Tensor.masked_select_backward = torch.masked_select_backward
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.matmul(self, other, options) end
Tensor.matmul = torch.matmul
---@overload fun(grad: torch.Tensor, self: torch.Tensor|number, other: torch.Tensor|number, options: {mask: boolean[], out0: torch.Tensor?, out1: torch.Tensor?}): torch.Tensor, torch.Tensor
---@param grad torch.Tensor
---@param self torch.Tensor|number
---@param other torch.Tensor|number
---@param mask boolean[]
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
function torch.matmul_backward(grad, self, other, mask, options) end
Tensor.matmul_backward = torch.matmul_backward
---@param self torch.Tensor
---@return torch.Tensor
function torch.matrix_H(self) end
Tensor.matrix_H = torch.matrix_H
---@param self torch.Tensor
---@return torch.Tensor
function torch.matrix_exp(self) end
Tensor.matrix_exp = torch.matrix_exp
---@param self torch.Tensor
---@param grad torch.Tensor
---@return torch.Tensor
function torch.matrix_exp_backward(self, grad) end
Tensor.matrix_exp_backward = torch.matrix_exp_backward
---@overload fun(self: torch.Tensor, options: {n: integer, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param n integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.matrix_power(self, n, options) end
Tensor.matrix_power = torch.matrix_power
---@overload fun(self: torch.Tensor, dim: integer, keepdim: boolean?, options: {max: torch.Tensor?, max_values: torch.Tensor?}?): torch.Tensor, torch.Tensor
---@overload fun(self: torch.Tensor, options: {dim: integer, keepdim: boolean?, max: torch.Tensor?, max_values: torch.Tensor?}): torch.Tensor, torch.Tensor
---@overload fun(self: torch.Tensor, options: {out: torch.Tensor?}?): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.max(self, other, options) end
Tensor.max = torch.max
---@overload fun(self: torch.Tensor, options: {kernel_size: integer|integer[], stride: (integer|integer[])?, padding: (integer|integer[])?, dilation: (integer|integer[])?, ceil_mode: boolean?}): torch.Tensor
---@param self torch.Tensor
---@param kernel_size integer|integer[]
---@param stride? integer|integer[]
---@param padding? integer|integer[]
---@param dilation? integer|integer[]
---@param ceil_mode? boolean
---@return torch.Tensor
function torch.max_pool1d(self, kernel_size, stride, padding, dilation, ceil_mode) end
Tensor.max_pool1d = torch.max_pool1d
---@overload fun(self: torch.Tensor, options: {kernel_size: integer|integer[], stride: (integer|integer[])?, padding: (integer|integer[])?, dilation: (integer|integer[])?, ceil_mode: boolean?}): torch.Tensor, torch.Tensor
---@param self torch.Tensor
---@param kernel_size integer|integer[]
---@param stride? integer|integer[]
---@param padding? integer|integer[]
---@param dilation? integer|integer[]
---@param ceil_mode? boolean
---@return torch.Tensor
---@return torch.Tensor
function torch.max_pool1d_with_indices(self, kernel_size, stride, padding, dilation, ceil_mode) end
Tensor.max_pool1d_with_indices = torch.max_pool1d_with_indices
---@overload fun(self: torch.Tensor, options: {kernel_size: integer|integer[], stride: (integer|integer[])?, padding: (integer|integer[])?, dilation: (integer|integer[])?, ceil_mode: boolean?}): torch.Tensor
---@param self torch.Tensor
---@param kernel_size integer|integer[]
---@param stride? integer|integer[]
---@param padding? integer|integer[]
---@param dilation? integer|integer[]
---@param ceil_mode? boolean
---@return torch.Tensor
function torch.max_pool2d(self, kernel_size, stride, padding, dilation, ceil_mode) end
Tensor.max_pool2d = torch.max_pool2d
---@overload fun(grad_output: torch.Tensor, self: torch.Tensor|number, options: {kernel_size: integer|integer[], stride: (integer|integer[])?, padding: (integer|integer[])?, dilation: (integer|integer[])?, ceil_mode: boolean?, out: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param self torch.Tensor|number
---@param kernel_size integer|integer[]
---@param stride? integer|integer[]
---@param padding? integer|integer[]
---@param dilation? integer|integer[]
---@param ceil_mode? boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.max_pool2d_backward(grad_output, self, kernel_size, stride, padding, dilation, ceil_mode, options) end
Tensor.max_pool2d_backward = torch.max_pool2d_backward
---@overload fun(self: torch.Tensor, options: {kernel_size: integer|integer[], stride: (integer|integer[])?, padding: (integer|integer[])?, dilation: (integer|integer[])?, ceil_mode: boolean?, out: torch.Tensor?, indices: torch.Tensor?}): torch.Tensor, torch.Tensor
---@param self torch.Tensor
---@param kernel_size integer|integer[]
---@param stride? integer|integer[]
---@param padding? integer|integer[]
---@param dilation? integer|integer[]
---@param ceil_mode? boolean
---@param options? {out: torch.Tensor?, indices: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
function torch.max_pool2d_with_indices(self, kernel_size, stride, padding, dilation, ceil_mode, options) end
Tensor.max_pool2d_with_indices = torch.max_pool2d_with_indices
---@overload fun(grad_output: torch.Tensor, self: torch.Tensor|number, options: {kernel_size: integer|integer[], stride: integer|integer[], padding: integer|integer[], dilation: integer|integer[], ceil_mode: boolean, indices: torch.Tensor, grad_input: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param self torch.Tensor|number
---@param kernel_size integer|integer[]
---@param stride integer|integer[]
---@param padding integer|integer[]
---@param dilation integer|integer[]
---@param ceil_mode boolean
---@param indices torch.Tensor
---@param options? {grad_input: torch.Tensor?}
---@return torch.Tensor
function torch.max_pool2d_with_indices_backward(grad_output, self, kernel_size, stride, padding, dilation, ceil_mode, indices, options) end
Tensor.max_pool2d_with_indices_backward = torch.max_pool2d_with_indices_backward
---@overload fun(self: torch.Tensor, options: {kernel_size: integer|integer[], stride: (integer|integer[])?, padding: (integer|integer[])?, dilation: (integer|integer[])?, ceil_mode: boolean?}): torch.Tensor
---@param self torch.Tensor
---@param kernel_size integer|integer[]
---@param stride? integer|integer[]
---@param padding? integer|integer[]
---@param dilation? integer|integer[]
---@param ceil_mode? boolean
---@return torch.Tensor
function torch.max_pool3d(self, kernel_size, stride, padding, dilation, ceil_mode) end
Tensor.max_pool3d = torch.max_pool3d
---@overload fun(self: torch.Tensor, options: {kernel_size: integer|integer[], stride: (integer|integer[])?, padding: (integer|integer[])?, dilation: (integer|integer[])?, ceil_mode: boolean?, out: torch.Tensor?, indices: torch.Tensor?}): torch.Tensor, torch.Tensor
---@param self torch.Tensor
---@param kernel_size integer|integer[]
---@param stride? integer|integer[]
---@param padding? integer|integer[]
---@param dilation? integer|integer[]
---@param ceil_mode? boolean
---@param options? {out: torch.Tensor?, indices: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
function torch.max_pool3d_with_indices(self, kernel_size, stride, padding, dilation, ceil_mode, options) end
Tensor.max_pool3d_with_indices = torch.max_pool3d_with_indices
---@overload fun(grad_output: torch.Tensor, self: torch.Tensor|number, options: {kernel_size: integer|integer[], stride: integer|integer[], padding: integer|integer[], dilation: integer|integer[], ceil_mode: boolean, indices: torch.Tensor, grad_input: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param self torch.Tensor|number
---@param kernel_size integer|integer[]
---@param stride integer|integer[]
---@param padding integer|integer[]
---@param dilation integer|integer[]
---@param ceil_mode boolean
---@param indices torch.Tensor
---@param options? {grad_input: torch.Tensor?}
---@return torch.Tensor
function torch.max_pool3d_with_indices_backward(grad_output, self, kernel_size, stride, padding, dilation, ceil_mode, indices, options) end
Tensor.max_pool3d_with_indices_backward = torch.max_pool3d_with_indices_backward
---@overload fun(self: torch.Tensor, indices: torch.Tensor, options: {output_size: integer|integer[], out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param indices torch.Tensor
---@param output_size integer|integer[]
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.max_unpool2d(self, indices, output_size, options) end
Tensor.max_unpool2d = torch.max_unpool2d
---@overload fun(self: torch.Tensor, indices: torch.Tensor, options: {output_size: integer|integer[], stride: integer|integer[], padding: integer|integer[], out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param indices torch.Tensor
---@param output_size integer|integer[]
---@param stride integer|integer[]
---@param padding integer|integer[]
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.max_unpool3d(self, indices, output_size, stride, padding, options) end
Tensor.max_unpool3d = torch.max_unpool3d
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.maximum(self, other, options) end
Tensor.maximum = torch.maximum
---@overload fun(self: torch.Tensor, options: {dim: (integer|integer[])?, keepdim: boolean?, dtype: torch.dtype?, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Tensor, options: {dtype: torch.dtype?, out: torch.Tensor?}?): torch.Tensor
---@param self torch.Tensor
---@param dim (integer|integer[])?
---@param keepdim? boolean
---@param options? {dtype: torch.dtype?, out: torch.Tensor?}
---@return torch.Tensor
function torch.mean(self, dim, keepdim, options) end
Tensor.mean = torch.mean
---@overload fun(self: torch.Tensor, options: {dim: integer, keepdim: boolean?, values: torch.Tensor?, indices: torch.Tensor?}): torch.Tensor, torch.Tensor
---@overload fun(self: torch.Tensor, options: {out: torch.Tensor?}?): torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@param keepdim? boolean
---@param options? {values: torch.Tensor?, indices: torch.Tensor?}
---@return torch.Tensor values
---@return torch.Tensor indices
function torch.median(self, dim, keepdim, options) end
Tensor.median = torch.median
---@overload fun(tensors: torch.Tensor[]): torch.Tensor[]
---@param tensors torch.Tensor[]
---@param options {indexing: string}
---@return torch.Tensor[]
function torch.meshgrid(tensors, options) end
---@overload fun(self: torch.Tensor, dim: integer, keepdim: boolean?, options: {min: torch.Tensor?, min_indices: torch.Tensor?}?): torch.Tensor, torch.Tensor
---@overload fun(self: torch.Tensor, options: {dim: integer, keepdim: boolean?, min: torch.Tensor?, min_indices: torch.Tensor?}): torch.Tensor, torch.Tensor
---@overload fun(self: torch.Tensor, options: {out: torch.Tensor?}?): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.min(self, other, options) end
Tensor.min = torch.min
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.minimum(self, other, options) end
Tensor.minimum = torch.minimum
---@overload fun(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor?, running_mean: torch.Tensor?, running_var: torch.Tensor?, options: {training: boolean, exponential_average_factor: number, epsilon: number, out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?}): torch.Tensor, torch.Tensor, torch.Tensor
---@param input torch.Tensor
---@param weight torch.Tensor
---@param bias torch.Tensor?
---@param running_mean torch.Tensor?
---@param running_var torch.Tensor?
---@param training boolean
---@param exponential_average_factor number
---@param epsilon number
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch.miopen_batch_norm(input, weight, bias, running_mean, running_var, training, exponential_average_factor, epsilon, options) end
Tensor.miopen_batch_norm = torch.miopen_batch_norm
---@overload fun(input: torch.Tensor, grad_output: torch.Tensor, weight: torch.Tensor, running_mean: torch.Tensor?, running_var: torch.Tensor?, save_mean: torch.Tensor?, save_var: torch.Tensor?, options: {epsilon: number, out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?}): torch.Tensor, torch.Tensor, torch.Tensor
---@param input torch.Tensor
---@param grad_output torch.Tensor
---@param weight torch.Tensor
---@param running_mean torch.Tensor?
---@param running_var torch.Tensor?
---@param save_mean torch.Tensor?
---@param save_var torch.Tensor?
---@param epsilon number
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch.miopen_batch_norm_backward(input, grad_output, weight, running_mean, running_var, save_mean, save_var, epsilon, options) end
Tensor.miopen_batch_norm_backward = torch.miopen_batch_norm_backward
---@overload fun(self: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor?, options: {padding: integer[], stride: integer[], dilation: integer[], groups: integer, benchmark: boolean, deterministic: boolean, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param weight torch.Tensor
---@param bias torch.Tensor?
---@param padding integer[]
---@param stride integer[]
---@param dilation integer[]
---@param groups integer
---@param benchmark boolean
---@param deterministic boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.miopen_convolution(self, weight, bias, padding, stride, dilation, groups, benchmark, deterministic, options) end
Tensor.miopen_convolution = torch.miopen_convolution
---@overload fun(self: torch.Tensor, weight: torch.Tensor, z: torch.Tensor, options: {alpha: torch.Scalar?, bias: torch.Tensor?, stride: integer[], padding: integer[], dilation: integer[], groups: integer}): torch.Tensor
---@param self torch.Tensor
---@param weight torch.Tensor
---@param z torch.Tensor
---@param alpha torch.Scalar?
---@param bias torch.Tensor?
---@param stride integer[]
---@param padding integer[]
---@param dilation integer[]
---@param groups integer
---@return torch.Tensor
function torch.miopen_convolution_add_relu(self, weight, z, alpha, bias, stride, padding, dilation, groups) end
Tensor.miopen_convolution_add_relu = torch.miopen_convolution_add_relu
---@overload fun(self: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor?, options: {stride: integer[], padding: integer[], dilation: integer[], groups: integer}): torch.Tensor
---@param self torch.Tensor
---@param weight torch.Tensor
---@param bias torch.Tensor?
---@param stride integer[]
---@param padding integer[]
---@param dilation integer[]
---@param groups integer
---@return torch.Tensor
function torch.miopen_convolution_relu(self, weight, bias, stride, padding, dilation, groups) end
Tensor.miopen_convolution_relu = torch.miopen_convolution_relu
---@overload fun(self: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor?, options: {padding: integer[], output_padding: integer[], stride: integer[], dilation: integer[], groups: integer, benchmark: boolean, deterministic: boolean, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param weight torch.Tensor
---@param bias torch.Tensor?
---@param padding integer[]
---@param output_padding integer[]
---@param stride integer[]
---@param dilation integer[]
---@param groups integer
---@param benchmark boolean
---@param deterministic boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.miopen_convolution_transpose(self, weight, bias, padding, output_padding, stride, dilation, groups, benchmark, deterministic, options) end
Tensor.miopen_convolution_transpose = torch.miopen_convolution_transpose
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
function torch.miopen_ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, deterministic, zero_infinity) end
Tensor.miopen_ctc_loss = torch.miopen_ctc_loss
---@overload fun(self: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor?, options: {padding: integer[], stride: integer[], dilation: integer[], groups: integer, benchmark: boolean, deterministic: boolean, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param weight torch.Tensor
---@param bias torch.Tensor?
---@param padding integer[]
---@param stride integer[]
---@param dilation integer[]
---@param groups integer
---@param benchmark boolean
---@param deterministic boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.miopen_depthwise_convolution(self, weight, bias, padding, stride, dilation, groups, benchmark, deterministic, options) end
Tensor.miopen_depthwise_convolution = torch.miopen_depthwise_convolution
---@overload fun(input: torch.Tensor, weight: torch.Tensor[], options: {weight_stride0: integer, hx: torch.Tensor, cx: torch.Tensor?, mode: integer, hidden_size: integer, num_layers: integer, batch_first: boolean, dropout: number, train: boolean, bidirectional: boolean, batch_sizes: integer[], dropout_state: torch.Tensor?, out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?, out3: torch.Tensor?, out4: torch.Tensor?}): torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor
---@param input torch.Tensor
---@param weight torch.Tensor[]
---@param weight_stride0 integer
---@param hx torch.Tensor
---@param cx torch.Tensor?
---@param mode integer
---@param hidden_size integer
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
function torch.miopen_rnn(input, weight, weight_stride0, hx, cx, mode, hidden_size, num_layers, batch_first, dropout, train, bidirectional, batch_sizes, dropout_state, options) end
Tensor.miopen_rnn = torch.miopen_rnn
---@overload fun(input: torch.Tensor, weight: torch.Tensor[], options: {weight_stride0: integer, weight_buf: torch.Tensor, hx: torch.Tensor, cx: torch.Tensor?, output: torch.Tensor, grad_output: torch.Tensor?, grad_hy: torch.Tensor?, grad_cy: torch.Tensor?, mode: integer, hidden_size: integer, num_layers: integer, batch_first: boolean, dropout: number, train: boolean, bidirectional: boolean, batch_sizes: integer[], dropout_state: torch.Tensor?, reserve: torch.Tensor, output_mask: boolean[], out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?, out3: torch.Tensor[]?}): torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor[]
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
function torch.miopen_rnn_backward(input, weight, weight_stride0, weight_buf, hx, cx, output, grad_output, grad_hy, grad_cy, mode, hidden_size, num_layers, batch_first, dropout, train, bidirectional, batch_sizes, dropout_state, reserve, output_mask, options) end
Tensor.miopen_rnn_backward = torch.miopen_rnn_backward
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.mish(self, options) end
Tensor.mish = torch.mish
---@param self torch.Tensor
---@return torch.Tensor
function torch.mish_(self) end
Tensor.mish_ = torch.mish_
---@param grad_output torch.Tensor
---@param self torch.Tensor|number
---@return torch.Tensor
function torch.mish_backward(grad_output, self) end
Tensor.mish_backward = torch.mish_backward
---@overload fun(self: torch.Tensor, options: {output_size: integer|integer[], out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param output_size integer|integer[]
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.mkldnn_adaptive_avg_pool2d(self, output_size, options) end
Tensor.mkldnn_adaptive_avg_pool2d = torch.mkldnn_adaptive_avg_pool2d
---@param grad_output torch.Tensor
---@param self torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.mkldnn_adaptive_avg_pool2d_backward(grad_output, self, options) end
Tensor.mkldnn_adaptive_avg_pool2d_backward = torch.mkldnn_adaptive_avg_pool2d_backward
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
function torch.mkldnn_convolution(self, weight, bias, padding, stride, dilation, groups, options) end
Tensor.mkldnn_convolution = torch.mkldnn_convolution
---@overload fun(self: torch.Tensor, weight: torch.Tensor, options: {bias: torch.Tensor?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param weight torch.Tensor
---@param bias? torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.mkldnn_linear(self, weight, bias, options) end
Tensor.mkldnn_linear = torch.mkldnn_linear
---@overload fun(self: torch.Tensor, grad_output: torch.Tensor, weight: torch.Tensor, options: {output_mask: boolean[], out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?}): torch.Tensor, torch.Tensor, torch.Tensor
---@param self torch.Tensor
---@param grad_output torch.Tensor
---@param weight torch.Tensor
---@param output_mask boolean[]
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch.mkldnn_linear_backward(self, grad_output, weight, output_mask, options) end
Tensor.mkldnn_linear_backward = torch.mkldnn_linear_backward
---@param input_size integer[]
---@param grad_output torch.Tensor
---@param weight torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.mkldnn_linear_backward_input(input_size, grad_output, weight, options) end
---@overload fun(grad_output: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, options: {bias_defined: boolean, out0: torch.Tensor?, out1: torch.Tensor?}): torch.Tensor, torch.Tensor
---@param grad_output torch.Tensor
---@param input torch.Tensor
---@param weight torch.Tensor
---@param bias_defined boolean
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
function torch.mkldnn_linear_backward_weights(grad_output, input, weight, bias_defined, options) end
Tensor.mkldnn_linear_backward_weights = torch.mkldnn_linear_backward_weights
---@overload fun(self: torch.Tensor, options: {kernel_size: integer|integer[], stride: (integer|integer[])?, padding: (integer|integer[])?, dilation: (integer|integer[])?, ceil_mode: boolean?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param kernel_size integer|integer[]
---@param stride? integer|integer[]
---@param padding? integer|integer[]
---@param dilation? integer|integer[]
---@param ceil_mode? boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.mkldnn_max_pool2d(self, kernel_size, stride, padding, dilation, ceil_mode, options) end
Tensor.mkldnn_max_pool2d = torch.mkldnn_max_pool2d
---@overload fun(grad_output: torch.Tensor, output: torch.Tensor, input: torch.Tensor, options: {kernel_size: integer|integer[], stride: (integer|integer[])?, padding: (integer|integer[])?, dilation: (integer|integer[])?, ceil_mode: boolean?, out: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param output torch.Tensor
---@param input torch.Tensor
---@param kernel_size integer|integer[]
---@param stride? integer|integer[]
---@param padding? integer|integer[]
---@param dilation? integer|integer[]
---@param ceil_mode? boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.mkldnn_max_pool2d_backward(grad_output, output, input, kernel_size, stride, padding, dilation, ceil_mode, options) end
Tensor.mkldnn_max_pool2d_backward = torch.mkldnn_max_pool2d_backward
---@overload fun(self: torch.Tensor, options: {kernel_size: integer|integer[], stride: (integer|integer[])?, padding: (integer|integer[])?, dilation: (integer|integer[])?, ceil_mode: boolean?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param kernel_size integer|integer[]
---@param stride? integer|integer[]
---@param padding? integer|integer[]
---@param dilation? integer|integer[]
---@param ceil_mode? boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.mkldnn_max_pool3d(self, kernel_size, stride, padding, dilation, ceil_mode, options) end
Tensor.mkldnn_max_pool3d = torch.mkldnn_max_pool3d
---@overload fun(grad_output: torch.Tensor, output: torch.Tensor, input: torch.Tensor, options: {kernel_size: integer|integer[], stride: (integer|integer[])?, padding: (integer|integer[])?, dilation: (integer|integer[])?, ceil_mode: boolean?, out: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param output torch.Tensor
---@param input torch.Tensor
---@param kernel_size integer|integer[]
---@param stride? integer|integer[]
---@param padding? integer|integer[]
---@param dilation? integer|integer[]
---@param ceil_mode? boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.mkldnn_max_pool3d_backward(grad_output, output, input, kernel_size, stride, padding, dilation, ceil_mode, options) end
Tensor.mkldnn_max_pool3d_backward = torch.mkldnn_max_pool3d_backward
---@overload fun(self: torch.Tensor, padding: (integer|integer[])?, stride: (integer|integer[])?, dilation: (integer|integer[])?, groups: integer?, ...: integer|table): torch.Tensor
---@overload fun(self: torch.Tensor, options: {padding: (integer|integer[])?, stride: (integer|integer[])?, dilation: (integer|integer[])?, groups: integer?, input_size: integer[]?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param padding? integer|integer[]
---@param stride? integer|integer[]
---@param dilation? integer|integer[]
---@param groups? integer
---@param input_size? integer[]
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.mkldnn_reorder_conv2d_weight(self, padding, stride, dilation, groups, input_size, options) end
Tensor.mkldnn_reorder_conv2d_weight = torch.mkldnn_reorder_conv2d_weight
---@overload fun(self: torch.Tensor, padding: (integer|integer[])?, stride: (integer|integer[])?, dilation: (integer|integer[])?, groups: integer?, ...: integer|table): torch.Tensor
---@overload fun(self: torch.Tensor, options: {padding: (integer|integer[])?, stride: (integer|integer[])?, dilation: (integer|integer[])?, groups: integer?, input_size: integer[]?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param padding? integer|integer[]
---@param stride? integer|integer[]
---@param dilation? integer|integer[]
---@param groups? integer
---@param input_size? integer[]
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.mkldnn_reorder_conv3d_weight(self, padding, stride, dilation, groups, input_size, options) end
Tensor.mkldnn_reorder_conv3d_weight = torch.mkldnn_reorder_conv3d_weight
---@overload fun(input: torch.Tensor, weight0: torch.Tensor, weight1: torch.Tensor, weight2: torch.Tensor, weight3: torch.Tensor, hx_: torch.Tensor, cx_: torch.Tensor, options: {reverse: boolean, batch_sizes: integer[], mode: integer, hidden_size: integer, num_layers: integer, has_biases: boolean, bidirectional: boolean, batch_first: boolean, train: boolean, out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?, out3: torch.Tensor?}): torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor
---@param input torch.Tensor
---@param weight0 torch.Tensor
---@param weight1 torch.Tensor
---@param weight2 torch.Tensor
---@param weight3 torch.Tensor
---@param hx_ torch.Tensor
---@param cx_ torch.Tensor
---@param reverse boolean
---@param batch_sizes integer[]
---@param mode integer
---@param hidden_size integer
---@param num_layers integer
---@param has_biases boolean
---@param bidirectional boolean
---@param batch_first boolean
---@param train boolean
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?, out3: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch.mkldnn_rnn_layer(input, weight0, weight1, weight2, weight3, hx_, cx_, reverse, batch_sizes, mode, hidden_size, num_layers, has_biases, bidirectional, batch_first, train, options) end
Tensor.mkldnn_rnn_layer = torch.mkldnn_rnn_layer
---@overload fun(input: torch.Tensor, weight1: torch.Tensor, weight2: torch.Tensor, weight3: torch.Tensor, weight4: torch.Tensor, hx_: torch.Tensor, cx_tmp: torch.Tensor, output: torch.Tensor, hy_: torch.Tensor, cy_: torch.Tensor, grad_output: torch.Tensor?, grad_hy: torch.Tensor?, grad_cy: torch.Tensor?, options: {reverse: boolean, mode: integer, hidden_size: integer, num_layers: integer, has_biases: boolean, train: boolean, bidirectional: boolean, batch_sizes: integer[], batch_first: boolean, workspace: torch.Tensor, out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?, out3: torch.Tensor?, out4: torch.Tensor?, out5: torch.Tensor?, out6: torch.Tensor?}): torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor
---@param input torch.Tensor
---@param weight1 torch.Tensor
---@param weight2 torch.Tensor
---@param weight3 torch.Tensor
---@param weight4 torch.Tensor
---@param hx_ torch.Tensor
---@param cx_tmp torch.Tensor
---@param output torch.Tensor
---@param hy_ torch.Tensor
---@param cy_ torch.Tensor
---@param grad_output torch.Tensor?
---@param grad_hy torch.Tensor?
---@param grad_cy torch.Tensor?
---@param reverse boolean
---@param mode integer
---@param hidden_size integer
---@param num_layers integer
---@param has_biases boolean
---@param train boolean
---@param bidirectional boolean
---@param batch_sizes integer[]
---@param batch_first boolean
---@param workspace torch.Tensor
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?, out3: torch.Tensor?, out4: torch.Tensor?, out5: torch.Tensor?, out6: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch.mkldnn_rnn_layer_backward(input, weight1, weight2, weight3, weight4, hx_, cx_tmp, output, hy_, cy_, grad_output, grad_hy, grad_cy, reverse, mode, hidden_size, num_layers, has_biases, train, bidirectional, batch_sizes, batch_first, workspace, options) end
Tensor.mkldnn_rnn_layer_backward = torch.mkldnn_rnn_layer_backward
---@overload fun(self: torch.Tensor, mat2: torch.Tensor, options: {out_dtype: torch.dtype, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Tensor, mat2: torch.Tensor, options: {out: torch.Tensor?}?): torch.Tensor
---@param self torch.Tensor
---@param mat2 torch.Tensor
---@param out_dtype torch.dtype
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.mm(self, mat2, out_dtype, options) end
Tensor.mm = torch.mm
---@overload fun(self: torch.Tensor, options: {dim: integer?, keepdim: boolean?, values: torch.Tensor?, indices: torch.Tensor?}): torch.Tensor, torch.Tensor
---@param self torch.Tensor
---@param dim? integer
---@param keepdim? boolean
---@param options? {values: torch.Tensor?, indices: torch.Tensor?}
---@return torch.Tensor values
---@return torch.Tensor indices
function torch.mode(self, dim, keepdim, options) end
Tensor.mode = torch.mode
---@overload fun(self: torch.Tensor, options: {source: integer, destination: integer}): torch.Tensor
---@overload fun(self: torch.Tensor, source: integer[], destination: integer[]): torch.Tensor
---@overload fun(self: torch.Tensor, source: integer[], ...: integer): torch.Tensor
---@overload fun(self: torch.Tensor, options: {source: integer[], destination: integer[]}): torch.Tensor
---@param self torch.Tensor
---@param source integer
---@param destination integer
---@return torch.Tensor
function torch.moveaxis(self, source, destination) end
Tensor.moveaxis = torch.moveaxis
---@overload fun(self: torch.Tensor, options: {source: integer, destination: integer}): torch.Tensor
---@overload fun(self: torch.Tensor, source: integer[], destination: integer[]): torch.Tensor
---@overload fun(self: torch.Tensor, source: integer[], ...: integer): torch.Tensor
---@overload fun(self: torch.Tensor, options: {source: integer[], destination: integer[]}): torch.Tensor
---@param self torch.Tensor
---@param source integer
---@param destination integer
---@return torch.Tensor
function torch.movedim(self, source, destination) end
Tensor.movedim = torch.movedim
---@overload fun(self: torch.Tensor, grad_output: torch.Tensor, weight: torch.Tensor, options: {padding: integer[], stride: integer[], dilation: integer[], groups: integer, output_mask: boolean[], out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?}): torch.Tensor, torch.Tensor, torch.Tensor
---@param self torch.Tensor
---@param grad_output torch.Tensor
---@param weight torch.Tensor
---@param padding integer[]
---@param stride integer[]
---@param dilation integer[]
---@param groups integer
---@param output_mask boolean[]
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch.mps_convolution_backward(self, grad_output, weight, padding, stride, dilation, groups, output_mask, options) end
Tensor.mps_convolution_backward = torch.mps_convolution_backward
---@overload fun(self: torch.Tensor, grad_output: torch.Tensor, weight: torch.Tensor, options: {padding: integer[], output_padding: integer[], stride: integer[], dilation: integer[], groups: integer, output_mask: boolean[], out0: torch.Tensor?, out1: torch.Tensor?}): torch.Tensor, torch.Tensor
---@param self torch.Tensor
---@param grad_output torch.Tensor
---@param weight torch.Tensor
---@param padding integer[]
---@param output_padding integer[]
---@param stride integer[]
---@param dilation integer[]
---@param groups integer
---@param output_mask boolean[]
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
function torch.mps_convolution_transpose_backward(self, grad_output, weight, padding, output_padding, stride, dilation, groups, output_mask, options) end
Tensor.mps_convolution_transpose_backward = torch.mps_convolution_transpose_backward
---@overload fun(self: torch.Tensor, target: torch.Tensor, options: {reduction: integer?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param target torch.Tensor
---@param reduction? integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.mse_loss(self, target, reduction, options) end
Tensor.mse_loss = torch.mse_loss
---@overload fun(grad_output: torch.Tensor, self: torch.Tensor|number, target: torch.Tensor, options: {reduction: integer, grad_input: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param self torch.Tensor|number
---@param target torch.Tensor
---@param reduction integer
---@param options? {grad_input: torch.Tensor?}
---@return torch.Tensor
function torch.mse_loss_backward(grad_output, self, target, reduction, options) end
Tensor.mse_loss_backward = torch.mse_loss_backward
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.msort(self, options) end
Tensor.msort = torch.msort
---@overload fun(self: torch.Tensor, other: torch.Scalar, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.mul(self, other, options) end
Tensor.mul = torch.mul
---@overload fun(self: torch.Tensor, other: torch.Scalar): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return torch.Tensor
function torch.mul_(self, other) end
Tensor.mul_ = torch.mul_
---@overload fun(self: torch.Tensor, target: torch.Tensor, options: {p: torch.Scalar?, margin: torch.Scalar?, weight: torch.Tensor?, reduction: integer?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param target torch.Tensor
---@param p? torch.Scalar
---@param margin? torch.Scalar
---@param weight? torch.Tensor
---@param reduction? integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.multi_margin_loss(self, target, p, margin, weight, reduction, options) end
Tensor.multi_margin_loss = torch.multi_margin_loss
---@overload fun(grad_output: torch.Tensor, self: torch.Tensor|number, target: torch.Tensor, options: {p: torch.Scalar, margin: torch.Scalar, weight: torch.Tensor?, reduction: integer?, grad_input: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param self torch.Tensor|number
---@param target torch.Tensor
---@param p torch.Scalar
---@param margin torch.Scalar
---@param weight? torch.Tensor
---@param reduction? integer
---@param options? {grad_input: torch.Tensor?}
---@return torch.Tensor
function torch.multi_margin_loss_backward(grad_output, self, target, p, margin, weight, reduction, options) end
Tensor.multi_margin_loss_backward = torch.multi_margin_loss_backward
---@overload fun(self: torch.Tensor, target: torch.Tensor, options: {reduction: integer?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param target torch.Tensor
---@param reduction? integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.multilabel_margin_loss(self, target, reduction, options) end
Tensor.multilabel_margin_loss = torch.multilabel_margin_loss
---@overload fun(grad_output: torch.Tensor, self: torch.Tensor|number, target: torch.Tensor, options: {reduction: integer, is_target: torch.Tensor, grad_input: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param self torch.Tensor|number
---@param target torch.Tensor
---@param reduction integer
---@param is_target torch.Tensor
---@param options? {grad_input: torch.Tensor?}
---@return torch.Tensor
function torch.multilabel_margin_loss_backward(grad_output, self, target, reduction, is_target, options) end
Tensor.multilabel_margin_loss_backward = torch.multilabel_margin_loss_backward
---@overload fun(self: torch.Tensor, target: torch.Tensor, options: {reduction: integer, output: torch.Tensor?, is_target: torch.Tensor?}): torch.Tensor, torch.Tensor
---@param self torch.Tensor
---@param target torch.Tensor
---@param reduction integer
---@param options? {output: torch.Tensor?, is_target: torch.Tensor?}
---@return torch.Tensor output
---@return torch.Tensor is_target
function torch.multilabel_margin_loss_forward(self, target, reduction, options) end
Tensor.multilabel_margin_loss_forward = torch.multilabel_margin_loss_forward
---@overload fun(self: torch.Tensor, options: {num_samples: integer, replacement: boolean?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param num_samples integer
---@param replacement? boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.multinomial(self, num_samples, replacement, options) end
Tensor.multinomial = torch.multinomial
---@overload fun(self: torch.Tensor, other: torch.Scalar): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.multiply(self, other, options) end
Tensor.multiply = torch.multiply
---@overload fun(self: torch.Tensor, other: torch.Scalar): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return torch.Tensor
function torch.multiply_(self, other) end
Tensor.multiply_ = torch.multiply_
---@param self torch.Tensor
---@param vec torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.mv(self, vec, options) end
Tensor.mv = torch.mv
---@overload fun(self: torch.Tensor, options: {p: integer, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param p integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.mvlgamma(self, p, options) end
Tensor.mvlgamma = torch.mvlgamma
---@overload fun(self: torch.Tensor, options: {p: integer}): torch.Tensor
---@param self torch.Tensor
---@param p integer
---@return torch.Tensor
function torch.mvlgamma_(self, p) end
Tensor.mvlgamma_ = torch.mvlgamma_
---@overload fun(self: torch.Tensor, options: {nan: number?, posinf: number?, neginf: number?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param nan? number
---@param posinf? number
---@param neginf? number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.nan_to_num(self, nan, posinf, neginf, options) end
Tensor.nan_to_num = torch.nan_to_num
---@overload fun(self: torch.Tensor, options: {nan: number?, posinf: number?, neginf: number?}): torch.Tensor
---@param self torch.Tensor
---@param nan? number
---@param posinf? number
---@param neginf? number
---@return torch.Tensor
function torch.nan_to_num_(self, nan, posinf, neginf) end
Tensor.nan_to_num_ = torch.nan_to_num_
---@overload fun(self: torch.Tensor, options: {dim: (integer|integer[])?, keepdim: boolean?, dtype: torch.dtype?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param dim? integer|integer[]
---@param keepdim? boolean
---@param options? {dtype: torch.dtype?, out: torch.Tensor?}
---@return torch.Tensor
function torch.nanmean(self, dim, keepdim, options) end
Tensor.nanmean = torch.nanmean
---@overload fun(self: torch.Tensor, options: {dim: integer, keepdim: boolean?, values: torch.Tensor?, indices: torch.Tensor?}): torch.Tensor, torch.Tensor
---@overload fun(self: torch.Tensor, options: {out: torch.Tensor?}?): torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@param keepdim? boolean
---@param options? {values: torch.Tensor?, indices: torch.Tensor?}
---@return torch.Tensor values
---@return torch.Tensor indices
function torch.nanmedian(self, dim, keepdim, options) end
Tensor.nanmedian = torch.nanmedian
---@overload fun(self: torch.Tensor, q: torch.Tensor, options: {dim: integer?, keepdim: boolean?, interpolation: string?, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Tensor, q: number, dim: integer?, keepdim: boolean?, options: {interpolation: string?, out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {q: number, dim: integer?, keepdim: boolean?, interpolation: string?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param q torch.Tensor
---@param dim? integer
---@param keepdim? boolean
---@param options? {interpolation: string?, out: torch.Tensor?}
---@return torch.Tensor
function torch.nanquantile(self, q, dim, keepdim, options) end
Tensor.nanquantile = torch.nanquantile
---@overload fun(self: torch.Tensor, options: {dim: (integer|integer[])?, keepdim: boolean?, dtype: torch.dtype?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param dim? integer|integer[]
---@param keepdim? boolean
---@param options? {dtype: torch.dtype?, out: torch.Tensor?}
---@return torch.Tensor
function torch.nansum(self, dim, keepdim, options) end
Tensor.nansum = torch.nansum
---@overload fun(self: torch.Tensor, options: {dim: integer, start: torch.Tensor, length: integer}): torch.Tensor
---@overload fun(self: torch.Tensor, dim: integer, start: integer, length: integer): torch.Tensor
---@overload fun(self: torch.Tensor, options: {dim: integer, start: integer, length: integer}): torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@param start torch.Tensor
---@param length integer
---@return torch.Tensor
function torch.narrow(self, dim, start, length) end
Tensor.narrow = torch.narrow
---@overload fun(self: torch.Tensor, options: {dim: integer, start: integer, length: integer, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@param start integer
---@param length integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.narrow_copy(self, dim, start, length, options) end
Tensor.narrow_copy = torch.narrow_copy
---@overload fun(input: torch.Tensor, weight: torch.Tensor?, bias: torch.Tensor?, running_mean: torch.Tensor?, running_var: torch.Tensor?, options: {training: boolean, momentum: number, eps: number, out: torch.Tensor?, save_mean: torch.Tensor?, save_invstd: torch.Tensor?}): torch.Tensor, torch.Tensor, torch.Tensor
---@param input torch.Tensor
---@param weight torch.Tensor?
---@param bias torch.Tensor?
---@param running_mean torch.Tensor?
---@param running_var torch.Tensor?
---@param training boolean
---@param momentum number
---@param eps number
---@param options? {out: torch.Tensor?, save_mean: torch.Tensor?, save_invstd: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch.native_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps, options) end
Tensor.native_batch_norm = torch.native_batch_norm
---@overload fun(grad_out: torch.Tensor, input: torch.Tensor, weight: torch.Tensor?, running_mean: torch.Tensor?, running_var: torch.Tensor?, save_mean: torch.Tensor?, save_invstd: torch.Tensor?, options: {train: boolean, eps: number, output_mask: boolean[], out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?}): torch.Tensor, torch.Tensor, torch.Tensor
---@param grad_out torch.Tensor
---@param input torch.Tensor
---@param weight torch.Tensor?
---@param running_mean torch.Tensor?
---@param running_var torch.Tensor?
---@param save_mean torch.Tensor?
---@param save_invstd torch.Tensor?
---@param train boolean
---@param eps number
---@param output_mask boolean[]
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch.native_batch_norm_backward(grad_out, input, weight, running_mean, running_var, save_mean, save_invstd, train, eps, output_mask, options) end
Tensor.native_batch_norm_backward = torch.native_batch_norm_backward
---@overload fun(self: torch.Tensor, options: {groups: integer}): torch.Tensor
---@param self torch.Tensor
---@param groups integer
---@return torch.Tensor
function torch.native_channel_shuffle(self, groups) end
Tensor.native_channel_shuffle = torch.native_channel_shuffle
---@overload fun(input: torch.Tensor, options: {p: number, train: boolean?, out0: torch.Tensor?, out1: torch.Tensor?}): torch.Tensor, torch.Tensor
---@param input torch.Tensor
---@param p number
---@param train boolean?
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
function torch.native_dropout(input, p, train, options) end
Tensor.native_dropout = torch.native_dropout
---@overload fun(grad_output: torch.Tensor, mask: torch.Tensor, options: {scale: number, out: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param mask torch.Tensor
---@param scale number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.native_dropout_backward(grad_output, mask, scale, options) end
Tensor.native_dropout_backward = torch.native_dropout_backward
---@overload fun(input: torch.Tensor, weight: torch.Tensor?, bias: torch.Tensor?, options: {N: integer, C: integer, HxW: integer, group: integer, eps: number, out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?}): torch.Tensor, torch.Tensor, torch.Tensor
---@param input torch.Tensor
---@param weight torch.Tensor?
---@param bias torch.Tensor?
---@param N integer
---@param C integer
---@param HxW integer
---@param group integer
---@param eps number
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch.native_group_norm(input, weight, bias, N, C, HxW, group, eps, options) end
Tensor.native_group_norm = torch.native_group_norm
---@overload fun(grad_out: torch.Tensor, input: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor, weight: torch.Tensor?, options: {N: integer, C: integer, HxW: integer, group: integer, output_mask: boolean[], out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?}): torch.Tensor, torch.Tensor, torch.Tensor
---@param grad_out torch.Tensor
---@param input torch.Tensor
---@param mean torch.Tensor
---@param rstd torch.Tensor
---@param weight torch.Tensor?
---@param N integer
---@param C integer
---@param HxW integer
---@param group integer
---@param output_mask boolean[]
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch.native_group_norm_backward(grad_out, input, mean, rstd, weight, N, C, HxW, group, output_mask, options) end
Tensor.native_group_norm_backward = torch.native_group_norm_backward
---@overload fun(input: torch.Tensor, options: {normalized_shape: integer[], weight: torch.Tensor?, bias: torch.Tensor?, eps: number, out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?}): torch.Tensor, torch.Tensor, torch.Tensor
---@param input torch.Tensor
---@param normalized_shape integer[]
---@param weight torch.Tensor?
---@param bias torch.Tensor?
---@param eps number
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch.native_layer_norm(input, normalized_shape, weight, bias, eps, options) end
Tensor.native_layer_norm = torch.native_layer_norm
---@overload fun(grad_out: torch.Tensor, input: torch.Tensor, options: {normalized_shape: integer[], mean: torch.Tensor, rstd: torch.Tensor, weight: torch.Tensor?, bias: torch.Tensor?, output_mask: boolean[], out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?}): torch.Tensor, torch.Tensor, torch.Tensor
---@param grad_out torch.Tensor
---@param input torch.Tensor
---@param normalized_shape integer[]
---@param mean torch.Tensor
---@param rstd torch.Tensor
---@param weight torch.Tensor?
---@param bias torch.Tensor?
---@param output_mask boolean[]
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch.native_layer_norm_backward(grad_out, input, normalized_shape, mean, rstd, weight, bias, output_mask, options) end
Tensor.native_layer_norm_backward = torch.native_layer_norm_backward
---@overload fun(self: torch.Tensor, options: {p: torch.Scalar?, dim: integer|integer[], keepdim: boolean, dtype: torch.dtype?, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Tensor, p: torch.Scalar?, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {p: torch.Scalar?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param p torch.Scalar?
---@param dim integer|integer[]
---@param keepdim boolean
---@param dtype torch.dtype?
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.native_norm(self, p, dim, keepdim, dtype, options) end
Tensor.native_norm = torch.native_norm
---@overload fun(self: torch.Tensor, other: torch.Scalar, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.ne(self, other, options) end
Tensor.ne = torch.ne
---@overload fun(self: torch.Tensor, other: torch.Scalar): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return torch.Tensor
function torch.ne_(self, other) end
Tensor.ne_ = torch.ne_
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.neg(self, options) end
Tensor.neg = torch.neg
---@param self torch.Tensor
---@return torch.Tensor
function torch.neg_(self) end
Tensor.neg_ = torch.neg_
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.negative(self, options) end
Tensor.negative = torch.negative
---@param self torch.Tensor
---@return torch.Tensor
function torch.negative_(self) end
Tensor.negative_ = torch.negative_
---@overload fun(self: torch.Tensor, padding: number, ...: integer): torch.Tensor
---@overload fun(self: torch.Tensor, options: {padding: number, output_size: integer[]?}): torch.Tensor
---@param self torch.Tensor
---@param padding number
---@param output_size? integer[]
---@return torch.Tensor
function torch.nested_to_padded_tensor(self, padding, output_size) end
Tensor.nested_to_padded_tensor = torch.nested_to_padded_tensor
---@overload fun(self: torch.Tensor, ...: integer|table): torch.Tensor
---@overload fun(self: torch.Tensor, size: integer[], options: {out: torch.Tensor}): torch.Tensor
---@param self torch.Tensor
---@param size integer[]
---@param options? torch.FactoryOptions
---@return torch.Tensor
function torch.new_empty(self, size, options) end
Tensor.new_empty = torch.new_empty
---@overload fun(self: torch.Tensor, size: integer[], ...: integer|table): torch.Tensor
---@overload fun(self: torch.Tensor, options: {size: integer[], stride: integer[], dtype: torch.dtype?, layout: torch.layout?, device: string?, pin_memory: boolean?, requires_grad: boolean?}): torch.Tensor
---@overload fun(self: torch.Tensor, size: integer[], stride: integer[], options: {out: torch.Tensor}): torch.Tensor
---@overload fun(self: torch.Tensor, options: {size: integer[], stride: integer[], out: torch.Tensor}): torch.Tensor
---@param self torch.Tensor
---@param size integer[]
---@param stride integer[]
---@param options? torch.FactoryOptions
---@return torch.Tensor
function torch.new_empty_strided(self, size, stride, options) end
Tensor.new_empty_strided = torch.new_empty_strided
---@overload fun(self: torch.Tensor, options: {size: integer[], fill_value: torch.Scalar, dtype: torch.dtype?, layout: torch.layout?, device: string?, pin_memory: boolean?, requires_grad: boolean?}): torch.Tensor
---@overload fun(self: torch.Tensor, size: integer[], fill_value: torch.Scalar, options: {out: torch.Tensor}): torch.Tensor
---@overload fun(self: torch.Tensor, options: {size: integer[], fill_value: torch.Scalar, out: torch.Tensor}): torch.Tensor
---@param self torch.Tensor
---@param size integer[]
---@param fill_value torch.Scalar
---@param options? torch.FactoryOptions
---@return torch.Tensor
function torch.new_full(self, size, fill_value, options) end
Tensor.new_full = torch.new_full
---@overload fun(self: torch.Tensor, ...: integer|table): torch.Tensor
---@overload fun(self: torch.Tensor, size: integer[], options: {out: torch.Tensor}): torch.Tensor
---@param self torch.Tensor
---@param size integer[]
---@param options? torch.FactoryOptions
---@return torch.Tensor
function torch.new_ones(self, size, options) end
Tensor.new_ones = torch.new_ones
---@overload fun(self: torch.Tensor, ...: integer|table): torch.Tensor
---@overload fun(self: torch.Tensor, size: integer[], options: {out: torch.Tensor}): torch.Tensor
---@param self torch.Tensor
---@param size integer[]
---@param options? torch.FactoryOptions
---@return torch.Tensor
function torch.new_zeros(self, size, options) end
Tensor.new_zeros = torch.new_zeros
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.nextafter(self, other, options) end
Tensor.nextafter = torch.nextafter
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return torch.Tensor
function torch.nextafter_(self, other) end
Tensor.nextafter_ = torch.nextafter_
---@overload fun(self: torch.Tensor, target: torch.Tensor, options: {weight: torch.Tensor?, reduction: integer?, ignore_index: integer?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param target torch.Tensor
---@param weight? torch.Tensor
---@param reduction? integer
---@param ignore_index? integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.nll_loss(self, target, weight, reduction, ignore_index, options) end
Tensor.nll_loss = torch.nll_loss
---@overload fun(self: torch.Tensor, target: torch.Tensor, options: {weight: torch.Tensor?, reduction: integer?, ignore_index: integer?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param target torch.Tensor
---@param weight? torch.Tensor
---@param reduction? integer
---@param ignore_index? integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.nll_loss2d(self, target, weight, reduction, ignore_index, options) end
Tensor.nll_loss2d = torch.nll_loss2d
---@overload fun(grad_output: torch.Tensor, self: torch.Tensor|number, target: torch.Tensor, weight: torch.Tensor?, options: {reduction: integer, ignore_index: integer, total_weight: torch.Tensor, grad_input: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param self torch.Tensor|number
---@param target torch.Tensor
---@param weight torch.Tensor?
---@param reduction integer
---@param ignore_index integer
---@param total_weight torch.Tensor
---@param options? {grad_input: torch.Tensor?}
---@return torch.Tensor
function torch.nll_loss2d_backward(grad_output, self, target, weight, reduction, ignore_index, total_weight, options) end
Tensor.nll_loss2d_backward = torch.nll_loss2d_backward
---@overload fun(self: torch.Tensor, target: torch.Tensor, weight: torch.Tensor?, options: {reduction: integer, ignore_index: integer, output: torch.Tensor?, total_weight: torch.Tensor?}): torch.Tensor, torch.Tensor
---@param self torch.Tensor
---@param target torch.Tensor
---@param weight torch.Tensor?
---@param reduction integer
---@param ignore_index integer
---@param options? {output: torch.Tensor?, total_weight: torch.Tensor?}
---@return torch.Tensor output
---@return torch.Tensor total_weight
function torch.nll_loss2d_forward(self, target, weight, reduction, ignore_index, options) end
Tensor.nll_loss2d_forward = torch.nll_loss2d_forward
---@overload fun(grad_output: torch.Tensor, self: torch.Tensor|number, target: torch.Tensor, weight: torch.Tensor?, options: {reduction: integer, ignore_index: integer, total_weight: torch.Tensor, grad_input: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param self torch.Tensor|number
---@param target torch.Tensor
---@param weight torch.Tensor?
---@param reduction integer
---@param ignore_index integer
---@param total_weight torch.Tensor
---@param options? {grad_input: torch.Tensor?}
---@return torch.Tensor
function torch.nll_loss_backward(grad_output, self, target, weight, reduction, ignore_index, total_weight, options) end
Tensor.nll_loss_backward = torch.nll_loss_backward
---@overload fun(self: torch.Tensor, target: torch.Tensor, weight: torch.Tensor?, options: {reduction: integer, ignore_index: integer, output: torch.Tensor?, total_weight: torch.Tensor?}): torch.Tensor, torch.Tensor
---@param self torch.Tensor
---@param target torch.Tensor
---@param weight torch.Tensor?
---@param reduction integer
---@param ignore_index integer
---@param options? {output: torch.Tensor?, total_weight: torch.Tensor?}
---@return torch.Tensor output
---@return torch.Tensor total_weight
function torch.nll_loss_forward(self, target, weight, reduction, ignore_index, options) end
Tensor.nll_loss_forward = torch.nll_loss_forward
---@overload fun(self: torch.Tensor, target: torch.Tensor, options: {weight: torch.Tensor?, reduction: integer?, ignore_index: integer?}): torch.Tensor
---@param self torch.Tensor
---@param target torch.Tensor
---@param weight? torch.Tensor
---@param reduction? integer
---@param ignore_index? integer
---@return torch.Tensor
function torch.nll_loss_nd(self, target, weight, reduction, ignore_index) end
Tensor.nll_loss_nd = torch.nll_loss_nd
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.nonzero(self, options) end
Tensor.nonzero = torch.nonzero
---@param self torch.Tensor
---@return torch.Tensor[]
function torch.nonzero_numpy(self) end
Tensor.nonzero_numpy = torch.nonzero_numpy
---@param self torch.Tensor
---@param options {size: integer, fill_value: integer?, out: torch.Tensor?}
---@return torch.Tensor
function torch.nonzero_static(self, options) end
Tensor.nonzero_static = torch.nonzero_static
---@overload fun(self: torch.Tensor, options: {p: torch.Scalar?, dim: integer|integer[], keepdim: boolean, dtype: torch.dtype, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Tensor, p: torch.Scalar?, dim: integer|integer[], keepdim: boolean?, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {p: torch.Scalar?, dim: integer|integer[], keepdim: boolean?, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Tensor, p: torch.Scalar?, options: {dtype: torch.dtype, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Tensor, options: {p: torch.Scalar?, dtype: torch.dtype, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Tensor, p: torch.Scalar?, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {p: torch.Scalar?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param p torch.Scalar?
---@param dim integer|integer[]
---@param keepdim boolean
---@param options {dtype: torch.dtype, out: torch.Tensor?}
---@return torch.Tensor
function torch.norm(self, p, dim, keepdim, options) end
Tensor.norm = torch.norm
---@overload fun(v: torch.Tensor, options: {pow: integer?, dim: integer?}): torch.Tensor
---@param v torch.Tensor
---@param pow? integer
---@param dim? integer
---@return torch.Tensor
function torch.norm_except_dim(v, pow, dim) end
Tensor.norm_except_dim = torch.norm_except_dim
---@overload fun(mean: number, std: number, ...: integer|table): torch.Tensor
---@overload fun(mean: number, std: number, size: integer[], options: {out: torch.Tensor}): torch.Tensor
---@overload fun(self: torch.Tensor, mean: number?, std: number?, options: {out: torch.Tensor}): torch.Tensor
---@overload fun(self: torch.Tensor, options: {mean: number?, std: number?, out: torch.Tensor}): torch.Tensor
---@overload fun(mean: torch.Tensor, std: number?, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(mean: torch.Tensor, options: {std: number?, out: torch.Tensor?}): torch.Tensor
---@overload fun(mean: number, std: torch.Tensor, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(mean: torch.Tensor, std: torch.Tensor, options: {out: torch.Tensor?}?): torch.Tensor
---@param mean number
---@param std number
---@param size integer[]
---@param options? torch.FactoryOptions
---@return torch.Tensor
function torch.normal(mean, std, size, options) end
Tensor.normal = torch.normal
---@overload fun(self: torch.Tensor, options: {mean: number?, std: number?}): torch.Tensor
---@param self torch.Tensor
---@param mean? number
---@param std? number
---@return torch.Tensor
function torch.normal_(self, mean, std) end
Tensor.normal_ = torch.normal_
---@overload fun(self: torch.Tensor, options: {mean: number?, std: number?}): torch.Tensor
---@param self torch.Tensor
---@param mean? number
---@param std? number
---@return torch.Tensor
function torch.normal_functional(self, mean, std) end
Tensor.normal_functional = torch.normal_functional
---@overload fun(self: torch.Tensor, other: torch.Scalar, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.not_equal(self, other, options) end
Tensor.not_equal = torch.not_equal
---@overload fun(self: torch.Tensor, other: torch.Scalar): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return torch.Tensor
function torch.not_equal_(self, other) end
Tensor.not_equal_ = torch.not_equal_
---@overload fun(self: torch.Tensor, options: {dim: integer|integer[], keepdim: boolean?, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Tensor, keepdim: boolean?, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {keepdim: boolean?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param dim integer|integer[]
---@param keepdim? boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.nuclear_norm(self, dim, keepdim, options) end
Tensor.nuclear_norm = torch.nuclear_norm
---@param self torch.Tensor
---@return torch.Tensor
function torch.numpy_T(self) end
Tensor.numpy_T = torch.numpy_T
---@overload fun(self: torch.Tensor, options: {num_classes: integer?}): torch.Tensor
---@param self torch.Tensor
---@param num_classes? integer
---@return torch.Tensor
function torch.one_hot(self, num_classes) end
Tensor.one_hot = torch.one_hot
---@overload fun(...: integer|table): torch.Tensor
---@overload fun(size: integer[], options: {out: torch.Tensor}): torch.Tensor
---@param size integer[]
---@param options? torch.FactoryOptions
---@return torch.Tensor
function torch.ones(size, options) end
---@overload fun(self: torch.Tensor, options: {memory_format: torch.memory_format?, out: torch.Tensor}): torch.Tensor
---@param self torch.Tensor
---@param options? {dtype: torch.dtype?, layout: torch.layout?, device: string?, pin_memory: boolean?, requires_grad: boolean?, memory_format: torch.memory_format?}
---@return torch.Tensor
function torch.ones_like(self, options) end
Tensor.ones_like = torch.ones_like
---@param self torch.Tensor
---@param input2 torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.orgqr(self, input2, options) end
Tensor.orgqr = torch.orgqr
---@overload fun(self: torch.Tensor, input2: torch.Tensor, input3: torch.Tensor, options: {left: boolean?, transpose: boolean?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param input2 torch.Tensor
---@param input3 torch.Tensor
---@param left? boolean
---@param transpose? boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.ormqr(self, input2, input3, left, transpose, options) end
Tensor.ormqr = torch.ormqr
---@param self torch.Tensor
---@param vec2 torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.outer(self, vec2, options) end
Tensor.outer = torch.outer
---@param self torch.Tensor
---@return integer
function torch.output_nr(self) end
Tensor.output_nr = torch.output_nr
---@overload fun(self: torch.Tensor, options: {pad: integer[], mode: string?, value: number?}): torch.Tensor
---@param self torch.Tensor
---@param pad integer[]
---@param mode? string
---@param value? number
---@return torch.Tensor
function torch.pad(self, pad, mode, value) end
Tensor.pad = torch.pad
---@overload fun(sequences: torch.Tensor[], options: {batch_first: boolean?, padding_value: number?, padding_side: string?}): torch.Tensor
---@param sequences torch.Tensor[]
---@param batch_first? boolean
---@param padding_value? number
---@param padding_side? string
---@return torch.Tensor
function torch.pad_sequence(sequences, batch_first, padding_value, padding_side) end
---@overload fun(x1: torch.Tensor, x2: torch.Tensor, options: {p: number?, eps: number?, keepdim: boolean?}): torch.Tensor
---@param x1 torch.Tensor
---@param x2 torch.Tensor
---@param p? number
---@param eps? number
---@param keepdim? boolean
---@return torch.Tensor
function torch.pairwise_distance(x1, x2, p, eps, keepdim) end
Tensor.pairwise_distance = torch.pairwise_distance
---@overload fun(self: torch.Tensor, options: {p: number?}): torch.Tensor
---@param self torch.Tensor
---@param p? number
---@return torch.Tensor
function torch.pdist(self, p) end
Tensor.pdist = torch.pdist
---@overload fun(self: torch.Tensor, ...: integer): torch.Tensor
---@param self torch.Tensor
---@param dims integer[]
---@return torch.Tensor
function torch.permute(self, dims) end
Tensor.permute = torch.permute
---@overload fun(self: torch.Tensor, ...: integer|table): torch.Tensor
---@param self torch.Tensor
---@param dims integer[]
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.permute_copy(self, dims, options) end
Tensor.permute_copy = torch.permute_copy
---@overload fun(self: torch.Tensor, options: {device: string?}): torch.Tensor
---@param self torch.Tensor
---@param device? string
---@return torch.Tensor
function torch.pin_memory(self, device) end
Tensor.pin_memory = torch.pin_memory
---@overload fun(self: torch.Tensor, options: {rcond: number?}): torch.Tensor
---@param self torch.Tensor
---@param rcond? number
---@return torch.Tensor
function torch.pinverse(self, rcond) end
Tensor.pinverse = torch.pinverse
---@overload fun(self: torch.Tensor, options: {upscale_factor: integer, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param upscale_factor integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.pixel_shuffle(self, upscale_factor, options) end
Tensor.pixel_shuffle = torch.pixel_shuffle
---@overload fun(self: torch.Tensor, options: {downscale_factor: integer, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param downscale_factor integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.pixel_unshuffle(self, downscale_factor, options) end
Tensor.pixel_unshuffle = torch.pixel_unshuffle
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.poisson(self, options) end
Tensor.poisson = torch.poisson
---@overload fun(input: torch.Tensor, target: torch.Tensor, options: {log_input: boolean, full: boolean, eps: number, reduction: integer}): torch.Tensor
---@param input torch.Tensor
---@param target torch.Tensor
---@param log_input boolean
---@param full boolean
---@param eps number
---@param reduction integer
---@return torch.Tensor
function torch.poisson_nll_loss(input, target, log_input, full, eps, reduction) end
Tensor.poisson_nll_loss = torch.poisson_nll_loss
---@param abs torch.Tensor
---@param angle torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.polar(abs, angle, options) end
Tensor.polar = torch.polar
---@param n integer
---@param self torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.polygamma(n, self, options) end
---@overload fun(self: torch.Tensor, options: {n: integer}): torch.Tensor
---@param self torch.Tensor
---@param n integer
---@return torch.Tensor
function torch.polygamma_(self, n) end
Tensor.polygamma_ = torch.polygamma_
---@param self torch.Tensor
---@return torch.Tensor
function torch.positive(self) end
Tensor.positive = torch.positive
---@overload fun(self: torch.Scalar, exponent: torch.Tensor|number, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, exponent: torch.Scalar, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {exponent: torch.Scalar, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param exponent torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.pow(self, exponent, options) end
Tensor.pow = torch.pow
---@overload fun(self: torch.Tensor, exponent: torch.Scalar): torch.Tensor
---@overload fun(self: torch.Tensor, options: {exponent: torch.Scalar}): torch.Tensor
---@param self torch.Tensor
---@param exponent torch.Tensor|number
---@return torch.Tensor
function torch.pow_(self, exponent) end
Tensor.pow_ = torch.pow_
---@param self torch.Tensor
---@param weight torch.Tensor
---@return torch.Tensor
function torch.prelu(self, weight) end
Tensor.prelu = torch.prelu
---@overload fun(self: torch.Tensor, options: {dim: integer, keepdim: boolean?, dtype: torch.dtype?, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Tensor, options: {dtype: torch.dtype?, out: torch.Tensor?}?): torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@param keepdim? boolean
---@param options? {dtype: torch.dtype?, out: torch.Tensor?}
---@return torch.Tensor
function torch.prod(self, dim, keepdim, options) end
Tensor.prod = torch.prod
---@param type1 torch.dtype
---@param type2 torch.dtype
---@return torch.dtype
function torch.promote_types(type1, type2) end
---@overload fun(self: torch.Tensor, index: torch.Tensor, source: torch.Tensor, options: {accumulate: boolean?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param index torch.Tensor
---@param source torch.Tensor
---@param accumulate? boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.put(self, index, source, accumulate, options) end
Tensor.put = torch.put
---@overload fun(self: torch.Tensor, index: torch.Tensor, source: torch.Tensor, options: {accumulate: boolean?}): torch.Tensor
---@param self torch.Tensor
---@param index torch.Tensor
---@param source torch.Tensor
---@param accumulate? boolean
---@return torch.Tensor
function torch.put_(self, index, source, accumulate) end
Tensor.put_ = torch.put_
---@param self torch.Tensor
---@return integer
function torch.q_per_channel_axis(self) end
Tensor.q_per_channel_axis = torch.q_per_channel_axis
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.q_per_channel_scales(self, options) end
Tensor.q_per_channel_scales = torch.q_per_channel_scales
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.q_per_channel_zero_points(self, options) end
Tensor.q_per_channel_zero_points = torch.q_per_channel_zero_points
---@param self torch.Tensor
---@return number
function torch.q_scale(self) end
Tensor.q_scale = torch.q_scale
---@param self torch.Tensor
---@return integer
function torch.q_zero_point(self) end
Tensor.q_zero_point = torch.q_zero_point
---@overload fun(self: torch.Tensor, options: {some: boolean?, Q: torch.Tensor?, R: torch.Tensor?}): torch.Tensor, torch.Tensor
---@param self torch.Tensor
---@param some? boolean
---@param options? {Q: torch.Tensor?, R: torch.Tensor?}
---@return torch.Tensor Q
---@return torch.Tensor R
function torch.qr(self, some, options) end
Tensor.qr = torch.qr
---@overload fun(self: torch.Tensor, q: torch.Tensor, options: {dim: integer?, keepdim: boolean?, interpolation: string?, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Tensor, q: number, dim: integer?, keepdim: boolean?, options: {interpolation: string?, out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {q: number, dim: integer?, keepdim: boolean?, interpolation: string?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param q torch.Tensor
---@param dim? integer
---@param keepdim? boolean
---@param options? {interpolation: string?, out: torch.Tensor?}
---@return torch.Tensor
function torch.quantile(self, q, dim, keepdim, options) end
Tensor.quantile = torch.quantile
---@overload fun(self: torch.Tensor, scales: torch.Tensor, zero_points: torch.Tensor, options: {axis: integer, dtype: torch.dtype, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param scales torch.Tensor
---@param zero_points torch.Tensor
---@param axis integer
---@param dtype torch.dtype
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.quantize_per_channel(self, scales, zero_points, axis, dtype, options) end
Tensor.quantize_per_channel = torch.quantize_per_channel
---@overload fun(self: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, options: {dtype: torch.dtype, out: torch.Tensor?}): torch.Tensor
---@overload fun(tensors: torch.Tensor[], scales: torch.Tensor, zero_points: torch.Tensor, dtype: torch.dtype, options: {out: torch.Tensor[]?}?): torch.Tensor[]
---@overload fun(tensors: torch.Tensor[], scales: torch.Tensor, zero_points: torch.Tensor, options: {dtype: torch.dtype, out: torch.Tensor[]?}): torch.Tensor[]
---@overload fun(self: torch.Tensor, scale: number, zero_point: integer, dtype: torch.dtype, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {scale: number, zero_point: integer, dtype: torch.dtype, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param scale torch.Tensor
---@param zero_point torch.Tensor
---@param dtype torch.dtype
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.quantize_per_tensor(self, scale, zero_point, dtype, options) end
Tensor.quantize_per_tensor = torch.quantize_per_tensor
---@overload fun(self: torch.Tensor, options: {dtype: torch.dtype, reduce_range: boolean, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param dtype torch.dtype
---@param reduce_range boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.quantize_per_tensor_dynamic(self, dtype, reduce_range, options) end
Tensor.quantize_per_tensor_dynamic = torch.quantize_per_tensor_dynamic
---@overload fun(input: torch.Tensor, weight: torch.Tensor?, bias: torch.Tensor?, mean: torch.Tensor, var: torch.Tensor, options: {eps: number, output_scale: number, output_zero_point: integer, out: torch.Tensor?}): torch.Tensor
---@param input torch.Tensor
---@param weight torch.Tensor?
---@param bias torch.Tensor?
---@param mean torch.Tensor
---@param var torch.Tensor
---@param eps number
---@param output_scale number
---@param output_zero_point integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.quantized_batch_norm(input, weight, bias, mean, var, eps, output_scale, output_zero_point, options) end
Tensor.quantized_batch_norm = torch.quantized_batch_norm
---@overload fun(data: torch.Tensor, batch_sizes: torch.Tensor, hx: torch.Tensor, params: torch.Tensor[], options: {has_biases: boolean, num_layers: integer, dropout: number, train: boolean, bidirectional: boolean}): torch.Tensor, torch.Tensor
---@overload fun(input: torch.Tensor, hx: torch.Tensor, params: torch.Tensor[], has_biases: boolean, num_layers: integer, dropout: number, train: boolean, bidirectional: boolean, batch_first: boolean): torch.Tensor, torch.Tensor
---@overload fun(input: torch.Tensor, hx: torch.Tensor, params: torch.Tensor[], options: {has_biases: boolean, num_layers: integer, dropout: number, train: boolean, bidirectional: boolean, batch_first: boolean}): torch.Tensor, torch.Tensor
---@param data torch.Tensor
---@param batch_sizes torch.Tensor
---@param hx torch.Tensor
---@param params torch.Tensor[]
---@param has_biases boolean
---@param num_layers integer
---@param dropout number
---@param train boolean
---@param bidirectional boolean
---@return torch.Tensor
---@return torch.Tensor
function torch.quantized_gru(data, batch_sizes, hx, params, has_biases, num_layers, dropout, train, bidirectional) end
Tensor.quantized_gru = torch.quantized_gru
---@overload fun(input: torch.Tensor, hx: torch.Tensor, w_ih: torch.Tensor, w_hh: torch.Tensor, b_ih: torch.Tensor, b_hh: torch.Tensor, packed_ih: torch.Tensor, packed_hh: torch.Tensor, col_offsets_ih: torch.Tensor, col_offsets_hh: torch.Tensor, options: {scale_ih: torch.Scalar, scale_hh: torch.Scalar, zero_point_ih: torch.Scalar, zero_point_hh: torch.Scalar}): torch.Tensor
---@param input torch.Tensor
---@param hx torch.Tensor
---@param w_ih torch.Tensor
---@param w_hh torch.Tensor
---@param b_ih torch.Tensor
---@param b_hh torch.Tensor
---@param packed_ih torch.Tensor
---@param packed_hh torch.Tensor
---@param col_offsets_ih torch.Tensor
---@param col_offsets_hh torch.Tensor
---@param scale_ih torch.Scalar
---@param scale_hh torch.Scalar
---@param zero_point_ih torch.Scalar
---@param zero_point_hh torch.Scalar
---@return torch.Tensor
function torch.quantized_gru_cell(input, hx, w_ih, w_hh, b_ih, b_hh, packed_ih, packed_hh, col_offsets_ih, col_offsets_hh, scale_ih, scale_hh, zero_point_ih, zero_point_hh) end
Tensor.quantized_gru_cell = torch.quantized_gru_cell
---@overload fun(data: torch.Tensor, batch_sizes: torch.Tensor, hx: torch.Tensor[], params: torch.Tensor[], options: {has_biases: boolean, num_layers: integer, dropout: number, train: boolean, bidirectional: boolean, dtype: torch.dtype?, use_dynamic: boolean?}): torch.Tensor, torch.Tensor, torch.Tensor
---@overload fun(input: torch.Tensor, hx: torch.Tensor[], params: torch.Tensor[], has_biases: boolean, num_layers: integer, dropout: number, train: boolean, bidirectional: boolean, batch_first: boolean, options: {dtype: torch.dtype?, use_dynamic: boolean?}?): torch.Tensor, torch.Tensor, torch.Tensor
---@overload fun(input: torch.Tensor, hx: torch.Tensor[], params: torch.Tensor[], options: {has_biases: boolean, num_layers: integer, dropout: number, train: boolean, bidirectional: boolean, batch_first: boolean, dtype: torch.dtype?, use_dynamic: boolean?}): torch.Tensor, torch.Tensor, torch.Tensor
---@param data torch.Tensor
---@param batch_sizes torch.Tensor
---@param hx torch.Tensor[]
---@param params torch.Tensor[]
---@param has_biases boolean
---@param num_layers integer
---@param dropout number
---@param train boolean
---@param bidirectional boolean
---@param options? {dtype: torch.dtype?, use_dynamic: boolean?}
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch.quantized_lstm(data, batch_sizes, hx, params, has_biases, num_layers, dropout, train, bidirectional, options) end
Tensor.quantized_lstm = torch.quantized_lstm
---@overload fun(input: torch.Tensor, hx: torch.Tensor[], w_ih: torch.Tensor, w_hh: torch.Tensor, b_ih: torch.Tensor, b_hh: torch.Tensor, packed_ih: torch.Tensor, packed_hh: torch.Tensor, col_offsets_ih: torch.Tensor, col_offsets_hh: torch.Tensor, options: {scale_ih: torch.Scalar, scale_hh: torch.Scalar, zero_point_ih: torch.Scalar, zero_point_hh: torch.Scalar}): torch.Tensor, torch.Tensor
---@param input torch.Tensor
---@param hx torch.Tensor[]
---@param w_ih torch.Tensor
---@param w_hh torch.Tensor
---@param b_ih torch.Tensor
---@param b_hh torch.Tensor
---@param packed_ih torch.Tensor
---@param packed_hh torch.Tensor
---@param col_offsets_ih torch.Tensor
---@param col_offsets_hh torch.Tensor
---@param scale_ih torch.Scalar
---@param scale_hh torch.Scalar
---@param zero_point_ih torch.Scalar
---@param zero_point_hh torch.Scalar
---@return torch.Tensor
---@return torch.Tensor
function torch.quantized_lstm_cell(input, hx, w_ih, w_hh, b_ih, b_hh, packed_ih, packed_hh, col_offsets_ih, col_offsets_hh, scale_ih, scale_hh, zero_point_ih, zero_point_hh) end
Tensor.quantized_lstm_cell = torch.quantized_lstm_cell
---@overload fun(self: torch.Tensor, options: {kernel_size: integer|integer[], stride: (integer|integer[])?, padding: (integer|integer[])?, dilation: (integer|integer[])?, ceil_mode: boolean?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param kernel_size integer|integer[]
---@param stride? integer|integer[]
---@param padding? integer|integer[]
---@param dilation? integer|integer[]
---@param ceil_mode? boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.quantized_max_pool1d(self, kernel_size, stride, padding, dilation, ceil_mode, options) end
Tensor.quantized_max_pool1d = torch.quantized_max_pool1d
---@overload fun(self: torch.Tensor, options: {kernel_size: integer|integer[], stride: (integer|integer[])?, padding: (integer|integer[])?, dilation: (integer|integer[])?, ceil_mode: boolean?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param kernel_size integer|integer[]
---@param stride? integer|integer[]
---@param padding? integer|integer[]
---@param dilation? integer|integer[]
---@param ceil_mode? boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.quantized_max_pool2d(self, kernel_size, stride, padding, dilation, ceil_mode, options) end
Tensor.quantized_max_pool2d = torch.quantized_max_pool2d
---@overload fun(self: torch.Tensor, options: {kernel_size: integer|integer[], stride: (integer|integer[])?, padding: (integer|integer[])?, dilation: (integer|integer[])?, ceil_mode: boolean?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param kernel_size integer|integer[]
---@param stride? integer|integer[]
---@param padding? integer|integer[]
---@param dilation? integer|integer[]
---@param ceil_mode? boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.quantized_max_pool3d(self, kernel_size, stride, padding, dilation, ceil_mode, options) end
Tensor.quantized_max_pool3d = torch.quantized_max_pool3d
---@overload fun(input: torch.Tensor, hx: torch.Tensor, w_ih: torch.Tensor, w_hh: torch.Tensor, b_ih: torch.Tensor, b_hh: torch.Tensor, packed_ih: torch.Tensor, packed_hh: torch.Tensor, col_offsets_ih: torch.Tensor, col_offsets_hh: torch.Tensor, options: {scale_ih: torch.Scalar, scale_hh: torch.Scalar, zero_point_ih: torch.Scalar, zero_point_hh: torch.Scalar}): torch.Tensor
---@param input torch.Tensor
---@param hx torch.Tensor
---@param w_ih torch.Tensor
---@param w_hh torch.Tensor
---@param b_ih torch.Tensor
---@param b_hh torch.Tensor
---@param packed_ih torch.Tensor
---@param packed_hh torch.Tensor
---@param col_offsets_ih torch.Tensor
---@param col_offsets_hh torch.Tensor
---@param scale_ih torch.Scalar
---@param scale_hh torch.Scalar
---@param zero_point_ih torch.Scalar
---@param zero_point_hh torch.Scalar
---@return torch.Tensor
function torch.quantized_rnn_relu_cell(input, hx, w_ih, w_hh, b_ih, b_hh, packed_ih, packed_hh, col_offsets_ih, col_offsets_hh, scale_ih, scale_hh, zero_point_ih, zero_point_hh) end
Tensor.quantized_rnn_relu_cell = torch.quantized_rnn_relu_cell
---@overload fun(input: torch.Tensor, hx: torch.Tensor, w_ih: torch.Tensor, w_hh: torch.Tensor, b_ih: torch.Tensor, b_hh: torch.Tensor, packed_ih: torch.Tensor, packed_hh: torch.Tensor, col_offsets_ih: torch.Tensor, col_offsets_hh: torch.Tensor, options: {scale_ih: torch.Scalar, scale_hh: torch.Scalar, zero_point_ih: torch.Scalar, zero_point_hh: torch.Scalar}): torch.Tensor
---@param input torch.Tensor
---@param hx torch.Tensor
---@param w_ih torch.Tensor
---@param w_hh torch.Tensor
---@param b_ih torch.Tensor
---@param b_hh torch.Tensor
---@param packed_ih torch.Tensor
---@param packed_hh torch.Tensor
---@param col_offsets_ih torch.Tensor
---@param col_offsets_hh torch.Tensor
---@param scale_ih torch.Scalar
---@param scale_hh torch.Scalar
---@param zero_point_ih torch.Scalar
---@param zero_point_hh torch.Scalar
---@return torch.Tensor
function torch.quantized_rnn_tanh_cell(input, hx, w_ih, w_hh, b_ih, b_hh, packed_ih, packed_hh, col_offsets_ih, col_offsets_hh, scale_ih, scale_hh, zero_point_ih, zero_point_hh) end
Tensor.quantized_rnn_tanh_cell = torch.quantized_rnn_tanh_cell
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.rad2deg(self, options) end
Tensor.rad2deg = torch.rad2deg
---@param self torch.Tensor
---@return torch.Tensor
function torch.rad2deg_(self) end
Tensor.rad2deg_ = torch.rad2deg_
---@overload fun(...: integer|table): torch.Tensor
---@overload fun(size: integer[], options: {out: torch.Tensor}): torch.Tensor
---@param size integer[]
---@param options? torch.FactoryOptions
---@return torch.Tensor
function torch.rand(size, options) end
---@overload fun(self: torch.Tensor, options: {memory_format: torch.memory_format?, out: torch.Tensor}): torch.Tensor
---@param self torch.Tensor
---@param options? {dtype: torch.dtype?, layout: torch.layout?, device: string?, pin_memory: boolean?, requires_grad: boolean?, memory_format: torch.memory_format?}
---@return torch.Tensor
function torch.rand_like(self, options) end
Tensor.rand_like = torch.rand_like
---@overload fun(low: integer, high: integer, ...: integer|table): torch.Tensor
---@overload fun(high: integer, size: integer[], options: torch.FactoryOptions?): torch.Tensor
---@overload fun(high: integer, ...: integer|table): torch.Tensor
---@overload fun(low: integer, high: integer, size: integer[], options: {out: torch.Tensor}): torch.Tensor
---@overload fun(high: integer, size: integer[], options: {out: torch.Tensor}): torch.Tensor
---@param low integer
---@param high integer
---@param size integer[]
---@param options? torch.FactoryOptions
---@return torch.Tensor
function torch.randint(low, high, size, options) end
---@overload fun(self: torch.Tensor, options: {low: integer, high: integer, dtype: torch.dtype?, layout: torch.layout?, device: string?, pin_memory: boolean?, requires_grad: boolean?, memory_format: torch.memory_format?}): torch.Tensor
---@overload fun(self: torch.Tensor, high: integer, options: {dtype: torch.dtype?, layout: torch.layout?, device: string?, pin_memory: boolean?, requires_grad: boolean?, memory_format: torch.memory_format?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {high: integer, dtype: torch.dtype?, layout: torch.layout?, device: string?, pin_memory: boolean?, requires_grad: boolean?, memory_format: torch.memory_format?}): torch.Tensor
---@overload fun(self: torch.Tensor, low: integer, high: integer, options: {memory_format: torch.memory_format?, out: torch.Tensor}): torch.Tensor
---@overload fun(self: torch.Tensor, options: {low: integer, high: integer, memory_format: torch.memory_format?, out: torch.Tensor}): torch.Tensor
---@overload fun(self: torch.Tensor, high: integer, options: {memory_format: torch.memory_format?, out: torch.Tensor}): torch.Tensor
---@overload fun(self: torch.Tensor, options: {high: integer, memory_format: torch.memory_format?, out: torch.Tensor}): torch.Tensor
---@overload fun(self: torch.Tensor, high: torch.Tensor, options: {dtype: torch.dtype?, layout: torch.layout?, device: string?, pin_memory: boolean?, requires_grad: boolean?, memory_format: torch.memory_format?}?): torch.Tensor
---@overload fun(self: torch.Tensor, high: torch.Tensor, options: {memory_format: torch.memory_format?, out: torch.Tensor}): torch.Tensor
---@param self torch.Tensor
---@param low integer
---@param high integer
---@param options? {dtype: torch.dtype?, layout: torch.layout?, device: string?, pin_memory: boolean?, requires_grad: boolean?, memory_format: torch.memory_format?}
---@return torch.Tensor
function torch.randint_like(self, low, high, options) end
Tensor.randint_like = torch.randint_like
---@overload fun(...: integer|table): torch.Tensor
---@overload fun(size: integer[], options: {out: torch.Tensor}): torch.Tensor
---@param size integer[]
---@param options? torch.FactoryOptions
---@return torch.Tensor
function torch.randn(size, options) end
---@overload fun(self: torch.Tensor, options: {memory_format: torch.memory_format?, out: torch.Tensor}): torch.Tensor
---@param self torch.Tensor
---@param options? {dtype: torch.dtype?, layout: torch.layout?, device: string?, pin_memory: boolean?, requires_grad: boolean?, memory_format: torch.memory_format?}
---@return torch.Tensor
function torch.randn_like(self, options) end
Tensor.randn_like = torch.randn_like
---@overload fun(self: torch.Tensor, options: {from: integer, to: integer?, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Tensor, to: integer, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {to: integer, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Tensor, options: {out: torch.Tensor?}?): torch.Tensor
---@param self torch.Tensor
---@param from integer
---@param to integer?
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.random(self, from, to, options) end
Tensor.random = torch.random
---@overload fun(self: torch.Tensor, options: {from: integer, to: integer?}): torch.Tensor
---@overload fun(self: torch.Tensor, to: integer): torch.Tensor
---@overload fun(self: torch.Tensor, options: {to: integer}): torch.Tensor
---@overload fun(self: torch.Tensor): torch.Tensor
---@param self torch.Tensor
---@param from integer
---@param to integer?
---@return torch.Tensor
function torch.random_(self, from, to) end
Tensor.random_ = torch.random_
---@overload fun(n: integer, options: {out: torch.Tensor}): torch.Tensor
---@param n integer
---@param options? torch.FactoryOptions
---@return torch.Tensor
function torch.randperm(n, options) end
---@overload fun(start: torch.Scalar, end_: torch.Scalar, options: {step: torch.Scalar?, dtype: torch.dtype?, layout: torch.layout?, device: string?, pin_memory: boolean?, requires_grad: boolean?}): torch.Tensor
---@overload fun(start: torch.Scalar, end_: torch.Scalar, options: torch.FactoryOptions?): torch.Tensor
---@overload fun(start: torch.Scalar, end_: torch.Scalar, step: torch.Scalar?, options: {out: torch.Tensor}): torch.Tensor
---@overload fun(start: torch.Scalar, end_: torch.Scalar, options: {step: torch.Scalar?, out: torch.Tensor}): torch.Tensor
---@overload fun(start: torch.Scalar, end_: torch.Scalar, options: {out: torch.Tensor}): torch.Tensor
---@param start torch.Scalar
---@param end_ torch.Scalar
---@param step? torch.Scalar
---@param options? torch.FactoryOptions
---@return torch.Tensor
function torch.range(start, end_, step, options) end
---@param self torch.Tensor
---@return torch.Tensor
function torch.ravel(self) end
Tensor.ravel = torch.ravel
---@param self torch.Tensor
---@return torch.Tensor
function torch.real(self) end
Tensor.real = torch.real
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.reciprocal(self, options) end
Tensor.reciprocal = torch.reciprocal
---@param self torch.Tensor
---@return torch.Tensor
function torch.reciprocal_(self) end
Tensor.reciprocal_ = torch.reciprocal_
---@overload fun(self: torch.Tensor, options: {padding: integer|integer[], out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param padding integer|integer[]
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.reflection_pad1d(self, padding, options) end
Tensor.reflection_pad1d = torch.reflection_pad1d
---@overload fun(grad_output: torch.Tensor, self: torch.Tensor|number, options: {padding: integer|integer[], grad_input: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param self torch.Tensor|number
---@param padding integer|integer[]
---@param options? {grad_input: torch.Tensor?}
---@return torch.Tensor
function torch.reflection_pad1d_backward(grad_output, self, padding, options) end
Tensor.reflection_pad1d_backward = torch.reflection_pad1d_backward
---@overload fun(self: torch.Tensor, options: {padding: integer|integer[], out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param padding integer|integer[]
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.reflection_pad2d(self, padding, options) end
Tensor.reflection_pad2d = torch.reflection_pad2d
---@overload fun(grad_output: torch.Tensor, self: torch.Tensor|number, options: {padding: integer|integer[], grad_input: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param self torch.Tensor|number
---@param padding integer|integer[]
---@param options? {grad_input: torch.Tensor?}
---@return torch.Tensor
function torch.reflection_pad2d_backward(grad_output, self, padding, options) end
Tensor.reflection_pad2d_backward = torch.reflection_pad2d_backward
---@overload fun(self: torch.Tensor, options: {padding: integer|integer[], out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param padding integer|integer[]
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.reflection_pad3d(self, padding, options) end
Tensor.reflection_pad3d = torch.reflection_pad3d
---@overload fun(grad_output: torch.Tensor, self: torch.Tensor|number, options: {padding: integer|integer[], grad_input: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param self torch.Tensor|number
---@param padding integer|integer[]
---@param options? {grad_input: torch.Tensor?}
---@return torch.Tensor
function torch.reflection_pad3d_backward(grad_output, self, padding, options) end
Tensor.reflection_pad3d_backward = torch.reflection_pad3d_backward
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.relu(self, options) end
Tensor.relu = torch.relu
---@param self torch.Tensor
---@return torch.Tensor
function torch.relu6(self) end
Tensor.relu6 = torch.relu6
---@param self torch.Tensor
---@return torch.Tensor
function torch.relu6_(self) end
Tensor.relu6_ = torch.relu6_
---@param self torch.Tensor
---@return torch.Tensor
function torch.relu_(self) end
Tensor.relu_ = torch.relu_
---@overload fun(self: torch.Tensor, other: torch.Scalar, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Scalar, other: torch.Tensor|number, options: {out: torch.Tensor?}?): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.remainder(self, other, options) end
Tensor.remainder = torch.remainder
---@overload fun(self: torch.Tensor, other: torch.Scalar): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return torch.Tensor
function torch.remainder_(self, other) end
Tensor.remainder_ = torch.remainder_
---@param self torch.Tensor
---@return torch.Tensor
function torch.rename(self) end
Tensor.rename = torch.rename
---@param self torch.Tensor
---@return torch.Tensor
function torch.rename_(self) end
Tensor.rename_ = torch.rename_
---@overload fun(self: torch.Tensor, options: {p: torch.Scalar, dim: integer, maxnorm: torch.Scalar, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param p torch.Scalar
---@param dim integer
---@param maxnorm torch.Scalar
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.renorm(self, p, dim, maxnorm, options) end
Tensor.renorm = torch.renorm
---@overload fun(self: torch.Tensor, options: {p: torch.Scalar, dim: integer, maxnorm: torch.Scalar}): torch.Tensor
---@param self torch.Tensor
---@param p torch.Scalar
---@param dim integer
---@param maxnorm torch.Scalar
---@return torch.Tensor
function torch.renorm_(self, p, dim, maxnorm) end
Tensor.renorm_ = torch.renorm_
---@overload fun(self: torch.Tensor, ...: integer|table): torch.Tensor
---@param self torch.Tensor
---@param repeats integer[]
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
torch["repeat"] = function(self, repeats, options) end
Tensor["repeat"] = torch["repeat"]
---@overload fun(self: torch.Tensor, repeats: torch.Tensor, options: {dim: integer?, output_size: integer?}): torch.Tensor
---@overload fun(self: torch.Tensor, repeats: integer, dim: integer?, options: {output_size: integer?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {repeats: integer, dim: integer?, output_size: integer?}): torch.Tensor
---@overload fun(repeats: torch.Tensor, options: {output_size: integer?, out: torch.Tensor?}?): torch.Tensor
---@param self torch.Tensor
---@param repeats torch.Tensor
---@param dim? integer
---@param options? {output_size: integer?}
---@return torch.Tensor
function torch.repeat_interleave(self, repeats, dim, options) end
Tensor.repeat_interleave = torch.repeat_interleave
---@overload fun(self: torch.Tensor, options: {padding: integer|integer[], out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param padding integer|integer[]
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.replication_pad1d(self, padding, options) end
Tensor.replication_pad1d = torch.replication_pad1d
---@overload fun(grad_output: torch.Tensor, self: torch.Tensor|number, options: {padding: integer|integer[], grad_input: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param self torch.Tensor|number
---@param padding integer|integer[]
---@param options? {grad_input: torch.Tensor?}
---@return torch.Tensor
function torch.replication_pad1d_backward(grad_output, self, padding, options) end
Tensor.replication_pad1d_backward = torch.replication_pad1d_backward
---@overload fun(self: torch.Tensor, options: {padding: integer|integer[], out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param padding integer|integer[]
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.replication_pad2d(self, padding, options) end
Tensor.replication_pad2d = torch.replication_pad2d
---@overload fun(grad_output: torch.Tensor, self: torch.Tensor|number, options: {padding: integer|integer[], grad_input: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param self torch.Tensor|number
---@param padding integer|integer[]
---@param options? {grad_input: torch.Tensor?}
---@return torch.Tensor
function torch.replication_pad2d_backward(grad_output, self, padding, options) end
Tensor.replication_pad2d_backward = torch.replication_pad2d_backward
---@overload fun(self: torch.Tensor, options: {padding: integer|integer[], out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param padding integer|integer[]
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.replication_pad3d(self, padding, options) end
Tensor.replication_pad3d = torch.replication_pad3d
---@overload fun(grad_output: torch.Tensor, self: torch.Tensor|number, options: {padding: integer|integer[], grad_input: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param self torch.Tensor|number
---@param padding integer|integer[]
---@param options? {grad_input: torch.Tensor?}
---@return torch.Tensor
function torch.replication_pad3d_backward(grad_output, self, padding, options) end
Tensor.replication_pad3d_backward = torch.replication_pad3d_backward
---@overload fun(self: torch.Tensor, options: {requires_grad: boolean?}): torch.Tensor
---@param self torch.Tensor
---@param requires_grad? boolean
---@return torch.Tensor
function torch.requires_grad_(self, requires_grad) end
Tensor.requires_grad_ = torch.requires_grad_
---@overload fun(self: torch.Tensor, ...: integer): torch.Tensor
---@param self torch.Tensor
---@param shape integer[]
---@return torch.Tensor
function torch.reshape(self, shape) end
Tensor.reshape = torch.reshape
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return torch.Tensor
function torch.reshape_as(self, other) end
Tensor.reshape_as = torch.reshape_as
---@overload fun(self: torch.Tensor, ...: integer|table): torch.Tensor
---@param self torch.Tensor
---@param size integer[]
---@param options? {memory_format: torch.memory_format?, out: torch.Tensor?}
---@return torch.Tensor
function torch.resize(self, size, options) end
Tensor.resize = torch.resize
---@overload fun(self: torch.Tensor, ...: integer|table): torch.Tensor
---@param self torch.Tensor
---@param size integer[]
---@param options? {memory_format: torch.memory_format?}
---@return torch.Tensor
function torch.resize_(self, size, options) end
Tensor.resize_ = torch.resize_
---@param self torch.Tensor
---@param the_template torch.Tensor
---@param options? {memory_format: torch.memory_format?, out: torch.Tensor?}
---@return torch.Tensor
function torch.resize_as(self, the_template, options) end
Tensor.resize_as = torch.resize_as
---@param self torch.Tensor
---@param the_template torch.Tensor
---@param options? {memory_format: torch.memory_format?}
---@return torch.Tensor
function torch.resize_as_(self, the_template, options) end
Tensor.resize_as_ = torch.resize_as_
---@param self torch.Tensor
---@param the_template torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.resize_as_sparse(self, the_template, options) end
Tensor.resize_as_sparse = torch.resize_as_sparse
---@param self torch.Tensor
---@param the_template torch.Tensor
---@return torch.Tensor
function torch.resize_as_sparse_(self, the_template) end
Tensor.resize_as_sparse_ = torch.resize_as_sparse_
---@param self torch.Tensor
---@return torch.Tensor
function torch.resolve_conj(self) end
Tensor.resolve_conj = torch.resolve_conj
---@param self torch.Tensor
---@return torch.Tensor
function torch.resolve_neg(self) end
Tensor.resolve_neg = torch.resolve_neg
---@overload fun(tensor: torch.Tensor, other: torch.Scalar): torch.dtype
---@overload fun(tensor: torch.Tensor, options: {other: torch.Scalar}): torch.dtype
---@overload fun(scalar: torch.Scalar, tensor: torch.Tensor): torch.dtype
---@overload fun(scalar1: torch.Scalar, scalar2: torch.Scalar): torch.dtype
---@param tensor torch.Tensor
---@param other torch.Tensor|number
---@return torch.dtype
function torch.result_type(tensor, other) end
Tensor.result_type = torch.result_type
---@param self torch.Tensor
function torch.retain_grad(self) end
Tensor.retain_grad = torch.retain_grad
---@param self torch.Tensor
---@return boolean
function torch.retains_grad(self) end
Tensor.retains_grad = torch.retains_grad
---@overload fun(input: torch.Tensor, options: {normalized_shape: integer[], weight: torch.Tensor?, eps: number?}): torch.Tensor
---@param input torch.Tensor
---@param normalized_shape integer[]
---@param weight? torch.Tensor
---@param eps? number
---@return torch.Tensor
function torch.rms_norm(input, normalized_shape, weight, eps) end
Tensor.rms_norm = torch.rms_norm
---@overload fun(data: torch.Tensor, batch_sizes: torch.Tensor, hx: torch.Tensor, params: torch.Tensor[], options: {has_biases: boolean, num_layers: integer, dropout: number, train: boolean, bidirectional: boolean}): torch.Tensor, torch.Tensor
---@overload fun(input: torch.Tensor, hx: torch.Tensor, params: torch.Tensor[], has_biases: boolean, num_layers: integer, dropout: number, train: boolean, bidirectional: boolean, batch_first: boolean): torch.Tensor, torch.Tensor
---@overload fun(input: torch.Tensor, hx: torch.Tensor, params: torch.Tensor[], options: {has_biases: boolean, num_layers: integer, dropout: number, train: boolean, bidirectional: boolean, batch_first: boolean}): torch.Tensor, torch.Tensor
---@param data torch.Tensor
---@param batch_sizes torch.Tensor
---@param hx torch.Tensor
---@param params torch.Tensor[]
---@param has_biases boolean
---@param num_layers integer
---@param dropout number
---@param train boolean
---@param bidirectional boolean
---@return torch.Tensor
---@return torch.Tensor
function torch.rnn_relu(data, batch_sizes, hx, params, has_biases, num_layers, dropout, train, bidirectional) end
Tensor.rnn_relu = torch.rnn_relu
---@overload fun(input: torch.Tensor, hx: torch.Tensor, w_ih: torch.Tensor, w_hh: torch.Tensor, options: {b_ih: torch.Tensor?, b_hh: torch.Tensor?}): torch.Tensor
---@param input torch.Tensor
---@param hx torch.Tensor
---@param w_ih torch.Tensor
---@param w_hh torch.Tensor
---@param b_ih? torch.Tensor
---@param b_hh? torch.Tensor
---@return torch.Tensor
function torch.rnn_relu_cell(input, hx, w_ih, w_hh, b_ih, b_hh) end
Tensor.rnn_relu_cell = torch.rnn_relu_cell
---@overload fun(data: torch.Tensor, batch_sizes: torch.Tensor, hx: torch.Tensor, params: torch.Tensor[], options: {has_biases: boolean, num_layers: integer, dropout: number, train: boolean, bidirectional: boolean}): torch.Tensor, torch.Tensor
---@overload fun(input: torch.Tensor, hx: torch.Tensor, params: torch.Tensor[], has_biases: boolean, num_layers: integer, dropout: number, train: boolean, bidirectional: boolean, batch_first: boolean): torch.Tensor, torch.Tensor
---@overload fun(input: torch.Tensor, hx: torch.Tensor, params: torch.Tensor[], options: {has_biases: boolean, num_layers: integer, dropout: number, train: boolean, bidirectional: boolean, batch_first: boolean}): torch.Tensor, torch.Tensor
---@param data torch.Tensor
---@param batch_sizes torch.Tensor
---@param hx torch.Tensor
---@param params torch.Tensor[]
---@param has_biases boolean
---@param num_layers integer
---@param dropout number
---@param train boolean
---@param bidirectional boolean
---@return torch.Tensor
---@return torch.Tensor
function torch.rnn_tanh(data, batch_sizes, hx, params, has_biases, num_layers, dropout, train, bidirectional) end
Tensor.rnn_tanh = torch.rnn_tanh
---@overload fun(input: torch.Tensor, hx: torch.Tensor, w_ih: torch.Tensor, w_hh: torch.Tensor, options: {b_ih: torch.Tensor?, b_hh: torch.Tensor?}): torch.Tensor
---@param input torch.Tensor
---@param hx torch.Tensor
---@param w_ih torch.Tensor
---@param w_hh torch.Tensor
---@param b_ih? torch.Tensor
---@param b_hh? torch.Tensor
---@return torch.Tensor
function torch.rnn_tanh_cell(input, hx, w_ih, w_hh, b_ih, b_hh) end
Tensor.rnn_tanh_cell = torch.rnn_tanh_cell
---@overload fun(self: torch.Tensor, options: {shifts: integer|integer[], dims: (integer|integer[])?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param shifts integer|integer[]
---@param dims? integer|integer[]
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.roll(self, shifts, dims, options) end
Tensor.roll = torch.roll
---@overload fun(self: torch.Tensor, k: integer?, ...: integer|table): torch.Tensor
---@overload fun(self: torch.Tensor, options: {k: integer?, dims: integer[]?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param k? integer
---@param dims? integer[]
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.rot90(self, k, dims, options) end
Tensor.rot90 = torch.rot90
---@overload fun(self: torch.Tensor, options: {out: torch.Tensor?}?): torch.Tensor
---@param self torch.Tensor
---@param options {decimals: integer, out: torch.Tensor?}
---@return torch.Tensor
function torch.round(self, options) end
Tensor.round = torch.round
---@overload fun(self: torch.Tensor): torch.Tensor
---@param self torch.Tensor
---@param options {decimals: integer}
---@return torch.Tensor
function torch.round_(self, options) end
Tensor.round_ = torch.round_
---@param self torch.Tensor
---@return torch.Tensor
function torch.row_indices(self) end
Tensor.row_indices = torch.row_indices
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.row_indices_copy(self, options) end
Tensor.row_indices_copy = torch.row_indices_copy
---@param tensors torch.Tensor[]
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.row_stack(tensors, options) end
---@overload fun(self: torch.Tensor, options: {lower: torch.Scalar?, upper: torch.Scalar?, training: boolean?}): torch.Tensor
---@param self torch.Tensor
---@param lower? torch.Scalar
---@param upper? torch.Scalar
---@param training? boolean
---@return torch.Tensor
function torch.rrelu(self, lower, upper, training) end
Tensor.rrelu = torch.rrelu
---@overload fun(self: torch.Tensor, options: {lower: torch.Scalar?, upper: torch.Scalar?, training: boolean?}): torch.Tensor
---@param self torch.Tensor
---@param lower? torch.Scalar
---@param upper? torch.Scalar
---@param training? boolean
---@return torch.Tensor
function torch.rrelu_(self, lower, upper, training) end
Tensor.rrelu_ = torch.rrelu_
---@overload fun(self: torch.Tensor, noise: torch.Tensor, options: {lower: torch.Scalar?, upper: torch.Scalar?, training: boolean?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param noise torch.Tensor
---@param lower? torch.Scalar
---@param upper? torch.Scalar
---@param training? boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.rrelu_with_noise(self, noise, lower, upper, training, options) end
Tensor.rrelu_with_noise = torch.rrelu_with_noise
---@overload fun(self: torch.Tensor, noise: torch.Tensor, options: {lower: torch.Scalar?, upper: torch.Scalar?, training: boolean?}): torch.Tensor
---@param self torch.Tensor
---@param noise torch.Tensor
---@param lower? torch.Scalar
---@param upper? torch.Scalar
---@param training? boolean
---@return torch.Tensor
function torch.rrelu_with_noise_(self, noise, lower, upper, training) end
Tensor.rrelu_with_noise_ = torch.rrelu_with_noise_
---@overload fun(grad_output: torch.Tensor, self: torch.Tensor|number, noise: torch.Tensor, options: {lower: torch.Scalar, upper: torch.Scalar, training: boolean, self_is_result: boolean, out: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param self torch.Tensor|number
---@param noise torch.Tensor
---@param lower torch.Scalar
---@param upper torch.Scalar
---@param training boolean
---@param self_is_result boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.rrelu_with_noise_backward(grad_output, self, noise, lower, upper, training, self_is_result, options) end
Tensor.rrelu_with_noise_backward = torch.rrelu_with_noise_backward
---@overload fun(self: torch.Tensor, noise: torch.Tensor, options: {lower: torch.Scalar?, upper: torch.Scalar?, training: boolean?}): torch.Tensor, torch.Tensor
---@param self torch.Tensor
---@param noise torch.Tensor
---@param lower? torch.Scalar
---@param upper? torch.Scalar
---@param training? boolean
---@return torch.Tensor
---@return torch.Tensor noise_out
function torch.rrelu_with_noise_functional(self, noise, lower, upper, training) end
Tensor.rrelu_with_noise_functional = torch.rrelu_with_noise_functional
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.rsqrt(self, options) end
Tensor.rsqrt = torch.rsqrt
---@param self torch.Tensor
---@return torch.Tensor
function torch.rsqrt_(self) end
Tensor.rsqrt_ = torch.rsqrt_
---@overload fun(self: torch.Tensor, other: torch.Scalar, alpha: torch.Scalar?, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar, alpha: torch.Scalar?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {alpha: torch.Scalar?, out: torch.Tensor?}
---@return torch.Tensor
function torch.rsub(self, other, options) end
Tensor.rsub = torch.rsub
---@overload fun(s: torch.Scalar, options: {out: torch.Tensor}): torch.Tensor
---@param s torch.Scalar
---@param options? torch.FactoryOptions
---@return torch.Tensor
function torch.scalar_tensor(s, options) end
---@overload fun(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: {attn_mask: torch.Tensor?, dropout_p: number?, is_causal: boolean?, scale: number?, enable_gqa: boolean?}): torch.Tensor
---@param query torch.Tensor
---@param key torch.Tensor
---@param value torch.Tensor
---@param attn_mask? torch.Tensor
---@param dropout_p? number
---@param is_causal? boolean
---@param options? {scale: number?, enable_gqa: boolean?}
---@return torch.Tensor
function torch.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, options) end
Tensor.scaled_dot_product_attention = torch.scaled_dot_product_attention
---@overload fun(self: torch.Tensor, options: {dim: integer, index: torch.Tensor, src: torch.Tensor, reduce: string, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Tensor, dim: integer, index: torch.Tensor, src: torch.Tensor, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {dim: integer, index: torch.Tensor, src: torch.Tensor, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Tensor, dim: integer, index: torch.Tensor, value: torch.Scalar, options: {reduce: string, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Tensor, options: {dim: integer, index: torch.Tensor, value: torch.Scalar, reduce: string, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Tensor, dim: integer, index: torch.Tensor, value: torch.Scalar, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {dim: integer, index: torch.Tensor, value: torch.Scalar, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@param index torch.Tensor
---@param src torch.Tensor
---@param options {reduce: string, out: torch.Tensor?}
---@return torch.Tensor
function torch.scatter(self, dim, index, src, options) end
Tensor.scatter = torch.scatter
---@overload fun(self: torch.Tensor, options: {dim: integer, index: torch.Tensor, src: torch.Tensor, reduce: string}): torch.Tensor
---@overload fun(self: torch.Tensor, dim: integer, index: torch.Tensor, src: torch.Tensor): torch.Tensor
---@overload fun(self: torch.Tensor, options: {dim: integer, index: torch.Tensor, src: torch.Tensor}): torch.Tensor
---@overload fun(self: torch.Tensor, dim: integer, index: torch.Tensor, value: torch.Scalar, options: {reduce: string}): torch.Tensor
---@overload fun(self: torch.Tensor, options: {dim: integer, index: torch.Tensor, value: torch.Scalar, reduce: string}): torch.Tensor
---@overload fun(self: torch.Tensor, dim: integer, index: torch.Tensor, value: torch.Scalar): torch.Tensor
---@overload fun(self: torch.Tensor, options: {dim: integer, index: torch.Tensor, value: torch.Scalar}): torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@param index torch.Tensor
---@param src torch.Tensor
---@param options {reduce: string}
---@return torch.Tensor
function torch.scatter_(self, dim, index, src, options) end
Tensor.scatter_ = torch.scatter_
---@overload fun(self: torch.Tensor, options: {dim: integer, index: torch.Tensor, src: torch.Tensor, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@param index torch.Tensor
---@param src torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.scatter_add(self, dim, index, src, options) end
Tensor.scatter_add = torch.scatter_add
---@overload fun(self: torch.Tensor, options: {dim: integer, index: torch.Tensor, src: torch.Tensor}): torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@param index torch.Tensor
---@param src torch.Tensor
---@return torch.Tensor
function torch.scatter_add_(self, dim, index, src) end
Tensor.scatter_add_ = torch.scatter_add_
---@overload fun(self: torch.Tensor, options: {dim: integer, index: torch.Tensor, src: torch.Tensor, reduce: string, include_self: boolean?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@param index torch.Tensor
---@param src torch.Tensor
---@param reduce string
---@param options? {include_self: boolean?, out: torch.Tensor?}
---@return torch.Tensor
function torch.scatter_reduce(self, dim, index, src, reduce, options) end
Tensor.scatter_reduce = torch.scatter_reduce
---@overload fun(self: torch.Tensor, options: {dim: integer, index: torch.Tensor, src: torch.Tensor, reduce: string, include_self: boolean?}): torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@param index torch.Tensor
---@param src torch.Tensor
---@param reduce string
---@param options? {include_self: boolean?}
---@return torch.Tensor
function torch.scatter_reduce_(self, dim, index, src, reduce, options) end
Tensor.scatter_reduce_ = torch.scatter_reduce_
---@overload fun(sorted_sequence: torch.Tensor, self: torch.Scalar, options: {out_int32: boolean?, right: boolean?, side: string?, sorter: torch.Tensor?, out: torch.Tensor?}?): torch.Tensor
---@overload fun(sorted_sequence: torch.Tensor, options: {self: torch.Scalar, out_int32: boolean?, right: boolean?, side: string?, sorter: torch.Tensor?, out: torch.Tensor?}): torch.Tensor
---@param sorted_sequence torch.Tensor
---@param self torch.Tensor|number
---@param options? {out_int32: boolean?, right: boolean?, side: string?, sorter: torch.Tensor?, out: torch.Tensor?}
---@return torch.Tensor
function torch.searchsorted(sorted_sequence, self, options) end
Tensor.searchsorted = torch.searchsorted
---@overload fun(data: torch.Tensor, options: {reduce: string, lengths: torch.Tensor?, indices: torch.Tensor?, offsets: torch.Tensor?, axis: integer?, unsafe: boolean?, initial: torch.Scalar?, out: torch.Tensor?}): torch.Tensor
---@param data torch.Tensor
---@param reduce string
---@param options? {lengths: torch.Tensor?, indices: torch.Tensor?, offsets: torch.Tensor?, axis: integer?, unsafe: boolean?, initial: torch.Scalar?, out: torch.Tensor?}
---@return torch.Tensor
function torch.segment_reduce(data, reduce, options) end
Tensor.segment_reduce = torch.segment_reduce
---@overload fun(self: torch.Tensor, options: {dim: integer, index: integer}): torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@param index integer
---@return torch.Tensor
function torch.select(self, dim, index) end
Tensor.select = torch.select
---@overload fun(grad_output: torch.Tensor, options: {input_sizes: integer[], dim: integer, index: integer, out: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param input_sizes integer[]
---@param dim integer
---@param index integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.select_backward(grad_output, input_sizes, dim, index, options) end
Tensor.select_backward = torch.select_backward
---@overload fun(self: torch.Tensor, options: {dim: integer, index: integer, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@param index integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.select_copy(self, dim, index, options) end
Tensor.select_copy = torch.select_copy
---@overload fun(self: torch.Tensor, src: torch.Tensor, options: {dim: integer, index: integer, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param src torch.Tensor
---@param dim integer
---@param index integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.select_scatter(self, src, dim, index, options) end
Tensor.select_scatter = torch.select_scatter
---@param self torch.Tensor
---@return torch.Tensor
function torch.selu(self) end
Tensor.selu = torch.selu
---@param self torch.Tensor
---@return torch.Tensor
function torch.selu_(self) end
Tensor.selu_ = torch.selu_
---@overload fun(self: torch.Tensor, options: {out: torch.Tensor?}?): torch.Tensor
---@param self torch.Tensor
---@param source torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.set(self, source, options) end
Tensor.set = torch.set
---@overload fun(self: torch.Tensor, source: torch.Tensor, storage_offset: integer, size: integer[], ...: integer): torch.Tensor
---@overload fun(self: torch.Tensor, source: torch.Tensor, options: {storage_offset: integer, size: integer[], stride: integer[]?}): torch.Tensor
---@overload fun(self: torch.Tensor, source: torch.Tensor): torch.Tensor
---@overload fun(self: torch.Tensor): torch.Tensor
---@param self torch.Tensor
---@param source torch.Tensor
---@param storage_offset integer
---@param size integer[]
---@param stride? integer[]
---@return torch.Tensor
function torch.set_(self, source, storage_offset, size, stride) end
Tensor.set_ = torch.set_
---@param self torch.Tensor
---@param new_data torch.Tensor
function torch.set_data(self, new_data) end
Tensor.set_data = torch.set_data
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.sgn(self, options) end
Tensor.sgn = torch.sgn
---@param self torch.Tensor
---@return torch.Tensor
function torch.sgn_(self) end
Tensor.sgn_ = torch.sgn_
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.sigmoid(self, options) end
Tensor.sigmoid = torch.sigmoid
---@param self torch.Tensor
---@return torch.Tensor
function torch.sigmoid_(self) end
Tensor.sigmoid_ = torch.sigmoid_
---@param grad_output torch.Tensor
---@param output torch.Tensor
---@param options? {grad_input: torch.Tensor?}
---@return torch.Tensor
function torch.sigmoid_backward(grad_output, output, options) end
Tensor.sigmoid_backward = torch.sigmoid_backward
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.sign(self, options) end
Tensor.sign = torch.sign
---@param self torch.Tensor
---@return torch.Tensor
function torch.sign_(self) end
Tensor.sign_ = torch.sign_
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.signbit(self, options) end
Tensor.signbit = torch.signbit
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.silu(self, options) end
Tensor.silu = torch.silu
---@param self torch.Tensor
---@return torch.Tensor
function torch.silu_(self) end
Tensor.silu_ = torch.silu_
---@param grad_output torch.Tensor
---@param self torch.Tensor|number
---@param options? {grad_input: torch.Tensor?}
---@return torch.Tensor
function torch.silu_backward(grad_output, self, options) end
Tensor.silu_backward = torch.silu_backward
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.sin(self, options) end
Tensor.sin = torch.sin
---@param self torch.Tensor
---@return torch.Tensor
function torch.sin_(self) end
Tensor.sin_ = torch.sin_
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.sinc(self, options) end
Tensor.sinc = torch.sinc
---@param self torch.Tensor
---@return torch.Tensor
function torch.sinc_(self) end
Tensor.sinc_ = torch.sinc_
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.sinh(self, options) end
Tensor.sinh = torch.sinh
---@param self torch.Tensor
---@return torch.Tensor
function torch.sinh_(self) end
Tensor.sinh_ = torch.sinh_
---@overload fun(self: torch.Tensor, options: {dim: integer}): integer
---@param self torch.Tensor
---@param dim integer
---@return integer
function torch.size(self, dim) end
---@overload fun(self: torch.Tensor, options: {dim: integer?, start: integer?, ["end"]: integer?, step: integer?}): torch.Tensor
---@param self torch.Tensor
---@param dim? integer
---@param start? integer
---@param end_? integer
---@param step? integer
---@return torch.Tensor
function torch.slice(self, dim, start, end_, step) end
Tensor.slice = torch.slice
---@overload fun(grad_output: torch.Tensor, options: {input_sizes: integer[], dim: integer, start: integer, ["end"]: integer, step: integer, out: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param input_sizes integer[]
---@param dim integer
---@param start integer
---@param end_ integer
---@param step integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.slice_backward(grad_output, input_sizes, dim, start, end_, step, options) end
Tensor.slice_backward = torch.slice_backward
---@overload fun(self: torch.Tensor, options: {dim: integer?, start: integer?, ["end"]: integer?, step: integer?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param dim? integer
---@param start? integer
---@param end_? integer
---@param step? integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.slice_copy(self, dim, start, end_, step, options) end
Tensor.slice_copy = torch.slice_copy
---@overload fun(self: torch.Tensor, src: torch.Tensor, options: {dim: integer?, start: integer?, ["end"]: integer?, step: integer?}): torch.Tensor
---@param self torch.Tensor
---@param src torch.Tensor
---@param dim? integer
---@param start? integer
---@param end_? integer
---@param step? integer
---@return torch.Tensor
function torch.slice_inverse(self, src, dim, start, end_, step) end
Tensor.slice_inverse = torch.slice_inverse
---@overload fun(self: torch.Tensor, src: torch.Tensor, options: {dim: integer?, start: integer?, ["end"]: integer?, step: integer?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param src torch.Tensor
---@param dim? integer
---@param start? integer
---@param end_? integer
---@param step? integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.slice_scatter(self, src, dim, start, end_, step, options) end
Tensor.slice_scatter = torch.slice_scatter
---@param self torch.Tensor
---@param options? {sign: torch.Tensor?, logabsdet: torch.Tensor?}
---@return torch.Tensor sign
---@return torch.Tensor logabsdet
function torch.slogdet(self, options) end
Tensor.slogdet = torch.slogdet
---@overload fun(self: torch.Tensor, weight: torch.Tensor, options: {kernel_size: integer|integer[], bias: torch.Tensor?, stride: (integer|integer[])?, padding: (integer|integer[])?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param weight torch.Tensor
---@param kernel_size integer|integer[]
---@param bias? torch.Tensor
---@param stride? integer|integer[]
---@param padding? integer|integer[]
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.slow_conv3d(self, weight, kernel_size, bias, stride, padding, options) end
Tensor.slow_conv3d = torch.slow_conv3d
---@overload fun(self: torch.Tensor, weight: torch.Tensor, options: {kernel_size: integer|integer[], bias: torch.Tensor?, stride: integer|integer[], padding: integer|integer[], output: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param weight torch.Tensor
---@param kernel_size integer|integer[]
---@param bias torch.Tensor?
---@param stride integer|integer[]
---@param padding integer|integer[]
---@param options? {output: torch.Tensor?}
---@return torch.Tensor
function torch.slow_conv3d_forward(self, weight, kernel_size, bias, stride, padding, options) end
Tensor.slow_conv3d_forward = torch.slow_conv3d_forward
---@overload fun(self: torch.Tensor, weight: torch.Tensor, options: {kernel_size: integer|integer[], bias: torch.Tensor?, stride: (integer|integer[])?, padding: (integer|integer[])?, dilation: (integer|integer[])?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param weight torch.Tensor
---@param kernel_size integer|integer[]
---@param bias? torch.Tensor
---@param stride? integer|integer[]
---@param padding? integer|integer[]
---@param dilation? integer|integer[]
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.slow_conv_dilated2d(self, weight, kernel_size, bias, stride, padding, dilation, options) end
Tensor.slow_conv_dilated2d = torch.slow_conv_dilated2d
---@overload fun(self: torch.Tensor, weight: torch.Tensor, options: {kernel_size: integer|integer[], bias: torch.Tensor?, stride: (integer|integer[])?, padding: (integer|integer[])?, dilation: (integer|integer[])?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param weight torch.Tensor
---@param kernel_size integer|integer[]
---@param bias? torch.Tensor
---@param stride? integer|integer[]
---@param padding? integer|integer[]
---@param dilation? integer|integer[]
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.slow_conv_dilated3d(self, weight, kernel_size, bias, stride, padding, dilation, options) end
Tensor.slow_conv_dilated3d = torch.slow_conv_dilated3d
---@overload fun(self: torch.Tensor, weight: torch.Tensor, options: {kernel_size: integer|integer[], bias: torch.Tensor?, stride: (integer|integer[])?, padding: (integer|integer[])?, output_padding: (integer|integer[])?, dilation: (integer|integer[])?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param weight torch.Tensor
---@param kernel_size integer|integer[]
---@param bias? torch.Tensor
---@param stride? integer|integer[]
---@param padding? integer|integer[]
---@param output_padding? integer|integer[]
---@param dilation? integer|integer[]
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.slow_conv_transpose2d(self, weight, kernel_size, bias, stride, padding, output_padding, dilation, options) end
Tensor.slow_conv_transpose2d = torch.slow_conv_transpose2d
---@overload fun(self: torch.Tensor, weight: torch.Tensor, options: {kernel_size: integer|integer[], bias: torch.Tensor?, stride: (integer|integer[])?, padding: (integer|integer[])?, output_padding: (integer|integer[])?, dilation: (integer|integer[])?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param weight torch.Tensor
---@param kernel_size integer|integer[]
---@param bias? torch.Tensor
---@param stride? integer|integer[]
---@param padding? integer|integer[]
---@param output_padding? integer|integer[]
---@param dilation? integer|integer[]
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.slow_conv_transpose3d(self, weight, kernel_size, bias, stride, padding, output_padding, dilation, options) end
Tensor.slow_conv_transpose3d = torch.slow_conv_transpose3d
---@param self torch.Tensor
---@param mat2 torch.Tensor
---@return torch.Tensor
function torch.smm(self, mat2) end
Tensor.smm = torch.smm
---@overload fun(self: torch.Tensor, target: torch.Tensor, options: {reduction: integer?, beta: number?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param target torch.Tensor
---@param reduction? integer
---@param beta? number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.smooth_l1_loss(self, target, reduction, beta, options) end
Tensor.smooth_l1_loss = torch.smooth_l1_loss
---@overload fun(grad_output: torch.Tensor, self: torch.Tensor|number, target: torch.Tensor, options: {reduction: integer, beta: number, grad_input: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param self torch.Tensor|number
---@param target torch.Tensor
---@param reduction integer
---@param beta number
---@param options? {grad_input: torch.Tensor?}
---@return torch.Tensor
function torch.smooth_l1_loss_backward(grad_output, self, target, reduction, beta, options) end
Tensor.smooth_l1_loss_backward = torch.smooth_l1_loss_backward
---@overload fun(self: torch.Tensor, target: torch.Tensor, options: {reduction: integer?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param target torch.Tensor
---@param reduction? integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.soft_margin_loss(self, target, reduction, options) end
Tensor.soft_margin_loss = torch.soft_margin_loss
---@overload fun(grad_output: torch.Tensor, self: torch.Tensor|number, target: torch.Tensor, options: {reduction: integer, grad_input: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param self torch.Tensor|number
---@param target torch.Tensor
---@param reduction integer
---@param options? {grad_input: torch.Tensor?}
---@return torch.Tensor
function torch.soft_margin_loss_backward(grad_output, self, target, reduction, options) end
Tensor.soft_margin_loss_backward = torch.soft_margin_loss_backward
---@overload fun(self: torch.Tensor, options: {dim: integer, dtype: torch.dtype?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@param dtype? torch.dtype
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.softmax(self, dim, dtype, options) end
Tensor.softmax = torch.softmax
---@overload fun(self: torch.Tensor, options: {beta: torch.Scalar?, threshold: torch.Scalar?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param beta? torch.Scalar
---@param threshold? torch.Scalar
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.softplus(self, beta, threshold, options) end
Tensor.softplus = torch.softplus
---@overload fun(grad_output: torch.Tensor, self: torch.Tensor|number, options: {beta: torch.Scalar, threshold: torch.Scalar, grad_input: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param self torch.Tensor|number
---@param beta torch.Scalar
---@param threshold torch.Scalar
---@param options? {grad_input: torch.Tensor?}
---@return torch.Tensor
function torch.softplus_backward(grad_output, self, beta, threshold, options) end
Tensor.softplus_backward = torch.softplus_backward
---@overload fun(self: torch.Tensor, options: {lambd: torch.Scalar?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param lambd? torch.Scalar
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.softshrink(self, lambd, options) end
Tensor.softshrink = torch.softshrink
---@overload fun(grad_output: torch.Tensor, self: torch.Tensor|number, options: {lambd: torch.Scalar, grad_input: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param self torch.Tensor|number
---@param lambd torch.Scalar
---@param options? {grad_input: torch.Tensor?}
---@return torch.Tensor
function torch.softshrink_backward(grad_output, self, lambd, options) end
Tensor.softshrink_backward = torch.softshrink_backward
---@overload fun(self: torch.Tensor, dim: integer?, descending: boolean?, options: {values: torch.Tensor?, indices: torch.Tensor?}?): torch.Tensor, torch.Tensor
---@overload fun(self: torch.Tensor, options: {dim: integer?, descending: boolean?, values: torch.Tensor?, indices: torch.Tensor?}): torch.Tensor, torch.Tensor
---@param self torch.Tensor
---@param options {stable: boolean?, dim: integer?, descending: boolean?, values: torch.Tensor?, indices: torch.Tensor?}
---@return torch.Tensor values
---@return torch.Tensor indices
function torch.sort(self, options) end
Tensor.sort = torch.sort
---@overload fun(ccol_indices: torch.Tensor, row_indices: torch.Tensor, values: torch.Tensor, ...: integer|table): torch.Tensor
---@overload fun(ccol_indices: torch.Tensor, row_indices: torch.Tensor, values: torch.Tensor, options: torch.FactoryOptions?): torch.Tensor
---@param ccol_indices torch.Tensor
---@param row_indices torch.Tensor
---@param values torch.Tensor
---@param size integer[]
---@param options? torch.FactoryOptions
---@return torch.Tensor
function torch.sparse_bsc_tensor(ccol_indices, row_indices, values, size, options) end
Tensor.sparse_bsc_tensor = torch.sparse_bsc_tensor
---@overload fun(crow_indices: torch.Tensor, col_indices: torch.Tensor, values: torch.Tensor, ...: integer|table): torch.Tensor
---@overload fun(crow_indices: torch.Tensor, col_indices: torch.Tensor, values: torch.Tensor, options: torch.FactoryOptions?): torch.Tensor
---@param crow_indices torch.Tensor
---@param col_indices torch.Tensor
---@param values torch.Tensor
---@param size integer[]
---@param options? torch.FactoryOptions
---@return torch.Tensor
function torch.sparse_bsr_tensor(crow_indices, col_indices, values, size, options) end
Tensor.sparse_bsr_tensor = torch.sparse_bsr_tensor
---@overload fun(compressed_indices: torch.Tensor, plain_indices: torch.Tensor, values: torch.Tensor, ...: integer|table): torch.Tensor
---@overload fun(compressed_indices: torch.Tensor, plain_indices: torch.Tensor, values: torch.Tensor, options: torch.FactoryOptions?): torch.Tensor
---@param compressed_indices torch.Tensor
---@param plain_indices torch.Tensor
---@param values torch.Tensor
---@param size integer[]
---@param options? torch.FactoryOptions
---@return torch.Tensor
function torch.sparse_compressed_tensor(compressed_indices, plain_indices, values, size, options) end
Tensor.sparse_compressed_tensor = torch.sparse_compressed_tensor
---@overload fun(...: integer|table): torch.Tensor
---@overload fun(size: integer[], options: {out: torch.Tensor}): torch.Tensor
---@overload fun(indices: torch.Tensor, values: torch.Tensor, size: integer[], options: {dtype: torch.dtype?, layout: torch.layout?, device: string?, pin_memory: boolean?, requires_grad: boolean?, is_coalesced: boolean?}?): torch.Tensor
---@overload fun(indices: torch.Tensor, values: torch.Tensor, ...: integer|table): torch.Tensor
---@overload fun(indices: torch.Tensor, values: torch.Tensor, options: {dtype: torch.dtype?, layout: torch.layout?, device: string?, pin_memory: boolean?, requires_grad: boolean?, is_coalesced: boolean?}?): torch.Tensor
---@param size integer[]
---@param options? torch.FactoryOptions
---@return torch.Tensor
function torch.sparse_coo_tensor(size, options) end
Tensor.sparse_coo_tensor = torch.sparse_coo_tensor
---@overload fun(ccol_indices: torch.Tensor, row_indices: torch.Tensor, values: torch.Tensor, ...: integer|table): torch.Tensor
---@overload fun(ccol_indices: torch.Tensor, row_indices: torch.Tensor, values: torch.Tensor, options: torch.FactoryOptions?): torch.Tensor
---@param ccol_indices torch.Tensor
---@param row_indices torch.Tensor
---@param values torch.Tensor
---@param size integer[]
---@param options? torch.FactoryOptions
---@return torch.Tensor
function torch.sparse_csc_tensor(ccol_indices, row_indices, values, size, options) end
Tensor.sparse_csc_tensor = torch.sparse_csc_tensor
---@overload fun(crow_indices: torch.Tensor, col_indices: torch.Tensor, values: torch.Tensor, ...: integer|table): torch.Tensor
---@overload fun(crow_indices: torch.Tensor, col_indices: torch.Tensor, values: torch.Tensor, options: torch.FactoryOptions?): torch.Tensor
---@param crow_indices torch.Tensor
---@param col_indices torch.Tensor
---@param values torch.Tensor
---@param size integer[]
---@param options? torch.FactoryOptions
---@return torch.Tensor
function torch.sparse_csr_tensor(crow_indices, col_indices, values, size, options) end
Tensor.sparse_csr_tensor = torch.sparse_csr_tensor
---@param self torch.Tensor
---@return integer
function torch.sparse_dim(self) end
Tensor.sparse_dim = torch.sparse_dim
---@param self torch.Tensor
---@param mask torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.sparse_mask(self, mask, options) end
Tensor.sparse_mask = torch.sparse_mask
---@overload fun(self: torch.Tensor, options: {size: integer[], sparse_dim: integer, dense_dim: integer, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param size integer[]
---@param sparse_dim integer
---@param dense_dim integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.sparse_resize(self, size, sparse_dim, dense_dim, options) end
Tensor.sparse_resize = torch.sparse_resize
---@overload fun(self: torch.Tensor, options: {size: integer[], sparse_dim: integer, dense_dim: integer}): torch.Tensor
---@param self torch.Tensor
---@param size integer[]
---@param sparse_dim integer
---@param dense_dim integer
---@return torch.Tensor
function torch.sparse_resize_(self, size, sparse_dim, dense_dim) end
Tensor.sparse_resize_ = torch.sparse_resize_
---@overload fun(self: torch.Tensor, options: {size: integer[], sparse_dim: integer, dense_dim: integer, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param size integer[]
---@param sparse_dim integer
---@param dense_dim integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.sparse_resize_and_clear(self, size, sparse_dim, dense_dim, options) end
Tensor.sparse_resize_and_clear = torch.sparse_resize_and_clear
---@overload fun(self: torch.Tensor, options: {size: integer[], sparse_dim: integer, dense_dim: integer}): torch.Tensor
---@param self torch.Tensor
---@param size integer[]
---@param sparse_dim integer
---@param dense_dim integer
---@return torch.Tensor
function torch.sparse_resize_and_clear_(self, size, sparse_dim, dense_dim) end
Tensor.sparse_resize_and_clear_ = torch.sparse_resize_and_clear_
---@param self torch.Tensor
---@param mat1 torch.Tensor
---@param mat2 torch.Tensor
---@param options? {beta: torch.Scalar?, alpha: torch.Scalar?, out: torch.Tensor?}
---@return torch.Tensor
function torch.sparse_sampled_addmm(self, mat1, mat2, options) end
Tensor.sparse_sampled_addmm = torch.sparse_sampled_addmm
---@param x torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_airy_ai(x, options) end
Tensor.special_airy_ai = torch.special_airy_ai
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_bessel_j0(self, options) end
Tensor.special_bessel_j0 = torch.special_bessel_j0
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_bessel_j1(self, options) end
Tensor.special_bessel_j1 = torch.special_bessel_j1
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_bessel_y0(self, options) end
Tensor.special_bessel_y0 = torch.special_bessel_y0
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_bessel_y1(self, options) end
Tensor.special_bessel_y1 = torch.special_bessel_y1
---@overload fun(x: torch.Tensor, n: torch.Scalar, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(x: torch.Tensor, options: {n: torch.Scalar, out: torch.Tensor?}): torch.Tensor
---@overload fun(x: torch.Scalar, n: torch.Tensor, options: {out: torch.Tensor?}?): torch.Tensor
---@param x torch.Tensor
---@param n torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_chebyshev_polynomial_t(x, n, options) end
Tensor.special_chebyshev_polynomial_t = torch.special_chebyshev_polynomial_t
---@overload fun(x: torch.Tensor, n: torch.Scalar, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(x: torch.Tensor, options: {n: torch.Scalar, out: torch.Tensor?}): torch.Tensor
---@overload fun(x: torch.Scalar, n: torch.Tensor, options: {out: torch.Tensor?}?): torch.Tensor
---@param x torch.Tensor
---@param n torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_chebyshev_polynomial_u(x, n, options) end
Tensor.special_chebyshev_polynomial_u = torch.special_chebyshev_polynomial_u
---@overload fun(x: torch.Tensor, n: torch.Scalar, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(x: torch.Tensor, options: {n: torch.Scalar, out: torch.Tensor?}): torch.Tensor
---@overload fun(x: torch.Scalar, n: torch.Tensor, options: {out: torch.Tensor?}?): torch.Tensor
---@param x torch.Tensor
---@param n torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_chebyshev_polynomial_v(x, n, options) end
Tensor.special_chebyshev_polynomial_v = torch.special_chebyshev_polynomial_v
---@overload fun(x: torch.Tensor, n: torch.Scalar, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(x: torch.Tensor, options: {n: torch.Scalar, out: torch.Tensor?}): torch.Tensor
---@overload fun(x: torch.Scalar, n: torch.Tensor, options: {out: torch.Tensor?}?): torch.Tensor
---@param x torch.Tensor
---@param n torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_chebyshev_polynomial_w(x, n, options) end
Tensor.special_chebyshev_polynomial_w = torch.special_chebyshev_polynomial_w
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_digamma(self, options) end
Tensor.special_digamma = torch.special_digamma
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_entr(self, options) end
Tensor.special_entr = torch.special_entr
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_erf(self, options) end
Tensor.special_erf = torch.special_erf
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_erfc(self, options) end
Tensor.special_erfc = torch.special_erfc
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_erfcx(self, options) end
Tensor.special_erfcx = torch.special_erfcx
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_erfinv(self, options) end
Tensor.special_erfinv = torch.special_erfinv
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_exp2(self, options) end
Tensor.special_exp2 = torch.special_exp2
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_expit(self, options) end
Tensor.special_expit = torch.special_expit
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_expm1(self, options) end
Tensor.special_expm1 = torch.special_expm1
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_gammainc(self, other, options) end
Tensor.special_gammainc = torch.special_gammainc
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_gammaincc(self, other, options) end
Tensor.special_gammaincc = torch.special_gammaincc
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_gammaln(self, options) end
Tensor.special_gammaln = torch.special_gammaln
---@overload fun(x: torch.Tensor, n: torch.Scalar, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(x: torch.Tensor, options: {n: torch.Scalar, out: torch.Tensor?}): torch.Tensor
---@overload fun(x: torch.Scalar, n: torch.Tensor, options: {out: torch.Tensor?}?): torch.Tensor
---@param x torch.Tensor
---@param n torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_hermite_polynomial_h(x, n, options) end
Tensor.special_hermite_polynomial_h = torch.special_hermite_polynomial_h
---@overload fun(x: torch.Tensor, n: torch.Scalar, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(x: torch.Tensor, options: {n: torch.Scalar, out: torch.Tensor?}): torch.Tensor
---@overload fun(x: torch.Scalar, n: torch.Tensor, options: {out: torch.Tensor?}?): torch.Tensor
---@param x torch.Tensor
---@param n torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_hermite_polynomial_he(x, n, options) end
Tensor.special_hermite_polynomial_he = torch.special_hermite_polynomial_he
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_i0(self, options) end
Tensor.special_i0 = torch.special_i0
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_i0e(self, options) end
Tensor.special_i0e = torch.special_i0e
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_i1(self, options) end
Tensor.special_i1 = torch.special_i1
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_i1e(self, options) end
Tensor.special_i1e = torch.special_i1e
---@overload fun(x: torch.Tensor, n: torch.Scalar, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(x: torch.Tensor, options: {n: torch.Scalar, out: torch.Tensor?}): torch.Tensor
---@overload fun(x: torch.Scalar, n: torch.Tensor, options: {out: torch.Tensor?}?): torch.Tensor
---@param x torch.Tensor
---@param n torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_laguerre_polynomial_l(x, n, options) end
Tensor.special_laguerre_polynomial_l = torch.special_laguerre_polynomial_l
---@overload fun(x: torch.Tensor, n: torch.Scalar, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(x: torch.Tensor, options: {n: torch.Scalar, out: torch.Tensor?}): torch.Tensor
---@overload fun(x: torch.Scalar, n: torch.Tensor, options: {out: torch.Tensor?}?): torch.Tensor
---@param x torch.Tensor
---@param n torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_legendre_polynomial_p(x, n, options) end
Tensor.special_legendre_polynomial_p = torch.special_legendre_polynomial_p
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_log1p(self, options) end
Tensor.special_log1p = torch.special_log1p
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_log_ndtr(self, options) end
Tensor.special_log_ndtr = torch.special_log_ndtr
---@overload fun(self: torch.Tensor, options: {dim: integer, dtype: torch.dtype?}): torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@param options? {dtype: torch.dtype?}
---@return torch.Tensor
function torch.special_log_softmax(self, dim, options) end
Tensor.special_log_softmax = torch.special_log_softmax
---@overload fun(self: torch.Tensor, options: {eps: number?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param eps? number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_logit(self, eps, options) end
Tensor.special_logit = torch.special_logit
---@overload fun(self: torch.Tensor, options: {dim: integer|integer[], keepdim: boolean?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param dim integer|integer[]
---@param keepdim? boolean
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_logsumexp(self, dim, keepdim, options) end
Tensor.special_logsumexp = torch.special_logsumexp
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_modified_bessel_i0(self, options) end
Tensor.special_modified_bessel_i0 = torch.special_modified_bessel_i0
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_modified_bessel_i1(self, options) end
Tensor.special_modified_bessel_i1 = torch.special_modified_bessel_i1
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_modified_bessel_k0(self, options) end
Tensor.special_modified_bessel_k0 = torch.special_modified_bessel_k0
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_modified_bessel_k1(self, options) end
Tensor.special_modified_bessel_k1 = torch.special_modified_bessel_k1
---@overload fun(self: torch.Tensor, options: {p: integer, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param p integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_multigammaln(self, p, options) end
Tensor.special_multigammaln = torch.special_multigammaln
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_ndtr(self, options) end
Tensor.special_ndtr = torch.special_ndtr
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_ndtri(self, options) end
Tensor.special_ndtri = torch.special_ndtri
---@param n integer
---@param self torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_polygamma(n, self, options) end
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_psi(self, options) end
Tensor.special_psi = torch.special_psi
---@param self torch.Tensor
---@param options? {decimals: integer?, out: torch.Tensor?}
---@return torch.Tensor
function torch.special_round(self, options) end
Tensor.special_round = torch.special_round
---@param x torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_scaled_modified_bessel_k0(x, options) end
Tensor.special_scaled_modified_bessel_k0 = torch.special_scaled_modified_bessel_k0
---@param x torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_scaled_modified_bessel_k1(x, options) end
Tensor.special_scaled_modified_bessel_k1 = torch.special_scaled_modified_bessel_k1
---@overload fun(x: torch.Tensor, n: torch.Scalar, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(x: torch.Tensor, options: {n: torch.Scalar, out: torch.Tensor?}): torch.Tensor
---@overload fun(x: torch.Scalar, n: torch.Tensor, options: {out: torch.Tensor?}?): torch.Tensor
---@param x torch.Tensor
---@param n torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_shifted_chebyshev_polynomial_t(x, n, options) end
Tensor.special_shifted_chebyshev_polynomial_t = torch.special_shifted_chebyshev_polynomial_t
---@overload fun(x: torch.Tensor, n: torch.Scalar, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(x: torch.Tensor, options: {n: torch.Scalar, out: torch.Tensor?}): torch.Tensor
---@overload fun(x: torch.Scalar, n: torch.Tensor, options: {out: torch.Tensor?}?): torch.Tensor
---@param x torch.Tensor
---@param n torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_shifted_chebyshev_polynomial_u(x, n, options) end
Tensor.special_shifted_chebyshev_polynomial_u = torch.special_shifted_chebyshev_polynomial_u
---@overload fun(x: torch.Tensor, n: torch.Scalar, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(x: torch.Tensor, options: {n: torch.Scalar, out: torch.Tensor?}): torch.Tensor
---@overload fun(x: torch.Scalar, n: torch.Tensor, options: {out: torch.Tensor?}?): torch.Tensor
---@param x torch.Tensor
---@param n torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_shifted_chebyshev_polynomial_v(x, n, options) end
Tensor.special_shifted_chebyshev_polynomial_v = torch.special_shifted_chebyshev_polynomial_v
---@overload fun(x: torch.Tensor, n: torch.Scalar, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(x: torch.Tensor, options: {n: torch.Scalar, out: torch.Tensor?}): torch.Tensor
---@overload fun(x: torch.Scalar, n: torch.Tensor, options: {out: torch.Tensor?}?): torch.Tensor
---@param x torch.Tensor
---@param n torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_shifted_chebyshev_polynomial_w(x, n, options) end
Tensor.special_shifted_chebyshev_polynomial_w = torch.special_shifted_chebyshev_polynomial_w
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_sinc(self, options) end
Tensor.special_sinc = torch.special_sinc
---@overload fun(self: torch.Tensor, options: {dim: integer, dtype: torch.dtype?}): torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@param dtype? torch.dtype
---@return torch.Tensor
function torch.special_softmax(self, dim, dtype) end
Tensor.special_softmax = torch.special_softmax
---@param x torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_spherical_bessel_j0(x, options) end
Tensor.special_spherical_bessel_j0 = torch.special_spherical_bessel_j0
---@overload fun(self: torch.Tensor, other: torch.Scalar, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Scalar, other: torch.Tensor|number, options: {out: torch.Tensor?}?): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_xlog1py(self, other, options) end
Tensor.special_xlog1py = torch.special_xlog1py
---@overload fun(self: torch.Tensor, other: torch.Scalar, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Scalar, other: torch.Tensor|number, options: {out: torch.Tensor?}?): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_xlogy(self, other, options) end
Tensor.special_xlogy = torch.special_xlogy
---@overload fun(self: torch.Tensor, other: torch.Scalar, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Scalar, other: torch.Tensor|number, options: {out: torch.Tensor?}?): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.special_zeta(self, other, options) end
Tensor.special_zeta = torch.special_zeta
---@overload fun(self: torch.Tensor, options: {split_size: integer, dim: integer?}): torch.Tensor[]
---@overload fun(self: torch.Tensor, split_size: integer[], dim: integer?): torch.Tensor[]
---@overload fun(self: torch.Tensor, options: {split_size: integer[], dim: integer?}): torch.Tensor[]
---@param self torch.Tensor
---@param split_size integer
---@param dim? integer
---@return torch.Tensor[]
function torch.split(self, split_size, dim) end
Tensor.split = torch.split
---@overload fun(self: torch.Tensor, options: {split_size: integer, dim: integer?, out: torch.Tensor[]?}): torch.Tensor[]
---@param self torch.Tensor
---@param split_size integer
---@param dim? integer
---@param options? {out: torch.Tensor[]?}
---@return torch.Tensor[]
function torch.split_copy(self, split_size, dim, options) end
Tensor.split_copy = torch.split_copy
---@overload fun(self: torch.Tensor, options: {split_sizes: integer[], dim: integer?}): torch.Tensor[]
---@param self torch.Tensor
---@param split_sizes integer[]
---@param dim? integer
---@return torch.Tensor[]
function torch.split_with_sizes(self, split_sizes, dim) end
Tensor.split_with_sizes = torch.split_with_sizes
---@overload fun(self: torch.Tensor, options: {split_sizes: integer[], dim: integer?, out: torch.Tensor[]?}): torch.Tensor[]
---@param self torch.Tensor
---@param split_sizes integer[]
---@param dim? integer
---@param options? {out: torch.Tensor[]?}
---@return torch.Tensor[]
function torch.split_with_sizes_copy(self, split_sizes, dim, options) end
Tensor.split_with_sizes_copy = torch.split_with_sizes_copy
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.sqrt(self, options) end
Tensor.sqrt = torch.sqrt
---@param self torch.Tensor
---@return torch.Tensor
function torch.sqrt_(self) end
Tensor.sqrt_ = torch.sqrt_
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.square(self, options) end
Tensor.square = torch.square
---@param self torch.Tensor
---@return torch.Tensor
function torch.square_(self) end
Tensor.square_ = torch.square_
---@overload fun(self: torch.Tensor, options: {dim: integer}): torch.Tensor
---@overload fun(self: torch.Tensor, dim: integer[]): torch.Tensor
---@overload fun(self: torch.Tensor, ...: integer): torch.Tensor
---@overload fun(self: torch.Tensor): torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@return torch.Tensor
function torch.squeeze(self, dim) end
Tensor.squeeze = torch.squeeze
---@overload fun(self: torch.Tensor, options: {dim: integer}): torch.Tensor
---@overload fun(self: torch.Tensor, dim: integer[]): torch.Tensor
---@overload fun(self: torch.Tensor, ...: integer): torch.Tensor
---@overload fun(self: torch.Tensor): torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@return torch.Tensor
function torch.squeeze_(self, dim) end
Tensor.squeeze_ = torch.squeeze_
---@overload fun(self: torch.Tensor, options: {dim: integer, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Tensor, dim: integer[], options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, ...: integer|table): torch.Tensor
---@overload fun(self: torch.Tensor, options: {out: torch.Tensor?}?): torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.squeeze_copy(self, dim, options) end
Tensor.squeeze_copy = torch.squeeze_copy
---@param self torch.Tensor
---@param mat1 torch.Tensor
---@param mat2 torch.Tensor
---@param options? {beta: torch.Scalar?, alpha: torch.Scalar?, out: torch.Tensor?}
---@return torch.Tensor
function torch.sspaddmm(self, mat1, mat2, options) end
Tensor.sspaddmm = torch.sspaddmm
---@overload fun(tensors: torch.Tensor[], options: {dim: integer?, out: torch.Tensor?}): torch.Tensor
---@param tensors torch.Tensor[]
---@param dim? integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.stack(tensors, dim, options) end
---@overload fun(self: torch.Tensor, options: {dim: (integer|integer[])?, correction: torch.Scalar?, keepdim: boolean?, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Tensor, dim: (integer|integer[])?, unbiased: boolean?, keepdim: boolean?, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {dim: (integer|integer[])?, unbiased: boolean?, keepdim: boolean?, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Tensor, unbiased: boolean?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {unbiased: boolean?}): torch.Tensor
---@param self torch.Tensor
---@param dim? integer|integer[]
---@param options? {correction: torch.Scalar?, keepdim: boolean?, out: torch.Tensor?}
---@return torch.Tensor
function torch.std(self, dim, options) end
Tensor.std = torch.std
---@overload fun(self: torch.Tensor, options: {dim: (integer|integer[])?, correction: torch.Scalar?, keepdim: boolean?, out0: torch.Tensor?, out1: torch.Tensor?}): torch.Tensor, torch.Tensor
---@overload fun(self: torch.Tensor, dim: (integer|integer[])?, unbiased: boolean?, keepdim: boolean?): torch.Tensor, torch.Tensor
---@overload fun(self: torch.Tensor, options: {dim: (integer|integer[])?, unbiased: boolean?, keepdim: boolean?}): torch.Tensor, torch.Tensor
---@overload fun(self: torch.Tensor, unbiased: boolean?): torch.Tensor, torch.Tensor
---@overload fun(self: torch.Tensor, options: {unbiased: boolean?}): torch.Tensor, torch.Tensor
---@param self torch.Tensor
---@param dim? integer|integer[]
---@param options? {correction: torch.Scalar?, keepdim: boolean?, out0: torch.Tensor?, out1: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
function torch.std_mean(self, dim, options) end
Tensor.std_mean = torch.std_mean
---@overload fun(self: torch.Tensor, options: {n_fft: integer, hop_length: integer?, win_length: integer?, window: torch.Tensor?, center: boolean?, pad_mode: string?, normalized: boolean?, onesided: boolean?, return_complex: boolean?, align_to_window: boolean?}): torch.Tensor
---@overload fun(self: torch.Tensor, n_fft: integer, hop_length: integer?, win_length: integer?, window: torch.Tensor?, normalized: boolean?, onesided: boolean?, return_complex: boolean?, align_to_window: boolean?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {n_fft: integer, hop_length: integer?, win_length: integer?, window: torch.Tensor?, normalized: boolean?, onesided: boolean?, return_complex: boolean?, align_to_window: boolean?}): torch.Tensor
---@param self torch.Tensor
---@param n_fft integer
---@param hop_length? integer
---@param win_length? integer
---@param window? torch.Tensor
---@param center? boolean
---@param pad_mode? string
---@param normalized? boolean
---@param onesided? boolean
---@param return_complex? boolean
---@param align_to_window? boolean
---@return torch.Tensor
function torch.stft(self, n_fft, hop_length, win_length, window, center, pad_mode, normalized, onesided, return_complex, align_to_window) end
Tensor.stft = torch.stft
---@overload fun(self: torch.Tensor, options: {dim: integer}): integer
---@param self torch.Tensor
---@param dim integer
---@return integer
function torch.stride(self, dim) end
---@overload fun(self: torch.Tensor, other: torch.Scalar, alpha: torch.Scalar?, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar, alpha: torch.Scalar?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {alpha: torch.Scalar?, out: torch.Tensor?}
---@return torch.Tensor
function torch.sub(self, other, options) end
Tensor.sub = torch.sub
---@overload fun(self: torch.Tensor, other: torch.Scalar, alpha: torch.Scalar?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar, alpha: torch.Scalar?}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {alpha: torch.Scalar?}
---@return torch.Tensor
function torch.sub_(self, other, options) end
Tensor.sub_ = torch.sub_
---@overload fun(self: torch.Tensor, other: torch.Scalar, alpha: torch.Scalar?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar, alpha: torch.Scalar?}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {alpha: torch.Scalar?, out: torch.Tensor?}
---@return torch.Tensor
function torch.subtract(self, other, options) end
Tensor.subtract = torch.subtract
---@overload fun(self: torch.Tensor, other: torch.Scalar, alpha: torch.Scalar?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar, alpha: torch.Scalar?}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {alpha: torch.Scalar?}
---@return torch.Tensor
function torch.subtract_(self, other, options) end
Tensor.subtract_ = torch.subtract_
---@overload fun(self: torch.Tensor, options: {dim: (integer|integer[])?, keepdim: boolean?, dtype: torch.dtype?, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Tensor, options: {dtype: torch.dtype?, out: torch.Tensor?}?): torch.Tensor
---@param self torch.Tensor
---@param dim (integer|integer[])?
---@param keepdim? boolean
---@param options? {dtype: torch.dtype?, out: torch.Tensor?}
---@return torch.Tensor
function torch.sum(self, dim, keepdim, options) end
Tensor.sum = torch.sum
---@overload fun(self: torch.Tensor, ...: integer): torch.Tensor
---@param self torch.Tensor
---@param size integer[]
---@return torch.Tensor
function torch.sum_to_size(self, size) end
Tensor.sum_to_size = torch.sum_to_size
---@overload fun(self: torch.Tensor, options: {some: boolean?, compute_uv: boolean?, U: torch.Tensor?, S: torch.Tensor?, V: torch.Tensor?}): torch.Tensor, torch.Tensor, torch.Tensor
---@param self torch.Tensor
---@param some? boolean
---@param compute_uv? boolean
---@param options? {U: torch.Tensor?, S: torch.Tensor?, V: torch.Tensor?}
---@return torch.Tensor U
---@return torch.Tensor S
---@return torch.Tensor V
function torch.svd(self, some, compute_uv, options) end
Tensor.svd = torch.svd
---@overload fun(self: torch.Tensor, options: {axis0: integer, axis1: integer}): torch.Tensor
---@param self torch.Tensor
---@param axis0 integer
---@param axis1 integer
---@return torch.Tensor
function torch.swapaxes(self, axis0, axis1) end
Tensor.swapaxes = torch.swapaxes
---@overload fun(self: torch.Tensor, options: {axis0: integer, axis1: integer}): torch.Tensor
---@param self torch.Tensor
---@param axis0 integer
---@param axis1 integer
---@return torch.Tensor
function torch.swapaxes_(self, axis0, axis1) end
Tensor.swapaxes_ = torch.swapaxes_
---@overload fun(self: torch.Tensor, options: {dim0: integer, dim1: integer}): torch.Tensor
---@param self torch.Tensor
---@param dim0 integer
---@param dim1 integer
---@return torch.Tensor
function torch.swapdims(self, dim0, dim1) end
Tensor.swapdims = torch.swapdims
---@overload fun(self: torch.Tensor, options: {dim0: integer, dim1: integer}): torch.Tensor
---@param self torch.Tensor
---@param dim0 integer
---@param dim1 integer
---@return torch.Tensor
function torch.swapdims_(self, dim0, dim1) end
Tensor.swapdims_ = torch.swapdims_
---@param size torch.Scalar
---@param options? {min: integer?, max: integer?}
function torch.sym_constrain_range(size, options) end
---@param size torch.Scalar
---@param options? {min: integer?, max: integer?}
function torch.sym_constrain_range_for_size(size, options) end
---@overload fun(self: torch.Tensor, options: {memory_format: torch.memory_format?}): boolean
---@param self torch.Tensor
---@param memory_format? torch.memory_format
---@return boolean
function torch.sym_is_contiguous(self, memory_format) end
Tensor.sym_is_contiguous = torch.sym_is_contiguous
---@param self torch.Tensor
---@return integer
function torch.sym_numel(self) end
Tensor.sym_numel = torch.sym_numel
---@overload fun(self: torch.Tensor, options: {dim: integer}): integer
---@param self torch.Tensor
---@param dim integer
---@return integer
function torch.sym_size(self, dim) end
Tensor.sym_size = torch.sym_size
---@param self torch.Tensor
---@return integer
function torch.sym_storage_offset(self) end
Tensor.sym_storage_offset = torch.sym_storage_offset
---@overload fun(self: torch.Tensor, options: {dim: integer}): integer
---@param self torch.Tensor
---@param dim integer
---@return integer
function torch.sym_stride(self, dim) end
Tensor.sym_stride = torch.sym_stride
---@param self torch.Tensor
---@return torch.Tensor
function torch.t(self) end
Tensor.t = torch.t
---@param self torch.Tensor
---@return torch.Tensor
function torch.t_(self) end
Tensor.t_ = torch.t_
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.t_copy(self, options) end
Tensor.t_copy = torch.t_copy
---@param self torch.Tensor
---@param index torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.take(self, index, options) end
Tensor.take = torch.take
---@overload fun(self: torch.Tensor, indices: torch.Tensor, options: {dim: integer?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param indices torch.Tensor
---@param dim? integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.take_along_dim(self, indices, dim, options) end
Tensor.take_along_dim = torch.take_along_dim
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.tan(self, options) end
Tensor.tan = torch.tan
---@param self torch.Tensor
---@return torch.Tensor
function torch.tan_(self) end
Tensor.tan_ = torch.tan_
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.tanh(self, options) end
Tensor.tanh = torch.tanh
---@param self torch.Tensor
---@return torch.Tensor
function torch.tanh_(self) end
Tensor.tanh_ = torch.tanh_
---@param grad_output torch.Tensor
---@param output torch.Tensor
---@param options? {grad_input: torch.Tensor?}
---@return torch.Tensor
function torch.tanh_backward(grad_output, output, options) end
Tensor.tanh_backward = torch.tanh_backward
---@overload fun(self: torch.Tensor, tensor_indices_or_sections: torch.Tensor, options: {dim: integer?}): torch.Tensor[]
---@overload fun(self: torch.Tensor, indices: integer[], dim: integer?): torch.Tensor[]
---@overload fun(self: torch.Tensor, options: {indices: integer[], dim: integer?}): torch.Tensor[]
---@overload fun(self: torch.Tensor, sections: integer, dim: integer?): torch.Tensor[]
---@overload fun(self: torch.Tensor, options: {sections: integer, dim: integer?}): torch.Tensor[]
---@param self torch.Tensor
---@param tensor_indices_or_sections torch.Tensor
---@param dim? integer
---@return torch.Tensor[]
function torch.tensor_split(self, tensor_indices_or_sections, dim) end
Tensor.tensor_split = torch.tensor_split
---@overload fun(self: torch.Tensor, other: torch.Tensor|number, dims_self: integer[], ...: integer|table): torch.Tensor
---@overload fun(self: torch.Tensor, other: torch.Tensor|number, options: {dims_self: integer[], dims_other: integer[], out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param dims_self integer[]
---@param dims_other integer[]
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.tensordot(self, other, dims_self, dims_other, options) end
Tensor.tensordot = torch.tensordot
---@overload fun(self: torch.Tensor, weight: torch.Tensor, options: {kernel_size: integer|integer[], bias: torch.Tensor?, stride: (integer|integer[])?, padding: (integer|integer[])?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param weight torch.Tensor
---@param kernel_size integer|integer[]
---@param bias? torch.Tensor
---@param stride? integer|integer[]
---@param padding? integer|integer[]
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.thnn_conv2d(self, weight, kernel_size, bias, stride, padding, options) end
Tensor.thnn_conv2d = torch.thnn_conv2d
---@overload fun(self: torch.Tensor, options: {threshold: torch.Scalar, value: torch.Scalar, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param threshold torch.Scalar
---@param value torch.Scalar
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.threshold(self, threshold, value, options) end
Tensor.threshold = torch.threshold
---@overload fun(self: torch.Tensor, options: {threshold: torch.Scalar, value: torch.Scalar}): torch.Tensor
---@param self torch.Tensor
---@param threshold torch.Scalar
---@param value torch.Scalar
---@return torch.Tensor
function torch.threshold_(self, threshold, value) end
Tensor.threshold_ = torch.threshold_
---@overload fun(grad_output: torch.Tensor, self: torch.Tensor|number, options: {threshold: torch.Scalar, grad_input: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param self torch.Tensor|number
---@param threshold torch.Scalar
---@param options? {grad_input: torch.Tensor?}
---@return torch.Tensor
function torch.threshold_backward(grad_output, self, threshold, options) end
Tensor.threshold_backward = torch.threshold_backward
---@overload fun(self: torch.Tensor, ...: integer): torch.Tensor
---@param self torch.Tensor
---@param dims integer[]
---@return torch.Tensor
function torch.tile(self, dims) end
Tensor.tile = torch.tile
---@overload fun(self: torch.Tensor, device: string, dtype: torch.dtype, non_blocking: boolean?, copy: boolean?, memory_format: torch.memory_format?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {device: string, dtype: torch.dtype, non_blocking: boolean?, copy: boolean?, memory_format: torch.memory_format?}): torch.Tensor
---@overload fun(self: torch.Tensor, dtype: torch.dtype, non_blocking: boolean?, copy: boolean?, memory_format: torch.memory_format?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {dtype: torch.dtype, non_blocking: boolean?, copy: boolean?, memory_format: torch.memory_format?}): torch.Tensor
---@overload fun(self: torch.Tensor, other: torch.Tensor|number, non_blocking: boolean?, copy: boolean?, memory_format: torch.memory_format?): torch.Tensor
---@overload fun(self: torch.Tensor, other: torch.Tensor|number, options: {non_blocking: boolean?, copy: boolean?, memory_format: torch.memory_format?}): torch.Tensor
---@param self torch.Tensor
---@param options? {dtype: torch.dtype?, layout: torch.layout?, device: string?, pin_memory: boolean?, requires_grad: boolean?, non_blocking: boolean?, copy: boolean?, memory_format: torch.memory_format?}
---@return torch.Tensor
function torch.to(self, options) end
---@overload fun(self: torch.Tensor, options: {dtype: torch.dtype?, masked_grad: boolean?}): torch.Tensor
---@param self torch.Tensor
---@param dtype? torch.dtype
---@param options? {masked_grad: boolean?}
---@return torch.Tensor
function torch.to_dense(self, dtype, options) end
Tensor.to_dense = torch.to_dense
---@overload fun(grad: torch.Tensor, input: torch.Tensor, options: {masked_grad: boolean?}): torch.Tensor
---@param grad torch.Tensor
---@param input torch.Tensor
---@param masked_grad? boolean
---@return torch.Tensor
function torch.to_dense_backward(grad, input, masked_grad) end
Tensor.to_dense_backward = torch.to_dense_backward
---@overload fun(self: torch.Tensor, options: {dtype: torch.dtype?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param dtype? torch.dtype
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.to_mkldnn(self, dtype, options) end
Tensor.to_mkldnn = torch.to_mkldnn
---@param grad torch.Tensor
---@param input torch.Tensor
---@return torch.Tensor
function torch.to_mkldnn_backward(grad, input) end
Tensor.to_mkldnn_backward = torch.to_mkldnn_backward
---@overload fun(self: torch.Tensor, padding: number, ...: integer|table): torch.Tensor
---@overload fun(self: torch.Tensor, options: {padding: number, output_size: integer[]?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param padding number
---@param output_size? integer[]
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.to_padded_tensor(self, padding, output_size, options) end
Tensor.to_padded_tensor = torch.to_padded_tensor
---@overload fun(self: torch.Tensor, sparse_dim: integer): torch.Tensor
---@overload fun(self: torch.Tensor, options: {sparse_dim: integer}): torch.Tensor
---@param self torch.Tensor
---@param options? {layout: torch.layout?, blocksize: (integer|integer[])?, dense_dim: integer?}
---@return torch.Tensor
function torch.to_sparse(self, options) end
Tensor.to_sparse = torch.to_sparse
---@overload fun(self: torch.Tensor, options: {blocksize: integer|integer[], dense_dim: integer?}): torch.Tensor
---@param self torch.Tensor
---@param blocksize integer|integer[]
---@param dense_dim? integer
---@return torch.Tensor
function torch.to_sparse_bsc(self, blocksize, dense_dim) end
Tensor.to_sparse_bsc = torch.to_sparse_bsc
---@overload fun(self: torch.Tensor, options: {blocksize: integer|integer[], dense_dim: integer?}): torch.Tensor
---@param self torch.Tensor
---@param blocksize integer|integer[]
---@param dense_dim? integer
---@return torch.Tensor
function torch.to_sparse_bsr(self, blocksize, dense_dim) end
Tensor.to_sparse_bsr = torch.to_sparse_bsr
---@overload fun(self: torch.Tensor, options: {dense_dim: integer?}): torch.Tensor
---@param self torch.Tensor
---@param dense_dim? integer
---@return torch.Tensor
function torch.to_sparse_csc(self, dense_dim) end
Tensor.to_sparse_csc = torch.to_sparse_csc
---@overload fun(self: torch.Tensor, options: {dense_dim: integer?}): torch.Tensor
---@param self torch.Tensor
---@param dense_dim? integer
---@return torch.Tensor
function torch.to_sparse_csr(self, dense_dim) end
Tensor.to_sparse_csr = torch.to_sparse_csr
---@overload fun(self: torch.Tensor, options: {k: integer, dim: integer?, largest: boolean?, sorted: boolean?, values: torch.Tensor?, indices: torch.Tensor?}): torch.Tensor, torch.Tensor
---@param self torch.Tensor
---@param k integer
---@param dim? integer
---@param largest? boolean
---@param sorted? boolean
---@param options? {values: torch.Tensor?, indices: torch.Tensor?}
---@return torch.Tensor values
---@return torch.Tensor indices
function torch.topk(self, k, dim, largest, sorted, options) end
Tensor.topk = torch.topk
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.trace(self, options) end
Tensor.trace = torch.trace
---@overload fun(grad: torch.Tensor, ...: integer): torch.Tensor
---@param grad torch.Tensor
---@param sizes integer[]
---@return torch.Tensor
function torch.trace_backward(grad, sizes) end
Tensor.trace_backward = torch.trace_backward
---@overload fun(self: torch.Tensor, options: {dim0: integer, dim1: integer}): torch.Tensor
---@param self torch.Tensor
---@param dim0 integer
---@param dim1 integer
---@return torch.Tensor
function torch.transpose(self, dim0, dim1) end
Tensor.transpose = torch.transpose
---@overload fun(self: torch.Tensor, options: {dim0: integer, dim1: integer}): torch.Tensor
---@param self torch.Tensor
---@param dim0 integer
---@param dim1 integer
---@return torch.Tensor
function torch.transpose_(self, dim0, dim1) end
Tensor.transpose_ = torch.transpose_
---@overload fun(self: torch.Tensor, options: {dim0: integer, dim1: integer, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param dim0 integer
---@param dim1 integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.transpose_copy(self, dim0, dim1, options) end
Tensor.transpose_copy = torch.transpose_copy
---@overload fun(y: torch.Tensor, options: {dx: torch.Scalar?, dim: integer?}?): torch.Tensor
---@param y torch.Tensor
---@param x torch.Tensor
---@param options? {dim: integer?}
---@return torch.Tensor
function torch.trapezoid(y, x, options) end
Tensor.trapezoid = torch.trapezoid
---@overload fun(y: torch.Tensor, options: {dx: number?, dim: integer?}?): torch.Tensor
---@param y torch.Tensor
---@param x torch.Tensor
---@param options? {dim: integer?}
---@return torch.Tensor
function torch.trapz(y, x, options) end
Tensor.trapz = torch.trapz
---@overload fun(self: torch.Tensor, A: torch.Tensor, options: {upper: boolean?, transpose: boolean?, unitriangular: boolean?, X: torch.Tensor?, M: torch.Tensor?}): torch.Tensor, torch.Tensor
---@param self torch.Tensor
---@param A torch.Tensor
---@param upper? boolean
---@param transpose? boolean
---@param unitriangular? boolean
---@param options? {X: torch.Tensor?, M: torch.Tensor?}
---@return torch.Tensor solution
---@return torch.Tensor cloned_coefficient
function torch.triangular_solve(self, A, upper, transpose, unitriangular, options) end
Tensor.triangular_solve = torch.triangular_solve
---@overload fun(self: torch.Tensor, options: {diagonal: integer?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param diagonal? integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.tril(self, diagonal, options) end
Tensor.tril = torch.tril
---@overload fun(self: torch.Tensor, options: {diagonal: integer?}): torch.Tensor
---@param self torch.Tensor
---@param diagonal? integer
---@return torch.Tensor
function torch.tril_(self, diagonal) end
Tensor.tril_ = torch.tril_
---@overload fun(row: integer, col: integer, options: {offset: integer?, dtype: torch.dtype?, layout: torch.layout?, device: string?, pin_memory: boolean?, requires_grad: boolean?}): torch.Tensor
---@overload fun(row: integer, col: integer, offset: integer?, options: {out: torch.Tensor}): torch.Tensor
---@overload fun(row: integer, col: integer, options: {offset: integer?, out: torch.Tensor}): torch.Tensor
---@param row integer
---@param col integer
---@param offset? integer
---@param options? torch.FactoryOptions
---@return torch.Tensor
function torch.tril_indices(row, col, offset, options) end
---@overload fun(anchor: torch.Tensor, positive: torch.Tensor, negative: torch.Tensor, options: {margin: number?, p: number?, eps: number?, swap: boolean?, reduction: integer?}): torch.Tensor
---@param anchor torch.Tensor
---@param positive torch.Tensor
---@param negative torch.Tensor
---@param margin? number
---@param p? number
---@param eps? number
---@param swap? boolean
---@param reduction? integer
---@return torch.Tensor
function torch.triplet_margin_loss(anchor, positive, negative, margin, p, eps, swap, reduction) end
Tensor.triplet_margin_loss = torch.triplet_margin_loss
---@overload fun(self: torch.Tensor, options: {diagonal: integer?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param diagonal? integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.triu(self, diagonal, options) end
Tensor.triu = torch.triu
---@overload fun(self: torch.Tensor, options: {diagonal: integer?}): torch.Tensor
---@param self torch.Tensor
---@param diagonal? integer
---@return torch.Tensor
function torch.triu_(self, diagonal) end
Tensor.triu_ = torch.triu_
---@overload fun(row: integer, col: integer, options: {offset: integer?, dtype: torch.dtype?, layout: torch.layout?, device: string?, pin_memory: boolean?, requires_grad: boolean?}): torch.Tensor
---@overload fun(row: integer, col: integer, offset: integer?, options: {out: torch.Tensor}): torch.Tensor
---@overload fun(row: integer, col: integer, options: {offset: integer?, out: torch.Tensor}): torch.Tensor
---@param row integer
---@param col integer
---@param offset? integer
---@param options? torch.FactoryOptions
---@return torch.Tensor
function torch.triu_indices(row, col, offset, options) end
---@overload fun(self: torch.Tensor, other: torch.Scalar): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.true_divide(self, other, options) end
Tensor.true_divide = torch.true_divide
---@overload fun(self: torch.Tensor, other: torch.Scalar): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return torch.Tensor
function torch.true_divide_(self, other) end
Tensor.true_divide_ = torch.true_divide_
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.trunc(self, options) end
Tensor.trunc = torch.trunc
---@param self torch.Tensor
---@return torch.Tensor
function torch.trunc_(self) end
Tensor.trunc_ = torch.trunc_
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return torch.Tensor
function torch.type_as(self, other) end
Tensor.type_as = torch.type_as
---@overload fun(self: torch.Tensor, options: {dim: integer?}): torch.Tensor[]
---@param self torch.Tensor
---@param dim? integer
---@return torch.Tensor[]
function torch.unbind(self, dim) end
Tensor.unbind = torch.unbind
---@overload fun(self: torch.Tensor, options: {dim: integer?, out: torch.Tensor[]?}): torch.Tensor[]
---@param self torch.Tensor
---@param dim? integer
---@param options? {out: torch.Tensor[]?}
---@return torch.Tensor[]
function torch.unbind_copy(self, dim, options) end
Tensor.unbind_copy = torch.unbind_copy
---@overload fun(self: torch.Tensor, dim: integer, ...: integer): torch.Tensor
---@overload fun(self: torch.Tensor, options: {dim: integer, sizes: integer[]}): torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@param sizes integer[]
---@return torch.Tensor
function torch.unflatten(self, dim, sizes) end
Tensor.unflatten = torch.unflatten
---@param flat torch.Tensor
---@param tensors torch.Tensor[]
---@return torch.Tensor[]
function torch.unflatten_dense_tensors(flat, tensors) end
Tensor.unflatten_dense_tensors = torch.unflatten_dense_tensors
---@overload fun(self: torch.Tensor, options: {dimension: integer, size: integer, step: integer}): torch.Tensor
---@param self torch.Tensor
---@param dimension integer
---@param size integer
---@param step integer
---@return torch.Tensor
function torch.unfold(self, dimension, size, step) end
Tensor.unfold = torch.unfold
---@overload fun(grad_in: torch.Tensor, options: {input_sizes: integer[], dim: integer, size: integer, step: integer, out: torch.Tensor?}): torch.Tensor
---@param grad_in torch.Tensor
---@param input_sizes integer[]
---@param dim integer
---@param size integer
---@param step integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.unfold_backward(grad_in, input_sizes, dim, size, step, options) end
Tensor.unfold_backward = torch.unfold_backward
---@overload fun(self: torch.Tensor, options: {dimension: integer, size: integer, step: integer, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param dimension integer
---@param size integer
---@param step integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.unfold_copy(self, dimension, size, step, options) end
Tensor.unfold_copy = torch.unfold_copy
---@overload fun(self: torch.Tensor, options: {from: number?, to: number?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param from? number
---@param to? number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.uniform(self, from, to, options) end
Tensor.uniform = torch.uniform
---@overload fun(self: torch.Tensor, options: {from: number?, to: number?}): torch.Tensor
---@param self torch.Tensor
---@param from? number
---@param to? number
---@return torch.Tensor
function torch.uniform_(self, from, to) end
Tensor.uniform_ = torch.uniform_
---@overload fun(self: torch.Tensor, options: {return_inverse: boolean?, return_counts: boolean?, dim: integer?, out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?}): torch.Tensor, torch.Tensor, torch.Tensor
---@param self torch.Tensor
---@param return_inverse? boolean
---@param return_counts? boolean
---@param dim? integer
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch.unique_consecutive(self, return_inverse, return_counts, dim, options) end
Tensor.unique_consecutive = torch.unique_consecutive
---@overload fun(self: torch.Tensor, options: {dim: integer, sorted: boolean?, return_inverse: boolean?, return_counts: boolean?, out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?}): torch.Tensor, torch.Tensor, torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@param sorted? boolean
---@param return_inverse? boolean
---@param return_counts? boolean
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch.unique_dim(self, dim, sorted, return_inverse, return_counts, options) end
Tensor.unique_dim = torch.unique_dim
---@overload fun(self: torch.Tensor, options: {dim: integer, return_inverse: boolean?, return_counts: boolean?, out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?}): torch.Tensor, torch.Tensor, torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@param return_inverse? boolean
---@param return_counts? boolean
---@param options? {out0: torch.Tensor?, out1: torch.Tensor?, out2: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
---@return torch.Tensor
function torch.unique_dim_consecutive(self, dim, return_inverse, return_counts, options) end
Tensor.unique_dim_consecutive = torch.unique_dim_consecutive
---@overload fun(self: torch.Tensor, options: {chunks: integer, dim: integer?}): torch.Tensor[]
---@param self torch.Tensor
---@param chunks integer
---@param dim? integer
---@return torch.Tensor[]
function torch.unsafe_chunk(self, chunks, dim) end
Tensor.unsafe_chunk = torch.unsafe_chunk
---@overload fun(self: torch.Tensor, options: {split_size: integer, dim: integer?, out: torch.Tensor[]?}): torch.Tensor[]
---@param self torch.Tensor
---@param split_size integer
---@param dim? integer
---@param options? {out: torch.Tensor[]?}
---@return torch.Tensor[]
function torch.unsafe_split(self, split_size, dim, options) end
Tensor.unsafe_split = torch.unsafe_split
---@overload fun(self: torch.Tensor, options: {split_sizes: integer[], dim: integer?, out: torch.Tensor[]?}): torch.Tensor[]
---@param self torch.Tensor
---@param split_sizes integer[]
---@param dim? integer
---@param options? {out: torch.Tensor[]?}
---@return torch.Tensor[]
function torch.unsafe_split_with_sizes(self, split_sizes, dim, options) end
Tensor.unsafe_split_with_sizes = torch.unsafe_split_with_sizes
---@overload fun(self: torch.Tensor, options: {dim: integer}): torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@return torch.Tensor
function torch.unsqueeze(self, dim) end
Tensor.unsqueeze = torch.unsqueeze
---@overload fun(self: torch.Tensor, options: {dim: integer}): torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@return torch.Tensor
function torch.unsqueeze_(self, dim) end
Tensor.unsqueeze_ = torch.unsqueeze_
---@overload fun(self: torch.Tensor, options: {dim: integer, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param dim integer
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.unsqueeze_copy(self, dim, options) end
Tensor.unsqueeze_copy = torch.unsqueeze_copy
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
function torch.upsample_bicubic2d(self, output_size, align_corners, scales_h, scales_w, options) end
Tensor.upsample_bicubic2d = torch.upsample_bicubic2d
---@overload fun(grad_output: torch.Tensor, options: {output_size: integer|integer[], input_size: integer|integer[], align_corners: boolean, scales_h: number?, scales_w: number?, grad_input: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param output_size integer|integer[]
---@param input_size integer|integer[]
---@param align_corners boolean
---@param scales_h? number
---@param scales_w? number
---@param options? {grad_input: torch.Tensor?}
---@return torch.Tensor
function torch.upsample_bicubic2d_backward(grad_output, output_size, input_size, align_corners, scales_h, scales_w, options) end
Tensor.upsample_bicubic2d_backward = torch.upsample_bicubic2d_backward
---@overload fun(self: torch.Tensor, options: {output_size: integer|integer[], align_corners: boolean, scales_h: number?, scales_w: number?, out: torch.Tensor?}): torch.Tensor
---@overload fun(input: torch.Tensor, output_size: integer[]?, align_corners: boolean, scale_factors: number[]?, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(input: torch.Tensor, options: {output_size: integer[]?, align_corners: boolean, scale_factors: number[]?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param output_size integer|integer[]
---@param align_corners boolean
---@param scales_h? number
---@param scales_w? number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.upsample_bilinear2d(self, output_size, align_corners, scales_h, scales_w, options) end
Tensor.upsample_bilinear2d = torch.upsample_bilinear2d
---@overload fun(grad_output: torch.Tensor, options: {output_size: integer|integer[], input_size: integer|integer[], align_corners: boolean, scales_h: number?, scales_w: number?, grad_input: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param output_size integer|integer[]
---@param input_size integer|integer[]
---@param align_corners boolean
---@param scales_h? number
---@param scales_w? number
---@param options? {grad_input: torch.Tensor?}
---@return torch.Tensor
function torch.upsample_bilinear2d_backward(grad_output, output_size, input_size, align_corners, scales_h, scales_w, options) end
Tensor.upsample_bilinear2d_backward = torch.upsample_bilinear2d_backward
---@overload fun(self: torch.Tensor, options: {output_size: integer|integer[], align_corners: boolean, scales: number?, out: torch.Tensor?}): torch.Tensor
---@overload fun(input: torch.Tensor, output_size: integer[]?, align_corners: boolean, scale_factors: number[]?): torch.Tensor
---@overload fun(input: torch.Tensor, options: {output_size: integer[]?, align_corners: boolean, scale_factors: number[]?}): torch.Tensor
---@param self torch.Tensor
---@param output_size integer|integer[]
---@param align_corners boolean
---@param scales? number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.upsample_linear1d(self, output_size, align_corners, scales, options) end
Tensor.upsample_linear1d = torch.upsample_linear1d
---@overload fun(grad_output: torch.Tensor, options: {output_size: integer|integer[], input_size: integer|integer[], align_corners: boolean, scales: number?, grad_input: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param output_size integer|integer[]
---@param input_size integer|integer[]
---@param align_corners boolean
---@param scales? number
---@param options? {grad_input: torch.Tensor?}
---@return torch.Tensor
function torch.upsample_linear1d_backward(grad_output, output_size, input_size, align_corners, scales, options) end
Tensor.upsample_linear1d_backward = torch.upsample_linear1d_backward
---@overload fun(self: torch.Tensor, options: {output_size: integer|integer[], scales: number?, out: torch.Tensor?}): torch.Tensor
---@overload fun(input: torch.Tensor, output_size: integer[]?, scale_factors: number[]?): torch.Tensor
---@overload fun(input: torch.Tensor, options: {output_size: integer[]?, scale_factors: number[]?}): torch.Tensor
---@param self torch.Tensor
---@param output_size integer|integer[]
---@param scales? number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.upsample_nearest1d(self, output_size, scales, options) end
Tensor.upsample_nearest1d = torch.upsample_nearest1d
---@overload fun(grad_output: torch.Tensor, options: {output_size: integer|integer[], input_size: integer|integer[], scales: number?, grad_input: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param output_size integer|integer[]
---@param input_size integer|integer[]
---@param scales? number
---@param options? {grad_input: torch.Tensor?}
---@return torch.Tensor
function torch.upsample_nearest1d_backward(grad_output, output_size, input_size, scales, options) end
Tensor.upsample_nearest1d_backward = torch.upsample_nearest1d_backward
---@overload fun(self: torch.Tensor, options: {output_size: integer|integer[], scales_h: number?, scales_w: number?, out: torch.Tensor?}): torch.Tensor
---@overload fun(input: torch.Tensor, output_size: integer[]?, scale_factors: number[]?, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(input: torch.Tensor, options: {output_size: integer[]?, scale_factors: number[]?, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param output_size integer|integer[]
---@param scales_h? number
---@param scales_w? number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.upsample_nearest2d(self, output_size, scales_h, scales_w, options) end
Tensor.upsample_nearest2d = torch.upsample_nearest2d
---@overload fun(grad_output: torch.Tensor, options: {output_size: integer|integer[], input_size: integer|integer[], scales_h: number?, scales_w: number?, grad_input: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param output_size integer|integer[]
---@param input_size integer|integer[]
---@param scales_h? number
---@param scales_w? number
---@param options? {grad_input: torch.Tensor?}
---@return torch.Tensor
function torch.upsample_nearest2d_backward(grad_output, output_size, input_size, scales_h, scales_w, options) end
Tensor.upsample_nearest2d_backward = torch.upsample_nearest2d_backward
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
function torch.upsample_nearest3d(self, output_size, scales_d, scales_h, scales_w, options) end
Tensor.upsample_nearest3d = torch.upsample_nearest3d
---@overload fun(grad_output: torch.Tensor, options: {output_size: integer|integer[], input_size: integer|integer[], scales_d: number?, scales_h: number?, scales_w: number?, grad_input: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param output_size integer|integer[]
---@param input_size integer|integer[]
---@param scales_d? number
---@param scales_h? number
---@param scales_w? number
---@param options? {grad_input: torch.Tensor?}
---@return torch.Tensor
function torch.upsample_nearest3d_backward(grad_output, output_size, input_size, scales_d, scales_h, scales_w, options) end
Tensor.upsample_nearest3d_backward = torch.upsample_nearest3d_backward
---@overload fun(self: torch.Tensor, options: {output_size: integer|integer[], align_corners: boolean, scales_d: number?, scales_h: number?, scales_w: number?, out: torch.Tensor?}): torch.Tensor
---@overload fun(input: torch.Tensor, output_size: integer[]?, align_corners: boolean, scale_factors: number[]?): torch.Tensor
---@overload fun(input: torch.Tensor, options: {output_size: integer[]?, align_corners: boolean, scale_factors: number[]?}): torch.Tensor
---@param self torch.Tensor
---@param output_size integer|integer[]
---@param align_corners boolean
---@param scales_d? number
---@param scales_h? number
---@param scales_w? number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.upsample_trilinear3d(self, output_size, align_corners, scales_d, scales_h, scales_w, options) end
Tensor.upsample_trilinear3d = torch.upsample_trilinear3d
---@overload fun(grad_output: torch.Tensor, options: {output_size: integer|integer[], input_size: integer|integer[], align_corners: boolean, scales_d: number?, scales_h: number?, scales_w: number?, grad_input: torch.Tensor?}): torch.Tensor
---@param grad_output torch.Tensor
---@param output_size integer|integer[]
---@param input_size integer|integer[]
---@param align_corners boolean
---@param scales_d? number
---@param scales_h? number
---@param scales_w? number
---@param options? {grad_input: torch.Tensor?}
---@return torch.Tensor
function torch.upsample_trilinear3d_backward(grad_output, output_size, input_size, align_corners, scales_d, scales_h, scales_w, options) end
Tensor.upsample_trilinear3d_backward = torch.upsample_trilinear3d_backward
---@overload fun(grad: torch.Tensor, options: {dim: integer, indices: torch.Tensor, sizes: integer[], keepdim: boolean}): torch.Tensor
---@param grad torch.Tensor
---@param dim integer
---@param indices torch.Tensor
---@param sizes integer[]
---@param keepdim boolean
---@return torch.Tensor
function torch.value_selecting_reduction_backward(grad, dim, indices, sizes, keepdim) end
Tensor.value_selecting_reduction_backward = torch.value_selecting_reduction_backward
---@param self torch.Tensor
---@return torch.Tensor
function torch.values(self) end
Tensor.values = torch.values
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.values_copy(self, options) end
Tensor.values_copy = torch.values_copy
---@overload fun(x: torch.Tensor, options: {N: integer?, increasing: boolean?}): torch.Tensor
---@param x torch.Tensor
---@param N? integer
---@param increasing? boolean
---@return torch.Tensor
function torch.vander(x, N, increasing) end
Tensor.vander = torch.vander
---@overload fun(self: torch.Tensor, options: {dim: (integer|integer[])?, correction: torch.Scalar?, keepdim: boolean?, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Tensor, dim: (integer|integer[])?, unbiased: boolean?, keepdim: boolean?, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {dim: (integer|integer[])?, unbiased: boolean?, keepdim: boolean?, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Tensor, unbiased: boolean?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {unbiased: boolean?}): torch.Tensor
---@param self torch.Tensor
---@param dim? integer|integer[]
---@param options? {correction: torch.Scalar?, keepdim: boolean?, out: torch.Tensor?}
---@return torch.Tensor
function torch.var(self, dim, options) end
Tensor.var = torch.var
---@overload fun(self: torch.Tensor, options: {dim: (integer|integer[])?, correction: torch.Scalar?, keepdim: boolean?, out0: torch.Tensor?, out1: torch.Tensor?}): torch.Tensor, torch.Tensor
---@overload fun(self: torch.Tensor, dim: (integer|integer[])?, unbiased: boolean?, keepdim: boolean?): torch.Tensor, torch.Tensor
---@overload fun(self: torch.Tensor, options: {dim: (integer|integer[])?, unbiased: boolean?, keepdim: boolean?}): torch.Tensor, torch.Tensor
---@overload fun(self: torch.Tensor, unbiased: boolean?): torch.Tensor, torch.Tensor
---@overload fun(self: torch.Tensor, options: {unbiased: boolean?}): torch.Tensor, torch.Tensor
---@param self torch.Tensor
---@param dim? integer|integer[]
---@param options? {correction: torch.Scalar?, keepdim: boolean?, out0: torch.Tensor?, out1: torch.Tensor?}
---@return torch.Tensor
---@return torch.Tensor
function torch.var_mean(self, dim, options) end
Tensor.var_mean = torch.var_mean
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.vdot(self, other, options) end
Tensor.vdot = torch.vdot
---@overload fun(self: torch.Tensor, ...: integer): torch.Tensor
---@overload fun(self: torch.Tensor, dtype: torch.dtype): torch.Tensor
---@overload fun(self: torch.Tensor, options: {dtype: torch.dtype}): torch.Tensor
---@param self torch.Tensor
---@param size integer[]
---@return torch.Tensor
function torch.view(self, size) end
Tensor.view = torch.view
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return torch.Tensor
function torch.view_as(self, other) end
Tensor.view_as = torch.view_as
---@param self torch.Tensor
---@return torch.Tensor
function torch.view_as_complex(self) end
Tensor.view_as_complex = torch.view_as_complex
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.view_as_complex_copy(self, options) end
Tensor.view_as_complex_copy = torch.view_as_complex_copy
---@param self torch.Tensor
---@return torch.Tensor
function torch.view_as_real(self) end
Tensor.view_as_real = torch.view_as_real
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.view_as_real_copy(self, options) end
Tensor.view_as_real_copy = torch.view_as_real_copy
---@overload fun(self: torch.Tensor, ...: integer|table): torch.Tensor
---@overload fun(self: torch.Tensor, dtype: torch.dtype, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {dtype: torch.dtype, out: torch.Tensor?}): torch.Tensor
---@param self torch.Tensor
---@param size integer[]
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.view_copy(self, size, options) end
Tensor.view_copy = torch.view_copy
---@overload fun(self: torch.Tensor, ...: integer): torch.Tensor[]
---@overload fun(self: torch.Tensor, sections: integer): torch.Tensor[]
---@overload fun(self: torch.Tensor, options: {sections: integer}): torch.Tensor[]
---@param self torch.Tensor
---@param indices integer[]
---@return torch.Tensor[]
function torch.vsplit(self, indices) end
Tensor.vsplit = torch.vsplit
---@param tensors torch.Tensor[]
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.vstack(tensors, options) end
---@overload fun(condition: torch.Tensor, self: torch.Tensor|number, other: torch.Scalar): torch.Tensor
---@overload fun(condition: torch.Tensor, self: torch.Tensor|number, options: {other: torch.Scalar}): torch.Tensor
---@overload fun(condition: torch.Tensor, self: torch.Scalar, other: torch.Tensor|number): torch.Tensor
---@overload fun(condition: torch.Tensor, options: {self: torch.Scalar, other: torch.Tensor|number}): torch.Tensor
---@overload fun(condition: torch.Tensor, self: torch.Scalar, other: torch.Scalar): torch.Tensor
---@overload fun(condition: torch.Tensor, options: {self: torch.Scalar, other: torch.Scalar}): torch.Tensor
---@overload fun(condition: torch.Tensor): torch.Tensor[]
---@param condition torch.Tensor
---@param self torch.Tensor|number
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.where(condition, self, other, options) end
Tensor.where = torch.where
---@overload fun(self: torch.Tensor, other: torch.Scalar, options: {out: torch.Tensor?}?): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar, out: torch.Tensor?}): torch.Tensor
---@overload fun(self: torch.Scalar, other: torch.Tensor|number, options: {out: torch.Tensor?}?): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.xlogy(self, other, options) end
Tensor.xlogy = torch.xlogy
---@overload fun(self: torch.Tensor, other: torch.Scalar): torch.Tensor
---@overload fun(self: torch.Tensor, options: {other: torch.Scalar}): torch.Tensor
---@param self torch.Tensor
---@param other torch.Tensor|number
---@return torch.Tensor
function torch.xlogy_(self, other) end
Tensor.xlogy_ = torch.xlogy_
---@param self torch.Tensor
---@param options? {out: torch.Tensor?}
---@return torch.Tensor
function torch.zero(self, options) end
Tensor.zero = torch.zero
---@param self torch.Tensor
---@return torch.Tensor
function torch.zero_(self) end
Tensor.zero_ = torch.zero_
---@overload fun(...: integer|table): torch.Tensor
---@overload fun(size: integer[], options: {out: torch.Tensor}): torch.Tensor
---@param size integer[]
---@param options? torch.FactoryOptions
---@return torch.Tensor
function torch.zeros(size, options) end
---@overload fun(self: torch.Tensor, options: {memory_format: torch.memory_format?, out: torch.Tensor}): torch.Tensor
---@param self torch.Tensor
---@param options? {dtype: torch.dtype?, layout: torch.layout?, device: string?, pin_memory: boolean?, requires_grad: boolean?, memory_format: torch.memory_format?}
---@return torch.Tensor
function torch.zeros_like(self, options) end
Tensor.zeros_like = torch.zeros_like

return torch
