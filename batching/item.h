// A sample as a plan sees it: how much of it is packed, and how short a copy may be. Of prepare.cc
// alone.

#ifndef LOCKSTEP_BATCHING_ITEM_H_
#define LOCKSTEP_BATCHING_ITEM_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "batching/prepare.h"

namespace lockstep::batching {

// How much of a sample is packed: its first tokens, and the first rows of each of its tensors.
struct Extent {
  int64_t tokens = 0;
  std::map<std::string, int64_t> rows;
};

struct Item {
  const TensorSample* sample = nullptr;
  int64_t index = 0;  // among the samples
  std::string kind;
  Extent kept;                   // within seq_len
  Extent least;                  // the shortest copy that still runs every module
  std::vector<int64_t> patches;  // of each image kept
};

// The sample's kind before the cut: its own, or what its tensors say.
std::string KindOf(const TensorSample& sample);

// Cuts one sample to seq_len; of one that begins with an image that does not fit, no token is kept.
// The item refers to `sample`. Throws c10::ValueError, which calls the sample `number`, for what
// prepare.h lists.
Item MakeItem(const TensorSample& sample, int64_t number, const PrepareOptions& options);

}  // namespace lockstep::batching

#endif  // LOCKSTEP_BATCHING_ITEM_H_
