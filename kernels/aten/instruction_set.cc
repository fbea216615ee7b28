#include "kernels/aten/instruction_set.h"

#include <string>

#include "ATen/Version.h"

namespace lockstep::kernels {

InstructionSet ChosenInstructionSet() {
  static const InstructionSet chosen = [] {
    const std::string capability = at::get_cpu_capability();
    if (capability == "AVX512") return InstructionSet::kAvx512;
    return capability == "AVX2" ? InstructionSet::kAvx2 : InstructionSet::kDefault;
  }();
  return chosen;
}

}  // namespace lockstep::kernels
