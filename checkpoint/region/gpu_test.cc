// Tests that need a GPU: copies run parallel to computation, in the right order.

#include <memory>
#include <type_traits>

#include "ATen/ops/dropout.h"
#include "ATen/ops/equal.h"
#include "ATen/ops/matmul.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/tanh.h"
#include "c10/cuda/CUDAGuard.h"
#include "c10/cuda/CUDAStream.h"
#include "checkpoint/offload/host_offload.h"
#include "checkpoint/region/checkpoint.h"
#include "checkpoint/testing/fixture.h"
#include "cuda_runtime_api.h"
#include "gtest/gtest.h"

namespace lockstep::checkpoint {
namespace {

// The types that pinned_memory.cc looks up by name match CUDA's declarations.
static_assert(
    std::is_same_v<decltype(&cudaHostRegister), cudaError_t (*)(void*, size_t, unsigned int)>);
static_assert(std::is_same_v<decltype(&cudaHostUnregister), cudaError_t (*)(void*)>);
static_assert(sizeof(cudaError_t) == sizeof(int) && cudaSuccess == 0 &&
              cudaHostRegisterPortable == 1);

constexpr int64_t kSize = 1024;

// Regions whose kernels take long, so that a copy in the wrong order meets them half done.
at::Tensor Forward(const Checkpoint& checkpoint, const at::Tensor& weight, const at::Tensor& x) {
  at::Tensor h = x + 0;
  for (int layer = 0; layer < 8; ++layer) {
    h = Call(
        checkpoint,
        [&](const at::Tensor& in) {
          at::Tensor y = in;
          for (int i = 0; i < 8; ++i) y = at::tanh(y.matmul(weight));
          return y;
        },
        h);
  }
  return h;
}

struct Model {
  at::Tensor weight = (Random({kSize, kSize}, false) * 0.03).cuda().set_requires_grad(true);
  at::Tensor x = Random({kSize, kSize}, false).cuda().set_requires_grad(true);
  std::shared_ptr<HostOffload> offload = HostOffload::New({});
};

TEST(Gpu, OffloadGivesTheSameBitsOverManySteps) {
  const Model s;
  const Tensors expected = GradientsOf(Forward(Checkpoint(), s.weight, s.x), {s.weight, s.x});
  const Checkpoint checkpoint({.offload = s.offload});

  for (int step = 0; step < 20; ++step)
    EXPECT_TRUE(
        SameBits(GradientsOf(Forward(checkpoint, s.weight, s.x), {s.weight, s.x}), expected))
        << step;

  EXPECT_EQ(s.offload->stats().restored_bytes, 20 * 7 * kSize * kSize * 8);
  EXPECT_LE(static_cast<double>(s.offload->stats().peak_host_bytes),
            1.02 * 2 * 8 * kSize * kSize * 8);
}

TEST(Gpu, OffloadGivesTheSameBitsOnAnotherStream) {
  const Model s;
  const Tensors expected = GradientsOf(Forward(Checkpoint(), s.weight, s.x), {s.weight, s.x});
  cudaDeviceSynchronize();
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
  const Checkpoint checkpoint({.offload = s.offload});

  for (int step = 0; step < 5; ++step)
    EXPECT_TRUE(
        SameBits(GradientsOf(Forward(checkpoint, s.weight, s.x), {s.weight, s.x}), expected));
}

TEST(Gpu, DropoutDrawsTheSameMasks) {
  const at::Tensor x = at::ones({kSize}, at::TensorOptions(at::kCUDA)).set_requires_grad(true);
  const at::Tensor y = Call(
      Checkpoint(), [](const at::Tensor& in) { return at::dropout(in * in, 0.5, true); }, x);
  const at::Tensor mask = y.detach() != 0;

  EXPECT_TRUE(at::equal(GradientsOf(y, {x})[0] != 0, mask));
}

}  // namespace
}  // namespace lockstep::checkpoint
