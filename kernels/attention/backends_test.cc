// Compares CanRun with the conditions of libtorch itself: its functions run here without a GPU.
// They ask two functions for the device, which this program has in their place. Tensors have shapes
// and a device, and no memory.

#include "kernels/attention/backends.h"

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ATen/Context.h"
#include "ATen/core/grad_mode.h"
#include "ATen/cuda/CUDAContext.h"
#include "ATen/native/transformers/cuda/sdp_utils.h"
#include "c10/core/TensorImpl.h"
#include "c10/cuda/CUDAFunctions.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/message_of.h"
#include "torch/headeronly/version.h"

namespace {
cudaDeviceProp gpu = {};
}  // namespace

namespace at::cuda {
cudaDeviceProp* getCurrentDeviceProperties() { return &gpu; }
}  // namespace at::cuda
namespace c10::cuda {
DeviceIndex device_count() noexcept { return 1; }
DeviceIndex current_device() { return 0; }
}  // namespace c10::cuda

namespace lockstep::kernels {
namespace {

constexpr bool kIsLibtorch211 = TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR == 11;
constexpr int kCapabilities[] = {75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121};
// Heads of models of this library: of queries and keys, of values.
constexpr std::pair<int64_t, int64_t> kHeads[] = {
    {64, 64},    // Llama 3.2 1B, Qwen2 0.5B, gpt-oss, SmolLM
    {72, 72},    // pictures of Gemma 3 and Qwen3-VL
    {80, 80},    // pictures of Qwen2.5-VL
    {96, 96},    // Phi-3
    {128, 128},  // Llama, Qwen3, Mistral, Olmo
    {192, 192},  // DeepSeek-V3 with values that are filled up
    {192, 128},  // DeepSeek-V3
    {256, 256},  // Gemma 3, Qwen3-Next
};

at::Tensor OnGpu(at::IntArrayRef sizes, at::ScalarType dtype, bool requires_grad) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::DispatchKeySet({c10::DispatchKey::CUDA, c10::DispatchKey::AutogradCUDA}),
      c10::scalarTypeToTypeMeta(dtype), at::Device(at::kCUDA, 0));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  if (requires_grad) tensor.set_requires_grad(true);
  return tensor;
}

// The arguments of at::scaled_dot_product_attention for a batch.
sdp::sdp_params ParametersOf(const AttentionUse& use) {
  const bool is_decoding = use.pass == Pass::kDecoding, training = use.pass == Pass::kTraining;
  const int64_t batch = use.num_sequences, queries = is_decoding ? 1 : use.longest;
  const auto tensor = [&](int64_t tokens, int64_t dim) {
    return OnGpu({batch, use.heads, tokens, dim}, use.dtype, training);
  };
  std::optional<at::Tensor> mask;
  if (use.has_mask) mask = OnGpu({batch, 1, queries, use.longest}, use.dtype, false);
  return {.query = tensor(queries, use.head_size),
          .key = tensor(use.longest, use.head_size),
          .value = tensor(use.longest, use.value_size),
          .attn_mask = mask,
          .dropout = 0,
          .is_causal = use.causal && !use.has_mask,
          .enable_gqa = false};
}

bool LibtorchCanRun(Backend backend, const AttentionUse& use) {
  gpu.major = use.capability / 10;
  gpu.minor = use.capability % 10;
  at::globalContext().setDeterministicAlgorithms(use.deterministic, /*warn_only=*/false);
  const sdp::sdp_params parameters = ParametersOf(use);
  switch (backend) {
    case Backend::kCudnn: return sdp::can_use_cudnn_attention(parameters, false);
    case Backend::kFlash: return sdp::can_use_flash_attention(parameters, false);
    case Backend::kEfficient: return sdp::can_use_mem_efficient_attention(parameters, false);
    case Backend::kMath: return true;
  }
  return false;
}

std::string Described(const AttentionUse& use) {
  return c10::str("capability ", use.capability, ", ", use.dtype, ", heads of ", use.head_size,
                  " and ", use.value_size, ", pass ", static_cast<int>(use.pass), ", causal ",
                  use.causal, ", mask ", use.has_mask, ", ", use.num_sequences, " x ", use.longest,
                  ", deterministic ", use.deterministic);
}

class Random {
 public:
  template <typename T>
  T Of(const std::vector<T>& values) {
    return values[std::uniform_int_distribution<size_t>(0, values.size() - 1)(engine_)];
  }
  bool Flag(double probability = 0.5) { return std::bernoulli_distribution(probability)(engine_); }
  int64_t To(int64_t most) { return std::uniform_int_distribution<int64_t>(1, most)(engine_); }

