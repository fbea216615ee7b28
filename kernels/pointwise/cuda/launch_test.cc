// Launches without a GPU: a library stands for CUDA's driver, and what it would launch runs on the
// CPU. Tensors say that they are on a GPU, and lie in the CPU's memory.

#include "kernels/pointwise/cuda/launch.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "c10/core/impl/DeviceGuardImplInterface.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/pointwise/cuda/cases.h"
#include "kernels/pointwise/cuda/device_words.h"
#include "kernels/pointwise/cuda/fake_driver.h"
#include "kernels/pointwise/pointwise.h"
#include "tests/support/message_of.h"
#include "tests/support/relative_error.h"

namespace lockstep::kernels::pointwise::cuda {
namespace {

using ::testing::HasSubstr;
using tests::RelativeError;
using Tensors = std::vector<at::Tensor>;

// Devices whose current stream has the handle 0x57.
struct Devices final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return at::kCUDA; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {at::kCUDA, current}; }
  void setDevice(c10::Device device) const override { current = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { setDevice(device); }
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 2; }
  void* getStreamNativeHandle(const c10::Stream /*stream*/) const override {
    return reinterpret_cast<void*>(0x57);
  }

  static inline c10::DeviceIndex current = 0;
};

FakeDriver& Driver() {
  void* const library = dlopen("libcuda.so.1", RTLD_LAZY);
  return *static_cast<FakeDriver*>(dlsym(library, "fake_driver"));
}

size_t the_case = 0;
unsigned num_blocks = 0, num_threads = 0;
void* used_stream = nullptr;

void RunTheCase(unsigned blocks, unsigned threads, void* stream, const void* arguments) {
  gridDim = {num_blocks = blocks};
  blockDim = {num_threads = threads};
  used_stream = stream;
  for (blockIdx = {0}; blockIdx.x < blocks; ++blockIdx.x)
    for (threadIdx = {0}; threadIdx.x < threads; ++threadIdx.x) kRuns[the_case](arguments);
}

Case CaseOf(const std::string& name) {
  const std::vector<Case> cases = Cases();
  for (the_case = 0; cases[the_case].name != name; ++the_case) continue;
  return cases[the_case];
}

at::Tensor OnGpu(const at::Tensor& x, c10::DeviceIndex index) {
  const c10::Device device(at::kCUDA, index);
  return at::for_blob(x.data_ptr(), x.sizes())
      .strides(x.strides())
      .target_device(device)
      .options(x.options().device(device))
      .make_tensor();
}

// Returns the results of a chain of {rows, 1000}, a row that is broadcast, and a column of
// booleans.
Tensors LaunchChain(int64_t number, int64_t rows, c10::DeviceIndex device, Tensors* expected) {
  const Case test = CaseOf("chain in Float");
  const Tensors inputs = {at::randn({rows, 1000}), at::randn({1000}), at::rand({rows, 1}) > 0.5};
  const std::vector<double> numbers = {0.75, 2};
  const Tensors results = {at::zeros({rows, 1000}), at::zeros({rows, 1000}, at::kBool)};
  *expected = Compose(test.program, inputs, numbers, {rows, 1000});
  Tensors gpu_inputs, gpu_results;
  for (const at::Tensor& x : inputs) gpu_inputs.push_back(OnGpu(x, device));
  for (const at::Tensor& x : results) gpu_results.push_back(OnGpu(x, device));
  Launch(number, test.program, gpu_inputs, numbers, {rows, 1000}, gpu_results);
  return results;
}

class LaunchTest : public ::testing::Test {
 protected:
  LaunchTest() {
    static const Devices devices;
    c10::impl::device_guard_impl_registry[static_cast<size_t>(at::kCUDA)].store(&devices);
    setenv("LOCKSTEP_CACHE", std::getenv("TEST_TMPDIR"), 1);
    Driver() = FakeDriver();
    Driver().run = RunTheCase;
    at::manual_seed(1);
  }

  Tensors expected_;
};

TEST_F(LaunchTest, ResultsAreThoseOfAten) {
  ASSERT_TRUE(CanLaunch({at::kCUDA, 0}));
  for (const int64_t rows : {2, 3, 40}) {
    const Tensors actual = LaunchChain(1, rows, 0, &expected_);

    EXPECT_LE(RelativeError(actual[0], expected_[0]), 3e-7);
    EXPECT_TRUE(at::equal(actual[1], expected_[1]));
    EXPECT_EQ(Driver().kernel, kKernelName);
    EXPECT_EQ(num_blocks, (rows * 1000 + 255) / 256);
    EXPECT_EQ(num_threads, 256U);
    EXPECT_EQ(used_stream, reinterpret_cast<void*>(0x57));
  }
}

TEST_F(LaunchTest, AKernelIsLoadedOnceForADevice) {
  for (int i = 0; i < 3; ++i) LaunchChain(2, 2 + i, 0, &expected_);
  EXPECT_EQ(Driver().num_modules, 1);

  LaunchChain(2, 2, 1, &expected_);
  EXPECT_EQ(Driver().num_modules, 2);
  EXPECT_EQ(Devices::current, 0);

  LaunchChain(3, 2, 0, &expected_);
  EXPECT_EQ(Driver().num_modules, 3);
}

TEST_F(LaunchTest, AThreadWithoutAContextGetsOne) {
  LaunchChain(4, 2, 0, &expected_);
  EXPECT_EQ(Driver().num_contexts, 1);

  LaunchChain(4, 2, 0, &expected_);
  EXPECT_EQ(Driver().num_contexts, 1);
}

TEST_F(LaunchTest, AFailureIsAnError) {
  Driver().launch_status = 719;

  EXPECT_THAT(tests::MessageOf([&] { LaunchChain(5, 2, 0, &expected_); }),
              HasSubstr("CUDA's driver returned 719 from cuLaunchKernel"));
}

TEST_F(LaunchTest, AGpuThatLoadsNoKernelIsWarnedOfOnce) {
  Driver().load_status = 209;
  ::testing::internal::CaptureStderr();

  EXPECT_FALSE(CanLaunch({at::kCUDA, 1}));
  Driver().load_status = 0;
  EXPECT_FALSE(CanLaunch({at::kCUDA, 1}));

  const std::string warning = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(warning, HasSubstr("lockstep.fuse has no kernels on cuda:1"));
  EXPECT_THAT(warning, HasSubstr("CUDA's driver returned 209 from cuModuleLoadData"));
}

TEST_F(LaunchTest, NothingIsLaunchedForNoElements) {
  LaunchChain(6, 0, 0, &expected_);

  EXPECT_EQ(Driver().num_modules, 0);
}

}  // namespace
}  // namespace lockstep::kernels::pointwise::cuda
