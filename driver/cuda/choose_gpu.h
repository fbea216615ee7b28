// Which of the GPUs that a process sees is its rank's.
//
// Most launchers show every rank all GPUs of its machine: rank number 3 there takes GPU 3. With
// --gpus-per-task Slurm shows each task its own GPUs alone, numbered from 0, and numbers the tasks
// of the machine all the same.

#ifndef LOCKSTEP_DRIVER_CUDA_CHOOSE_GPU_H_
#define LOCKSTEP_DRIVER_CUDA_CHOOSE_GPU_H_

#include "absl/status/statusor.h"
#include "driver/launch/environment.h"

namespace lockstep::driver {

// Returns the rank's GPU, from 0, among the `num_gpus` (at least 1) that this process sees.
// `variables` are read for Slurm's SLURM_LOCALID, SLURM_GPUS_PER_TASK, SLURM_TRES_PER_TASK and
// SLURM_GPUS_ON_NODE. Error: InvalidArgument where the machine has fewer GPUs than ranks.
absl::StatusOr<int> ChooseGpu(const RankEnvironment& environment, const Environment& variables,
                              int num_gpus);

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_CUDA_CHOOSE_GPU_H_