 private:
  std::mt19937_64 engine_{20261129};
};

AttentionUse RandomUse(Random& random) {
  AttentionUse use;
  use.capability = random.Of(std::vector<int>(std::begin(kCapabilities), std::end(kCapabilities)));
  use.dtype = random.Of<at::ScalarType>({at::kHalf, at::kBFloat16, at::kFloat, at::kDouble});
  const std::vector<std::pair<int64_t, int64_t>> heads(std::begin(kHeads), std::end(kHeads));
  std::tie(use.head_size, use.value_size) = random.Of(heads);
  if (random.Flag(0.3)) use.head_size = use.value_size = random.To(300);
  if (random.Flag(0.3)) use.head_size = use.value_size = 8 * random.To(40);
  use.pass = random.Of<Pass>({Pass::kTraining, Pass::kDecoding});
  use.causal = use.pass != Pass::kDecoding && random.Flag();
  use.has_mask = random.Flag(0.2);
  use.deterministic = random.Flag(0.2);
  use.num_sequences = random.Flag(0.1) ? 65530 + random.To(10) : random.To(8);
  use.longest = random.Flag(0.1) ? random.To(3) : random.To(40000);
  if (random.Flag(0.3)) use.longest = 128 * random.To(256);
  use.tokens = use.num_sequences * use.longest;
  use.heads = random.To(64);
  return use;
}

TEST(Backends, HeaderExample) {
  const AttentionUse use = {.capability = 90, .head_size = 64, .value_size = 64, .longest = 4096};

  EXPECT_EQ(BackendFor(use), Backend::kCudnn);
}

TEST(Backends, CanRunWhatLibtorchCanRun) {
  Random random;
  std::set<std::tuple<Backend, bool>> seen;
  for (int i = 0; i < 20000; ++i) {
    const AttentionUse use = RandomUse(random);
    for (const Backend backend : kBackends) {
      bool expected = LibtorchCanRun(backend, use);
      // at::scaled_dot_product_attention fills such heads up; the operator below it refuses them.
      if (backend == Backend::kFlash && use.head_size % 8 != 0) expected = false;
      // libtorch 2.11 allows more batches, and on 9.0 heads of up to 256. Later versions do not.
      const bool is_latent = use.head_size == 192 && use.value_size == 128;
      const bool is_large = std::max(use.head_size, use.value_size) > 128 && !is_latent;
      if (backend == Backend::kCudnn && is_large) expected = false;
      const bool has_limit = backend == Backend::kCudnn || backend == Backend::kFlash;
      if (has_limit && use.num_sequences > 65535) expected = false;

      // Other versions of libtorch may allow more.
      if (!kIsLibtorch211 && expected && !CanRun(backend, use)) continue;
      ASSERT_EQ(CanRun(backend, use), expected) << NameOf(backend) << ": " << Described(use);
      seen.emplace(backend, expected);
    }
  }
  EXPECT_EQ(seen.size(), 2 * std::size(kBackends) - 1);  // math can always run
}

TEST(Backends, TheTableChoosesWhatLibtorchCanRun) {
  Random random;
  for (int i = 0; i < 20000; ++i) {
    const AttentionUse use = RandomUse(random);

    const Backend chosen = BackendFor(use);

    ASSERT_TRUE(LibtorchCanRun(chosen, use)) << NameOf(chosen) << ": " << Described(use);
  }
}

// libtorch's functions know no windows, sinks or cumulative lengths.
TEST(Backends, CannotRunWhatALibtorchKernelWouldIgnore) {
  const AttentionUse plain = {.capability = 90, .head_size = 64, .value_size = 64};
  const auto with = [&](const auto& change) {
    AttentionUse use = plain;
    change(use);
    std::string names;
    for (const Backend backend : kBackends)
      if (CanRun(backend, use))
        names += std::string(names.empty() ? "" : " ").append(NameOf(backend));
    return names;
  };

  EXPECT_EQ(with([](AttentionUse&) {}), "cudnn flash efficient math");
  EXPECT_EQ(with([](AttentionUse& use) { use.has_window = true; }), "flash math");
  EXPECT_EQ(with([](AttentionUse& use) { use.has_sinks = true; }), "flash math");
  const auto packed = [](AttentionUse& use) {
    use.num_sequences = 3, use.equal_lengths = false, use.longest = 129, use.tokens = 300;
  };
  EXPECT_EQ(with(packed), "cudnn flash efficient math");
  const auto packed_and = [&](const auto& change) {
    return with([&](AttentionUse& use) { packed(use), change(use); });
  };
  EXPECT_EQ(packed_and([](AttentionUse& use) { use.longest = 128; }), "flash efficient math");
  EXPECT_EQ(packed_and([](AttentionUse& use) { use.has_mask = true; }), "math");
  EXPECT_EQ(packed_and([](AttentionUse& use) { use.capability = 89; }), "flash efficient math");
  EXPECT_EQ(packed_and([](AttentionUse& use) { use.capability = 120; }), "flash efficient math");
  // 2^31 numbers of queries.
  EXPECT_EQ(packed_and([](AttentionUse& use) { use.tokens = 1 << 20; }), "flash efficient math");
}

