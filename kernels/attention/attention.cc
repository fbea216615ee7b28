#include "kernels/attention/attention.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "ATen/Context.h"
#include "ATen/Parallel.h"
#include "ATen/TensorSubclassLikeUtils.h"
#include "ATen/autocast_mode.h"
#include "ATen/core/LegacyTypeDispatch.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/scaled_dot_product_attention.h"
#include "ATen/ops/sum.h"
#include "ATen/ops/zeros.h"
#include "base/torch/empty_like.h"
#include "base/torch/operators.h"
#include "base/torch/versions/node.h"
#include "c10/util/Exception.h"
#include "kernels/aten/parallel.h"
#include "kernels/aten/private_operators.h"
#include "kernels/attention/flash.h"
#include "kernels/attention/shares.h"
#include "torch/csrc/autograd/VariableTypeUtils.h"
#include "torch/csrc/autograd/function.h"
#include "torch/csrc/autograd/functions/basic_ops.h"
#include "torch/csrc/autograd/functions/utils.h"
#include "torch/library.h"

namespace lockstep::kernels {
namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
using Number = std::optional<double>;
using Window = std::optional<int64_t>;
using Pair = std::tuple<at::Tensor, at::Tensor>;
using Triple = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using Signature = Pair(const at::Tensor&, const at::Tensor&, const at::Tensor&, at::IntArrayRef,
                       bool, Number, Window);
using BackwardSignature = Triple(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                 const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                 at::IntArrayRef, bool, Number, Window);

void Check(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, at::IntArrayRef seq_lens,
           Window window) {
  TORCH_CHECK_VALUE(q.dim() == 3 && k.dim() == 3, "attention: q, k and v must be [tokens, heads, ",
                    "dim], got ", q.sizes(), ", ", k.sizes(), " and ", v.sizes());
  TORCH_CHECK_VALUE(k.sizes() == v.sizes(), "attention: k and v must have one shape, got ",
                    k.sizes(), " and ", v.sizes());
  TORCH_CHECK_VALUE(q.size(0) == k.size(0) && q.size(2) == k.size(2),
                    "attention: q and k must have the same tokens and dim, got ", q.sizes(),
                    " and ", k.sizes());
  TORCH_CHECK_VALUE(k.size(1) > 0 && q.size(1) > 0 && q.size(1) % k.size(1) == 0,
                    "attention: ", q.size(1), " query heads are not a multiple of ", k.size(1),
                    " key heads");
  int64_t tokens = 0;
  for (const int64_t length : seq_lens) {
    TORCH_CHECK_VALUE(length >= 1, "attention: seq_lens must be at least 1 each, got ", seq_lens);
    tokens += length;
  }
  TORCH_CHECK_VALUE(tokens == q.size(0), "attention: seq_lens add up to ", tokens,
                    " tokens, but q has ", q.size(0));
  TORCH_CHECK_VALUE(!window.has_value() || *window >= 1,
                    "attention: window must be at least 1, got ", window.value_or(0));
}

// --- Views of one sequence. Key heads are a batch, and the query heads that share one its heads.

struct Sequence {
  int64_t begin, length;
};

// [kv_heads, group, length, dim] of q, of its gradient or of the result.
at::Tensor QueriesOf(const at::Tensor& q, const Sequence& s, int64_t kv_heads) {
  const int64_t group = q.size(1) / kv_heads;
  return q.as_strided({kv_heads, group, s.length, q.size(2)},
                      {group * q.stride(1), q.stride(1), q.stride(0), q.stride(2)},
                      q.storage_offset() + s.begin * q.stride(0));
}

// [kv_heads, 1, length, dim] of k, v or a gradient.
at::Tensor KeysOf(const at::Tensor& k, const Sequence& s) {
  return k.as_strided({k.size(1), 1, s.length, k.size(2)},
                      {k.stride(1), 0, k.stride(0), k.stride(2)},
                      k.storage_offset() + s.begin * k.stride(0));
}

at::Tensor SharedKeysOf(const at::Tensor& k, const Sequence& s, int64_t group) {
  return KeysOf(k, s).expand({k.size(1), group, s.length, k.size(2)});
}

// [kv_heads, group, length] of the logarithms [tokens * heads], in the order of memory that ATen's
// kernel has.
at::Tensor LogarithmsOf(const at::Tensor& logsumexp, const Sequence& s, int64_t heads,
                        int64_t kv_heads) {
  const int64_t group = heads / kv_heads;
  return logsumexp.as_strided({kv_heads, group, s.length}, {s.length * group, 1, group},
                              logsumexp.storage_offset() + s.begin * heads);
}

std::vector<Sequence> SequencesOf(at::IntArrayRef seq_lens) {
  std::vector<Sequence> sequences;
  sequences.reserve(seq_lens.size());
  int64_t begin = 0;
  for (const int64_t length : seq_lens) {
    sequences.push_back({begin, length});
    begin += length;
  }
  return sequences;
}

// --- The mask of a window. Sequences that are no longer than the window need none.

bool NeedsMask(int64_t length, Window window) { return window.has_value() && *window < length; }

// True where a query sees a key: [length, length].
at::Tensor SeesOf(const at::Tensor& q, int64_t length, bool causal, int64_t window) {
  return at::ones({length, length}, q.options().dtype(at::kBool))
      .triu(1 - window)
      .tril(causal ? 0 : window - 1);
}

// 0 where a query sees a key, and else minus infinity: [longest, longest]. The mask of a shorter
// sequence is its corner. Undefined if no sequence needs one.
at::Tensor MaskOf(const at::Tensor& q, at::IntArrayRef seq_lens, bool causal, Window window) {
  const int64_t longest = *std::max_element(seq_lens.begin(), seq_lens.end());
  if (!NeedsMask(longest, window)) return {};
  return at::zeros({longest, longest}, q.options())
      .masked_fill_(SeesOf(q, longest, causal, *window).logical_not(),
                    -std::numeric_limits<double>::infinity());
}

std::optional<at::Tensor> MaskFor(const at::Tensor& mask, int64_t length, Window window) {
  if (!NeedsMask(length, window)) return std::nullopt;
  return mask.narrow(0, 0, length).narrow(1, 0, length);
}

// --- The loop

at::Tensor OneByOne(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                    at::IntArrayRef seq_lens, bool causal, Number scale, Window window) {
  Check(q, k, v, seq_lens, window);
  const int64_t heads = q.size(1), kv_heads = k.size(1), dim = q.size(2), group = heads / kv_heads;
  const std::vector<at::Tensor> qs = q.split_with_sizes(seq_lens),
                                ks = k.split_with_sizes(seq_lens),
                                vs = v.split_with_sizes(seq_lens);
  std::vector<at::Tensor> results;
  for (size_t i = 0; i < seq_lens.size(); ++i) {
    const int64_t length = seq_lens[i];
    const auto shared = [&](const at::Tensor& x) {
      return x.permute({1, 0, 2}).unsqueeze(1).expand({kv_heads, group, length, dim});
    };
    std::optional<at::Tensor> mask;
    if (NeedsMask(length, window)) mask = SeesOf(q, length, causal, *window);
    const at::Tensor queries = qs[i].view({length, kv_heads, group, dim}).permute({1, 2, 0, 3});
    const at::Tensor y = at::scaled_dot_product_attention(
        queries, shared(ks[i]), shared(vs[i]), mask, 0.0, causal && !mask.has_value(), scale);
    results.push_back(y.permute({2, 0, 1, 3}).reshape({length, heads, dim}));
  }
  if (results.size() == 1) return results[0];
  return results.empty() ? at::empty(q.sizes(), q.options()) : at::cat(results);
}

// --- The row as one operator

// Calls fn for each sequence: first for those that need all threads, one after another, then for
// the others, shared out over threads.
template <typename Function>
void ForEachSequence(at::IntArrayRef seq_lens, const Function& fn) {
  const std::vector<Sequence> sequences = SequencesOf(seq_lens);
  const bool is_nested = at::in_parallel_region();
  const Shares shares = ShareOut(seq_lens, is_nested ? 1 : at::get_num_threads());
  for (const int64_t i : shares.alone) fn(sequences[i]);
  const auto count = static_cast<int64_t>(shares.together.size());
  if (count == 1) {
    for (const int64_t i : shares.together[0]) fn(sequences[i]);
    return;
  }
  ParallelFor(count, 1, [&](int64_t begin, int64_t end) {
    const at::AutoDispatchBelowADInplaceOrView below;  // a thread's own state
    for (int64_t share = begin; share < end; ++share)
      for (const int64_t i : shares.together[share]) fn(sequences[i]);
  });
}

at::Tensor EmptyLogarithms(const at::Tensor& q) {
  const at::ScalarType dtype = q.scalar_type();
  return at::empty({q.size(0) * q.size(1)},
                   q.options().dtype(dtype == at::kDouble ? dtype : at::kFloat));
}

Pair Forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
             at::IntArrayRef seq_lens, bool causal, Number scale, Window window) {
  Check(q, k, v, seq_lens, window);
  const int64_t heads = q.size(1), kv_heads = k.size(1), group = heads / kv_heads;
  const at::Tensor y = base::EmptyLike(q), logsumexp = EmptyLogarithms(q);
  if (seq_lens.empty()) return {y, logsumexp};
  const at::Tensor mask = MaskOf(q, seq_lens, causal, window);
  ForEachSequence(seq_lens, [&](const Sequence& s) {
    const at::Tensor queries = QueriesOf(q, s, kv_heads), keys = SharedKeysOf(k, s, group),
                     values = SharedKeysOf(v, s, group), y_view = QueriesOf(y, s, kv_heads),
                     logarithms_view = LogarithmsOf(logsumexp, s, heads, kv_heads);
    const bool needs_mask = NeedsMask(s.length, window);
    if (!needs_mask && CanUseFlashAttention(queries, keys, values))
      return FlashAttention(queries, keys, values, causal, scale, y_view, logarithms_view);
    const auto [part, logarithms] =
        AtenFlashAttention(queries, keys, values, /*dropout=*/0, causal && !needs_mask,
                           MaskFor(mask, s.length, window), scale);
    y_view.copy_(part);
    logarithms_view.copy_(logarithms);
  });
  return {y, logsumexp};
}

