#include "driver/images/patches.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace lockstep::images {
namespace {

// Every channel has a table of its own: byte b becomes b + 1000 * channel.
std::vector<float> Table() {
  std::vector<float> table(3 * 256);
  for (size_t i = 0; i < table.size(); ++i)
    table[i] = static_cast<float>(i % 256) + 1000.0F * static_cast<float>(i / 256);
  return table;
}

std::vector<uint8_t> Frames(const Patching& p) {
  std::vector<uint8_t> pixels(static_cast<size_t>(p.frames * p.height * p.width * 3));
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<uint8_t>(i * 37 + i / 251);
  return pixels;
}

// The definition: where each value of each patch comes from.
std::vector<float> Naive(const Patching& p, const std::vector<uint8_t>& pixels) {
  const std::vector<float> table = Table();
  const int64_t blocks_x = p.width / p.patch / p.merge;
  const int64_t per_frame = (p.height / p.patch) * (p.width / p.patch);
  std::vector<float> out;
  for (int64_t row = 0; row < p.num_patches(); ++row) {
    const int64_t in_block = row % (p.merge * p.merge);
    const int64_t block = row % per_frame / (p.merge * p.merge);
    const int64_t top = (block / blocks_x * p.merge + in_block / p.merge) * p.patch;
    const int64_t left = (block % blocks_x * p.merge + in_block % p.merge) * p.patch;
    for (int64_t c = 0; c < 3; ++c) {
      for (int64_t t = 0; t < p.temporal; ++t) {
        const int64_t frame = std::min(row / per_frame * p.temporal + t, p.frames - 1);
        for (int64_t i = 0; i < p.patch * p.patch; ++i) {
          const int64_t y = top + i / p.patch;
          const int64_t x = left + i % p.patch;
          const int64_t at = ((frame * p.height + y) * p.width + x) * 3 + c;
          out.push_back(table[static_cast<size_t>(c * 256 + pixels[static_cast<size_t>(at)])]);
        }
      }
    }
  }
  return out;
}

TEST(Patches, EveryGridIsAsDefined) {
  for (const int64_t frames : {1, 2, 3, 5}) {
    for (const int64_t temporal : {1, 2, 3}) {
      for (const int64_t merge : {1, 2, 3}) {
        for (const auto& [rows, columns] : {std::pair{1, 1}, {1, 3}, {3, 2}}) {
          Patching p{.frames = frames, .patch = 5, .temporal = temporal, .merge = merge};
          p.height = rows * p.patch * merge;
          p.width = columns * p.patch * merge;
          const std::vector<uint8_t> pixels = Frames(p);
          std::vector<float> out(static_cast<size_t>(p.num_values()));

          CutPatches(p, pixels.data(), Table().data(), out.data());

          ASSERT_EQ(out, Naive(p, pixels))
              << frames << " frames, " << temporal << " a patch, merge " << merge << ", " << rows
              << " x " << columns;
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::images
