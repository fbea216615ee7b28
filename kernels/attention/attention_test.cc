// Attention over packed sequences against its formula in float64, and against the loop of
// at::scaled_dot_product_attention that it stands for, for one thread and for several. The bits are
// the same where our kernel computes both sides (see ExpectSameNumbers).

#include "kernels/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "ATen/autocast_mode.h"
#include "ATen/core/grad_mode.h"
#include "ATen/record_function.h"
#include "c10/core/InferenceMode.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/attention/flash.h"
#include "tests/support/message_of.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/csrc/autograd/function.h"

namespace lockstep::kernels {
namespace {

using ::testing::HasSubstr;
using tests::MessageOf;
using Tensors = std::vector<at::Tensor>;

// The loop calls the kernel of the row.
const bool replaced = ReplaceAtenFlashAttention(true);

struct Case {
  std::vector<int64_t> seq_lens;
  int64_t heads, kv_heads, dim;
  AttentionOptions options = {};
};

std::vector<Case> Cases() {
  return {
      {{7}, 4, 4, 6},
      {{1}, 4, 2, 6},
      {{5, 1, 6}, 4, 4, 6},
      {{5, 7}, 6, 2, 4},
      {{4, 5, 33, 1}, 5, 1, 8},
      {{5, 7}, 6, 3, 4, {.causal = false}},
      {{3, 11, 40}, 6, 3, 4, {.window = 4}},
      {{6}, 2, 1, 4, {.window = 1}},
      {{3, 11, 40}, 6, 3, 4, {.causal = false, .window = 3}},
      {{9, 50}, 2, 2, 16, {.window = 50}},
      {{4, 5}, 4, 2, 6, {.scale = 0.3}},
      {{200, 33, 65, 800, 32, 190}, 4, 2, 32},
      {{32, 32, 32, 32, 32, 32, 32}, 8, 4, 64},
      {{150, 150, 20}, 3, 3, 24, {.causal = false, .scale = 0.2, .window = 30}},
      {{40, 41, 42}, 1, 1, 16},
  };
}

int64_t TokensOf(const Case& c) {
  int64_t tokens = 0;
  for (const int64_t length : c.seq_lens) tokens += length;
  return tokens;
}

Tensors InputsOf(const Case& c, at::ScalarType dtype, bool needs_gradients = true) {
  at::manual_seed(TokensOf(c));
  Tensors inputs;
  for (const int64_t heads : {c.heads, c.kv_heads, c.kv_heads})
    inputs.push_back(at::randn({TokensOf(c), heads, c.dim}, at::kDouble)
                         .to(dtype)
                         .requires_grad_(needs_gradients));
  return inputs;
}

at::Tensor Ours(const Tensors& in, const Case& c) {
  return Attention(in[0], in[1], in[2], c.seq_lens, c.options);
}

at::Tensor Loop(const Tensors& in, const Case& c) {
  return AttentionBySequence(in[0], in[1], in[2], c.seq_lens, c.options);
}

// The formula with one mask for the whole row.
at::Tensor Formula(const Tensors& in, const Case& c) {
  const int64_t tokens = TokensOf(c);
  at::Tensor mask = at::full({tokens, tokens}, -std::numeric_limits<double>::infinity(),
                             in[0].options().requires_grad(false));
  int64_t begin = 0;
  for (const int64_t length : c.seq_lens) {
    for (int64_t i = begin; i < begin + length; ++i)
      for (int64_t j = begin; j < begin + length; ++j)
        if ((!c.options.causal || j <= i) &&
            (!c.options.window.has_value() || std::abs(i - j) < *c.options.window))
          mask[i][j] = 0.0;
    begin += length;
  }
  const auto heads = [&](const at::Tensor& x) {
    return x.repeat_interleave(c.heads / x.size(1), 1).transpose(0, 1);
  };
  const double scale = c.options.scale.value_or(1 / std::sqrt(static_cast<double>(c.dim)));
  const at::Tensor scores = at::matmul(heads(in[0]), heads(in[1]).transpose(1, 2)) * scale + mask;
  return at::matmul(scores.softmax(-1), heads(in[2])).transpose(0, 1);
}

// The result, and the gradients of q, k and v.
using Function = std::function<at::Tensor(const Tensors&, const Case&)>;
Tensors WithGradients(const Function& attention, const Tensors& in, const Case& c) {
  const at::Tensor y = attention(in, c);
  at::manual_seed(3);
  const at::Tensor dy = at::randn(y.sizes(), at::kDouble).to(y.scalar_type());
  Tensors results = torch::autograd::grad({y}, in, {dy});
  results.push_back(y.detach());
  return results;
}

void ExpectSameBits(const Tensors& ours, const Tensors& expected, const std::string& what) {
  ASSERT_EQ(ours.size(), expected.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_TRUE(at::equal(ours[i], expected[i])) << what << ", result " << i;
    EXPECT_EQ(ours[i].scalar_type(), expected[i].scalar_type()) << what;
  }
}

bool HasMask(const Case& c) {
  const int64_t longest = *std::max_element(c.seq_lens.begin(), c.seq_lens.end());
  return c.options.window.has_value() && *c.options.window < longest;
}

// Without a mask, float32 and float64 are our kernel's: the order of its sums depends on shapes
// alone, so the bits are equal on every processor. Otherwise both sides call ATen's kernel, with
// other strides. Its products are MKL's or oneDNN's. There the last bit may depend on the
// strides, the memory's alignment and the threads: on AMD's processors it does.
void ExpectSameNumbers(const Tensors& ours, const Tensors& expected, const Case& c,
                       const std::string& what) {
  const at::ScalarType dtype = ours[0].scalar_type();
  if (!HasMask(c) && (dtype == at::kFloat || dtype == at::kDouble))
    return ExpectSameBits(ours, expected, what);
  const double rounding = dtype == at::kDouble     ? std::numeric_limits<double>::epsilon()
                          : dtype == at::kFloat    ? std::numeric_limits<float>::epsilon()
                          : dtype == at::kBFloat16 ? 1.0 / 128
                                                   : 1.0 / 1024;
  ASSERT_EQ(ours.size(), expected.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    const double largest = expected[i].abs().max().item<double>();
    EXPECT_LE((ours[i] - expected[i]).abs().max().item<double>(), 4 * rounding * largest)
        << what << ", result " << i;
    EXPECT_EQ(ours[i].scalar_type(), expected[i].scalar_type()) << what;
  }
}

// The names of the operators that run, by thread.
thread_local std::vector<std::string> names;

int64_t CountOf(const std::string& name, const std::function<void()>& call) {
  names.clear();
  const at::CallbackHandle handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& function)
                                     -> std::unique_ptr<at::ObserverContext> {
        names.emplace_back(function.name());
        return nullptr;
      }).scopes({at::RecordScope::FUNCTION}));
  call();
  at::removeCallback(handle);
  return std::count(names.begin(), names.end(), name);
}