Triple Backward(const at::Tensor& dy, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                const at::Tensor& y, const at::Tensor& logsumexp, at::IntArrayRef seq_lens,
                bool causal, Number scale, Window window) {
  Check(q, k, v, seq_lens, window);
  const int64_t heads = q.size(1), kv_heads = k.size(1), group = heads / kv_heads;
  const at::Tensor dq = base::EmptyLike(q), dk = base::EmptyLike(k), dv = base::EmptyLike(v);
  if (seq_lens.empty()) return {dq, dk, dv};
  const at::Tensor mask = MaskOf(q, seq_lens, causal, window);
  ForEachSequence(seq_lens, [&](const Sequence& s) {
    const at::Tensor dy_view = QueriesOf(dy, s, kv_heads), queries = QueriesOf(q, s, kv_heads),
                     keys = SharedKeysOf(k, s, group), values = SharedKeysOf(v, s, group),
                     y_view = QueriesOf(y, s, kv_heads), dq_view = QueriesOf(dq, s, kv_heads),
                     logarithms = LogarithmsOf(logsumexp, s, heads, kv_heads);
    const bool needs_mask = NeedsMask(s.length, window);
    const bool is_ours = !needs_mask && CanUseFlashAttention(queries, keys, values);
    at::Tensor dq_part = dq_view, dk_parts = KeysOf(dk, s), dv_parts = KeysOf(dv, s);
    if (is_ours) {
      // Each query head has its own gradient of the key head that it shares. ATen's gradients have
      // this order of memory, which decides the order of the sum.
      if (group > 1)
        for (at::Tensor* const parts : {&dk_parts, &dv_parts})
          *parts = at::empty({kv_heads, s.length, group, q.size(2)}, k.options()).transpose(1, 2);
      FlashAttentionBackward(dy_view, queries, keys, values, y_view, logarithms, causal, scale,
                             dq_view, dk_parts, dv_parts);
      if (group == 1) return;
    } else {
      std::tie(dq_part, dk_parts, dv_parts) = AtenFlashAttentionBackward(
          dy_view, queries, keys, values, y_view, logarithms, /*dropout=*/0, causal && !needs_mask,
          MaskFor(mask, s.length, window), scale);
      dq_view.copy_(dq_part);
    }
    KeysOf(dk, s).copy_(group == 1 ? dk_parts : dk_parts.sum({1}, /*keepdim=*/true));
    KeysOf(dv, s).copy_(group == 1 ? dv_parts : dv_parts.sum({1}, /*keepdim=*/true));
  });
  return {dq, dk, dv};
}

