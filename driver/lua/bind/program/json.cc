#include "driver/lua/bind/program/json.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/vm.h"
#include "rapidjson/error/en.h"
#include "rapidjson/memorystream.h"
#include "rapidjson/prettywriter.h"
#include "rapidjson/reader.h"
#include "rapidjson/stringbuffer.h"
#include "rapidjson/writer.h"

namespace lockstep::lua {
namespace {

constexpr int kMaxDepth = 128;

bool IsUtf8(const char* data, size_t size) {
  rapidjson::MemoryStream text(data, size);
  rapidjson::StringBuffer copy;
  while (text.Tell() < size) {
    if (!rapidjson::UTF8<>::Validate(text, copy)) return false;
  }
  return true;
}

// Pushes a table of the registry, which is made with the given __mode at first.
void PushWeakTable(lua_State* state, const char* name, const char* mode) {
  lua_getfield(state, LUA_REGISTRYINDEX, name);
  if (!lua_isnil(state, -1)) return;
  lua_pop(state, 1);
  lua_newtable(state);
  lua_newtable(state);
  lua_pushstring(state, mode);
  lua_setfield(state, -2, "__mode");
  lua_setmetatable(state, -2);
  lua_pushvalue(state, -1);
  lua_setfield(state, LUA_REGISTRYINDEX, name);
}

void PushShapes(lua_State* state) { PushWeakTable(state, "lockstep.json.shapes", "k"); }

template <typename JsonWriter>
class Encoder {
 public:
  // `shapes` is the stack index of the table of shapes.
  Encoder(lua_State* state, JsonWriter& writer, int shapes, bool strict)
      : state_(state), writer_(writer), shapes_(shapes), strict_(strict) {}

  // `as_float`: a whole number is written with a point or an exponent.
  void Encode(int index, int depth, bool as_float = false) {
    switch (lua_type(state_, index)) {
      case LUA_TNIL:
        writer_.Null();
        return;
      case LUA_TLIGHTUSERDATA:
        if (lua_touserdata(state_, index) != nullptr) break;
        writer_.Null();
        return;
      case LUA_TBOOLEAN:
        writer_.Bool(lua_toboolean(state_, index) != 0);
        return;
      case LUA_TNUMBER:
        return EncodeNumber(lua_tonumber(state_, index), as_float);
      case LUA_TSTRING: {
        size_t size = 0;
        const char* data = lua_tolstring(state_, index, &size);
        if (!IsUtf8(data, size)) Fail("is text that is not UTF-8");
        writer_.String(data, static_cast<rapidjson::SizeType>(size));
        return;
      }
      case LUA_TTABLE:
        return EncodeTable(index, depth);
      default:
        break;
    }
    Fail(absl::StrCat("is ", TypeName(state_, index), ", which has no form in JSON"));
  }

 private:
  [[noreturn]] void Fail(const std::string& problem) {
    throw Error(absl::StrCat("json: ", path_.empty() ? "the value" : path_, " ", problem));
  }

  void EncodeNumber(double value, bool as_float) {
    if (strict_ && !std::isfinite(value)) Fail("is nan or infinite, which has no form in JSON");
    if (std::isnan(value)) {
      writer_.String("NaN");
    } else if (std::isinf(value)) {
      writer_.String(value > 0 ? "Infinity" : "-Infinity");
    } else if (!as_float && value == std::floor(value) &&
               std::abs(value) <= static_cast<double>(kMaxInteger)) {
      writer_.Int64(static_cast<int64_t>(value));
    } else {
      writer_.Double(value);
    }
  }

  void EncodeTable(int index, int depth) {
    if (depth >= kMaxDepth) Fail("is nested more than 128 deep, or contains itself");
    luaL_checkstack(state_, 8, "nested tables");
    lua_pushvalue(state_, index);
    lua_rawget(state_, shapes_);
    const int shape = lua_gettop(state_);
    const size_t size = lua_objlen(state_, index);
    if (size == 0 && !IsEmptyArray(index, shape)) {
      EncodeObject(index, shape, depth);
    } else {
      EncodeArray(index, shape, size, depth);
    }
    lua_settop(state_, shape - 1);
  }

