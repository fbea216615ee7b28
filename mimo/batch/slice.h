// A rank's part of a micro-batch that every rank has read whole: contiguous samples, as views.
//
// The failure this prevents. A vision encoder runs with data-parallel size 2, a language model with
// 1, and a packed tensor of images is cut in two equal halves: the second sample has no image, the
// third has two, and each rank gets pixels of samples that it does not hold. Training goes on.
//
// Here every tensor is cut by what its rows belong to. Most have one row for each sample; of the
// others the caller says how many rows each sample has:
//
//   Value batch = Dict{{"input_ids", ids},            // [4, S]
//                      {"position_ids", positions},   // [3, 4, S]: its batch dim is 1
//                      {"image_grid_thw", grids},     // [3, 3]: three images
//                      {"pixel_values", patches}};    // [patches of all three, C]
//   Value mine = Slice(batch, {.dp_rank = 1, .dp_size = 2,
//                              .rows_per_sample = {{"image_grid_thw", {1, 0, 2, 0}}}});
//   // samples 2 and 3: their ids, two rows of image_grid_thw, and the patches of these two images
//
// Or one table says whose rows are whose, for every tensor that belongs to it, and for the bridge
// that the encoder's tokens cross later (ownership.h). It may be in the batch, and is cut with it:
//
//   Table images = std::make_shared<Ownership>(*MakeOwnership({1, 0, 2, 0}, {4, 4, 16}));
//   Dict batch = {{"images", images}, {"crops", crops}, {"patches", patches}, ...};
//   Slice(batch, {.dp_rank = 1, .dp_size = 2,
//                 .ownership = {{"crops", {.table = images, .rows_of = RowsOf::kItems}},
//                               {"patches", {.path = "images"}}}});
//
// The rules, for a batch of B samples, in this order:
//   declared     `batch_dims`, `ownership` and `rows_per_sample` of a key ("pixel_values") or of a
//   key's path
//                ("modality_inputs.clip.pixel_values"), which goes first.
//   packed       Beside "grid_thw" [images, 3] the tensors "pixel_values" and "hidden_states" have
//                t * h * w rows for each image; beside "image_grid_thw" "pixel_values", beside
//                "video_grid_thw" "pixel_values_videos". They follow the rows of the grid.
//   tensor       Batch dim 0; "position_ids" of shape [3, B, ...], and of [n, B, ...] with n other
//                than B, has 1 (of [B, B, ...] it must be declared). It must have B rows there.
//   table        The part of these samples, counted from 0.
//   dict         Each of its values.
//   list         B long: cut, as a list of one value for each sample; where each value has the rows
//                of all B samples, too, it must be declared. Else each of its values, where it
//                holds tensors or tables.
//   other        Handed on whole: 0-dim tensors, numbers, text.
//
// What is declared of a key that the batch does not have is an error, but rows that are all 0, and
// whose name is not nearly that of a key of which nothing is declared.
//
// Nothing is copied: tensors are views that share memory with the batch. Errors name the path of
// the key, its shape and the sizes. All rows are found in ownership tables; rows_per_sample and
// grids become tables first. Source: slice_batch_for_mimo of Megatron-Bridge (pull request
// 2956), and issue 4986 there, which this answers. Thread-safe.

#ifndef LOCKSTEP_MIMO_BATCH_SLICE_H_
#define LOCKSTEP_MIMO_BATCH_SLICE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "absl/types/span.h"
#include "mimo/batch/ownership.h"

namespace lockstep::mimo {

struct Value;
struct Field;
using List = std::vector<Value>;
using Dict = std::vector<Field>;                 // keys in any order, each once
using Table = std::shared_ptr<const Ownership>;  // never null in a batch

// What slicing hands on as it is; the number is the caller's, to know it again.
struct Opaque {
  int64_t id = 0;
};

struct Value {
  std::variant<Opaque, at::Tensor, List, Dict, Table> of;
  int64_t tag = 0;  // the caller's: what is cut of a list or dict has it, too

  Value(Opaque opaque) : of(opaque) {}                 // NOLINT: a value is any of these
  Value(at::Tensor tensor) : of(std::move(tensor)) {}  // NOLINT
  Value(List list) : of(std::move(list)) {}            // NOLINT
  Value(Dict dict) : of(std::move(dict)) {}            // NOLINT
  Value(Table table) : of(std::move(table)) {}         // NOLINT
};

struct Field {
  std::string key;
  Value value;
};

// What the rows of a tensor or a list belong to.
struct OwnedRows {
  Table table = nullptr;
  RowsOf rows_of = RowsOf::kTokens;
  std::string path = {};  // where table is null: of one in the batch, "images" or "vision.images"
};

struct SliceOptions {
  int64_t dp_rank = 0;
  int64_t dp_size = 1;
  // Samples of the whole batch. Without it: the rows of "input_ids", or of the first tensor, by
  // path, that the rule for tensors cuts; without any, the length of all lists, which must agree.
  std::optional<int64_t> batch_size = {};
  // By key or path: the batch dim of a tensor, 0 for a list of one value for each sample, nullopt
  // for what is handed on whole.
  std::map<std::string, std::optional<int64_t>> batch_dims = {};
  // By key or path: whose the rows of dim 0, or of `batch_dims`, are. A table of B samples.
  std::map<std::string, OwnedRows> ownership = {};
  // The same in numbers: rows of each of the B samples, of a tensor or of a list.
  std::map<std::string, std::vector<int64_t>> rows_per_sample = {};
  // Whether ranks may get unequally many samples: then the first B % dp_size ranks have one more.
  bool uneven = false;
};

// The part of rank dp_rank of dp_size. With dp_size 1: the same tensors, of which only what is
// declared is checked. Throws c10::ValueError where sizes do not fit.
Value Slice(const Value& batch, const SliceOptions& options);

// The whole batch with its samples in another order (reorder.h): the first are order[0]'s rows.
// Tensors, lists and tables move alike, by the same rules, and tensors are copies. `order` is a
// permutation of the samples, from 0; dp_rank, dp_size and uneven are not looked at. Throws
// c10::ValueError where sizes do not fit.
Value Reorder(const Value& batch, absl::Span<const int64_t> order, const SliceOptions& options);

}  // namespace lockstep::mimo

#endif  // LOCKSTEP_MIMO_BATCH_SLICE_H_