Pair OnMeta(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, at::IntArrayRef seq_lens,
            bool, Number, Window window) {
  Check(q, k, v, seq_lens, window);
  return {base::EmptyLike(q), EmptyLogarithms(q)};
}

Triple BackwardOnMeta(const at::Tensor&, const at::Tensor& q, const at::Tensor& k,
                      const at::Tensor& v, const at::Tensor&, const at::Tensor&, at::IntArrayRef,
                      bool, Number, Window) {
  return {base::EmptyLike(q), base::EmptyLike(k), base::EmptyLike(v)};
}

Pair CallForward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                 at::IntArrayRef seq_lens, const AttentionOptions& o) {
  static const auto op = base::FindOperator<Signature>("lockstep::packed_attention");
  // Not below ADInplaceOrView: a checkpointed region may keep the results.
  const at::AutoDispatchBelowAutograd below;
  return op.call(q, k, v, seq_lens, o.causal, o.scale, o.window);
}

Triple CallBackward(const at::Tensor& dy, const at::Tensor& q, const at::Tensor& k,
                    const at::Tensor& v, const at::Tensor& y, const at::Tensor& logsumexp,
                    at::IntArrayRef seq_lens, const AttentionOptions& o) {
  static const auto op =
      base::FindOperator<BackwardSignature>("lockstep::packed_attention_backward");
  const at::AutoDispatchBelowAutograd below;
  return op.call(dy, q, k, v, y, logsumexp, seq_lens, o.causal, o.scale, o.window);
}

