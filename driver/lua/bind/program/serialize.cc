#include "driver/lua/bind/program/serialize.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "driver/lua/torch/tensor.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/vm.h"

namespace lockstep::lua {
namespace {

// One byte says what follows: a double, a length and bytes, a tensor's index, the pairs of a table
// up to kEnd, or a count and the values of an array. An array of numbers has no tags between them.
enum class Tag : char {
  kNil = 'n',
  kNull = '0',  // of JSON
  kFalse = 'f',
  kTrue = 't',
  kNumber = 'd',
  kString = 's',
  kTensor = 'x',
  kTable = '{',
  kEnd = '}',
  kArray = '[',
  kNumbers = '#'
};

constexpr int kMaxDepth = 64;

class Writer {
 public:
  Writer(lua_State* state, const std::string& caller, std::vector<at::Tensor>* tensors)
      : state_(state), caller_(caller), tensors_(tensors) {}

  void Write(int index, int depth) {
    switch (lua_type(state_, index)) {
      case LUA_TNIL:
        return Put(Tag::kNil);
      case LUA_TBOOLEAN:
        return Put(lua_toboolean(state_, index) ? Tag::kTrue : Tag::kFalse);
      case LUA_TNUMBER:
        Put(Tag::kNumber);
        return PutRaw(lua_tonumber(state_, index));
      case LUA_TSTRING: {
        size_t size = 0;
        const char* data = lua_tolstring(state_, index, &size);
        Put(Tag::kString);
        PutRaw(uint64_t{size});
        bytes.append(data, size);
        return;
      }
      case LUA_TLIGHTUSERDATA:
        if (lua_touserdata(state_, index) != nullptr) break;
        return Put(Tag::kNull);
      case LUA_TTABLE:
        return WriteTable(index, depth);
      default:
        break;
    }
    const at::Tensor* tensor = TensorAt(state_, index);
    if (tensor != nullptr && tensors_ != nullptr) {
      Put(Tag::kTensor);
      PutRaw(uint64_t{tensors_->size()});
      tensors_->push_back(*tensor);
      return;
    }
    throw Error(absl::StrCat(
        caller_, ": value", path_, " is ", TypeName(state_, index),
        "; only nil, booleans, numbers, strings and tables of them ",
        tensors_ != nullptr ? "can be kept, and tensors" : "travel (tensors: use all_gather)"));
  }

  std::string bytes;

 private:
  struct Key {
    int type = LUA_TNIL;
    double number = 0;  // a boolean's too
    std::string text;
    bool operator<(const Key& other) const {
      return std::tie(type, number, text) < std::tie(other.type, other.number, other.text);
    }
  };

  void Put(Tag tag) { bytes.push_back(static_cast<char>(tag)); }

  template <typename T>
  void PutRaw(T value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }

  Key ReadKey(int index) const {
    Key key;
    key.type = lua_type(state_, index);
    if (key.type == LUA_TNUMBER) key.number = lua_tonumber(state_, index);
    if (key.type == LUA_TBOOLEAN) key.number = lua_toboolean(state_, index);
    if (key.type == LUA_TSTRING) key.text = ReadString(state_, index, "a key");
    return key;
  }

  std::string StepTo(const Key& key, int index) const {
    if (key.type == LUA_TSTRING) return absl::StrCat(".", key.text);
    if (key.type == LUA_TNUMBER) return absl::StrCat("[", key.number, "]");
    return absl::StrCat("[", TypeName(state_, index), "]");
  }

  // The number of elements of a table that is an array and nothing else; 0 of any other.
  size_t ArraySize(int index) {
    const size_t size = lua_objlen(state_, index);
    size_t num_keys = 0;
    are_numbers_ = true;
    if (size == 0) return 0;
    for (lua_pushnil(state_); lua_next(state_, index) != 0; lua_pop(state_, 1)) {
      const double key = lua_type(state_, -2) == LUA_TNUMBER ? lua_tonumber(state_, -2) : 0;
      if (++num_keys > size || !(key >= 1 && key <= static_cast<double>(size)) ||
          key != std::floor(key)) {
        lua_pop(state_, 2);
        return 0;
      }
      are_numbers_ = are_numbers_ && lua_type(state_, -1) == LUA_TNUMBER;
    }
    return num_keys == size ? size : 0;
  }

  void WriteArray(int index, size_t size, int depth) {
    const bool are_numbers = are_numbers_;
    Put(are_numbers ? Tag::kNumbers : Tag::kArray);
    PutRaw(uint64_t{size});
    const size_t path_size = path_.size();
    for (size_t i = 1; i <= size; ++i) {
      lua_rawgeti(state_, index, static_cast<int>(i));
      if (are_numbers) {
        PutRaw(lua_tonumber(state_, -1));
      } else {
        absl::StrAppend(&path_, "[", i, "]");
        Write(lua_gettop(state_), depth + 1);
        path_.resize(path_size);
      }
      lua_pop(state_, 1);
    }
  }

