#include "driver/files/gzip_reader.h"

#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::driver {
namespace {

using ::testing::HasSubstr;

std::string Path() { return ::testing::TempDir() + "/gzip_reader"; }

std::string Member(const std::string& text) {
  gzFile file = gzopen(Path().c_str(), "wb");
  gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
  gzclose(file);
  std::ifstream written(Path(), std::ios::binary);
  return {std::istreambuf_iterator<char>(written), {}};
}

// The text of a file of these bytes, or the error.
std::string Read(const std::string& bytes, size_t block_bytes = 1000) {
  std::ofstream(Path(), std::ios::binary) << bytes;
  auto reader = GzipReader::Open(Path());
  if (!reader.ok()) return std::string(reader.status().message());
  std::string text;
  std::string block(block_bytes, '\0');
  for (;;) {
    const absl::StatusOr<size_t> size = (*reader)->Read(block.data(), block.size());
    if (!size.ok()) return std::string(size.status().message());
    if (*size == 0) return text;
    text += block.substr(0, *size);
  }
}

TEST(GzipReader, ReadsAllMembersAndPlainFiles) {
  const std::string big(300'000, 'b');
  for (const size_t block_bytes : {size_t{1}, size_t{7}, size_t{1} << 20}) {
    EXPECT_EQ(Read(Member("one") + Member("") + Member("two"), block_bytes), "onetwo");
    EXPECT_EQ(Read("plain\n", block_bytes), "plain\n");
  }
  EXPECT_EQ(Read(Member(big) + Member("end")), big + "end");
  EXPECT_EQ(Read(big), big);
  EXPECT_EQ(Read(""), "");
  EXPECT_EQ(Read("\x1f"), "\x1f");
}

TEST(GzipReader, ZerosMayFollowTheLastMember) {
  EXPECT_EQ(Read(Member("one") + std::string(300'000, '\0')), "one");
}

TEST(GzipReader, WhatFollowsAMemberAndIsNoneIsAnError) {
  const std::string one = Member("one");
  const std::string place = std::to_string(one.size());
  std::string two = Member("two");
  EXPECT_THAT(Read(one + std::string(10, '\0') + two),
              HasSubstr("ends at byte " + place + ", and other bytes at byte " +
                        std::to_string(one.size() + 10)));
  EXPECT_THAT(Read(one + "stray"), HasSubstr("begins at byte " + place));
  for (const size_t i : {size_t{0}, size_t{1}, size_t{2}, two.size() - 1, two.size() - 5}) {
    std::string damaged = two;
    damaged[i] = static_cast<char>(damaged[i] ^ 0xff);
    EXPECT_THAT(Read(one + damaged), HasSubstr(Path() + ": ")) << i;
    EXPECT_THAT(Read(one + damaged), HasSubstr("begins at byte " + place)) << i;
  }
  for (size_t size = 1; size < two.size(); ++size) {
    EXPECT_THAT(Read(one + two.substr(0, size)), HasSubstr("unexpected end of file")) << size;
  }
}

// The text of the rest of the file, or the error.
std::string ReadRest(GzipReader& reader) {
  std::string text, block(100'000, '\0');
  for (;;) {
    const absl::StatusOr<size_t> size = reader.Read(block.data(), block.size());
    if (!size.ok()) return std::string(size.status().message());
    if (*size == 0) return text;
    text += block.substr(0, *size);
  }
}

TEST(GzipReader, AFileThatIsShortenedIsAnError) {
  const std::string bytes(1'000'000, 'b');
  for (const off_t left : {off_t{700'000}, off_t{1}}) {
    std::ofstream(Path(), std::ios::binary) << bytes;
    auto reader = GzipReader::Open(Path());
    char first = 0;
    ASSERT_EQ(*(*reader)->Read(&first, 1), 1u);
    // The failure: a plain reader sees the end.
    std::ifstream naive(Path(), std::ios::binary);
    naive.get();

    ASSERT_EQ(truncate(Path().c_str(), left), 0);

    const std::string text{std::istreambuf_iterator<char>(naive), {}};
    EXPECT_LT(text.size(), bytes.size() - 1);
    EXPECT_FALSE(naive.bad());
    EXPECT_EQ(ReadRest(**reader),
              Path() + " has changed since it was opened: it had 1000000 bytes, and has " +
                  std::to_string(left) + "; a file must not shrink while a run reads it");
  }
}

TEST(GzipReader, AFileMayGrow) {
  std::ofstream(Path(), std::ios::binary) << std::string(200'000, 'b');
  auto reader = GzipReader::Open(Path());
  char first = 0;
  ASSERT_EQ(*(*reader)->Read(&first, 1), 1u);

  std::ofstream(Path(), std::ios::binary | std::ios::app) << "more";

  EXPECT_EQ(ReadRest(**reader), std::string(199'999, 'b') + "more");
}

TEST(GzipReader, APipeHasNoSize) {
  const std::string path = Path() + ".pipe";
  unlink(path.c_str());
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  std::thread writer([&] { std::ofstream(path) << std::string(300'000, 'p'); });
  auto reader = GzipReader::Open(path);

  EXPECT_EQ(ReadRest(**reader), std::string(300'000, 'p'));
  writer.join();
}

TEST(GzipReader, AFileThatIsNotThereIsNamed) {
  EXPECT_THAT(GzipReader::Open(Path() + ".none").status().message(), HasSubstr("gzip_reader.none"));
}

}  // namespace
}  // namespace lockstep::driver
