// The format, read from hostile bytes: whatever they are, a header or one clear error.

#include "driver/files/safetensors.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cctype>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "driver/files/new_file.h"
#include "driver/files/regular_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/mutation.h"

namespace lockstep::driver {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string TestPath(const std::string& name) { return ::testing::TempDir() + "/" + name; }

void WriteFile(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

TensorEntry Scalar(const std::string& name, const std::string& dtype) {
  TensorEntry entry;
  entry.name = name;
  entry.dtype = dtype;
  return entry;
}

SafetensorsHeader Example() {
  SafetensorsHeader header;
  header.entries = {{.name = "double", .dtype = "F64", .shape = {2, 3}},
                    {.name = "layers.0.weight", .dtype = "F32", .shape = {3, 1, 2}},
                    {.name = "scalar", .dtype = "BF16", .shape = {}},
                    {.name = "empty", .dtype = "I64", .shape = {0, 4}},
                    {.name = "flags", .dtype = "BOOL", .shape = {5}}};
  header.metadata = {{"format", "pt"}, {"note", "quoted \" and \xc3\xbc"}};
  return header;
}

// The whole file: header, then bytes that count up.
std::string FileOf(SafetensorsHeader header) {
  std::string file = WriteSafetensorsHeader(header).value();
  const uint64_t data_bytes = header.entries.empty() ? 0 : header.entries.back().end;
  for (uint64_t i = 0; i < data_bytes; ++i) file.push_back(static_cast<char>(i));
  return file;
}

TEST(Safetensors, HeaderExample) {
  const std::string path = TestPath("model.safetensors");
  WriteFile(path, FileOf(Example()));

  const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path);

  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->header().metadata, Example().metadata);
  uint64_t next = 0;
  size_t num_named = 0;
  for (const TensorEntry& entry : file->header().entries) {
    for (uint64_t i = 0; i < entry.end - entry.begin; ++i, ++next)
      EXPECT_EQ(file->bytes(entry)[i], static_cast<char>(next)) << entry.name;
    for (const TensorEntry& expected : Example().entries) {
      if (entry.name != expected.name) continue;
      ++num_named;
      EXPECT_EQ(entry.dtype, expected.dtype);
      EXPECT_EQ(entry.shape, expected.shape);
    }
  }
  EXPECT_EQ(num_named, Example().entries.size());
}

TEST(Safetensors, DataBeginsAtAMultipleOfEight) {
  SafetensorsHeader header;
  for (int i = 0; i < 9; ++i) {
    header.entries.push_back(Scalar(std::string(static_cast<size_t>(i + 1), 'x'), "U8"));
    EXPECT_EQ(WriteSafetensorsHeader(header)->size() % 8, 0U);
  }
}

TEST(Safetensors, WritesToTheMappingDoNotReachTheFile) {
  const std::string path = TestPath("private.safetensors");
  WriteFile(path, FileOf(Example()));
  absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok());

  file->bytes(file->header().entries[0])[0] = 99;

  absl::StatusOr<SafetensorsFile> again = SafetensorsFile::Open(path);
  EXPECT_EQ(again->bytes(again->header().entries[0])[0], 0);
}

TEST(Safetensors, EntriesThatCannotBeWrittenAreNamed) {
  const struct {
    std::vector<TensorEntry> entries;
    const char* message;
  } kCases[] = {
      {{Scalar("a", "F31")}, "\"a\" is F31, which the format lacks"},
      {{Scalar("", "F32")}, "is not a valid tensor name"},
      {{Scalar("__metadata__", "F32")}, "is not a valid tensor name"},
      {{Scalar("a", "F32"), Scalar("a", "F32")}, "or is used twice"},
      {{Scalar("\xff", "F32")}, "is text that is not UTF-8"},
  };
  for (const auto& c : kCases) {
    SafetensorsHeader header;
    header.entries = c.entries;
    EXPECT_THAT(std::string(WriteSafetensorsHeader(header).status().message()),
                HasSubstr(c.message));
  }
}

// --- Hostile files -------------------------------------------------------------------------------

