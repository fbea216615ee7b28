// PNGs written again without compression: that libspng reads the same pixels, and which files are
// left as they are.

#include "driver/images/stored_png.h"

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "libdeflate.h"
#include "spng.h"
#include "tests/support/mutation.h"

namespace lockstep::images {
namespace {

constexpr uint32_t kWidth = 97;

std::string Encode(uint32_t height, const std::vector<uint8_t>& rgb, uint32_t width = kWidth) {
  spng_ctx* context = spng_ctx_new(SPNG_CTX_ENCODER);
  spng_set_option(context, SPNG_ENCODE_TO_BUFFER, 1);
  spng_ihdr header = {width, height, 8, SPNG_COLOR_TYPE_TRUECOLOR, 0, 0, 0};
  spng_set_ihdr(context, &header);
  EXPECT_EQ(spng_encode_image(context, rgb.data(), rgb.size(), SPNG_FMT_PNG, SPNG_ENCODE_FINALIZE),
            0);
  size_t size = 0;
  int error = 0;
  void* bytes = spng_get_png_buffer(context, &size, &error);
  std::string png(static_cast<const char*>(bytes), size);
  std::free(bytes);
  spng_ctx_free(context);
  return png;
}

// Returns the pixels, or none if libspng refuses them. Checks no CRC of a critical chunk.
std::vector<uint8_t> Decode(absl::string_view png, uint32_t height, uint32_t width = kWidth) {
  spng_ctx* context = spng_ctx_new(0);
  spng_set_crc_action(context, SPNG_CRC_USE, SPNG_CRC_USE);
  spng_set_png_buffer(context, png.data(), png.size());
  std::vector<uint8_t> rgb(size_t{3} * width * height);
  const int error = spng_decode_image(context, rgb.data(), rgb.size(), SPNG_FMT_RGB8, 0);
  spng_ctx_free(context);
  return error == 0 ? rgb : std::vector<uint8_t>();
}

size_t RawBytes(uint32_t height, uint32_t width = kWidth) {
  return size_t{height} * (1 + 3 * width);
}

std::vector<uint8_t> RandomPixels(uint32_t height, std::mt19937_64& random) {
  std::vector<uint8_t> rgb(size_t{3} * kWidth * height);
  // Grain over slopes: every filter is used.
  for (size_t i = 0; i < rgb.size(); ++i) rgb[i] = static_cast<uint8_t>(i / 7 + random() % 5);
  return rgb;
}

TEST(StoredPng, LibspngReadsTheSamePixels) {
  std::mt19937_64 random = tests::FuzzGenerator();
  // From a part of a stored block to several.
  for (const uint32_t height : {1, 2, 224, 225, 448, 449, 450, 1000}) {
    const std::vector<uint8_t> rgb = RandomPixels(height, random);
    const std::string png = Encode(height, rgb);

    const std::optional<StoredPng> stored = StorePng(png, RawBytes(height));

    ASSERT_TRUE(stored.has_value()) << height;
    EXPECT_GT(stored->size, RawBytes(height));
    EXPECT_EQ(Decode(stored->bytes(), height), rgb) << height;
  }
}

TEST(StoredPng, BlocksThatAreFullToTheLastByteAreRead) {
  constexpr uint32_t kWide = 1456;  // 15 rows have 65,535 bytes
  for (const uint32_t height : {15, 30}) {
    const std::vector<uint8_t> rgb(size_t{3} * kWide * height, 77);

    const std::optional<StoredPng> stored =
        StorePng(Encode(height, rgb, kWide), RawBytes(height, kWide));

    ASSERT_TRUE(stored.has_value());
    EXPECT_EQ(Decode(stored->bytes(), height, kWide), rgb);
  }
}

TEST(StoredPng, OtherSizesAreLeftAsTheyAre) {
  std::mt19937_64 random = tests::FuzzGenerator();
  const std::string png = Encode(20, RandomPixels(20, random));

  EXPECT_TRUE(StorePng(png, RawBytes(20)).has_value());
  EXPECT_FALSE(StorePng(png, RawBytes(20) - 1).has_value());
  EXPECT_FALSE(StorePng(png, RawBytes(20) + 1).has_value());
  EXPECT_FALSE(StorePng(png, 0).has_value());
}

TEST(StoredPng, DamagedFilesAreLeftAsTheyAre) {
  std::mt19937_64 random = tests::FuzzGenerator();
  const std::string png = Encode(20, RandomPixels(20, random));

  for (size_t size = 0; size < png.size(); ++size) {
    const std::vector<char> exact(png.begin(), png.begin() + static_cast<int64_t>(size));
    EXPECT_FALSE(StorePng({exact.data(), size}, RawBytes(20)).has_value()) << size;
  }
  // A changed byte behind the signature: in a length, a type, a content or a CRC. libspng writes
  // IHDR, IDAT and IEND. The CRC of the last of them is behind the pixels.
  for (size_t i = 8; i < png.size() - 4; ++i) {
    std::string changed = png;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    EXPECT_FALSE(StorePng(changed, RawBytes(20)).has_value()) << i;
  }
}

std::string BigEndian(size_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift);
  return bytes;
}

std::string Chunk(const std::string& type, const std::string& content) {
  const std::string body = type + content;
  return BigEndian(content.size()) + body +
         BigEndian(libdeflate_crc32(0, body.data(), body.size()));
}

TEST(StoredPng, ChunksBeforeAndBehindThePixelsStay) {
  std::mt19937_64 random = tests::FuzzGenerator();
  const std::vector<uint8_t> rgb = RandomPixels(20, random);
  std::string png = Encode(20, rgb);
  const std::string text = Chunk("tEXt", std::string("a\0b", 3));
  std::string wrong = text;
  wrong.back() = static_cast<char>(wrong.back() ^ 1);
  EXPECT_FALSE(StorePng(std::string(png).insert(33, wrong), RawBytes(20)).has_value());
  png.insert(33, text);
  png.insert(png.size() - 12, wrong);

  const std::optional<StoredPng> stored = StorePng(png, RawBytes(20));

  ASSERT_TRUE(stored.has_value());
  EXPECT_EQ(stored->bytes().substr(0, 33 + 15), png.substr(0, 33 + 15));
  EXPECT_EQ(stored->bytes().substr(stored->size - 27), png.substr(png.size() - 27));
  EXPECT_EQ(Decode(stored->bytes(), 20), rgb);
}

TEST(StoredPng, TheChunksOfPixelsMustBeNeighboursAndEndWithTheirStream) {
  std::mt19937_64 random = tests::FuzzGenerator();
  const std::string png = Encode(20, RandomPixels(20, random));
  const std::string pixels = png.substr(41, png.size() - 12 - 4 - 41);
  const auto is_stored = [&](const std::string& chunks) {
    const std::string file = png.substr(0, 33) + chunks + png.substr(png.size() - 12);
    return StorePng(file, RawBytes(20)).has_value();
  };
  const std::string half = Chunk("IDAT", pixels.substr(0, 100));
  const std::string rest = Chunk("IDAT", pixels.substr(100));

  EXPECT_TRUE(is_stored(Chunk("IDAT", pixels)));
  EXPECT_TRUE(is_stored(half + Chunk("IDAT", "") + rest));
  EXPECT_FALSE(is_stored(half + Chunk("tEXt", "a") + rest));
  EXPECT_FALSE(is_stored(Chunk("IDAT", pixels + "x")));
  EXPECT_FALSE(is_stored(half));
  EXPECT_FALSE(is_stored(""));
}

// Decoding of the tests' files goes this way: decode_test compares their pixels with Pillow's.
TEST(StoredPng, TheFilesOfTheTestsAreStored) {
  const struct {
    const char* name;
    size_t bits;  // of a pixel
  } kCases[] = {{"png_grey16.png", 16}, {"png_rgb16.png", 48}, {"png_rgba.png", 32}};
  for (const auto& c : kCases) {
    std::ifstream in(std::string("driver/images/testdata/") + c.name, std::ios::binary);
    const std::string png(std::istreambuf_iterator<char>(in), {});
    ASSERT_GT(png.size(), 24U) << c.name;
    const auto width = static_cast<uint8_t>(png[19]);
    const auto height = static_cast<uint8_t>(png[23]);

    EXPECT_TRUE(StorePng(png, height * (1 + (width * c.bits + 7) / 8)).has_value()) << c.name;
  }
}

}  // namespace
}  // namespace lockstep::images
