// The sizes of a sample, without its values: all that a plan needs to know of it.
//
//    // Include batching/prepare.h, too. Once, for example in a pass over the data:
//    std::vector<Outline> index;
//    for (size_t i = 0; i < samples.size(); ++i) index.push_back(Describe(samples[i], i, options));
//
//    Prepared prepared = PrepareFromIndex(index, load, options);   // later, on every rank
//
// The failure this prevents: every rank loads and tokenizes all samples of a step, only to train on
// its own share of them. With an index each rank plans alone, and loads its own samples.
//
// When to use it: if reading or tokenizing a sample is expensive, and its sizes are known before.
// Make the index in one pass over the data, or store the sizes next to the data.
//
// Outlines are plain data. Thread-safe: pure functions.

#ifndef LOCKSTEP_BATCHING_OUTLINE_H_
#define LOCKSTEP_BATCHING_OUTLINE_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "batching/truncate.h"
#include "c10/core/Device.h"
#include "c10/core/ScalarType.h"

namespace lockstep::batching {

struct TensorSample;
struct PrepareOptions;

// A stream, or a tensor that is concatenated on dimension 0.
struct TensorOutline {
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape;  // at least one dimension
  at::Device device = at::kCPU;
};

// The images, videos or audio clips of a sample.
struct ItemsOutline {
  // Whether the sample says where their placeholders are. Otherwise it must fit into seq_len.
  bool located = false;
  PlaceholderRanges ranges;  // of each item; begin and end are 0 unless located
};

struct Outline {
  int64_t tokens = 0;  // at least 1
  // The predicted tokens with a loss, as runs [begin, end): ascending, neither empty nor adjacent.
  // Token 0 is never in one: no token before it predicts it.
  std::vector<std::pair<int64_t, int64_t>> loss;
  std::string kind;  // the sample's own, or empty
  std::map<std::string, TensorOutline> tensors;
  std::map<std::string, TensorOutline> streams;  // of shape [tokens, ...]
  std::map<std::string, ItemsOutline> items;     // by "image", "video", "audio"
  bool may_wait = false;
};

// Returns the outline of a sample. Throws c10::ValueError for the errors listed in prepare.h that
// do not depend on other samples; `number` names the sample in messages. A sample that fits
// options.seq_len may have audio clips without placeholders.
Outline Describe(const TensorSample& sample, int64_t number, const PrepareOptions& options);

// Throws c10::ValueError if an outline contradicts itself or the options; `number` names the sample
// in messages. Outlines that Describe returns pass.
void CheckOutline(const Outline& outline, int64_t number, const PrepareOptions& options);

// Returns the first difference of two outlines in words, as "tokens: 12 and 10", or "". Ignores
// devices and may_wait.
std::string Difference(const Outline& a, const Outline& b);

}  // namespace lockstep::batching

#endif  // LOCKSTEP_BATCHING_OUTLINE_H_
