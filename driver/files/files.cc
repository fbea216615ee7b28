#include "driver/files/files.h"

#include <cstdlib>
#include <filesystem>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "c10/util/Exception.h"

namespace lockstep::driver {

std::string FindRunfile(const std::string& path) {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  // A test's own come first: Bazel makes the program's for `bazel build` of the program alone, so
  // that those of a test may be newer.
  std::vector<std::string> places;
  for (const char* variable : {"RUNFILES_DIR", "TEST_SRCDIR"}) {
    if (const char* runfiles = std::getenv(variable)) {
      places.push_back(absl::StrCat(runfiles, "/lockstep/", path));
    }
  }
  places.push_back(absl::StrCat(program.string(), ".runfiles/lockstep/", path));
  places.push_back((program.parent_path() / path).string());
  for (const std::string& place : places) {
    if (std::filesystem::exists(place, error)) return place;
  }
  C10_THROW_ERROR(Error, absl::StrCat(path, " is not next to the program; looked for ",
                                      absl::StrJoin(places, ", "),
                                      "; build it with `bazel build //driver:lockstep`"));
}

}  // namespace lockstep::driver
