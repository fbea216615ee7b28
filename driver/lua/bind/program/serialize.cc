#include "driver/lua/bind/program/serialize.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "driver/files/value_bytes.h"
#include "driver/lua/tensor/tensor.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/status.h"
#include "driver/lua/vm/vm.h"

namespace lockstep::lua {
namespace {

using driver::ValueKey;
using driver::ValueTag;
using driver::ValueToken;

class Writer {
 public:
  Writer(lua_State* state, const std::string& caller, std::vector<at::Tensor>* tensors)
      : state_(state), caller_(caller), tensors_(tensors) {}

  void Write(int index, int depth) {
    switch (lua_type(state_, index)) {
      case LUA_TNIL: return writer_.Nil();
      case LUA_TBOOLEAN: return writer_.Bool(lua_toboolean(state_, index) != 0);
      case LUA_TNUMBER: return writer_.Number(lua_tonumber(state_, index));
      case LUA_TSTRING: {
        size_t size = 0;
        const char* data = lua_tolstring(state_, index, &size);
        return writer_.String({data, size});
      }
      case LUA_TLIGHTUSERDATA:
        if (lua_touserdata(state_, index) != nullptr) break;
        return writer_.Null();
      case LUA_TTABLE: return WriteTable(index, depth);
      default: break;
    }
    const at::Tensor* tensor = TensorAt(state_, index);
    if (tensor != nullptr && tensors_ != nullptr) {
      writer_.Tensor(tensors_->size());
      tensors_->push_back(*tensor);
      return;
    }
    throw Error(absl::StrCat(
        caller_, ": value", path_, " is ", TypeName(state_, index),
        "; only nil, booleans, numbers, strings and tables of them ",
        tensors_ != nullptr ? "can be kept, and tensors" : "travel (tensors: use all_gather)"));
  }

  std::string bytes() && { return std::move(writer_).bytes(); }

 private:
  ValueKey ReadKey(int index) const {
    switch (lua_type(state_, index)) {
      case LUA_TBOOLEAN: return lua_toboolean(state_, index) != 0;
      case LUA_TNUMBER: return lua_tonumber(state_, index);
      case LUA_TSTRING: return ReadString(state_, index, "a key");
      default:
        throw Error(absl::StrCat(caller_, ": value", path_, " has a key that is ",
                                 TypeName(state_, index),
                                 "; keys are strings, numbers and booleans"));
    }
  }

  void PushKey(const ValueKey& key) const {
    if (const auto* boolean = std::get_if<bool>(&key)) lua_pushboolean(state_, *boolean);
    if (const auto* number = std::get_if<double>(&key)) lua_pushnumber(state_, *number);
    if (const auto* text = std::get_if<std::string>(&key)) PushString(state_, *text);
  }

  std::string StepTo(const ValueKey& key) const {
    if (const auto* text = std::get_if<std::string>(&key)) return absl::StrCat(".", *text);
    if (const auto* number = std::get_if<double>(&key)) return absl::StrCat("[", *number, "]");
    return std::get<bool>(key) ? "[true]" : "[false]";
  }

  // Returns the number of elements of a table that is an array and nothing else; 0 of any other.
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
    are_numbers ? writer_.StartNumbers(size) : writer_.StartArray(size);
    const size_t path_size = path_.size();
    for (size_t i = 1; i <= size; ++i) {
      lua_rawgeti(state_, index, static_cast<int>(i));
      if (are_numbers) {
        writer_.NextNumber(lua_tonumber(state_, -1));
      } else {
        absl::StrAppend(&path_, "[", i, "]");
        Write(lua_gettop(state_), depth + 1);
        path_.resize(path_size);
      }
      lua_pop(state_, 1);
    }
  }

  void WriteTable(int index, int depth) {
    if (depth >= driver::kMaxValueDepth) {
      throw Error(
          absl::StrCat(caller_, ": tables are nested more than 64 deep, or contain themselves"));
    }
    luaL_checkstack(state_, 4, "nested tables");
    if (const size_t size = ArraySize(index); size > 0) return WriteArray(index, size, depth);
    writer_.StartTable();
    std::vector<ValueKey> keys;
    for (lua_pushnil(state_); lua_next(state_, index) != 0; lua_pop(state_, 1))
      keys.push_back(ReadKey(lua_gettop(state_) - 1));
    std::sort(keys.begin(), keys.end());
    for (const ValueKey& key : keys) {
      const size_t size = path_.size();
      path_ += StepTo(key);
      writer_.Key(key);
      PushKey(key);
      lua_rawget(state_, index);
      Write(lua_gettop(state_), depth + 1);
      lua_pop(state_, 1);
      path_.resize(size);
    }
    writer_.EndTable();
  }

  lua_State* state_;
  const std::string& caller_;
  std::vector<at::Tensor>* tensors_;
  driver::ValueWriter writer_;
  std::string path_;
  bool are_numbers_ = false;  // the elements of the array that ArraySize found
};

class Reader {
 public:
  Reader(lua_State* state, const std::string& bytes, const std::string& caller,
         const std::vector<at::Tensor>& tensors)
      : state_(state), caller_(caller), tensors_(tensors), reader_(bytes, tensors.size()) {}

  void ReadValue() { Push(Next()); }

 private:
  ValueToken Next() { return ValueOrThrow(reader_.Next(), caller_ + ": "); }

  void Push(const ValueToken& token) {
    luaL_checkstack(state_, 4, "nested tables");
    switch (token.tag) {
      case ValueTag::kFalse:
      case ValueTag::kTrue: return lua_pushboolean(state_, token.tag == ValueTag::kTrue);
      case ValueTag::kNumber: return lua_pushnumber(state_, token.number);
      case ValueTag::kString: return lua_pushlstring(state_, token.text.data(), token.text.size());
      case ValueTag::kTensor: PushTensor(state_, tensors_[token.count]); return;
      case ValueTag::kNull: return lua_pushlightuserdata(state_, nullptr);
      case ValueTag::kTable:
        lua_newtable(state_);
        for (ValueToken key = Next(); key.tag != ValueTag::kEnd; key = Next()) {
          Push(key);
          Push(Next());
          lua_rawset(state_, -3);
        }
        return;
      case ValueTag::kArray:
      case ValueTag::kNumbers:
        lua_createtable(state_, static_cast<int>(token.count), 0);
        for (uint64_t i = 0; i < token.count; ++i) {
          if (token.tag == ValueTag::kArray) Push(Next());
          if (token.tag == ValueTag::kNumbers) lua_pushnumber(state_, token.NumberAt(i));
          lua_rawseti(state_, -2, static_cast<int>(i + 1));
        }
        return;
      case ValueTag::kNil:
      case ValueTag::kEnd:  // only after a table's last value
        return lua_pushnil(state_);
    }
  }

  lua_State* state_;
  const std::string& caller_;
  const std::vector<at::Tensor>& tensors_;
  driver::ValueReader reader_;
};

}  // namespace

std::string Serialize(lua_State* state, int index, const std::string& caller,
                      std::vector<at::Tensor>* tensors) {
  Writer writer(state, caller, tensors);
  writer.Write(index > 0 ? index : lua_gettop(state) + index + 1, 0);
  return std::move(writer).bytes();
}

int PushSerialized(lua_State* state, const std::string& bytes, const std::string& caller,
                   const std::vector<at::Tensor>& tensors) {
  Reader(state, bytes, caller, tensors).ReadValue();
  return 1;
}

}  // namespace lockstep::lua
