// Divides the sequences of a packed row among threads, so that all threads work equally long.

#ifndef LOCKSTEP_KERNELS_ATTENTION_SHARES_H_
#define LOCKSTEP_KERNELS_ATTENTION_SHARES_H_

#include <cstdint>
#include <vector>

#include "c10/util/ArrayRef.h"

namespace lockstep::kernels {

struct Shares {
  std::vector<int64_t> alone;                  // sequences that need all threads, one after another
  std::vector<std::vector<int64_t>> together;  // the sequences of each thread
};

// Returns shares of nearly equal cost: the most expensive is at most 10 % above the mean. A
// sequence costs its length squared, and a constant. The longest ones are alone where needed. With
// one thread all are in one share.
Shares ShareOut(c10::IntArrayRef seq_lens, int64_t threads);

}  // namespace lockstep::kernels

#endif  // LOCKSTEP_KERNELS_ATTENTION_SHARES_H_
