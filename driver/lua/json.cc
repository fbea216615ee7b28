#include "driver/lua/json.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "driver/lua/stack.h"
#include "driver/lua/vm.h"
#include "rapidjson/error/en.h"
#include "rapidjson/memorystream.h"
#include "rapidjson/prettywriter.h"
#include "rapidjson/reader.h"
#include "rapidjson/stringbuffer.h"
#include "rapidjson/writer.h"

namespace lockstep::lua {
namespace {

constexpr int kMaxDepth = 128;

template <typename JsonWriter>
class Encoder {
 public:
  Encoder(lua_State* state, JsonWriter& writer) : state_(state), writer_(writer) {}

  void Encode(int index, int depth) {
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
        return EncodeNumber(lua_tonumber(state_, index));
      case LUA_TSTRING: {
        size_t size = 0;
        const char* data = lua_tolstring(state_, index, &size);
        writer_.String(data, static_cast<rapidjson::SizeType>(size));
        return;
      }
      case LUA_TTABLE:
        return EncodeTable(index, depth);
      default:
        break;
    }
    throw Error(absl::StrCat("json: ", TypeName(state_, index), " has no form in JSON"));
  }

 private:
  void EncodeNumber(double value) {
    if (std::isnan(value)) {
      writer_.String("NaN");
    } else if (std::isinf(value)) {
      writer_.String(value > 0 ? "Infinity" : "-Infinity");
    } else if (value == std::floor(value) && std::abs(value) <= static_cast<double>(kMaxInteger)) {
      writer_.Int64(static_cast<int64_t>(value));
    } else {
      writer_.Double(value);
    }
  }

  void EncodeTable(int index, int depth) {
    if (depth > kMaxDepth) throw Error("json: tables are nested more than 128 deep, or contain themselves");
    luaL_checkstack(state_, 4, "nested tables");
    const int size = static_cast<int>(lua_objlen(state_, index));
    if (size == 0) return EncodeObject(index, depth);
    writer_.StartArray();
    for (int i = 1; i <= size; ++i) {
      lua_rawgeti(state_, index, i);
      Encode(lua_gettop(state_), depth + 1);
      lua_pop(state_, 1);
    }
    writer_.EndArray();
  }

  void EncodeObject(int index, int depth) {
    std::vector<std::string> keys;
    for (lua_pushnil(state_); lua_next(state_, index) != 0; lua_pop(state_, 1)) {
      if (lua_type(state_, -2) != LUA_TSTRING) {
        throw Error(absl::StrCat("json: an object's key must be a string, not ", TypeName(state_, -2)));
      }
      keys.emplace_back(lua_tostring(state_, -2));
    }
    std::sort(keys.begin(), keys.end());
    writer_.StartObject();
    for (const std::string& key : keys) {
      writer_.Key(key.c_str(), static_cast<rapidjson::SizeType>(key.size()));
      lua_getfield(state_, index, key.c_str());
      Encode(lua_gettop(state_), depth + 1);
      lua_pop(state_, 1);
    }
    writer_.EndObject();
  }

  lua_State* state_;
  JsonWriter& writer_;
};

// Builds the value on the Lua stack as the parser meets its parts.
class Builder : public rapidjson::BaseReaderHandler<rapidjson::UTF8<>, Builder> {
 public:
  explicit Builder(lua_State* state) : state_(state) {}

  bool Null() {
    lua_pushlightuserdata(state_, nullptr);
    return Place();
  }
  bool Bool(bool value) {
    lua_pushboolean(state_, value);
    return Place();
  }
  bool Int(int value) { return Int64(value); }
  bool Uint(unsigned value) { return Int64(value); }
  bool Int64(int64_t value) {
    PushInteger(state_, value);
    return Place();
  }
  bool Uint64(uint64_t value) {
    if (value > static_cast<uint64_t>(kMaxInteger)) {
      throw Error(absl::StrCat("json: the integer ", value, " is beyond 2^53: a Lua number cannot hold it exactly"));
    }
    return Int64(static_cast<int64_t>(value));
  }
  bool Double(double value) {
    lua_pushnumber(state_, value);
    return Place();
  }
  bool String(const char* data, rapidjson::SizeType size, bool) {
    lua_pushlstring(state_, data, size);
    return Place();
  }
  bool Key(const char* data, rapidjson::SizeType size, bool) {
    lua_pushlstring(state_, data, size);
    return true;
  }
  bool StartObject() { return Start(0); }
  bool StartArray() { return Start(1); }
  bool EndObject(rapidjson::SizeType) { return End(); }
  bool EndArray(rapidjson::SizeType) { return End(); }

 private:
  // `next` counts an array's elements; 0 in an object.
  bool Start(int next) {
    if (next_.size() >= kMaxDepth) throw Error("json: values are nested more than 128 deep");
    luaL_checkstack(state_, 4, "nested values");
    lua_newtable(state_);
    next_.push_back(next);
    return true;
  }

  bool End() {
    next_.pop_back();
    return Place();
  }

  // Moves the value on top of the stack into the table that is being filled.
  bool Place() {
    if (next_.empty()) return true;
    if (next_.back() == 0) {
      lua_rawset(state_, -3);
    } else {
      lua_rawseti(state_, -2, next_.back()++);
    }
    return true;
  }

  lua_State* state_;
  std::vector<int> next_;
};

}  // namespace

int JsonEncode(lua_State* state) {
  rapidjson::StringBuffer buffer;
  const int64_t indent = lua_isnoneornil(state, 2) ? 0 : ReadInteger(state, 2, "json.encode: indent");
  if (lua_gettop(state) == 0) lua_pushnil(state);
  if (indent > 0) {
    rapidjson::PrettyWriter<rapidjson::StringBuffer> writer(buffer);
    writer.SetIndent(' ', static_cast<unsigned>(indent));
    Encoder(state, writer).Encode(1, 0);
  } else {
    rapidjson::Writer<rapidjson::StringBuffer> writer(buffer);
    Encoder(state, writer).Encode(1, 0);
  }
  lua_pushlstring(state, buffer.GetString(), buffer.GetSize());
  return 1;
}

int JsonDecode(lua_State* state) {
  const std::string text = ReadString(state, 1, "json.decode: text");
  rapidjson::MemoryStream stream(text.data(), text.size());
  rapidjson::Reader reader;
  Builder builder(state);
  constexpr unsigned kFlags = rapidjson::kParseFullPrecisionFlag | rapidjson::kParseValidateEncodingFlag;
  const rapidjson::ParseResult result = reader.Parse<kFlags>(stream, builder);
  if (result.IsError()) {
    throw Error(absl::StrCat("json: ", rapidjson::GetParseError_En(result.Code()), " (at byte ", result.Offset(), " of ",
                             text.size(), ")"));
  }
  return 1;
}

}  // namespace lockstep::lua
