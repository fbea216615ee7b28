#include "driver/lua/tensor/tensor.h"

#include <memory>
#include <string>

#include "ATen/ops/from_blob.h"
#include "driver/lua/vm/vm.h"
#include "gtest/gtest.h"

namespace lockstep::lua {
namespace {

int num_made = 0;
int num_freed = 0;
float values[4];

// make(with_node): a tensor whose release is counted.
int Make(lua_State* state) {
  at::Tensor tensor = at::from_blob(values, {4}, [](void*) { ++num_freed; });
  ++num_made;
  // A view keeps the tensor, and has a node of autograd.
  if (lua_toboolean(state, 1) != 0) tensor = tensor.requires_grad_(true).view({2, 2});
  return PushTensor(state, tensor);
}

std::unique_ptr<LuaVm> NewVm() {
  auto vm = std::make_unique<LuaVm>(LuaVm::Options{.library_root = "", .script_folder = ""});
  RegisterTensor(vm->state());
  lua_register(vm->state(), "make", Make);
  return vm;
}

void RunCode(LuaVm& vm, const std::string& code) {
  const auto error = vm.RunString(code, "=test");
  ASSERT_FALSE(error.has_value()) << error->message;
}

// The collector looks at the values around the one that it frees, which may be another state's.
TEST(Tensor, EachIsFreedOnceWhateverElseIsFreed) {
  num_made = num_freed = 0;
  std::unique_ptr<LuaVm> first = NewVm();
  std::unique_ptr<LuaVm> second = NewVm();

  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 100; ++i) {
      for (LuaVm* vm : {first.get(), second.get()})
        RunCode(*vm, "kept = kept or {}; kept[#kept + 1] = make(#kept % 2 == 0)");
    }
    RunCode(*second, "for i = #kept, 1, -3 do kept[i] = make(false) end; collectgarbage()");
    first.reset();  // gives its memory back to the system
    RunCode(*second, "for i = 1, #kept, 2 do kept[i] = make(true) end; collectgarbage()");
    EXPECT_LT(num_freed, num_made);
    first = NewVm();
  }
  RunCode(*second, "kept = nil; collectgarbage()");
  EXPECT_EQ(num_freed, num_made);

  first.reset();
  second.reset();
  EXPECT_EQ(num_freed, num_made);
}

}  // namespace
}  // namespace lockstep::lua