  bool IsEmptyArray(int index, int shape) {
    lua_pushnil(state_);
    if (lua_next(state_, index) != 0) {
      lua_pop(state_, 2);
      return false;
    }
    if (!lua_istable(state_, shape)) return false;
    lua_getfield(state_, shape, "array");
    const bool is_array = lua_toboolean(state_, -1) != 0;
    lua_pop(state_, 1);
    return is_array;
  }

  // Returns whether the shape says that the value under the key on top of the stack is a float.
  bool IsFloat(int shape) {
    if (!lua_istable(state_, shape)) return false;
    lua_getfield(state_, shape, "floats");
    bool is_float = lua_isboolean(state_, -1);
    if (lua_istable(state_, -1)) {
      lua_pushvalue(state_, -2);
      lua_rawget(state_, -2);
      is_float = lua_toboolean(state_, -1) != 0;
      lua_pop(state_, 1);
    }
    lua_pop(state_, 1);
    return is_float;
  }

  void EncodeArray(int index, int shape, size_t size, int depth) {
    size_t num_keys = 0;
    for (lua_pushnil(state_); lua_next(state_, index) != 0; lua_pop(state_, 1)) {
      ++num_keys;
      if (lua_type(state_, -2) == LUA_TNUMBER) continue;
      Fail(absl::StrCat("is an array that also has the key ", TypeName(state_, -2),
                        "; a JSON value is either an array or an object"));
    }
    if (num_keys != size) Fail("is an array with holes; use json's null for missing elements");
    const size_t path_size = path_.size();
    writer_.StartArray();
    for (size_t i = 1; i <= size; ++i) {
      absl::StrAppend(&path_, "[", i, "]");
      lua_pushinteger(state_, static_cast<lua_Integer>(i));
      const bool as_float = IsFloat(shape);
      lua_rawget(state_, index);
      Encode(lua_gettop(state_), depth + 1, as_float);
      lua_pop(state_, 1);
      path_.resize(path_size);
    }
    writer_.EndArray();
  }

  // Returns the keys of the object in the order of its shape, then those that the shape lacks.
  std::vector<std::string> KeysOf(int index, int shape) {
    std::vector<std::string> keys;
    std::set<std::string> others;
    for (lua_pushnil(state_); lua_next(state_, index) != 0; lua_pop(state_, 1)) {
      if (lua_type(state_, -2) != LUA_TSTRING) {
        Fail(absl::StrCat("has the key ", TypeName(state_, -2), "; an object's keys are strings"));
      }
      others.insert(ReadString(state_, -2, "json: a key"));
    }
    if (lua_istable(state_, shape)) {
      lua_getfield(state_, shape, "keys");
      const size_t size = lua_istable(state_, -1) ? lua_objlen(state_, -1) : 0;
      for (size_t i = 1; i <= size; ++i) {
        lua_rawgeti(state_, -1, static_cast<int>(i));
        keys.push_back(ReadString(state_, -1, "json: a key"));
        lua_pop(state_, 1);
        if (others.erase(keys.back()) == 0) keys.pop_back();
      }
      lua_pop(state_, 1);
    }
    keys.insert(keys.end(), others.begin(), others.end());
    return keys;
  }

  void EncodeObject(int index, int shape, int depth) {
    const std::vector<std::string> keys = KeysOf(index, shape);
    const size_t path_size = path_.size();
    writer_.StartObject();
    for (const std::string& key : keys) {
      absl::StrAppend(&path_, path_.empty() ? "" : ".", key);
      if (!IsUtf8(key.data(), key.size())) Fail("is a name that is not UTF-8");
      writer_.Key(key.data(), static_cast<rapidjson::SizeType>(key.size()));
      PushString(state_, key);
      const bool as_float = IsFloat(shape);
      lua_rawget(state_, index);
      Encode(lua_gettop(state_), depth + 1, as_float);
      lua_pop(state_, 1);
      path_.resize(path_size);
    }
    writer_.EndObject();
  }

