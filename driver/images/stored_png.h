// Unpacks the pixels of a PNG by libdeflate, for libspng to read.
//
//   if (std::optional<StoredPng> stored = StorePng(png, raw_bytes)) Decode(stored->bytes());
//
// libspng inflates by zlib, which takes most of the time of a PNG. libdeflate is faster, but needs
// all of the data at once and has no place in libspng. So this writes the same PNG again, with
// pixels that are stored instead of compressed. libspng still undoes the filters and converts the
// colours.
//
// Only sound files are written again. All others return nothing: libspng reads the original, and
// has the word on what is an error. Thread-safe.

#ifndef LOCKSTEP_DRIVER_IMAGES_STORED_PNG_H_
#define LOCKSTEP_DRIVER_IMAGES_STORED_PNG_H_

#include <cstddef>
#include <memory>
#include <optional>

#include "absl/strings/string_view.h"

namespace lockstep::images {

// A PNG. The CRCs of its IDAT chunks are not set: those of the original have been checked.
struct StoredPng {
  std::unique_ptr<char[]> data;
  size_t size = 0;

  absl::string_view bytes() const { return {data.get(), size}; }
};

// `raw_bytes` is the size of the unpacked pixels, with a byte for the filter of each row. Returns
// nothing for a chunk that is cut short, and for a wrong CRC up to the last IDAT. The IDAT chunks
// must be neighbours, and the pixels exactly of that size.
std::optional<StoredPng> StorePng(absl::string_view png, size_t raw_bytes);

}  // namespace lockstep::images

#endif  // LOCKSTEP_DRIVER_IMAGES_STORED_PNG_H_
