#include "mimo/batch/ownership.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "mimo/topology/problems.h"

namespace lockstep::mimo {
namespace {

absl::Status Invalid(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("mimo: ", what));
}

// Appends running sums of `counts` to {0}. `of` names a count: "items of sample ".
absl::StatusOr<std::vector<int64_t>> OffsetsOf(absl::Span<const int64_t> counts,
                                               absl::string_view of) {
  std::vector<int64_t> offsets = {0};
  offsets.reserve(counts.size() + 1);
  for (size_t i = 0; i < counts.size(); ++i) {
    int64_t sum = 0;
    if (counts[i] < 0 || __builtin_add_overflow(offsets.back(), counts[i], &sum)) {
      return Invalid(absl::StrCat(
          "ownership: ", of, i, " are ", counts[i],
          counts[i] < 0 ? "; a count is not negative" : "; their sum exceeds 64 bits"));
    }
    offsets.push_back(sum);
  }
  return offsets;
}

absl::Status CheckOffsets(const std::vector<int64_t>& offsets, absl::string_view name) {
  if (offsets.empty() || offsets[0] != 0) {
    return Invalid(absl::StrCat("ownership: ", name, " must begin with 0"));
  }
  for (size_t i = 1; i < offsets.size(); ++i) {
    if (offsets[i] >= offsets[i - 1]) continue;
    return Invalid(absl::StrCat("ownership: ", name, "[", i, "] is ", offsets[i],
                                ", less than the ", offsets[i - 1], " before it"));
  }
  return absl::OkStatus();
}

// The begin of each of `count` ranges and the end of the last, counted from the begin of the first.
std::vector<int64_t> Rebased(const std::vector<int64_t>& offsets, Range range) {
  std::vector<int64_t> rebased(offsets.begin() + range.begin, offsets.begin() + range.end + 1);
  const int64_t first = rebased[0];
  for (int64_t& offset : rebased) offset -= first;
  return rebased;
}

absl::Status CheckDivision(int64_t num_samples, int64_t dp_size, Division division) {
  if (num_samples < 0) {
    return Invalid(absl::StrCat("num_samples is ", num_samples, "; it must be at least 0"));
  }
  if (dp_size < 1) return Invalid(absl::StrCat("dp_size is ", dp_size, "; it must be positive"));
  if (division == Division::kUneven || num_samples % dp_size == 0) return absl::OkStatus();
  return Invalid(absl::StrCat("batch size ", num_samples, " is not divisible by dp_size ", dp_size,
                              "; ", NearestMultiples(num_samples, dp_size),
                              ", or allow uneven parts"));
}

}  // namespace

absl::string_view NameOf(RowsOf rows_of) {
  switch (rows_of) {
    case RowsOf::kSamples: return "samples";
    case RowsOf::kItems: return "items";
    case RowsOf::kTokens: return "tokens";
  }
  return "?";
}

absl::StatusOr<Ownership> MakeOwnership(absl::Span<const int64_t> items_per_sample,
                                        absl::Span<const int64_t> tokens_per_item) {
  absl::StatusOr<std::vector<int64_t>> items = OffsetsOf(items_per_sample, "items of sample ");
  if (!items.ok()) return items.status();
  absl::StatusOr<std::vector<int64_t>> tokens = OffsetsOf(tokens_per_item, "tokens of item ");
  if (!tokens.ok()) return tokens.status();
  Ownership ownership = {*std::move(items), *std::move(tokens)};
  const absl::Status status = ValidateOwnership(ownership);
  if (!status.ok()) return status;
  return ownership;
}

absl::StatusOr<Ownership> OwnershipOfItems(int64_t num_samples,
                                           absl::Span<const int64_t> sample_of_item,
                                           absl::Span<const int64_t> tokens_per_item) {
  if (num_samples < 0 || num_samples > kMaxMicroBatchSize) {
    return Invalid(absl::StrCat("ownership: num_samples is ", num_samples,
                                "; a micro-batch has 0 to ", kMaxMicroBatchSize, " samples"));
  }
  std::vector<int64_t> items_per_sample(static_cast<size_t>(num_samples), 0);
  for (size_t i = 0; i < sample_of_item.size(); ++i) {
    const int64_t sample = sample_of_item[i];
    if (sample < 0 || sample >= num_samples) {
      return Invalid(absl::StrCat("ownership: item ", i, " is of sample ", sample,
                                  ", but there are ", num_samples, ", counted from 0"));
    }
    if (i > 0 && sample < sample_of_item[i - 1]) {
      return Invalid(absl::StrCat("ownership: item ", i, " is of sample ", sample,
                                  ", the item before it of sample ", sample_of_item[i - 1],
                                  "; items follow the order of samples"));
    }
    ++items_per_sample[static_cast<size_t>(sample)];
  }
  return MakeOwnership(items_per_sample, tokens_per_item);
}

absl::StatusOr<Ownership> OwnershipOfRows(absl::Span<const int64_t> rows_per_sample) {
  return MakeOwnership(std::vector<int64_t>(rows_per_sample.size(), 1), rows_per_sample);
}

Ownership UniformOwnership(int64_t num_samples, int64_t tokens_per_sample) {
  Ownership ownership;
  for (int64_t s = 1; s <= num_samples; ++s) {
    ownership.item_offsets.push_back(s);
    ownership.token_offsets.push_back(s * tokens_per_sample);
  }
  return ownership;
}

