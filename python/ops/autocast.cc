#include <array>
#include <cstdint>
#include <optional>
#include <tuple>

#include "ATen/autocast_mode.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "c10/core/ScalarType.h"
#include "c10/core/impl/LocalDispatchKeySet.h"
#include "c10/util/string_view.h"
#include "torch/library.h"

// Registers the operators for autocast. Matrix products run in its dtype, as torch's do. The others
// run in their inputs' dtype: a norm in x's, as torch.nn.functional.rms_norm, and SwiGLU in the
// wider one, as a product.

namespace lockstep::python {
namespace {

using Optional = std::optional<at::Tensor>;
using Number = std::optional<double>;
using Window = std::optional<int64_t>;
using Pair = std::tuple<at::Tensor, at::Tensor>;
using Results = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

template <typename Signature>
auto Find(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

// Calls below autocast.
class Below {
 private:
  c10::impl::ExcludeDispatchKeyGuard guard_{c10::autocast_dispatch_keyset};
};

at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  static const auto op =
      Find<at::Tensor(const at::Tensor&, const at::Tensor&, double)>("lockstep::rms_norm");
  const Below below;
  return op.call(x, weight.to(x.scalar_type()), eps);
}

Pair AddRmsNorm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
                double eps) {
  static const auto op =
      Find<Pair(const at::Tensor&, const at::Tensor&, const at::Tensor&, double)>(
          "lockstep::add_rms_norm");
  const Below below;
  const at::ScalarType wide = c10::promoteTypes(x.scalar_type(), residual.scalar_type());
  return op.call(x.to(wide), residual.to(wide), weight.to(wide), eps);
}

at::Tensor Swiglu(const at::Tensor& gate, const at::Tensor& up) {
  static const auto op = Find<at::Tensor(const at::Tensor&, const at::Tensor&)>("lockstep::swiglu");
  const Below below;
  const at::ScalarType wide = c10::promoteTypes(gate.scalar_type(), up.scalar_type());
  return op.call(gate.to(wide), up.to(wide));
}

at::Tensor Low(const at::Tensor& x) {
  const at::DeviceType device = x.device().type();
  return at::autocast::cached_cast(at::autocast::get_lower_precision_fp_from_device_type(device), x,
                                   device);
}

Pair VarlenAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const at::Tensor& cu_seqlens, bool causal, Number scale, Window window) {
  static const auto op =
      Find<Pair(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, bool,
                Number, Window)>("lockstep::varlen_attention");
  const Below below;
  return op.call(Low(q), Low(k), Low(v), cu_seqlens, causal, scale, window);
}

Results CrossEntropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& labels,
                     const Optional& bias, const Optional& divisor, int64_t ignore_index,
                     double label_smoothing, double z_loss, double softcap,
                     c10::string_view reduction, int64_t tile_tokens, bool accumulate_fp32,
                     std::array<bool, 3> gradients) {
  static const auto op =
      Find<Results(const at::Tensor&, const at::Tensor&, const at::Tensor&, const Optional&,
                   const Optional&, int64_t, double, double, double, c10::string_view, int64_t,
                   bool, std::array<bool, 3>)>("lockstep::tiled_cross_entropy");
  const Below below;
  Optional low_bias;
  if (bias.has_value()) low_bias = Low(*bias);
  return op.call(Low(hidden), Low(weight), labels, low_bias, divisor, ignore_index, label_smoothing,
                 z_loss, softcap, reduction, tile_tokens, accumulate_fp32, gradients);
}

void Register(torch::Library& library) {
  library.impl("rms_norm", RmsNorm);
  library.impl("add_rms_norm", AddRmsNorm);
  library.impl("swiglu", Swiglu);
  library.impl("varlen_attention", VarlenAttention);
  library.impl("tiled_cross_entropy", CrossEntropy);
}

TORCH_LIBRARY_IMPL(lockstep, AutocastCPU, library) { Register(library); }
TORCH_LIBRARY_IMPL(lockstep, AutocastCUDA, library) { Register(library); }

}  // namespace
}  // namespace lockstep::python
