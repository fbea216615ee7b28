#include <cmath>
#include <map>
#include <optional>
#include <string>

#include "ATen/core/TensorBody.h"
#include "absl/strings/str_cat.h"
#include "driver/lua/bind/mimo/functions.h"
#include "driver/lua/bind/mimo/mimo_ownership.h"
#include "driver/lua/tensor/tensor.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/vm.h"
#include "mimo/batch/pack.h"
#include "mimo/batch/slice.h"

namespace lockstep::lua {
namespace {

constexpr int kMaxDepth = 64;

// Converts Lua values to a tree and back. Values that slicing does not change wait in a Lua table,
// and so do metatables. A table with a metatable is an object with fields, which are read as those
// of any table, without __index. Nothing is read of a module, or of a table with keys of other
// types.
class Values {
 public:
  using BatchDims = std::map<std::string, std::optional<int64_t>>;
  // An object that `batch_dims` hands on whole is not looked into.
  Values(lua_State* state, const char* function, const BatchDims& batch_dims)
      : state_(state), function_(function), batch_dims_(batch_dims) {
    lua_newtable(state);
    kept_ = lua_gettop(state);
  }

  mimo::Value Read(int index, const std::string& path, const std::string& key = "", int depth = 0) {
    if (const at::Tensor* tensor = TensorAt(state_, index)) return *tensor;
    if (mimo::Table table = TableAt(state_, index)) return table;
    if (lua_type(state_, index) != LUA_TTABLE) return Keep(index);
    if (lua_getmetatable(state_, index) == 0) return ReadTable(index, path, depth);
    const int metatable = lua_gettop(state_);
    mimo::Value value = IsHandedOn(index, path, key) ? Keep(index) : ReadTable(index, path, depth);
    if (std::holds_alternative<mimo::Opaque>(value.of)) {
      RefuseProxy(metatable, path, key);
    } else {
      value.tag = Keep(metatable).id;
    }
    lua_settop(state_, metatable - 1);
    return value;
  }

  void Push(const mimo::Value& value) {
    PushUntagged(value);
    if (value.tag == 0) return;
    lua_rawgeti(state_, kept_, static_cast<int>(value.tag));
    lua_setmetatable(state_, -2);
  }

 private:
  static bool IsElement(double key, int size) {
    return key >= 1 && key <= size && key == std::floor(key);
  }

  bool IsWhole(const std::string& path, const std::string& key) const {
    auto it = batch_dims_.find(path);
    if (it == batch_dims_.end()) it = batch_dims_.find(key);
    return it != batch_dims_.end() && !it->second.has_value();
  }

  // Returns whether a table with a metatable is passed on whole.
  bool IsHandedOn(int index, const std::string& path, const std::string& key) const {
    if (IsWhole(path, key)) return true;
    lua_pushliteral(state_, "_fields");  // of nn.Module
    lua_rawget(state_, index);
    const bool is_module = !lua_isnil(state_, -1);
    lua_pop(state_, 1);
    if (is_module) return true;
    for (lua_pushnil(state_); lua_next(state_, index) != 0; lua_pop(state_, 1)) {
      if (lua_type(state_, -2) == LUA_TNUMBER || lua_type(state_, -2) == LUA_TSTRING) continue;
      lua_pop(state_, 2);
      return true;
    }
    return false;
  }

  // Fields that a function makes up cannot be cut.
  void RefuseProxy(int metatable, const std::string& path, const std::string& key) const {
    lua_getfield(state_, metatable, "__pairs");
    if (lua_isnil(state_, -1) || IsWhole(path, key)) return;
    throw Error(absl::StrCat(function_, ": ", path.empty() ? "the batch" : "\"" + path + "\"",
                             " has no fields but those that __pairs of its metatable gives; hand "
                             "over a plain table of them"));
  }

  mimo::Value ReadTable(int index, const std::string& path, int depth) {
    if (depth > kMaxDepth || lua_checkstack(state_, 8) == 0)
      throw Error(absl::StrCat(function_, ": \"", path, "\" is nested too deeply, or in itself"));
    mimo::List list;
    const int size = static_cast<int>(lua_objlen(state_, index));
    ForEachElement(state_, index, [&](int i) {
      const std::string element = absl::StrCat(path, "[", i - 1, "]");
      list.push_back(Read(lua_gettop(state_), element, element, depth + 1));
    });
    mimo::Dict dict;
    for (lua_pushnil(state_); lua_next(state_, index) != 0; lua_pop(state_, 1)) {
      if (lua_type(state_, -2) == LUA_TNUMBER && IsElement(lua_tonumber(state_, -2), size))
        continue;
      if (size > 0 || lua_type(state_, -2) != LUA_TSTRING) {
        throw Error(absl::StrCat(function_, ": \"", path, "\" is neither an array nor a table of ",
                                 "named values: it has the key ", TypeName(state_, -2)));
      }
      const std::string key = lua_tostring(state_, -2);
      dict.push_back(
          {key, Read(lua_gettop(state_), path.empty() ? key : absl::StrCat(path, ".", key), key,
                     depth + 1)});
    }
    if (size > 0) return list;
    if (dict.empty()) return Keep(index);
    return dict;
  }

