#include "driver/watching/operator_costs.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

#include "ATen/Functions.h"
#include "c10/util/Exception.h"
#include "driver/watching/flops.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::driver {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kFloat = 4;  // bytes

// So slow that bounds are whole seconds.
Peaks SlowPeaks() {
  return {.bytes_per_s = 4, .flops_per_s = {{at::kFloat, 10}, {at::kDouble, 5}}};
}

std::vector<OperatorCost> Measure(const std::function<void()>& run) {
  OperatorCosts costs(at::kCPU);
  run();
  costs.Stop();
  return costs.ByOperator(SlowPeaks());
}

int64_t TotalBytes(const std::vector<OperatorCost>& costs) {
  return std::accumulate(costs.begin(), costs.end(), int64_t{0},
                         [](int64_t sum, const OperatorCost& cost) { return sum + cost.bytes; });
}

TEST(OperatorCosts, HeaderExample) {
  const at::Tensor x = at::ones({2, 3}), y = at::ones({3, 5});
  OperatorCosts costs(at::kCPU);

  at::mm(x, y);
  at::mm(x, y);
  costs.Stop();

  const std::vector<OperatorCost> operators = costs.ByOperator(SlowPeaks());
  ASSERT_EQ(operators.size(), 1u);
  EXPECT_EQ(operators[0].name, "aten::mm");
  EXPECT_EQ(operators[0].group, "matrix products");
  EXPECT_EQ(operators[0].calls, 2);
  EXPECT_EQ(operators[0].bytes, 2 * (6 + 15 + 10) * kFloat);
  EXPECT_EQ(operators[0].flops, 2 * 60);
  EXPECT_GT(operators[0].seconds, 0);
  EXPECT_EQ(operators[0].bound_s, 2 * 31);  // 31 numbers of 4 bytes take longer than 60 / 10 s
  EXPECT_GE(costs.seconds(), operators[0].seconds);
  EXPECT_THAT(costs.FlopDtypes(), ElementsAre(at::kFloat));
}

TEST(OperatorCosts, TheBoundIsThatOfTheSlowerOfBothPeaksForEachCall) {
  const at::Tensor x = at::ones({100, 100}), y = at::ones({100, 100}, at::kDouble);

  const auto floats = Measure([&] { at::mm(x, x); });
  const auto doubles = Measure([&] { at::mm(y, y); });

  EXPECT_EQ(floats[0].bound_s, 2e6 / 10);
  EXPECT_EQ(doubles[0].bound_s, 2e6 / 5);
}

struct BytesCase {
  const char* name;
  std::function<void()> run;
  const char* group;  // of the only operator with a cost
  int64_t bytes;
  int64_t flops = 0;
};

// Tensors of all cases.
struct Tensors {
  at::Tensor a = at::ones({4, 6}), b = at::ones({4, 6}), wide = at::ones({4, 6}, at::kDouble);
  at::Tensor row = at::ones({6}), table = at::ones({50, 6});
  at::Tensor ids = at::tensor({3, 3, 7}, at::kLong), heads = at::ones({2, 3, 16, 8});
};

std::vector<BytesCase> BytesCases(Tensors& t) {
  constexpr int64_t kAll = 24 * kFloat;
  return {
      {"add", [&] { at::add(t.a, t.b); }, "pointwise", 3 * kAll},
      {"add in place", [&] { t.a.add_(t.b); }, "pointwise", 3 * kAll},
      {"add into another", [&] { at::add_out(t.b, t.a, t.a); }, "pointwise", 3 * kAll},
      {"a number", [&] { at::mul(t.a, 2); }, "pointwise", 2 * kAll},
      {"a number in place", [&] { t.a.mul_(2); }, "pointwise", 2 * kAll},
      {"a row for each row", [&] { at::add(t.a, t.row); }, "pointwise", 2 * kAll + 6 * kFloat},
      {"expanded",
       [&] {
         at::add(t.a, t.row.expand({4, 6}));
       },
       "pointwise", 2 * kAll + 6 * kFloat},
      {"silu", [&] { at::silu(t.a); }, "pointwise", 2 * kAll},
      {"copy", [&] { t.a.copy_(t.b); }, "copies", 2 * kAll},
      {"copy to another dtype", [&] { t.a.to(at::kDouble); }, "copies", 3 * kAll},
      {"clone", [&] { t.a.clone(); }, "copies", 2 * kAll},
      {"contiguous", [&] { t.a.t().contiguous(); }, "copies", 2 * kAll},
      {"fill", [&] { t.a.fill_(1); }, "copies", kAll},
      {"zeros",
       [&] {
         at::zeros({4, 6});
       },
       "copies", kAll},
      {"cat",
       [&] {
         at::cat({t.a, t.b});
       },
       "copies", 4 * kAll},
      {"rows of a table", [&] { at::embedding(t.table, t.ids); }, "copies",
       2 * 18 * kFloat + 3 * int64_t{sizeof(int64_t)}},
      {"sum", [&] { at::sum(t.a, {1}); }, "reductions", kAll + 4 * kFloat},
      {"softmax", [&] { at::softmax(t.a, 1); }, "reductions", 2 * kAll},
      {"layer norm", [&] { at::layer_norm(t.a, {6}); }, "normalisation", 2 * kAll + 8 * kFloat},
      {"linear with a bias", [&] { at::linear(t.a, t.table, at::ones({50})); }, "matrix products",
       // the bias is filled with 50 ones before
       (24 + 300 + 50 + 200 + 50) * kFloat, 2 * 4 * 6 * 50},
      {"attention", [&] { at::scaled_dot_product_attention(t.heads, t.heads, t.heads); },
       // and the logarithms of sums, 2 x 3 x 16
       "attention", (4 * 768 + 96) * kFloat, 2 * 3 * 16 * 16 * 2 * (8 + 8)},
      {"several at once",
       [&] {
         at::_foreach_mul_({t.a, t.b}, 2.0);
       },
       "optimizer", 4 * kAll},
      {"several copies",
       [&] {
         at::_foreach_copy_({t.a, t.b}, {t.b, t.a});
       },
       "optimizer", 4 * kAll},
  };
}

