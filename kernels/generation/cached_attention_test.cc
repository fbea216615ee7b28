// Attention to a cache, and a decoder's layer around it, against float64 and the operators they
// stand for. BUILD runs these tests on each instruction set.

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "ATen/core/grad_mode.h"
#include "ATen/record_function.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/kernels.h"
#include "tests/support/message_of.h"
#include "tests/support/relative_error.h"

namespace lockstep::kernels {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using tests::MessageOf;
using tests::RelativeError;

constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf};

struct Sizes {
  int64_t sequences, heads, kv_heads, columns, size;
};

// The inputs of a call. Columns from `column` on have not been written: they hold NaN.
struct Inputs {
  at::Tensor q, k, v, keys, values;

  Inputs(const Sizes& sizes, at::ScalarType dtype, int64_t column) {
    const auto random = [&](at::IntArrayRef shape) {
      return at::randn(shape, at::kDouble).to(dtype);
    };
    q = random({sizes.sequences, sizes.heads, sizes.size});
    k = random({sizes.sequences, sizes.kv_heads, sizes.size});
    v = random({sizes.sequences, sizes.kv_heads, sizes.size});
    const std::vector<int64_t> cache = {sizes.sequences, sizes.kv_heads, sizes.columns, sizes.size};
    keys = random(cache);
    values = random(cache);
    for (const at::Tensor& x : {keys, values})
      x.narrow(2, column, sizes.columns - column).fill_(std::numeric_limits<double>::quiet_NaN());
  }

  at::Tensor Run(int64_t column, int64_t first = 0, const std::optional<at::Tensor>& mask = {}) {
    return CachedAttention(q, k, v, keys, values, column, first, mask);
  }
};

// By the formula, in `dtype`, of a cache that holds the new token. Query heads are rows of their
// key head.
at::Tensor Formula(const Inputs& in, int64_t column, int64_t first,
                   const std::optional<at::Tensor>& mask, at::ScalarType dtype) {
  const int64_t count = column + 1 - first;
  const at::Tensor q = in.q.to(dtype).view({in.k.size(0), in.k.size(1), -1, in.k.size(2)});
  const at::Tensor keys = in.keys.narrow(2, first, count).to(dtype);
  const at::Tensor values = in.values.narrow(2, first, count).to(dtype);
  at::Tensor scores = at::matmul(q, keys.transpose(2, 3)) / std::sqrt(double(in.k.size(2)));
  if (mask.has_value()) {
    scores = scores + mask->to(dtype).narrow(1, first, count).view({in.k.size(0), 1, 1, count});
  }
  return at::matmul(at::softmax(scores, -1), values).view(in.q.sizes());
}

const Sizes kSizes[] = {{1, 8, 2, 12, 64},   {2, 3, 3, 5, 7},    {3, 10, 2, 40, 33},
                        {1, 6, 1, 70, 128},  {2, 4, 2, 1, 1},    {1, 2, 1, 1100, 17},
                        {4, 14, 2, 33, 256}, {1, 1, 1, 2100, 16}};

TEST(CachedAttention, AgreesWithFloat64AtEverySizeAndDtype) {
  at::manual_seed(1);
  for (const at::ScalarType dtype : kDtypes) {
    const double tolerance = dtype == at::kDouble     ? 1e-14
                             : dtype == at::kFloat    ? 2e-6
                             : dtype == at::kBFloat16 ? 4e-3
                                                      : 5e-4;
    for (const Sizes& sizes : kSizes) {
      for (const int64_t column : {int64_t{0}, sizes.columns / 2, sizes.columns - 1}) {
        for (const int64_t first : {int64_t{0}, column / 3, column}) {
          Inputs in(sizes, dtype, column);
          const at::Tensor y = in.Run(column, first);

          EXPECT_EQ(y.scalar_type(), dtype);
          EXPECT_LE(RelativeError(y, Formula(in, column, first, {}, at::kDouble)), tolerance)
              << sizes.heads << " heads of " << sizes.size << ", columns " << first << " to "
              << column << ", " << dtype;
        }
      }
    }
  }
}

