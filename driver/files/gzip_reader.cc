#include "driver/files/gzip_reader.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "driver/files/file_wait.h"

namespace lockstep::driver {
namespace {

constexpr size_t kInputBytes = size_t{1} << 17;
constexpr int kGzipWindow = 15 + 16;  // the largest window, behind gzip's header

// Returns the size of a regular file; 0 of others, and if it is not known.
int64_t SizeOf(FILE* file) {
  struct stat status {};
  return fstat(fileno(file), &status) == 0 && S_ISREG(status.st_mode) ? status.st_size : 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<GzipReader>> GzipReader::Open(const std::string& path) {
  const FileWait wait("open", path);
  FILE* file = std::fopen(path.c_str(), "rbe");
  if (file == nullptr)
    return absl::UnknownError(absl::StrCat("cannot open ", path, ": ", std::strerror(errno)));
  std::unique_ptr<GzipReader> reader(new GzipReader(path, file));
  if (inflateInit2(&reader->stream_, kGzipWindow) != Z_OK)
    return absl::ResourceExhaustedError(absl::StrCat("cannot read ", path, ": out of memory"));
  return reader;
}

GzipReader::GzipReader(std::string path, FILE* file)
    : path_(std::move(path)),
      file_(file),
      input_(new unsigned char[kInputBytes]),
      bytes_(SizeOf(file)) {}

GzipReader::~GzipReader() {
  inflateEnd(&stream_);
  std::fclose(file_);
}

absl::Status GzipReader::Refill() {
  if (stream_.avail_in > 0) return absl::OkStatus();
  const FileWait wait("read", path_);
  const size_t size = std::fread(input_.get(), 1, kInputBytes, file_);
  if (size == 0 && std::ferror(file_) != 0)
    return absl::UnknownError(absl::StrCat("cannot read ", path_, ": ", std::strerror(errno)));
  if (size == 0) {
    absl::Status status = CheckSize();
    if (!status.ok()) return status;
  }
  stream_.next_in = input_.get();
  stream_.avail_in = static_cast<unsigned>(size);
  read_ += size;
  return absl::OkStatus();
}

absl::Status GzipReader::CheckSize() const {
  const int64_t now = SizeOf(file_);
  if (now >= bytes_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(path_, " has changed since it was opened: it had ", bytes_, " bytes, and has ",
                   now, "; a file must not shrink while a run reads it"));
}

absl::Status GzipReader::Damaged(absl::string_view problem) const {
  return absl::InvalidArgumentError(absl::StrCat("cannot read ", path_, ": ", problem,
                                                 " (the gzip member that begins at byte ", member_,
                                                 ")"));
}

// Finds out what follows a member, or begins the file: a member, plain bytes or the end.
absl::Status GzipReader::BeginMember() {
  absl::Status status = Refill();
  if (!status.ok()) return status;
  member_ = position();
  if (state_ == State::kStart) {
    const bool is_gzip =
        stream_.avail_in >= 2 && stream_.next_in[0] == 0x1f && stream_.next_in[1] == 0x8b;
    state_ = is_gzip ? State::kMember : State::kPlain;
    return absl::OkStatus();
  }
  if (stream_.avail_in > 0 && stream_.next_in[0] != 0) {
    if (inflateReset(&stream_) != Z_OK) return Damaged("zlib cannot begin again");
    state_ = State::kMember;
    return absl::OkStatus();
  }
  while (stream_.avail_in > 0) {
    const unsigned char* const begin = stream_.next_in;
    const unsigned char* const end = begin + stream_.avail_in;
    const unsigned char* const stray =
        std::find_if(begin, end, [](unsigned char byte) { return byte != 0; });
    if (stray != end) {
      return absl::InvalidArgumentError(
          absl::StrCat("cannot read ", path_, ": zeros follow the gzip member that ends at byte ",
                       member_, ", and other bytes at byte ",
                       position() + static_cast<uint64_t>(stray - begin), "; the file is damaged"));
    }
    stream_.avail_in = 0;
    status = Refill();
    if (!status.ok()) return status;
  }
  state_ = State::kEnd;
  return absl::OkStatus();
}

// Writes what zlib can at once to the stream's output.
absl::Status GzipReader::Step() {
  const absl::Status status = Refill();
  if (!status.ok()) return status;
  if (state_ == State::kPlain) {
    const unsigned size = std::min(stream_.avail_in, stream_.avail_out);
    if (size == 0) state_ = State::kEnd;
    if (size > 0) std::memcpy(stream_.next_out, stream_.next_in, size);
    stream_.next_in += size;
    stream_.avail_in -= size;
    stream_.next_out += size;
    stream_.avail_out -= size;
    return absl::OkStatus();
  }
  const bool at_end = stream_.avail_in == 0;
  const unsigned room = stream_.avail_out;
  const int code = inflate(&stream_, Z_NO_FLUSH);
  if (code == Z_STREAM_END) {
    state_ = State::kBetween;
  } else if (code != Z_OK && code != Z_BUF_ERROR) {
    return Damaged(stream_.msg != nullptr ? stream_.msg : "the data are damaged");
  } else if (at_end && stream_.avail_out == room) {
    return Damaged("unexpected end of file");
  }
  return absl::OkStatus();
}

absl::StatusOr<size_t> GzipReader::Read(char* to, size_t size) {
  constexpr size_t kMost = size_t{1} << 30;  // zlib counts in unsigned
  size = std::min(size, kMost);
  stream_.next_out = reinterpret_cast<unsigned char*>(to);
  stream_.avail_out = static_cast<unsigned>(size);
  while (stream_.avail_out > 0 && state_ != State::kEnd) {
    const bool begins = state_ == State::kStart || state_ == State::kBetween;
    const absl::Status status = begins ? BeginMember() : Step();
    if (!status.ok()) return status;
  }
  return size - stream_.avail_out;
}

}  // namespace lockstep::driver
