// Chooses the kernel of libtorch that computes an attention on an NVIDIA GPU. backends.cc has the
// table. A run of ./gpu_check prints lines for it.
//
//    const AttentionUse use = {.capability = 90, .head_size = 64, .value_size = 64, .longest =
//    4096}; BackendFor(use);  // kCudnn
//
// The failures this prevents: a kernel that does not run on a GPU, that ignores a window in
// backward, or that builds a plan for each length. CanRun has libtorch's own conditions, and those
// that libtorch does not check. backends_test compares them with libtorch's. Thread-safe.

#ifndef LOCKSTEP_KERNELS_ATTENTION_BACKENDS_H_
#define LOCKSTEP_KERNELS_ATTENTION_BACKENDS_H_

#include <cstdint>
#include <string_view>

#include "c10/core/ScalarType.h"

namespace lockstep::kernels {

enum class Backend {
  kCudnn,      // aten::_scaled_dot_product_cudnn_attention, aten::_cudnn_attention_forward
  kFlash,      // FlashAttention-2: aten::_flash_attention_forward
  kEfficient,  // memory-efficient, of xFormers: aten::_scaled_dot_product_efficient_attention,
               // aten::_efficient_attention_forward
  kMath,       // none of them: products and softmax, or a call of ATen for each sequence
};

inline constexpr Backend kBackends[] = {Backend::kCudnn, Backend::kFlash, Backend::kEfficient,
                                        Backend::kMath};

// Returns "cudnn", "flash", "efficient" or "math".
std::string_view NameOf(Backend backend);

// Returns the backend of a name. Throws c10::ValueError for another name.
Backend BackendNamed(std::string_view name);

enum class Pass {
  // Whole sequences, forward and backward. A forward without gradients takes the same backend: a
  // checkpointed region computes once without and once with them, and must have the same bits.
  kTraining,
  kDecoding,  // one new token of each sequence, which sees a cache; no gradient
};

// One attention. The defaults are those of a row of one sequence.
struct AttentionUse {
  int capability = 0;  // 10 * major + minor
  at::ScalarType dtype = at::kBFloat16;
  int64_t head_size = 128;   // of queries and keys
  int64_t value_size = 128;  // of values
  Pass pass = Pass::kTraining;
  bool causal = true;          // false in decoding: the cache ends with the new token
  bool has_window = false;     // in decoding false: the cache is cut
  bool has_sinks = false;      // each head has a score that stands for no token
  bool has_mask = false;       // a tensor says which scores count
  bool deterministic = false;  // two runs must have the same bits
  int64_t num_sequences = 1;
  bool equal_lengths = true;  // a row that is cut into sequences of one length is a batch
  int64_t longest = 2048;     // tokens of the longest sequence, or columns of the cache
  int64_t tokens = 2048;      // of the row
  int64_t heads = 32;         // of queries
};

// Returns whether the backend computes this, with gradients in training.
bool CanRun(Backend backend, const AttentionUse& use);

// Returns the backend of the table's first line that fits and can run.
Backend BackendFor(const AttentionUse& use);

}  // namespace lockstep::kernels

#endif  // LOCKSTEP_KERNELS_ATTENTION_BACKENDS_H_
