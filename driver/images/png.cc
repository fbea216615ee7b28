// PNG, by libspng, and by libdeflate where a file is sound and not interlaced.

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "driver/images/formats.h"
#include "driver/images/stored_png.h"
#include "spng.h"

namespace lockstep::images {
namespace {

constexpr uint32_t kMaxSide = (1U << 31) - 1;  // of the format
constexpr size_t kMaxChunkBytes = size_t{64}
                                  << 20;  // of a chunk that is kept: text, profiles, EXIF

struct FreeContext {
  void operator()(spng_ctx* context) const { spng_ctx_free(context); }
};
using Context = std::unique_ptr<spng_ctx, FreeContext>;

// `bytes` must live as long as the context.
Context Open(absl::string_view bytes, int flags) {
  Context context(spng_ctx_new(flags));
  if (context == nullptr) return context;
  spng_set_image_limits(context.get(), kMaxSide, kMaxSide);
  spng_set_chunk_limits(context.get(), kMaxChunkBytes, kMaxChunkBytes);
  // As Pillow, which checks all chunks before the pixels. libspng would leave damaged ones out.
  spng_set_crc_action(context.get(), SPNG_CRC_ERROR, SPNG_CRC_ERROR);
  spng_set_png_buffer(context.get(), bytes.data(), bytes.size());
  return context;
}

// The checksums of what StorePng has checked and written are not computed again.
Context OpenStored(absl::string_view bytes) {
  Context context = Open(bytes, SPNG_CTX_IGNORE_ADLER32);
  if (context != nullptr) spng_set_crc_action(context.get(), SPNG_CRC_USE, SPNG_CRC_USE);
  return context;
}

absl::Status Failed(int error) {
  return absl::InvalidArgumentError(
      error == SPNG_IO_EOF
          ? "PNG: the data ends too early"
          : absl::StrCat("PNG: the file is corrupt or of an unsupported kind (libspng: ",
                         spng_strerror(error), ")"));
}

// Pillow clips 16-bit grey at 255 where it makes it RGB; all other 16-bit samples keep their high
// byte.
void RgbFromGrey16(const uint16_t* grey, int64_t num_pixels, uint8_t* rgb) {
  for (int64_t i = 0; i < num_pixels; ++i, rgb += 3)
    rgb[0] = rgb[1] = rgb[2] = static_cast<uint8_t>(std::min<uint16_t>(grey[i], 255));
}

// The size of the unpacked pixels of an image that is not interlaced. Sides are below 2^31, and a
// pixel has at most 64 bits.
uint64_t RawBytes(const spng_ihdr& header) {
  uint64_t samples = 1;  // of a pixel
  if (header.color_type == SPNG_COLOR_TYPE_TRUECOLOR) samples = 3;
  if (header.color_type == SPNG_COLOR_TYPE_TRUECOLOR_ALPHA) samples = 4;
  if (header.color_type == SPNG_COLOR_TYPE_GRAYSCALE_ALPHA) samples = 2;
  return header.height * (1 + (header.width * samples * header.bit_depth + 7) / 8);
}

// Finds out whether there is alpha. Returns libspng's error of the chunks before the pixels, or 0.
int FindAlpha(spng_ctx* context, const spng_ihdr& header, bool& has_alpha) {
  spng_trns transparency;
  const int error = spng_get_trns(context, &transparency);
  has_alpha = header.color_type == SPNG_COLOR_TYPE_TRUECOLOR_ALPHA ||
              header.color_type == SPNG_COLOR_TYPE_GRAYSCALE_ALPHA || error == 0;
  return error == SPNG_ECHUNKAVAIL ? 0 : error;
}

// Decodes in `format`, of `pixel_bytes` bytes a pixel, and has `convert` write the RGB.
template <typename Pixel, typename Convert>
int DecodeThrough(spng_ctx* context, int format, int flags, int64_t num_values,
                  const Convert& convert) {
  const auto values = std::make_unique_for_overwrite<Pixel[]>(static_cast<size_t>(num_values));
  const size_t size = static_cast<size_t>(num_values) * sizeof(Pixel);
  const int error = spng_decode_image(context, values.get(), size, format, flags);
  if (error == 0) convert(values.get());
  return error;
}

int DecodePixels(spng_ctx* context, const spng_ihdr& header, Alpha alpha, Image& image) {
  const int64_t num_pixels = image.height * image.width;
  uint8_t* rgb = image.pixels.get();
  bool has_alpha = false;
  if (const int error = FindAlpha(context, header, has_alpha)) return error;
  if (alpha == Alpha::kWhite && has_alpha) {
    return DecodeThrough<uint8_t>(
        context, SPNG_FMT_RGBA8, SPNG_DECODE_TRNS, 4 * num_pixels,
        [&](const uint8_t* rgba) { DropAlpha(rgba, num_pixels, alpha, rgb); });
  }
  if (header.color_type == SPNG_COLOR_TYPE_GRAYSCALE && header.bit_depth == 16) {
    return DecodeThrough<uint16_t>(context, SPNG_FMT_PNG, 0, num_pixels, [&](const uint16_t* grey) {
      RgbFromGrey16(grey, num_pixels, rgb);
    });
  }
  return spng_decode_image(context, rgb, static_cast<size_t>(3 * num_pixels), SPNG_FMT_RGB8, 0);
}

}  // namespace

absl::StatusOr<StoredImage> DecodePng(absl::string_view bytes, const DecodeOptions& options) {
  Context context = Open(bytes, 0);
  if (context == nullptr) return Failed(SPNG_EMEM);
  spng_ihdr header;
  if (const int error = spng_get_ihdr(context.get(), &header)) return Failed(error);
  absl::StatusOr<Image> image = NewImage("PNG", header.height, header.width, options);
  if (!image.ok()) return image.status();
  std::optional<StoredPng> stored;
  if (header.interlace_method == SPNG_INTERLACE_NONE) stored = StorePng(bytes, RawBytes(header));
  if (stored.has_value()) context = OpenStored(stored->bytes());
  if (context == nullptr) return Failed(SPNG_EMEM);
  if (const int error = DecodePixels(context.get(), header, options.alpha, *image))
    return Failed(error);
  // EXIF data may stand behind the pixels: this reads the file to its end. Pillow checks no chunks
  // there.
  spng_set_crc_action(context.get(), SPNG_CRC_USE, SPNG_CRC_USE);
  if (const int error = spng_decode_chunks(context.get())) return Failed(error);
  spng_exif exif;
  int orientation = 1;
  if (spng_get_exif(context.get(), &exif) == 0)
    orientation = ExifOrientation(absl::string_view(exif.data, exif.length));
  return StoredImage{*std::move(image), orientation};
}

}  // namespace lockstep::images
