#include "driver/lua/bind/program/json.h"

#include <cmath>
#include <cstddef>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "driver/files/json_text.h"
#include "driver/lua/bind/program/json_builder.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/vm.h"
#include "nlohmann/json.hpp"

namespace lockstep::lua {
namespace {

using driver::JsonPlace;
using driver::JsonWriter;
using nlohmann::json;

class Encoder {
 public:
  // `shapes` is the stack index of the table of shapes.
  Encoder(lua_State* state, JsonWriter& writer, int shapes, bool strict)
      : state_(state), writer_(writer), shapes_(shapes), strict_(strict) {}

  // `as_float`: a whole number is written with a point or an exponent.
  void Encode(int index, int depth, bool as_float = false) {
    switch (lua_type(state_, index)) {
      case LUA_TNIL: writer_.Null(); return;
      case LUA_TLIGHTUSERDATA:
        if (lua_touserdata(state_, index) != nullptr) break;
        writer_.Null();
        return;
      case LUA_TBOOLEAN: writer_.Bool(lua_toboolean(state_, index) != 0); return;
      case LUA_TNUMBER: return EncodeNumber(lua_tonumber(state_, index), as_float);
      case LUA_TSTRING: {
        size_t size = 0;
        const char* data = lua_tolstring(state_, index, &size);
        if (!writer_.String({data, size})) Fail("is text that is not UTF-8");
        return;
      }
      case LUA_TTABLE: return EncodeTable(index, depth);
      default: break;
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
      writer_.Integer(static_cast<int64_t>(value));
    } else {
      writer_.Double(value);
    }
  }

  void EncodeTable(int index, int depth) {
    if (depth >= kMaxJsonDepth) Fail("is nested more than 128 deep, or contains itself");
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
      if (!writer_.Key(key)) Fail("is a name that is not UTF-8");
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

// Walks over the text, and keeps how far the parser has read.
struct Cursor {
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  const char* at;
  const char** reached;

  reference operator*() const { return *at; }
  Cursor& operator++() {
    *reached = ++at;
    return *this;
  }
  bool operator==(const Cursor& other) const { return at == other.at; }
};

// Reads a text into a JsonBuilder: a handler for json::sax_parse.
class Reader {
 public:
  Reader(lua_State* state, absl::string_view text)
      : builder_(state), text_(text), reached_(text.data()) {}

  void Read() {
    const char* end = text_.data() + text_.size();
    try {
      json::sax_parse(Cursor{text_.data(), &reached_}, Cursor{end, &reached_}, this);
    } catch (const JsonValueError& error) {
      Fail(error.what(), num_read() - 1);
    }
    builder_.Finish();
  }

  bool null() { return builder_.Null(); }
  bool boolean(bool value) { return builder_.Bool(value); }
  bool number_integer(int64_t value) { return Integer(value, value >= -kMaxInteger); }
  bool number_unsigned(uint64_t value) { return Integer(value, value <= kMaxInteger); }
  bool number_float(double value, const std::string& digits) {
    const bool is_integer = digits.find_first_of(".eE") == std::string::npos;
    return is_integer ? LargeInteger(value, digits) : builder_.Number(value, /*is_integer=*/false);
  }
  bool string(const std::string& value) { return builder_.String(value); }
  bool binary(const json::binary_t&) { return false; }  // JSON as text has none
  bool key(const std::string& name) { return builder_.Key(name); }
  bool start_object(size_t) { return builder_.StartObject(); }
  bool start_array(size_t) { return builder_.StartArray(); }
  bool end_object() { return builder_.EndObject(); }
  bool end_array() { return builder_.EndArray(); }
  bool parse_error(size_t bytes_read, const std::string&, const json::exception& error) {
    throw Error(driver::JsonMistake(error.what(), bytes_read, text_));
  }

 private:
  size_t num_read() const { return static_cast<size_t>(reached_ - text_.data()); }

  [[noreturn]] void Fail(absl::string_view problem, size_t offset) const {
    throw Error(absl::StrCat(problem, JsonPlace(text_, offset)));
  }

  template <typename T>
  bool Integer(T value, bool is_exact) {
    const auto number = static_cast<double>(value);
    return is_exact ? builder_.Number(number, /*is_integer=*/true)
                    : LargeInteger(number, absl::StrCat(value));
  }

  // Beyond 2^53 only some integers are a double, such as the 10^30 that transformers writes for "no
  // limit"; the others are an error.
  bool LargeInteger(double value, const std::string& digits) {
    if (absl::StrFormat("%.0f", value) == digits)
      return builder_.Number(value, /*is_integer=*/true);
    // The parser has read the number, and one byte more if there is one.
    Fail(absl::StrCat("the integer ", digits,
                      " is beyond 2^53: a Lua number cannot hold it exactly"),
         text_.rfind(digits, num_read() - digits.size()));
  }

  JsonBuilder builder_;
  absl::string_view text_;
  const char* reached_;  // the end of what the parser has read
};

}  // namespace

int JsonEncode(lua_State* state) {
  const int64_t indent =
      lua_isnoneornil(state, 2) ? 0 : ReadInteger(state, 2, "json.encode: indent");
  const bool strict = !lua_isnoneornil(state, 3) && ReadBoolean(state, 3, "json.encode: strict");
  if (lua_gettop(state) == 0) lua_pushnil(state);
  PushJsonShapes(state);
  JsonWriter writer(indent);
  Encoder(state, writer, lua_gettop(state), strict).Encode(1, 0);
  return PushString(state, std::move(writer).text());
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
  const size_t zero = text.find('\0');  // the parser would end there
  if (zero != absl::string_view::npos)
    throw Error(absl::StrCat("a zero byte is not JSON", JsonPlace(text, zero)));
  Reader(state, text).Read();
}

int JsonShapes(lua_State* state) { return PushJsonShapes(state); }

}  // namespace lockstep::lua