TEST(CachedAttention, ErrorsAreNoLargerThanThoseOfAten) {
  at::manual_seed(2);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const Sizes& sizes : {Sizes{2, 8, 2, 200, 64}, Sizes{2, 4, 4, 2000, 128}}) {
      Inputs in(sizes, dtype, sizes.columns - 1);

      const at::Tensor y = in.Run(sizes.columns - 1);

      const at::Tensor truth = Formula(in, sizes.columns - 1, 0, {}, at::kDouble);
      const at::Tensor atens = Formula(in, sizes.columns - 1, 0, {}, dtype);
      EXPECT_LE(RelativeError(y, truth), 1.05 * RelativeError(atens, truth)) << dtype;
    }
  }
}

TEST(CachedAttention, WritesTheNewColumnAlone) {
  Inputs in({2, 4, 2, 9, 5}, at::kFloat, 4);
  const at::Tensor keys = in.keys.clone(), values = in.values.clone();

  in.Run(4);

  keys.select(2, 4).copy_(in.k);
  values.select(2, 4).copy_(in.v);
  EXPECT_TRUE(at::allclose(in.keys, keys, 0, 0, /*equal_nan=*/true));
  EXPECT_TRUE(at::allclose(in.values, values, 0, 0, /*equal_nan=*/true));
}

TEST(CachedAttention, TheMaskIsAddedToTheScores) {
  at::manual_seed(3);
  for (const at::ScalarType dtype : kDtypes) {
    Inputs in({3, 4, 2, 50, 24}, dtype, 40);
    at::Tensor mask = at::randn({3, 50}, in.q.options());
    mask[1].narrow(0, 0, 17).fill_(-std::numeric_limits<double>::infinity());
    in.keys[1].narrow(1, 0, 17).fill_(0);

    const at::Tensor y = in.Run(40, 2, mask);

    const at::Tensor truth = Formula(in, 40, 2, mask, at::kDouble);
    EXPECT_LE(RelativeError(y, truth), dtype == at::kDouble ? 1e-14 : 4e-3) << dtype;
    if (dtype != at::kFloat) continue;
    EXPECT_LE(RelativeError(y, truth), 2e-6);
    // Hidden columns have no share in the result.
    in.values[1].narrow(1, 0, 17).fill_(1e30);
    EXPECT_TRUE(at::equal(in.Run(40, 2, mask), y));
  }
}

TEST(CachedAttention, LargeScoresDoNotOverflow) {
  Inputs in({1, 2, 1, 30, 8}, at::kFloat, 29);
  in.q.mul_(1e4);

  const at::Tensor y = in.Run(29);

  EXPECT_LE(RelativeError(y, Formula(in, 29, 0, {}, at::kDouble)), 1e-4);
}

TEST(CachedAttention, ASequenceHasTheSameBitsNextToOthersAndOnAnyNumberOfThreads) {
  Inputs in({5, 6, 2, 700, 64}, at::kFloat, 600);
  const at::Tensor y = in.Run(600);
  const int threads = at::get_num_threads();
  at::set_num_threads(threads == 1 ? 2 : 1);
  EXPECT_TRUE(at::equal(in.Run(600), y));
  at::set_num_threads(threads);

  for (int64_t i = 0; i < 5; ++i) {
    at::Tensor keys = in.keys.narrow(0, i, 1), values = in.values.narrow(0, i, 1);
    const at::Tensor alone = CachedAttention(in.q.narrow(0, i, 1), in.k.narrow(0, i, 1),
                                             in.v.narrow(0, i, 1), keys, values, 600);
    EXPECT_TRUE(at::equal(alone, y.narrow(0, i, 1)));
  }
}

TEST(CachedAttention, TakesPartsOfOtherTensors) {
  at::manual_seed(4);
  Inputs in({2, 4, 2, 20, 16}, at::kFloat, 11);
  const at::Tensor y = in.Run(11);
  Inputs parts = in;
  parts.q = at::cat({in.q, in.q}, 1).narrow(1, 0, 4);
  parts.k = at::cat({in.k, in.k}, 2).narrow(2, 0, 16);
  parts.v = in.v.transpose(0, 1).contiguous().transpose(0, 1);
  parts.keys = at::cat({in.keys, in.keys}, 1).narrow(1, 2, 2);
  parts.values = in.values.transpose(0, 1).contiguous().transpose(0, 1);

  EXPECT_TRUE(at::equal(parts.Run(11), y));
  EXPECT_TRUE(at::equal(parts.values.select(2, 11), in.v));
}

