// Tests that need a GPU: casts there against those of the CPU bit for bit, and products against the
// CPU's, which the other tests prove.

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <utility>

#include "ATen/ATen.h"
#include "gtest/gtest.h"
#include "kernels/float8/float8.h"
#include "tests/support/relative_error.h"
#include "torch/csrc/autograd/autograd.h"

namespace lockstep::kernels {
namespace {

using tests::RelativeError;

at::Tensor Random(at::IntArrayRef shape, at::ScalarType dtype) {
  return (at::randn(shape) * at::randn({shape[0], 1}).exp()).to(dtype);
}

void ExpectEqual(const Float8& on_gpu, const Float8& expected) {
  EXPECT_EQ(on_gpu.scale.sizes(), expected.scale.sizes());
  EXPECT_TRUE(at::equal(on_gpu.scale.cpu(), expected.scale));
  EXPECT_TRUE(at::equal(on_gpu.values.view(at::kByte).cpu(), expected.values.view(at::kByte)));
}

TEST(Gpu, CastsHaveTheBitsOfTheCpu) {
  at::manual_seed(1);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const auto& [rows, columns] : std::initializer_list<std::pair<int64_t, int64_t>>{
             {1, 1}, {3, 5}, {0, 16}, {33, 257}, {300, 70}, {40, 1030}, {1030, 600}}) {
      const at::Tensor wide = Random({rows + 1, 2 * columns}, dtype);
      for (const at::Tensor& x : {wide.narrow(0, 0, rows).narrow(1, columns / 2, columns),
                                  wide.narrow(0, 0, rows).slice(1, 0, 2 * columns, 2)}) {
        for (const at::ScalarType format : {at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
          for (const std::optional<int64_t> dim :
               {std::optional<int64_t>(), std::optional<int64_t>(0), std::optional<int64_t>(1)}) {
            const at::Tensor there =
                wide.cuda().as_strided(x.sizes(), x.strides(), x.storage_offset());
            const bool power_of_2 = rows % 2 == 0;
            const Float8 expected = CastToFloat8(x, format, dim, power_of_2);
            const Float8 actual = CastToFloat8(there, format, dim, power_of_2);
            ExpectEqual(actual, expected);
            ExpectEqual(Transposed(actual), Transposed(expected));
            ExpectEqual(CastTransposed(there, format, dim, power_of_2), Transposed(expected));
          }
          for (const bool by_row : {false, true}) {
            const at::Tensor there =
                wide.cuda().as_strided(x.sizes(), x.strides(), x.storage_offset());
            const Float8Both expected = CastBoth(x, format, by_row);
            const Float8Both actual = CastBoth(there, format, by_row);
            ExpectEqual(actual.as_is, expected.as_is);
            ExpectEqual(actual.transposed, expected.transposed);
          }
        }
      }
    }
  }
}

TEST(Gpu, DoesNotHideInfinityOrNan) {
  for (const double bad : {INFINITY, -INFINITY, NAN}) {
    at::Tensor x = at::randn({3, 48});
    x[1][38] = bad;
    const Float8 cast = CastToFloat8(x.cuda(), at::kFloat8_e4m3fn, 1, /*power_of_2=*/true);
    const at::Tensor is_nan = (cast.values.to(at::kFloat) * cast.scale.reciprocal()).isnan().cpu();
    EXPECT_TRUE(is_nan[1].all().item<bool>());
    EXPECT_FALSE(is_nan[0].any().item<bool>());
  }
}

TEST(Gpu, LayersAgreeWithThoseOfTheCpu) {
  at::manual_seed(2);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const char* recipe : {"tensorwise", "rowwise", "rowwise_with_gw_hp"}) {
      for (const int64_t tokens : {0, 5, 64, 1000}) {
        const at::Tensor x = Random({tokens, 256}, dtype), weight = Random({512, 256}, dtype);
        const at::Tensor dy = Random({tokens, 512}, dtype);
        const auto results = [&](at::DeviceType device) {
          const at::Tensor own_x = x.to(device).set_requires_grad(true);
          const at::Tensor own_weight = weight.to(device).set_requires_grad(true);
          const at::Tensor y = Float8Linear(own_x, own_weight, std::nullopt, recipe);
          auto all = torch::autograd::grad({y}, {own_x, own_weight}, {dy.to(device)});
          all.push_back(y.detach());
          return all;
        };
        const auto expected = results(at::kCPU), actual = results(at::kCUDA);
        for (size_t i = 0; i < expected.size(); ++i) {
          EXPECT_EQ(actual[i].scalar_type(), expected[i].scalar_type());
          EXPECT_EQ(actual[i].sizes(), expected[i].sizes());
          if (actual[i].numel() > 0) {
            EXPECT_LT(RelativeError(actual[i].cpu(), expected[i].to(at::kDouble)), 1e-2) << recipe;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::kernels
