// Decodes JPEG, PNG and WebP files to 8-bit RGB, upright.
//
//    absl::StatusOr<Image> image = DecodeImage(bytes);
//    if (!image.ok()) return image.status();  // "JPEG: the data ends too early (...)"
//    Use(image->pixels.get(), image->height, image->width);
//
// The failure this prevents: training on pixels that differ from those that inference will see. The
// pixels are those of Pillow's `Image.open(f).convert("RGB")` after `ImageOps.exif_transpose`, byte
// for byte:
//
//    grey        is copied to three channels
//    16 bits     gives the high byte of each sample
//                (a 16-bit grey image without alpha is clipped at 255, as in Pillow)
//    palette     is looked up
//    alpha       is dropped, or blended over white (Alpha::kWhite, as transformers' processors do)
//    CMYK, YCCK  is inverted (Adobe's convention), then converted without a colour profile
//    EXIF        turns the image (values 2 to 8; others are ignored, and so are entries without
//                their values)
//
// Ignores colour profiles and gamma, as Pillow does. Reads the default image of an animated PNG,
// and refuses an animated WebP. The first bytes tell the format, not a file name.
//
// Untrusted bytes: the size in the header is checked against `max_pixels` before memory is taken,
// and a progressive JPEG may have at most 500 scans. A file that is cut off or corrupt is an error,
// never a half-filled image. Nothing here knows of tensors or of Lua. Thread-safe.

#ifndef LOCKSTEP_DRIVER_IMAGES_DECODE_H_
#define LOCKSTEP_DRIVER_IMAGES_DECODE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep::images {

// The treatment of transparency.
enum class Alpha {
  kDrop,   // The colour values stay as they are stored.
  kWhite,  // The image is blended over white.
};

struct DecodeOptions {
  Alpha alpha = Alpha::kDrop;
  int64_t max_pixels = 178'956'970;  // width times height; Pillow refuses files from here on
};

// Pixels in rows from the top, three bytes each.
struct Image {
  int64_t height = 0;
  int64_t width = 0;
  std::unique_ptr<uint8_t[]> pixels;  // [height, width, 3]
};

// Returns whether the bytes begin as a JPEG, PNG or WebP file does.
bool IsImage(absl::string_view bytes);

// Returns InvalidArgument for bytes that are not one complete image, for an animated WebP and for
// an image of more than max_pixels. The message is one line, begins with the format and says what
// was wrong.
absl::StatusOr<Image> DecodeImage(absl::string_view bytes, const DecodeOptions& options = {});

// Reads the file and decodes it. Returns NotFound where it cannot be read. The message begins with
// the path.
absl::StatusOr<Image> ReadImageFile(const std::string& path, const DecodeOptions& options = {});

}  // namespace lockstep::images

#endif  // LOCKSTEP_DRIVER_IMAGES_DECODE_H_
