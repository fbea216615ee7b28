// Cuts RGB frames into the patches that a vision transformer of the Qwen2-VL family takes, and
// normalises them.
//
//   Patching patching{.frames = 2, .height = 56, .width = 84};
//   patching.patch = 14, patching.temporal = 2, patching.merge = 2;
//   std::vector<float> out(patching.num_values());
//   CutPatches(patching, pixels, table, out.data());
//
// A patch is one row: [channel, frame within the patch, y, x]. Rows go over frames, then over
// blocks of merge x merge patches from left to right and top to bottom, then over the patches of a
// block. The language model sees one token per block. Each byte is looked up in `table`, so that
// one pass over memory normalises and reorders.
//
// Method: the row order of transformers' Qwen2VLImageProcessor.patchify. Thread-safe.

#ifndef LOCKSTEP_DRIVER_IMAGES_PATCHES_H_
#define LOCKSTEP_DRIVER_IMAGES_PATCHES_H_

#include <cstdint>

namespace lockstep::images {

struct Patching {
  int64_t frames = 1;    // the last one is repeated up to a multiple of `temporal`
  int64_t height = 0;    // a multiple of patch * merge
  int64_t width = 0;     // a multiple of patch * merge
  int64_t patch = 14;    // pixels of a side
  int64_t temporal = 2;  // frames of a patch
  int64_t merge = 2;     // patches of a block's side

  int64_t grid_t() const { return (frames + temporal - 1) / temporal; }
  int64_t num_patches() const { return grid_t() * (height / patch) * (width / patch); }
  int64_t patch_values() const { return 3 * temporal * patch * patch; }
  int64_t num_values() const { return num_patches() * patch_values(); }
};

// pixels: [frames, height, width, 3]. table: [3, 256], what a byte of each channel becomes.
// out: [num_patches, patch_values].
void CutPatches(const Patching& patching, const uint8_t* pixels, const float* table, float* out);

}  // namespace lockstep::images

#endif  // LOCKSTEP_DRIVER_IMAGES_PATCHES_H_
