#include "driver/lua/bind/modules.h"

#include "ATen/core/dispatch/Dispatcher.h"
#include "driver/lua/bind/open.h"
#include "driver/lua/bind/torch/torch.h"
#include "driver/lua/tensor/graph.h"

namespace lockstep::lua {

void PreloadModules(LuaVm& vm) {
  c10::Dispatcher::singleton()
      .findSchemaOrThrow("lockstep::replace_flash_attention", "")
      .typed<bool(bool)>()
      .call(true);
  vm.Preload("lockstep.core", OpenCore);
  vm.Preload("lockstep.core.batching", OpenBatching);
  vm.Preload("lockstep.core.checkpoint", OpenCheckpoint);
  vm.Preload("lockstep.core.data", OpenData);
  vm.Preload("lockstep.core.files", OpenFiles);
  vm.Preload("lockstep.core.graph", OpenGraph);
  vm.Preload("lockstep.core.images", OpenImages);
  vm.Preload("lockstep.core.keep", OpenKeep);
  vm.Preload("lockstep.core.mimo", OpenMimo);
  vm.Preload("lockstep.core.safetensors", OpenSafetensors);
  vm.Preload("lockstep.core.sharding", OpenSharding);
  vm.Preload("lockstep.core.state", OpenState);
  vm.Preload("lockstep.core.terminal", OpenTerminal);
  vm.Preload("lockstep.core.text", OpenText);
  vm.Preload("lockstep.core.tiled_mlp", OpenTiledMlp);
  vm.Preload("lockstep.core.watching", OpenWatching);
  vm.Preload("lockstep.torch", OpenTorch);
  vm.Preload("lockstep.distributed", OpenDistributed);
}

}  // namespace lockstep::lua