// --- Gradients

class AttentionBackward final : public base::SavingNode<5> {
 public:
  AttentionBackward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                    at::IntArrayRef seq_lens, const AttentionOptions& options)
      : SavingNode(torch::autograd::collect_next_edges(q, k, v), q, k, v),
        seq_lens_(seq_lens.vec()),
        options_(options) {}

  std::string name() const override { return "AttentionBackward"; }

  // Called once, before backward.
  void Save(const at::Tensor& y, const at::Tensor& logsumexp) {
    saved_[3] = SavedVariable(y, /*is_output=*/true);
    saved_[4] = SavedVariable(logsumexp, /*is_output=*/false);
  }

  variable_list apply(variable_list&& gradients) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    variable_list results(3);
    const at::Tensor& dy = gradients[0];
    if (!dy.defined()) return results;
    const at::Tensor q = saved_[0].unpack(), k = saved_[1].unpack(), v = saved_[2].unpack();
    const auto [dq, dk, dv] = CallBackward(dy, q, k, v, saved_[3].unpack(getptr()),
                                           saved_[4].unpack(), seq_lens_, options_);
    const at::Tensor* const all[] = {&dq, &dk, &dv};
    for (size_t i = 0; i < results.size(); ++i)
      if (task_should_compute_output(i)) results[i] = *all[i];
    if (torch::autograd::compute_requires_grad(dy, q, k, v)) Refuse(results, dy, q, k, v);
    return results;
  }

 private:
  // Makes a gradient of the gradients an error, not zero.
  template <typename... Inputs>
  static void Refuse(const variable_list& gradients, const Inputs&... inputs) {
    const auto node = base::MakeNode<torch::autograd::NotImplemented>(
        "lockstep::packed_attention_backward", torch::autograd::collect_next_edges(inputs...));
    for (const at::Tensor& gradient : gradients)
      if (gradient.defined()) torch::autograd::set_history(gradient, node);
  }

  const std::vector<int64_t> seq_lens_;
  const AttentionOptions options_;
};

at::Tensor WithGradients(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                         at::IntArrayRef seq_lens, const AttentionOptions& options) {
  const auto node = base::MakeNode<AttentionBackward>(q, k, v, seq_lens, options);
  const auto [y, logsumexp] = CallForward(q, k, v, seq_lens, options);
  torch::autograd::set_history(y, node);
  node->Save(y, logsumexp);
  return y;
}

// --- The choice

// Returns whether ATen would choose its kernel for the CPU, which reads this tensor's memory. A
// meta tensor has shapes alone.
bool IsForKernel(const at::Tensor& x, const at::Tensor& q) {
  const at::ScalarType dtype = x.scalar_type();
  const bool has_memory = x.is_cpu() && x.layout() == at::kStrided && !at::isTensorSubclassLike(x);
  return (has_memory || x.is_meta()) && !torch::autograd::isFwGradDefined(x) && !x.is_neg() &&
         dtype == q.scalar_type() && x.device() == q.device() &&
         (dtype == at::kFloat || dtype == at::kDouble || at::isReducedFloatingType(dtype)) &&
         x.numel() > 0 && x.stride(2) == 1;
}

