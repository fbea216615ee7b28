// Compiles CUDA C++ when the program runs, by NVRTC, which comes with CUDA's libraries. A folder of
// the user keeps the results for later processes. No GPU is needed.
//
//    if (HasCompiler()) {
//      const std::string cubin = Compile(source, /*architecture=*/90, CacheFolder());
//    }
//
// A file of the cache holds the key (the source, NVRTC's version, the architecture), the cubin and
// a checksum. It is written whole or not at all. A file that is damaged, or that has another key,
// is compiled and written again. A folder that cannot be written costs time, and is no error.
// Thread-safe, and any number of processes may share a folder.

#ifndef LOCKSTEP_KERNELS_POINTWISE_CUDA_COMPILER_H_
#define LOCKSTEP_KERNELS_POINTWISE_CUDA_COMPILER_H_

#include <cstdint>
#include <string>

namespace lockstep::kernels::pointwise::cuda {

// Returns whether NVRTC could be loaded: from the folder of CUDA's runtime if this process has
// that, else by the loader's paths.
bool HasCompiler();

// Returns "kernels" in $LOCKSTEP_CACHE, else in $XDG_CACHE_HOME/lockstep, else in
// ~/.cache/lockstep. Returns "" if no variable is set.
std::string CacheFolder();

// Returns the cubin for GPUs of an architecture (90: compute capability 9.0). Looks in `folder`, if
// it is not "". Throws c10::Error with NVRTC's log.
std::string Compile(const std::string& source, int architecture, const std::string& folder);

// Returns the number of times that this process ran NVRTC.
int64_t NumCompilations();

}  // namespace lockstep::kernels::pointwise::cuda

#endif  // LOCKSTEP_KERNELS_POINTWISE_CUDA_COMPILER_H_
