// Every file of testdata against what Pillow decodes (tests/images/make_images.py), and hostile
// bytes.

#include "driver/images/decode.h"

#include <cstdint>
#include <fstream>
#include <iterator>
#include <limits>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "driver/images/formats.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/mutation.h"

namespace lockstep::images {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string TestFile(const std::string& name) {
  std::ifstream in("driver/images/testdata/" + name, std::ios::binary);
  EXPECT_TRUE(in.good()) << name;
  return std::string(std::istreambuf_iterator<char>(in), {});
}

// A line of decoded.txt.
struct Expected {
  std::string name;
  std::string alpha;
  int64_t height = 0;
  int64_t width = 0;
  std::string hash;
};

std::vector<Expected> ExpectedImages() {
  std::istringstream lines(TestFile("decoded.txt"));
  std::vector<Expected> all;
  for (Expected e; lines >> e.name >> e.alpha >> e.height >> e.width >> e.hash;) all.push_back(e);
  return all;
}

std::vector<std::string> TestFiles() {
  std::set<std::string> names;
  for (const Expected& e : ExpectedImages()) names.insert(e.name);
  return {names.begin(), names.end()};
}

// FNV-1a of 64 bits, as make_images.py computes it.
std::string HashOf(const Image& image) {
  uint64_t hash = 0xcbf29ce484222325;
  for (int64_t i = 0; i < image.height * image.width * 3; ++i)
    hash = (hash ^ image.pixels[static_cast<size_t>(i)]) * 0x100000001b3;
  return absl::StrFormat("%016x", hash);
}

// Bytes in memory of just their size: AddressSanitizer sees a byte read behind them.
absl::StatusOr<Image> DecodeExactly(const std::string& bytes, const DecodeOptions& options = {}) {
  const std::vector<char> exact(bytes.begin(), bytes.end());
  return DecodeImage({exact.data(), exact.size()}, options);
}

void ExpectOneClearError(const absl::StatusOr<Image>& image, const std::string& what) {
  ASSERT_FALSE(image.ok()) << what;
  const std::string message(image.status().message());
  EXPECT_FALSE(message.empty()) << what;
  EXPECT_THAT(message, Not(HasSubstr("\n"))) << what;
}

TEST(Decode, HeaderExample) {
  const std::string bytes = TestFile("jpeg_420.jpg");

  const absl::StatusOr<Image> image = DecodeImage(bytes);

  ASSERT_TRUE(image.ok()) << image.status();
  EXPECT_EQ(image->height, 29);
  EXPECT_EQ(image->width, 37);
}

TEST(Decode, EveryFileHasPillowsPixels) {
  const std::vector<Expected> all = ExpectedImages();
  EXPECT_GE(all.size(), 12U);
  for (const Expected& e : all) {
    const Alpha alpha = e.alpha == "white" ? Alpha::kWhite : Alpha::kDrop;
    const absl::StatusOr<Image> image = DecodeExactly(TestFile(e.name), {.alpha = alpha});
    ASSERT_TRUE(image.ok()) << e.name << ": " << image.status();
    EXPECT_EQ(image->height, e.height) << e.name;
    EXPECT_EQ(image->width, e.width) << e.name;
    EXPECT_EQ(HashOf(*image), e.hash) << e.name << " " << e.alpha;
  }
}

TEST(Decode, AFileIsReadAndNamedInItsError) {
  EXPECT_EQ(HashOf(*ReadImageFile("driver/images/testdata/png_rgba.png")),
            HashOf(*DecodeImage(TestFile("png_rgba.png"))));
  EXPECT_THAT(std::string(ReadImageFile("driver/images/testdata/decoded.txt").status().message()),
              StartsWith("driver/images/testdata/decoded.txt: not a JPEG, PNG or WebP image"));
  const absl::Status absent = ReadImageFile("no/such.png").status();
  EXPECT_TRUE(absl::IsNotFound(absent));
  EXPECT_THAT(std::string(absent.message()),
              HasSubstr("no/such.png: cannot be read: No such file"));
  EXPECT_TRUE(absl::IsNotFound(ReadImageFile("driver/images").status()));
}

TEST(Decode, ImagesWithoutAlphaAreTheSameOverWhite) {
  for (const char* name : {"jpeg_420.jpg", "png_grey16.png", "png_rgb16.png", "webp_lossy.webp"}) {
    const std::string bytes = TestFile(name);
    EXPECT_EQ(HashOf(*DecodeImage(bytes, {.alpha = Alpha::kWhite})), HashOf(*DecodeImage(bytes)));
  }
}

TEST(Decode, EveryOrientationIsUndone) {
  // The 3 x 2 image of pixels 0 to 5, as it looks upright.
  const struct {
    int orientation;
    int64_t height, width;
    std::vector<int> upright;
  } kCases[] = {
      {1, 2, 3, {0, 1, 2, 3, 4, 5}}, {2, 2, 3, {2, 1, 0, 5, 4, 3}}, {3, 2, 3, {5, 4, 3, 2, 1, 0}},
      {4, 2, 3, {3, 4, 5, 0, 1, 2}}, {5, 3, 2, {0, 3, 1, 4, 2, 5}}, {6, 3, 2, {3, 0, 4, 1, 5, 2}},
      {7, 3, 2, {5, 2, 4, 1, 3, 0}}, {8, 3, 2, {2, 5, 1, 4, 0, 3}},
  };
  for (const auto& c : kCases) {
    StoredImage stored{*NewImage("test", 2, 3, {}), c.orientation};
    for (size_t i = 0; i < 18; ++i)
      stored.image.pixels[i] = static_cast<uint8_t>(i / 3 * 10 + i % 3);
    const Image image = Upright(std::move(stored));
    EXPECT_EQ(image.height, c.height) << c.orientation;
    EXPECT_EQ(image.width, c.width) << c.orientation;
    for (size_t i = 0; i < 18; ++i) {
      EXPECT_EQ(image.pixels[i], c.upright[i / 3] * 10 + static_cast<int>(i % 3))
          << c.orientation << " at " << i;
    }
  }
}

TEST(Exif, OrientationIsReadInBothByteOrdersAndDamageIsIgnored) {
  const std::string little("II\x2a\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0", 22);
  const std::string big("MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x08\0\0", 22);

  EXPECT_EQ(ExifOrientation(little), 6);
  EXPECT_EQ(ExifOrientation(big), 8);
  EXPECT_EQ(ExifOrientation(std::string("Exif\0\0", 6) + little), 6);
  EXPECT_EQ(ExifOrientation(""), 1);
  EXPECT_EQ(ExifOrientation("JFIF"), 1);
  for (size_t size = 0; size < 20; ++size) EXPECT_EQ(ExifOrientation(little.substr(0, size)), 1);
  std::string nine = little;
  nine[18] = 9;
  EXPECT_EQ(ExifOrientation(nine), 1);
  std::string far = little;
  far.replace(4, 4, "\xf8\xff\xff\xff");  // the directory lies outside
  EXPECT_EQ(ExifOrientation(far), 1);
}

std::string LittleEndian(uint32_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> 8 * i);
  return text;
}

