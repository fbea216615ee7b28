// Describes one call of attention to the loops of flash_cpu.cc. Private to flash.cc and these.

#ifndef LOCKSTEP_KERNELS_ATTENTION_FLASH_LOOPS_H_
#define LOCKSTEP_KERNELS_ATTENTION_FLASH_LOOPS_H_

#include <algorithm>
#include <cstdint>

#include "c10/core/ScalarType.h"

namespace lockstep::kernels {

// [batch, heads, tokens, dim]; strides in numbers. dim is dense.
struct FlashTensor {
  void* data;
  int64_t batch_stride, head_stride, token_stride;
};

struct FlashProblem {
  at::ScalarType dtype;  // float32 or float64
  int64_t batch, heads, queries, keys, dim;
  bool causal;  // a query sees the keys up to its own number
  double scale;
  FlashTensor q, k, v, y;
  FlashTensor logsumexp;       // dim 1
  FlashTensor dy, dq, dk, dv;  // backward's
};

struct FlashLoops {
  // The numbers of memory that a thread needs.
  int64_t (*scratch)(const FlashProblem& problem, bool backward);
  // Computes y and logsumexp of some blocks of queries. There are batch * heads * query_blocks.
  void (*forward)(const FlashProblem& problem, int64_t begin, int64_t end, void* scratch);
  // Computes dq, dk and dv of some heads. There are batch * heads.
  void (*backward)(const FlashProblem& problem, int64_t begin, int64_t end, void* scratch);
};

// Queries, and keys, of a block.
constexpr int64_t kFlashBlock = 256;

inline int64_t FlashBlocks(int64_t tokens) { return (tokens + kFlashBlock - 1) / kFlashBlock; }

}  // namespace lockstep::kernels

#endif  // LOCKSTEP_KERNELS_ATTENTION_FLASH_LOOPS_H_