bool RunsKernel(const std::function<void()>& call) {
  return CountOf("lockstep::packed_attention", call) > 0;
}

// Runs a test's body with so many threads.
class Threads {
 public:
  explicit Threads(int count) : before_(at::get_num_threads()) { at::set_num_threads(count); }
  ~Threads() { at::set_num_threads(before_); }

 private:
  const int before_;
};

TEST(Attention, HeaderExample) {
  const at::Tensor q = at::randn({8, 4, 16}), k = at::randn({8, 2, 16}), v = at::randn({8, 2, 16});

  const at::Tensor y = Attention(q, k, v, {5, 3});

  EXPECT_EQ(y.sizes(), at::IntArrayRef({8, 4, 16}));
  EXPECT_TRUE(at::allclose(y.narrow(0, 5, 3),
                           Attention(q.narrow(0, 5, 3), k.narrow(0, 5, 3), v.narrow(0, 5, 3), {3}),
                           1e-5, 1e-6));
}

TEST(Attention, ValuesAndGradientsAreThoseOfTheFormula) {
  for (const Case& c : Cases()) {
    if (TokensOf(c) > 400) continue;  // the formula holds all pairs
    const Tensors in = InputsOf(c, at::kDouble);

    const Tensors ours = WithGradients(Ours, in, c), expected = WithGradients(Formula, in, c);

    for (size_t i = 0; i < ours.size(); ++i)
      EXPECT_TRUE(at::allclose(ours[i], expected[i], 1e-9, 1e-10))
          << c.seq_lens << ", result " << i << ": " << (ours[i] - expected[i]).abs().max();
  }
}

TEST(Attention, NumbersAreThoseOfTheLoop) {
  for (const int threads : {1, 2, 3}) {
    const Threads guard(threads);
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
      for (const Case& c : Cases()) {
        const Tensors in = InputsOf(c, dtype);
        const std::string what = c10::str(dtype, ", ", c.seq_lens, ", ", threads, " threads");

        ASSERT_TRUE(RunsKernel([&] { Ours(in, c); })) << what;
        ExpectSameNumbers(WithGradients(Ours, in, c), WithGradients(Loop, in, c), c, what);
      }
    }
  }
}

