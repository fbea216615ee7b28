// A linear layer with an adapter against its formula in float64. BUILD runs these tests on each
// instruction set.

#include "kernels/lora/lora.h"

#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/autocast_mode.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/few_bits/few_bits.h"
#include "kernels/kernels.h"
#include "kernels/lora/products.h"
#include "tests/support/message_of.h"
#include "tests/support/relative_error.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/csrc/autograd/function.h"

namespace lockstep::kernels {
namespace {

using ::testing::HasSubstr;
using tests::MessageOf;
using tests::RelativeError;

constexpr double kScale = 1.5;

struct Layer {
  at::Tensor x, weight, bias, a, b;
  double dropout = 0;

  std::vector<at::Tensor> All() const { return {x, weight, bias, a, b}; }
  at::Tensor Run() const {
    at::manual_seed(9);
    return LoraLinear(x, weight, bias, a, b, kScale, dropout);
  }
  // The factors of the adapter's input in Run.
  at::Tensor Kept() const {
    at::manual_seed(9);
    const at::Tensor mask = at::empty(x.sizes(), at::kBool).bernoulli_(1 - dropout);
    return mask.to(at::kDouble) / (1 - dropout);
  }
};

at::Tensor Random(at::IntArrayRef shape, at::ScalarType dtype) {
  return at::randn(shape, at::kDouble).to(dtype);
}

Layer MakeLayer(at::IntArrayRef rows, int64_t in, int64_t out, int64_t r, at::ScalarType dtype) {
  const at::ScalarType adapter = at::isReducedFloatingType(dtype) ? at::kFloat : dtype;
  std::vector<int64_t> shape = rows.vec();
  shape.push_back(in);
  return {Random(shape, dtype), Random({out, in}, dtype), Random({out}, dtype),
          Random({r, in}, adapter), Random({out, r}, adapter)};
}

// A copy in float64, whose gradients are separate.
Layer Wide(const Layer& layer) {
  const auto wide = [](const at::Tensor& x) {
    return x.detach().to(at::kDouble, /*non_blocking=*/false, /*copy=*/true).requires_grad_(true);
  };
  return {wide(layer.x), wide(layer.weight), wide(layer.bias),
          wide(layer.a), wide(layer.b),      layer.dropout};
}

at::Tensor Formula(const Layer& l) {
  const at::Tensor x = l.dropout > 0 ? l.x * l.Kept() : l.x;
  return at::linear(l.x, l.weight, l.bias) + kScale * at::linear(at::linear(x, l.a), l.b);
}

// A matrix in 4 bits, with rows of more than one block, and a last block that is not whole.
FewBits RandomFewBits(int64_t rows, int64_t columns) {
  return {.packed = at::randint(256, {rows * columns / 2, 1}, at::kByte),
          .absmax = at::rand({(rows * columns + 63) / 64}) * 2,
          .nested_absmax = {},
          .nested_map = {},
          .rows = rows,
          .columns = columns};
}

std::vector<at::Tensor> Gradients(const at::Tensor& y, const at::Tensor& dy,
                                  const std::vector<at::Tensor>& of, bool create_graph = false) {
  return torch::autograd::grad({y}, of, {dy}, /*retain_graph=*/create_graph, create_graph);
}

TEST(LoraLinear, AgreesWithFloat64ValuesAndGradients) {
  at::manual_seed(1);
  for (const auto& [dtype, tolerance] :
       {std::pair(at::kDouble, 1e-14), std::pair(at::kFloat, 2e-6), std::pair(at::kBFloat16, 4e-3),
        std::pair(at::kHalf, 5e-4)}) {
    for (const std::vector<int64_t>& rows :
         std::vector<std::vector<int64_t>>{{1}, {5}, {16}, {67}, {3, 11}}) {
      Layer layer = MakeLayer(rows, 40, 56, 4, dtype);
      layer.dropout = rows[0] % 3 == 2 ? 0.4 : 0;
      for (const at::Tensor& input : layer.All()) input.requires_grad_(true);
      const Layer wide = Wide(layer);

      const at::Tensor y = layer.Run(), truth = Formula(wide);

      EXPECT_EQ(y.scalar_type(), dtype);
      EXPECT_EQ(y.sizes(), truth.sizes());
      EXPECT_LE(RelativeError(y, truth), tolerance) << dtype << " " << rows;
      const at::Tensor dy = Random(y.sizes(), dtype);
      const std::vector<at::Tensor> actual = Gradients(y, dy, layer.All());
      const std::vector<at::Tensor> expected = Gradients(truth, dy.to(at::kDouble), wide.All());
      for (size_t i = 0; i < actual.size(); ++i) {
        EXPECT_EQ(actual[i].scalar_type(), layer.All()[i].scalar_type());
        EXPECT_TRUE(actual[i].is_contiguous());
        EXPECT_LE(RelativeError(actual[i], expected[i]), tolerance) << dtype << rows << " " << i;
      }
    }
  }
}

TEST(LoraLinear, AFrozenWeightGetsNoGradientAndAnAdapterOnAFrozenInputDoes) {
  Layer layer = MakeLayer({17}, 24, 8, 2, at::kFloat);
  layer.a.requires_grad_(true);
  layer.b.requires_grad_(true);
  const Layer wide = Wide(layer);

  const at::Tensor y = layer.Run();

  EXPECT_EQ(y.grad_fn()->name(), "LoraLinearBackward");
  const at::Tensor dy = Random(y.sizes(), at::kFloat);
  y.backward(dy);
  EXPECT_FALSE(layer.weight.grad().defined() || layer.x.grad().defined());
  const std::vector<at::Tensor> expected =
      Gradients(Formula(wide), dy.to(at::kDouble), {wide.a, wide.b});
  EXPECT_LE(RelativeError(layer.a.grad(), expected[0]), 1e-6);
  EXPECT_LE(RelativeError(layer.b.grad(), expected[1]), 1e-6);
}

TEST(LoraLinear, GradientsOfGradientsAreThoseOfTheFormula) {
  for (const double dropout : {0.0, 0.3}) {
    Layer layer = MakeLayer({7}, 6, 5, 2, at::kDouble);
    layer.dropout = dropout;
    for (const at::Tensor& input : layer.All()) input.requires_grad_(true);
    const Layer wide = Wide(layer);
    const auto second = [](const Layer& l, const at::Tensor& y) {
      at::Tensor sum = at::zeros({}, at::kDouble);
      for (const at::Tensor& g : Gradients(y.square().sum(), {}, l.All(), /*create_graph=*/true))
        sum = sum + g.square().sum();
      return Gradients(sum, {}, l.All());
    };

    const std::vector<at::Tensor> actual = second(layer, layer.Run());

    const std::vector<at::Tensor> expected = second(wide, Formula(wide));
    for (size_t i = 0; i < actual.size(); ++i)
      EXPECT_LE(RelativeError(actual[i], expected[i]), 1e-12) << i;
  }
}

TEST(LoraLinear, DropoutOfFewBitsIsThatOfTheWholeWeight) {
  const FewBits weight = RandomFewBits(57, 72);
  Layer layer = MakeLayer({9}, 72, 57, 4, at::kFloat);
  layer.weight = Dequantize(weight, at::kFloat);
  layer.dropout = 0.5;
  for (const at::Tensor& input : {layer.x, layer.a, layer.b}) input.requires_grad_(true);
  const at::Tensor whole = layer.Run(), dy = at::randn_like(whole);

  at::manual_seed(9);
  const at::Tensor y = LoraLinear(layer.x, weight, std::nullopt, layer.bias, layer.a, layer.b,
                                  kScale, layer.dropout);

  EXPECT_LE(RelativeError(y, whole), 2e-6);
  const auto actual = Gradients(y, dy, {layer.x, layer.a, layer.b});
  const auto expected = Gradients(whole, dy, {layer.x, layer.a, layer.b});
  for (size_t i = 0; i < actual.size(); ++i)
    EXPECT_LE(RelativeError(actual[i], expected[i]), 2e-6) << i;
}

TEST(LoraLinear, DropoutIsAProbabilityBelow1) {
  Layer layer = MakeLayer({7}, 6, 5, 2, at::kFloat);
  layer.dropout = 1;

  EXPECT_THAT(MessageOf([&] { layer.Run(); }),
              HasSubstr("dropout must be from 0 to below 1, got 1"));
}

TEST(LoraLinear, ASelfMadeResultCanBeWrittenTo) {
  const Layer layer = MakeLayer({3, 4}, 6, 5, 2, at::kFloat);
  layer.a.requires_grad_(true);

  at::Tensor y = layer.Run();

  const at::Tensor before = y.detach().clone();
  y.mul_(2);
  EXPECT_TRUE(y.detach().equal(before * 2));
}

TEST(LoraLinear, OtherStridesAndAutocastGiveTheSameNumbers) {
  Layer layer = MakeLayer({9}, 12, 10, 3, at::kFloat);
  const at::Tensor y = layer.Run();
  layer.x = layer.x.t().contiguous().t();
  layer.weight = layer.weight.t().contiguous().t();

  EXPECT_LE(RelativeError(layer.Run(), y), 1e-6);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const at::Tensor low = layer.Run();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_EQ(low.scalar_type(), at::kBFloat16);
  EXPECT_LE(RelativeError(low, y), 2e-2);
}

TEST(LoraLinear, BadInputIsAnErrorWithTheShapes) {
  Layer layer = MakeLayer({9}, 12, 10, 3, at::kFloat);
  layer.b = at::ones({10, 4});

  EXPECT_THAT(MessageOf([&] { layer.Run(); }),
              HasSubstr("a must be [r, 12] and b [10, r], got [3, 12] and [10, 4]"));
}

TEST(LoraLinear, AFreshAdapterChangesNoBit) {
  at::manual_seed(5);
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    for (const std::vector<int64_t>& rows :
         std::vector<std::vector<int64_t>>{{1}, {3}, {16}, {67}, {3, 11}}) {
      Layer layer = MakeLayer(rows, 72, 56, 4, dtype);
      layer.b.zero_();
      layer.a.requires_grad_(true);
      for (const bool records : {false, true}) {
        // What the layer without an adapter computes.
        layer.x.requires_grad_(records);
        const at::Tensor plain = Linear(layer.x, layer.weight, layer.bias).detach();
        EXPECT_TRUE(layer.Run().detach().equal(plain)) << dtype << rows << records;
      }
    }
  }
}

TEST(LoraLinear4Bit, IsThatOfTheWholeWeight) {
  at::manual_seed(6);
  for (const auto& [dtype, compute, tolerance] : {std::tuple(at::kFloat, at::kFloat, 2e-6),
                                                  {at::kBFloat16, at::kBFloat16, 4e-3},
                                                  {at::kHalf, at::kHalf, 5e-4},
                                                  {at::kFloat, at::kBFloat16, 8e-3},
                                                  {at::kBFloat16, at::kFloat, 4e-3}}) {
    for (const std::vector<int64_t>& rows :
         std::vector<std::vector<int64_t>>{{1}, {16}, {67}, {3, 11}}) {
      Layer layer = MakeLayer(rows, 72, 57, 4, dtype);
      const FewBits weight = RandomFewBits(57, 72);
      layer.weight = Dequantize(weight, compute);
      for (const at::Tensor& input : {layer.x, layer.bias, layer.a, layer.b})
        input.requires_grad_(true);
      const Layer wide = Wide(layer);

      const at::Tensor y =
          LoraLinear(layer.x, weight, compute, layer.bias, layer.a, layer.b, kScale);

      EXPECT_EQ(y.grad_fn()->name(), "LoraLinearBackward");
      EXPECT_EQ(y.scalar_type(), dtype);
      const at::Tensor truth = Formula(wide), dy = Random(y.sizes(), dtype);
      EXPECT_LE(RelativeError(y, truth), tolerance) << dtype << compute << rows;
      const std::vector<at::Tensor> inputs = {layer.x, layer.bias, layer.a, layer.b};
      const std::vector<at::Tensor> actual = Gradients(y, dy, inputs);
      const std::vector<at::Tensor> expected =
          Gradients(truth, dy.to(at::kDouble), {wide.x, wide.bias, wide.a, wide.b});
      for (size_t i = 0; i < actual.size(); ++i) {
        EXPECT_EQ(actual[i].scalar_type(), inputs[i].scalar_type());
        EXPECT_LE(RelativeError(actual[i], expected[i]), tolerance)
            << dtype << compute << rows << i;
      }
    }
  }
}

TEST(LoraLinear4Bit, GradientsOfGradientsAreThoseOfTheFormula) {
  const Layer layer = MakeLayer({7}, 6, 5, 2, at::kFloat);
  const FewBits weight = RandomFewBits(5, 6);
  for (const at::Tensor& input : {layer.x, layer.a, layer.b}) input.requires_grad_(true);
  Layer wide = Wide(layer);
  wide.weight = Dequantize(weight, at::kFloat).to(at::kDouble);
  const auto second = [](const Layer& l, const at::Tensor& y) {
    const std::vector<at::Tensor> of = {l.x, l.a, l.b};
    at::Tensor sum = at::zeros({});
    for (const at::Tensor& g : Gradients(y.square().sum(), {}, of, /*create_graph=*/true))
      sum = sum + g.square().sum();
    return Gradients(sum, {}, of);
  };

  const std::vector<at::Tensor> actual =
      second(layer, LoraLinear(layer.x, weight, std::nullopt, {}, layer.a, layer.b, kScale));

  wide.bias.detach_().zero_();
  const std::vector<at::Tensor> expected = second(wide, Formula(wide));
  for (size_t i = 0; i < actual.size(); ++i)
    EXPECT_LE(RelativeError(actual[i], expected[i]), 1e-5) << i;
}

TEST(LoraLinear4Bit, AFreshAdapterChangesNoBit) {
  at::manual_seed(8);
  const FewBits weight = RandomFewBits(56, 72);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const std::vector<int64_t>& rows :
         std::vector<std::vector<int64_t>>{{1}, {3}, {16}, {67}, {3, 11}}) {
      Layer layer = MakeLayer(rows, 72, 56, 4, dtype);
      layer.b.zero_();
      for (const bool records : {false, true}) {
        layer.x.requires_grad_(records);
        layer.a.requires_grad_(records);
        const at::Tensor plain = FewBitsLinear(layer.x, weight, layer.bias).detach();
        const at::Tensor y =
            LoraLinear(layer.x, weight, std::nullopt, layer.bias, layer.a, layer.b, kScale);
        EXPECT_TRUE(y.detach().equal(plain)) << dtype << rows << records;
      }
    }
  }
}

