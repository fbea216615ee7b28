// Puts the strict backend in front of Gloo in the program that it is linked into: see
// driver/ranks/world.cc, which calls this where it is there.

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "tests/strict/strict_backend.h"

namespace lockstep::driver {

c10::intrusive_ptr<c10d::Backend> WrapCpuBackend(c10::intrusive_ptr<c10d::Backend> gloo,
                                                 const std::string& group,
                                                 const std::vector<int>& ranks) {
  // The messages of mimo's bridges are on the CPU and use Gloo even where there are GPUs. They
  // have a group of their own.
  if (absl::EndsWith(group, ", messages)")) return gloo;
  return c10::make_intrusive<tests::StrictBackend>(std::move(gloo), group, ranks);
}

}  // namespace lockstep::driver
