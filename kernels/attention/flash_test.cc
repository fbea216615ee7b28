// FlashAttention against its formula in float64, against the errors of ATen's kernel, and in its
// place below at::scaled_dot_product_attention. Runs on each instruction set.

#include "kernels/attention/flash.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/aten/private_operators.h"
#include "tests/support/message_of.h"
#include "torch/csrc/autograd/autograd.h"

namespace lockstep::kernels {
namespace {

using ::testing::HasSubstr;
using tests::MessageOf;
using Tensors = std::vector<at::Tensor>;

struct Case {
  int64_t batch, heads, queries, keys, dim;
  bool causal = true;
  std::optional<double> scale = {};
};

// Blocks have 256 queries and keys, vectors 4 to 16 numbers, tiles up to 8 rows.
std::vector<Case> Cases() {
  return {
      {1, 1, 1, 1, 1},
      {2, 3, 5, 5, 7},
      {1, 2, 16, 16, 8},
      {2, 2, 33, 33, 32, false},
      {1, 2, 64, 64, 64},
      {1, 2, 127, 127, 40},
      {1, 1, 256, 256, 16, false},
      {1, 2, 129, 129, 24},
      {1, 2, 257, 257, 24},
      {2, 1, 530, 530, 20},
      {1, 3, 300, 300, 33, false, 0.3},
      {1, 2, 5, 270, 16, false},
      {1, 2, 270, 5, 16, false},
      {1, 2, 5, 300, 16},  // causal: a query sees the keys up to its own number
      {1, 2, 300, 7, 16},
      {1, 1, 600, 300, 16},
      {1, 1, 300, 600, 16},
      {1, 1, 300, 600, 16, false},
      {1, 1, 20, 20, 128},
      {1, 1, 70, 70, 160, false},
      {1, 2, 40, 40, 16, true, -0.7},
      {1, 2, 40, 40, 16, false, 0.0},
  };
}

std::string NameOf(const Case& c) {
  return c10::str("batch ", c.batch, ", heads ", c.heads, ", queries ", c.queries, ", keys ",
                  c.keys, ", dim ", c.dim, c.causal ? ", causal" : "");
}

// q, k, v and the gradient of y.
Tensors InputsOf(const Case& c, at::ScalarType dtype) {
  at::manual_seed(c.queries + c.dim);
  Tensors inputs;
  for (const int64_t tokens : {c.queries, c.keys, c.keys, c.queries})
    inputs.push_back(at::randn({c.batch, c.heads, tokens, c.dim}, at::kDouble).to(dtype));
  return inputs;
}

// y, logsumexp and the gradients of q, k and v, in memory of NaNs before.
Tensors Ours(const Tensors& in, const Case& c) {
  const auto fresh = [](at::IntArrayRef shape, const at::Tensor& like) {
    return at::full(shape, std::numeric_limits<double>::quiet_NaN(), like.options());
  };
  const at::Tensor &q = in[0], &k = in[1], &v = in[2], &dy = in[3];
  const at::Tensor y = fresh(q.sizes(), q), logsumexp = fresh({c.batch, c.heads, c.queries}, q);
  const at::Tensor dq = fresh(q.sizes(), q), dk = fresh(k.sizes(), q), dv = fresh(v.sizes(), q);
  EXPECT_TRUE(CanUseFlashAttention(q, k, v));
  FlashAttention(q, k, v, c.causal, c.scale, y, logsumexp);
  FlashAttentionBackward(dy, q, k, v, y, logsumexp, c.causal, c.scale, dq, dk, dv);
  return {y, logsumexp, dq, dk, dv};
}

Tensors Atens(const Tensors& in, const Case& c) {
  const auto [y, logsumexp] =
      AtenFlashAttention(in[0], in[1], in[2], 0, c.causal, std::nullopt, c.scale);
  const auto [dq, dk, dv] = AtenFlashAttentionBackward(in[3], in[0], in[1], in[2], y, logsumexp, 0,
                                                       c.causal, std::nullopt, c.scale);
  return {y, logsumexp, dq, dk, dv};
}

// The formula in float64, and its gradients by autograd.
Tensors Formula(const Tensors& in, const Case& c) {
  const auto leaf = [](const at::Tensor& x) { return x.to(at::kDouble).requires_grad_(true); };
  const at::Tensor q = leaf(in[0]), k = leaf(in[1]), v = leaf(in[2]);
  const double scale = c.scale.value_or(1 / std::sqrt(static_cast<double>(c.dim)));
  at::Tensor scores = at::matmul(q, k.transpose(-1, -2)) * scale;
  if (c.causal) {
    const at::Tensor seen = at::ones({c.queries, c.keys}, at::kBool).tril();
    scores = scores.masked_fill(seen.logical_not(), -std::numeric_limits<double>::infinity());
  }
  const at::Tensor y = at::matmul(scores.softmax(-1), v);
  Tensors results = {y.detach(), scores.logsumexp(-1).detach()};
  for (const at::Tensor& gradient : torch::autograd::grad({y}, {q, k, v}, {in[3].to(at::kDouble)}))
    results.push_back(gradient);
  return results;
}

double ErrorOf(const at::Tensor& x, const at::Tensor& exact) {
  return (x.to(at::kDouble) - exact).norm().item<double>();
}

const char* const kNames[] = {"y", "logsumexp", "dq", "dk", "dv"};

TEST(FlashAttention, HeaderExample) {
  const at::Tensor q = at::randn({1, 2, 5, 8}), k = at::randn({1, 2, 5, 8}), v = k;
  const at::Tensor before = at::scaled_dot_product_attention(q, k, v, {}, 0.0, /*is_causal=*/true);

  lockstep::kernels::ReplaceAtenFlashAttention(true);
  const at::Tensor y = at::scaled_dot_product_attention(q, k, v, {}, 0.0, /*is_causal=*/true);

  ReplaceAtenFlashAttention(false);
  EXPECT_TRUE(at::allclose(y, before, 1e-5, 1e-6));
}

// at::empty fills all memory with NaNs here, also the kernel's own.
TEST(FlashAttention, ReadsNoMemoryThatItHasNotWritten) {
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  ASSERT_TRUE(at::empty({3}).isnan().all().item<bool>());
  for (const Case& c : Cases()) {
    const Tensors ours = Ours(InputsOf(c, at::kFloat), c);
    for (size_t i = 0; i < ours.size(); ++i)
      EXPECT_FALSE(ours[i].isnan().any().item<bool>()) << NameOf(c) << ", " << kNames[i];
  }
  at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false);
}

TEST(FlashAttention, HasTheValuesAndGradientsOfTheFormula) {
  for (const Case& c : Cases()) {
    const Tensors in = InputsOf(c, at::kDouble);

    const Tensors ours = Ours(in, c), exact = Formula(in, c);

    for (size_t i = 0; i < ours.size(); ++i)
      EXPECT_TRUE(at::allclose(ours[i], exact[i], 1e-10, 1e-12))
          << NameOf(c) << ", " << kNames[i] << ": " << (ours[i] - exact[i]).abs().max();
  }
}

TEST(FlashAttention, ErrorsAreOnAverageNoLargerThanThoseOfAten) {
  constexpr double kMostOfOneResult = 1.5;  // a few numbers differ by chance
  double logarithms = 0;
  int count = 0;
  for (const Case& c : Cases()) {
    if (c.scale.value_or(1) < 0) continue;  // ATen's scores behind a causal mask are NaN
    const Tensors in = InputsOf(c, at::kFloat), exact = Formula(in, c);

    const Tensors ours = Ours(in, c), atens = Atens(in, c);

    for (size_t i = 0; i < ours.size(); ++i) {
      // A unit in the last place of each number, where ATen's are exact by chance.
      const double rounding =
          std::numeric_limits<float>::epsilon() * exact[i].norm().item<double>();
      const double error = ErrorOf(ours[i], exact[i]) + rounding;
      const double atens_error = ErrorOf(atens[i], exact[i]) + rounding;
      EXPECT_LE(error, kMostOfOneResult * atens_error) << NameOf(c) << ", " << kNames[i];
      if (error == 0 || atens_error == 0) continue;  // a gradient that is zero
      logarithms += std::log(error / atens_error);
      ++count;
    }
  }
  EXPECT_LE(std::exp(logarithms / count), 1) << "geometric mean of the ratios";
}

TEST(FlashAttention, BitsDoNotDependOnTheNumberOfThreads) {
  const int before = at::get_num_threads();
  for (const Case& c : Cases()) {
    const Tensors in = InputsOf(c, at::kFloat);
    at::set_num_threads(1);
    const Tensors alone = Ours(in, c);
    at::set_num_threads(3);
    const Tensors together = Ours(in, c);
    for (size_t i = 0; i < alone.size(); ++i)
      EXPECT_TRUE(at::equal(alone[i], together[i])) << NameOf(c) << ", " << kNames[i];
  }
  at::set_num_threads(before);
}

TEST(FlashAttention, InputsMayLieApartOrShareMemory) {
  const Case c = {2, 4, 300, 300, 16};
  const at::Tensor qkv = at::randn({2, 300, 3, 4, 16}).permute({2, 0, 3, 1, 4});
  const at::Tensor shared = at::randn({2, 1, 300, 16}).expand({2, 4, 300, 16});
  const at::Tensor reversed = at::randn({2, 4, 16, 300}).transpose(2, 3);  // rows are not dense
  const at::Tensor expanded = at::ones({}).expand({2, 4, 300, 16});
  for (const Tensors& in :
       {Tensors{qkv[0], qkv[1], qkv[2], reversed}, Tensors{qkv[0], shared, shared, expanded},
        Tensors{reversed, reversed, reversed, qkv[1]}}) {
    Tensors dense;
    for (const at::Tensor& x : in) dense.push_back(x.contiguous());

    const Tensors ours = Ours(in, c), expected = Ours(dense, c);

    for (size_t i = 0; i < ours.size(); ++i)
      EXPECT_TRUE(at::equal(ours[i], expected[i])) << kNames[i];
  }
}

TEST(FlashAttention, ResultsMayLieApart) {
  const Case c = {2, 4, 300, 300, 16};
  const Tensors in = InputsOf(c, at::kFloat), dense = Ours(in, c);
  const at::Tensor room = at::zeros({2, 300, 6, 4, 16}).permute({2, 0, 3, 1, 4});
  const at::Tensor logsumexp = at::zeros({2, 300, 4}).transpose(1, 2);

  FlashAttention(in[0], in[1], in[2], c.causal, c.scale, room[0], logsumexp);
  FlashAttentionBackward(in[3], in[0], in[1], in[2], room[0], logsumexp, c.causal, c.scale, room[2],
                         room[3], room[4]);

  EXPECT_TRUE(at::equal(room[0], dense[0]));
  for (int64_t i = 2; i < 5; ++i) EXPECT_TRUE(at::equal(room[i], dense[i])) << kNames[i];
  EXPECT_FALSE(room[1].any().item<bool>() || room[5].any().item<bool>()) << "what lies between";
}

TEST(FlashAttention, LargeScoresDoNotOverflow) {
  for (const double scale : {1e4, 1e9, 1e20, -1e12}) {
    const Case c = {1, 1, 300, 300, 8, true, scale};
    const Tensors in = InputsOf(c, at::kFloat);

    const Tensors ours = Ours(in, c);

    // Scores whose float32 values are close may have another order.
    if (scale == 1e4) {
      EXPECT_TRUE(at::allclose(ours[0].to(at::kDouble), Formula(in, c)[0], 1e-4, 1e-4));
    }
    for (const at::Tensor& x : ours) EXPECT_TRUE(x.isfinite().all().item<bool>()) << scale;
    EXPECT_LE(ours[0].abs().max().item<float>(), in[2].abs().max().item<float>()) << scale;
  }
}

// In a block of keys whose scores are all minus infinity, and in all blocks.
TEST(FlashAttention, KeysMayHaveScoresOfMinusInfinity) {
  const Case c = {1, 1, 300, 300, 8, false};
  Tensors in = InputsOf(c, at::kFloat);
  in[0].fill_(1);
  in[1][0][0].narrow(0, 0, 290).fill_(-3e38);
  const Case last_keys = {1, 1, 300, 10, 8, false};

  const Tensors ours = Ours(in, c);
  const Tensors expected =
      Ours({in[0], in[1].narrow(2, 290, 10), in[2].narrow(2, 290, 10), in[3]}, last_keys);
  in[1].fill_(-3e38);
  const Tensors hidden = Ours(in, c);

  EXPECT_TRUE(at::allclose(ours[0], expected[0], 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(ours[1], expected[1], 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(ours[4].narrow(2, 290, 10), expected[4], 1e-4, 1e-5));
  EXPECT_EQ(ours[4].narrow(2, 0, 290).abs().max().item<float>(), 0);
  EXPECT_EQ(hidden[0].abs().max().item<float>(), 0) << "as ATen's";
  EXPECT_EQ(hidden[4].abs().max().item<float>(), 0);
}

TEST(FlashAttention, ANanKeyReachesOnlyTheQueriesThatSeeIt) {
  const Case c = {1, 1, 300, 300, 8};
  for (const int64_t place : {150, 280}) {
    Tensors in = InputsOf(c, at::kFloat);
    in[1][0][0][place][3] = std::numeric_limits<float>::quiet_NaN();

    const at::Tensor is_nan = Ours(in, c)[0].isnan()[0][0];

    EXPECT_FALSE(is_nan.narrow(0, 0, place).any().item<bool>()) << place;
    EXPECT_TRUE(is_nan.narrow(0, place, c.queries - place).all().item<bool>()) << place;
    // The last query sees all keys, and is NaN.
    EXPECT_TRUE(Ours(in, c)[4].isnan().all().item<bool>()) << place;
  }
}

TEST(FlashAttention, MistakesAreNamed) {
  const at::Tensor x = at::randn({1, 2, 4, 8}), low = x.to(at::kBFloat16);
  const auto message = [&](const at::Tensor& q, const at::Tensor& y) {
    return MessageOf([&] { FlashAttention(q, q, q, true, {}, y, at::empty({1, 2, 4})); });
  };
  EXPECT_THAT(message(low, low), HasSubstr("got [1, 2, 4, 8] BFloat16, [1, 2, 4, 8] BFloat16 and"));
  EXPECT_THAT(message(x, at::empty({1, 2, 8, 4}).transpose(2, 3)),
              HasSubstr("y must be dense along dim, got strides [64, 32, 1, 4]"));
  EXPECT_THAT(message(x, x.to(at::kDouble)),
              HasSubstr("y must be [1, 2, 4, 8] Float, got [1, 2, 4, 8] Double"));
  EXPECT_THAT(MessageOf([&] {
                FlashAttentionBackward(low, x, x, x, x, at::empty({1, 2, 4}), true, {}, x, x, x);
              }),
              HasSubstr("dy must be [1, 2, 4, 8] Float, got [1, 2, 4, 8] BFloat16"));
  EXPECT_THAT(MessageOf([&] {
                FlashAttentionBackward(x, x, x, x, x, at::empty({1, 2, 3}), true, {}, x, x, x);
              }),
              HasSubstr("logsumexp must be [1, 2, 4] Float, got [1, 2, 3] Float"));
}

TEST(FlashAttention, TakesNoOtherDtypesShapesOrEmptyTensors) {
  const at::Tensor x = at::randn({1, 2, 4, 8}), y = at::randn({1, 2, 3, 8});
  EXPECT_TRUE(CanUseFlashAttention(x, y, y));
  EXPECT_FALSE(CanUseFlashAttention(x, y, x));
  EXPECT_FALSE(CanUseFlashAttention(x, y.to(at::kDouble), y));
  EXPECT_FALSE(CanUseFlashAttention(x[0], y[0], y[0]));
  EXPECT_FALSE(CanUseFlashAttention(x, y.narrow(1, 0, 1), y.narrow(1, 0, 1)));
  EXPECT_FALSE(CanUseFlashAttention(x, y.narrow(2, 0, 0), y.narrow(2, 0, 0)));
  EXPECT_FALSE(CanUseFlashAttention(x.to(at::kMeta), y.to(at::kMeta), y.to(at::kMeta)));
  const at::Tensor low = x.to(at::kBFloat16);
  EXPECT_FALSE(CanUseFlashAttention(low, low, low));
}

// --- In the place of ATen's kernel

struct Replaced {
  explicit Replaced(bool enabled) : before(ReplaceAtenFlashAttention(enabled)) {}
  ~Replaced() { ReplaceAtenFlashAttention(before); }
  const bool before;
};

// y and the gradients, by at::scaled_dot_product_attention.
Tensors Scaled(const Tensors& in, bool causal, const std::optional<at::Tensor>& mask = {}) {
  Tensors leaves;
  for (size_t i = 0; i < 3; ++i) leaves.push_back(in[i].detach().clone().requires_grad_(true));
  const at::Tensor y =
      at::scaled_dot_product_attention(leaves[0], leaves[1], leaves[2], mask, 0.0, causal);
  Tensors results = torch::autograd::grad({y}, leaves, {in[3]});
  results.push_back(y.detach());
  return results;
}

bool AreEqual(const Tensors& a, const Tensors& b) {
  bool result = true;
  for (size_t i = 0; i < a.size(); ++i)
    result = result && at::equal(a[i], b[i]) && a[i].strides() == b[i].strides();
  return result;
}

TEST(ReplaceAtenFlashAttention, ChangesWhatScaledDotProductAttentionCalls) {
  const Case c = {2, 4, 37, 37, 16};
  const Tensors in = InputsOf(c, at::kFloat), ours = Ours(in, c), atens = Atens(in, c);
  ASSERT_FALSE(at::equal(ours[3], atens[3])) << "the test needs other bits to tell them apart";
  for (const bool enabled : {true, false, true}) {
    const Replaced replaced(enabled);

    const Tensors scaled = Scaled(in, /*causal=*/true);

    const Tensors& expected = enabled ? ours : atens;
    for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(scaled[i], expected[2 + i])) << enabled;
    EXPECT_TRUE(at::equal(scaled[3], expected[0])) << enabled;
  }
}

TEST(ReplaceAtenFlashAttention, ReturnsTheSettingBefore) {
  const Replaced replaced(true);
  EXPECT_TRUE(ReplaceAtenFlashAttention(false));
  EXPECT_FALSE(ReplaceAtenFlashAttention(true));
}

TEST(ReplaceAtenFlashAttention, ResultsHaveTheStridesOfAtens) {
  const at::Tensor contiguous = at::randn({2, 4, 37, 16});
  const at::Tensor slice = at::randn({2, 37, 3, 4, 16}).permute({2, 0, 3, 1, 4})[1];
  const at::Tensor shared = at::randn({2, 37, 1, 16}).transpose(1, 2).expand({2, 4, 37, 16});
  const auto run = [&](bool enabled, const at::Tensor& q, const at::Tensor& k) {
    const Replaced replaced(enabled);
    const auto op = c10::Dispatcher::singleton()
                        .findSchemaOrThrow("aten::_scaled_dot_product_flash_attention_for_cpu", "")
                        .typed<std::tuple<at::Tensor, at::Tensor>(
                            const at::Tensor&, const at::Tensor&, const at::Tensor&, double, bool,
                            const std::optional<at::Tensor>&, std::optional<double>)>();
    const auto [y, logsumexp] = op.call(q, k, k, 0.0, true, std::nullopt, std::nullopt);
    const at::Tensor leaves[] = {q.detach().requires_grad_(true), k.detach().requires_grad_(true)};
    const Tensors gradients = torch::autograd::grad(
        {at::scaled_dot_product_attention(leaves[0], leaves[1], leaves[1], {}, 0.0, true).sum()},
        {leaves[0], leaves[1]});
    return std::vector<std::vector<int64_t>>{y.strides().vec(), logsumexp.strides().vec(),
                                             gradients[0].strides().vec(),
                                             gradients[1].strides().vec()};
  };
  for (const at::Tensor& q : {contiguous, contiguous.transpose(1, 2).contiguous().transpose(1, 2),
                              slice, contiguous.narrow(2, 0, 1), contiguous.narrow(1, 0, 1)})
    for (const at::Tensor& k : {q, q.narrow(2, 0, 1), shared.narrow(1, 0, q.size(1))})
      EXPECT_EQ(run(true, q, k), run(false, q, k)) << q.strides() << ", " << k.strides();
}

TEST(ReplaceAtenFlashAttention, ThereMayBeNoHeads) {
  const Replaced replaced(true);
  const Tensors in(4, at::randn({2, 0, 3, 4}));

  for (const at::Tensor& x : Scaled(in, true)) EXPECT_EQ(x.sizes(), in[0].sizes());
}

TEST(ReplaceAtenFlashAttention, IsASettingOfTheThread) {
  const Replaced replaced(true);
  bool before = true;

  std::thread([&] { before = ReplaceAtenFlashAttention(false); }).join();

  EXPECT_FALSE(before);
  EXPECT_TRUE(ReplaceAtenFlashAttention(true));
}

// Rows of q overlap, and at::empty_like gives y other strides than dense rows.
TEST(ReplaceAtenFlashAttention, RowsOfQueriesMayOverlap) {
  const at::Tensor q = at::randn({1, 1, 100}).unfold(2, 64, 1).slice(2, 0, 5);
  ASSERT_EQ(q.sizes(), at::IntArrayRef({1, 1, 5, 64}));
  const Replaced replaced(true);

  EXPECT_TRUE(at::allclose(at::scaled_dot_product_attention(q, q, q),
                           at::scaled_dot_product_attention(q.contiguous(), q, q), 1e-5, 1e-6));
}

TEST(ReplaceAtenFlashAttention, ABackwardMayHaveAnotherSettingThanItsForward) {
  const Tensors in = InputsOf({2, 4, 37, 37, 16}, at::kFloat);
  const at::Tensor q = in[0].clone().requires_grad_(true);
  const auto gradient = [&](bool forward, bool backward) {
    const Replaced replaced(forward);
    const at::Tensor y = at::scaled_dot_product_attention(q, in[1], in[2], {}, 0.0, true);
    ReplaceAtenFlashAttention(backward);
    return torch::autograd::grad({y}, {q}, {in[3]})[0];
  };
  const at::Tensor atens = gradient(false, false);
  EXPECT_TRUE(at::allclose(gradient(true, false), atens, 1e-4, 1e-5));
  EXPECT_TRUE(at::allclose(gradient(false, true), atens, 1e-4, 1e-5));
}

TEST(ReplaceAtenFlashAttention, MasksOtherDtypesAndFewQueriesStayAtens) {
  const Tensors in = InputsOf({2, 4, 37, 37, 16}, at::kFloat);
  const at::Tensor mask = at::ones({37, 37}, at::kBool).tril();
  const Tensors few = InputsOf({2, 4, 7, 33, 16}, at::kFloat);
  Tensors low, empty;
  for (const at::Tensor& x : in) {
    low.push_back(x.to(at::kBFloat16));
    empty.push_back(x.narrow(2, 0, 0));
  }
  const auto run = [&](bool enabled) {
    const Replaced replaced(enabled);
    return std::vector<Tensors>{Scaled(in, false, mask), Scaled(low, true), Scaled(empty, false),
                                Scaled(few, false)};
  };
  const std::vector<Tensors> ours = run(true), atens = run(false);
  for (size_t i = 0; i < ours.size(); ++i) EXPECT_TRUE(AreEqual(ours[i], atens[i])) << i;
}

}  // namespace
}  // namespace lockstep::kernels
