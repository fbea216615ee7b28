// Compiled three times, with other flags and another CPU_CAPABILITY each time: see BUILD.
//
// Includes as little as it can. The linker keeps one copy of an inline function: if that copy were
// compiled here with AVX-512, the program would crash on a machine without it. capability_test.sh
// looks for such functions.

#include "kernels/loops.h"
#include "kernels/pack.h"
#include "kernels/rows.h"

namespace lockstep::kernels::CPU_CAPABILITY {

extern const RowKernels kRowKernels;
const RowKernels kRowKernels = KernelsOfOneThread<Cpu>();

}  // namespace lockstep::kernels::CPU_CAPABILITY
