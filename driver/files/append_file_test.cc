#include "driver/files/append_file.h"

#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::driver {
namespace {

using ::testing::HasSubstr;

std::string NewPath(const std::string& name) {
  const std::string folder = testing::TempDir() + "/" + name;
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder + "/records";
}

std::string Read(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// Lets this process's files grow to `bytes`, as a disk does that fills up; undone at the end.
class DiskOf {
 public:
  explicit DiskOf(rlim_t bytes) {
    std::signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit = {bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~DiskOf() { setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

TEST(AppendFile, HeaderExample) {
  const std::string path = NewPath("example");

  {
    absl::StatusOr<AppendFile> file = AppendFile::Open(path);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_TRUE(file->Append("{\"step\": 0}\n").ok());
  }
  absl::StatusOr<AppendFile> again = AppendFile::Open(path);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(again->Append("{\"step\": 1}\n").ok());

  EXPECT_EQ(Read(path), "{\"step\": 0}\n{\"step\": 1}\n");
}

TEST(AppendFile, ARecordThatDoesNotFitLeavesNothing) {
  const std::string path = NewPath("full");
  absl::StatusOr<AppendFile> file = AppendFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE(file->Append("whole\n").ok());

  absl::Status status;
  {
    const DiskOf disk(10);  // room for four bytes of the second record
    status = file->Append("too long\n");
  }

  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("cannot write " + path + ": File too large"));
  EXPECT_EQ(Read(path), "whole\n");
  EXPECT_TRUE(file->Append("fits again\n").ok());
  EXPECT_EQ(Read(path), "whole\nfits again\n");
}

TEST(AppendFile, ADeviceWithoutSpaceIsAnError) {
  absl::StatusOr<AppendFile> file = AppendFile::Open("/dev/full");
  ASSERT_TRUE(file.ok()) << file.status();

  EXPECT_THAT(std::string(file->Append("x").message()),
              HasSubstr("cannot write /dev/full: No space left on device"));
}

TEST(AppendFile, ADeletedFileIsAnError) {
  const std::string path = NewPath("deleted");
  absl::StatusOr<AppendFile> file = AppendFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  std::filesystem::remove_all(std::filesystem::path(path).parent_path());

  const absl::Status status = file->Append("x");

  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr(path + " was deleted"));
}

TEST(AppendFile, AFileWhosePathNamesAnotherIsAnError) {
  const std::string path = NewPath("moved");
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  absl::StatusOr<AppendFile> file = AppendFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  std::filesystem::rename(folder, folder.string() + ".before");
  std::filesystem::create_directories(folder);
  ASSERT_TRUE(AppendFile::Open(path).ok());

  EXPECT_EQ(file->Append("x").code(), absl::StatusCode::kNotFound);
}

TEST(AppendFile, AFileThatCannotBeOpenedIsNamed) {
  const std::string path = NewPath("taken");
  std::ofstream(path) << "x";

  const auto taken = AppendFile::Open(path, AppendFile::Existing::kRefuse);
  const auto lost = AppendFile::Open(path + "/below/a/file");

  EXPECT_THAT(std::string(taken.status().message()),
              HasSubstr("cannot open " + path + ": File exists"));
  EXPECT_THAT(std::string(lost.status().message()), HasSubstr("Not a directory"));
}

}  // namespace
}  // namespace lockstep::driver
