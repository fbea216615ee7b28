#include "driver/lua/serialize.h"

#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "driver/lua/stack.h"
#include "driver/lua/vm.h"

namespace lockstep::lua {
namespace {

// One byte says what follows: a double, a length and bytes, or the pairs of a table up to kEnd.
enum class Tag : char {
  kNil = 'n',
  kFalse = 'f',
  kTrue = 't',
  kNumber = 'd',
  kString = 's',
  kTable = '{',
  kEnd = '}'
};

constexpr int kMaxDepth = 64;

class Writer {
 public:
  explicit Writer(lua_State* state) : state_(state) {}

  void Write(int index, int depth) {
    switch (lua_type(state_, index)) {
      case LUA_TNIL:
        return Put(Tag::kNil);
      case LUA_TBOOLEAN:
        return Put(lua_toboolean(state_, index) ? Tag::kTrue : Tag::kFalse);
      case LUA_TNUMBER: {
        const double value = lua_tonumber(state_, index);
        Put(Tag::kNumber);
        bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
        return;
      }
      case LUA_TSTRING: {
        size_t size = 0;
        const char* data = lua_tolstring(state_, index, &size);
        const uint64_t length = size;
        Put(Tag::kString);
        bytes.append(reinterpret_cast<const char*>(&length), sizeof(length));
        bytes.append(data, size);
        return;
      }
      case LUA_TTABLE:
        return WriteTable(index, depth);
      default:
        throw Error(absl::StrCat("all_gather_object: value", path_, " is ", TypeName(state_, index),
                                 "; only nil, booleans, numbers, strings and tables of them travel "
                                 "(tensors: use all_gather)"));
    }
  }

  std::string bytes;

 private:
  void Put(Tag tag) { bytes.push_back(static_cast<char>(tag)); }

  void WriteTable(int index, int depth) {
    if (depth >= kMaxDepth)
      throw Error("all_gather_object: tables are nested more than 64 deep, or contain themselves");
    Put(Tag::kTable);
    luaL_checkstack(state_, 4, "nested tables");
    for (lua_pushnil(state_); lua_next(state_, index) != 0; lua_pop(state_, 1)) {
      const size_t size = path_.size();
      const int key = lua_gettop(state_) - 1;
      if (lua_type(state_, key) == LUA_TSTRING) {
        absl::StrAppend(&path_, ".", lua_tostring(state_, key));
      } else if (lua_type(state_, key) == LUA_TNUMBER) {
        absl::StrAppend(&path_, "[", lua_tonumber(state_, key), "]");
      } else {
        absl::StrAppend(&path_, "[", TypeName(state_, key), "]");
      }
      Write(key, depth + 1);
      Write(key + 1, depth + 1);
      path_.resize(size);
    }
    Put(Tag::kEnd);
  }

  lua_State* state_;
  std::string path_;
};

class Reader {
 public:
  Reader(lua_State* state, const std::string& bytes) : state_(state), bytes_(bytes) {}

  // Pushes the next value; false at the end of a table.
  bool Read() {
    luaL_checkstack(state_, 4, "nested tables");
    switch (static_cast<Tag>(*Take(1))) {
      case Tag::kNil:
        lua_pushnil(state_);
        return true;
      case Tag::kFalse:
        lua_pushboolean(state_, 0);
        return true;
      case Tag::kTrue:
        lua_pushboolean(state_, 1);
        return true;
      case Tag::kNumber: {
        double value = 0;
        std::memcpy(&value, Take(sizeof(value)), sizeof(value));
        lua_pushnumber(state_, value);
        return true;
      }
      case Tag::kString: {
        uint64_t length = 0;
        std::memcpy(&length, Take(sizeof(length)), sizeof(length));
        const char* data = Take(length);
        lua_pushlstring(state_, data, length);
        return true;
      }
      case Tag::kTable:
        lua_newtable(state_);
        while (Read()) {
          Read();
          lua_rawset(state_, -3);
        }
        return true;
      case Tag::kEnd:
        return false;
    }
    throw Error("all_gather_object: the bytes received are not a value");
  }

 private:
  const char* Take(size_t size) {
    if (size > bytes_.size() - next_)
      throw Error("all_gather_object: the bytes received are cut short");
    const char* data = bytes_.data() + next_;
    next_ += size;
    return data;
  }

  lua_State* state_;
  const std::string& bytes_;
  size_t next_ = 0;
};

}  // namespace

std::string Serialize(lua_State* state, int index) {
  Writer writer(state);
  writer.Write(index > 0 ? index : lua_gettop(state) + index + 1, 0);
  return std::move(writer.bytes);
}

void PushSerialized(lua_State* state, const std::string& bytes) { Reader(state, bytes).Read(); }

}  // namespace lockstep::lua