TEST(CachedAttention, NoSequencesGiveNoRows) {
  Inputs in({0, 4, 2, 20, 16}, at::kFloat, 0);

  EXPECT_EQ(in.Run(3).sizes(), at::IntArrayRef({0, 4, 16}));
}

TEST(CachedAttention, GradientsAreRefused) {
  Inputs in({1, 2, 1, 4, 8}, at::kFloat, 2);
  in.q.requires_grad_(true);

  EXPECT_THAT(MessageOf([&] { in.Run(2); }), HasSubstr("call it in no_grad"));
  const at::NoGradGuard no_grad;
  EXPECT_EQ(in.Run(2).sizes(), in.q.sizes());
}

TEST(CachedAttention, BadInputIsNamed) {
  const Inputs good({1, 4, 2, 9, 8}, at::kFloat, 0);
  const auto message_of = [&](auto change, int64_t column = 3, int64_t first = 0,
                              const std::optional<at::Tensor>& mask = {}) {
    Inputs in = good;
    change(in);
    return MessageOf([&] { in.Run(column, first, mask); });
  };
  const auto nothing = [](Inputs&) {};

  EXPECT_THAT(message_of([](Inputs& in) { in.q = in.q.narrow(1, 0, 3); }),
              HasSubstr("heads is a multiple of kv_heads; got [1, 3, 8], [1, 2, 8] and [1, 2, 8]"));
  EXPECT_THAT(message_of([](Inputs& in) { in.q = in.q.to(at::kInt); }),
              HasSubstr("q must be float16, bfloat16, float32 or float64, got Int"));
  EXPECT_THAT(message_of([](Inputs& in) { in.v = in.v.to(at::kDouble); }),
              HasSubstr("v is Double, but q is Float"));
  EXPECT_THAT(message_of([](Inputs& in) { in.keys = in.keys[0]; }),
              HasSubstr("keys must have shape [1, 2, columns, 8], because k has shape [1, 2, 8]; "
                        "got [2, 9, 8]"));
  EXPECT_THAT(message_of([](Inputs& in) { in.values = in.values.to(at::kHalf); }),
              HasSubstr("values is Half, but k is Float"));
  EXPECT_THAT(message_of([](Inputs& in) { in.values = in.values.narrow(2, 0, 8); }),
              HasSubstr("keys has 9 columns, but values has 8"));
  EXPECT_THAT(message_of([](Inputs& in) {
                in.keys = in.keys.transpose(1, 2).contiguous().transpose(1, 2);
              }),
              HasSubstr("the columns of keys must lie one after the other in memory"));
  EXPECT_THAT(message_of(nothing, 9),
              HasSubstr("column must be from first to 8, got column 9 and first 0"));
  EXPECT_THAT(message_of(nothing, 3, 4), HasSubstr("got column 3 and first 4"));
  EXPECT_THAT(message_of(nothing, 3, 0, at::zeros({1, 8})),
              HasSubstr("mask must have shape [1, 9], got [1, 8]"));
}

// --- Layers of new tokens

struct LayerSizes {
  int64_t sequences, hidden, heads, kv_heads, size, wide;
  size_t biases;  // of the attention; of the MLP all or none
  bool head_norms;
};

// One row, several, so many that the kernels do not run; with odd sizes.
const LayerSizes kLayers[] = {{1, 64, 4, 2, 32, 96, 0, true},    {1, 97, 1, 1, 38, 33, 4, false},
                              {3, 131, 9, 3, 14, 257, 3, false}, {8, 256, 8, 1, 64, 300, 0, true},
                              {9, 64, 2, 2, 8, 24, 4, true},     {4, 128, 2, 1, 10, 130, 0, true}};

constexpr double kEps = 1e-5;

// A layer and its input.
struct Layer {
  at::Tensor x, norm, second_norm, cos, sin, keys, values, mask;
  std::vector<at::Tensor> weights, biases, head_norms, mlp_weights, mlp_biases;

