#include "kernels/cuda/devices.h"

#include <string>

namespace lockstep::kernels {
namespace {

// This build's.
const Compiled& OfThisBuild() {
  static const Compiled compiled = {{LOCKSTEP_CUDA_ARCHITECTURES}, LOCKSTEP_CUDA_PTX};
  return compiled;
}

// "8.9". The library of the kernels links no Abseil, whose archives may not go into one.
std::string Shown(Capability capability) {
  return std::to_string(capability.major) + "." + std::to_string(capability.minor);
}

}  // namespace

Images ImagesFor(Capability capability) { return ImagesFor(capability, OfThisBuild()); }

Images ImagesFor(Capability capability, const Compiled& compiled) {
  for (const int architecture : compiled.architectures) {
    if (architecture / 10 == capability.major && architecture % 10 <= capability.minor)
      return Images::kCompiled;
  }
  return 10 * capability.major + capability.minor >= compiled.ptx ? Images::kPtx : Images::kNone;
}

std::string KernelsLine(const std::string& name, Capability capability) {
  const Images images = ImagesFor(capability);
  if (images == Images::kCompiled) return "";
  const std::string device = "GPU: " + name + ", compute capability " + Shown(capability);
  if (images == Images::kPtx) {
    return device + ": the driver compiles Lockstep's kernels when they first run";
  }
  const int oldest = OfThisBuild().architectures.front();
  const Capability least = {.major = oldest / 10, .minor = oldest % 10};
  return device + ": Lockstep's kernels need " + Shown(least) + "; operators of ATen run instead";
}

}  // namespace lockstep::kernels
