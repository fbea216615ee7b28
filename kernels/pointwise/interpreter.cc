#include "kernels/pointwise/interpreter.h"

#include <string>

#include "ATen/Version.h"

namespace lockstep::kernels::pointwise {

// One of interpreter_cpu.cc's compilations each.
namespace DEFAULT {
extern const Interpreters kInterpreters[2];
}
#if defined(__x86_64__)
namespace AVX2 {
extern const Interpreters kInterpreters[2];
}
namespace AVX512 {
extern const Interpreters kInterpreters[2];
}
#endif

const Interpreters& ChosenInterpreters(bool wide) {
  static const Interpreters* const interpreters = [] {
#if defined(__x86_64__)
    const std::string capability = at::get_cpu_capability();
    if (capability == "AVX512") return AVX512::kInterpreters;
    if (capability == "AVX2") return AVX2::kInterpreters;
#endif
    return DEFAULT::kInterpreters;
  }();
  return interpreters[wide ? 1 : 0];
}

}  // namespace lockstep::kernels::pointwise
