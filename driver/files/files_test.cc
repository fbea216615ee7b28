#include "driver/files/files.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "c10/util/Exception.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::driver {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Seen in a build over an older one: the driver's own runfiles, which `bazel test` does not renew,
// lacked a file that the test had.
TEST(FindRunfile, PrefersThoseOfTheRunningTestToTheProgramsOwn) {
  const std::string was = std::getenv("TEST_SRCDIR");
  const std::string newer = absl::StrCat(::testing::TempDir(), "/newer");
  std::filesystem::create_directories(newer + "/lockstep/driver/files");
  std::ofstream(newer + "/lockstep/driver/files/files_test.cc") << "newer\n";
  unsetenv("RUNFILES_DIR");

  setenv("TEST_SRCDIR", newer.c_str(), 1);
  EXPECT_EQ(FindRunfile("driver/files/files_test.cc"),
            newer + "/lockstep/driver/files/files_test.cc");
  unsetenv("TEST_SRCDIR");
  EXPECT_THAT(FindRunfile("driver/files/files_test.cc"),
              EndsWith("files_test.runfiles/lockstep/driver/files/files_test.cc"));
  setenv("TEST_SRCDIR", was.c_str(), 1);
}

TEST(FindRunfile, NamesThePlacesWhereItLooked) {
  EXPECT_THAT(
      [] { FindRunfile("driver/nowhere"); },
      ThrowsMessage<c10::Error>(AllOf(HasSubstr("driver/nowhere is not next to the program"),
                                      HasSubstr("files_test.runfiles/lockstep"),
                                      HasSubstr("bazel build //driver:lockstep"))));
}

}  // namespace
}  // namespace lockstep::driver
