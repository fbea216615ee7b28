// The sources of programs, run on the CPU by the threads of a small grid, against ATen's operators
// in float64. g++ compiled them (generate.cc); compiler_test has NVRTC compile them.

#include "kernels/pointwise/cuda/source.h"

#include <cstdint>
#include <vector>

#include "ATen/ATen.h"
#include "gtest/gtest.h"
#include "kernels/pointwise/cuda/cases.h"
#include "kernels/pointwise/cuda/device_words.h"
#include "kernels/pointwise/layout.h"
#include "kernels/pointwise/pointwise.h"
#include "tests/support/relative_error.h"

namespace lockstep::kernels::pointwise::cuda {
namespace {

using tests::RelativeError;
using Tensors = std::vector<at::Tensor>;

constexpr int64_t kRows = 5;
const std::vector<double> kNumbers = {0.75, 2};

// Runs case i. The inputs lie as its signature says.
Tensors RunCase(size_t i, const Case& test, const Tensors& inputs, at::IntArrayRef shape) {
  Tensors results;
  for (size_t j = 0; j < test.signature.results.size(); ++j)
    results.push_back(at::zeros(test.program.row_results[j] ? ShapeOfRows(shape) : shape,
                                test.signature.results[j]));
  const CallMemory memory(test.program, shape, inputs, results);
  const Signature signature =
      SignatureOf(c10::multiply_integers(shape), memory.inputs(), memory.results());
  for (size_t j = 0; j < inputs.size(); ++j)
    EXPECT_EQ(signature.inputs[j].access, test.signature.inputs[j].access) << test.name << j;
  EXPECT_EQ(signature.num_dims, test.signature.num_dims) << test.name;
  EXPECT_EQ(signature.num_row_dims, test.signature.num_row_dims) << test.name;
  const bool has_rows = NeedsRows(test.program);
  const int64_t count = c10::multiply_integers(has_rows ? ShapeOfRows(shape) : shape);
  const std::vector<int64_t> arguments =
      ArgumentsOf(count, LengthOf(shape), memory.inputs(), memory.results(), kNumbers);
  RunGrid(kRuns[i], 3, has_rows ? 64 : 4, arguments.data());
  return results;
}

at::Tensor Input(const Signature::Input& input, int64_t columns) {
  const at::Tensor x = at::rand({kRows, columns}, at::kDouble) + 0.05;
  if (input.is_row) {
    const at::Tensor row = x.to(input.dtype).narrow(1, 0, 1);
    return input.access == Access::kFlat      ? row.contiguous()
           : input.access == Access::kUniform ? row.narrow(0, 0, 1)
                                              : row;
  }
  if (input.dtype == at::kBool) return x.narrow(1, 0, 1) > 0.5;
  const at::Tensor rounded = x.to(input.dtype);
  if (input.access == Access::kStrided) return rounded.t().contiguous().t();
  return input.access == Access::kUniform ? rounded.narrow(0, 0, 1).narrow(1, 0, 1) : rounded;
}

void Compare(size_t i, const Case& test, int64_t columns) {
  Tensors inputs, wide;
  for (const Signature::Input& input : test.signature.inputs) {
    inputs.push_back(Input(input, columns));
    wide.push_back(inputs.back().to(at::kDouble));
  }
  Program program = test.program;
  program.wide = true;
  for (at::ScalarType& dtype : program.dtypes)
    if (dtype != at::kBool) dtype = at::kDouble;
  const Tensors expected = Compose(program, wide, kNumbers, {kRows, columns});

  const Tensors actual = RunCase(i, test, inputs, {kRows, columns});

  for (size_t j = 0; j < actual.size(); ++j) {
    const at::ScalarType dtype = actual[j].scalar_type();
    const double tolerance = dtype == at::kDouble     ? 1e-14
                             : dtype == at::kBFloat16 ? 3e-3
                             : dtype == at::kHalf     ? 4e-4
                             : NeedsRows(program)     ? 1e-6
                                                      : 3e-7;
    // Infinities and NaN are the same; their differences are NaN.
    const at::Tensor number = actual[j].to(at::kDouble), truth = expected[j].to(at::kDouble);
    EXPECT_EQ(number.sizes(), truth.sizes()) << test.name << ", result " << j;
    EXPECT_TRUE(at::equal(number.isfinite(), truth.isfinite())) << test.name << ", " << j;
    EXPECT_LE(RelativeError(number.nan_to_num(), truth.nan_to_num()), tolerance)
        << test.name << ", result " << j << number << truth;
  }
}

TEST(Source, ComputesWhatAtenComputes) {
  at::manual_seed(1);
  const std::vector<Case> cases = Cases();
  ASSERT_EQ(cases.size(), kRuns.size());
  for (size_t i = 0; i < cases.size(); ++i) Compare(i, cases[i], 7);
}

// Threads take several turns, and some of a warp have none.
TEST(Source, ReducesRowsOfAnyLength) {
  at::manual_seed(2);
  const std::vector<Case> cases = Cases();
  int num_rows = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    if (!NeedsRows(cases[i].program)) continue;
    ++num_rows;
    for (const int64_t columns : {2, 33, 64, 150}) Compare(i, cases[i], columns);
  }
  EXPECT_EQ(num_rows, 25);
}

TEST(Source, ConvertsEveryNumberAsC10Does) {
  const std::vector<Case> cases = Cases();
  const at::Tensor bits = at::arange(-32768, 32768, at::kInt).to(at::kShort);
  at::manual_seed(2);
  const at::Tensor random = at::randint(INT32_MIN, INT32_MAX, {1 << 16}, at::kLong);
  int num_conversions = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    if (cases[i].name.find(" to ") == std::string::npos) continue;
    ++num_conversions;
    const at::ScalarType from = cases[i].signature.inputs[0].dtype;
    const at::ScalarType to = cases[i].signature.results[0];
    const at::Tensor halves = bits.view(at::kHalf).to(at::kFloat);
    // Random bits, all numbers of float16, and the numbers half way between them.
    const at::Tensor floats =
        at::cat({random.to(at::kInt).view(at::kFloat), halves, halves * (1 + 0x1p-11), halves + 1});
    const at::Tensor x =
        from == at::kFloat || from == at::kDouble ? floats.to(from) : bits.view(from);

    const at::Tensor actual = RunCase(i, cases[i], {x}, x.sizes())[0];

    EXPECT_TRUE(at::allclose(actual.to(at::kDouble), x.to(to).to(at::kDouble), 0, 0,
                             /*equal_nan=*/true))
        << cases[i].name;
  }
  EXPECT_EQ(num_conversions, 6);
}

}  // namespace
}  // namespace lockstep::kernels::pointwise::cuda
