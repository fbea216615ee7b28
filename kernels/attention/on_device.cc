#include "kernels/attention/on_device.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>

#include "ATen/Context.h"
#include "ATen/autocast_mode.h"
#include "ATen/core/LegacyTypeDispatch.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/logaddexp.h"
#include "ATen/ops/scaled_dot_product_attention.h"
#include "base/torch/operators.h"
#include "base/torch/versions/node.h"
#include "c10/util/Exception.h"
#include "kernels/aten/private_operators.h"
#include "torch/csrc/autograd/VariableTypeUtils.h"
#include "torch/csrc/autograd/functions/basic_ops.h"
#include "torch/csrc/autograd/functions/utils.h"
#include "torch/library.h"

namespace lockstep::kernels {
namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

void CheckShapes(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                 at::IntArrayRef seq_lens) {
  TORCH_CHECK_VALUE(q.dim() == 3 && k.dim() == 3 && v.dim() == 3,
                    "attention: q, k and v must be [tokens, heads, dim], got ", q.sizes(), ", ",
                    k.sizes(), " and ", v.sizes());
  TORCH_CHECK_VALUE(q.size(0) == k.size(0) && q.size(2) == k.size(2),
                    "attention: q and k must have the same tokens and dim, got ", q.sizes(),
                    " and ", k.sizes());
  TORCH_CHECK_VALUE(k.size(0) == v.size(0) && k.size(1) == v.size(1),
                    "attention: k and v must have the same tokens and heads, got ", k.sizes(),
                    " and ", v.sizes());
  TORCH_CHECK_VALUE(k.size(1) > 0 && q.size(1) % k.size(1) == 0, "attention: ", q.size(1),
                    " query heads are not a multiple of ", k.size(1), " key heads");
  int64_t tokens = 0;
  for (const int64_t length : seq_lens) tokens += length;
  TORCH_CHECK_VALUE(!seq_lens.empty() && tokens == q.size(0), "attention: seq_lens add up to ",
                    tokens, " tokens, but q has ", q.size(0));
}

bool AllEqual(at::IntArrayRef numbers) {
  return std::all_of(numbers.begin(), numbers.end(),
                     [&](int64_t number) { return number == numbers[0]; });
}

// The kernels would take these without an error: they read memory by `ends`, and leave out a
// window.
void CheckOptions(const at::Tensor& q, const at::Tensor& ends, at::IntArrayRef seq_lens,
                  Backend backend, std::optional<int64_t> window,
                  const std::optional<at::Tensor>& sinks) {
  const auto sequences = static_cast<int64_t>(seq_lens.size());
  const auto [shortest, longest] = std::minmax_element(seq_lens.begin(), seq_lens.end());
  TORCH_CHECK_VALUE(*shortest >= 1, "attention: seq_lens must be at least 1 each, got ", seq_lens);
  TORCH_CHECK_VALUE(ends.scalar_type() == at::kInt && ends.dim() == 1 && ends.is_contiguous() &&
                        ends.numel() == sequences + 1 && ends.device() == q.device(),
                    "attention: ends must be int32 [", sequences + 1, "] on ", q.device(), ", got ",
                    ends.scalar_type(), " ", ends.sizes(), " on ", ends.device());
  if (window.has_value()) {
    TORCH_CHECK_VALUE(*window >= 1, "attention: window must be at least 1, got ", *window);
    TORCH_CHECK_VALUE(
        *window >= *longest || backend == Backend::kFlash || backend == Backend::kMath,
        "attention: a window needs the backend flash or math, got ", NameOf(backend));
  }
  if (!sinks.has_value()) return;
  TORCH_CHECK_VALUE(backend == Backend::kFlash, "attention: sinks need the backend flash, got ",
                    NameOf(backend));
  TORCH_CHECK_VALUE(sinks->dim() == 1 && sinks->size(0) == q.size(1), "attention: sinks must be [",
                    q.size(1), "], got ", sinks->sizes());
}

// --- Autocast

bool IsInAutocast(const at::Tensor& x) {
  const at::DeviceType device = x.device().type();
  return at::autocast::is_autocast_available(device) && at::autocast::is_autocast_enabled(device);
}

// The dtype that the attention computes in.
at::ScalarType DtypeOf(const at::Tensor& x) {
  if (!IsInAutocast(x) || x.scalar_type() == at::kDouble) return x.scalar_type();
  return at::autocast::get_lower_precision_fp_from_device_type(x.device().type());
}

// --- What the kernels ask of memory

// Returns x, or a copy where rows of heads do not begin at multiples of 16 bytes.
at::Tensor Aligned(const at::Tensor& x) {
  const int64_t numbers = 16 / std::max<int64_t>(1, x.element_size());
  const bool is_aligned = x.stride(2) == 1 && x.storage_offset() % numbers == 0 &&
                          x.stride(0) % numbers == 0 && x.stride(1) % numbers == 0;
  return is_aligned ? x : x.clone(at::MemoryFormat::Contiguous);
}

// Key heads for each query head.
at::Tensor ForEachHead(const at::Tensor& k, int64_t heads) {
  if (k.size(1) == heads) return k;
  return k.unsqueeze(2)
      .expand({k.size(0), k.size(1), heads / k.size(1), k.size(2)})
      .reshape({k.size(0), heads, k.size(2)});
}

// --- Sinks

class SinksBackward final : public base::SavingNode<6> {
 public:
  SinksBackward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                const at::Tensor& sinks, const PackedSequences& sequences)
      : SavingNode(torch::autograd::collect_next_edges(q, k, v, sinks), q, k, v, sinks),
        sequences_(sequences) {}

