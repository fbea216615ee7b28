#include "driver/lua/bind/program/json_builder.h"

#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "driver/lua/vm/stack.h"

namespace lockstep::lua {
namespace {

// Pushes a table of the registry, which is made with the given __mode at first.
int PushWeakTable(lua_State* state, const char* name, const char* mode) {
  lua_getfield(state, LUA_REGISTRYINDEX, name);
  if (!lua_isnil(state, -1)) return 1;
  lua_pop(state, 1);
  lua_newtable(state);
  MakeWeak(state, mode);
  lua_pushvalue(state, -1);
  lua_setfield(state, LUA_REGISTRYINDEX, name);
  return 1;
}

}  // namespace

int PushJsonShapes(lua_State* state) { return PushWeakTable(state, "lockstep.json.shapes", "k"); }

JsonBuilder::JsonBuilder(lua_State* state) : state_(state) {
  PushJsonShapes(state);
  shapes_ = lua_gettop(state);
  PushWeakTable(state, "lockstep.json.known_shapes", "v");
  known_ = lua_gettop(state);
}

void JsonBuilder::Finish() {
  lua_replace(state_, shapes_);
  lua_settop(state_, shapes_);
}

bool JsonBuilder::Null() {
  lua_pushlightuserdata(state_, nullptr);
  return Add(Kind::kOther);
}

bool JsonBuilder::Bool(bool value) {
  lua_pushboolean(state_, value);
  return Add(Kind::kOther);
}

bool JsonBuilder::Number(double value, bool is_integer) {
  lua_pushnumber(state_, value);
  if (is_integer) return Add(Kind::kInteger);
  return Add(value == std::floor(value) ? Kind::kWholeFloat : Kind::kFloat);
}

bool JsonBuilder::String(const std::string& text) {
  PushString(state_, text);
  return Add(Kind::kOther);
}

bool JsonBuilder::Key(const std::string& name) {
  PushString(state_, name);
  absl::StrAppend(&levels_.back().signature, name.size(), ":", name);
  return true;
}

bool JsonBuilder::EndObject() {
  if (!levels_.back().signature.empty()) {
    PushObjectShape(levels_.back().signature);
    KeepShape();
  }
  return End();
}

bool JsonBuilder::EndArray() {
  const Level& level = levels_.back();
  if (level.next == 1 || !level.whole_floats.empty()) {
    PushArrayShape(level);
    KeepShape();
  }
  return End();
}

bool JsonBuilder::Start(int next) {
  if (levels_.size() >= kMaxJsonDepth) throw JsonValueError("values are nested more than 128 deep");
  luaL_checkstack(state_, 8, "nested values");
  lua_newtable(state_);
  levels_.emplace_back();
  levels_.back().next = next;
  return true;
}

bool JsonBuilder::End() {
  levels_.pop_back();
  return Add(Kind::kOther);
}

bool JsonBuilder::Add(Kind kind) {
  if (levels_.empty()) return true;
  Level& level = levels_.back();
  if (level.next == 0) {
    level.signature.push_back(kind == Kind::kWholeFloat ? 'f' : '-');
    lua_rawset(state_, -3);
  } else {
    if (kind == Kind::kWholeFloat) level.whole_floats.push_back(level.next);
    level.has_integers = level.has_integers || kind == Kind::kInteger;
    lua_rawseti(state_, -2, level.next++);
  }
  return true;
}

void JsonBuilder::KeepShape() {
  lua_pushvalue(state_, -2);
  lua_insert(state_, -2);
  lua_rawset(state_, shapes_);
}

void JsonBuilder::PushObjectShape(const std::string& signature) {
  PushString(state_, signature);
  lua_rawget(state_, known_);
  if (!lua_isnil(state_, -1)) return;
  lua_pop(state_, 1);
  lua_newtable(state_);  // the shape
  lua_newtable(state_);  // keys
  lua_newtable(state_);  // floats: true or false under each key, the last one counts
  int num_keys = 0;
  for (size_t at = 0; at < signature.size();) {
    const size_t colon = signature.find(':', at);
    size_t size = 0;
    if (!absl::SimpleAtoi(absl::string_view(signature).substr(at, colon - at), &size)) break;
    const std::string key = signature.substr(colon + 1, size);
    at = colon + 1 + size + 1;
    PushString(state_, key);
    lua_rawget(state_, -2);
    const bool is_new = lua_isnil(state_, -1);
    lua_pop(state_, 1);
    if (is_new) {
      PushString(state_, key);
      lua_rawseti(state_, -3, ++num_keys);
    }
    PushString(state_, key);
    lua_pushboolean(state_, signature[at - 1] == 'f');
    lua_rawset(state_, -3);
  }
  lua_setfield(state_, -3, "floats");
  lua_setfield(state_, -2, "keys");
  PushString(state_, signature);
  lua_pushvalue(state_, -2);
  lua_rawset(state_, known_);
}

void JsonBuilder::PushArrayShape(const Level& level) {
  const bool is_shared = level.next == 1 || !level.has_integers;
  const char* name = level.next == 1 ? "[]" : "[f]";
  if (is_shared) {
    lua_getfield(state_, known_, name);
    if (!lua_isnil(state_, -1)) return;
    lua_pop(state_, 1);
  }
  lua_newtable(state_);
  SetBoolean(state_, "array", true);
  if (!level.whole_floats.empty()) {
    if (is_shared) {
      lua_pushboolean(state_, 1);
    } else {
      lua_newtable(state_);
      for (const int i : level.whole_floats) {
        lua_pushboolean(state_, 1);
        lua_rawseti(state_, -2, i);
      }
    }
    lua_setfield(state_, -2, "floats");
  }
  if (!is_shared) return;
  lua_pushvalue(state_, -1);
  lua_setfield(state_, known_, name);
}

}  // namespace lockstep::lua
