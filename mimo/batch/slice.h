// Cuts a micro-batch that every rank has read whole down to one rank's samples, as views.
//
// The failure this prevents. A vision encoder runs with data-parallel size 2, a language model with
// 1. A packed tensor of images is cut in two equal halves, although the second sample has no image
// and the third has two. Each rank gets pixels of samples that it does not hold, and training goes
// on.
//
// Here every tensor is cut by the owners of its rows. Most tensors have one row for each sample.
// For the others, pass the number of rows of each sample:
//
//    Value batch = Dict{{"input_ids", ids},            // [4, S]
//                       {"position_ids", positions},   // [3, 4, S]: its batch dim is 1
//                       {"image_grid_thw", grids},     // [3, 3]: three images
//                       {"pixel_values", patches}};    // [patches of all three, C]
//    Value mine = Slice(batch, {.dp_rank = 1, .dp_size = 2,
//                               .rows_per_sample = {{"image_grid_thw", {1, 0, 2, 0}}}});
//    // samples 2 and 3: their ids, two rows of image_grid_thw, the patches of these two images
//
// Or pass one table for every tensor that belongs to it, and for the bridge that later carries the
// encoder's tokens (ownership.h). The table may be in the batch and is cut with it:
//
//    Table images = std::make_shared<Ownership>(*MakeOwnership({1, 0, 2, 0}, {4, 4, 16}));
//    Dict batch = {{"images", images}, {"crops", crops}, {"patches", patches}};
//    Slice(batch, {.dp_rank = 1, .dp_size = 2,
//                  .ownership = {{"crops", {.table = images, .rows_of = RowsOf::kItems}},
//                                {"patches", {.path = "images"}}}});
//
// A packed batch is cut between its sequences. "seq_lens" tells how long they are:
//
//    Dict batch = {{"input_ids", ids},                    // [8]: the tokens of two samples
//                  {"position_ids", positions},           // [8] or [3, 8]
//                  {"seq_lens", at::tensor({5, 3})}};     // or a list
//    Slice(batch, {.dp_rank = 1, .dp_size = 2});          // the last three tokens
//
// The rules for a batch of B samples, in this order:
//
//    declared  `batch_dims`, `ownership` and `rows_per_sample`, by a key's path
//              ("modality_inputs.clip.pixel_values") or else by the key ("pixel_values").
//    packed    Next to "grid_thw" [images, 3], "pixel_values" and "hidden_states" have t * h * w
//              rows for each image. So have "pixel_values" next to "image_grid_thw", and
//              "pixel_values_videos" next to "video_grid_thw". They follow the grid's rows.
//              "second_per_grid_ts" has a row for each row of "video_grid_thw".
//    sequences Next to "seq_lens" (a list or tensor of B lengths; declare it if a sample has
//              several), and in dicts there, tensors and lists with a row for each of the T tokens
//              follow the lengths. The tokens are on dim 0, for [1, T, ...] on dim 1, for
//              "position_ids" on the last dim. Keys that begin with "cu_seqlens" hold the running
//              sums from 0 to T, and are computed anew.
//    tensor    The batch dim is 0. It is 1 for "position_ids" of shape [3, B, ...], or of
//              [n, B, ...] with n other than B; declare it for [B, B, ...]. The size there is B.
//    table     Cut to these samples, counted from 0.
//    dict      Each of its values is cut.
//    list      A list of length B is cut, as one value for each sample. It must be declared if
//              each value also has the rows of all B samples. In another list each value is
//              cut, if it contains tensors or tables.
//    other     0-dim tensors, numbers and text are passed on whole.
//
// A declaration for a key that the batch does not have is an error. It is allowed if all its rows
// are 0 and the name resembles no key without a declaration.
//
// Nothing is copied but "cu_seqlens": tensors are views that share memory with the batch. Errors
// name the path of the key, its shape and the sizes.
//
// Source: slice_batch_for_mimo of Megatron-Bridge (pull request 2956), and its issue 4986, which
// this solves. Thread-safe.

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

// A value that slicing passes on as it is. The caller chooses the id, to recognise the value.
struct Opaque {
  int64_t id = 0;
  std::optional<int64_t> number = {};  // its value, if it is a whole number
};

// Any value of a batch.
struct Value {
  std::variant<Opaque, at::Tensor, List, Dict, Table> of;
  int64_t tag = 0;  // the caller's; the cut part of a list or dict keeps it

  Value(Opaque opaque);      // NOLINT: a value is any of these
  Value(at::Tensor tensor);  // NOLINT
  Value(List list);          // NOLINT
  Value(Dict dict);          // NOLINT
  Value(Table table);        // NOLINT
};

// A key of a dict and its value.
struct Field {
  std::string key;
  Value value;
};

// A constructor of the variant needs a whole Field.
inline Value::Value(Opaque opaque) : of(opaque) {}
inline Value::Value(at::Tensor tensor) : of(std::move(tensor)) {}
inline Value::Value(List list) : of(std::move(list)) {}
inline Value::Value(Dict dict) : of(std::move(dict)) {}
inline Value::Value(Table table) : of(std::move(table)) {}

// The owners of the rows of a tensor or a list.
struct OwnedRows {
  Table table = nullptr;
  RowsOf rows_of = RowsOf::kTokens;
  std::string path = {};  // if table is null: a table in the batch, "images" or "vision.images"
};

// The part to keep, and the declarations.
struct SliceOptions {
  int64_t dp_rank = 0;
  int64_t dp_size = 1;
  // Number of samples of the whole batch. Defaults to the number of "seq_lens". Without these it is
  // the rows of "input_ids", or of the first tensor by path that the tensor rule cuts; without any,
  // the common length of all lists.
  std::optional<int64_t> batch_size = {};
  // By key or path: the batch dim of a tensor, 0 for a list of one value for each sample, nullopt
  // to pass the value on whole.
  std::map<std::string, std::optional<int64_t>> batch_dims = {};
  // By key or path: the owners of the rows on dim 0, or on `batch_dims`. A table of B samples.
  std::map<std::string, OwnedRows> ownership = {};
  // The same as counts: rows of each of the B samples, of a tensor or of a list.
  std::map<std::string, std::vector<int64_t>> rows_per_sample = {};
  // Whether ranks may get different numbers of samples: the first B % dp_size ranks have one more.
  bool uneven = false;
};

// Returns the part of replica dp_rank of dp_size. With dp_size 1 it returns the same tensors and
// checks only the declared ones. Throws c10::ValueError if sizes do not fit.
Value Slice(const Value& batch, const SliceOptions& options);

// Returns the whole batch with its samples in another order (reorder.h): sample order[0] comes
// first. Tensors, lists and tables move by the same rules. Tensors are copies. `order` is a
// permutation of the samples, from 0. Ignores dp_rank, dp_size and uneven. Throws c10::ValueError
// if sizes do not fit.
Value Reorder(const Value& batch, absl::Span<const int64_t> order, const SliceOptions& options);

}  // namespace lockstep::mimo

#endif  // LOCKSTEP_MIMO_BATCH_SLICE_H_
