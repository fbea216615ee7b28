// The part of a sample that is packed, and the part that a padding copy needs. Private to
// prepare.cc.

#ifndef LOCKSTEP_BATCHING_ITEM_H_
#define LOCKSTEP_BATCHING_ITEM_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "batching/outline.h"
#include "batching/prepare.h"

namespace lockstep::batching {

// The part of a sample that is packed: its first tokens, and the first rows of its tensors.
struct Extent {
  int64_t tokens = 0;
  std::map<std::string, int64_t> rows;  // tensors with at least one row
  std::vector<int64_t> patches;         // of each image, then of each video
};

struct Item {
  const Outline* outline = nullptr;
  int64_t index = 0;     // among the samples
  std::string kind;      // set by NameKinds
  bool may_mix = false;  // set by NameKinds: the kind says nothing but which tensors there are
  Extent kept;           // within seq_len
  Extent least;          // the shortest copy that still runs every module of the kind
};

// Cuts one sample to seq_len. Keeps no token of a sample that begins with an image, video or audio
// clip that does not fit. The item refers to `outline`. Throws c10::ValueError, which calls the
// sample `number`, for the errors listed in prepare.h.
Item MakeItem(const Outline& outline, int64_t number, const PrepareOptions& options);

// Sets the kind of items: the sample's own, or the modalities in `kept`. To the latter it adds the
// names of other tensors if some items of that kind hold these and others do not.
void NameKinds(std::vector<Item>& items);

// Returns the kinds whose micro-batches may hold samples of another kind, too, by the latter's
// name. They have all of its tensors, and further ones only of modalities that it lacks: text may
// ride with images, and images with images and videos.
std::map<std::string, std::set<std::string>> HostsOf(const std::vector<Item>& items);

}  // namespace lockstep::batching

#endif  // LOCKSTEP_BATCHING_ITEM_H_