TEST(LoraLinear4Bit, KeepsTheBytesAndNotTheWholeWeight) {
  const FewBits weight = RandomFewBits(8, 32);
  Layer layer = MakeLayer({4}, 32, 8, 2, at::kFloat);
  layer.x.requires_grad_(true);
  const auto before = weight.packed.use_count();

  at::Tensor y = LoraLinear(layer.x, weight, std::nullopt, {}, layer.a, layer.b, kScale);

  EXPECT_GT(weight.packed.use_count(), before);
  y.sum().backward();
  EXPECT_EQ(weight.packed.use_count(), before);
}

TEST(LoraLinear4Bit, AutocastIsThatOfTheLayer) {
  const FewBits weight = RandomFewBits(10, 12);
  const Layer layer = MakeLayer({9}, 12, 10, 3, at::kFloat);
  const at::Tensor y = LoraLinear(layer.x, weight, {}, {}, layer.a, layer.b, kScale);

  at::autocast::set_autocast_enabled(at::kCPU, true);
  const at::Tensor low = LoraLinear(layer.x, weight, {}, {}, layer.a, layer.b, kScale);
  at::autocast::set_autocast_enabled(at::kCPU, false);

  EXPECT_EQ(low.scalar_type(), at::kBFloat16);
  EXPECT_LE(RelativeError(low, y), 2e-2);
}