  Layer(const LayerSizes& s, at::ScalarType dtype) {
    const auto random = [&](at::IntArrayRef shape) {
      return at::randn(shape, at::kDouble).to(dtype);
    };
    const auto weight = [&](int64_t outputs, int64_t inputs) {
      return (at::randn({outputs, inputs}, at::kDouble) / std::sqrt(double(inputs))).to(dtype);
    };
    x = random({s.sequences, s.hidden});
    norm = random({s.hidden});
    second_norm = random({s.hidden});
    const at::Tensor angles = at::rand({s.sequences, 1, s.size / 2}, at::kDouble) * 6;
    cos = at::cat({angles, angles}, -1).cos().to(dtype);
    sin = at::cat({-angles.sin(), angles.sin()}, -1).to(dtype);
    const int64_t q = s.heads * s.size, kv = s.kv_heads * s.size;
    weights = {weight(q, s.hidden), weight(kv, s.hidden), weight(kv, s.hidden),
               weight(s.hidden, q)};
    for (size_t i = 0; i < s.biases; ++i) biases.push_back(random({weights[i].size(0)}));
    if (s.head_norms) head_norms = {random({s.size}), random({s.size})};
    mlp_weights = {weight(s.wide, s.hidden), weight(s.wide, s.hidden), weight(s.hidden, s.wide)};
    for (size_t i = 0; s.biases > 0 && i < 3; ++i)
      mlp_biases.push_back(random({mlp_weights[i].size(0)}));
    const std::vector<int64_t> cache = {s.sequences, s.kv_heads, 40, s.size};
    keys = random(cache);
    values = random(cache);
    mask = at::zeros({s.sequences, 40}, x.options());
    mask[0].narrow(0, 0, 5).fill_(-std::numeric_limits<double>::infinity());
  }

  at::Tensor Attend(int64_t column, int64_t first) {
    return AttentionOfNewTokens(x, norm, weights, biases, head_norms, kEps, cos, sin, keys, values,
                                column, first, mask);
  }

  at::Tensor Mlp(const at::Tensor& attended) const {
    return MlpOfNewTokens(attended, x, second_norm, mlp_weights, mlp_biases, kEps);
  }
};

using Bias = std::optional<at::Tensor>;
Bias BiasAt(const std::vector<at::Tensor>& biases, size_t i) {
  return i < biases.size() ? Bias(biases[i]) : Bias();
}

// The same by the operators of this library, one after the other.
at::Tensor AttendByOperators(Layer& m, int64_t column, int64_t first) {
  const at::Tensor h = RmsNorm(m.x, m.norm, kEps);
  at::Tensor heads[3];
  for (size_t i = 0; i < 3; ++i) {
    heads[i] = Linear(h, m.weights[i], BiasAt(m.biases, i));
    heads[i] = heads[i].view({m.x.size(0), -1, m.cos.size(2)});
    if (i < 2 && !m.head_norms.empty()) heads[i] = RmsNorm(heads[i], m.head_norms[i], kEps);
    if (i < 2) heads[i] = Rotate(heads[i], m.cos, m.sin);
  }
  const at::Tensor y =
      CachedAttention(heads[0], heads[1], heads[2], m.keys, m.values, column, first, m.mask);
  return Linear(y.reshape({m.x.size(0), -1}), m.weights[3], BiasAt(m.biases, 3));
}

at::Tensor MlpByOperators(const Layer& m, const at::Tensor& attended) {
  const auto [h, sum] = AddRmsNorm(attended, m.x, m.second_norm, kEps);
  const at::Tensor gate = Linear(h, m.mlp_weights[0], BiasAt(m.mlp_biases, 0));
  const at::Tensor up = Linear(h, m.mlp_weights[1], BiasAt(m.mlp_biases, 1));
  return sum + Linear(Swiglu(gate, up), m.mlp_weights[2], BiasAt(m.mlp_biases, 2));
}

// ATen's operators, in float64.
at::Tensor Doubles(const at::Tensor& x) { return x.to(at::kDouble); }

at::Tensor NormOfAten(const at::Tensor& x, const at::Tensor& weight) {
  return x * at::rsqrt(x.square().mean(-1, true) + kEps) * Doubles(weight);
}

at::Tensor LinearOfAten(const at::Tensor& x, const std::vector<at::Tensor>& weights,
                        const std::vector<at::Tensor>& biases, size_t i) {
  const Bias bias = BiasAt(biases, i);
  return at::linear(x, Doubles(weights[i]), bias.has_value() ? Bias(Doubles(*bias)) : Bias());
}