  std::string name() const override { return "SinksBackward"; }

  // Called once, before backward.
  void Save(const at::Tensor& y, const at::Tensor& logsumexp) {
    saved_[4] = SavedVariable(y, /*is_output=*/true);
    saved_[5] = SavedVariable(logsumexp, /*is_output=*/false);
  }

  variable_list apply(variable_list&& gradients) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    variable_list results(4);
    if (!gradients[0].defined()) return results;
    const at::Tensor q = saved_[0].unpack(), k = saved_[1].unpack(), v = saved_[2].unpack(),
                     sinks = saved_[3].unpack(), y = saved_[4].unpack(getptr()),
                     logsumexp = saved_[5].unpack();
    TORCH_CHECK_NOT_IMPLEMENTED(
        !torch::autograd::compute_requires_grad(gradients[0], q, k, v, sinks),
        "attention with sinks: a gradient cannot be differentiated again");
    const at::AutoDispatchBelowAutograd below;
    const at::Tensor dy = gradients[0].contiguous();
    std::tie(results[0], results[1], results[2]) =
        FlashBackward(dy, q, k, v, y, logsumexp, sequences_);
    if (task_should_compute_output(3)) {
      const at::ScalarType wide = logsumexp.scalar_type();
      const at::Tensor along = (dy.to(wide) * y.to(wide)).sum(-1).t();  // [heads, tokens]
      const at::Tensor weights = (sinks.to(wide).unsqueeze(1) - logsumexp).exp();
      results[3] = (weights * along).sum(1).neg().to(sinks.scalar_type());
    }
    return results;
  }

 private:
  const PackedSequences sequences_;
};

at::Tensor FlashWithSinks(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const at::Tensor& sinks, const PackedSequences& sequences) {
  base::NodePointer<SinksBackward> node;
  if (torch::autograd::compute_requires_grad(q, k, v, sinks))
    node = base::MakeNode<SinksBackward>(q, k, v, sinks, sequences);
  const auto [y, logsumexp] = [&]() -> std::pair<at::Tensor, at::Tensor> {
    const at::AutoDispatchBelowAutograd below;
    const auto [without, before] = FlashForward(q, k, v, sequences);
    const at::Tensor after =
        at::logaddexp(before, sinks.to(before.scalar_type()).unsqueeze(1)).contiguous();
    const at::Tensor share = (before - after).exp().t().unsqueeze(-1);  // [tokens, heads, 1]
    return {(without * share).to(q.scalar_type()), after};
  }();
  if (node == nullptr) return y;
  torch::autograd::set_history(y, node);
  node->Save(y, logsumexp);
  return y;
}

