#include "kernels/pointwise/interpreter.h"

#include "kernels/aten/instruction_set.h"

namespace lockstep::kernels::pointwise {

// One of interpreter_cpu.cc's compilations each.
LOCKSTEP_DECLARE_COMPILATIONS(Interpreters kInterpreters[2])

const Interpreters& ChosenInterpreters(bool wide) {
  static const Interpreters* const interpreters = LOCKSTEP_CHOSEN_COMPILATION(kInterpreters);
  return interpreters[wide ? 1 : 0];
}

}  // namespace lockstep::kernels::pointwise
