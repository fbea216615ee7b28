#include "kernels/cuda/devices.h"

#include <iterator>

namespace lockstep::kernels {
namespace {

// Ten times major plus minor. PTX is of the last one.
constexpr int kArchitectures[] = {LOCKSTEP_CUDA_ARCHITECTURES};
constexpr int kPtx = kArchitectures[std::size(kArchitectures) - 1];

// "8.9". The library of the kernels links no Abseil, whose archives may not go into one.
std::string Shown(Capability capability) {
  return std::to_string(capability.major) + "." + std::to_string(capability.minor);
}

}  // namespace

Images ImagesFor(Capability capability) {
  for (const int architecture : kArchitectures) {
    if (architecture / 10 == capability.major && architecture % 10 <= capability.minor)
      return Images::kCompiled;
  }
  return 10 * capability.major + capability.minor >= kPtx ? Images::kPtx : Images::kNone;
}

std::string KernelsLine(const std::string& name, Capability capability) {
  const Images images = ImagesFor(capability);
  if (images == Images::kCompiled) return "";
  const std::string device = "GPU: " + name + ", compute capability " + Shown(capability);
  if (images == Images::kPtx) {
    return device + ": the driver compiles Lockstep's kernels when they first run";
  }
  const Capability least = {.major = kArchitectures[0] / 10, .minor = kArchitectures[0] % 10};
  return device + ": Lockstep's kernels need " + Shown(least) + "; operators of ATen run instead";
}

}  // namespace lockstep::kernels