// --- Whole sequences

at::Tensor Compute(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                   at::IntArrayRef seq_lens, Backend backend, const PackedSequences& s,
                   const std::optional<at::Tensor>& sinks) {
  const auto count = static_cast<int64_t>(seq_lens.size());
  const bool is_batch = AllEqual(seq_lens);
  const bool needs_gradient = torch::autograd::compute_requires_grad(q, k, v);
  // [sequences, heads, length, dim], and back.
  const auto batch = [&](const at::Tensor& x) {
    return x.view({count, x.size(0) / count, x.size(1), x.size(2)}).transpose(1, 2);
  };
  const auto row = [&](const at::Tensor& y) {
    return y.transpose(1, 2).reshape({q.size(0), q.size(1), v.size(2)});
  };
  switch (backend) {
    case Backend::kCudnn:
      if (!is_batch) return CudnnAttention(q, k, v, s, needs_gradient);
      return row(
          CudnnAttentionOfBatch(batch(q), batch(k), batch(v), s.causal, s.scale, needs_gradient));
    case Backend::kFlash:
      if (sinks.has_value()) return FlashWithSinks(q, k, v, *sinks, s);
      return std::get<0>(FlashForward(q, k, v, s));
    case Backend::kEfficient: {
      const at::Tensor keys = ForEachHead(k, q.size(1)), values = ForEachHead(v, q.size(1));
      if (!is_batch) return EfficientAttention(q, keys, values, s, needs_gradient);
      return row(EfficientAttentionOfBatch(batch(q), batch(keys), batch(values), s.causal, s.scale,
                                           needs_gradient));
    }
    case Backend::kMath: break;
  }
  return AttentionBySequence(q, k, v, seq_lens,
                             {.causal = s.causal, .scale = s.scale, .window = s.window});
}

at::Tensor OnDevice(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                    const at::Tensor& ends, at::IntArrayRef seq_lens, std::string_view name,
                    bool causal, std::optional<double> scale, std::optional<int64_t> window,
                    const std::optional<at::Tensor>& sinks) {
  const Backend backend = BackendNamed(name);
  CheckShapes(q, k, v, seq_lens);
  CheckOptions(q, ends, seq_lens, backend, window, sinks);
  const PackedSequences sequences = {.ends = ends,
                                     .longest = *std::max_element(seq_lens.begin(), seq_lens.end()),
                                     .causal = causal,
                                     .scale = scale,
                                     .window = window};
  if (!IsInAutocast(q))
    return Compute(Aligned(q), Aligned(k), Aligned(v), seq_lens, backend, sequences, sinks);
  const at::DeviceType device = q.device().type();
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      at::autocast::get_autocast_dispatch_key_from_device_type(device));
  const auto cast = [&](const at::Tensor& x) {
    return Aligned(at::autocast::cached_cast(DtypeOf(q), x, device));
  };
  return Compute(cast(q), cast(k), cast(v), seq_lens, backend, sequences, sinks);
}

std::string BackendOf(int64_t capability, const at::Tensor& q, const at::Tensor& k,
                      const at::Tensor& v, at::IntArrayRef seq_lens, bool causal,
                      std::optional<int64_t> window, bool sinks) {
  CheckShapes(q, k, v, seq_lens);
  const bool have_one_dtype =
      IsInAutocast(q) || (q.scalar_type() == k.scalar_type() && q.scalar_type() == v.scalar_type());
  if (!have_one_dtype) return std::string(NameOf(Backend::kMath));
  const int64_t longest = *std::max_element(seq_lens.begin(), seq_lens.end());
  const AttentionUse use = {.capability = static_cast<int>(capability),
                            .dtype = DtypeOf(q),
                            .head_size = q.size(2),
                            .value_size = v.size(2),
                            .pass = Pass::kTraining,
                            .causal = causal,
                            .has_window = window.has_value() && *window < longest,
                            .has_sinks = sinks,
                            .deterministic = at::globalContext().deterministicAlgorithms(),
                            .num_sequences = static_cast<int64_t>(seq_lens.size()),
                            .equal_lengths = AllEqual(seq_lens),
                            .longest = longest,
                            .tokens = q.size(0),
                            .heads = q.size(1)};
  return std::string(NameOf(BackendFor(use)));
}

