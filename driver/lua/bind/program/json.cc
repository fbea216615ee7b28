#include "driver/lua/bind/program/json.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
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
    if (depth >= kMaxDepth) Fail("is nested more than 128 deep, or contains itself");
    luaL_checkstack(state_, 4, "nested tables");
    const size_t size = lua_objlen(state_, index);
    return size == 0 ? EncodeObject(index, depth) : EncodeArray(index, size, depth);
  }

  void EncodeArray(int index, size_t size, int depth) {
    size_t num_keys = 0;
    for (lua_pushnil(state_); lua_next(state_, index) != 0; lua_pop(state_, 1)) {
      ++num_keys;
      if (lua_type(state_, -2) == LUA_TNUMBER) continue;
      Fail(absl::StrCat("is an array that also has the key ", TypeName(state_, -2),
                        "; JSON has arrays and objects, and nothing between"));
    }
    if (num_keys != size) Fail("is an array with holes; put json's null where nothing is");
    const size_t path_size = path_.size();
    writer_.StartArray();
    for (size_t i = 1; i <= size; ++i) {
      absl::StrAppend(&path_, "[", i, "]");
      lua_rawgeti(state_, index, static_cast<int>(i));
      Encode(lua_gettop(state_), depth + 1);
      lua_pop(state_, 1);
      path_.resize(path_size);
    }
    writer_.EndArray();
  }

  void EncodeObject(int index, int depth) {
    std::vector<std::string> keys;
    for (lua_pushnil(state_); lua_next(state_, index) != 0; lua_pop(state_, 1)) {
      if (lua_type(state_, -2) != LUA_TSTRING) {
        Fail(absl::StrCat("has the key ", TypeName(state_, -2), "; an object's keys are strings"));
      }
      keys.push_back(ReadString(state_, -2, "json: a key"));
    }
    std::sort(keys.begin(), keys.end());
    const size_t path_size = path_.size();
    writer_.StartObject();
    for (const std::string& key : keys) {
      absl::StrAppend(&path_, path_.empty() ? "" : ".", key);
      if (!IsUtf8(key.data(), key.size())) Fail("is a name that is not UTF-8");
      writer_.Key(key.data(), static_cast<rapidjson::SizeType>(key.size()));
      PushString(state_, key);
      lua_rawget(state_, index);
      Encode(lua_gettop(state_), depth + 1);
      lua_pop(state_, 1);
      path_.resize(path_size);
    }
    writer_.EndObject();
  }

  lua_State* state_;
  JsonWriter& writer_;
  std::string path_;
};

// A value that is JSON, but that Lua cannot hold.
class ValueError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
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
  // Numbers come as they are written: rapidjson's own conversion would round integers beyond 2^64
  // before anyone could tell.
  bool RawNumber(const char* data, rapidjson::SizeType size, bool) {
    const absl::string_view text(data, size);
    if (text.find_first_of(".eE") == absl::string_view::npos) {
      int64_t value = 0;
      if (!absl::SimpleAtoi(text, &value) || value > kMaxInteger || value < -kMaxInteger) {
        throw ValueError(absl::StrCat("the integer ", text,
                                      " is beyond 2^53: a Lua number cannot hold it exactly"));
      }
      PushInteger(state_, value);
      return Place();
    }
    double value = 0;
    if (!absl::SimpleAtod(text, &value))
      throw ValueError(absl::StrCat("the number ", text, " cannot be read"));
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
    if (next_.size() >= kMaxDepth) throw ValueError("values are nested more than 128 deep");
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

template <typename JsonWriter>
void Encode(lua_State* state, JsonWriter& writer) {
  Encoder<JsonWriter>(state, writer).Encode(1, 0);
}

}  // namespace

int JsonEncode(lua_State* state) {
  rapidjson::StringBuffer buffer;
  const int64_t indent =
      lua_isnoneornil(state, 2) ? 0 : ReadInteger(state, 2, "json.encode: indent");
  if (lua_gettop(state) == 0) lua_pushnil(state);
  if (indent > 0) {
    rapidjson::PrettyWriter<rapidjson::StringBuffer> writer(buffer);
    writer.SetIndent(' ', static_cast<unsigned>(indent));
    Encode(state, writer);
  } else {
    rapidjson::Writer<rapidjson::StringBuffer> writer(buffer);
    Encode(state, writer);
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
  Builder builder(state);
  constexpr unsigned kFlags =
      rapidjson::kParseNumbersAsStringsFlag | rapidjson::kParseValidateEncodingFlag;
  const auto place = [&](size_t offset) {
    return absl::StrCat(" (at byte ", offset, " of ", text.size(), ")");
  };
  try {
    const rapidjson::ParseResult result = reader.Parse<kFlags>(stream, builder);
    if (!result.IsError()) return;
    throw Error(absl::StrCat(rapidjson::GetParseError_En(result.Code()), place(result.Offset())));
  } catch (const ValueError& error) {
    throw Error(absl::StrCat(error.what(), place(stream.Tell())));
  }
}

}  // namespace lockstep::lua