at::Tensor AttendByAten(const Layer& m, int64_t column, int64_t first) {
  const int64_t rows = m.x.size(0), kv_heads = m.keys.size(1), size = m.keys.size(3);
  const at::Tensor h = NormOfAten(Doubles(m.x), m.norm);
  at::Tensor heads[3];
  for (size_t i = 0; i < 3; ++i) {
    heads[i] = LinearOfAten(h, m.weights, m.biases, i).view({rows, -1, size});
    if (i == 2) break;
    if (!m.head_norms.empty()) heads[i] = NormOfAten(heads[i], m.head_norms[i]);
    heads[i] = heads[i] * Doubles(m.cos) + at::roll(heads[i], size / 2, -1) * Doubles(m.sin);
  }
  at::Tensor keys = Doubles(m.keys), values = Doubles(m.values);
  keys.select(2, column).copy_(heads[1]);
  values.select(2, column).copy_(heads[2]);
  const int64_t count = column + 1 - first;
  const at::Tensor q = heads[0].view({rows, kv_heads, -1, size});
  const at::Tensor scores =
      at::matmul(q, keys.narrow(2, first, count).transpose(2, 3)) / std::sqrt(double(size)) +
      Doubles(m.mask).narrow(1, first, count).view({rows, 1, 1, count});
  const at::Tensor y = at::matmul(at::softmax(scores, -1), values.narrow(2, first, count));
  return LinearOfAten(y.reshape({rows, -1}), m.weights, m.biases, 3);
}

at::Tensor MlpByAten(const Layer& m, const at::Tensor& attended) {
  const at::Tensor sum = Doubles(attended) + Doubles(m.x);
  const at::Tensor h = NormOfAten(sum, m.second_norm);
  const at::Tensor wide = at::silu(LinearOfAten(h, m.mlp_weights, m.mlp_biases, 0)) *
                          LinearOfAten(h, m.mlp_weights, m.mlp_biases, 1);
  return sum + LinearOfAten(wide, m.mlp_weights, m.mlp_biases, 2);
}

TEST(NewTokens, ALayerHasTheBitsOfItsOperators) {
  at::manual_seed(5);
  for (const at::ScalarType dtype : kDtypes) {
    for (const LayerSizes& sizes : kLayers) {
      for (const auto& [column, first] : {std::tuple(7, 0), std::tuple(39, 6)}) {
        Layer ours(sizes, dtype), theirs = ours;
        theirs.keys = ours.keys.clone();
        theirs.values = ours.values.clone();

        const at::Tensor attended = ours.Attend(column, first);

        const auto name = [&] { return ::testing::Message() << sizes.hidden << ", " << dtype; };
        EXPECT_TRUE(at::equal(attended, AttendByOperators(theirs, column, first))) << name();
        EXPECT_TRUE(at::equal(ours.keys, theirs.keys)) << name();
        EXPECT_TRUE(at::equal(ours.values, theirs.values)) << name();
        EXPECT_TRUE(at::equal(ours.Mlp(attended), MlpByOperators(ours, attended))) << name();
      }
    }
  }
}

TEST(NewTokens, ALayerAgreesWithAtenInFloat64) {
  at::manual_seed(6);
  for (const at::ScalarType dtype : kDtypes) {
    const double tolerance = dtype == at::kDouble     ? 1e-13
                             : dtype == at::kFloat    ? 3e-6
                             : dtype == at::kBFloat16 ? 2e-2
                                                      : 3e-3;
    for (const LayerSizes& sizes : kLayers) {
      Layer layer(sizes, dtype);

      const at::Tensor attended = layer.Attend(30, 3);

      EXPECT_LE(RelativeError(attended, AttendByAten(layer, 30, 3)), tolerance)
          << sizes.hidden << ", " << dtype;
      EXPECT_LE(RelativeError(layer.Mlp(attended), MlpByAten(layer, attended)), tolerance)
          << sizes.hidden << ", " << dtype;
    }
  }
}

thread_local std::vector<std::string> operators;

// Returns the operators of this library that `call` runs, those that other operators call too.
std::vector<std::string> OperatorsOf(const std::function<void()>& call) {
  operators.clear();
  const at::CallbackHandle handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& function)
                                     -> std::unique_ptr<at::ObserverContext> {
        if (std::string(function.name()).rfind("lockstep::", 0) == 0)
          operators.emplace_back(function.name());
        return nullptr;
      }).scopes({at::RecordScope::FUNCTION}));
  call();
  at::removeCallback(handle);
  return operators;
}

