#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/zeros.h"
#include "base/torch/empty_like.h"
#include "c10/util/Exception.h"
#include "torch/library.h"

// Attention over packed rows whose lengths are in a tensor. lockstep::attention takes them as
// numbers: torch.compile would compile again for each packing. Here it needs the tensor's shape
// alone. The gradients are registered in Python (lockstep/_ops.py).

namespace lockstep::python {
namespace {

using Number = std::optional<double>;
using Window = std::optional<int64_t>;
using Pair = std::tuple<at::Tensor, at::Tensor>;
using Triple = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// Reads the lengths of the sequences: the differences of cu_seqlens.
std::vector<int64_t> LengthsOf(const at::Tensor& q, const at::Tensor& cu_seqlens) {
  const at::ScalarType dtype = cu_seqlens.scalar_type();
  TORCH_CHECK_VALUE(
      cu_seqlens.dim() == 1 && cu_seqlens.size(0) >= 1 && (dtype == at::kInt || dtype == at::kLong),
      "varlen_attention: cu_seqlens must be int32 or int64 of shape [sequences + 1], "
      "got ",
      dtype, " of shape ", cu_seqlens.sizes());
  const at::Tensor bounds = cu_seqlens.to(at::kCPU, at::kLong).contiguous();
  const int64_t* const bound = bounds.const_data_ptr<int64_t>();
  const int64_t last = bounds.size(0) - 1;
  TORCH_CHECK_VALUE(bound[0] == 0 && bound[last] == q.size(0),
                    "varlen_attention: cu_seqlens must begin with 0 and end with q's ", q.size(0),
                    " tokens, got ", bound[0], " and ", bound[last]);
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < last; ++i) {
    const int64_t length = bound[i + 1] - bound[i];
    TORCH_CHECK_VALUE(length >= 0, "varlen_attention: cu_seqlens must not decrease, but ",
                      bound[i + 1], " follows ", bound[i]);
    if (length > 0) lengths.push_back(length);
  }
  return lengths;
}

// The kernels need the numbers of a head in one piece.
at::Tensor Dense(const at::Tensor& x) {
  return x.dim() > 0 && x.stride(-1) == 1 ? x : x.contiguous();
}

Pair Forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
             const at::Tensor& cu_seqlens, bool causal, Number scale, Window window) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("lockstep::packed_attention", "")
                             .typed<Pair(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                         at::IntArrayRef, bool, Number, Window)>();
  TORCH_CHECK_VALUE(q.dim() == 3, "varlen_attention: q must be [tokens, heads, dim], got ",
                    q.sizes());
  TORCH_CHECK_VALUE(q.scalar_type() == k.scalar_type() && q.scalar_type() == v.scalar_type(),
                    "varlen_attention: q, k and v must have one dtype, got ", q.scalar_type(), ", ",
                    k.scalar_type(), " and ", v.scalar_type());
  return op.call(Dense(q), Dense(k), Dense(v), LengthsOf(q, cu_seqlens), causal, scale, window);
}

Triple Backward(const at::Tensor& dy, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                const at::Tensor& y, const at::Tensor& logsumexp, const at::Tensor& cu_seqlens,
                bool causal, Number scale, Window window) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("lockstep::packed_attention_backward", "")
                             .typed<Triple(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                           const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                           at::IntArrayRef, bool, Number, Window)>();
  return op.call(Dense(dy), Dense(q), Dense(k), Dense(v), y, logsumexp, LengthsOf(q, cu_seqlens),
                 causal, scale, window);
}

Pair OnMeta(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor&, bool,
            Number, Window) {
  TORCH_CHECK_VALUE(q.dim() == 3 && k.dim() == 3 && v.dim() == 3,
                    "varlen_attention: q, k and v must be [tokens, heads, dim], got ",
                    q.sym_sizes(), ", ", k.sym_sizes(), " and ", v.sym_sizes());
  const at::ScalarType dtype = q.scalar_type();
  return {base::EmptyLike(q),
          at::empty_symint({q.sym_size(0) * q.sym_size(1)},
                           q.options().dtype(dtype == at::kDouble ? dtype : at::kFloat))};
}

Triple BackwardOnMeta(const at::Tensor&, const at::Tensor& q, const at::Tensor& k,
                      const at::Tensor& v, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                      bool, Number, Window) {
  return {base::EmptyLike(q), base::EmptyLike(k), base::EmptyLike(v)};
}

TORCH_LIBRARY_FRAGMENT(lockstep, library) {
  library.def(
      "varlen_attention(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens, *, bool causal=True, "
      "float? scale=None, int? window=None) -> (Tensor y, Tensor logsumexp)");
  library.def(
      "varlen_attention_backward(Tensor dy, Tensor q, Tensor k, Tensor v, Tensor y, Tensor "
      "logsumexp, Tensor cu_seqlens, *, bool causal=True, float? scale=None, int? window=None) -> "
      "(Tensor, Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(lockstep, CPU, library) {
  library.impl("varlen_attention", Forward);
  library.impl("varlen_attention_backward", Backward);
}
TORCH_LIBRARY_IMPL(lockstep, Meta, library) {
  library.impl("varlen_attention", OnMeta);
  library.impl("varlen_attention_backward", BackwardOnMeta);
}

}  // namespace
}  // namespace lockstep::python
