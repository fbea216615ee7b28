// What the rows of a tensor belong to.
//
// The failure this prevents. Of four samples, only the last two have an image. The batch's images
// are a tensor of two rows; cut in two by its rows, the replica with samples 0 and 1 gets the image
// of sample 2 (Megatron-Bridge's issue 4986, open). The owner of a row was never written down. Here
// it is: samples have items (images, sounds), items have tokens (or patches), all in offset tables.
// Slices, routes between modules and the gradients' way back all follow the same tables, so that
// samples without items, with several, or with items of different sizes are right by construction.
//
//   // Samples 0 and 1 have no image, sample 2 has two, of 4 and 6 tokens, sample 3 has one of 9.
//   absl::StatusOr<Ownership> images = MakeOwnership({0, 0, 2, 1}, {4, 6, 9});
//   RowsOfShard(*images, RowsOf::kItems, 0, 2);   // [0, 0): replica 0 of 2 has samples 0 and 1
//   RowsOfShard(*images, RowsOf::kTokens, 1, 2);  // [0, 19)
//
// One table for each kind of item; all tables of a micro-batch have the same samples. Where an
// encoder merges patches, what goes in and what comes out have the same items and different tokens:
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

// [begin, end) of rows, or of samples.
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

// "samples", "items", "tokens".
absl::string_view NameOf(RowsOf rows_of);

// Items of a micro-batch where nothing but their count is given: a larger count is a mistake, and
// no request for memory.
constexpr int64_t kMaxItems = int64_t{1} << 24;

// From counts. InvalidArgument if a count is negative, if the items of all samples are not as many
// as tokens_per_item, or if a sum exceeds an int64.
absl::StatusOr<Ownership> MakeOwnership(absl::Span<const int64_t> items_per_sample,
                                        absl::Span<const int64_t> tokens_per_item);

// From the sample of each item, ascending: what a collate function knows that stacks the items of
// the samples that have any. InvalidArgument names the first index that is out of range or
// descends, or says that num_samples is above kMaxMicroBatchSize.
absl::StatusOr<Ownership> OwnershipOfItems(int64_t num_samples,
                                           absl::Span<const int64_t> sample_of_item,
                                           absl::Span<const int64_t> tokens_per_item);

// Every sample has one item, of rows_per_sample tokens: what is known where only the rows of each
// sample are. InvalidArgument as for MakeOwnership.
absl::StatusOr<Ownership> OwnershipOfRows(absl::Span<const int64_t> rows_per_sample);

// Every sample has one item of `tokens_per_sample` tokens, at least 0. num_samples is at least 0.
Ownership UniformOwnership(int64_t num_samples, int64_t tokens_per_sample = 1);

// Tokens of each item from grid_thw, rows of (time, height, width) in patches, where `merge` x
// `merge` patches of a frame become a token. InvalidArgument if the values are not a multiple of
// three, one is not positive, or height or width is not divisible by merge.
absl::StatusOr<std::vector<int64_t>> TokensOfGrid(absl::Span<const int64_t> grid_thw,
                                                  int64_t merge = 1);

// InvalidArgument says which offset is wrong: tables start at 0, never descend, and the items of
// the last sample end where the items do.
absl::Status ValidateOwnership(const Ownership& ownership);

int64_t NumRows(const Ownership& ownership, RowsOf rows_of);

// The rows of each sample. With kSamples one each.
std::vector<int64_t> RowsPerSample(const Ownership& ownership, RowsOf rows_of);

// InvalidArgument if `rows`, the size of the tensor called `name`, is not NumRows.
absl::Status CheckRows(const Ownership& ownership, RowsOf rows_of, int64_t rows,
                       absl::string_view name);

// Part `part` of `parts` of a range, near equal: the first size % parts parts hold one more.
Range Part(Range range, int64_t part, int64_t parts);

// The samples of each replica: replica d has [bounds[d], bounds[d + 1]); dp_size + 1 values.
// InvalidArgument if num_samples is negative, dp_size not positive, or, with kEven, num_samples not
// divisible by dp_size; it gives the nearest sizes that are.
absl::StatusOr<std::vector<int64_t>> ShardBounds(int64_t num_samples, int64_t dp_size,
                                                 Division division = Division::kEven);

// The same for one replica: InvalidArgument also if dp_rank is not in [0, dp_size).
absl::StatusOr<Range> SamplesOfShard(int64_t num_samples, int64_t dp_rank, int64_t dp_size,
                                     Division division = Division::kEven);

// The rows of a range of samples. They are one range, since rows follow the order of samples.
Range RowsOfSamples(const Ownership& ownership, RowsOf rows_of, Range samples);

// The rows of replica dp_rank of dp_size. Over all replicas they concatenate to all rows.
absl::StatusOr<Range> RowsOfShard(const Ownership& ownership, RowsOf rows_of, int64_t dp_rank,
                                  int64_t dp_size, Division division = Division::kEven);

// The table of a shard by itself, offsets from 0.
Ownership SliceOwnership(const Ownership& ownership, Range samples);

}  // namespace lockstep::mimo

#endif  // LOCKSTEP_MIMO_BATCH_OWNERSHIP_H_
