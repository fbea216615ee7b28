// Finds the pictures in a stream of binary PPM files, one after the other, as ffmpeg writes frames.
//
//    absl::StatusOr<std::vector<PpmFrame>> frames = FindPpmFrames(bytes);
//    if (!frames.ok()) return frames.status();
//    for (const PpmFrame& frame : *frames) {
//      Use(bytes.data() + frame.begin, frame.height, frame.width);
//    }
//
// Each picture has its own size in its header, so videos that are turned, or that change their
// size, are read correctly. Takes only the form that ffmpeg writes: "P6\nWIDTH HEIGHT\n255\n",
// then RGB. Thread-safe.

#ifndef LOCKSTEP_DRIVER_IMAGES_PPM_H_
#define LOCKSTEP_DRIVER_IMAGES_PPM_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lockstep::images {

struct PpmFrame {
  int64_t height = 0;
  int64_t width = 0;
  int64_t begin = 0;  // the first byte of its pixels, [height, width, 3]
};

// Returns InvalidArgument for a header that is not valid and for a picture that is cut off.
absl::StatusOr<std::vector<PpmFrame>> FindPpmFrames(absl::string_view bytes);

}  // namespace lockstep::images

#endif  // LOCKSTEP_DRIVER_IMAGES_PPM_H_
