#include "driver/files/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::driver {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string NewFolder() {
  std::string path = absl::StrCat(::testing::TempDir(), "/regular.XXXXXX");
  return mkdtemp(path.data());
}

TEST(RegularFile, IsReadWhole) {
  const std::string path = NewFolder() + "/file";
  std::mt19937 random(1);
  for (const size_t size : {0, 1, 4095, 4096, 1 << 20}) {
    std::string content(size, '\0');
    for (char& c : content) c = static_cast<char>(random());
    std::ofstream(path, std::ios::binary) << content;

    const absl::StatusOr<std::string> read = ReadRegularFile(path);

    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, content);
  }
  EXPECT_THAT(*ReadRegularFile("/proc/self/status"), StartsWith("Name:"));  // its size is 0
}

TEST(RegularFile, WhereALinkLeadsCounts) {
  const std::string folder = NewFolder();
  std::ofstream(folder + "/file") << "content";
  std::filesystem::create_symlink("file", folder + "/link");
  std::filesystem::create_symlink("nowhere", folder + "/dangling");

  EXPECT_EQ(*ReadRegularFile(folder + "/link"), "content");
  const absl::Status status = ReadRegularFile(folder + "/dangling").status();
  EXPECT_EQ(status, absl::NotFoundError("No such file or directory"));
}

TEST(RegularFile, WhatHasNoEndOrWaitsIsAnErrorAtOnce) {
  const std::string folder = NewFolder();
  ASSERT_EQ(mkfifo((folder + "/pipe").c_str(), 0600), 0);
  std::filesystem::create_symlink("/dev/zero", folder + "/zero");
  std::filesystem::create_symlink("/dev/tty", folder + "/tty");
  std::filesystem::create_symlink("pipe", folder + "/to_pipe");

  for (const char* name : {"pipe", "to_pipe", "zero"}) {
    EXPECT_EQ(ReadRegularFile(absl::StrCat(folder, "/", name)).status(),
              absl::InvalidArgumentError("it is not a regular file"));
  }
  EXPECT_FALSE(ReadRegularFile(folder + "/tty").ok());
  EXPECT_EQ(ReadRegularFile(folder).status(), absl::InvalidArgumentError("Is a directory"));
}

TEST(RegularFile, OneThatNoStringHoldsIsAnErrorBeforeItIsRead) {
  const std::string path = NewFolder() + "/huge";
  std::ofstream(path) << "";
  ASSERT_EQ(truncate(path.c_str(), int64_t{1} << 42), 0);  // without blocks

  EXPECT_THAT(ReadRegularFile(path).status().message(),
              HasSubstr("it has 4398046511104 bytes; expected at most 2147483647"));
}

}  // namespace
}  // namespace lockstep::driver