// A file that is on no disk.
class MemoryFile {
 public:
  MemoryFile() : fd_(memfd_create("safetensors", 0)), path_(absl::StrCat("/proc/self/fd/", fd_)) {}
  ~MemoryFile() { close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  const std::string& path() const { return path_; }

  void Hold(const std::string& content) const {
    ASSERT_EQ(ftruncate(fd_, static_cast<off_t>(content.size())), 0);
    ASSERT_EQ(pwrite(fd_, content.data(), content.size(), 0), static_cast<ssize_t>(content.size()));
  }

 private:
  int fd_;
  std::string path_;
};

// Reads every byte of an accepted file, so that AddressSanitizer detects a byte that does not
// exist.
absl::Status ReadAll(const std::string& path) {
  const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path);
  if (!file.ok()) return file.status();
  unsigned sum = 0;
  for (const TensorEntry& entry : file->header().entries) {
    EXPECT_GT(DtypeBytes(entry.dtype), 0U);
    for (uint64_t i = entry.begin; i < entry.end; ++i)
      sum += static_cast<unsigned char>(file->bytes(entry)[i - entry.begin]);
  }
  volatile unsigned keep = sum;
  (void)keep;
  return absl::OkStatus();
}

void ExpectOneClearError(const absl::Status& status, const std::string& path,
                         const std::string& what) {
  ASSERT_FALSE(status.ok()) << what;
  const std::string message(status.message());
  EXPECT_THAT(message, HasSubstr(path)) << what;
  EXPECT_THAT(message, Not(HasSubstr("\n"))) << what;
}

TEST(Safetensors, EveryCutIsAnErrorThatNamesTheFile) {
  const MemoryFile file;
  const std::string whole = FileOf(Example());

  for (size_t size = 0; size < whole.size(); ++size) {
    file.Hold(whole.substr(0, size));
    ExpectOneClearError(ReadAll(file.path()), file.path(), absl::StrCat("cut to ", size));
  }
}

// A number of the header, and what stands before and after it.
std::vector<std::pair<size_t, size_t>> NumbersIn(const std::string& text) {
  std::vector<std::pair<size_t, size_t>> numbers;
  for (size_t i = 0; i < text.size(); ++i) {
    if (std::isdigit(static_cast<unsigned char>(text[i])) == 0) continue;
    size_t end = i;
    while (end < text.size() && std::isdigit(static_cast<unsigned char>(text[end])) != 0) ++end;
    numbers.emplace_back(i, end);
    i = end;
  }
  return numbers;
}

