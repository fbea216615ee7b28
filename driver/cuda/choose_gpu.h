// Chooses a rank's GPU among the GPUs that its process sees.
//
// Most launchers show every rank all GPUs of its machine: the rank with local number 3 takes GPU 3.
// With --gpus-per-task Slurm shows each task only its own GPUs, numbered from 0, but still numbers
// the tasks of the machine.

#ifndef LOCKSTEP_DRIVER_CUDA_CHOOSE_GPU_H_
#define LOCKSTEP_DRIVER_CUDA_CHOOSE_GPU_H_

#include "absl/status/statusor.h"
#include "driver/settings/environment.h"

namespace lockstep::driver {

// Returns the rank's GPU, from 0, among the `num_gpus` (at least 1) that this process sees. Reads
// Slurm's SLURM_LOCALID, SLURM_GPUS_PER_TASK, SLURM_TRES_PER_TASK and SLURM_GPUS_ON_NODE from
// `variables`. Returns InvalidArgument if the machine has fewer GPUs than ranks.
absl::StatusOr<int> ChooseGpu(const RankEnvironment& environment, const Environment& variables,
                              int num_gpus);

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_CUDA_CHOOSE_GPU_H_
