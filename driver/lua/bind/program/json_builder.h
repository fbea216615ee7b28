// Builds a Lua value from its parts, and notes what Lua tables cannot hold (see JsonShapes in
// json.h): the order of keys, which numbers are floats, and which empty tables are arrays.
//
//   JsonBuilder builder(state);
//   builder.StartObject();
//   builder.Key("id");
//   builder.Number(5, /*is_integer=*/true);
//   builder.EndObject();
//   builder.Finish();  // the value is on top of the stack

#ifndef LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_JSON_BUILDER_H_
#define LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_JSON_BUILDER_H_

#include <stdexcept>
#include <string>
#include <vector>

#include "lua.hpp"

namespace lockstep::lua {

inline constexpr int kMaxJsonDepth = 128;

// A value that is JSON, but that Lua cannot hold.
class JsonValueError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Pushes the table from decoded tables to their shapes.
int PushJsonShapes(lua_State* state);

// Each function that adds a part returns true, as parsers want it.
class JsonBuilder {
 public:
  // Pushes two tables. The value is built over them.
  explicit JsonBuilder(lua_State* state);

  // Removes the two tables from the stack and leaves the value. Call it once the value is complete.
  void Finish();

  bool Null();
  bool Bool(bool value);
  bool Number(double value, bool is_integer);
  bool String(const std::string& text);
  bool Key(const std::string& name);
  // Both throw JsonValueError for values that are nested more than 128 deep.
  bool StartObject() { return Start(0); }
  bool StartArray() { return Start(1); }
  bool EndObject();
  bool EndArray();

 private:
  enum class Kind : char { kOther = '-', kInteger = 'i', kFloat = 'd', kWholeFloat = 'f' };

  // An object or array that is being filled.
  struct Level {
    int next = 0;           // counts an array's elements; 0 in an object
    std::string signature;  // of an object: "4:name-", its keys and the kinds of their values
    std::vector<int> whole_floats;  // of an array: which elements are such
    bool has_integers = false;
  };

  bool Start(int next);
  bool End();
  // Moves the value on top of the stack into the table that is being filled.
  bool Add(Kind kind);
  // Pops the shape of the table below it.
  void KeepShape();
  // Objects with the same keys share a shape.
  void PushObjectShape(const std::string& signature);
  // Empty arrays share a shape, and so do arrays whose numbers are all floats.
  void PushArrayShape(const Level& level);

  lua_State* state_;
  int shapes_ = 0;  // stack indices of the two tables
  int known_ = 0;
  std::vector<Level> levels_;
};

}  // namespace lockstep::lua

#endif  // LOCKSTEP_DRIVER_LUA_BIND_PROGRAM_JSON_BUILDER_H_
