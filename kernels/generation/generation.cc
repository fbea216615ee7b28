#include "kernels/generation/generation.h"

#include "kernels/aten/instruction_set.h"

namespace lockstep::kernels {

// One of generation_cpu.cc's compilations each.
LOCKSTEP_DECLARE_COMPILATIONS(GenerationKernels kGenerationKernels)

const GenerationKernels& ChosenGenerationKernels() {
  static const GenerationKernels& kernels = LOCKSTEP_CHOSEN_COMPILATION(kGenerationKernels);
  return kernels;
}

}  // namespace lockstep::kernels