absl::StatusOr<std::vector<int64_t>> TokensOfGrid(absl::Span<const int64_t> grid_thw,
                                                  int64_t merge) {
  if (merge < 1) return Invalid(absl::StrCat("grid_thw: merge is ", merge, "; use 1 or more"));
  if (grid_thw.size() % 3 != 0) {
    return Invalid(absl::StrCat("grid_thw has ", grid_thw.size(),
                                " values; rows are of three:", " time, height, width"));
  }
  std::vector<int64_t> tokens;
  for (size_t i = 0; i < grid_thw.size(); i += 3) {
    const int64_t time = grid_thw[i];
    const int64_t height = grid_thw[i + 1];
    const int64_t width = grid_thw[i + 2];
    const std::string row =
        absl::StrCat("grid_thw row ", i / 3, " is ", time, " x ", height, " x ", width);
    if (time < 1 || height < 1 || width < 1) {
      return Invalid(absl::StrCat(row, "; all three are positive"));
    }
    if (height % merge != 0 || width % merge != 0) {
      return Invalid(absl::StrCat(row, "; height and width must be divisible by merge ", merge));
    }
    int64_t product = 0;
    if (__builtin_mul_overflow(time, height / merge, &product) ||
        __builtin_mul_overflow(product, width / merge, &product)) {
      return Invalid(absl::StrCat(row, "; its tokens exceed 64 bits"));
    }
    tokens.push_back(product);
  }
  return tokens;
}

absl::Status ValidateOwnership(const Ownership& ownership) {
  absl::Status status = CheckOffsets(ownership.item_offsets, "item_offsets");
  if (status.ok()) status = CheckOffsets(ownership.token_offsets, "token_offsets");
  if (!status.ok() || ownership.item_offsets.back() == ownership.num_items()) return status;
  return Invalid(absl::StrCat("ownership: the samples have ", ownership.item_offsets.back(),
                              " items in all, but tokens are given for ", ownership.num_items()));
}

int64_t NumRows(const Ownership& ownership, RowsOf rows_of) {
  return RowsOfSamples(ownership, rows_of, {0, ownership.num_samples()}).end;
}

std::vector<int64_t> RowsPerSample(const Ownership& ownership, RowsOf rows_of) {
  std::vector<int64_t> rows;
  rows.reserve(static_cast<size_t>(ownership.num_samples()));
  for (int64_t s = 0; s < ownership.num_samples(); ++s)
    rows.push_back(RowsOfSamples(ownership, rows_of, {s, s + 1}).size());
  return rows;
}

Range Part(Range range, int64_t part, int64_t parts) {
  const int64_t each = range.size() / parts;
  const int64_t longer = range.size() % parts;
  const int64_t begin = range.begin + part * each + std::min(part, longer);
  return {begin, begin + each + (part < longer ? 1 : 0)};
}

absl::StatusOr<std::vector<int64_t>> ShardBounds(int64_t num_samples, int64_t dp_size,
                                                 Division division) {
  const absl::Status status = CheckDivision(num_samples, dp_size, division);
  if (!status.ok()) return status;
  std::vector<int64_t> bounds = {0};
  for (int64_t d = 0; d < dp_size; ++d) {
    bounds.push_back(Part({0, num_samples}, d, dp_size).end);
  }
  return bounds;
}

absl::StatusOr<Range> SamplesOfShard(int64_t num_samples, int64_t dp_rank, int64_t dp_size,
                                     Division division) {
  const absl::Status status = CheckDivision(num_samples, dp_size, division);
  if (!status.ok()) return status;
  if (dp_rank < 0 || dp_rank >= dp_size) {
    return Invalid(absl::StrCat("dp_rank is ", dp_rank, "; with dp_size ", dp_size,
                                " it is from 0 to ", dp_size - 1));
  }
  return Part({0, num_samples}, dp_rank, dp_size);
}

Range RowsOfSamples(const Ownership& ownership, RowsOf rows_of, Range samples) {
  if (rows_of == RowsOf::kSamples) return samples;
  const auto at = [](const std::vector<int64_t>& offsets, int64_t i) {
    return offsets[static_cast<size_t>(i)];
  };
  const Range items = {at(ownership.item_offsets, samples.begin),
                       at(ownership.item_offsets, samples.end)};
  if (rows_of == RowsOf::kItems) return items;
  return {at(ownership.token_offsets, items.begin), at(ownership.token_offsets, items.end)};
}

absl::StatusOr<Range> RowsOfShard(const Ownership& ownership, RowsOf rows_of, int64_t dp_rank,
                                  int64_t dp_size, Division division) {
  const absl::StatusOr<Range> samples =
      SamplesOfShard(ownership.num_samples(), dp_rank, dp_size, division);
  if (!samples.ok()) return samples.status();
  return RowsOfSamples(ownership, rows_of, *samples);
}

Ownership SliceOwnership(const Ownership& ownership, Range samples) {
  const Range items = RowsOfSamples(ownership, RowsOf::kItems, samples);
  return {Rebased(ownership.item_offsets, samples), Rebased(ownership.token_offsets, items)};
}

}  // namespace lockstep::mimo
