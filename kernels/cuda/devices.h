// The GPUs that the kernels run on, by compute capability.
//
// The failure this prevents: "no kernel image is available for execution on the device", in the
// middle of the first step on a GPU that nvcc compiled nothing for, such as a T4.
//
//    ImagesFor({.major = 7, .minor = 5});  // kNone: the operators compose those of ATen
//
// A GPU runs machine code of its major number, made for its minor number or a lower one. The driver
// compiles PTX for any GPU as new as the PTX, when a kernel first runs. Source: CUDA's programming
// guide, "Binary compatibility" and "PTX compatibility".

#ifndef LOCKSTEP_KERNELS_CUDA_DEVICES_H_
#define LOCKSTEP_KERNELS_CUDA_DEVICES_H_

#include <string>
#include <vector>

namespace lockstep::kernels {

struct Capability {
  int major = 0;
  int minor = 0;
};

enum class Images {
  kCompiled,  // nvcc made machine code for it
  kPtx,       // its driver compiles the kernels at their first use
  kNone,      // operators run without the kernels
};

// The compute capabilities, times ten, that nvcc compiled the kernels for.
struct Compiled {
  std::vector<int> architectures;  // machine code, from the oldest on
  int ptx = 0;
};

// Returns what there is for a GPU. third_party/cuda/configure.bzl has this build's list.
Images ImagesFor(Capability capability);
Images ImagesFor(Capability capability, const Compiled& compiled);

// Returns a line for the start of a run, or "" for a GPU that nvcc compiled for. `name`: the GPU's.
std::string KernelsLine(const std::string& name, Capability capability);

}  // namespace lockstep::kernels

#endif  // LOCKSTEP_KERNELS_CUDA_DEVICES_H_
