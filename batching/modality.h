// The tensors and placeholders of images, videos and audio clips. Private to outline.cc and
// item.cc.

#ifndef LOCKSTEP_BATCHING_MODALITY_H_
#define LOCKSTEP_BATCHING_MODALITY_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "batching/prepare.h"

namespace lockstep::batching {

// The tensors of one modality, which are cut together.
struct Modality {
  const char* name;  // in kinds and messages
  const char* rows;  // the tensor that the modality's module runs on
  // The tensor with a row {time, height, width} for each item, whose product is the item's number
  // of `rows`. Null: `rows` has one row for each item.
  const char* grid;
  std::vector<const char*> by_item;  // further tensors with one row for each item, if present
  int64_t type;                      // in token_types
  std::optional<int64_t> PrepareOptions::*token_id;
  const char* token_id_name;

  // Returns the name of the tensor with a row for each item.
  const char* counted() const { return grid != nullptr ? grid : rows; }
};

// Images, videos and audio clips, in this order.
const std::vector<Modality>& Modalities();

}  // namespace lockstep::batching

#endif  // LOCKSTEP_BATCHING_MODALITY_H_
