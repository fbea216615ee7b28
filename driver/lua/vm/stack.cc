#include "driver/lua/vm/stack.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/nearest.h"
#include "driver/lua/vm/vm.h"

namespace lockstep::lua {

std::string TypeName(lua_State* state, int index) {
  switch (lua_type(state, index)) {
    case LUA_TNONE: return "nothing";
    case LUA_TNIL: return "nil";
    case LUA_TBOOLEAN: return lua_toboolean(state, index) ? "true" : "false";
    case LUA_TNUMBER: return absl::StrCat("the number ", lua_tonumber(state, index));
    case LUA_TSTRING: {
      const std::string text = lua_tostring(state, index);
      return absl::StrCat("the string \"", text.substr(0, 40), text.size() > 40 ? "..." : "", "\"");
    }
    case LUA_TUSERDATA: {
      std::string name = "a userdata";
      if (luaL_getmetafield(state, index, "__name") != 0) {
        name = absl::StrCat("a ", lua_tostring(state, -1));
        lua_pop(state, 1);
      }
      return name;
    }
    default: return absl::StrCat("a ", luaL_typename(state, index));
  }
}

void ThrowTypeError(lua_State* state, int index, const char* name, const char* expected) {
  throw Error(absl::StrCat(name, " must be ", expected, ", not ", TypeName(state, index)));
}

double ReadNumber(lua_State* state, int index, const char* name) {
  if (lua_type(state, index) != LUA_TNUMBER) ThrowTypeError(state, index, name, "a number");
  return lua_tonumber(state, index);
}

int64_t ReadInteger(lua_State* state, int index, const char* name) {
  const double value = ReadNumber(state, index, name);
  if (value != std::floor(value)) ThrowTypeError(state, index, name, "a whole number");
  if (std::abs(value) > static_cast<double>(kMaxInteger)) {
    ThrowTypeError(state, index, name,
                   "a whole number from -2^53 to 2^53, which a number holds exactly");
  }
  return static_cast<int64_t>(value);
}

bool ReadBoolean(lua_State* state, int index, const char* name) {
  if (lua_type(state, index) != LUA_TBOOLEAN) ThrowTypeError(state, index, name, "true or false");
  return lua_toboolean(state, index) != 0;
}

std::string ReadString(lua_State* state, int index, const char* name) {
  if (lua_type(state, index) != LUA_TSTRING) ThrowTypeError(state, index, name, "a string");
  size_t size = 0;
  const char* data = lua_tolstring(state, index, &size);
  return std::string(data, size);
}

void ReadFunction(lua_State* state, int index, const char* name) {
  if (lua_type(state, index) == LUA_TFUNCTION) return;
  if (luaL_getmetafield(state, index, "__call") == 0)
    ThrowTypeError(state, index, name, "a function");
  lua_pop(state, 1);
}

void ReadTable(lua_State* state, int index, const char* name) {
  if (lua_type(state, index) != LUA_TTABLE) ThrowTypeError(state, index, name, "a table");
}

std::vector<int64_t> ReadIntegers(lua_State* state, int index, const char* name) {
  ReadTable(state, index, name);
  std::vector<int64_t> values;
  ForEachElement(state, index, [&](int i) {
    values.push_back(ReadInteger(state, -1, absl::StrCat(name, "[", i, "]").c_str()));
  });
  return values;
}

int PushIntegers(lua_State* state, const std::vector<int64_t>& values) {
  return PushArray(state, values, [&](int64_t value) { PushInteger(state, value); });
}

std::vector<std::string> ReadStrings(lua_State* state, int index, const char* name,
                                     const char* element) {
  ReadTable(state, index, name);
  std::vector<std::string> values;
  ForEachElement(state, index, [&](int) { values.push_back(ReadString(state, -1, element)); });
  return values;
}

int PushStrings(lua_State* state, const std::vector<std::string>& values) {
  return PushArray(state, values, [&](const std::string& value) { PushString(state, value); });
}

int PushString(lua_State* state, const std::string& value) {
  lua_pushlstring(state, value.data(), value.size());
  return 1;
}

int PushInteger(lua_State* state, int64_t value) {
  if (value > kMaxInteger || value < -kMaxInteger) {
    throw Error(absl::StrCat("the integer ", value,
                             " is beyond 2^53: a Lua number cannot hold it exactly; "
                             "keep it in a tensor"));
  }
  return PushNumber(state, static_cast<double>(value));
}

void SetInteger(lua_State* state, const char* name, int64_t value) {
  PushInteger(state, value);
  lua_setfield(state, -2, name);
}

void SetNumber(lua_State* state, const char* name, double value) {
  lua_pushnumber(state, value);
  lua_setfield(state, -2, name);
}

void SetBoolean(lua_State* state, const char* name, bool value) {
  lua_pushboolean(state, value);
  lua_setfield(state, -2, name);
}

void SetString(lua_State* state, const char* name, const std::string& value) {
  PushString(state, value);
  lua_setfield(state, -2, name);
}

void SetIntegers(lua_State* state, const char* name, const std::vector<int64_t>& values) {
  PushIntegers(state, values);
  lua_setfield(state, -2, name);
}

void SetFunctions(lua_State* state, absl::Span<const Function> functions) {
  for (const Function& f : functions) {
    lua_pushcfunction(state, f.function);
    lua_setfield(state, -2, f.name);
  }
}

void MakeWeak(lua_State* state, const char* mode) {
  lua_createtable(state, 0, 1);
  SetString(state, "__mode", mode);
  lua_setmetatable(state, -2);
}

OptionTable::OptionTable(lua_State* state, int index, const char* function,
                         const std::vector<const char*>& known)
    : state_(state), index_(0), function_(function) {
  if (lua_isnoneornil(state, index)) return;
  ReadTable(state, index, absl::StrCat(function, ": options").c_str());
  index_ = index > 0 ? index : lua_gettop(state) + index + 1;
  const std::vector<std::string> names(known.begin(), known.end());
  for (lua_pushnil(state); lua_next(state, index_) != 0; lua_pop(state, 1)) {
    if (lua_type(state, -2) != LUA_TSTRING) {
      throw Error(absl::StrCat(function, ": options are named, but the table holds the key ",
                               TypeName(state, -2)));
    }
    const std::string key = lua_tostring(state, -2);
    if (std::find(names.begin(), names.end(), key) != names.end()) continue;
    throw Error(absl::StrCat(function, ": unknown option \"", key, "\"", DidYouMean(key, names),
                             " (known: ", absl::StrJoin(names, ", "), ")"));
  }
}

bool OptionTable::Push(const char* key) const {
  if (index_ == 0) return false;
  // Raw: a group of run.config raises an error for a key that it lacks.
  lua_pushstring(state_, key);
  lua_rawget(state_, index_);
  if (!lua_isnil(state_, -1)) return true;
  lua_pop(state_, 1);
  return false;
}

bool OptionTable::Has(const char* key) const {
  const bool has = Push(key);
  if (has) lua_pop(state_, 1);
  return has;
}

int64_t OptionTable::Integer(const char* key, int64_t otherwise) const {
  return Find(key, ReadInteger).value_or(otherwise);
}

double OptionTable::Number(const char* key, double otherwise) const {
  return Find(key, ReadNumber).value_or(otherwise);
}

bool OptionTable::Boolean(const char* key, bool otherwise) const {
  return Find(key, ReadBoolean).value_or(otherwise);
}

std::string OptionTable::String(const char* key, const std::string& otherwise) const {
  return Find(key, ReadString).value_or(otherwise);
}

std::string Nearest(const std::string& word, const std::vector<std::string>& known) {
  return base::Nearest(word, known);
}

std::string DidYouMean(const std::string& word, const std::vector<std::string>& known) {
  const std::string nearest = Nearest(word, known);
  return nearest.empty() ? "" : absl::StrCat("; did you mean \"", nearest, "\"?");
}

}  // namespace lockstep::lua
