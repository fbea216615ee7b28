#include "base/torch/versions/found.h"

#include <cstdint>

#include "torch/csrc/inductor/aoti_torch/c/shim.h"
#include "torch/headeronly/version.h"

namespace lockstep::base {

std::string TorchVersion::Text() const {
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
}

TorchVersion TorchBuiltFor() {
  return {TORCH_VERSION_MAJOR, TORCH_VERSION_MINOR, TORCH_VERSION_PATCH};
}

TorchVersion TorchFound() {
  const uint64_t version = aoti_torch_abi_version();  // a byte for each number, from the top
  return {static_cast<int>(version >> 56 & 0xff), static_cast<int>(version >> 48 & 0xff),
          static_cast<int>(version >> 40 & 0xff)};
}

std::string TorchMismatch(const TorchVersion& built_for, const TorchVersion& found) {
  if (built_for.major == found.major && built_for.minor == found.minor) return "";
  return "this program was built for torch " + built_for.Text() + ", and found torch " +
         found.Text() + ": start the Lockstep that was built for torch " +
         std::to_string(found.major) + "." + std::to_string(found.minor) +
         ", or give this one torch " + built_for.Text();
}

}  // namespace lockstep::base
