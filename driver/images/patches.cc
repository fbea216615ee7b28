#include "driver/images/patches.h"

#include <algorithm>
#include <cstring>

namespace lockstep::images {
namespace {

// Writes one frame of one patch: three channels, `channel_values` floats apart.
void CutSquare(const uint8_t* pixels, int64_t row_bytes, int64_t patch, const float* table,
               int64_t channel_values, float* out) {
  const float* red = table;
  const float* green = table + 256;
  const float* blue = table + 512;
  for (int64_t y = 0; y < patch; ++y, pixels += row_bytes, out += patch) {
    const uint8_t* in = pixels;
    for (int64_t x = 0; x < patch; ++x, in += 3) {
      out[x] = red[in[0]];
      out[channel_values + x] = green[in[1]];
      out[2 * channel_values + x] = blue[in[2]];
    }
  }
}

}  // namespace

void CutPatches(const Patching& p, const uint8_t* pixels, const float* table, float* out) {
  const int64_t row_bytes = 3 * p.width;
  const int64_t square = p.patch * p.patch;
  const int64_t block = p.patch * p.merge;
  // Writes the patch at (y, x) of the frames from `first` on.
  const auto cut = [&](int64_t first, int64_t y, int64_t x) {
    for (int64_t t = 0; t < p.temporal; ++t) {
      const int64_t frame = std::min(first + t, p.frames - 1);
      if (t > 0 && first + t >= p.frames) {  // a repeated frame
        for (int64_t c = 0; c < 3; ++c) {
          float* channel = out + c * p.temporal * square;
          std::memcpy(channel + t * square, channel + (t - 1) * square,
                      sizeof(float) * static_cast<size_t>(square));
        }
        continue;
      }
      CutSquare(pixels + (frame * p.height + y) * row_bytes + 3 * x, row_bytes, p.patch, table,
                p.temporal * square, out + t * square);
    }
    out += p.patch_values();
  };
  for (int64_t t = 0; t < p.grid_t(); ++t) {
    for (int64_t y = 0; y < p.height; y += block) {
      for (int64_t x = 0; x < p.width; x += block) {
        for (int64_t in_y = 0; in_y < p.merge; ++in_y) {
          for (int64_t in_x = 0; in_x < p.merge; ++in_x)
            cut(t * p.temporal, y + in_y * p.patch, x + in_x * p.patch);
        }
      }
    }
  }
}

}  // namespace lockstep::images
