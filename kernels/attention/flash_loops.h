// Describes one call of attention to the loops of flash_cpu.cc. Private to flash.cc and these.

#ifndef LOCKSTEP_KERNELS_ATTENTION_FLASH_LOOPS_H_
#define LOCKSTEP_KERNELS_ATTENTION_FLASH_LOOPS_H_

#include <cstdint>

#include "c10/core/ScalarType.h"

namespace lockstep::kernels {

// Queries of a block, and keys of a block. Scores of 256 x 256 are 256 KiB in float32, and stay in
// the second cache.
constexpr int64_t kFlashBlock = 256;

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
  FlashTensor logsumexp;              // [batch, heads, queries]
  int64_t query_block = kFlashBlock;  // of forward: a divisor of kFlashBlock
  // For backward alone.
  FlashTensor dy = {}, dq = {}, dk = {}, dv = {};
};

inline int64_t QueryBlocks(const FlashProblem& p) {
  return (p.queries + p.query_block - 1) / p.query_block;
}

struct FlashLoops {
  // Returns the elements of memory that a thread needs.
  int64_t (*scratch)(const FlashProblem& problem, bool backward);
  // Computes y and logsumexp of some blocks of queries: batch * heads * QueryBlocks(problem).
  void (*forward)(const FlashProblem& problem, int64_t begin, int64_t end, void* scratch);
  // Computes dq, dk and dv of some heads: batch * heads.
  void (*backward)(const FlashProblem& problem, int64_t begin, int64_t end, void* scratch);
};

}  // namespace lockstep::kernels

#endif  // LOCKSTEP_KERNELS_ATTENTION_FLASH_LOOPS_H_
