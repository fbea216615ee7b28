// A program that reduces rows, in the form that the interpreter runs. See code.h for one that does
// not.
//
// A row is computed in phases. Softmax has three: the largest number; the exponentials and their
// sum; the quotients. A phase goes over the blocks of a row, and short rows share a block. So what
// a phase computes for each element stays in the L1 cache, or in a slot as long as the row if a
// later phase needs it. An input is loaded by each phase that needs it, because that is as fast.
//
// Slots are, in this order: the inputs, the uniform numbers, the results, expanded numbers of rows,
// temporaries of rows, temporaries of blocks, kept temporaries.

#ifndef LOCKSTEP_KERNELS_POINTWISE_ROW_CODE_H_
#define LOCKSTEP_KERNELS_POINTWISE_ROW_CODE_H_

#include <cstdint>
#include <vector>

#include "kernels/pointwise/interpreter.h"
#include "kernels/pointwise/program.h"

namespace lockstep::kernels::pointwise {

// Steps over blocks are those of a program, and these:
//
//    kLoad    loads input args[0] into its slot; args[1] is 1 if no earlier phase has loaded it
//    kStore   stores result args[0] from its slot
//    kSum...  reduces the elements of args[0] to numbers of rows
//
// Steps over rows are those of a program, and kExpand: elements from the row's numbers of args[0].
struct RowCode {
  std::vector<Step> steps;
  std::vector<Phase> phases;
  std::vector<Node> uniforms;  // as Code has them
  int64_t num_temporaries = 0;
  int64_t num_kept = 0;  // of the temporaries
};

// Throws c10::ValueError if the program needs more than kMostSlots.
RowCode CompileRows(const Program& program);

}  // namespace lockstep::kernels::pointwise

#endif  // LOCKSTEP_KERNELS_POINTWISE_ROW_CODE_H_