TEST(NewTokens, FewRowsRunTwoOperators) {
  // Both are recorded again below autograd.
  const std::string kAttention = "lockstep::attention_of_new_tokens";
  const std::string kMlp = "lockstep::mlp_of_new_tokens";
  for (const at::ScalarType dtype : kDtypes) {
    Layer layer(kLayers[2], dtype);
    at::Tensor attended;

    EXPECT_THAT(OperatorsOf([&] { attended = layer.Attend(30, 3); }),
                ElementsAre(kAttention, kAttention, "lockstep::cached_attention"));
    EXPECT_THAT(OperatorsOf([&] { layer.Mlp(attended); }), ElementsAre(kMlp, kMlp));
  }
}

TEST(NewTokens, OtherStridesAndSevenThreadsGiveTheSameBits) {
  at::manual_seed(7);
  Layer layer({2, 700, 6, 2, 64, 900, 4, true}, at::kFloat), other = layer;
  const at::Tensor attended = layer.Attend(30, 3), y = layer.Mlp(attended);
  const auto apart = [](at::Tensor& x) {
    x = at::cat({x, x}, -1).narrow(-1, x.size(-1), x.size(-1));
  };
  for (at::Tensor* x : {&other.x, &other.norm, &other.second_norm, &other.cos, &other.sin})
    apart(*x);
  for (auto* list :
       {&other.weights, &other.biases, &other.head_norms, &other.mlp_weights, &other.mlp_biases}) {
    for (at::Tensor& x : *list) apart(x);
  }
  const int threads = at::get_num_threads();
  at::set_num_threads(7);

  EXPECT_TRUE(at::equal(layer.Attend(30, 3), attended));
  EXPECT_TRUE(at::equal(layer.Mlp(attended), y));
  EXPECT_TRUE(at::equal(other.Attend(30, 3), attended));
  EXPECT_TRUE(at::equal(other.Mlp(attended), y));
  at::set_num_threads(threads);
}

TEST(NewTokens, BadInputIsNamed) {
  const Layer good(kLayers[0], at::kFloat);
  const auto message_of = [&](auto change) {
    Layer layer = good;
    change(layer);
    return MessageOf([&] { layer.Mlp(layer.Attend(3, 0)); });
  };

  EXPECT_THAT(
      message_of([](Layer& m) { m.x = m.x[0]; }),
      HasSubstr("attention_of_new_tokens: x must have shape [sequences, hidden], got [64]"));
  EXPECT_THAT(message_of([](Layer& m) { m.weights.pop_back(); }),
              HasSubstr("expected 4 weights, got 3"));
  EXPECT_THAT(message_of([](Layer& m) { m.biases = {at::ones({128})}; }),
              HasSubstr("expected no biases, 3 or 4, got 1"));
  EXPECT_THAT(message_of([](Layer& m) { m.head_norms.pop_back(); }), HasSubstr("or none, got 1"));
  EXPECT_THAT(message_of([](Layer& m) { m.norm = at::ones({65}); }),
              HasSubstr("rms_norm: weight must have shape [64]"));
  EXPECT_THAT(message_of([](Layer& m) { m.keys = m.keys.narrow(3, 0, 16); }),
              HasSubstr("keys must have shape [1, 2, columns, 32]"));
  EXPECT_THAT(message_of([](Layer& m) { m.sin = m.sin.narrow(2, 0, 16); }),
              HasSubstr("rotate: cos and sin must have shape"));
  EXPECT_THAT(message_of([](Layer& m) { m.second_norm = at::ones({64}, at::kDouble); }),
              HasSubstr("weight is Double, but x is Float"));
}

TEST(NewTokens, GradientsAreRefused) {
  Layer layer(kLayers[0], at::kFloat);
  layer.weights[3].requires_grad_(true);
  layer.mlp_weights[0].requires_grad_(true);

  EXPECT_THAT(MessageOf([&] { layer.Attend(3, 0); }), HasSubstr("call it in no_grad"));
  EXPECT_THAT(MessageOf([&] { layer.Mlp(layer.x); }), HasSubstr("call it in no_grad"));
  const at::NoGradGuard no_grad;
  EXPECT_EQ(layer.Mlp(layer.Attend(3, 0)).sizes(), layer.x.sizes());
}

}  // namespace
}  // namespace lockstep::kernels