// The entry of the orientation in a directory of EXIF data.
std::string Entry(uint32_t type, uint32_t count, const std::string& value) {
  return LittleEndian(0x0112, 2) + LittleEndian(type, 2) + LittleEndian(count, 4) + value;
}

TEST(Exif, EntriesAreTakenOrSkippedAsPillowDoes) {
  const std::string six("\6\0\0\0", 4), one("\1\0\0\0", 4), at26("\x1a\0\0\0", 4);
  const struct {
    std::string entry;
    int expected;  // Pillow's with 13.0.0
    std::string elsewhere = {};
  } kCases[] = {
      {Entry(3, 1, six), 6},
      {Entry(3, 2, six), 6},
      {Entry(3, 0, six), 1},
      {Entry(3, 3, six), 1},
      {Entry(3, 0xffffffff, six), 1},
      {Entry(3, 0x80000000, six), 1},
      {Entry(3, 3, at26), 6, std::string("\6\0\6\0\6\0", 6)},
      {Entry(3, 3, at26), 1, std::string("\6\0\6\0\6", 5)},
      {Entry(4, 1, six), 6},
      {Entry(6, 1, six), 6},
      {Entry(8, 1, six), 6},
      {Entry(9, 1, six), 6},
      {Entry(1, 1, six), 1},
      {Entry(2, 1, six), 1},
      {Entry(7, 1, six), 1},
      {Entry(99, 1, six), 1},
      {Entry(3, 0, six) + Entry(3, 1, six), 6},
      {Entry(3, 0xffffffff, one) + Entry(3, 1, six), 6},
      {Entry(3, 1, one) + Entry(3, 1, six), 1},
  };
  for (const auto& c : kCases) {
    const auto num_entries = static_cast<uint32_t>(c.entry.size() / 12);
    const std::string exif = "II" + LittleEndian(42, 2) + LittleEndian(8, 4) +
                             LittleEndian(num_entries, 2) + c.entry + LittleEndian(0, 4) +
                             c.elsewhere;
    EXPECT_EQ(ExifOrientation(exif), c.expected) << &c - kCases;
  }
}