std::string WithLength(const std::string& header, const std::string& data) {
  std::string file(8, '\0');
  for (size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
  return file + header + data;
}

// Headers that are JSON but lie: each number replaced by one that breaks reckoning.
TEST(Safetensors, EveryNumberOfAHeaderThatLiesIsAnError) {
  SafetensorsHeader example = Example();
  const std::string head = WriteSafetensorsHeader(example)->substr(8);
  const std::string data = FileOf(Example()).substr(8 + head.size());
  const MemoryFile file;
  int refused = 0;
  for (const auto& [begin, end] : NumbersIn(head)) {
    for (const char* lie :
         {"-1", "0.5", "9223372036854775807", "9223372036854775808", "18446744073709551615",
          "99999999999999999999999", "1e3", "null", "\"1\"", "[]", "4611686018427387904"}) {
      const std::string mutated = head.substr(0, begin) + lie + head.substr(end);
      file.Hold(WithLength(mutated, data));
      const absl::Status status = ReadAll(file.path());
      // A digit within a name or a dtype may become another name.
      if (status.ok()) continue;
      ExpectOneClearError(status, file.path(), mutated);
      ++refused;
    }
  }
  EXPECT_GT(refused, 150);
}

TEST(Safetensors, ShapesThatNoMemoryHoldsAreRefused) {
  for (const char* shape : {"[4294967296,4294967296]", "[4294967296,4294967296,0]",
                            "[0,9223372036854775807,2]", "[9223372036854775807]"}) {
    const std::string header =
        absl::StrCat("{\"a\":{\"dtype\":\"F32\",\"shape\":", shape, ",\"data_offsets\":[0,0]}}");
    EXPECT_THAT(std::string(ParseSafetensorsHeader(header, 0).status().message()),
                HasSubstr("takes more than 2^63"));
  }
}

TEST(Safetensors, DeepAndManyDimensionalHeadersAreRefusedWithoutStack) {
  const std::string deep(1'000'000, '[');
  EXPECT_FALSE(ParseSafetensorsHeader(deep, 0).ok());
  EXPECT_FALSE(ParseSafetensorsHeader(deep + std::string(deep.size(), ']'), 0).ok());
  std::string many = "{\"a\":{\"dtype\":\"F32\",\"shape\":[1";
  for (int i = 0; i < 100; ++i) many += ",1";
  EXPECT_THAT(
      std::string(
          ParseSafetensorsHeader(many + "],\"data_offsets\":[0,4]}}", 4).status().message()),
      HasSubstr("of 101 dimensions"));
}

TEST(Safetensors, ANameThatAppearsTwiceIsRefused) {
  const std::string entry = "\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}";
  EXPECT_THAT(
      std::string(ParseSafetensorsHeader("{" + entry + "," + entry + "}", 0).status().message()),
      HasSubstr("has \"a\" twice"));
}

// A header in memory of just its size: AddressSanitizer sees a byte read behind it.
void ParseAlone(const std::string& json, uint64_t data_bytes) {
  const std::vector<char> exact(json.begin(), json.end());
  const auto parsed = ParseSafetensorsHeader({exact.data(), exact.size()}, data_bytes);
  if (!parsed.ok()) return;
  for (const TensorEntry& entry : parsed->entries) EXPECT_LE(entry.end, data_bytes);
}

TEST(Safetensors, TenThousandMutatedFilesAreReadOrRefusedAndNothingElse) {
  std::mt19937_64 random = tests::FuzzGenerator();
  const MemoryFile file;
  const std::string whole = FileOf(Example());
  SafetensorsHeader example = Example();
  const std::string json = WriteSafetensorsHeader(example)->substr(8);
  int refused = 0;
  for (int i = 0; i < 10'000; ++i) {
    ParseAlone(tests::Mutate(json, 500, random), whole.size());
    file.Hold(tests::Mutate(whole, 500, random));
    const absl::Status status = ReadAll(file.path());
    if (status.ok()) continue;  // the data may have changed: checksums are not the format's
    ExpectOneClearError(status, file.path(), absl::StrCat("mutation ", i));
    ++refused;
  }
  EXPECT_GT(refused, 8'000);
}

// --- New files -----------------------------------------------------------------------------------

TEST(NewFile, TakesItsNameWhenItIsKeptAndLeavesNothingOtherwise) {
  const std::string path = TestPath("new");
  {
    NewFile dropped(path);
    EXPECT_TRUE(dropped.Write("half", 4).ok());
  }
  EXPECT_FALSE(std::ifstream(path).good());

  NewFile kept(path);
  EXPECT_TRUE(kept.Write("whole", 5).ok());
  EXPECT_TRUE(kept.Keep().ok());

  const absl::StatusOr<Checksum> checksum = ChecksumOfFile(path);
  ASSERT_TRUE(checksum.ok());
  EXPECT_EQ(checksum->bytes, 5U);
  EXPECT_EQ(checksum->crc32, 0xc459294fU);  // of "whole", by gzip
  EXPECT_EQ(kept.checksum().crc32, checksum->crc32);
}

// Bytes that begin at no multiple of anything.
std::string OddBytes(size_t size) {
  std::string bytes(size, '\0');
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 2654435761U >> 13);
  return bytes;
}

TEST(NewFile, PiecesOfAnySizeComeInOrderWithAndWithoutTheCache) {
  for (const NewFile::Way way : {NewFile::kCached, NewFile::kDirect}) {
    for (const size_t size : {size_t{0}, size_t{4096}, size_t{1} << 20, (size_t{5} << 20) + 77}) {
      const std::string path = TestPath(absl::StrCat("pieces", way, "-", size));
      const std::string head = OddBytes(size % 4096 == 0 ? 0 : 13), bytes = OddBytes(size);
      NewFile file(path, way);
      ASSERT_TRUE(file.Write(head.data(), head.size()).ok());
      ASSERT_TRUE(file.Write(bytes.data(), size / 2 + size % 2).ok());
      ASSERT_TRUE(file.Write(bytes.data() + size / 2 + size % 2, size / 2).ok());
      ASSERT_TRUE(file.Keep().ok());
      EXPECT_TRUE(*ReadRegularFile(path) == head + bytes) << way << " " << size;
      EXPECT_EQ(ChecksumOfFile(path)->crc32, file.checksum().crc32);
    }
  }
}

// Bytes of a file that are in the kernel's cache.
size_t CachedBytes(const std::string& path) {
  constexpr size_t kPage = 4096;
  const int fd = open(path.c_str(), O_RDONLY);
  const size_t size = std::filesystem::file_size(path);
  void* const mapped = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  std::vector<unsigned char> is_cached((size + kPage - 1) / kPage);
  EXPECT_EQ(mincore(mapped, size, is_cached.data()), 0);
  munmap(mapped, size);
  close(fd);
  size_t pages = 0;
  for (const unsigned char page : is_cached) pages += page & 1;
  return pages * kPage;
}

// Other filesystems may use the cache all the same.
TEST(NewFile, PassesTheCacheByOnADisk) {
  constexpr size_t kBytes = (size_t{4} << 20) + 5;
  const std::string bytes = OddBytes(kBytes);
  size_t cached[2] = {};
  for (const NewFile::Way way : {NewFile::kCached, NewFile::kDirect}) {
    const std::string path = TestPath(absl::StrCat("cached", way));
    NewFile file(path, way);
    ASSERT_TRUE(file.Write(bytes.data(), kBytes).ok());
    ASSERT_TRUE(file.Keep().ok());
    cached[way] = CachedBytes(path);
  }
  EXPECT_GT(cached[NewFile::kCached], kBytes / 2);
  struct statfs disk {};
  ASSERT_EQ(statfs(::testing::TempDir().c_str(), &disk), 0);
  if (disk.f_type == EXT4_SUPER_MAGIC || disk.f_type == XFS_SUPER_MAGIC) {
    EXPECT_LT(cached[NewFile::kDirect], kBytes / 10);
  }
}

// A write that ends within a block, as on a disk that is nearly full, is gone on with by the cache.
TEST(NewFile, AFullDiskIsAnErrorWithAndWithoutTheCache) {
  const std::string bytes = OddBytes(size_t{4} << 20);
  signal(SIGXFSZ, SIG_IGN);
  struct rlimit before {};
  getrlimit(RLIMIT_FSIZE, &before);
  struct rlimit limit = before;
  limit.rlim_cur = (size_t{2} << 20) + 1234;
  for (const NewFile::Way way : {NewFile::kCached, NewFile::kDirect}) {
    const std::string path = TestPath(absl::StrCat("full", way));
    {
      NewFile file(path, way);
      setrlimit(RLIMIT_FSIZE, &limit);
      absl::Status status = file.Write(bytes.data(), bytes.size());
      if (status.ok()) status = file.Keep();
      setrlimit(RLIMIT_FSIZE, &before);
      EXPECT_EQ(status.message(), "cannot write " + path + ": File too large");
    }
    for (const auto& entry : std::filesystem::directory_iterator(::testing::TempDir()))
      EXPECT_THAT(entry.path().string(), Not(HasSubstr(path)));
  }
}

TEST(NewFile, ReplacesWhatALinkLeadsTo) {
  const std::string path = TestPath("linked"), link = TestPath("link");
  NewFile first(path);
  ASSERT_TRUE(first.Write("old", 3).ok());
  ASSERT_TRUE(first.Keep().ok());
  ASSERT_EQ(symlink("linked", link.c_str()), 0);

  NewFile second(link);
  ASSERT_TRUE(second.Write("new", 3).ok());
  ASSERT_TRUE(second.Keep().ok());

  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(*ReadRegularFile(path), "new");
}

TEST(NewFile, LeavesPipesAndPathsWithAZeroByteAlone) {
  const std::string pipe = TestPath("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(NewFile(pipe).Keep().message(), "cannot write " + pipe + ": it is not a regular file");
  EXPECT_EQ(NewFile(pipe).Write("x", 1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));

  const std::string cut = TestPath(std::string("a\0b", 3));
  EXPECT_THAT(std::string(NewFile(cut).Keep().message()),
              testing::HasSubstr("the path has a zero byte"));
}

TEST(NewFile, SaysWhyItCannotBeWritten) {
  NewFile file(TestPath("no/such/folder/file"));
  EXPECT_THAT(std::string(file.Write("x", 1).message()), HasSubstr("No such file or directory"));
  EXPECT_FALSE(ChecksumOfFile(TestPath("nowhere")).ok());
  EXPECT_FALSE(SyncFolder(TestPath("nowhere")).ok());
  EXPECT_TRUE(SyncFolder(::testing::TempDir()).ok());
}

}  // namespace
}  // namespace lockstep::driver
