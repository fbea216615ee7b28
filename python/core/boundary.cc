#include "python/core/boundary.h"

#include <cstdlib>
#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/version.h"

namespace lockstep::python {

char* Give(absl::string_view text) {
  char* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) std::abort();
  std::memcpy(copy, text.data(), text.size());
  copy[text.size()] = '\0';
  return copy;
}

char* Report(const absl::Status& status) {
  if (status.ok()) return nullptr;
  return Give(absl::StrCat(absl::StatusCodeToString(status.code()), " ", status.message()));
}

}  // namespace lockstep::python

extern "C" {

void lockstep_free(char* text) { std::free(text); }

const char* lockstep_version() { return lockstep::base::kVersion; }

}  // extern "C"
