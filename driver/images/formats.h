// The decoders behind DecodeImage, one file each. Private to this folder.

#ifndef LOCKSTEP_DRIVER_IMAGES_FORMATS_H_
#define LOCKSTEP_DRIVER_IMAGES_FORMATS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "driver/images/decode.h"

namespace lockstep::images {

// An image as it is stored, and the EXIF orientation (1 to 8) that turns it upright.
struct StoredImage {
  Image image;
  int orientation = 1;
};

absl::StatusOr<StoredImage> DecodeJpeg(absl::string_view bytes, const DecodeOptions& options);
absl::StatusOr<StoredImage> DecodePng(absl::string_view bytes, const DecodeOptions& options);
absl::StatusOr<StoredImage> DecodeWebp(absl::string_view bytes, const DecodeOptions& options);

// Allocates the pixels, uninitialised. Returns InvalidArgument, before any memory is taken, where a
// side is 0 or the image has more than max_pixels. `format` begins the message.
absl::StatusOr<Image> NewImage(const char* format, uint64_t height, uint64_t width,
                               const DecodeOptions& options);

// Writes RGB from RGBA: without alpha, or blended over white.
void DropAlpha(const uint8_t* rgba, int64_t num_pixels, Alpha alpha, uint8_t* rgb);

// Returns the orientation tag of EXIF data: a TIFF file, with or without "Exif\0\0" before it.
// Returns 1 if there is no valid tag. Damaged EXIF data does not make the picture unreadable.
int ExifOrientation(absl::string_view exif);

// Returns the image turned upright.
Image Upright(StoredImage stored);

}  // namespace lockstep::images

#endif  // LOCKSTEP_DRIVER_IMAGES_FORMATS_H_
