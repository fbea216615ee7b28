#include "base/torch/one_dnn.h"

#include "ATen/Context.h"
#include "ATen/Version.h"

namespace lockstep::base {
namespace {

bool IsIntel() {
#if defined(__x86_64__)
  return __builtin_cpu_is("intel") != 0;
#else
  return false;
#endif
}

}  // namespace

bool IsOneDnnFaster() {
  static const bool is_faster =
      at::Context::hasMKLDNN() && IsOneDnnFaster(at::get_cpu_capability() == "AVX512", IsIntel());
  return is_faster;
}

}  // namespace lockstep::base
