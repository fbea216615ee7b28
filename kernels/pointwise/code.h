// A program in the form that the interpreter runs: steps over blocks of numbers in slots. The slots
// are, in this order: the inputs, the uniform numbers, the results, the temporaries. A temporary is
// taken again once nothing needs its numbers, so that all slots of a block stay in the first cache.

#ifndef LOCKSTEP_KERNELS_POINTWISE_CODE_H_
#define LOCKSTEP_KERNELS_POINTWISE_CODE_H_

#include <cstddef>
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

// Returns the uniform numbers of a call, whose rows have `length` elements.
std::vector<double> UniformsOf(const std::vector<Node>& uniforms, c10::ArrayRef<double> numbers,
                               int64_t length);

// --- What both kinds of code need

// Returns the same program with a * b + c as one node where nothing else uses the product. ATen too
// rounds x + alpha * y once. The product's node stays, and nothing uses it.
Program WithMulAdds(const Program& program);

// Returns the node of a uniform number. Its operands are places in the list of these numbers.
// slots[i] is the slot of node i, and `first` the slot of the first uniform number.
Node UniformNode(const Node& node, const std::vector<int64_t>& slots, int64_t first);

// Throws c10::ValueError if a program, with these numbers and temporaries, needs more than
// kMostSlots.
void CheckSlots(const Program& program, size_t num_uniforms, int64_t num_temporaries);

}  // namespace lockstep::kernels::pointwise

#endif  // LOCKSTEP_KERNELS_POINTWISE_CODE_H_
