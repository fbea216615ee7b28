#include "driver/lua/bind/batching/outline.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "driver/lua/tensor/tensor.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/vm.h"

namespace lockstep::lua {
namespace {

at::ScalarType ReadDtypeName(lua_State* state, int index, const std::string& name) {
  const std::string text = ReadString(state, index, name.c_str());
  for (const NamedDtype& named : NamedDtypes()) {
    if (text == named.name) return named.dtype;
  }
  throw Error(absl::StrCat(name, ": \"", text, "\" is not a dtype; expected one like \"float32\""));
}

// Calls `read(key, name)` for each element of the table on top of the stack, with the element there
// in its place. `name` is for messages.
template <typename Read>
void ForEachField(lua_State* state, const std::string& where, const Read& read) {
  ReadTable(state, -1, where.c_str());
  for (lua_pushnil(state); lua_next(state, -2) != 0; lua_pop(state, 1)) {
    if (lua_type(state, -2) != LUA_TSTRING)
      throw Error(
          absl::StrCat(where, ": fields have names, but there is the key ", TypeName(state, -2)));
    const std::string key = lua_tostring(state, -2);
    read(key, absl::StrCat(where, ".", key));
  }
}

std::vector<std::pair<int64_t, int64_t>> ReadRuns(lua_State* state, const std::string& name) {
  const std::vector<int64_t> ends = ReadIntegers(state, -1, name.c_str());
  if (ends.size() % 2 != 0)
    throw Error(
        absl::StrCat(name, " must hold pairs {begin, end, ...}, not ", ends.size(), " numbers"));
  std::vector<std::pair<int64_t, int64_t>> runs;
  for (size_t i = 0; i < ends.size(); i += 2) runs.emplace_back(ends[i], ends[i + 1]);
  return runs;
}

batching::TensorOutline ReadTensorOutline(lua_State* state, const std::string& name) {
  batching::TensorOutline tensor;
  ForEachField(state, name, [&](const std::string& key, const std::string& field) {
    if (key == "dtype") {
      tensor.dtype = ReadDtypeName(state, -1, field);
    } else if (key == "shape") {
      tensor.shape = ReadIntegers(state, -1, field.c_str());
    } else {
      throw Error(absl::StrCat(field, " is unknown; a tensor has dtype and shape"));
    }
  });
  return tensor;
}

void PushTensorOutline(lua_State* state, const batching::TensorOutline& tensor) {
  lua_newtable(state);
  SetString(state, "dtype", DtypeName(tensor.dtype));
  SetIntegers(state, "shape", tensor.shape);
}

batching::ItemsOutline ReadItems(lua_State* state, const std::string& name) {
  ReadTable(state, -1, name.c_str());
  batching::ItemsOutline items;
  ForEachElement(state, -1, [&](int i) {
    const std::vector<int64_t> item = ReadIntegers(state, -1, name.c_str());
    if (i == 1) items.located = item.size() == 3;
    if (item.size() != (items.located ? 3u : 1u))
      throw Error(absl::StrCat(name, ": item ", i, " has ", item.size(),
                               " numbers; each is {begin, end, rows}, or each is {rows}"));
    items.ranges.push_back(items.located ? batching::PlaceholderRange{item[0], item[1], item[2]}
                                         : batching::PlaceholderRange{0, 0, item[0]});
  });
  return items;
}

}  // namespace

int PushOutline(lua_State* state, const batching::Outline& outline) {
  lua_newtable(state);
  SetInteger(state, "tokens", outline.tokens);
  std::vector<int64_t> ends;
  for (const auto& [begin, end] : outline.loss) ends.insert(ends.end(), {begin, end});
  SetIntegers(state, "loss", ends);
  if (!outline.kind.empty()) SetString(state, "kind", outline.kind);
  lua_newtable(state);
  for (const auto& [name, tensor] : outline.tensors) {
    PushTensorOutline(state, tensor);
    lua_setfield(state, -2, name.c_str());
  }
  lua_setfield(state, -2, "tensors");
  lua_newtable(state);
  for (const auto& [name, stream] : outline.streams) {
    if (stream.shape.size() == 1) {
      SetString(state, name.c_str(), DtypeName(stream.dtype));
    } else {
      PushTensorOutline(state, stream);
      lua_setfield(state, -2, name.c_str());
    }
  }
  lua_setfield(state, -2, "streams");
  lua_newtable(state);
  for (const auto& [name, items] : outline.items) {
    PushArray(state, items.ranges, [&, located = items.located](const auto& range) {
      if (located) {
        PushIntegers(state, {range.begin, range.end, range.rows});
      } else {
        PushIntegers(state, {range.rows});
      }
    });
    lua_setfield(state, -2, name.c_str());
  }
  lua_setfield(state, -2, "items");
  return 1;
}

batching::Outline ReadOutline(lua_State* state, int index, const std::string& where) {
  batching::Outline outline;
  bool has_loss = false;
  lua_pushvalue(state, index);
  ForEachField(state, where, [&](const std::string& key, const std::string& name) {
    if (key == "tokens") {
      outline.tokens = ReadInteger(state, -1, name.c_str());
    } else if (key == "loss") {
      outline.loss = ReadRuns(state, name);
      has_loss = true;
    } else if (key == "kind") {
      outline.kind = ReadString(state, -1, name.c_str());
    } else if (key == "tensors") {
      ForEachField(state, name, [&](const std::string& tensor, const std::string& field) {
        outline.tensors[tensor] = ReadTensorOutline(state, field);
      });
    } else if (key == "streams") {
      ForEachField(state, name, [&](const std::string& stream, const std::string& field) {
        if (lua_type(state, -1) == LUA_TTABLE) {
          outline.streams[stream] = ReadTensorOutline(state, field);
        } else {
          outline.streams[stream].dtype = ReadDtypeName(state, -1, field);
        }
      });
    } else if (key == "items") {
      ForEachField(state, name, [&](const std::string& modality, const std::string& field) {
        outline.items[modality] = ReadItems(state, field);
      });
    } else if (key != "id") {
      throw Error(absl::StrCat(
          name, " is unknown; an index holds tokens, loss, kind, tensors, streams, items and id"));
    }
  });
  lua_pop(state, 1);
  for (auto& [name, stream] : outline.streams) {
    if (stream.shape.empty()) stream.shape = {outline.tokens};
  }
  if (!has_loss) throw Error(absl::StrCat(where, " has no loss; batching.describe makes an index"));
  return outline;
}

}  // namespace lockstep::lua