TEST(LoraLinear4Bit, BadInputIsAnErrorWithTheShapes) {
  const FewBits weight = RandomFewBits(10, 12);
  const Layer layer = MakeLayer({9}, 14, 10, 3, at::kFloat);

  EXPECT_THAT(MessageOf([&] { LoraLinear(layer.x, weight, {}, {}, layer.a, layer.b, kScale); }),
              HasSubstr("x must be [..., in] and weight [out, in], got [9, 14] and [10, 12]"));
}

TEST(ProductOfRows, AgreesWithFloat64ForBothLayoutsOfTheWeight) {
  at::manual_seed(2);
  const at::InferenceMode below;
  for (const int64_t rows : {1, 15, 16, 33, 256}) {
    for (const auto& [in, out] : {std::pair(1, 1), {16, 576}, {97, 3}, {576, 192}}) {
      const at::Tensor x = Random({rows, in}, at::kFloat), weight = Random({out, in}, at::kFloat);
      const at::Tensor truth = at::mm(x.to(at::kDouble), weight.to(at::kDouble).t());

      EXPECT_LE(RelativeError(ProductOfRows(x, weight), truth), 1e-6) << rows << in << out;
      const at::Tensor turned = weight.t().contiguous().t();
      EXPECT_LE(RelativeError(ProductOfRows(x, turned), truth), 1e-6) << rows << in << out;
    }
  }
}

TEST(ProductOfRows, OneDnnIsForManyRowsOfFloat32) {
  const at::Tensor x = at::ones({15, 8}), weight = at::ones({4, 8});

  EXPECT_FALSE(IsForOneDnn(x, weight));
  EXPECT_FALSE(IsForOneDnn(at::ones({16, 8}, at::kDouble), weight.to(at::kDouble)));
  EXPECT_FALSE(IsForOneDnn(at::ones({16, 8}), at::ones({4, 16}).slice(1, 0, 16, 2)));
}

}  // namespace
}  // namespace lockstep::kernels
