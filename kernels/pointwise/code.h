// A program in the form that the interpreter runs: steps over blocks of numbers in slots. The slots
// are, in this order: the inputs, the uniform numbers, the results, the temporaries. A temporary is
// taken again once nothing needs its numbers, so that all slots of a block stay in the first cache.

#ifndef LOCKSTEP_KERNELS_POINTWISE_CODE_H_
#define LOCKSTEP_KERNELS_POINTWISE_CODE_H_

#include <cstdint>
#include <vector>

#include "c10/util/ArrayRef.h"
#include "kernels/pointwise/interpreter.h"
#include "kernels/pointwise/program.h"

namespace lockstep::kernels::pointwise {

struct Code {
  std::vector<Step> steps;
  // Computed once for a call, before the steps. Operands are indices into this list.
  std::vector<Node> uniforms;
  int64_t num_temporaries = 0;
};

// Throws c10::ValueError if the program needs more than kMostSlots.
Code Compile(const Program& program);

// Returns the uniform numbers of a call.
std::vector<double> UniformsOf(const Code& code, c10::ArrayRef<double> numbers);

}  // namespace lockstep::kernels::pointwise

#endif  // LOCKSTEP_KERNELS_POINTWISE_CODE_H_
