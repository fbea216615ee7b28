// Runs a loop on ATen's threads.
//
//    ParallelFor(rows, grain, [&](int64_t begin, int64_t end) { Compute(begin, end); });
//
// at::parallel_for is a template. In code that is compiled without OpenMP it runs on one thread,
// with no error. This is the one place that calls it, and it is compiled with OpenMP.

#ifndef LOCKSTEP_KERNELS_ATEN_PARALLEL_H_
#define LOCKSTEP_KERNELS_ATEN_PARALLEL_H_

#include <cstdint>

#include "c10/util/FunctionRef.h"

namespace lockstep::kernels {

// Calls fn(begin, end) for parts of [0, count): one for each of at::get_num_threads() threads, of
// at least `grain` numbers. Within another parallel loop there is one part. Throws what fn throws.
void ParallelFor(int64_t count, int64_t grain, c10::function_ref<void(int64_t, int64_t)> fn);

}  // namespace lockstep::kernels

#endif  // LOCKSTEP_KERNELS_ATEN_PARALLEL_H_
