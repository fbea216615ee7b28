// WebP, by libwebp: the lossy and the lossless kind, with or without the extended header.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "driver/images/formats.h"
#include "webp/decode.h"
#include "webp/demux.h"

namespace lockstep::images {
namespace {

struct FreeDemuxer {
  void operator()(WebPDemuxer* demuxer) const { WebPDemuxDelete(demuxer); }
};
using Demuxer = std::unique_ptr<WebPDemuxer, FreeDemuxer>;

absl::Status Failed(absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("WebP: ", why));
}

absl::Status Failed(VP8StatusCode code) {
  switch (code) {
    case VP8_STATUS_NOT_ENOUGH_DATA:
    case VP8_STATUS_SUSPENDED: return Failed("the data ends too early");
    case VP8_STATUS_OUT_OF_MEMORY: return Failed("libwebp found no memory");
    case VP8_STATUS_UNSUPPORTED_FEATURE:
      return Failed("the file uses a feature that libwebp does not support");
    default: return Failed("the file is corrupt");
  }
}

int OrientationOf(const WebPDemuxer* demuxer) {
  WebPChunkIterator chunk;
  if (WebPDemuxGetChunk(demuxer, "EXIF", 1, &chunk) == 0) return 1;
  const absl::string_view exif(reinterpret_cast<const char*>(chunk.chunk.bytes), chunk.chunk.size);
  const int orientation = ExifOrientation(exif);
  WebPDemuxReleaseChunkIterator(&chunk);
  return orientation;
}

}  // namespace

absl::StatusOr<StoredImage> DecodeWebp(absl::string_view bytes, const DecodeOptions& options) {
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  WebPDecoderConfig config;
  if (WebPInitDecoderConfig(&config) == 0) return Failed("libwebp has another version");
  if (const VP8StatusCode code = WebPGetFeatures(data, bytes.size(), &config.input))
    return Failed(code);
  if (config.input.has_animation != 0)
    return Failed("the file is an animation; only still images can be read");
  absl::StatusOr<Image> image = NewImage("WebP", static_cast<uint64_t>(config.input.height),
                                         static_cast<uint64_t>(config.input.width), options);
  if (!image.ok()) return image.status();
  const WebPData file = {data, bytes.size()};
  WebPDemuxState state = WEBP_DEMUX_PARSE_ERROR;
  const Demuxer demuxer(WebPDemuxPartial(&file, &state));
  if (demuxer == nullptr || state == WEBP_DEMUX_PARSE_ERROR)
    return Failed(VP8_STATUS_BITSTREAM_ERROR);
  if (state != WEBP_DEMUX_DONE) return Failed(VP8_STATUS_NOT_ENOUGH_DATA);

  const bool blend = options.alpha == Alpha::kWhite && config.input.has_alpha != 0;
  const int64_t num_pixels = image->height * image->width;
  std::unique_ptr<uint8_t[]> rgba;
  if (blend) rgba = std::make_unique_for_overwrite<uint8_t[]>(static_cast<size_t>(4 * num_pixels));
  const int pixel_bytes = blend ? 4 : 3;
  config.output.colorspace = blend ? MODE_RGBA : MODE_RGB;
  config.output.is_external_memory = 1;
  config.output.u.RGBA.rgba = blend ? rgba.get() : image->pixels.get();
  config.output.u.RGBA.stride = static_cast<int>(image->width) * pixel_bytes;
  config.output.u.RGBA.size = static_cast<size_t>(num_pixels * pixel_bytes);
  const VP8StatusCode code = WebPDecode(data, bytes.size(), &config);
  WebPFreeDecBuffer(&config.output);
  if (code != VP8_STATUS_OK) return Failed(code);
  if (blend) DropAlpha(rgba.get(), num_pixels, options.alpha, image->pixels.get());
  return StoredImage{*std::move(image), OrientationOf(demuxer.get())};
}

}  // namespace lockstep::images
