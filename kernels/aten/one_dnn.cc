#include "kernels/aten/one_dnn.h"

namespace lockstep::kernels {
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
  static const bool is_faster = IsOneDnnFaster(ChosenInstructionSet(), IsIntel());
  return is_faster;
}

}  // namespace lockstep::kernels
