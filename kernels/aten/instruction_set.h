// Chooses one of the compilations of a file that is compiled for each instruction set
// (instruction_sets.bzl), as ATen chooses its own: ATEN_CPU_CAPABILITY overrides it.
//
//    LOCKSTEP_DECLARE_COMPILATIONS(RowKernels kRowKernels)
//    const RowKernels& kernels = LOCKSTEP_CHOSEN_COMPILATION(kRowKernels);

#ifndef LOCKSTEP_KERNELS_ATEN_INSTRUCTION_SET_H_
#define LOCKSTEP_KERNELS_ATEN_INSTRUCTION_SET_H_

namespace lockstep::kernels {

enum class InstructionSet { kDefault, kAvx2, kAvx512 };

// Returns the one that ATen uses in this process.
InstructionSet ChosenInstructionSet();

}  // namespace lockstep::kernels

#if defined(__x86_64__)
#define LOCKSTEP_DECLARE_COMPILATIONS(...) \
  namespace DEFAULT {                      \
  extern const __VA_ARGS__;                \
  }                                        \
  namespace AVX2 {                         \
  extern const __VA_ARGS__;                \
  }                                        \
  namespace AVX512 {                       \
  extern const __VA_ARGS__;                \
  }
#define LOCKSTEP_CHOSEN_COMPILATION(name)                                                      \
  (::lockstep::kernels::ChosenInstructionSet() == ::lockstep::kernels::InstructionSet::kAvx512 \
       ? AVX512::name                                                                          \
   : ::lockstep::kernels::ChosenInstructionSet() == ::lockstep::kernels::InstructionSet::kAvx2 \
       ? AVX2::name                                                                            \
       : DEFAULT::name)
#else
#define LOCKSTEP_DECLARE_COMPILATIONS(...) \
  namespace DEFAULT {                      \
  extern const __VA_ARGS__;                \
  }
#define LOCKSTEP_CHOSEN_COMPILATION(name) DEFAULT::name
#endif

#endif  // LOCKSTEP_KERNELS_ATEN_INSTRUCTION_SET_H_
