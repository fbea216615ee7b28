// lockstep.core.state: copies of tensors in the background.

#include "driver/lua/bind/program/copies.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "driver/lua/tensor/tensor.h"
#include "driver/lua/vm/object.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/status.h"

namespace lockstep::lua {

template <>
inline constexpr const char* kObjectName<std::shared_ptr<BackgroundCopies>> = "copies";

namespace {

// Copies:is_read() -> boolean
// Whether the tensors are read, so that operators write to them without waiting.
int IsRead(lua_State* state) { return PushBoolean(state, ReadCopies(state, 1)->is_read()); }

// Copies:release() -> number
// Waits until the tensors are read, and lets operators run as before. Returns the seconds that some
// have waited.
int Release(lua_State* state) { return PushNumber(state, ReadCopies(state, 1)->Release()); }

// Copies:sums() -> string
// The sums of bits, eight bytes for each tensor that is summed, in order. Waits for the end.
int Sums(lua_State* state) {
  const std::shared_ptr<BackgroundCopies> copies = ReadCopies(state, 1);
  Check(copies->Wait());
  const std::vector<int64_t> sums = copies->sums();
  lua_pushlstring(state, reinterpret_cast<const char*>(sums.data()), sums.size() * sizeof(sums[0]));
  return 1;
}

}  // namespace

int StartCopies(lua_State* state) {
  ReadTable(state, 1, "background_copies: tensors");
  std::vector<BackgroundCopies::One> tensors(lua_objlen(state, 1));
  for (size_t i = 0; i < tensors.size(); ++i) {
    lua_rawgeti(state, 1, static_cast<int>(i + 1));
    const int one = lua_gettop(state);
    ReadTable(state, one, "background_copies: an element");
    for (int field = 1; field <= 3; ++field) lua_rawgeti(state, one, field);
    tensors[i].from = ReadTensor(state, one + 1, "background_copies: from");
    if (lua_toboolean(state, one + 2) != 0)
      tensors[i].to = ReadTensor(state, one + 2, "background_copies: to");
    tensors[i].is_summed = ReadBoolean(state, one + 3, "background_copies: is_summed");
    lua_settop(state, one - 1);
  }
  return PushObject(state, std::make_shared<BackgroundCopies>(std::move(tensors)));
}

std::shared_ptr<BackgroundCopies> ReadCopies(lua_State* state, int index) {
  return ReadObject<std::shared_ptr<BackgroundCopies>>(state, index, "copies");
}

void RegisterCopies(lua_State* state) {
  RegisterObject<std::shared_ptr<BackgroundCopies>>(
      state, {{"is_read", IsRead}, {"release", Release}, {"sums", Sums}});
}

}  // namespace lockstep::lua
