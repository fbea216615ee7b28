// Options and counts of a C++ struct in Lua. One list of names and members reads what a script
// gives, says which names are known, and gives Lua the defaults of the struct: nobody writes them
// again.
//
//    constexpr Field<TileOptions> kFields[] = {{"preserve_rng", &TileOptions::preserve_rng}};
//    const OptionTable table(state, 1, "tiled_mlp.new", NamesOf(kFields, {"tiles"}));
//    TileOptions options;
//    ReadFields(table, kFields, options);
//
//    SetDefaults<TileOptions>(state, "defaults", kFields);  // of the module on top of the stack
//
// Lua starts from them: options.read("tiled_mlp.new", given, plain.copy(core.defaults, { ... })).

#ifndef LOCKSTEP_DRIVER_LUA_VM_FIELDS_H_
#define LOCKSTEP_DRIVER_LUA_VM_FIELDS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "driver/lua/vm/stack.h"
#include "lua.hpp"

namespace lockstep::lua {

// An optional member has no default: nil in Lua.
template <typename Struct>
struct Field {
  const char* name;
  std::variant<bool Struct::*, int64_t Struct::*, double Struct::*, std::string Struct::*,
               std::optional<bool> Struct::*, std::optional<int64_t> Struct::*>
      member;
};

// Returns the names of the fields, then `more`: what an OptionTable may hold.
template <typename Struct, size_t size>
std::vector<const char*> NamesOf(const Field<Struct> (&fields)[size],
                                 std::vector<const char*> more = {}) {
  std::vector<const char*> names;
  for (const Field<Struct>& field : fields) names.push_back(field.name);
  names.insert(names.end(), more.begin(), more.end());
  return names;
}

inline void ReadOption(const OptionTable& table, const char* name, bool& value) {
  value = table.Boolean(name, value);
}
inline void ReadOption(const OptionTable& table, const char* name, int64_t& value) {
  value = table.Integer(name, value);
}
inline void ReadOption(const OptionTable& table, const char* name, double& value) {
  value = table.Number(name, value);
}
inline void ReadOption(const OptionTable& table, const char* name, std::string& value) {
  value = table.String(name, value);
}
template <typename T>
void ReadOption(const OptionTable& table, const char* name, std::optional<T>& value) {
  if (table.Has(name)) ReadOption(table, name, value.emplace());
}

// Sets the members of `into` that the table has. Throws for a value of another type.
template <typename Struct, size_t size>
void ReadFields(const OptionTable& table, const Field<Struct> (&fields)[size], Struct& into) {
  for (const Field<Struct>& field : fields)
    std::visit([&](auto member) { ReadOption(table, field.name, into.*member); }, field.member);
}

inline void SetField(lua_State* state, const char* name, bool value) {
  SetBoolean(state, name, value);
}
inline void SetField(lua_State* state, const char* name, int64_t value) {
  SetInteger(state, name, value);
}
inline void SetField(lua_State* state, const char* name, double value) {
  SetNumber(state, name, value);
}
inline void SetField(lua_State* state, const char* name, const std::string& value) {
  SetString(state, name, value);
}
template <typename T>
void SetField(lua_State* state, const char* name, const std::optional<T>& value) {
  if (value.has_value()) SetField(state, name, *value);
}

// Sets the fields of the table on top of the stack to the members of `from`.
template <typename Struct, size_t size>
void SetFields(lua_State* state, const Field<Struct> (&fields)[size], const Struct& from) {
  for (const Field<Struct>& field : fields)
    std::visit([&](auto member) { SetField(state, field.name, from.*member); }, field.member);
}

// Sets the field `name` of the table on top of the stack to a table of the struct's defaults.
template <typename Struct, size_t size>
void SetDefaults(lua_State* state, const char* name, const Field<Struct> (&fields)[size]) {
  lua_newtable(state);
  SetFields(state, fields, Struct());
  lua_setfield(state, -2, name);
}

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_VM_FIELDS_H_
