#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>

#include "ATen/core/LegacyTypeDispatch.h"
#include "ATen/ops/empty.h"
#include "base/torch/operators.h"
#include "c10/util/Exception.h"
#include "kernels/aten/parallel.h"
#include "kernels/generation/generation.h"
#include "kernels/inputs.h"
#include "kernels/kernels.h"
#include "torch/csrc/autograd/functions/utils.h"
#include "torch/library.h"

namespace lockstep::kernels {
namespace {

using Mask = std::optional<at::Tensor>;
using Signature = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, at::Tensor&,
                             at::Tensor&, int64_t, int64_t, const Mask&);

constexpr char kName[] = "cached_attention";

bool Has(const Mask& mask) { return mask.has_value() && mask->defined(); }

c10::TypedOperatorHandle<Signature> Operator() {
  static const auto op = base::FindOperator<Signature>("lockstep::cached_attention");
  return op;
}

void CheckCache(const char* name, const at::Tensor& cache, const at::Tensor& k) {
  TORCH_CHECK_VALUE(cache.dim() == 4 && cache.size(0) == k.size(0) && cache.size(1) == k.size(1) &&
                        cache.size(3) == k.size(2),
                    kName, ": ", name, " must have shape [", k.size(0), ", ", k.size(1),
                    ", columns, ", k.size(2), "], because k has shape ", k.sizes(), "; got ",
                    cache.sizes());
  TORCH_CHECK_VALUE(cache.stride(3) == 1 && cache.stride(2) == cache.size(3), kName,
                    ": the columns of ", name,
                    " must lie one after the other in memory, got strides ", cache.strides());
  CheckAlike(kName, "k", k, name, cache);
}

void Check(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& keys,
           const at::Tensor& values, int64_t column, int64_t first, const Mask& mask) {
  CheckFloating(kName, "q", q);
  TORCH_CHECK_VALUE(q.dim() == 3 && k.dim() == 3 && k.size(0) == q.size(0) &&
                        k.size(2) == q.size(2) && k.size(1) > 0 && k.size(2) > 0 &&
                        q.size(1) % k.size(1) == 0 && v.sizes() == k.sizes(),
                    kName, ": q must have shape [sequences, heads, size], and k and v ",
                    "[sequences, kv_heads, size], where heads is a multiple of kv_heads; got ",
                    q.sizes(), ", ", k.sizes(), " and ", v.sizes());
  CheckAlike(kName, "q", q, "k", k);
  CheckAlike(kName, "q", q, "v", v);
  CheckCache("keys", keys, k);
  CheckCache("values", values, k);
  TORCH_CHECK_VALUE(values.size(2) == keys.size(2), kName, ": keys has ", keys.size(2),
                    " columns, but values has ", values.size(2));
  TORCH_CHECK_VALUE(0 <= first && first <= column && column < keys.size(2), kName,
                    ": column must be from first to ", keys.size(2) - 1, ", got column ", column,
                    " and first ", first);
  if (!Has(mask)) return;
  TORCH_CHECK_VALUE(mask->dim() == 2 && mask->size(0) == q.size(0) && mask->size(1) == keys.size(2),
                    kName, ": mask must have shape [", q.size(0), ", ", keys.size(2), "], got ",
                    mask->sizes());
  CheckAlike(kName, "q", q, "mask", *mask);
}

at::Tensor ByKernel(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, at::Tensor& keys,
                    at::Tensor& values, int64_t column, int64_t first, const Mask& mask) {
  Check(q, k, v, keys, values, column, first, mask);
  const at::Tensor y = at::empty(q.sizes(), q.options());
  if (y.numel() == 0) return y;
  const at::ScalarType acc =
      at::isReducedFloatingType(q.scalar_type()) ? at::kFloat : q.scalar_type();
  const at::Tensor wide_q = q.to(acc).contiguous();
  const at::Tensor wide_mask = Has(mask) ? mask->to(acc).contiguous() : at::Tensor();
  const at::Tensor dense_k = k.contiguous(), dense_v = v.contiguous();
  const int64_t sequences = k.size(0), kv_heads = k.size(1), size = k.size(2);
  const int64_t count = column + 1 - first;
  const at::Tensor weights = at::empty({sequences * q.size(1), count}, q.options().dtype(acc));
  const CachedAttentionRows rows = {
      .dtype = q.scalar_type(),
      .kv_heads = kv_heads,
      .group = q.size(1) / kv_heads,
      .size = size,
      .first = first,
      .column = column,
      .scale = 1 / std::sqrt(static_cast<double>(size)),
      .q = wide_q.const_data_ptr(),
      .k = dense_k.const_data_ptr(),
      .v = dense_v.const_data_ptr(),
      .keys = keys.mutable_data_ptr(),
      .keys_sequence_stride = keys.stride(0),
      .keys_head_stride = keys.stride(1),
      .values = values.mutable_data_ptr(),
      .values_sequence_stride = values.stride(0),
      .values_head_stride = values.stride(1),
      .mask = wide_mask.defined() ? wide_mask.const_data_ptr() : nullptr,
      .mask_stride = keys.size(2),
      .weights = weights.mutable_data_ptr(),
      .y = y.mutable_data_ptr(),
  };
  ParallelFor(sequences * kv_heads, std::max<int64_t>(1, kGrain / (count * size)),
              [&](int64_t begin, int64_t end) {
                ChosenGenerationKernels().cached_attention(rows, begin, end);
              });
  return y;
}

at::Tensor WithoutGradients(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            at::Tensor& keys, at::Tensor& values, int64_t column, int64_t first,
                            const Mask& mask) {
  TORCH_CHECK_VALUE(
      !torch::autograd::compute_requires_grad(q, k, v, keys, values, mask), kName,
      ": an input requires a gradient, which cached_attention does not compute; call it in "
      "no_grad");
  const at::AutoDispatchBelowADInplaceOrView below;
  return Operator().call(q, k, v, keys, values, column, first, mask);
}

TORCH_LIBRARY_FRAGMENT(lockstep, library) {
  library.def(
      "cached_attention(Tensor q, Tensor k, Tensor v, Tensor(a!) keys, Tensor(b!) values, "
      "int column, int first=0, Tensor? mask=None) -> Tensor");
}
TORCH_LIBRARY_IMPL(lockstep, CPU, library) { library.impl("cached_attention", ByKernel); }
TORCH_LIBRARY_IMPL(lockstep, Autograd, library) {
  library.impl("cached_attention", WithoutGradients);
}

}  // namespace

at::Tensor CachedAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           at::Tensor& keys, at::Tensor& values, int64_t column, int64_t first,
                           const std::optional<at::Tensor>& mask) {
  return Operator().call(q, k, v, keys, values, column, first, mask);
}

}  // namespace lockstep::kernels
