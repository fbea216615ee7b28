// Tests that a cuda_library links with libtorch's CUDA runtime and runs.

#include "ATen/ops/arange.h"
#include "ATen/ops/equal.h"
#include "gtest/gtest.h"
#include "third_party/cuda/scale.h"

namespace lockstep {
namespace {

TEST(CudaLibrary, AKernelScalesATensorOfLibtorch) {
  const at::Tensor x = at::arange(1000, at::TensorOptions(at::kFloat).device(at::kCUDA));

  const int status = ScaleOnDevice(x.mutable_data_ptr<float>(), x.numel(), 2);

  ASSERT_EQ(status, 0);
  EXPECT_TRUE(at::equal(x.cpu(), at::arange(0, 2000, 2, at::kFloat)));
}

}  // namespace
}  // namespace lockstep