  lua_State* state_;
  JsonWriter& writer_;
  int shapes_;
  bool strict_;
  std::string path_;
};

// A value that is JSON, but that Lua cannot hold.
class ValueError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Returns the integer as a double. Beyond 2^53 only some integers are a double, such as the 10^30
// that transformers writes for "no limit"; the others are an error.
double ReadWholeNumber(absl::string_view text) {
  int64_t small = 0;
  if (absl::SimpleAtoi(text, &small) && small <= kMaxInteger && small >= -kMaxInteger)
    return static_cast<double>(small);
  double large = 0;
  if (absl::SimpleAtod(text, &large) && std::isfinite(large) &&
      absl::StrFormat("%.0f", large) == text) {
    return large;
  }
  throw ValueError(
      absl::StrCat("the integer ", text, " is beyond 2^53: a Lua number cannot hold it exactly"));
}

// Builds the value on the Lua stack as the parser meets its parts.
class Builder : public rapidjson::BaseReaderHandler<rapidjson::UTF8<>, Builder> {
 public:
  // Pushes two tables, and the value over them.
  explicit Builder(lua_State* state) : state_(state) {
    PushShapes(state);
    shapes_ = lua_gettop(state);
    PushWeakTable(state, "lockstep.json.known_shapes", "v");
    known_ = lua_gettop(state);
  }

  bool Null() {
    lua_pushlightuserdata(state_, nullptr);
    return Place(Kind::kOther);
  }
  bool Bool(bool value) {
    lua_pushboolean(state_, value);
    return Place(Kind::kOther);
  }
  // Numbers come as they are written: rapidjson's own conversion would round integers beyond 2^64
  // before anyone could tell.
  bool RawNumber(const char* data, rapidjson::SizeType size, bool) {
    const absl::string_view text(data, size);
    if (text.find_first_of(".eE") == absl::string_view::npos) {
      lua_pushnumber(state_, ReadWholeNumber(text));
      return Place(Kind::kInteger);
    }
    double value = 0;
    if (!absl::SimpleAtod(text, &value))
      throw ValueError(absl::StrCat("the number ", text, " cannot be read"));
    lua_pushnumber(state_, value);
    return Place(value == std::floor(value) ? Kind::kWholeFloat : Kind::kFloat);
  }
  bool String(const char* data, rapidjson::SizeType size, bool) {
    lua_pushlstring(state_, data, size);
    return Place(Kind::kOther);
  }
  bool Key(const char* data, rapidjson::SizeType size, bool) {
    lua_pushlstring(state_, data, size);
    absl::StrAppend(&levels_.back().signature, size, ":", absl::string_view(data, size));
    return true;
  }
  bool StartObject() { return Start(0); }
  bool StartArray() { return Start(1); }
  bool EndObject(rapidjson::SizeType) {
    if (!levels_.back().signature.empty()) {
      PushObjectShape(levels_.back().signature);
      KeepShape();
    }
    return End();
  }
  bool EndArray(rapidjson::SizeType) {
    const Level& level = levels_.back();
    if (level.next == 1 || !level.whole_floats.empty()) {
      PushArrayShape(level);
      KeepShape();
    }
    return End();
  }

 private:
  enum class Kind : char { kOther = '-', kInteger = 'i', kFloat = 'd', kWholeFloat = 'f' };

  // An object or array that is being filled.
  struct Level {
    int next = 0;           // counts an array's elements; 0 in an object
    std::string signature;  // of an object: "4:name-", its keys and the kinds of their values
    std::vector<int> whole_floats;  // of an array: which elements are such
    bool has_integers = false;
  };

  bool Start(int next) {
    if (levels_.size() >= kMaxDepth) throw ValueError("values are nested more than 128 deep");
    luaL_checkstack(state_, 8, "nested values");
    lua_newtable(state_);
    levels_.emplace_back();
    levels_.back().next = next;
    return true;
  }

  bool End() {
    levels_.pop_back();
    return Place(Kind::kOther);
  }

