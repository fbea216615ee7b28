#include "driver/images/stored_png.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "libdeflate.h"

namespace lockstep::images {
namespace {

constexpr size_t kSignature = 8;
constexpr size_t kChunkHead = 8;     // length and type
constexpr size_t kChunkBytes = 12;   // these and the CRC
constexpr size_t kBlockHead = 5;     // of DEFLATE: a byte of flags, the length, its complement
constexpr size_t kMaxBlock = 65535;  // of DEFLATE's stored blocks
constexpr size_t kZlibHead = 2;      // the header of the format
constexpr size_t kAdler = 4;         // the checksum at its end
constexpr char kZlibHeader[] = "\x78\x01";
constexpr size_t kBytesOfBlock = kChunkBytes + kBlockHead;

struct FreeDecompressor {
  void operator()(libdeflate_decompressor* d) const { libdeflate_free_decompressor(d); }
};

uint32_t BigEndian(const char* at) {
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value = value << 8 | static_cast<uint8_t>(at[i]);
  return value;
}

void PutBigEndian(uint32_t value, char* at) {
  for (int i = 3; i >= 0; --i, value >>= 8) at[i] = static_cast<char>(value);
}

// The compressed pixels, and what stands before and behind them.
struct Parts {
  absl::string_view before;
  std::string pixels;
  absl::string_view behind;
};

std::optional<Parts> Split(absl::string_view png) {
  Parts parts;
  parts.pixels.reserve(png.size());
  size_t first = 0;   // of the IDAT chunks
  size_t behind = 0;  // the last of them
  for (size_t at = kSignature;;) {
    if (png.size() < at || png.size() - at < kChunkBytes) return std::nullopt;
    const size_t length = BigEndian(png.data() + at);
    if (length > png.size() - at - kChunkBytes) return std::nullopt;
    const absl::string_view type = png.substr(at + 4, 4);
    const absl::string_view content = png.substr(at + kChunkHead, length);
    const size_t next = at + kChunkBytes + length;
    if ((behind == 0 || type == "IDAT") &&
        BigEndian(png.data() + next - 4) !=
            libdeflate_crc32(0, type.data(), type.size() + length)) {
      return std::nullopt;
    }
    if (type == "IDAT") {
      if (first == 0) first = at;
      if (behind != 0 && behind != at) return std::nullopt;
      behind = next;
      parts.pixels.append(content.data(), content.size());
    }
    at = next;
    if (type == "IEND") break;
  }
  parts.before = png.substr(0, first);
  parts.behind = png.substr(behind);
  return parts;
}

// Writes IDAT chunks of a stored block each, to `out`. The pixels lie at the end of the same
// memory. Each block moves towards the front, so that none is written over before it has moved.
void WriteBlocks(const char* pixels, size_t raw_bytes, const char* adler, char* out) {
  for (size_t done = 0; done < raw_bytes;) {
    const size_t size = std::min(kMaxBlock, raw_bytes - done);
    const bool is_first = done == 0;
    const bool is_last = done + size == raw_bytes;
    const size_t length = (is_first ? kZlibHead : 0) + kBlockHead + size + (is_last ? kAdler : 0);
    PutBigEndian(static_cast<uint32_t>(length), out);
    std::memcpy(out + 4, "IDAT", 4);
    out += kChunkHead;
    if (is_first) {
      std::memcpy(out, kZlibHeader, kZlibHead);
      out += kZlibHead;
    }
    const char head[kBlockHead] = {is_last ? '\1' : '\0', static_cast<char>(size),
                                   static_cast<char>(size >> 8), static_cast<char>(~size),
                                   static_cast<char>(~size >> 8)};
    std::memcpy(out, head, kBlockHead);
    std::memmove(out + kBlockHead, pixels + done, size);
    out += kBlockHead + size;
    done += size;
    if (is_last) {
      std::memcpy(out, adler, kAdler);
      out += kAdler;
    }
    std::memset(out, 0, 4);  // the CRC
    out += 4;
  }
}

}  // namespace

std::optional<StoredPng> StorePng(absl::string_view png, size_t raw_bytes) {
  const std::optional<Parts> parts = Split(png);
  if (!parts.has_value() || raw_bytes == 0) return std::nullopt;
  const size_t num_blocks = (raw_bytes + kMaxBlock - 1) / kMaxBlock;
  const size_t added = kZlibHead + num_blocks * kBytesOfBlock + kAdler;
  StoredPng stored;
  stored.size = parts->before.size() + added + raw_bytes + parts->behind.size();
  stored.data = std::make_unique_for_overwrite<char[]>(stored.size);
  char* const blocks = stored.data.get() + parts->before.size();
  char* const pixels = blocks + added;

  const std::unique_ptr<libdeflate_decompressor, FreeDecompressor> decompressor(
      libdeflate_alloc_decompressor());
  if (decompressor == nullptr) return std::nullopt;
  size_t taken = 0;
  size_t given = 0;
  const libdeflate_result result =
      libdeflate_zlib_decompress_ex(decompressor.get(), parts->pixels.data(), parts->pixels.size(),
                                    pixels, raw_bytes, &taken, &given);
  if (result != LIBDEFLATE_SUCCESS || taken != parts->pixels.size() || given != raw_bytes)
    return std::nullopt;
  std::memcpy(stored.data.get(), parts->before.data(), parts->before.size());
  WriteBlocks(pixels, raw_bytes, parts->pixels.data() + taken - kAdler, blocks);
  std::memcpy(pixels + raw_bytes, parts->behind.data(), parts->behind.size());
  return stored;
}

}  // namespace lockstep::images
