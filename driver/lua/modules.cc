#include "driver/lua/modules.h"

#include "driver/lua/batching.h"
#include "driver/lua/checkpoint.h"
#include "driver/lua/core.h"
#include "driver/lua/distributed.h"
#include "driver/lua/mimo.h"
#include "driver/lua/sharding.h"
#include "driver/lua/tiled_mlp.h"
#include "driver/lua/torch.h"

namespace lockstep::lua {

void PreloadModules(LuaVm& vm) {
  vm.Preload("lockstep.core", OpenCore);
  vm.Preload("lockstep.core.batching", OpenBatching);
  vm.Preload("lockstep.core.checkpoint", OpenCheckpoint);
  vm.Preload("lockstep.core.mimo", OpenMimo);
  vm.Preload("lockstep.core.sharding", OpenSharding);
  vm.Preload("lockstep.core.tiled_mlp", OpenTiledMlp);
  vm.Preload("lockstep.torch", OpenTorch);
  vm.Preload("lockstep.distributed", OpenDistributed);
}

}  // namespace lockstep::lua
