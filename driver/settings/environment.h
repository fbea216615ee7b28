// Finds this process's rank and run in the environment variables that a launcher sets.
//
//    absl::StatusOr<std::optional<RankEnvironment>> env = RankFromEnvironment(variables);
//    if (env.ok() && !env->has_value()) StartRanks();  // no launcher has started this process
//
// Supported variables, in this order:
//
//    RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT [, LOCAL_RANK, LOCAL_WORLD_SIZE]
//      torchrun (--no-python), Kubernetes' PyTorchJob, and our own --nproc. With torchrun's
//      TORCHELASTIC_USE_AGENT_STORE=True the agent hosts the store, and rank 0 does not.
//    SLURM_STEP_ID, SLURM_PROCID, SLURM_STEP_NUM_TASKS or SLURM_NTASKS [, SLURM_LOCALID]
//      srun. MASTER_ADDR defaults to 127.0.0.1 if the step has one host, otherwise to the first
//      host of the node list. MASTER_PORT defaults to a port computed from the numbers of job and
//      step. A batch script and an interactive shell are not ranks: ./run starts ranks there.

#ifndef LOCKSTEP_DRIVER_SETTINGS_ENVIRONMENT_H_
#define LOCKSTEP_DRIVER_SETTINGS_ENVIRONMENT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace lockstep::driver {

struct RankEnvironment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;        // among the ranks of this machine: chooses the GPU
  int local_world_size = 1;  // ranks of this machine: shares the cores
  std::string master_addr;   // host of the key-value store
  uint16_t master_port = 0;
  bool store_is_hosted = false;  // by torchrun's agent or our launcher, not by rank 0
  int attempt = 0;               // how often torchrun or our launcher has started the ranks again
  bool mirrored = false;         // --dry-run: no other rank is there (see mirror.h)
};

// Returns a variable's value, or nullopt if it is not set.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;
Environment ProcessEnvironment();

// Returns the rank that the environment describes, or nullopt if it describes none. Returns
// InvalidArgument with the wrong variable and its value.
absl::StatusOr<std::optional<RankEnvironment>> RankFromEnvironment(const Environment& environment);

// Returns the first host of a Slurm node list: "gpu003" for "gpu[003-005,9],login", and "rack1gpu3"
// for "rack[1-2]gpu[3-4]".
std::string FirstSlurmHost(const std::string& node_list);

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_SETTINGS_ENVIRONMENT_H_
