// The libtorch that this program was built for, and the one that it has found when it runs. Only
// the major and minor number decide whether they fit: libtorch keeps its C++ symbols within 2.11,
// and 2.12 has others.

#ifndef LOCKSTEP_BASE_TORCH_VERSIONS_FOUND_H_
#define LOCKSTEP_BASE_TORCH_VERSIONS_FOUND_H_

#include <string>

namespace lockstep::base {

struct TorchVersion {
  int major = 0, minor = 0, patch = 0;

  std::string Text() const;  // "2.11.0"
};

// Returns the version of the headers that this program was compiled with.
TorchVersion TorchBuiltFor();
// Returns the version that the loaded libtorch gives itself.
TorchVersion TorchFound();

// Returns an error for people, or "" if the program runs with the libtorch that was found.
std::string TorchMismatch(const TorchVersion& built_for, const TorchVersion& found);

}  // namespace lockstep::base

#endif  // LOCKSTEP_BASE_TORCH_VERSIONS_FOUND_H_
