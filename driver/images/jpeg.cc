// JPEG, by libjpeg-turbo.
//
// libjpeg reports an error by a call that must not return, and jumps back from there with longjmp.
// So nothing with a destructor lives in the function that calls setjmp: all of it is in `Reader`,
// which its caller owns.

#include <csetjmp>
#include <cstddef>
#include <cstdio>  // jpeglib.h needs FILE.
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "driver/images/formats.h"
// libjpeg's headers follow the types that they need.
#include "jpeglib.h"
// Message codes.
#include "jerror.h"

namespace lockstep::images {
namespace {

constexpr int kMaxScans = 500;  // of a progressive file; each one costs a pass over the image

struct Reader {
  jpeg_decompress_struct info = {};
  jpeg_error_mgr errors = {};
  jpeg_progress_mgr progress = {};
  std::jmp_buf back;
  char message[JMSG_LENGTH_MAX] = {};  // why it jumped back
  bool too_many_scans = false;
  const DecodeOptions* options = nullptr;
  absl::StatusOr<Image> image;
  std::unique_ptr<uint8_t[]> row;  // of four channels
  int orientation = 1;

  ~Reader() { jpeg_destroy_decompress(&info); }
};

Reader& ReaderOf(j_common_ptr info) { return *static_cast<Reader*>(info->client_data); }

void Fail(j_common_ptr info) {
  Reader& reader = ReaderOf(info);
  (*info->err->format_message)(info, reader.message);
  std::longjmp(reader.back, 1);
}

// Warnings say that libjpeg went on with pixels that it made up; only some are harmless.
void Warn(j_common_ptr info, int level) {
  if (level >= 0) return;  // a trace
  switch (info->err->msg_code) {
    case JWRN_ADOBE_XFORM:      // an unknown colour transform: the usual one is taken
    case JWRN_BOGUS_ICC:        // colour profiles are not read
    case JWRN_EXTRANEOUS_DATA:  // bytes between two segments are skipped, as Pillow does
    case JWRN_JFIF_MAJOR:       // a newer revision of the header
    case JWRN_TOO_MUCH_DATA: return;
    default: Fail(info);
  }
}

void LimitScans(j_common_ptr info) {
  Reader& reader = ReaderOf(info);
  if (reader.info.input_scan_number <= kMaxScans) return;
  reader.too_many_scans = true;
  std::longjmp(reader.back, 1);
}

void IgnoreMessage(j_common_ptr) {}

int OrientationOf(const jpeg_decompress_struct& info) {
  for (const jpeg_marker_struct* m = info.marker_list; m != nullptr; m = m->next) {
    const absl::string_view data(reinterpret_cast<const char*>(m->data), m->data_length);
    if (m->marker == JPEG_APP0 + 1 && absl::StartsWith(data, absl::string_view("Exif\0\0", 6)))
      return ExifOrientation(data);
  }
  return 1;
}

// Rounds a * b / 255 to the nearest integer.
unsigned Scaled(unsigned a, unsigned b) { return (a * b + 127) / 255; }

// Adobe writes CMYK inverted: 255 is no ink.
void RgbFromInvertedCmyk(const uint8_t* cmyk, int64_t num_pixels, uint8_t* rgb) {
  for (int64_t i = 0; i < num_pixels; ++i, cmyk += 4, rgb += 3) {
    const unsigned light = cmyk[3];
    for (int c = 0; c < 3; ++c)
      rgb[c] = static_cast<uint8_t>(light - Scaled(255U - cmyk[c], light));
  }
}

// Returns false where libjpeg failed or the image could not be allocated.
bool Read(Reader& reader, absl::string_view bytes) {
  jpeg_decompress_struct& info = reader.info;
  info.err = jpeg_std_error(&reader.errors);
  reader.errors.error_exit = Fail;
  reader.errors.emit_message = Warn;
  reader.errors.output_message = IgnoreMessage;
  info.client_data = &reader;
  if (setjmp(reader.back) != 0) return false;
  jpeg_create_decompress(&info);
  reader.progress.progress_monitor = LimitScans;
  info.progress = &reader.progress;
  jpeg_mem_src(&info, reinterpret_cast<const unsigned char*>(bytes.data()),
               static_cast<unsigned long>(bytes.size()));
  jpeg_save_markers(&info, JPEG_APP0 + 1, 0xffff);
  jpeg_read_header(&info, TRUE);
  reader.orientation = OrientationOf(info);
  const bool four = info.num_components == 4;
  info.out_color_space = four ? JCS_CMYK : JCS_RGB;
  reader.image = NewImage("JPEG", info.image_height, info.image_width, *reader.options);
  if (!reader.image.ok()) return false;
  if (four) reader.row = std::make_unique<uint8_t[]>(size_t{4} * info.image_width);
  jpeg_start_decompress(&info);
  uint8_t* out = reader.image->pixels.get();
  while (info.output_scanline < info.output_height) {
    JSAMPROW row = four ? reader.row.get() : out;
    jpeg_read_scanlines(&info, &row, 1);
    if (four) RgbFromInvertedCmyk(row, reader.image->width, out);
    out += 3 * reader.image->width;
  }
  jpeg_finish_decompress(&info);
  return true;
}

std::string Describe(const Reader& reader) {
  if (reader.too_many_scans)
    return absl::StrCat("the file has more than ", kMaxScans, " scans of the image");
  const bool in_pixels = reader.info.output_height > 0;
  const std::string where = in_pixels ? absl::StrCat(" at row ", reader.info.output_scanline,
                                                     " of ", reader.info.output_height)
                                      : "";
  switch (reader.errors.msg_code) {
    case JWRN_JPEG_EOF:
    case JERR_INPUT_EOF:
    case JWRN_HIT_MARKER:
      return absl::StrCat("the data ends too early", where, " (libjpeg: ", reader.message, ")");
    default:
      return absl::StrCat("the file is corrupt or of an unsupported kind", where,
                          " (libjpeg: ", reader.message, ")");
  }
}

}  // namespace

absl::StatusOr<StoredImage> DecodeJpeg(absl::string_view bytes, const DecodeOptions& options) {
  Reader reader;
  reader.options = &options;
  if (Read(reader, bytes)) return StoredImage{*std::move(reader.image), reader.orientation};
  if (absl::IsInvalidArgument(reader.image.status())) return reader.image.status();  // its size
  return absl::InvalidArgumentError(absl::StrCat("JPEG: ", Describe(reader)));
}

}  // namespace lockstep::images
