#include "driver/images/decode.h"

#include <new>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "driver/files/regular_file.h"
#include "driver/images/formats.h"

namespace lockstep::images {
namespace {

enum class Format { kUnknown, kJpeg, kPng, kWebp };

Format FormatOf(absl::string_view bytes) {
  if (absl::StartsWith(bytes, "\xff\xd8\xff")) return Format::kJpeg;
  if (absl::StartsWith(bytes, "\x89PNG\r\n\x1a\n")) return Format::kPng;
  if (bytes.size() >= 12 && bytes.substr(0, 4) == "RIFF" && bytes.substr(8, 4) == "WEBP")
    return Format::kWebp;
  return Format::kUnknown;
}

std::string FirstBytes(absl::string_view bytes) {
  std::string text;
  for (const char c : bytes.substr(0, 8))
    absl::StrAppend(&text, text.empty() ? "" : " ",
                    absl::StrFormat("%02x", static_cast<unsigned char>(c)));
  return text;
}

}  // namespace

bool IsImage(absl::string_view bytes) { return FormatOf(bytes) != Format::kUnknown; }

absl::StatusOr<Image> DecodeImage(absl::string_view bytes, const DecodeOptions& options) {
  absl::StatusOr<StoredImage> stored;
  switch (FormatOf(bytes)) {
    case Format::kJpeg: stored = DecodeJpeg(bytes, options); break;
    case Format::kPng: stored = DecodePng(bytes, options); break;
    case Format::kWebp: stored = DecodeWebp(bytes, options); break;
    case Format::kUnknown:
      if (bytes.empty()) return absl::InvalidArgumentError("the image has no bytes");
      return absl::InvalidArgumentError(
          absl::StrCat("not a JPEG, PNG or WebP image: ", bytes.size(), " bytes that begin with ",
                       FirstBytes(bytes)));
  }
  if (!stored.ok()) return stored.status();
  return Upright(*std::move(stored));
}

absl::StatusOr<Image> ReadImageFile(const std::string& path, const DecodeOptions& options) {
  const absl::StatusOr<std::string> bytes = driver::ReadRegularFile(path);
  if (!bytes.ok())
    return absl::NotFoundError(absl::StrCat(path, ": cannot be read: ", bytes.status().message()));
  absl::StatusOr<Image> image = DecodeImage(*bytes, options);
  if (image.ok()) return image;
  return absl::Status(image.status().code(), absl::StrCat(path, ": ", image.status().message()));
}

absl::StatusOr<Image> NewImage(const char* format, uint64_t height, uint64_t width,
                               const DecodeOptions& options) {
  // Sides are below 2^32: the product cannot overflow.
  if (height == 0 || width == 0 || height > UINT32_MAX || width > UINT32_MAX) {
    return absl::InvalidArgumentError(
        absl::StrCat(format, ": the image has ", width, " x ", height, " pixels"));
  }
  if (options.max_pixels < 0 || height * width > static_cast<uint64_t>(options.max_pixels)) {
    return absl::InvalidArgumentError(
        absl::StrCat(format, ": the image has ", width, " x ", height,
                     " pixels, more than max_pixels = ", options.max_pixels));
  }
  Image image;
  image.height = static_cast<int64_t>(height);
  image.width = static_cast<int64_t>(width);
  constexpr uint64_t kMostPixels = uint64_t{1}
                                   << 44;  // of an address space; times 3 fits in 64 bits
  if (height * width <= kMostPixels)
    image.pixels.reset(new (std::nothrow) uint8_t[height * width * 3]);
  if (image.pixels == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat(format, ": the image has ", width, " x ", height,
                     " pixels, and there is not enough memory for them; lower max_pixels"));
  }
  return image;
}

void DropAlpha(const uint8_t* rgba, int64_t num_pixels, Alpha alpha, uint8_t* rgb) {
  for (int64_t i = 0; i < num_pixels; ++i, rgba += 4, rgb += 3) {
    for (int c = 0; c < 3; ++c) {
      const unsigned a = rgba[3];
      // Over white: the mean of colour and 255, weighted by alpha and 255 - alpha, rounded to
      // nearest.
      rgb[c] = alpha == Alpha::kDrop
                   ? rgba[c]
                   : static_cast<uint8_t>((rgba[c] * a + 255 * (255 - a) + 127) / 255);
    }
  }
}

}  // namespace lockstep::images