at::Tensor Choose(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  at::IntArrayRef seq_lens, bool causal, Number scale, Window window);

// Query heads that share a key head have keys and values of their own here, as in the loop. So the
// gradients of these are added up in the dtypes of k and v.
at::Tensor ChooseInAutocast(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            at::IntArrayRef seq_lens, const AttentionOptions& o) {
  const at::DeviceType device = q.device().type();
  const at::ScalarType low = at::autocast::get_lower_precision_fp_from_device_type(device);
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      at::autocast::get_autocast_dispatch_key_from_device_type(device));
  const auto cast = [&](const at::Tensor& x) { return at::autocast::cached_cast(low, x, device); };
  const bool is_low = k.scalar_type() == low && v.scalar_type() == low;
  const auto cast_for_each_head = [&](const at::Tensor& x) {
    if (is_low) return x;
    return cast(x.unsqueeze(2).expand({x.size(0), x.size(1), q.size(1) / x.size(1), x.size(2)}))
        .reshape(q.sizes());
  };
  return Choose(cast(q), cast_for_each_head(k), cast_for_each_head(v), seq_lens, o.causal, o.scale,
                o.window);
}

at::Tensor Choose(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  at::IntArrayRef seq_lens, bool causal, Number scale, Window window) {
  Check(q, k, v, seq_lens, window);
  const at::DeviceType device = q.device().type();
  if (at::autocast::is_autocast_available(device) && at::autocast::is_autocast_enabled(device))
    return ChooseInAutocast(q, k, v, seq_lens, {causal, scale, window});
  TORCH_CHECK_VALUE(q.scalar_type() == k.scalar_type() && q.scalar_type() == v.scalar_type(),
                    "attention: q, k and v must have one dtype, got ", q.scalar_type(), ", ",
                    k.scalar_type(), " and ", v.scalar_type());
  if (!IsForKernel(q, q) || !IsForKernel(k, q) || !IsForKernel(v, q) ||
      !at::globalContext().userEnabledFlashSDP())
    return OneByOne(q, k, v, seq_lens, causal, scale, window);
  const AttentionOptions options = {.causal = causal, .scale = scale, .window = window};
  if (torch::autograd::compute_requires_grad(q, k, v))
    return WithGradients(q, k, v, seq_lens, options);
  return std::get<0>(CallForward(q, k, v, seq_lens, options));
}

TORCH_LIBRARY_FRAGMENT(lockstep, library) {
  library.def(
      "attention(Tensor q, Tensor k, Tensor v, int[] seq_lens, *, bool causal=True, float? "
      "scale=None, int? window=None) -> Tensor",
      Choose);
  library.def(
      "attention_by_sequence(Tensor q, Tensor k, Tensor v, int[] seq_lens, *, bool causal=True, "
      "float? scale=None, int? window=None) -> Tensor",
      OneByOne);
  library.def(
      "packed_attention(Tensor q, Tensor k, Tensor v, int[] seq_lens, *, bool causal=True, float? "
      "scale=None, int? window=None) -> (Tensor y, Tensor logsumexp)");
  library.def(
      "packed_attention_backward(Tensor dy, Tensor q, Tensor k, Tensor v, Tensor y, Tensor "
      "logsumexp, int[] seq_lens, *, bool causal=True, float? scale=None, int? window=None) -> "
      "(Tensor, Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(lockstep, CPU, library) {
  library.impl("packed_attention", Forward);
  library.impl("packed_attention_backward", Backward);
}
TORCH_LIBRARY_IMPL(lockstep, Meta, library) {
  library.impl("packed_attention", OnMeta);
  library.impl("packed_attention_backward", BackwardOnMeta);
}

}  // namespace

at::Tensor Attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     at::IntArrayRef seq_lens, const AttentionOptions& options) {
  return Choose(q, k, v, seq_lens, options.causal, options.scale, options.window);
}

at::Tensor AttentionBySequence(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               at::IntArrayRef seq_lens, const AttentionOptions& options) {
  return OneByOne(q, k, v, seq_lens, options.causal, options.scale, options.window);
}

}  // namespace lockstep::kernels
