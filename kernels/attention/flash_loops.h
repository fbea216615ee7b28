// Describes one call of attention to the loops of flash_cpu.cc. Private to flash.cc and these.

#ifndef LOCKSTEP_KERNELS_ATTENTION_FLASH_LOOPS_H_
#define LOCKSTEP_KERNELS_ATTENTION_FLASH_LOOPS_H_

#include <cstdint>

#include "c10/core/ScalarType.h"

namespace lockstep::kernels {

// [batch, heads, tokens, dim]; strides in elements. dim is dense.
struct FlashTensor {
  void* data;
  int64_t batch_stride, head_stride, token_stride;
};

struct FlashProblem {
  at::ScalarType dtype;  // float32 or float64
  int64_t batch, heads, queries, keys, dim;
  bool causal;  // query i sees keys 0 to i
  double scale;
  FlashTensor q, k, v, y;
  FlashTensor logsumexp;  // [batch, heads, queries]
  // For backward alone.
  FlashTensor dy = {}, dq = {}, dk = {}, dv = {};
};

struct FlashLoops {
  // Returns the elements of memory that a thread needs.
  int64_t (*scratch)(const FlashProblem& problem, bool backward);
  // Computes y and logsumexp of some blocks of queries: batch * heads * FlashBlocks(queries).
  void (*forward)(const FlashProblem& problem, int64_t begin, int64_t end, void* scratch);
  // Computes dq, dk and dv of some heads: batch * heads.
  void (*backward)(const FlashProblem& problem, int64_t begin, int64_t end, void* scratch);
};

// Queries of a block, and keys of a block. Scores of 256 x 256 are 256 KiB in float32, and stay in
// the second cache.
constexpr int64_t kFlashBlock = 256;

inline int64_t FlashBlocks(int64_t tokens) { return (tokens + kFlashBlock - 1) / kFlashBlock; }

}  // namespace lockstep::kernels

#endif  // LOCKSTEP_KERNELS_ATTENTION_FLASH_LOOPS_H_
