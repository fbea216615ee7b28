// The sources of programs, run on the CPU by every thread of a small grid in turn, against ATen's
// operators in float64. g++ compiled them (generate.cc); compiler_test has NVRTC compile them.

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

constexpr int64_t kRows = 5, kColumns = 7;
const std::vector<double> kNumbers = {0.75, 2};

// Runs case i. The inputs lie as its signature says.
Tensors RunCase(size_t i, const Case& test, const Tensors& inputs, at::IntArrayRef shape) {
  std::vector<const at::Tensor*> pointers;
  for (const at::Tensor& input : inputs) pointers.push_back(&input);
  const Layout layout = LayoutOf(shape, pointers);
  std::vector<InputMemory> input_memory;
  for (size_t j = 0; j < inputs.size(); ++j) {
    const Access access = AccessOf(layout.sizes, layout.strides[j]);
    EXPECT_EQ(access, test.signature.inputs[j].access) << test.name;
    input_memory.push_back({inputs[j].const_data_ptr(), inputs[j].scalar_type(), access,
                            layout.sizes.data(), layout.strides[j].data(),
                            static_cast<int64_t>(layout.sizes.size())});
  }
  Tensors results;
  std::vector<ResultMemory> result_memory;
  for (const at::ScalarType dtype : test.signature.results) {
    results.push_back(at::zeros(shape, dtype));
    result_memory.push_back({results.back().mutable_data_ptr(), dtype});
  }
  const std::vector<int64_t> arguments =
      ArgumentsOf(test.signature, c10::multiply_integers(shape), layout.sizes, input_memory,
                  result_memory, kNumbers);
  gridDim = {3};
  blockDim = {4};
  for (blockIdx = {0}; blockIdx.x < gridDim.x; ++blockIdx.x)
    for (threadIdx = {0}; threadIdx.x < blockDim.x; ++threadIdx.x) kRuns[i](arguments.data());
  return results;
}

at::Tensor Input(const Signature::Input& input) {
  const at::Tensor x = at::rand({kRows, kColumns}, at::kDouble) + 0.05;
  if (input.dtype == at::kBool) return x.narrow(1, 0, 1) > 0.5;
  const at::Tensor rounded = x.to(input.dtype);
  if (input.access == Access::kStrided) return rounded.t().contiguous().t();
  return input.access == Access::kUniform ? rounded.narrow(0, 0, 1).narrow(1, 0, 1) : rounded;
}

TEST(Source, ComputesWhatAtenComputes) {
  at::manual_seed(1);
  const std::vector<Case> cases = Cases();
  ASSERT_EQ(cases.size(), kRuns.size());
  for (size_t i = 0; i < cases.size(); ++i) {
    Tensors inputs, wide;
    for (const Signature::Input& input : cases[i].signature.inputs) {
      inputs.push_back(Input(input));
      wide.push_back(inputs.back().to(at::kDouble));
    }
    Program program = cases[i].program;
    program.wide = true;
    for (at::ScalarType& dtype : program.dtypes)
      if (dtype != at::kBool) dtype = at::kDouble;
    const Tensors expected = Compose(program, wide, kNumbers, {kRows, kColumns});

    const Tensors actual = RunCase(i, cases[i], inputs, {kRows, kColumns});

    for (size_t j = 0; j < actual.size(); ++j) {
      const at::ScalarType dtype = actual[j].scalar_type();
      const double tolerance = dtype == at::kDouble     ? 1e-14
                               : dtype == at::kBFloat16 ? 3e-3
                               : dtype == at::kHalf     ? 4e-4
                                                        : 3e-7;
      // Infinities and NaN are the same; their differences are NaN.
      const at::Tensor number = actual[j].to(at::kDouble), truth = expected[j].to(at::kDouble);
      EXPECT_TRUE(at::equal(number.isfinite(), truth.isfinite())) << cases[i].name << ", " << j;
      EXPECT_LE(RelativeError(number.nan_to_num(), truth.nan_to_num()), tolerance)
          << cases[i].name << ", result " << j << number << truth;
    }
  }
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
