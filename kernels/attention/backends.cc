#include "kernels/attention/backends.h"

#include <algorithm>
#include <limits>

#include "c10/util/Exception.h"

namespace lockstep::kernels {
namespace {

constexpr int64_t kAny = std::numeric_limits<int64_t>::max();

// Sequences are a dimension of a grid of blocks.
constexpr int64_t kMostSequences = 65535;

// The sequences that a line is for.
enum class Rows {
  kAll,
  // Sequences of one length, a multiple of 128, as in pre-training. cuDNN builds a plan for each
  // shape, so rows of changing lengths would wait for a plan in each step. For other lengths cuDNN
  // before 9.15.1 was wrong (PyTorch issue 169849).
  kBatch,
};

struct Line {
  int first, last;  // compute capabilities
  Pass pass;
  int64_t head_size;  // 0: any
  int64_t from, to;   // the longest sequence
  Rows rows;
  Backend backend;
  const char* source;
};

// --- The table. The first line that fits, and whose backend can run, decides. Lines that
// ./gpu_check prints ("for kTable") go to the top: they are for one capability and head size.
constexpr Line kTable[] = {
    // Decoding. A cache grows with each token, so cuDNN would build a plan for each. FlashAttention
    // splits the keys over multiprocessors where there are few queries; it takes no mask.
    {80, 121, Pass::kDecoding, 0, 1, kAny, Rows::kAll, Backend::kFlash,
     "FlashAttention's set_params_splitkv; measured by gpu_check at 2k, 8k, 32k: not yet"},
    {50, 121, Pass::kDecoding, 0, 1, kAny, Rows::kAll, Backend::kEfficient,
     "libtorch's order for a mask; measured by gpu_check at 2k, 8k, 32k: not yet"},
    // Whole sequences.
    {90, 109, Pass::kTraining, 0, 1, kAny, Rows::kBatch, Backend::kCudnn,
     "libtorch's order on 9.x and 10.x; measured by gpu_check at 2k, 8k, 32k: not yet"},
    {80, 121, Pass::kTraining, 0, 1, kAny, Rows::kAll, Backend::kFlash,
     "torch.nn.attention.varlen of 2.11, which leaves cuDNN off; measured by gpu_check: not yet"},
    {50, 121, Pass::kTraining, 0, 1, kAny, Rows::kAll, Backend::kEfficient,
     "libtorch's order; measured by gpu_check at 2k, 8k, 32k: not yet"},
};

bool Fits(const Line& line, const AttentionUse& use) {
  const bool is_batch = use.equal_lengths && use.longest % 128 == 0;
  return line.first <= use.capability && use.capability <= line.last && line.pass == use.pass &&
         (line.head_size == 0 || line.head_size == use.head_size) && line.from <= use.longest &&
         use.longest < line.to && (line.rows == Rows::kAll || is_batch);
}

bool IsHalf(at::ScalarType dtype) { return dtype == at::kHalf || dtype == at::kBFloat16; }

// --- Conditions. Sources: libtorch 2.11, ATen/native/transformers/cuda/sdp_utils.cpp, attention.cu
// and attention_backward.cu; ATen/native/cudnn/MHA.cpp; flash-attention's flash_api.cpp.

bool CanRunCudnn(const AttentionUse& use) {
  if (use.capability < 80 || use.capability > 121 || !IsHalf(use.dtype)) return false;
  if (use.has_window || use.has_sinks) return false;  // libtorch does not pass them on
  if (use.deterministic) return false;
  if (use.longest == 1) return false;
  if (use.head_size % 8 != 0 || use.value_size % 8 != 0) return false;
  // Heads of 192 with values of 128 are those of DeepSeek-V3. libtorch 2.11 allows others of up to
  // 256 on 9.0; later versions took most of them back.
  const bool is_latent = use.head_size == 192 && use.value_size == 128 &&
                         (use.capability == 90 || use.capability / 10 == 10);
  if ((use.head_size > 128 || use.value_size > 128) && !is_latent) return false;
  if (use.equal_lengths) {
    return use.num_sequences <= kMostSequences && use.heads <= kMostSequences;
  }
  // Cumulative lengths. libtorch asks for 9.x or 10.x. Offsets of numbers are int32. Sequences of
  // up to 128 tokens only were wrong (check_cudnn_query_seq_len_nested of later versions).
  const int64_t largest = use.tokens * use.heads * std::max(use.head_size, use.value_size);
  return (use.capability / 10 == 9 || use.capability / 10 == 10) && !use.has_mask &&
         use.pass != Pass::kDecoding && use.longest > 128 &&
         largest <= std::numeric_limits<int32_t>::max();
}

bool CanRunFlash(const AttentionUse& use) {
  if (use.capability < 80 || use.capability > 121 || !IsHalf(use.dtype)) return false;
  if (use.has_mask || use.head_size != use.value_size) return false;
  if (use.num_sequences > kMostSequences) return false;
  if (use.head_size % 8 != 0 || use.head_size > 256) return false;
  if (use.has_sinks && use.pass == Pass::kDecoding) return false;
  // These have less shared memory than backward needs.
  const bool is_small = (use.capability >= 86 && use.capability <= 89) || use.capability >= 120;
  const bool is_large_head = use.head_size > 192 && use.head_size <= 224;
  return !(is_small && is_large_head && use.pass == Pass::kTraining);
}

bool CanRunEfficient(const AttentionUse& use) {
  if (use.capability < 50 || use.capability > 121) return false;
  const bool has_dtype =
      use.dtype == at::kHalf || use.dtype == at::kFloat ||
      (use.dtype == at::kBFloat16 && use.capability >= 80);  // not made for older GPUs
  if (!has_dtype || use.has_sinks) return false;
  // Autograd's node does not pass a window to backward, whose gradients would be those without one
  // (EfficientAttentionBackward0 has no window_size).
  if (use.has_window) return false;
  // A mask is for a batch.
  if (use.has_mask && !use.equal_lengths) return false;
  int64_t alignment = use.capability >= 80 ? 4 : 1;
  if (IsHalf(use.dtype) && use.capability >= 70) alignment = 8;
  return use.head_size % alignment == 0 && use.value_size % alignment == 0;
}

}  // namespace

std::string_view NameOf(Backend backend) {
  switch (backend) {
    case Backend::kCudnn: return "cudnn";
    case Backend::kFlash: return "flash";
    case Backend::kEfficient: return "efficient";
    case Backend::kMath: return "math";
  }
  return "";
}

Backend BackendNamed(std::string_view name) {
  for (const Backend backend : kBackends)
    if (NameOf(backend) == name) return backend;
  C10_THROW_ERROR(ValueError, c10::str("attention: expected the backend cudnn, flash, efficient "
                                       "or math, got \"",
                                       name, "\""));
}

bool CanRun(Backend backend, const AttentionUse& use) {
  switch (backend) {
    case Backend::kCudnn: return CanRunCudnn(use);
    case Backend::kFlash: return CanRunFlash(use);
    case Backend::kEfficient: return CanRunEfficient(use);
    case Backend::kMath: return true;
  }
  return false;
}

Backend BackendFor(const AttentionUse& use) {
  for (const Line& line : kTable)
    if (Fits(line, use) && CanRun(line.backend, use)) return line.backend;
  return Backend::kMath;
}

}  // namespace lockstep::kernels