// --- A cache

// Returns the mask for each head and query, with rows at multiples of 16 bytes.
at::Tensor MaskFor(const at::Tensor& mask, const at::Tensor& q) {
  const int64_t sequences = mask.size(0), columns = mask.size(1);
  const int64_t padded = (columns + 15) / 16 * 16;
  const at::Tensor rows = at::empty({sequences, padded}, q.options()).narrow(1, 0, columns);
  rows.copy_(mask);
  return rows.view({sequences, 1, 1, columns}).expand({sequences, q.size(1), q.size(2), columns});
}

at::Tensor ToCache(const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values,
                   int64_t capability, const std::optional<at::Tensor>& mask,
                   std::optional<std::string_view> name) {
  const bool have_one_dtype =
      q.scalar_type() == keys.scalar_type() && q.scalar_type() == values.scalar_type();
  const AttentionUse use = {.capability = static_cast<int>(capability),
                            .dtype = q.scalar_type(),
                            .head_size = q.size(3),
                            .value_size = values.size(3),
                            .pass = Pass::kDecoding,
                            .causal = false,
                            .has_mask = mask.has_value(),
                            .num_sequences = q.size(0),
                            .longest = keys.size(2),
                            .tokens = q.size(0) * keys.size(2),
                            .heads = q.size(1)};
  const bool has_gradient = torch::autograd::compute_requires_grad(q, keys, values);
  const bool is_plain = !have_one_dtype || has_gradient || IsInAutocast(q);
  const Backend chosen = is_plain ? Backend::kMath : BackendFor(use);
  const Backend backend = name.has_value() ? BackendNamed(*name) : chosen;
  if (backend == Backend::kFlash) return FlashAttentionToCache(q, keys, values);
  if (backend == Backend::kEfficient) {
    std::optional<at::Tensor> aligned;
    if (mask.has_value()) aligned = MaskFor(*mask, q);
    return EfficientAttentionToCache(q, keys, values, aligned);
  }
  TORCH_CHECK_VALUE(backend == Backend::kMath,
                    "attention to a cache: expected the backend flash, efficient or math, got ",
                    NameOf(backend));
  std::optional<at::Tensor> for_all;
  if (mask.has_value()) for_all = mask->view({mask->size(0), 1, 1, mask->size(1)});
  return at::scaled_dot_product_attention(q, keys, values, for_all);
}

TORCH_LIBRARY_FRAGMENT(lockstep, library) {
  library.def(
      "attention_backend(int capability, Tensor q, Tensor k, Tensor v, int[] seq_lens, *, bool "
      "causal=True, int? window=None, bool sinks=False) -> str",
      BackendOf);
  library.def(
      "attention_on_device(Tensor q, Tensor k, Tensor v, Tensor ends, int[] seq_lens, str backend, "
      "*, bool causal=True, float? scale=None, int? window=None, Tensor? sinks=None) -> Tensor",
      OnDevice);
  library.def(
      "cached_attention_on_device(Tensor q, Tensor keys, Tensor values, int capability, Tensor? "
      "mask=None, *, str? backend=None) -> Tensor",
      ToCache);
}

}  // namespace

at::Tensor AttentionOnDevice(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const at::Tensor& ends, at::IntArrayRef seq_lens, Backend backend,
                             const AttentionOptions& options,
                             const std::optional<at::Tensor>& sinks) {
  return OnDevice(q, k, v, ends, seq_lens, NameOf(backend), options.causal, options.scale,
                  options.window, sinks);
}

at::Tensor CachedAttentionOnDevice(const at::Tensor& q, const at::Tensor& keys,
                                   const at::Tensor& values, int64_t capability,
                                   const std::optional<at::Tensor>& mask) {
  return ToCache(q, keys, values, capability, mask, std::nullopt);
}

}  // namespace lockstep::kernels
