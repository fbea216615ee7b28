// Offset tables that say which sample owns each row of a tensor.
//
// The failure this prevents. A micro-batch has four samples, and only the last two have an image.
// The tensor of images then has two rows. If it is cut in two by rows, the replica with samples 0
// and 1 gets the image of sample 2. The owner of a row was never recorded. (Megatron-Bridge's issue
// 4986, open.)
//
// This table records it. Samples have items (images, sounds), and items have tokens (or patches).
// Slices, routes between modules and the gradients' way back all follow the same tables. So samples
// without items, with several items, or with items of different sizes are handled alike.
//
//    // Samples 0 and 1 have no image. Sample 2 has two, of 4 and 6 tokens. Sample 3 has one of 9.
//    absl::StatusOr<Ownership> images = MakeOwnership({0, 0, 2, 1}, {4, 6, 9});
//    RowsOfShard(*images, RowsOf::kItems, 0, 2);   // [0, 0): replica 0 of 2 has samples 0 and 1
//    RowsOfShard(*images, RowsOf::kTokens, 1, 2);  // [0, 19)
//
// Make one table for each kind of item. All tables of a micro-batch have the same samples. If an
// encoder merges patches, its input and its output have the same items but different tokens: make
// two tables.
//
// Thread-safe: plain data.

#ifndef LOCKSTEP_MIMO_BATCH_OWNERSHIP_H_
#define LOCKSTEP_MIMO_BATCH_OWNERSHIP_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "mimo/topology/topology.h"

namespace lockstep::mimo {

// A range [begin, end) of rows or of samples.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  friend bool operator==(const Range&, const Range&) = default;
};

struct Ownership {
  std::vector<int64_t> item_offsets = {0};   // samples + 1: sample s has items [s] to [s + 1]
  std::vector<int64_t> token_offsets = {0};  // items + 1: item i has tokens [i] to [i + 1]

  int64_t num_samples() const { return static_cast<int64_t>(item_offsets.size()) - 1; }
  int64_t num_items() const { return static_cast<int64_t>(token_offsets.size()) - 1; }
  int64_t num_tokens() const { return token_offsets.back(); }

  friend bool operator==(const Ownership&, const Ownership&) = default;
};

enum class RowsOf { kSamples, kItems, kTokens };

// Returns "samples", "items" or "tokens".
absl::string_view NameOf(RowsOf rows_of);

// The maximum number of items if only their count is given. A larger count is a mistake, not a
// request for memory.
constexpr int64_t kMaxItems = int64_t{1} << 24;

// Makes a table from counts. Returns InvalidArgument if a count is negative, if the items of all
// samples are not as many as tokens_per_item, or if a sum exceeds an int64.
absl::StatusOr<Ownership> MakeOwnership(absl::Span<const int64_t> items_per_sample,
                                        absl::Span<const int64_t> tokens_per_item);

// Makes a table from the sample of each item, ascending. A collate function that stacks the items
// of some samples knows these. Returns InvalidArgument with the first index that is out of range or
// descends, or if num_samples is above kMaxMicroBatchSize.
absl::StatusOr<Ownership> OwnershipOfItems(int64_t num_samples,
                                           absl::Span<const int64_t> sample_of_item,
                                           absl::Span<const int64_t> tokens_per_item);

// Makes a table in which sample s has one item of rows_per_sample[s] tokens, for callers that know
// only the rows of each sample. Returns InvalidArgument as MakeOwnership does.
absl::StatusOr<Ownership> OwnershipOfRows(absl::Span<const int64_t> rows_per_sample);

// Makes a table in which every sample has one item of `tokens_per_sample` tokens, at least 0.
// num_samples is at least 0.
Ownership UniformOwnership(int64_t num_samples, int64_t tokens_per_sample = 1);

// Returns the tokens of each item. grid_thw has rows of (time, height, width) in patches, and
// `merge` x `merge` patches of a frame become a token. Returns InvalidArgument if the number of
// values is not a multiple of three, a value is not positive, or height or width is not divisible
// by merge.
absl::StatusOr<std::vector<int64_t>> TokensOfGrid(absl::Span<const int64_t> grid_thw,
                                                  int64_t merge = 1);

// Returns InvalidArgument with the first wrong offset. Offsets must start at 0 and never descend,
// and the items of the last sample must end at the number of items.
absl::Status ValidateOwnership(const Ownership& ownership);

// Returns the number of rows that belong to `rows_of`.
int64_t NumRows(const Ownership& ownership, RowsOf rows_of);

// Returns the number of rows of each sample; with kSamples 1 each.
std::vector<int64_t> RowsPerSample(const Ownership& ownership, RowsOf rows_of);

// Returns part `part` of `parts` of a range. Sizes differ by at most 1: the first size % parts
// parts hold one more.
Range Part(Range range, int64_t part, int64_t parts);

// Returns the boundaries of the replicas' samples: replica d has [bounds[d], bounds[d + 1]);
// dp_size + 1 values. Returns InvalidArgument if num_samples is negative, if dp_size is not
// positive, or, with kEven, if num_samples is not divisible by dp_size. The message gives the
// nearest sizes that are.
absl::StatusOr<std::vector<int64_t>> ShardBounds(int64_t num_samples, int64_t dp_size,
                                                 Division division = Division::kEven);

// Returns the samples of one replica. Returns InvalidArgument as ShardBounds does, and if dp_rank
// is not in [0, dp_size).
absl::StatusOr<Range> SamplesOfShard(int64_t num_samples, int64_t dp_rank, int64_t dp_size,
                                     Division division = Division::kEven);

// Returns the rows of a range of samples. They are one range, because rows follow the order of
// samples.
Range RowsOfSamples(const Ownership& ownership, RowsOf rows_of, Range samples);

// Returns the rows of replica dp_rank of dp_size. The ranges of all replicas concatenate to all
// rows.
absl::StatusOr<Range> RowsOfShard(const Ownership& ownership, RowsOf rows_of, int64_t dp_rank,
                                  int64_t dp_size, Division division = Division::kEven);

// Returns the table of a shard on its own, with offsets from 0.
Ownership SliceOwnership(const Ownership& ownership, Range samples);

}  // namespace lockstep::mimo

#endif  // LOCKSTEP_MIMO_BATCH_OWNERSHIP_H_