TEST(Attention, ResultsDoNotDependOnTheNumberOfThreads) {
  for (const Case& c : Cases()) {
    const Tensors in = InputsOf(c, at::kFloat);
    Tensors alone, together;
    {
      const Threads guard(1);
      alone = WithGradients(Ours, in, c);
    }
    {
      const Threads guard(3);
      together = WithGradients(Ours, in, c);
    }
    ExpectSameNumbers(together, alone, c, c10::str(c.seq_lens));
  }
}

TEST(Attention, InputsMayBeSlicesOfOneTensor) {
  const Case c = {{5, 30, 2}, 4, 4, 16};
  const at::Tensor qkv = at::randn({37, 3, 4, 16}).requires_grad_(true);
  const auto slices = [&] { return Tensors{qkv.select(1, 0), qkv.select(1, 1), qkv.select(1, 2)}; };
  const auto gradient = [&](const Function& attention) {
    return torch::autograd::grad({attention(slices(), c).square().sum()}, {qkv})[0];
  };

  EXPECT_TRUE(RunsKernel([&] { Ours(slices(), c); }));
  EXPECT_TRUE(at::equal(Ours(slices(), c), Loop(slices(), c)));
  EXPECT_TRUE(at::equal(gradient(Ours), gradient(Loop)));
}

TEST(Attention, AGradientMayBeExpanded) {
  const Case c = {{5, 30, 2}, 4, 2, 16};
  const Tensors in = InputsOf(c, at::kFloat);

  ExpectSameBits(torch::autograd::grad({Ours(in, c).sum()}, in),
                 torch::autograd::grad({Loop(in, c).sum()}, in), "sum");
}

TEST(Attention, SomeInputsAloneMayNeedAGradient) {
  const Case c = {{5, 30, 2}, 4, 2, 16};
  Tensors in = InputsOf(c, at::kFloat, /*needs_gradients=*/false);
  in[1].requires_grad_(true);

  ExpectSameBits(torch::autograd::grad({Ours(in, c).square().sum()}, {in[1]}),
                 torch::autograd::grad({Loop(in, c).square().sum()}, {in[1]}), "keys");
}

TEST(Attention, TheRowIsOneNodeOfAutograd) {
  const Case c = {{5, 30, 2}, 4, 2, 16};
  const Tensors in = InputsOf(c, at::kFloat);

  const at::Tensor y = Ours(in, c);

  EXPECT_EQ(y.grad_fn()->name(), "AttentionBackward");
  EXPECT_EQ(y.grad_fn()->next_edge(0).function->name(), "torch::autograd::AccumulateGrad");
  EXPECT_EQ(CountOf("lockstep::packed_attention_backward", [&] { y.sum().backward(); }), 1);
  EXPECT_TRUE(in[2].grad().defined());
  EXPECT_THAT(MessageOf([&] { y.sum().backward(); }), HasSubstr("a second time"));
}

TEST(Attention, WithoutGradientsNothingIsKept) {
  const Case c = {{5, 3}, 4, 2, 16};
  const Tensors in = InputsOf(c, at::kFloat);
  {
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(RunsKernel([&] { EXPECT_FALSE(Ours(in, c).requires_grad()); }));
  }
  const c10::InferenceMode inference;
  const Tensors fresh = InputsOf(c, at::kFloat, /*needs_gradients=*/false);
  EXPECT_TRUE(at::equal(Ours(fresh, c), Loop(fresh, c)));
}

TEST(Attention, AChangedInputIsAnErrorInBackward) {
  const Case c = {{5, 3}, 4, 2, 16};
  const Tensors in = InputsOf(c, at::kFloat, /*needs_gradients=*/false);
  const at::Tensor q = (in[0].clone().requires_grad_(true)) * 1;
  const at::Tensor y = Attention(q, in[1], in[2], c.seq_lens);

  q.mul_(2);

  EXPECT_THAT(MessageOf([&] { y.sum().backward(); }),
              HasSubstr("modified by an inplace operation"));
}

TEST(Attention, AGradientOfAGradientIsAnError) {
  const Case c = {{5, 3}, 4, 2, 16};
  const Tensors in = InputsOf(c, at::kFloat);

  const Tensors gradients = torch::autograd::grad({Ours(in, c).square().sum()}, in, {},
                                                  std::nullopt, /*create_graph=*/true);

  EXPECT_THAT(MessageOf([&] { torch::autograd::grad({gradients[0].sum()}, {in[1]}); }),
              HasSubstr("lockstep::packed_attention_backward"));
}

