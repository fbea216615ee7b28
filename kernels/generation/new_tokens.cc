// The layers of a decoder on one new token of each sequence: their steps without operators between.
// A product reads its weight through all caches. So an operator after it finds neither its code nor
// its inputs in the second cache, and takes 7 us in place of 1. The steps here call the kernels,
// whose code is short, on memory that the last step has just written.

#include <algorithm>
#include <cstdint>
#include <optional>

#include "ATen/EmptyTensor.h"
#include "ATen/TensorOperators.h"
#include "ATen/core/LegacyTypeDispatch.h"
#include "base/torch/operators.h"
#include "c10/util/Exception.h"
#include "kernels/aten/parallel.h"
#include "kernels/generation/generation.h"
#include "kernels/inputs.h"
#include "kernels/kernels.h"
#include "kernels/rows.h"
#include "torch/csrc/autograd/functions/utils.h"
#include "torch/library.h"

namespace lockstep::kernels {
namespace {

using Mask = std::optional<at::Tensor>;
using AttentionSignature = at::Tensor(const at::Tensor&, const at::Tensor&, at::TensorList,
                                      at::TensorList, at::TensorList, double, const at::Tensor&,
                                      const at::Tensor&, at::Tensor&, at::Tensor&, int64_t, int64_t,
                                      const Mask&);
using MlpSignature = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                at::TensorList, at::TensorList, double);

constexpr char kAttention[] = "attention_of_new_tokens", kMlp[] = "mlp_of_new_tokens";

// All biases may be missing, or those after the first three.
void CheckCounts(const char* op, const at::Tensor& x, at::TensorList weights, size_t num_weights,
                 at::TensorList biases) {
  TORCH_CHECK_VALUE(x.dim() == 2, op, ": x must have shape [sequences, hidden], got ", x.sizes());
  TORCH_CHECK_VALUE(weights.size() == num_weights, op, ": expected ", num_weights, " weights, got ",
                    weights.size());
  TORCH_CHECK_VALUE(biases.empty() || biases.size() == 3 || biases.size() == num_weights, op,
                    ": expected no biases, 3 or ", num_weights, ", got ", biases.size());
}

std::optional<at::Tensor> At(at::TensorList biases, size_t i) {
  return i < biases.size() ? std::optional(biases[i]) : std::nullopt;
}

// --- By the operators of this library

at::Tensor ComposedAttention(const at::Tensor& x, const at::Tensor& norm, at::TensorList weights,
                             at::TensorList biases, at::TensorList head_norms, double eps,
                             const at::Tensor& cos, const at::Tensor& sin, at::Tensor& keys,
                             at::Tensor& values, int64_t column, int64_t first, const Mask& mask) {
  const at::Tensor h = RmsNorm(x, norm, eps);
  at::Tensor heads[3];
  for (size_t i = 0; i < 3; ++i) {
    heads[i] = Linear(h, weights[i], At(biases, i)).view({x.size(0), -1, cos.size(-1)});
    if (i == 2) break;
    if (!head_norms.empty()) heads[i] = RmsNorm(heads[i], head_norms[i], eps);
    heads[i] = Rotate(heads[i], cos, sin);
  }
  const at::Tensor y =
      CachedAttention(heads[0], heads[1], heads[2], keys, values, column, first, mask);
  return Linear(y.flatten(1), weights[3], At(biases, 3));
}

at::Tensor ComposedMlp(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& norm,
                       at::TensorList weights, at::TensorList biases, double eps) {
  const auto [h, sum] = AddRmsNorm(x, residual, norm, eps);
  const at::Tensor wide =
      Swiglu(Linear(h, weights[0], At(biases, 0)), Linear(h, weights[1], At(biases, 1)));
  return sum + Linear(wide, weights[2], At(biases, 2));
}

// --- By the kernels

// Whether a kernel may read the memory of `y` as rows next to one another, of x's dtype.
bool IsLike(const at::Tensor& x, const at::Tensor& y) {
  return y.is_cpu() && y.scalar_type() == x.scalar_type() && y.is_contiguous();
}

bool IsWeight(const at::Tensor& x, const at::Tensor& weight, int64_t outputs, int64_t inputs) {
  return IsLike(x, weight) && weight.dim() == 2 && weight.size(0) == outputs &&
         weight.size(1) == inputs && IsForLinearRows(x.size(0), inputs);
}

bool IsVector(const at::Tensor& x, const at::Tensor& vector, int64_t size) {
  return IsLike(x, vector) && vector.dim() == 1 && vector.size(0) == size;
}

bool IsFloating(const at::Tensor& x) {
  return x.scalar_type() == at::kFloat || x.scalar_type() == at::kDouble ||
         at::isReducedFloatingType(x.scalar_type());
}

bool AreBiases(const at::Tensor& x, at::TensorList biases, at::TensorList weights) {
  for (size_t i = 0; i < biases.size(); ++i) {
    if (!IsVector(x, biases[i], weights[i].size(0))) return false;
  }
  return true;
}

// Whether the steps below may run: all of what they read is dense, of one dtype, and of shapes that
// fit. Whatever does not is left to the operators, whose errors name it.
bool IsAttentionForKernels(const at::Tensor& x, const at::Tensor& norm, at::TensorList weights,
                           at::TensorList biases, at::TensorList head_norms, const at::Tensor& cos,
                           const at::Tensor& sin) {
  if (!IsFloating(x) || !IsLike(x, x) || cos.dim() != 3 || cos.numel() == 0) return false;
  const int64_t rows = x.size(0), hidden = x.size(1), size = cos.size(2);
  for (const at::Tensor& angles : {cos, sin}) {
    if (!IsLike(x, angles) || angles.sizes() != at::IntArrayRef({rows, 1, size})) return false;
  }
  for (const at::Tensor& head_norm : head_norms) {
    if (!IsVector(x, head_norm, size)) return false;
  }
  for (const at::Tensor& weight : weights) {
    if (weight.dim() != 2) return false;
  }
  const int64_t q = weights[0].size(0), kv = weights[1].size(0);
  return size % 2 == 0 && q > 0 && q % size == 0 && kv > 0 && kv % size == 0 &&
         IsVector(x, norm, hidden) && IsWeight(x, weights[0], q, hidden) &&
         IsWeight(x, weights[1], kv, hidden) && IsWeight(x, weights[2], kv, hidden) &&
         IsWeight(x, weights[3], weights[3].size(0), q) && weights[3].size(0) > 0 &&
         AreBiases(x, biases, weights);
}

bool IsMlpForKernels(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& norm,
                     at::TensorList weights, at::TensorList biases) {
  if (!IsFloating(x) || !IsLike(x, x) || !IsLike(x, residual) || residual.sizes() != x.sizes())
    return false;
  const int64_t hidden = x.size(1), wide = weights[0].dim() == 2 ? weights[0].size(0) : 0;
  return wide > 0 && IsVector(x, norm, hidden) && IsWeight(x, weights[0], wide, hidden) &&
         IsWeight(x, weights[1], wide, hidden) && IsWeight(x, weights[2], hidden, wide) &&
         AreBiases(x, biases, weights);
}

// Memory for a step's result. Without the dispatcher: at::empty is an operator.
at::Tensor Room(at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::Tensor(at::detail::empty_cpu(sizes, dtype));
}

// Returns x in the dtype in which Product reads it: float32 for float16 and bfloat16.
at::Tensor AsFactor(const at::Tensor& x) {
  return at::isReducedFloatingType(x.scalar_type()) ? x.to(at::kFloat) : x;
}

// Normalises rows of weight.size(0) numbers, of x or of x + residual.
at::Tensor Normalised(const at::Tensor& x, const at::Tensor& weight, double eps,
                      const at::Tensor& residual = {}, const at::Tensor& sum = {}) {
  const int64_t size = weight.size(0);
  const at::Tensor y = Room(x.sizes(), x.scalar_type());
  const RmsNormRows rows = {
      .dtype = x.scalar_type(),
      .size = size,
      .eps = eps,
      .x = x.const_data_ptr(),
      .x_stride = size,
      .residual = residual.defined() ? residual.const_data_ptr() : nullptr,
      .residual_stride = size,
      .weight = weight.const_data_ptr(),
      .sum = sum.defined() ? sum.mutable_data_ptr() : nullptr,
      .y = y.mutable_data_ptr(),
  };
  Launch(y, &RowKernels::rms_norm, rows, y.numel() / size, std::max<int64_t>(1, kGrain / size));
  return y;
}

// Returns x weight^T + bias + residual, in the weight's dtype. x is a result of AsFactor.
at::Tensor Product(const at::Tensor& x, const at::Tensor& weight,
                   const std::optional<at::Tensor>& bias, const at::Tensor& residual = {}) {
  const int64_t size = weight.size(1), outputs = weight.size(0), num_rows = x.numel() / size;
  const at::Tensor y = Room({num_rows, outputs}, weight.scalar_type());
  const LinearRows rows = {
      .dtype = weight.scalar_type(),
      .rows = num_rows,
      .size = size,
      .outputs = outputs,
      .x = x.const_data_ptr(),
      .weight = weight.const_data_ptr(),
      .weight_stride = size,
      .scales = nullptr,
      .bias = bias.has_value() ? bias->const_data_ptr() : nullptr,
      .residual = residual.defined() ? residual.const_data_ptr() : nullptr,
      .y = y.mutable_data_ptr(),
  };
  ParallelFor(outputs, std::max<int64_t>(1, kWeightGrain / size), [&](int64_t begin, int64_t end) {
    ChosenGenerationKernels().linear(rows, begin, end);
  });
  return y;
}

// Returns x as [sequences, heads, size], rotated.
at::Tensor Rotated(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const int64_t size = cos.size(2), heads = x.size(1) / size;
  const at::Tensor y = Room({x.size(0), heads, size}, x.scalar_type());
  const RotateRows rows = {
      .dtype = x.scalar_type(),
      .wide_angles = false,
      .heads = heads,
      .size = size,
      .x = x.const_data_ptr(),
      .token_stride = heads * size,
      .head_stride = size,
      .cos = cos.const_data_ptr(),
      .sin = sin.const_data_ptr(),
      .backward = false,
      .y = y.mutable_data_ptr(),
  };
  Launch(y, &RowKernels::rotate, rows, x.size(0) * heads, std::max<int64_t>(1, kGrain / size));
  return y;
}

at::Tensor Activated(const at::Tensor& gate, const at::Tensor& up) {
  const at::Tensor y = Room(gate.sizes(), gate.scalar_type());
  const SwigluRows rows = {
      .dtype = gate.scalar_type(),
      .size = gate.numel(),
      .gate = gate.const_data_ptr(),
      .gate_stride = gate.numel(),
      .up = up.const_data_ptr(),
      .up_stride = up.numel(),
      .dy = nullptr,
      .dy_stride = 0,
      .y = y.mutable_data_ptr(),
      .dgate = nullptr,
      .dup = nullptr,
  };
  Launch(y, &RowKernels::swiglu, rows, y.numel(), kGrain);
  return y;
}

at::Tensor AttentionByKernel(const at::Tensor& x, const at::Tensor& norm, at::TensorList weights,
                             at::TensorList biases, at::TensorList head_norms, double eps,
                             const at::Tensor& cos, const at::Tensor& sin, at::Tensor& keys,
                             at::Tensor& values, int64_t column, int64_t first, const Mask& mask) {
  CheckCounts(kAttention, x, weights, 4, biases);
  TORCH_CHECK_VALUE(head_norms.empty() || head_norms.size() == 2, kAttention,
                    ": expected head_norms of q and k, or none, got ", head_norms.size());
  if (!IsAttentionForKernels(x, norm, weights, biases, head_norms, cos, sin)) {
    return ComposedAttention(x, norm, weights, biases, head_norms, eps, cos, sin, keys, values,
                             column, first, mask);
  }
  const at::Tensor h = AsFactor(Normalised(x, norm, eps));
  at::Tensor q = Product(h, weights[0], At(biases, 0));
  at::Tensor k = Product(h, weights[1], At(biases, 1));
  at::Tensor v = Product(h, weights[2], At(biases, 2));
  if (!head_norms.empty()) {
    q = Normalised(q, head_norms[0], eps);
    k = Normalised(k, head_norms[1], eps);
  }
  q = Rotated(q, cos, sin);
  k = Rotated(k, cos, sin);
  v = v.view(k.sizes());
  const at::Tensor y = CachedAttention(q, k, v, keys, values, column, first, mask);
  return Product(AsFactor(y), weights[3], At(biases, 3));
}

at::Tensor MlpByKernel(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& norm,
                       at::TensorList weights, at::TensorList biases, double eps) {
  CheckCounts(kMlp, x, weights, 3, biases);
  if (!IsMlpForKernels(x, residual, norm, weights, biases))
    return ComposedMlp(x, residual, norm, weights, biases, eps);
  const at::Tensor sum = Room(x.sizes(), x.scalar_type());
  const at::Tensor h = AsFactor(Normalised(x, norm, eps, residual, sum));
  const at::Tensor gate = Product(h, weights[0], At(biases, 0));
  const at::Tensor up = Product(h, weights[1], At(biases, 1));
  return Product(AsFactor(Activated(gate, up)), weights[2], At(biases, 2), sum);
}

// --- The operators

at::Tensor CallAttention(const at::Tensor& x, const at::Tensor& norm, at::TensorList weights,
                         at::TensorList biases, at::TensorList head_norms, double eps,
                         const at::Tensor& cos, const at::Tensor& sin, at::Tensor& keys,
                         at::Tensor& values, int64_t column, int64_t first, const Mask& mask) {
  static const auto op =
      base::FindOperator<AttentionSignature>("lockstep::attention_of_new_tokens");
  return op.call(x, norm, weights, biases, head_norms, eps, cos, sin, keys, values, column, first,
                 mask);
}

at::Tensor CallMlp(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& norm,
                   at::TensorList weights, at::TensorList biases, double eps) {
  static const auto op = base::FindOperator<MlpSignature>("lockstep::mlp_of_new_tokens");
  return op.call(x, residual, norm, weights, biases, eps);
}

template <typename... Inputs>
void RefuseGradients(const char* op, const Inputs&... inputs) {
  TORCH_CHECK_VALUE(!torch::autograd::compute_requires_grad(inputs...), op,
                    ": an input requires a gradient, which it does not compute; call it in "
                    "no_grad");
}

at::Tensor AttentionWithoutGradients(const at::Tensor& x, const at::Tensor& norm,
                                     at::TensorList weights, at::TensorList biases,
                                     at::TensorList head_norms, double eps, const at::Tensor& cos,
                                     const at::Tensor& sin, at::Tensor& keys, at::Tensor& values,
                                     int64_t column, int64_t first, const Mask& mask) {
  RefuseGradients(kAttention, x, norm, weights, biases, head_norms, cos, sin, keys, values, mask);
  const at::AutoDispatchBelowADInplaceOrView below;
  return CallAttention(x, norm, weights, biases, head_norms, eps, cos, sin, keys, values, column,
                       first, mask);
}

at::Tensor MlpWithoutGradients(const at::Tensor& x, const at::Tensor& residual,
                               const at::Tensor& norm, at::TensorList weights,
                               at::TensorList biases, double eps) {
  RefuseGradients(kMlp, x, residual, norm, weights, biases);
  const at::AutoDispatchBelowADInplaceOrView below;
  return CallMlp(x, residual, norm, weights, biases, eps);
}

TORCH_LIBRARY_FRAGMENT(lockstep, library) {
  library.def(
      "attention_of_new_tokens(Tensor x, Tensor norm, Tensor[] weights, Tensor[] biases, "
      "Tensor[] head_norms, float eps, Tensor cos, Tensor sin, Tensor(a!) keys, Tensor(b!) values, "
      "int column, int first=0, Tensor? mask=None) -> Tensor");
  library.def(
      "mlp_of_new_tokens(Tensor x, Tensor residual, Tensor norm, Tensor[] weights, "
      "Tensor[] biases, float eps) -> Tensor");
}
TORCH_LIBRARY_IMPL(lockstep, CPU, library) {
  library.impl("attention_of_new_tokens", AttentionByKernel);
  library.impl("mlp_of_new_tokens", MlpByKernel);
}
TORCH_LIBRARY_IMPL(lockstep, Autograd, library) {
  library.impl("attention_of_new_tokens", AttentionWithoutGradients);
  library.impl("mlp_of_new_tokens", MlpWithoutGradients);
}

}  // namespace

at::Tensor AttentionOfNewTokens(const at::Tensor& x, const at::Tensor& norm, at::TensorList weights,
                                at::TensorList biases, at::TensorList head_norms, double eps,
                                const at::Tensor& cos, const at::Tensor& sin, at::Tensor& keys,
                                at::Tensor& values, int64_t column, int64_t first,
                                const std::optional<at::Tensor>& mask) {
  return CallAttention(x, norm, weights, biases, head_norms, eps, cos, sin, keys, values, column,
                       first, mask);
}

at::Tensor MlpOfNewTokens(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& norm,
                          at::TensorList weights, at::TensorList biases, double eps) {
  return CallMlp(x, residual, norm, weights, biases, eps);
}

}  // namespace lockstep::kernels