  void PushUntagged(const mimo::Value& value) {
    if (lua_checkstack(state_, 8) == 0) throw Error(absl::StrCat(function_, ": the stack is full"));
    if (const auto* tensor = std::get_if<at::Tensor>(&value.of)) {
      PushTensor(state_, *tensor);
    } else if (const auto* table = std::get_if<mimo::Table>(&value.of)) {
      PushTable(state_, *table);
    } else if (const auto* opaque = std::get_if<mimo::Opaque>(&value.of)) {
      if (opaque->id == 0) {  // a number that the library has computed
        PushInteger(state_, opaque->number.value_or(0));
      } else {
        lua_rawgeti(state_, kept_, static_cast<int>(opaque->id));
      }
    } else if (const auto* list = std::get_if<mimo::List>(&value.of)) {
      PushArray(state_, *list, [&](const mimo::Value& element) { Push(element); });
    } else {
      const auto& dict = std::get<mimo::Dict>(value.of);
      lua_createtable(state_, 0, static_cast<int>(dict.size()));
      for (const mimo::Field& field : dict) {
        PushString(state_, field.key);
        Push(field.value);
        lua_rawset(state_, -3);
      }
    }
  }

  mimo::Opaque Keep(int index) {
    lua_pushvalue(state_, index);
    lua_rawseti(state_, kept_, static_cast<int>(++count_));
    mimo::Opaque opaque{.id = count_};
    if (lua_type(state_, index) == LUA_TNUMBER) {
      const double number = lua_tonumber(state_, index);
      constexpr double kExact = 9007199254740992;  // 2^53
      if (number == std::floor(number) && std::abs(number) <= kExact)
        opaque.number = static_cast<int64_t>(number);
    }
    return opaque;
  }

  lua_State* const state_;
  const char* const function_;
  const BatchDims& batch_dims_;
  int kept_ = 0;
  int64_t count_ = 0;
};

// Calls read(key, name) for each named value of the table under `option`, which is at the top then.
template <typename Read>
void ReadNamed(lua_State* state, const OptionTable& table, const std::string& function,
               const char* option, const Read& read) {
  if (!table.Push(option)) return;
  const int index = lua_gettop(state);
  const std::string name = absl::StrCat(function, ": ", option);
  ReadTable(state, index, name.c_str());
  for (lua_pushnil(state); lua_next(state, index) != 0; lua_pop(state, 1)) {
    if (lua_type(state, -2) != LUA_TSTRING)
      throw Error(absl::StrCat(name, " is a table by name, but has the key ", TypeName(state, -2)));
    const std::string key = lua_tostring(state, -2);
    read(key, absl::StrCat(name, ".", key));
  }
  lua_pop(state, 1);
}

// Reads the declarations for a batch.
mimo::SliceOptions ReadDeclared(lua_State* state, const OptionTable& table,
                                const std::string& function) {
  mimo::SliceOptions options;
  options.batch_size = table.Find("batch_size", ReadInteger);
  const auto read_named = [&](const char* option, const auto& read) {
    ReadNamed(state, table, function, option, read);
  };
  read_named("batch_dims", [&](const std::string& key, const std::string& name) {
    std::optional<int64_t>& dim = options.batch_dims[key];
    if (lua_type(state, -1) == LUA_TBOOLEAN && lua_toboolean(state, -1) == 0) return;  // whole
    dim = ReadInteger(state, -1, name.c_str());
  });
  read_named("ownership", [&](const std::string& key, const std::string& name) {
    options.ownership[key] = ReadOwnedRows(state, lua_gettop(state), name);
  });
  read_named("rows_per_sample", [&](const std::string& key, const std::string& name) {
    options.rows_per_sample[key] = ReadCounts(state, lua_gettop(state), name);
  });
  return options;
}

}  // namespace

int SliceBatch(lua_State* state) {
  lua_settop(state, 4);
  ReadTable(state, 1, "mimo.slice: batch");
  const OptionTable table(state, 4, "mimo.slice",
                          {"batch_size", "batch_dims", "ownership", "rows_per_sample", "uneven"});
  mimo::SliceOptions options = ReadDeclared(state, table, "mimo.slice");
  options.dp_rank = ReadInteger(state, 2, "mimo.slice: dp_rank");
  options.dp_size = ReadInteger(state, 3, "mimo.slice: dp_size");
  options.uneven = table.Boolean("uneven", false);
  Values values(state, "mimo.slice", options.batch_dims);
  values.Push(mimo::Slice(values.Read(1, ""), options));
  return 1;
}

int PackBatch(lua_State* state) {
  lua_settop(state, 2);
  ReadTable(state, 1, "mimo.pack: batch");
  const OptionTable table(state, 2, "mimo.pack", {"mask", "whole"});
  mimo::PackOptions options;
  options.mask = table.String("mask", options.mask);
  std::map<std::string, std::optional<int64_t>> whole;  // not looked into
  if (table.Push("whole")) {
    for (const std::string& key :
         ReadStrings(state, lua_gettop(state), "mimo.pack: whole", "a key")) {
      options.whole.insert(key);
      whole[key] = std::nullopt;
    }
    lua_pop(state, 1);
  }
  Values values(state, "mimo.pack", whole);
  values.Push(mimo::Pack(values.Read(1, ""), options));
  return 1;
}

int ReorderBatch(lua_State* state) {
  lua_settop(state, 3);
  ReadTable(state, 1, "mimo.reorder: batch");
  const OptionTable table(state, 3, "mimo.reorder",
                          {"batch_size", "batch_dims", "ownership", "rows_per_sample"});
  const mimo::SliceOptions options = ReadDeclared(state, table, "mimo.reorder");
  ReadTable(state, 2, "mimo.reorder: order");
  const std::vector<int64_t> order =
      ReadOrder(state, 2, "mimo.reorder: order", static_cast<int64_t>(lua_objlen(state, 2)));
  Values values(state, "mimo.reorder", options.batch_dims);
  values.Push(mimo::Reorder(values.Read(1, ""), order, options));
  return 1;
}

}  // namespace lockstep::lua
