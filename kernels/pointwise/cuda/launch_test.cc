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

FakeDriver& Driver() {
  void* const library = dlopen("libcuda.so.1", RTLD_LAZY);
  return *static_cast<FakeDriver*>(dlsym(library, "fake_driver"));
}

// Devices whose current stream has the handle 0x57.
struct Devices final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return at::kCUDA; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    if (device != before) setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {at::kCUDA, current}; }
  // As cudaSetDevice, makes the device's context current.
  void setDevice(c10::Device device) const override {
    current = device.index();
    Driver().context = &Driver().contexts[current];
  }
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

size_t the_case = 0;
unsigned num_blocks = 0, num_threads = 0;
void* used_stream = nullptr;

void RunTheCase(unsigned blocks, unsigned threads, void* stream, const void* arguments) {
  num_blocks = blocks;
  num_threads = threads;
  used_stream = stream;
  RunGrid(kRuns[the_case], blocks, threads, arguments);
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

// Rows of few elements have a warp, longer ones more threads.
TEST_F(LaunchTest, ABlockComputesARow) {
  const Case test = CaseOf("norm in Float, access 0");
  const std::vector<std::pair<int64_t, unsigned>> cases = {
      {2, 32}, {128, 32}, {129, 64}, {3000, 512}};
  int64_t number = 10;
  for (const auto& [length, threads] : cases) {
    const at::Tensor x = at::randn({length, 6}).t(), shift = at::randn({6, 1});
    const std::vector<at::Tensor> results = {at::zeros({6, length}), at::zeros({6, 1})};
    const Tensors expected = Compose(test.program, {x, shift}, {}, {6, length});

    Launch(number++, test.program, {OnGpu(x, 0), OnGpu(shift, 0)}, {}, {6, length},
           {OnGpu(results[0], 0), OnGpu(results[1], 0)});

    EXPECT_LE(RelativeError(results[0], expected[0]), 1e-6) << length;
    EXPECT_LE(RelativeError(results[1], expected[1]), 3e-7) << length;
    EXPECT_EQ(num_blocks, 6);
    EXPECT_EQ(num_threads, threads) << length;
  }
}

TEST_F(LaunchTest, RowsWithoutElementsHaveResults) {
  const Case test = CaseOf("sums");
  const auto launch = [&](int64_t rows, int64_t length) {
    const std::vector<at::Tensor> results = {at::ones({rows, 1}), at::ones({rows, 1})};
    Launch(20, test.program, {OnGpu(at::zeros({length, rows}).t(), 0)}, {}, {rows, length},
           {OnGpu(results[0], 0), OnGpu(results[1], 0)});
    return results;
  };

  const Tensors results = launch(4, 0);

  EXPECT_EQ(num_blocks, 4);
  EXPECT_TRUE(at::equal(results[0], at::zeros({4, 1})));
  EXPECT_TRUE(results[1].isnan().all().item<bool>());

  num_blocks = 0;
  launch(0, 5);
  EXPECT_EQ(num_blocks, 0);
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

TEST_F(LaunchTest, AContextOfAnotherDeviceIsAnError) {
  Driver().context = &Driver().contexts[1];

  EXPECT_THAT(tests::MessageOf([&] { LaunchChain(7, 2, 0, &expected_); }),
              HasSubstr("context is of device 11, expected device 10 (cuda:0)"));
  EXPECT_EQ(Driver().num_modules, 0);
}

// 48 inputs with the 12 strides of each: 8 bytes for each stride and each pointer.
TEST_F(LaunchTest, TooManyArgumentsAreAnErrorWithTheirSize) {
  Builder builder;
  Value sum = builder.Input(0);
  for (int32_t i = 1; i < 48; ++i) sum = sum + builder.Input(i);
  std::vector<int32_t> order;
  const Program program = builder.Finish({sum}, {at::kFloat}, /*wide=*/false, &order);
  const std::vector<int64_t> shape(12, 2);
  const at::Tensor x = at::zeros(shape).transpose(0, 11).transpose(2, 9).transpose(4, 7);
  const at::Tensor result = at::zeros(shape);

  const std::string message = tests::MessageOf(
      [&] { Launch(30, program, Tensors(48, OnGpu(x, 0)), {}, shape, {OnGpu(result, 0)}); });

  EXPECT_THAT(message, HasSubstr("takes at most 4096 bytes of arguments; this call has "));
  EXPECT_THAT(message, HasSubstr(", for 48 tensors of up to 12 dimensions"));
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