  void WriteTable(int index, int depth) {
    if (depth >= kMaxDepth) {
      throw Error(
          absl::StrCat(caller_, ": tables are nested more than 64 deep, or contain themselves"));
    }
    luaL_checkstack(state_, 4, "nested tables");
    if (const size_t size = ArraySize(index); size > 0) return WriteArray(index, size, depth);
    Put(Tag::kTable);
    std::vector<Key> keys;
    for (lua_pushnil(state_); lua_next(state_, index) != 0; lua_pop(state_, 1)) {
      const int at = lua_gettop(state_) - 1;
      keys.push_back(ReadKey(at));
      const int type = keys.back().type;
      if (type == LUA_TSTRING || type == LUA_TNUMBER || type == LUA_TBOOLEAN) continue;
      throw Error(absl::StrCat(caller_, ": value", path_, " has a key that is ",
                               TypeName(state_, at), "; keys are strings, numbers and booleans"));
    }
    std::sort(keys.begin(), keys.end());
    for (const Key& key : keys) {
      if (key.type == LUA_TSTRING) PushString(state_, key.text);
      if (key.type == LUA_TNUMBER) lua_pushnumber(state_, key.number);
      if (key.type == LUA_TBOOLEAN) lua_pushboolean(state_, key.number != 0);
      const int at = lua_gettop(state_);
      const size_t size = path_.size();
      path_ += StepTo(key, at);
      Write(at, depth + 1);
      lua_pushvalue(state_, at);
      lua_rawget(state_, index);
      Write(at + 1, depth + 1);
      lua_settop(state_, at - 1);
      path_.resize(size);
    }
    Put(Tag::kEnd);
  }

  lua_State* state_;
  const std::string& caller_;
  std::vector<at::Tensor>* tensors_;
  std::string path_;
  bool are_numbers_ = false;  // the elements of the array that ArraySize found
};

class Reader {
 public:
  Reader(lua_State* state, const std::string& bytes, const std::string& caller,
         const std::vector<at::Tensor>& tensors)
      : state_(state), bytes_(bytes), caller_(caller), tensors_(tensors) {}

  void ReadAll() {
    if (!Read(0)) Fail("are not a value");
    if (next_ != bytes_.size()) Fail("go on after the value");
  }

 private:
  // Pushes the next value; false at the end of a table.
  bool Read(int depth) {
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
      case Tag::kNumber:
        lua_pushnumber(state_, TakeRaw<double>());
        return true;
      case Tag::kString: {
        const auto length = TakeRaw<uint64_t>();
        const char* data = Take(length);
        lua_pushlstring(state_, data, length);
        return true;
      }
      case Tag::kTensor: {
        const auto index = TakeRaw<uint64_t>();
        if (index >= tensors_.size()) Fail("refer to a tensor that is missing");
        PushTensor(state_, tensors_[index]);
        return true;
      }
      case Tag::kNull:
        lua_pushlightuserdata(state_, nullptr);
        return true;
      case Tag::kTable:
        ReadTable(depth);
        return true;
      case Tag::kArray:
        ReadArray(depth);
        return true;
      case Tag::kNumbers:
        ReadNumbers();
        return true;
      case Tag::kEnd:
        return false;
    }
    Fail("are not a value");
  }

  void ReadTable(int depth) {
    if (depth >= kMaxDepth) Fail("nest tables more than 64 deep");
    lua_newtable(state_);
    while (Read(depth + 1)) {
      const bool is_key = !lua_isnil(state_, -1) && !(lua_type(state_, -1) == LUA_TNUMBER &&
                                                      std::isnan(lua_tonumber(state_, -1)));
      if (!is_key || !Read(depth + 1)) Fail("contain an invalid table");
      lua_rawset(state_, -3);
    }
  }

  // Every element takes a byte at least: a count beyond the bytes is a lie.
  int TakeCount(uint64_t element_bytes) {
    const auto count = TakeRaw<uint64_t>();
    if (count > (bytes_.size() - next_) / element_bytes || count > INT_MAX) Fail("are cut short");
    return static_cast<int>(count);
  }

  void ReadArray(int depth) {
    if (depth >= kMaxDepth) Fail("nest tables more than 64 deep");
    const int count = TakeCount(1);
    lua_createtable(state_, count, 0);
    for (int i = 1; i <= count; ++i) {
      if (!Read(depth + 1) || lua_isnil(state_, -1)) Fail("hold an array that is none");
      lua_rawseti(state_, -2, i);
    }
  }

  void ReadNumbers() {
    const int count = TakeCount(sizeof(double));
    lua_createtable(state_, count, 0);
    for (int i = 1; i <= count; ++i) {
      lua_pushnumber(state_, TakeRaw<double>());
      lua_rawseti(state_, -2, i);
    }
  }

  [[noreturn]] void Fail(const char* problem) const {
    throw Error(absl::StrCat(caller_, ": the bytes received ", problem));
  }

  template <typename T>
  T TakeRaw() {
    T value;
    std::memcpy(&value, Take(sizeof(value)), sizeof(value));
    return value;
  }

  const char* Take(uint64_t size) {
    if (size > bytes_.size() - next_) Fail("are cut short");
    const char* data = bytes_.data() + next_;
    next_ += size;
    return data;
  }

  lua_State* state_;
  const std::string& bytes_;
  const std::string& caller_;
  const std::vector<at::Tensor>& tensors_;
  size_t next_ = 0;
};

}  // namespace

std::string Serialize(lua_State* state, int index, const std::string& caller,
                      std::vector<at::Tensor>* tensors) {
  Writer writer(state, caller, tensors);
  writer.Write(index > 0 ? index : lua_gettop(state) + index + 1, 0);
  return std::move(writer.bytes);
}

void PushSerialized(lua_State* state, const std::string& bytes, const std::string& caller,
                    const std::vector<at::Tensor>& tensors) {
  Reader(state, bytes, caller, tensors).ReadAll();
}

}  // namespace lockstep::lua
