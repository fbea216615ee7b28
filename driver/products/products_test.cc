#include "driver/products/products.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "ATen/Context.h"
#include "ATen/Functions.h"
#include "ATen/Parallel.h"
#include "ATen/ops/addmm_cpu_dispatch.h"
#include "ATen/ops/mm_cpu_dispatch.h"
#include "base/torch/one_dnn.h"
#include "c10/util/Exception.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/csrc/autograd/autograd.h"

namespace lockstep::driver {
namespace {

using base::IsOneDnnFaster;
using ::testing::HasSubstr;

std::vector<std::string>& WarningsOfInstall() {
  static std::vector<std::string> warnings;
  return warnings;
}

const bool kIsInstalled = [] {
  class : public c10::WarningHandler {
    void process(const c10::Warning& warning) override {
      WarningsOfInstall().push_back(warning.msg());
    }
  } handler;
  const c10::WarningUtils::WarningHandlerGuard guard(&handler);
  return InstallProducts();
}();

class WithoutOneDnn {
 public:
  WithoutOneDnn() { at::globalContext().setUserEnabledMkldnn(false); }
  ~WithoutOneDnn() { at::globalContext().setUserEnabledMkldnn(true); }
};

at::Tensor Random(at::IntArrayRef sizes) {
  static at::Generator generator = at::detail::createCPUGenerator(7);
  return at::randn(sizes, generator);
}

at::Tensor Wide(const at::Tensor& x) { return x.to(at::kDouble); }

// A norm, so that sums that cancel do not count more than others.
double Error(const at::Tensor& x, const at::Tensor& truth) {
  return (Wide(x) - truth).norm().item<double>() / truth.norm().item<double>();
}

// A matrix of this size in one of several layouts.
at::Tensor Matrix(int64_t rows, int64_t columns, int layout) {
  switch (layout) {
    case 0: return Random({rows, columns});
    case 1: return Random({columns, rows}).t();
    case 2: return Random({rows, columns + 5}).slice(1, 3, columns + 3);
    case 3: return Random({columns + 5, rows}).t().slice(1, 3, columns + 3);
    case 4: return Random({2 * rows, 2 * columns}).slice(0, 0, 2 * rows, 2).slice(1, 1, {}, 2);
    case 5: return Random({1, columns}).expand({rows, columns});
    default: return Random({rows, 1}).expand({rows, columns});
  }
}
constexpr int kLayouts = 7;

TEST(IsOneDnnFaster, OnOtherMakersProcessorsWithAvx512) {
  EXPECT_TRUE(IsOneDnnFaster(/*has_avx512=*/true, /*is_intel=*/false));
  EXPECT_FALSE(IsOneDnnFaster(/*has_avx512=*/true, /*is_intel=*/true));
  EXPECT_FALSE(IsOneDnnFaster(/*has_avx512=*/false, /*is_intel=*/false));
  EXPECT_FALSE(IsOneDnnFaster(/*has_avx512=*/false, /*is_intel=*/true));
}

TEST(InstallProducts, IsForTheseProcessorsAlone) {
  EXPECT_EQ(kIsInstalled, IsOneDnnFaster());
  EXPECT_EQ(InstallProducts(), kIsInstalled);
}

TEST(InstallProducts, WarnsOfNothing) { EXPECT_THAT(WarningsOfInstall(), testing::IsEmpty()); }

TEST(IsForOneDnn, LargeMatricesOfFloat32) {
  const auto is = [](at::IntArrayRef a, at::IntArrayRef b, at::ScalarType dtype = at::kFloat) {
    return IsForOneDnn(at::zeros(a, dtype), at::zeros(b, dtype));
  };
  EXPECT_TRUE(is({128, 128}, {128, 128}));
  EXPECT_TRUE(is({16, 1024}, {1024, 128}));
  EXPECT_FALSE(is({127, 128}, {128, 128})) << "too small";
  EXPECT_FALSE(is({15, 1024}, {1024, 1024})) << "too few rows";
  EXPECT_FALSE(is({1024, 1024}, {1024, 15})) << "too few columns";
  EXPECT_FALSE(is({1024, 15}, {15, 1024})) << "too few terms";
  EXPECT_FALSE(is({0, 1024}, {1024, 1024}));
  EXPECT_FALSE(is({1024, 0}, {0, 1024}));
  EXPECT_FALSE(is({1024, 1024}, {1024, 0}));
  EXPECT_FALSE(is({128, 128}, {129, 128})) << "not a product";
  EXPECT_FALSE(is({128, 128}, {128, 128}, at::kDouble));
  EXPECT_FALSE(is({128, 128}, {128, 128}, at::kBFloat16));
  EXPECT_FALSE(is({1024, 1024}, {1024})) << "a vector";
  const at::Tensor a = at::zeros({128, 128});
  EXPECT_FALSE(IsForOneDnn(a, at::zeros({128, 128}).to_sparse()));
  EXPECT_FALSE(IsForOneDnn(a, at::zeros({128, 128}, at::kDouble)));
  EXPECT_FALSE(IsForOneDnn(at::empty({128, 128}, at::kMeta), at::empty({128, 128}, at::kMeta)));

  const WithoutOneDnn off;
  EXPECT_FALSE(is({128, 128}, {128, 128}));
}

TEST(Products, AreThoseOfFloat64InEachLayout) {
  std::mt19937 random(3);
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int left = 0; left < kLayouts; ++left)
    for (int right = 0; right < kLayouts; ++right) {
      const int64_t m = pick(16, 150), k = pick(64, 600),
                    n = std::max(2100000 / (m * k) + 1, pick(16, 300));
      SCOPED_TRACE(testing::Message()
                   << m << " x " << k << " x " << n << ", layouts " << left << " and " << right);
      const at::Tensor a = Matrix(m, k, left), b = Matrix(k, n, right), c = Random({m, n});
      ASSERT_TRUE(IsForOneDnn(a, b));
      const at::Tensor ab = at::mm(Wide(a), Wide(b));

      EXPECT_LT(Error(at::mm(a, b), ab), 2e-6);
      EXPECT_LT(Error(at::addmm(c, a, b), ab + Wide(c)), 2e-6);
      EXPECT_LT(Error(at::addmm(c, a, b, 0.5, -2), Wide(c) * 0.5 - ab * 2), 2e-6);
      EXPECT_LT(Error(c.clone().addmm_(a, b, 0.25, 3), Wide(c) * 0.25 + ab * 3), 2e-6);
      at::Tensor out = at::full({m, n}, NAN);
      at::mm_out(out, a, b);
      EXPECT_TRUE(at::equal(out, at::mm(a, b)));
      out.fill_(NAN);
      at::addmm_out(out, c, a, b, 0.5, -2);
      EXPECT_TRUE(at::equal(out, at::addmm(c, a, b, 0.5, -2)));
    }
}

TEST(Products, OfSmallMatrices) {
  for (const int64_t m : {0, 1, 3, 40})
    for (const int64_t k : {0, 1, 5})
      for (const int64_t n : {0, 1, 70}) {
        const at::Tensor a = Random({m, k}), b = Random({k, n}), c = Random({m, n});
        const at::Tensor ab = at::mm(Wide(a), Wide(b));
        EXPECT_TRUE(at::allclose(Wide(at::mm(a, b)), ab, 1e-4, 1e-5));
        EXPECT_TRUE(at::allclose(Wide(at::addmm(c, a, b)), ab + Wide(c), 1e-4, 1e-5));
      }
}

TEST(Products, AddBroadcastOperands) {
  const at::Tensor a = Random({128, 200}), b = Random({200, 100});
  const at::Tensor ab = at::mm(Wide(a), Wide(b));
  for (const at::Tensor& c : {Random({100}), Random({1, 100}), Random({128, 1}), Random({1}),
                              Random({}), Random({100, 128}).t(), Random({200}).slice(0, 0, {}, 2)})
    EXPECT_LT(Error(at::addmm(c, a, b, 3, 0.5), Wide(c) * 3 + ab * 0.5), 2e-6) << c.sizes();
  EXPECT_THAT([&] { at::addmm(Random({99}), a, b); },
              testing::Throws<c10::Error>(
                  testing::Property(&c10::Error::what_without_backtrace, HasSubstr("99"))));
}

TEST(Products, LinearLayersHaveOneResult) {
  const at::Tensor x = Random({4, 64, 200}), weight = Random({100, 200}), bias = Random({100});
  const at::Tensor rows = x.view({-1, 200});

  const at::Tensor y = at::linear(x, weight);
  EXPECT_TRUE(at::equal(y.view({-1, 100}), at::mm(rows, weight.t())));
  EXPECT_TRUE(at::equal(at::linear(x, weight, bias), y + bias));
}

TEST(Products, FactorsOfZero) {
  const at::Tensor a = Random({128, 200}), b = Random({200, 100}), c = Random({128, 100});
  const at::Tensor nan = at::full({128, 100}, NAN);

  EXPECT_TRUE(at::equal(at::addmm(nan, a, b, /*beta=*/0), at::mm(a, b)));
  EXPECT_TRUE(at::equal(nan.clone().addmm_(a, b, /*beta=*/0), at::mm(a, b)));
  EXPECT_TRUE(at::equal(at::addmm(c, a, b, 2, /*alpha=*/0), c * 2));
  EXPECT_TRUE(at::equal(c.clone().addmm_(a, b, 2, /*alpha=*/0), c * 2));
}

TEST(Products, FactorsThatFloat32RoundsToZero) {
  const at::Tensor a = Random({128, 200}), b = Random({200, 100}), c = Random({128, 100});
  const at::Tensor nan = at::full({128, 100}, NAN);
  constexpr double kTiny = 1e-50;
  ASSERT_TRUE(IsForOneDnn(a, b));

  EXPECT_TRUE(at::equal(at::addmm(c, a, b, 2, /*alpha=*/kTiny), c * 2));
  EXPECT_TRUE(at::equal(c.clone().addmm_(a, b, 2, /*alpha=*/kTiny), c * 2));
  at::Tensor out = nan.clone();
  at::addmm_out(out, c, a, b, /*beta=*/0, /*alpha=*/kTiny);
  EXPECT_TRUE(at::equal(out, at::zeros_like(c)));
  EXPECT_TRUE(at::equal(at::addmm(nan, a, b, /*beta=*/kTiny), at::mm(a, b)));
}

TEST(Products, NumbersThatAreNotFinite) {
  for (const int64_t k : {100, 500}) {
    const at::Tensor a = Random({128, k}), b = Random({k, 200});
    a[3][5] = NAN;
    a[7][k - 1] = INFINITY;
    b[9][11] = -INFINITY;
    const at::Tensor y = at::mm(a, b), truth = at::mm(Wide(a), Wide(b));

    EXPECT_TRUE(at::equal(y.isnan(), truth.isnan()));
    EXPECT_TRUE(at::equal(y.isposinf(), truth.isposinf()));
    EXPECT_TRUE(at::equal(y.isneginf(), truth.isneginf()));
  }
}

TEST(Products, IntoResultsOfAnyShapeAndLayout) {
  const at::Tensor a = Random({64, 200}), b = Random({200, 200}), c = Random({64, 200});
  const at::Tensor ab = at::mm(Wide(a), Wide(b));
  const auto check = [&](at::Tensor out, const char* which) {
    at::mm_out(out, a, b);
    EXPECT_LT(Error(out, ab), 2e-6) << which;
    at::addmm_out(out, c, a, b);
    EXPECT_LT(Error(out, ab + Wide(c)), 2e-6) << which;
  };
  check(at::empty({0}), "resized");
  check(at::empty({200, 64}).t(), "transposed");
  check(at::empty({64, 300}).slice(1, 0, 200), "of a part of the columns");
  check(at::empty({128, 400}).slice(0, 0, {}, 2).slice(1, 0, {}, 2), "with gaps");

  at::Tensor sum = c.clone();
  at::addmm_out(sum, sum, a, b);  // is what it adds to
  EXPECT_LT(Error(sum, ab + Wide(c)), 2e-6);
  at::Tensor memory = Random({65, 200});
  const at::Tensor first = memory.slice(0, 0, 64).clone();
  at::Tensor later = memory.slice(0, 1);
  EXPECT_ANY_THROW(at::addmm_out(later, memory.slice(0, 0, 64), a, b)) << "shares memory";
  at::Tensor wide = at::empty({64, 200}, at::kDouble);
  EXPECT_ANY_THROW(at::mm_out(wide, a, b)) << "of another dtype";
}

TEST(Products, WrongOperandsHaveLibtorchsErrors) {
  const at::Tensor a = Random({64, 200});
  const auto error = [](auto call) -> std::string {
    try {
      call();
    } catch (const c10::Error& e) {
      return e.what_without_backtrace();
    }
    return "";
  };
  EXPECT_THAT(error([&] { at::mm(a, Random({100, 200})); }), HasSubstr("(64x200 and 100x200)"));
  EXPECT_THAT(error([&] { at::mm(a, Random({200, 100}).to(at::kDouble)); }), HasSubstr("dtype"));
  EXPECT_THAT(error([&] { at::mm(a, Random({200})); }), HasSubstr("matrix"));
  at::Tensor out = at::empty({64, 100});
  const at::Tensor leaf = Random({200, 100}).requires_grad_();
  EXPECT_THAT(error([&] { at::mm_out(out, a, leaf); }), HasSubstr("differentiation"));
}

TEST(Products, GradientsAndTheirGradients) {
  for (const bool is_wide : {true, false}) {
    at::manual_seed(5);
    const auto leaf = [&](at::IntArrayRef sizes) {
      const at::Tensor x = at::randn(sizes);
      return (is_wide ? Wide(x) : x).requires_grad_();
    };
    static std::vector<at::Tensor> truth;
    const std::vector<at::Tensor> leaves = {leaf({4, 64, 128}), leaf({100, 128}), leaf({100})};
    const at::Tensor loss = at::linear(leaves[0], leaves[1], leaves[2]).pow(3).mean();
    const auto first = torch::autograd::grad({loss}, leaves, {}, true, /*create_graph=*/true);
    at::Tensor norm = first[0].pow(2).sum();
    for (size_t i = 1; i < 3; ++i) norm = norm + first[i].pow(2).sum();
    std::vector<at::Tensor> all = torch::autograd::grad({norm}, leaves);
    all.insert(all.end(), first.begin(), first.end());
    if (is_wide) {
      truth = all;
      continue;
    }
    for (size_t i = 0; i < all.size(); ++i)
      EXPECT_LT(Error(all[i].detach(), truth[i].detach()), 1e-5) << i;
  }
}

TEST(Products, TheSwitchGivesLibtorchsBits) {
  const at::Tensor a = Random({128, 500}), b = Random({500, 300}), c = Random({300});
  const bool is_other = !at::equal(at::mm(a, b), at::cpu::mm(a, b));
  EXPECT_EQ(is_other, kIsInstalled);

  const WithoutOneDnn off;
  EXPECT_TRUE(at::equal(at::mm(a, b), at::cpu::mm(a, b)));
  EXPECT_TRUE(at::equal(at::addmm(c, a, b), at::cpu::addmm(c, a, b)));
}

TEST(Products, ShortSumsHaveLibtorchsBits) {
  for (const int64_t k : {16, 64, 128}) {
    const at::Tensor a = Random({512, k}), b = Random({k, 256}), c = Random({256});
    EXPECT_TRUE(at::equal(at::mm(a, b), at::cpu::mm(a, b))) << k;
    EXPECT_TRUE(at::equal(at::addmm(c, a, b), at::cpu::addmm(c, a, b))) << k;
  }
}

TEST(Products, RowsDoNotDependOnOtherRows) {
  for (const int64_t k : {200, 384, 600})
    for (const bool is_transposed : {true, false}) {
      const at::Tensor a = Random({512, k});
      const at::Tensor b = is_transposed ? Random({1024, k}).t() : Random({k, 1024});
      const at::Tensor all = at::mm(a, b);
      for (const int64_t rows : {16, 31, 100, 333}) {
        if (k > 384 && rows < 100) continue;
        EXPECT_TRUE(at::equal(at::mm(a.slice(0, 512 - rows), b), all.slice(0, 512 - rows)))
            << k << " " << rows;
      }
    }
}

TEST(Products, ThreadsDoNotChangeBits) {
  const int threads = at::get_num_threads();
  for (const int64_t k : {128, 700}) {
    const at::Tensor a = Random({300, k}), b = Random({k, 260});
    at::set_num_threads(1);
    const at::Tensor one = at::mm(a, b);
    at::set_num_threads(2);
    EXPECT_TRUE(at::equal(at::mm(a, b), one)) << k;
    EXPECT_TRUE(at::equal(at::mm(a, b), one)) << k << ", again";
  }
  at::set_num_threads(threads);
}

}  // namespace
}  // namespace lockstep::driver
