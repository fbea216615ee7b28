// Packs the padded samples of a batch into one row of tokens, after the batch was sliced.
//
// The failure this prevents. A micro-batch is packed first, and the row is then cut into equal
// parts for the replicas. Samples have different lengths, so a part begins and ends inside a
// sample. A replica then trains on tokens of another replica's samples, and the bridge sends it
// images that belong to other placeholders. If the numbers of rows agree, no error says so.
//
// Here a replica slices whole samples first, and packs what it keeps:
//
//    Dict batch = {{"input_ids", ids},                         // [4, S], padded
//                  {"attention_mask", mask},                   // [4, S]: 0 for padding, else 1
//                  {"position_ids", positions}};               // [4, S] or [3, 4, S]
//    Value mine = Slice(batch, {.dp_rank = 1, .dp_size = 2});  // samples 2 and 3
//    Value packed = Pack(mine);                                // input_ids [T], seq_lens {5, 3}
//
// The samples keep their order, so tables of ownership (ownership.h) stay those of the part: images
// and other rows that are no tokens are passed on. "seq_lens" has the tokens of each sample, and
// Slice cuts by it. So packing the parts gives the same as cutting the packed whole:
// Pack(Slice(batch)) equals Slice(Pack(batch)). The mask decides what a token is, so the padding id
// may be a word too. Padding may be on either side.
//
// The rules for a mask of shape [B, S], at the top of the batch:
//
//    tensor    [B, S, ...] becomes [T, ...]. "position_ids" [..., B, S] becomes [..., T].
//    list      B lists of S values become one of T.
//    mask      is left out; "seq_lens" is added, a list of B numbers.
//    media     pixel_values..., input_features..., feature_attention_mask and grids are passed on.
//    offsets   keys that begin with "cu_seqlens" must hold the running sums of the packed samples.
//    other     is passed on, and so is what `whole` names. "input_ids", "labels", "loss_mask" and
//              "position_ids" must have the mask's shape.
//
// A tensor of another name that has the mask's first two sizes by chance needs `whole`. So does a
// tensor [B, n] with n other than S and 1: it may hold values of tokens that were padded to another
// width. Tensors and offsets of media have any size: names with "image", "video", "audio",
// "vision", "visual", "spatial_shapes", "tgt_sizes", "grid_hw" or "aspect_ratio" in them.
//
// Source: Megatron-Bridge's pull request 5131. Thread-safe.

#ifndef LOCKSTEP_MIMO_BATCH_PACK_H_
#define LOCKSTEP_MIMO_BATCH_PACK_H_

#include <set>
#include <string>

#include "mimo/batch/slice.h"

namespace lockstep::mimo {

struct PackOptions {
  std::string mask = "attention_mask";  // key of the mask, [samples, width], bool or whole numbers
  std::set<std::string> whole = {};     // keys to pass on, although they have the mask's shape
};

// Returns the packed batch, with copies of what has a row for each token. The batch is a Dict. The
// numbers of "seq_lens" are Opaque values with id 0. A batch without samples becomes a row without
// tokens. Throws c10::ValueError if there is no such mask, if a tensor or offsets do not fit it, if
// the batch has samples and no token, or if it is packed already. Copies the mask and offsets to
// the CPU.
Value Pack(const Value& batch, const PackOptions& options = {});

}  // namespace lockstep::mimo

#endif  // LOCKSTEP_MIMO_BATCH_PACK_H_