// `low`: the index of an input that has autocast's dtype already, as values behind a layer have.
void ExpectAutocastOfAten(size_t low) {
  const Case c = {{5, 30, 2}, 4, 2, 16};
  Tensors in = InputsOf(c, at::kFloat);
  if (low < 3) in[low] = in[low].detach().to(at::kBFloat16).requires_grad_(true);
  at::autocast::set_autocast_enabled(at::kCPU, true);

  const bool runs_kernel = RunsKernel([&] { Ours(in, c); });
  const Tensors ours = WithGradients(Ours, in, c), expected = WithGradients(Loop, in, c);

  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  EXPECT_TRUE(runs_kernel);
  EXPECT_EQ(ours.back().scalar_type(), at::kBFloat16);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(ours[i].scalar_type(), in[i].scalar_type());
  ExpectSameBits(ours, expected, "autocast");
}

TEST(Attention, AutocastCastsAsForAten) { ExpectAutocastOfAten(3); }

TEST(Attention, AutocastCastsWhatIsNotYetOfItsDtype) {
  for (const size_t low : {0, 1, 2}) ExpectAutocastOfAten(low);
}

TEST(Attention, OnMetaItHasShapes) {
  const at::Tensor q = at::empty({8, 4, 16}, at::device(at::kMeta)).requires_grad_(true);
  const at::Tensor k = at::empty({8, 2, 16}, at::device(at::kMeta));

  const at::Tensor y = Attention(q, k, k, {5, 3});

  EXPECT_TRUE(y.is_meta());
  EXPECT_EQ(y.sizes(), q.sizes());
  EXPECT_EQ(torch::autograd::grad({y.sum()}, {q})[0].sizes(), q.sizes());
}

TEST(Attention, WhereAtenHasNoKernelItIsTheLoop) {
  const Case c = {{5, 3}, 4, 2, 16};
  const at::Tensor wide = at::randn({8, 4, 32});
  const at::Tensor strided = wide.slice(2, 0, 32, 2), k = at::randn({8, 2, 16});
  EXPECT_FALSE(RunsKernel([&] { Attention(strided, k, k, c.seq_lens); }));
  EXPECT_TRUE(at::allclose(Attention(strided, k, k, c.seq_lens),
                           Attention(strided.contiguous(), k, k, c.seq_lens), 1e-5, 1e-6));
  at::globalContext().setSDPUseFlash(false);
  EXPECT_FALSE(RunsKernel([&] { Ours(InputsOf(c, at::kFloat), c); }));
  at::globalContext().setSDPUseFlash(true);
}

TEST(Attention, ARowMayBeEmpty) {
  const Tensors in = {at::randn({0, 4, 16}), at::randn({0, 2, 16}), at::randn({0, 2, 16})};

  EXPECT_EQ(Attention(in[0], in[1], in[2], {}).sizes(), at::IntArrayRef({0, 4, 16}));
}

TEST(Attention, MistakesAreNamed) {
  const at::Tensor q = at::randn({6, 4, 8}), k = at::randn({6, 2, 8});
  const auto message = [&](const at::Tensor& a, const at::Tensor& b, at::IntArrayRef seq_lens,
                           const AttentionOptions& options = {}) {
    return MessageOf([&] { Attention(a, b, b, seq_lens, options); });
  };

  EXPECT_THAT(message(q[0], k, {6}), HasSubstr("must be [tokens, heads, dim], got [4, 8]"));
  EXPECT_THAT(message(q, k.narrow(0, 0, 5), {6}), HasSubstr("the same tokens and dim"));
  EXPECT_THAT(message(q.narrow(1, 0, 3), k, {6}),
              HasSubstr("3 query heads are not a multiple of 2 key heads"));
  EXPECT_THAT(message(q, k, {2, 3}), HasSubstr("seq_lens add up to 5 tokens, but q has 6"));
  EXPECT_THAT(message(q, k, {6, 0}), HasSubstr("at least 1 each, got [6, 0]"));
  EXPECT_THAT(message(q, k, {6}, {.window = 0}), HasSubstr("window must be at least 1, got 0"));
  EXPECT_THAT(message(q, k.to(at::kDouble), {6}),
              HasSubstr("must have one dtype, got Float, Double and Double"));
  EXPECT_THAT(MessageOf([&] { Attention(q, k, k.narrow(1, 0, 1), {6}); }),
              HasSubstr("k and v must have one shape, got [6, 2, 8] and [6, 1, 8]"));
}

}  // namespace
}  // namespace lockstep::kernels
