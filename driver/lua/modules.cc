#include "driver/lua/modules.h"

#include "driver/lua/batching.h"
#include "driver/lua/checkpoint.h"
#include "driver/lua/core.h"
#include "driver/lua/cuda.h"
#include "driver/lua/distributed.h"
#include "driver/lua/files.h"
#include "driver/lua/mimo.h"
#include "driver/lua/safetensors.h"
#include "driver/lua/sharding.h"
#include "driver/lua/state.h"
#include "driver/lua/terminal.h"
#include "driver/lua/tiled_mlp.h"
#include "driver/lua/torch.h"
#include "driver/lua/watching.h"

namespace lockstep::lua {

void PreloadModules(LuaVm& vm) {
  vm.Preload("lockstep.core", OpenCore);
  vm.Preload("lockstep.core.batching", OpenBatching);
  vm.Preload("lockstep.core.checkpoint", OpenCheckpoint);
  vm.Preload("lockstep.core.files", OpenFiles);
  vm.Preload("lockstep.core.graph", OpenGraph);
  vm.Preload("lockstep.core.mimo", OpenMimo);
  vm.Preload("lockstep.core.safetensors", OpenSafetensors);
  vm.Preload("lockstep.core.sharding", OpenSharding);
  vm.Preload("lockstep.core.state", OpenState);
  vm.Preload("lockstep.core.terminal", OpenTerminal);
  vm.Preload("lockstep.core.tiled_mlp", OpenTiledMlp);
  vm.Preload("lockstep.core.watching", OpenWatching);
  vm.Preload("lockstep.torch", OpenTorch);
  vm.Preload("lockstep.distributed", OpenDistributed);
}

}  // namespace lockstep::lua
