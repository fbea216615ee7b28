#include "kernels/aten/parallel.h"

#include "ATen/Parallel.h"

namespace lockstep::kernels {

void ParallelFor(int64_t count, int64_t grain, c10::function_ref<void(int64_t, int64_t)> fn) {
  at::parallel_for(0, count, grain, fn);
}

}  // namespace lockstep::kernels