TEST(Decode, AWrongChecksumOfAPngIsAnErrorBeforeThePixelsAndNoneBehindThem) {
  const std::string right("\0\0\0\4gAMA\0\0\xb1\x8f\x0b\xfc\x61\x05", 16);
  std::string wrong = right;
  wrong.back() = 6;
  std::string turn(
      "\0\0\0\x16"
      "eXIfII\x2a\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0",
      30);
  turn += std::string(4, 'x');
  for (const char* name : {"png_rgba.png", "png_rgb_key.png", "png_rgb_interlaced.png"}) {
    const std::string png = TestFile(name);
    const std::string hash = HashOf(*DecodeExactly(png));
    const size_t end = png.size() - 12;

    EXPECT_EQ(HashOf(*DecodeExactly(std::string(png).insert(33, right))), hash) << name;
    for (const Alpha alpha : {Alpha::kDrop, Alpha::kWhite}) {
      const absl::StatusOr<Image> refused =
          DecodeExactly(std::string(png).insert(33, wrong), {.alpha = alpha});
      ExpectOneClearError(refused, name);
      EXPECT_THAT(std::string(refused.status().message()), HasSubstr("invalid chunk checksum"));
    }

    EXPECT_EQ(HashOf(*DecodeExactly(std::string(png).insert(end, wrong))), hash) << name;
    std::string end_wrong = png;
    end_wrong.back() = 0;
    EXPECT_EQ(HashOf(*DecodeExactly(end_wrong)), hash) << name;
    const absl::StatusOr<Image> turned = DecodeExactly(std::string(png).insert(end, turn));
    ASSERT_TRUE(turned.ok()) << turned.status();
    EXPECT_NE(HashOf(*turned), hash) << name;
  }
}

TEST(Decode, WhatIsNoImageIsNamedByItsFirstBytes) {
  EXPECT_THAT(std::string(DecodeImage("").status().message()), HasSubstr("no bytes"));
  EXPECT_THAT(std::string(DecodeImage("GIF89a, and more").status().message()),
              HasSubstr("16 bytes that begin with 47 49 46 38 39 61 2c 20"));
  EXPECT_FALSE(IsImage("GIF89a"));
  for (const std::string& name : TestFiles()) EXPECT_TRUE(IsImage(TestFile(name)));
}

TEST(Decode, TheFormatIsToldInTheMessage) {
  EXPECT_THAT(std::string(DecodeImage(TestFile("jpeg_420.jpg").substr(0, 800)).status().message()),
              StartsWith("JPEG: the data ends too early at row"));
  EXPECT_THAT(std::string(DecodeImage(TestFile("png_rgba.png").substr(0, 300)).status().message()),
              StartsWith("PNG: the data ends too early"));
  EXPECT_THAT(
      std::string(DecodeImage(TestFile("webp_lossy.webp").substr(0, 200)).status().message()),
      StartsWith("WebP: the data ends too early"));
}

