// libtorch's kernels for GPUs have stand-ins on the CPU here, in float64. They check what those ask
// of their arguments, and backward reads what those of libtorch read: results and logarithms.

#include "kernels/attention/on_device.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "ATen/Functions.h"
#include "ATen/Parallel.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/stack.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/message_of.h"
#include "torch/autograd.h"
#include "torch/library.h"

namespace lockstep::kernels {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using MaybeTensor = std::optional<at::Tensor>;
using Number = std::optional<double>;
using Integer = std::optional<int64_t>;
using Triple = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

std::vector<std::string> called;  // stand-ins, in order

// Tensors are too small for more threads.
const bool kHasOneThread = (at::set_num_threads(1), true);

// --- The stand-ins' arithmetic, for one sequence: [heads, tokens, dim].

struct Sides {
  int64_t left = -1, right = -1;  // -1: all
};

at::Tensor ForHeads(const at::Tensor& k, int64_t heads) {
  return k.repeat_interleave(heads / k.size(0), 0);
}

at::Tensor ScoresOf(const at::Tensor& q, const at::Tensor& k, double scale, bool causal,
                    Sides sides) {
  const int64_t n = q.size(1), m = k.size(1);
  const at::Tensor distance = at::arange(n).unsqueeze(1) - at::arange(m).unsqueeze(0);
  at::Tensor hidden = at::zeros({n, m}, at::kBool);
  if (causal) hidden = hidden.logical_or(distance.lt(0));
  if (sides.left >= 0) hidden = hidden.logical_or(distance.gt(sides.left));
  if (sides.right >= 0) hidden = hidden.logical_or(distance.lt(-sides.right));
  return (at::matmul(q, ForHeads(k, q.size(0)).transpose(1, 2)) * scale)
      .masked_fill(hidden, -std::numeric_limits<double>::infinity());
}

std::tuple<at::Tensor, at::Tensor> Forward(const at::Tensor& q, const at::Tensor& k,
                                           const at::Tensor& v, double scale, bool causal,
                                           Sides sides) {
  const at::Tensor scores = ScoresOf(q, k, scale, causal, sides);
  return {at::matmul(scores.softmax(-1), ForHeads(v, q.size(0))), scores.logsumexp({-1})};
}

Triple Backward(const at::Tensor& dy, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                const at::Tensor& y, const at::Tensor& logs, double scale, bool causal,
                Sides sides) {
  const int64_t heads = q.size(0), group = heads / k.size(0);
  const at::Tensor p = (ScoresOf(q, k, scale, causal, sides) - logs.unsqueeze(-1)).exp();
  const at::Tensor dp = at::matmul(dy, ForHeads(v, heads).transpose(1, 2));
  const at::Tensor ds = p * (dp - (dy * y).sum(-1, true)) * scale;
  const auto of_group = [&](const at::Tensor& x) {
    return x.view({k.size(0), group, x.size(1), x.size(2)}).sum(1);
  };
  return {at::matmul(ds, ForHeads(k, heads)), of_group(at::matmul(ds.transpose(1, 2), q)),
          of_group(at::matmul(p.transpose(1, 2), dy))};
}

// --- Sequences that lie one after the other: [tokens, heads, dim].

void CheckPacked(const at::Tensor& q, const MaybeTensor& ends, int64_t longest) {
  TORCH_CHECK(q.dim() == 3 && q.stride(2) == 1);
  TORCH_CHECK(ends->scalar_type() == at::kInt && ends->dim() == 1 && ends->is_contiguous());
  const at::Tensor lengths = ends->diff();
  TORCH_CHECK((*ends)[0].item<int>() == 0 && (*ends)[-1].item<int64_t>() == q.size(0));
  TORCH_CHECK(lengths.max().item<int64_t>() == longest);
}

at::Tensor Part(const at::Tensor& x, const at::Tensor& ends, int64_t i) {
  const auto begin = ends[i].item<int64_t>(), end = ends[i + 1].item<int64_t>();
  return x.narrow(0, begin, end - begin).transpose(0, 1);
}

double ScaleOf(const at::Tensor& q, Number scale) {
  return scale.value_or(1 / std::sqrt(static_cast<double>(q.size(-1))));
}

std::tuple<at::Tensor, at::Tensor> ForwardOfPacked(const at::Tensor& q, const at::Tensor& k,
                                                   const at::Tensor& v, const at::Tensor& ends,
                                                   bool causal, Number scale, Sides sides) {
  std::vector<at::Tensor> ys, logs;
  for (int64_t i = 0; i + 1 < ends.size(0); ++i) {
    const auto [y, log] = Forward(Part(q, ends, i), Part(k, ends, i), Part(v, ends, i),
                                  ScaleOf(q, scale), causal, sides);
    ys.push_back(y.transpose(0, 1));
    logs.push_back(log);
  }
  return {at::cat(ys), at::cat(logs, 1)};
}

Triple BackwardOfPacked(const at::Tensor& dy, const at::Tensor& q, const at::Tensor& k,
                        const at::Tensor& v, const at::Tensor& y, const at::Tensor& logs,
                        const at::Tensor& ends, bool causal, Number scale, Sides sides) {
  const at::Tensor dq = at::empty_like(q), dk = at::empty_like(k), dv = at::empty_like(v);
  for (int64_t i = 0; i + 1 < ends.size(0); ++i) {
    const auto [part_q, part_k, part_v] =
        Backward(Part(dy, ends, i), Part(q, ends, i), Part(k, ends, i), Part(v, ends, i),
                 Part(y, ends, i), Part(logs.t(), ends, i), ScaleOf(q, scale), causal, sides);
    Part(dq, ends, i).copy_(part_q);
    Part(dk, ends, i).copy_(part_k);
    Part(dv, ends, i).copy_(part_v);
  }
  return {dq, dk, dv};
}

// --- FlashAttention

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> Flash(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const MaybeTensor& ends,
    const MaybeTensor& k_ends, int64_t longest, int64_t longest_k, double dropout, bool causal,
    bool debug, Number scale, Integer left, Integer right, const MaybeTensor&, const MaybeTensor&) {
  CheckPacked(q, ends, longest);
  CheckPacked(k, k_ends, longest_k);
  TORCH_CHECK(dropout == 0 && !debug && q.size(2) == v.size(2));
  called.emplace_back("flash");
  const auto [y, logs] = ForwardOfPacked(q, k, v, *ends, causal, scale, {*left, *right});
  return {y, logs, at::empty({0}), at::empty({0}), at::empty({0})};
}

Triple FlashGradients(const at::Tensor& dy, const at::Tensor& q, const at::Tensor& k,
                      const at::Tensor& v, const at::Tensor& y, const at::Tensor& logs,
                      const at::Tensor& ends, const at::Tensor&, int64_t longest, int64_t, double,
                      bool causal, const at::Tensor&, const at::Tensor&, Number scale, Integer left,
                      Integer right) {
  CheckPacked(q, ends, longest);
  TORCH_CHECK(dy.stride(2) == 1 && logs.is_contiguous() &&
              logs.sizes() == at::IntArrayRef({q.size(1), q.size(0)}));
  return BackwardOfPacked(dy, q, k, v, y, logs, ends, causal, scale, {*left, *right});
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt, at::Tensor,
           at::Tensor, at::Tensor>
FlashOfBatch(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double, bool causal,
             bool, Number scale) {
  called.emplace_back("flash to cache");
  const at::Tensor y =
      at::matmul((at::matmul(q, k.transpose(2, 3)) * ScaleOf(q, scale)).softmax(-1), v);
  TORCH_CHECK(!causal && q.size(1) == k.size(1));
  const at::Tensor none = at::empty({0});
  return {y, none, none, none, 0, 0, none, none, none};
}

// --- cuDNN

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt, at::Tensor,
           at::Tensor, at::Tensor>
Cudnn(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const MaybeTensor& bias,
      const MaybeTensor& ends, const MaybeTensor&, int64_t longest, int64_t, bool with_logs, double,
      bool causal, bool, Number scale) {
  CheckPacked(q, ends, longest);
  TORCH_CHECK(!bias.has_value() && with_logs == q.requires_grad());
  called.emplace_back("cudnn");
  const auto [y, logs] = ForwardOfPacked(q, k, v, *ends, causal, scale, {});
  return {y, logs, *ends, *ends, longest, longest, at::empty({0}), at::empty({0}), at::empty({0})};
}

Triple CudnnGradients(const at::Tensor& dy, const at::Tensor& q, const at::Tensor& k,
                      const at::Tensor& v, const at::Tensor& y, const at::Tensor& logs,
                      const at::Tensor&, const at::Tensor&, const at::Tensor&,
                      const at::Tensor& ends, const at::Tensor&, int64_t, int64_t, double,
                      bool causal, Number scale) {
  return BackwardOfPacked(dy, q, k, v, y, logs, ends, causal, scale, {});
}

// [batch, heads, tokens, dim], as sequences one after the other.
at::Tensor Packed(const at::Tensor& x) { return x.transpose(1, 2).flatten(0, 1); }
at::Tensor Unpacked(const at::Tensor& x, int64_t batch) {
  return x.unflatten(0, {batch, -1}).transpose(1, 2);
}
at::Tensor EndsOfBatch(const at::Tensor& q) {
  return at::arange(q.size(0) + 1, at::kInt) * q.size(2);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt, at::Tensor,
           at::Tensor, at::Tensor>
CudnnOfBatch(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const MaybeTensor& bias,
             bool, double, bool causal, bool, Number scale) {
  TORCH_CHECK(q.dim() == 4 && !bias.has_value());
  called.emplace_back("cudnn of a batch");
  const auto [y, logs] =
      ForwardOfPacked(Packed(q), Packed(k), Packed(v), EndsOfBatch(q), causal, scale, {});
  const at::Tensor none = at::empty({0});
  return {Unpacked(y, q.size(0)), logs, none, none, q.size(2), k.size(2), none, none, none};
}

Triple CudnnGradientsOfBatch(const at::Tensor& dy, const at::Tensor& q, const at::Tensor& k,
                             const at::Tensor& v, const at::Tensor& y, const at::Tensor& logs,
                             const at::Tensor&, const at::Tensor&, const at::Tensor&,
                             const at::Tensor&, const at::Tensor&, int64_t, int64_t, double,
                             bool causal, Number scale) {
  const auto [dq, dk, dv] = BackwardOfPacked(Packed(dy), Packed(q), Packed(k), Packed(v), Packed(y),
                                             logs, EndsOfBatch(q), causal, scale, {});
  return {Unpacked(dq, q.size(0)), Unpacked(dk, q.size(0)), Unpacked(dv, q.size(0))};
}

// --- Memory-efficient attention: [1, tokens, heads, dim], or a batch as cuDNN's.

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt> Efficient(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const MaybeTensor& bias,
    const MaybeTensor& ends, const MaybeTensor&, Integer longest, Integer, double,
    int64_t mask_type, bool with_logs, Number scale, const MaybeTensor&, Integer window) {
  TORCH_CHECK(q.dim() == 4 && q.size(0) == 1 && q.size(2) == k.size(2) && !bias.has_value());
  CheckPacked(q[0], ends, *longest);
  TORCH_CHECK(!window.has_value() && with_logs == q.requires_grad());
  called.emplace_back("efficient");
  const auto [y, logs] = ForwardOfPacked(q[0], k[0], v[0], *ends, mask_type == 1, scale, {});
  return {y.unsqueeze(0), logs, at::empty({0}), at::empty({0}), *longest, 0};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> EfficientGradients(
    const at::Tensor& dy, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const MaybeTensor&, const at::Tensor& y, const MaybeTensor& ends, const MaybeTensor&, int64_t,
    int64_t, const at::Tensor& logs, double, const at::Tensor&, const at::Tensor&,
    int64_t mask_type, bool, Number scale, Integer, Integer, bool) {
  const auto [dq, dk, dv] =
      BackwardOfPacked(dy[0], q[0], k[0], v[0], y[0], logs, *ends, mask_type == 1, scale, {});
  return {dq.unsqueeze(0), dk.unsqueeze(0), dv.unsqueeze(0), at::Tensor()};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> EfficientOfBatch(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const MaybeTensor& mask,
    bool with_logs, double, bool causal, Number scale) {
  TORCH_CHECK(q.dim() == 4 && q.size(1) == k.size(1) && with_logs == q.requires_grad());
  called.emplace_back(mask.has_value() ? "efficient with a mask" : "efficient of a batch");
  const at::Tensor none = at::empty({0});
  if (!mask.has_value() && q.size(2) == k.size(2)) {
    const auto [y, logs] =
        ForwardOfPacked(Packed(q), Packed(k), Packed(v), EndsOfBatch(q), causal, scale, {});
    return {Unpacked(y, q.size(0)), logs, none, none};
  }
  at::Tensor scores = at::matmul(q, k.transpose(2, 3)) * ScaleOf(q, scale);
  TORCH_CHECK(!causal);
  if (mask.has_value()) {
    const int64_t numbers = 16 / mask->element_size();
    TORCH_CHECK(mask->sizes() == scores.sizes() && mask->scalar_type() == q.scalar_type());
    TORCH_CHECK(mask->stride(3) == 1 && mask->stride(0) % numbers == 0);
    scores = scores + *mask;
  }
  return {at::matmul(scores.softmax(-1), v), none, none, none};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> EfficientGradientsOfBatch(
    const at::Tensor& dy, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const at::Tensor&, const at::Tensor& y, const at::Tensor& logs, const at::Tensor&,
    const at::Tensor&, double, std::array<bool, 4>, bool causal, Number scale) {
  const auto [dq, dk, dv] = BackwardOfPacked(Packed(dy), Packed(q), Packed(k), Packed(v), Packed(y),
                                             logs, EndsOfBatch(q), causal, scale, {});
  return {Unpacked(dq, q.size(0)), Unpacked(dk, q.size(0)), Unpacked(dv, q.size(0)), at::Tensor()};
}

// Calls a stand-in with the first arguments of an operator. Later versions of libtorch add more.
template <typename Results, typename... Args, size_t... i>
void CallWithFirst(Results (*call)(Args...), c10::Stack& stack, size_t count,
                   std::index_sequence<i...>) {
  const auto inputs = torch::jit::last(stack, count);
  Results results = call(inputs[i].template to<std::decay_t<Args>>()...);
  torch::jit::drop(stack, count);
  std::apply([&](auto&... result) { torch::jit::push(stack, std::move(result)...); }, results);
}

template <typename Results, typename... Args>
constexpr std::index_sequence_for<Args...> IndicesOf(Results (*)(Args...)) {
  return {};
}

template <auto call>
void Boxed(const c10::OperatorHandle& op, c10::Stack* stack) {
  CallWithFirst(call, *stack, op.schema().arguments().size(), IndicesOf(call));
}

template <auto call>
torch::CppFunction StandIn() {
  return torch::CppFunction::makeFromBoxedFunction<&Boxed<call>>();
}

TORCH_LIBRARY_IMPL(aten, CPU, library) {
  library.impl("_flash_attention_forward", StandIn<&Flash>());
  library.impl("_flash_attention_backward", StandIn<&FlashGradients>());
  library.impl("_scaled_dot_product_flash_attention", StandIn<&FlashOfBatch>());
  library.impl("_cudnn_attention_forward", StandIn<&Cudnn>());
  library.impl("_cudnn_attention_backward", StandIn<&CudnnGradients>());
  library.impl("_scaled_dot_product_cudnn_attention", StandIn<&CudnnOfBatch>());
  library.impl("_scaled_dot_product_cudnn_attention_backward", StandIn<&CudnnGradientsOfBatch>());
  library.impl("_efficient_attention_forward", StandIn<&Efficient>());
  library.impl("_efficient_attention_backward", StandIn<&EfficientGradients>());
  library.impl("_scaled_dot_product_efficient_attention", StandIn<&EfficientOfBatch>());
  library.impl("_scaled_dot_product_efficient_attention_backward",
               StandIn<&EfficientGradientsOfBatch>());
}

// --- Inputs

struct Inputs {
  at::Tensor q, k, v, ends, weights;
  std::vector<int64_t> seq_lens;
  std::vector<at::Tensor> leaves() const { return {q, k, v}; }
};

Inputs RandomInputs(const std::vector<int64_t>& seq_lens, int64_t heads, int64_t kv_heads,
                    int64_t dim, bool requires_grad) {
  at::manual_seed(1);
  std::vector<int> ends = {0};
  for (const int64_t length : seq_lens) ends.push_back(ends.back() + static_cast<int>(length));
  const int64_t tokens = ends.back();
  const auto random = [&](int64_t n) { return at::randn({tokens, n, dim}, at::kDouble); };
  Inputs inputs = {random(heads), random(kv_heads), random(kv_heads), at::tensor(ends, at::kInt),
                   random(heads), seq_lens};
  if (requires_grad)
    for (const at::Tensor& x : inputs.leaves()) x.set_requires_grad(true);
  return inputs;
}

void ExpectNear(const at::Tensor& x, const at::Tensor& expected) {
  ASSERT_EQ(x.sizes(), expected.sizes());
  EXPECT_LT((x - expected).abs().max().item<double>(), 1e-12);
}

std::vector<at::Tensor> GradientsOf(const at::Tensor& y, const at::Tensor& weights,
                                    const std::vector<at::Tensor>& leaves) {
  return torch::autograd::grad({(y * weights).sum()}, leaves);
}

struct Case {
  std::vector<int64_t> seq_lens;
  int64_t heads, kv_heads;
  AttentionOptions options;
};

std::string Described(Backend backend, const Case& c) {
  return c10::str(NameOf(backend), ", lengths ", c.seq_lens, ", key heads ", c.kv_heads,
                  ", causal ", c.options.causal, ", window ", c.options.window.value_or(0));
}

std::vector<Case> CasesOf(Backend backend) {
  std::vector<Case> cases;
  for (const std::vector<int64_t>& seq_lens :
       {std::vector<int64_t>{5}, {4, 4, 4}, {5, 3, 1}, {1}, {1, 7}})
    for (const bool causal : {true, false})
      for (const Integer window : {Integer(), Integer(1), Integer(3)})
        for (const int64_t kv_heads : {1, 2}) {
          const bool knows_windows = backend == Backend::kFlash || backend == Backend::kMath;
          if (window.has_value() && !knows_windows) continue;
          cases.push_back({seq_lens, 4, kv_heads, {causal, causal ? Number() : 0.3, window}});
        }
  return cases;
}

TEST(AttentionOnDevice, HeaderExample) {
  const Inputs in = RandomInputs({5, 3}, 4, 2, 8, false);

  const at::Tensor y = AttentionOnDevice(in.q, in.k, in.v, in.ends, {5, 3}, Backend::kFlash);

  ExpectNear(y, AttentionBySequence(in.q, in.k, in.v, {5, 3}));
}

TEST(AttentionOnDevice, EachBackendIsTheLoop) {
  for (const Backend backend : kBackends)
    for (const Case& c : CasesOf(backend)) {
      SCOPED_TRACE(Described(backend, c));
      const Inputs in = RandomInputs(c.seq_lens, c.heads, c.kv_heads, 8, false);
      const auto expected = AttentionBySequence(in.q, in.k, in.v, c.seq_lens, c.options);
      called.clear();

      ExpectNear(AttentionOnDevice(in.q, in.k, in.v, in.ends, c.seq_lens, backend, c.options),
                 expected);
      EXPECT_EQ(called.size(), backend == Backend::kMath ? 0 : 1);
    }
}

TEST(AttentionOnDevice, GradientsOfEachBackendAreThoseOfTheLoop) {
  for (const Backend backend : kBackends)
    for (const Case& c : CasesOf(backend)) {
      SCOPED_TRACE(Described(backend, c));
      const Inputs in = RandomInputs(c.seq_lens, c.heads, c.kv_heads, 8, true);
      const auto expected = GradientsOf(
          AttentionBySequence(in.q, in.k, in.v, c.seq_lens, c.options), in.weights, in.leaves());

      const auto gradients =
          GradientsOf(AttentionOnDevice(in.q, in.k, in.v, in.ends, c.seq_lens, backend, c.options),
                      in.weights, in.leaves());

      for (size_t i = 0; i < 3; ++i) ExpectNear(gradients[i], expected[i]);
    }
}

TEST(AttentionOnDevice, SequencesOfOneLengthAreABatch) {
  const Inputs in = RandomInputs({4, 4}, 2, 2, 8, false);
  called.clear();

  for (const Backend backend : {Backend::kCudnn, Backend::kEfficient, Backend::kFlash})
    AttentionOnDevice(in.q, in.k, in.v, in.ends, {4, 4}, backend);

  EXPECT_THAT(called, ElementsAre("cudnn of a batch", "efficient of a batch", "flash"));
}

TEST(AttentionOnDevice, InputsThatAreNotAlignedAreCopied) {
  const Inputs in = RandomInputs({5, 3}, 2, 2, 8, false);
  // Heads of 8 numbers in rows of 9, behind one number.
  const at::Tensor odd = at::empty({8, 2, 9}, at::kDouble).narrow(2, 1, 8);
  odd.copy_(in.q);

  for (const Backend backend : kBackends)
    ExpectNear(AttentionOnDevice(odd, in.k, in.v, in.ends, {5, 3}, backend),
               AttentionBySequence(in.q, in.k, in.v, {5, 3}));
}

// --- Sinks

// Scores written out, with a column for the sinks.
at::Tensor WithSinks(const Inputs& in, const at::Tensor& sinks, const AttentionOptions& o) {
  const Sides sides = o.window ? Sides{*o.window - 1, o.causal ? 0 : *o.window - 1} : Sides{};
  std::vector<at::Tensor> results;
  for (size_t i = 0; i < in.seq_lens.size(); ++i) {
    const auto part = [&](const at::Tensor& x) {
      return Part(x, in.ends, static_cast<int64_t>(i));
    };
    const at::Tensor scores =
        ScoresOf(part(in.q), part(in.k), ScaleOf(in.q, o.scale), o.causal, sides);
    const at::Tensor column = sinks.view({-1, 1, 1}).expand({scores.size(0), scores.size(1), 1});
    const at::Tensor weights = at::cat({scores, column}, -1).softmax(-1);
    results.push_back(
        at::matmul(weights.narrow(-1, 0, scores.size(-1)), ForHeads(part(in.v), in.q.size(1)))
            .transpose(0, 1));
  }
  return at::cat(results);
}

TEST(AttentionOnDevice, SinksTakePartInTheSoftmax) {
  for (const Case& c : CasesOf(Backend::kFlash)) {
    const Inputs in = RandomInputs(c.seq_lens, c.heads, c.kv_heads, 8, true);
    const at::Tensor sinks = at::randn({c.heads}, at::kDouble).set_requires_grad(true);
    std::vector<at::Tensor> leaves = in.leaves();
    leaves.push_back(sinks);
    const at::Tensor expected = WithSinks(in, sinks, c.options);
    const auto expected_gradients = GradientsOf(expected, in.weights, leaves);

    const at::Tensor y =
        AttentionOnDevice(in.q, in.k, in.v, in.ends, c.seq_lens, Backend::kFlash, c.options, sinks);

    ExpectNear(y, expected);
    const auto gradients = GradientsOf(y, in.weights, leaves);
    for (size_t i = 0; i < 4; ++i) ExpectNear(gradients[i], expected_gradients[i]);
  }
}

TEST(AttentionOnDevice, SinksMayBeAllThatNeedsAGradient) {
  const Inputs in = RandomInputs({5, 3}, 4, 2, 8, false);
  const at::Tensor sinks = at::randn({4}, at::kDouble).set_requires_grad(true);
  const auto of = [&](const at::Tensor& y) { return GradientsOf(y, in.weights, {sinks})[0]; };

  ExpectNear(of(AttentionOnDevice(in.q, in.k, in.v, in.ends, {5, 3}, Backend::kFlash, {}, sinks)),
             of(WithSinks(in, sinks, {})));
}

TEST(AttentionOnDevice, SinksOfAnotherBackendAreAnError) {
  const Inputs in = RandomInputs({5, 3}, 4, 2, 8, false);

  EXPECT_THAT(
      tests::MessageOf([&] {
        AttentionOnDevice(in.q, in.k, in.v, in.ends, {5, 3}, Backend::kCudnn, {}, at::zeros({4}));
      }),
      HasSubstr("sinks need the backend flash, got cudnn"));
}

TEST(AttentionOnDevice, WrongLengthsAreAnError) {
  const Inputs in = RandomInputs({5, 3}, 4, 2, 8, false);

  EXPECT_THAT(tests::MessageOf([&] {
                AttentionOnDevice(in.q, in.k, in.v, in.ends, {5, 2}, Backend::kFlash);
              }),
              HasSubstr("seq_lens add up to 7 tokens, but q has 8"));
  EXPECT_THAT(tests::MessageOf([&] {
                AttentionOnDevice(in.q, in.k, in.v, in.ends, {9, -1}, Backend::kFlash);
              }),
              HasSubstr("seq_lens must be at least 1 each, got [9, -1]"));
}

TEST(AttentionOnDevice, EndsOfAnotherFormAreAnError) {
  const Inputs in = RandomInputs({5, 3}, 4, 2, 8, false);

  for (const at::Tensor& ends : {in.ends.to(at::kLong), in.ends.narrow(0, 0, 2),
                                 in.ends.view({1, 3}), in.ends.to(at::kMeta)})
    EXPECT_THAT(tests::MessageOf([&] {
                  AttentionOnDevice(in.q, in.k, in.v, ends, {5, 3}, Backend::kFlash);
                }),
                HasSubstr("ends must be int32 [3] on cpu, got "));
}

TEST(AttentionOnDevice, AWindowThatABackendWouldLeaveOutIsAnError) {
  const Inputs in = RandomInputs({5, 3}, 4, 2, 8, false);
  const auto with_window = [&](Backend backend, int64_t window) {
    return AttentionOnDevice(in.q, in.k, in.v, in.ends, {5, 3}, backend, {.window = window});
  };

  for (const Backend backend : {Backend::kCudnn, Backend::kEfficient}) {
    EXPECT_THAT(tests::MessageOf([&] { with_window(backend, 4); }),
                HasSubstr("a window needs the backend flash or math, got "));
    ExpectNear(with_window(backend, 5), AttentionBySequence(in.q, in.k, in.v, {5, 3}));
  }
  EXPECT_THAT(tests::MessageOf([&] { with_window(Backend::kFlash, 0); }),
              HasSubstr("window must be at least 1, got 0"));
}

TEST(AttentionOnDevice, SinksAreOneForEachHead) {
  const Inputs in = RandomInputs({5, 3}, 4, 2, 8, false);

  EXPECT_THAT(
      tests::MessageOf([&] {
        AttentionOnDevice(in.q, in.k, in.v, in.ends, {5, 3}, Backend::kFlash, {}, at::zeros({1}));
      }),
      HasSubstr("sinks must be [4], got [1]"));
}

// --- A cache

TEST(CachedAttentionOnDevice, IsScaledDotProductAttention) {
  at::manual_seed(1);
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16})
    for (const int64_t capability : {75, 80, 90, 120})
      for (const bool has_mask : {false, true}) {
        const auto random = [&](int64_t rows) { return at::randn({3, 2, rows, 8}).to(dtype); };
        const at::Tensor q = random(4), keys = random(11), values = random(11);
        MaybeTensor mask;
        if (has_mask) mask = at::randn({3, 13}).to(dtype).narrow(1, 1, 11);
        const at::Tensor for_all = has_mask ? mask->view({3, 1, 1, 11}) : at::zeros({1}, dtype);
        const at::Tensor expected = at::matmul(
            (at::matmul(q, keys.transpose(2, 3)) * std::pow(8, -0.5) + for_all).softmax(-1),
            values);
        called.clear();

        const at::Tensor y = CachedAttentionOnDevice(q, keys, values, capability, mask);

        EXPECT_LT((y - expected).abs().max().item<double>(), dtype == at::kBFloat16 ? 0.05 : 1e-5);
        std::string kernel;
        if (dtype == at::kFloat)
          kernel = has_mask ? "efficient with a mask" : "efficient of a batch";
        if (dtype == at::kBFloat16 && capability >= 80)
          kernel = has_mask ? "efficient with a mask" : "flash to cache";
        EXPECT_EQ(called,
                  kernel.empty() ? std::vector<std::string>() : std::vector<std::string>{kernel});
      }
}

}  // namespace
}  // namespace lockstep::kernels
