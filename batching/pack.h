// Packs the tensors of the samples of one micro-batch. Private to prepare.cc. Thread-safe after
// construction.

#ifndef LOCKSTEP_BATCHING_PACK_H_
#define LOCKSTEP_BATCHING_PACK_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "batching/item.h"
#include "batching/outline.h"
#include "batching/prepare.h"

namespace lockstep::batching {

class Packer {
 public:
  // Takes dtypes and shapes of streams from the index. `options` must outlive it. Throws
  // c10::ValueError if samples differ in them, or if they do not suit options.streams.
  Packer(const PrepareOptions& options, const std::vector<Outline>& index);

  // Packs the items one after the other; of the first ones the shares of `shares`. With `padding`
  // the result trains nothing; with `shorten` it holds Item::least of each item. Sets `labels` if
  // `largest_group` is above 1. Sets every field but `cost` and `samples`.
  TensorMicroBatch Pack(const std::string& kind, const std::vector<const Item*>& items,
                        const std::vector<const TensorSample*>& samples,
                        std::vector<SampleShare> shares, int largest_group, bool padding,
                        bool shorten) const;

 private:
  struct Stream {
    StreamFill fill;
    at::ScalarType dtype = at::kFloat;
    std::vector<int64_t> row = {};  // the shape of a token's value
  };

  // Throws c10::ValueError if a stream cannot hold its fill. `given` are the streams of samples.
  void CheckFills(const std::set<std::string>& given) const;
  void PackTokens(const std::vector<const Item*>& items,
                  const std::vector<const TensorSample*>& samples,
                  const std::vector<const Extent*>& extents, int64_t num_padding, int64_t length,
                  TensorMicroBatch& batch) const;

  const PrepareOptions& options_;
  std::map<std::string, Stream> streams_;
};

}  // namespace lockstep::batching

#endif  // LOCKSTEP_BATCHING_PACK_H_