TEST(Decode, EveryCutIsAnError) {
  for (const std::string& name : TestFiles()) {
    const std::string whole = TestFile(name);
    // A PNG ends with a chunk of 12 bytes that holds nothing: the image is complete without it.
    const size_t end = whole.size() - (name.substr(0, 3) == "png" ? 12 : 0);
    for (size_t size = 0; size < end; size += 1 + size / 40)
      ExpectOneClearError(DecodeExactly(whole.substr(0, size)),
                          absl::StrCat(name, " cut to ", size));
  }
}

TEST(Decode, ImagesOfTooManyPixelsAreRefusedBeforeMemoryIsTaken) {
  EXPECT_TRUE(DecodeImage(TestFile("jpeg_420.jpg"), {.max_pixels = 29 * 37}).ok());
  for (const char* name : {"jpeg_420.jpg", "png_rgba.png", "webp_lossy.webp"}) {
    const absl::StatusOr<Image> image = DecodeImage(TestFile(name), {.max_pixels = 100});
    ASSERT_FALSE(image.ok());
    EXPECT_THAT(std::string(image.status().message()), HasSubstr("more than max_pixels = 100"));
  }
  std::string bomb = TestFile("jpeg_420.jpg");
  const size_t frame = bomb.find("\xff\xc0");
  bomb.replace(frame + 5, 4, "\xff\xdc\xff\xdc");  // 65,500 x 65,500
  EXPECT_THAT(
      std::string(DecodeImage(bomb).status().message()),
      HasSubstr("JPEG: the image has 65500 x 65500 pixels, more than max_pixels = 178956970"));
}

TEST(Decode, AnImageThatMemoryCannotHoldIsAnErrorWithItsSize) {
  const DecodeOptions any{.max_pixels = std::numeric_limits<int64_t>::max()};
  // Three bytes for each pixel of the second are more than 64 bits count.
  for (const uint64_t side : {uint64_t{1} << 30, uint64_t{2'479'700'525}}) {
    EXPECT_THAT(std::string(NewImage("PNG", side, side, any).status().message()),
                HasSubstr(absl::StrCat("PNG: the image has ", side, " x ", side,
                                       " pixels, and there is not enough memory for them")));
  }
}

TEST(Decode, AnAnimatedWebpIsRefused) {
  std::string file = TestFile("webp_alpha.webp");
  ASSERT_EQ(file.substr(12, 4), "VP8X");
  file[20] = static_cast<char>(file[20] | 2);  // the flag of an animation
  EXPECT_THAT(std::string(DecodeImage(file).status().message()), HasSubstr("is an animation"));
}

TEST(Decode, AThousandMutatedFilesOfEachFormatAreReadOrRefusedAndNothingElse) {
  std::mt19937_64 random = tests::FuzzGenerator();
  const std::vector<std::string> names = TestFiles();
  int refused = 0;
  for (int i = 0; i < 3'000; ++i) {
    const std::string& name = names[static_cast<size_t>(i) % names.size()];
    const Alpha alpha = random() % 2 == 0 ? Alpha::kDrop : Alpha::kWhite;
    const absl::StatusOr<Image> image = DecodeExactly(tests::Mutate(TestFile(name), 200, random),
                                                      {.alpha = alpha, .max_pixels = 1 << 20});
    if (image.ok()) {
      EXPECT_GT(image->height * image->width, 0) << name;
      volatile size_t hashed = HashOf(*image).size();  // reads every byte
      (void)hashed;
      continue;
    }
    ExpectOneClearError(image, absl::StrCat(name, ", mutation ", i));
    ++refused;
  }
  EXPECT_GT(refused, 1'500);
}

}  // namespace
}  // namespace lockstep::images