  // Moves the value on top of the stack into the table that is being filled.
  bool Place(Kind kind) {
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

  // Pops the shape of the table below it.
  void KeepShape() {
    lua_pushvalue(state_, -2);
    lua_insert(state_, -2);
    lua_rawset(state_, shapes_);
  }

  // Objects with the same keys share a shape.
  void PushObjectShape(const std::string& signature) {
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

  // Empty arrays share a shape, and so do arrays whose numbers are all floats.
  void PushArrayShape(const Level& level) {
    const bool is_shared = level.next == 1 || !level.has_integers;
    const char* name = level.next == 1 ? "[]" : "[f]";
    if (is_shared) {
      lua_getfield(state_, known_, name);
      if (!lua_isnil(state_, -1)) return;
      lua_pop(state_, 1);
    }
    lua_newtable(state_);
    lua_pushboolean(state_, 1);
    lua_setfield(state_, -2, "array");
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

  lua_State* state_;
  int shapes_ = 0;  // stack indices of the two tables
  int known_ = 0;
  std::vector<Level> levels_;
};

template <typename JsonWriter>
void Encode(lua_State* state, JsonWriter& writer, bool strict) {
  PushShapes(state);
  Encoder<JsonWriter>(state, writer, lua_gettop(state), strict).Encode(1, 0);
}

// " (at byte 5 of 7)", with the line where the text has several.
std::string Place(absl::string_view text, size_t offset) {
  const absl::string_view before = text.substr(0, offset);
  const bool has_lines = text.find('\n') < text.size() - 1;
  return absl::StrCat(
      " (",
      has_lines ? absl::StrCat("line ", 1 + std::count(before.begin(), before.end(), '\n'), ", ")
                : "",
      "at byte ", offset, " of ", text.size(), ")");
}

}  // namespace

int JsonEncode(lua_State* state) {
  rapidjson::StringBuffer buffer;
  const int64_t indent =
      lua_isnoneornil(state, 2) ? 0 : ReadInteger(state, 2, "json.encode: indent");
  const bool strict = !lua_isnoneornil(state, 3) && ReadBoolean(state, 3, "json.encode: strict");
  if (lua_gettop(state) == 0) lua_pushnil(state);
  if (indent > 0) {
    rapidjson::PrettyWriter<rapidjson::StringBuffer> writer(buffer);
    writer.SetIndent(' ', static_cast<unsigned>(indent));
    Encode(state, writer, strict);
  } else {
    rapidjson::Writer<rapidjson::StringBuffer> writer(buffer);
    Encode(state, writer, strict);
  }
  lua_pushlstring(state, buffer.GetString(), buffer.GetSize());
  return 1;
}

int JsonDecode(lua_State* state) {
  const std::string text = ReadString(state, 1, "json.decode: text");
  const std::string name =
      lua_isnoneornil(state, 2) ? "json" : ReadString(state, 2, "json.decode: name");
  try {
    PushJson(state, text);
  } catch (const Error& error) {
    throw Error(absl::StrCat(name, ": ", error.what()));
  }
  return 1;
}

void PushJson(lua_State* state, absl::string_view text) {
  rapidjson::MemoryStream stream(text.data(), text.size());
  rapidjson::Reader reader;
  const int top = lua_gettop(state);
  Builder builder(state);
  constexpr unsigned kFlags =
      rapidjson::kParseNumbersAsStringsFlag | rapidjson::kParseValidateEncodingFlag;
  try {
    const rapidjson::ParseResult result = reader.Parse<kFlags>(stream, builder);
    if (!result.IsError()) {
      lua_replace(state, top + 1);
      lua_settop(state, top + 1);
      return;
    }
    throw Error(
        absl::StrCat(rapidjson::GetParseError_En(result.Code()), Place(text, result.Offset())));
  } catch (const ValueError& error) {
    throw Error(absl::StrCat(error.what(), Place(text, stream.Tell())));
  }
}

int JsonShapes(lua_State* state) {
  PushShapes(state);
  return 1;
}

}  // namespace lockstep::lua