TEST(OperatorCosts, BytesAreThoseThatACallReadsAndWrites) {
  Tensors tensors;
  for (const BytesCase& c : BytesCases(tensors)) {
    const std::vector<OperatorCost> costs = Measure(c.run);

    ASSERT_FALSE(costs.empty()) << c.name;
    const auto main = std::max_element(
        costs.begin(), costs.end(), [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
    EXPECT_EQ(main->group, c.group) << c.name << ": " << main->name;
    EXPECT_EQ(TotalBytes(costs), c.bytes) << c.name << ": " << main->name;
    EXPECT_EQ(main->flops, c.flops) << c.name;
    EXPECT_EQ(main->calls, 1) << c.name;
  }
}

TEST(OperatorCosts, ViewsAndAllocationsMoveNothing) {
  const at::Tensor x = at::ones({4, 6});

  EXPECT_THAT(Measure([&] {
                x.view({24}).slice(0, 1, 3).unsqueeze(0);
                x.t().detach().expand({3, 6, 4});
                x.contiguous();
                x.to(at::kFloat);
                at::empty({100});
                at::empty_like(x).resize_({7});
                x.split(2);
                at::_unsafe_view(x, {24});
              }),
              IsEmpty());
}

TEST(OperatorCosts, BackwardCountsAsForwardDoes) {
  const at::Tensor x = at::ones({4, 6}).set_requires_grad(true), w = at::ones({6, 5});

  const auto costs = Measure([&] { at::mm(x, w).sum().backward(); });

  const auto mm = std::find_if(costs.begin(), costs.end(),
                               [](const auto& cost) { return cost.name == "aten::mm"; });
  ASSERT_NE(mm, costs.end());
  EXPECT_EQ(mm->calls, 2);
  EXPECT_EQ(mm->flops, 2 * 2 * 4 * 6 * 5);
  // The gradient of the sum is one number for all elements of the product.
  EXPECT_EQ(mm->bytes, ((24 + 30 + 20) + (1 + 30 + 24)) * kFloat);
}

TEST(OperatorCosts, ACallThatFailsLeavesTheOthersRight) {
  const at::Tensor x = at::ones({2, 3});

  const auto costs = Measure([&] {
    EXPECT_THROW(at::mm(x, x), c10::Error);
    at::mm(x, x.t());
  });

  ASSERT_EQ(costs.size(), 1u);
  EXPECT_EQ(costs[0].flops, 2 * 2 * 3 * 2 + 2 * 2 * 3 * 3);  // both as they were called
}

TEST(OperatorCosts, NothingCountsAfterStop) {
  const at::Tensor x = at::ones({2, 2});
  OperatorCosts costs(at::kCPU);
  costs.Stop();
  const double seconds = costs.seconds();

  at::mm(x, x);
  costs.Stop();

  EXPECT_THAT(costs.ByOperator(SlowPeaks()), IsEmpty());
  EXPECT_EQ(costs.seconds(), seconds);
}

TEST(OperatorCosts, ThereIsOneAtATime) {
  const at::Tensor x = at::ones({2, 2});
  OperatorCosts first(at::kCPU);
  EXPECT_THROW(OperatorCosts(at::kCPU), c10::ValueError);
  at::mm(x, x);
  first.Stop();
  OperatorCosts second(at::kCPU);
  second.Stop();

  EXPECT_EQ(first.ByOperator(SlowPeaks()).size(), 1u);
}

TEST(OperatorCosts, FlopsCountDuringBoth) {
  const at::Tensor x = at::ones({2, 2});
  const FlopCounter counter;

  const auto costs = Measure([&] { at::mm(x, x); });

  EXPECT_EQ(counter.total(), 16);
  EXPECT_EQ(costs[0].flops, 16);
}

TEST(Peaks, AreMeasuredOnceAndUnseen) {
  const FlopCounter counter;

  const Peaks first = MeasurePeaks(at::kCPU, {at::kDouble});
  const Peaks second = MeasurePeaks(at::kCPU, {});

  EXPECT_GT(first.bytes_per_s, 1e6);
  EXPECT_GT(first.flops_per_s.at(at::kFloat), 1e6);
  EXPECT_GT(first.flops_per_s.at(at::kDouble), 1e6);
  EXPECT_EQ(second.bytes_per_s, first.bytes_per_s);
  EXPECT_EQ(second.flops_per_s, first.flops_per_s);
  EXPECT_EQ(counter.total(), 0);
}

}  // namespace
}  // namespace lockstep::driver
