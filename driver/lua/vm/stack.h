// Reads arguments from the Lua stack and registers functions.
//
// Each Read function throws Error, with the argument's name and the given value, if the value has
// another type. `index` is absolute or relative, as in Lua's API.

#ifndef LOCKSTEP_DRIVER_LUA_VM_STACK_H_
#define LOCKSTEP_DRIVER_LUA_VM_STACK_H_

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/types/span.h"
#include "lua.hpp"

namespace lockstep::lua {

// Largest n for which every integer from -n to n is a double.
constexpr int64_t kMaxInteger = int64_t{1} << 53;

// Returns the value's type, for messages: "a number", "a table", "a tensor".
std::string TypeName(lua_State* state, int index);

[[noreturn]] void ThrowTypeError(lua_State* state, int index, const char* name,
                                 const char* expected);

double ReadNumber(lua_State* state, int index, const char* name);
int64_t ReadInteger(lua_State* state, int index, const char* name);
bool ReadBoolean(lua_State* state, int index, const char* name);
std::string ReadString(lua_State* state, int index, const char* name);
void ReadFunction(lua_State* state, int index,
                  const char* name);  // or what is callable as one; only checks
void ReadTable(lua_State* state, int index, const char* name);  // only checks

// Each Push... function pushes one value and returns 1, the number of results of a C function
// that ends with it: return PushInteger(state, count);
inline int PushBoolean(lua_State* state, bool value) {
  lua_pushboolean(state, value);
  return 1;
}
inline int PushNumber(lua_State* state, double value) {
  lua_pushnumber(state, value);
  return 1;
}

// Reads an array {1, 2, 3} of whole numbers.
std::vector<int64_t> ReadIntegers(lua_State* state, int index, const char* name);
int PushIntegers(lua_State* state, const std::vector<int64_t>& values);

// Reads an array of strings. `element` names one of them in messages, as "a path".
std::vector<std::string> ReadStrings(lua_State* state, int index, const char* name,
                                     const char* element);
int PushStrings(lua_State* state, const std::vector<std::string>& values);

// Calls read(i), i from 1, with each element of the array at `index` on top of the stack.
template <typename Read>
void ForEachElement(lua_State* state, int index, const Read& read) {
  const int size = static_cast<int>(lua_objlen(state, index));
  for (int i = 1; i <= size; ++i) {
    lua_rawgeti(state, index, i);
    read(i);
    lua_pop(state, 1);
  }
}

// Pushes an array. push(value) pushes the element of each value.
template <typename Values, typename Push>
int PushArray(lua_State* state, const Values& values, const Push& push) {
  lua_createtable(state, static_cast<int>(values.size()), 0);
  int count = 0;
  for (const auto& value : values) {
    push(value);
    lua_rawseti(state, -2, ++count);
  }
  return 1;
}

int PushString(lua_State* state, const std::string& value);

// Throws if `value` is beyond kMaxInteger, because a double would round it.
int PushInteger(lua_State* state, int64_t value);

// Set fields of the table on top of the stack.
void SetInteger(lua_State* state, const char* name, int64_t value);
void SetNumber(lua_State* state, const char* name, double value);
void SetBoolean(lua_State* state, const char* name, bool value);
void SetString(lua_State* state, const char* name, const std::string& value);
void SetIntegers(lua_State* state, const char* name, const std::vector<int64_t>& values);
struct Function {
  const char* name;
  lua_CFunction function;
};
void SetFunctions(lua_State* state, absl::Span<const Function> functions);
// Gives the table on top of the stack weak keys ("k") or weak values ("v").
void MakeWeak(lua_State* state, const char* mode);

// A table of options, as functions take it last: `{lr = 0.1}`. Absent (nil or none) reads as empty.
//
//    const OptionTable options(state, 2, "dist.all_reduce", {"group", "async"});
//    if (options.Push("group")) { ... lua_pop(state, 1); }
class OptionTable {
 public:
  // Throws if the value is not a table, or has a key that is not in `known`; the message has the
  // nearest known key.
  OptionTable(lua_State* state, int index, const char* function,
              const std::vector<const char*>& known);

  // Pushes the option's value and returns true. For nil pushes nothing and returns false.
  bool Push(const char* key) const;

  bool Has(const char* key) const;

  // Returns the option's value as read(state, index, name) reads it, or nullopt for nil.
  template <typename Read>
  auto Find(const char* key, const Read& read) const {
    std::optional<std::decay_t<decltype(read(state_, 0, key))>> value;
    if (!Push(key)) return value;
    value = read(state_, lua_gettop(state_), (function_ + ": " + key).c_str());
    lua_pop(state_, 1);
    return value;
  }

  int64_t Integer(const char* key, int64_t otherwise) const;
  double Number(const char* key, double otherwise) const;
  bool Boolean(const char* key, bool otherwise) const;
  std::string String(const char* key, const std::string& otherwise) const;

 private:
  lua_State* state_;
  int index_;  // absolute; 0: no table
  std::string function_;
};

// Returns the word of `known` that `word` is probably a misspelling of, or "".
std::string Nearest(const std::string& word, const std::vector<std::string>& known);

// Returns that word as the end of a message: "; did you mean \"Linear\"?", or "".
std::string DidYouMean(const std::string& word, const std::vector<std::string>& known);

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_VM_STACK_H_