// --- The choice for each family and GPU, as the table has it before any measurement.

TEST(Backends, TrainingOfEachFamilyHasAKernelOnEachGpu) {
  for (const int capability : kCapabilities)
    for (const auto& [head_size, value_size] : kHeads)
      for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16})
        for (const bool is_packed : {false, true})
          for (const bool has_window : {false, true}) {
            const AttentionUse use = {.capability = capability,
                                      .dtype = dtype,
                                      .head_size = head_size,
                                      .value_size = value_size,
                                      .pass = Pass::kTraining,
                                      .has_window = has_window,
                                      .num_sequences = is_packed ? 5 : 1,
                                      .equal_lengths = !is_packed,
                                      .longest = 8192,
                                      .tokens = 8192};
            const bool is_hopper = capability >= 90 && capability < 110;
            const bool is_latent = head_size != value_size, is_old = capability < 80;
            Backend expected = Backend::kFlash;
            if (is_latent) expected = Backend::kEfficient;
            if (is_old && dtype == at::kHalf) expected = Backend::kEfficient;
            if (is_old && dtype == at::kBFloat16) expected = Backend::kMath;
            if (has_window && expected == Backend::kEfficient) expected = Backend::kMath;
            const bool is_for_cudnn =
                head_size <= 128 || (is_latent && (capability == 90 || capability / 10 == 10));
            if (is_hopper && is_for_cudnn && !is_packed && !has_window) expected = Backend::kCudnn;

            EXPECT_EQ(NameOf(BackendFor(use)), NameOf(expected))
                << Described(use) << ", packed " << is_packed << ", window " << has_window;
          }
}

TEST(Backends, SinksAndWindowsOfGptOssAreFlashAttention) {
  for (const int capability : kCapabilities) {
    const AttentionUse use = {.capability = capability,
                              .head_size = 64,
                              .value_size = 64,
                              .pass = Pass::kTraining,
                              .has_window = true,
                              .has_sinks = true};

    EXPECT_EQ(BackendFor(use), capability < 80 ? Backend::kMath : Backend::kFlash) << capability;
  }
}

// A plan of cuDNN for each length of a cache would take longer than the token.
TEST(Backends, DecodingNeverCallsCudnn) {
  for (const int capability : kCapabilities)
    for (const auto& [head_size, value_size] : kHeads)
      for (const bool has_mask : {false, true}) {
        const AttentionUse use = {.capability = capability,
                                  .dtype = capability < 80 ? at::kHalf : at::kBFloat16,
                                  .head_size = head_size,
                                  .value_size = value_size,
                                  .pass = Pass::kDecoding,
                                  .causal = false,
                                  .has_mask = has_mask,
                                  .num_sequences = 4,
                                  .longest = 1024};
        const bool is_flash = capability >= 80 && !has_mask && head_size == value_size;

        EXPECT_EQ(BackendFor(use), is_flash ? Backend::kFlash : Backend::kEfficient)
            << Described(use);
      }
}

TEST(Backends, RowsOfOtherLengthsLeaveCudnn) {
  AttentionUse use = {.capability = 90, .pass = Pass::kTraining};
  for (const int64_t length : {1000, 1024, 8192, 8191}) {
    use.longest = use.tokens = length;
    EXPECT_EQ(BackendFor(use), length % 128 == 0 ? Backend::kCudnn : Backend::kFlash) << length;
  }
}

TEST(Backends, NamesAreRead) {
  for (const Backend backend : kBackends) EXPECT_EQ(BackendNamed(NameOf(backend)), backend);
  EXPECT_THAT(
      tests::MessageOf([] { BackendNamed("flesh"); }),
      testing::HasSubstr("expected the backend cudnn, flash, efficient or math, got \"flesh\""));
}

}  // namespace
}  // namespace lockstep::kernels
