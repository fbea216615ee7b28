#include "driver/lua/bind/data/source.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "driver/data/parquet/row.h"
#include "driver/lua/bind/data/parquet.h"
#include "driver/lua/bind/program/json.h"
#include "driver/lua/bind/program/json_builder.h"
#include "driver/lua/vm/object.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/status.h"
#include "driver/lua/vm/vm.h"

namespace lockstep::lua {

template <>
inline constexpr const char* kObjectName<SharedSource> = "data source";

namespace {

// Pushes the table or array that a text in JSON is.
void PushJsonTable(lua_State* state, absl::string_view text, const data::Source& source,
                   int64_t number, const std::string& member) {
  const auto fail = [&](absl::string_view problem) {
    throw Error(absl::StrCat(source.Describe(number), member, ": ", problem));
  };
  try {
    PushJson(state, text);
  } catch (const Error& error) {
    fail(error.what());
  }
  if (lua_type(state, -1) != LUA_TTABLE)
    fail(absl::StrCat("expected an object or an array, got ", TypeName(state, -1)));
}

// Pushes a row of a table.
void PushRow(lua_State* state, const data::Sample& sample, const std::string& place) {
  JsonBuilder builder(state);
  try {
    if (!data::ReadRow({sample.text.data(), sample.text.size()}, builder))
      throw Error(
          absl::StrCat(place, ": the row in the cache is damaged; delete the cache folder"));
  } catch (const JsonValueError& error) {
    throw Error(absl::StrCat(place, ": ", error.what()));
  }
  builder.Finish();
}

// A sample as a table: what the JSON or the row says; {text = ...}; or of a tar shard the content
// by field, JSON read, and the stem as __key__.
void PushSample(lua_State* state, const data::Source& source, int64_t number) {
  const data::Sample sample = ValueOrThrow(source.Read(number));
  if (sample.format == data::Format::kJsonLines || sample.format == data::Format::kJson)
    return PushJsonTable(state, sample.text, source, number, "");
  if (sample.format == data::Format::kParquet)
    return PushRow(state, sample, source.Describe(number));
  lua_newtable(state);
  if (sample.format != data::Format::kTar) {
    lua_pushlstring(state, sample.text.data(), sample.text.size());
    lua_setfield(state, -2, "text");
    return;
  }
  SetString(state, "__key__", sample.stem);
  for (const auto& [field, content] : sample.members) {
    PushString(state, field);
    if (field == "json" || absl::EndsWith(field, ".json")) {
      PushJsonTable(state, content, source, number, absl::StrCat(".", field));
    } else {
      lua_pushlstring(state, content.data(), content.size());
    }
    lua_rawset(state, -3);
  }
}

const data::Source& ReadSource(lua_State* state) {
  return *ReadObject<SharedSource>(state, 1, "source");
}

// The number from 0 of a sample that Lua counts from 1.
int64_t ReadNumberOfSample(lua_State* state, const data::Source& source) {
  const int64_t index = ReadInteger(state, 2, "source: the number of a sample");
  if (index >= 1 && index <= source.size()) return index - 1;
  throw Error(absl::StrCat(
      "source[", index, "]: the source has ",
      source.size() == 0 ? "no samples" : absl::StrCat("the samples 1 to ", source.size())));
}

int Length(lua_State* state) { return PushInteger(state, ReadSource(state).size()); }

// source:place(i) -> "train.jsonl, line 12"
int DescribeSample(lua_State* state) {
  const data::Source& source = ReadSource(state);
  return PushString(state, source.Describe(ReadNumberOfSample(state, source)));
}

int Index(lua_State* state) {
  const data::Source& source = ReadSource(state);
  if (lua_type(state, 2) == LUA_TNUMBER) {
    PushSample(state, source, ReadNumberOfSample(state, source));
  } else if (lua_type(state, 2) == LUA_TSTRING && std::string(lua_tostring(state, 2)) == "place") {
    lua_pushcfunction(state, DescribeSample);
  } else {
    lua_pushnil(state);
  }
  return 1;
}

}  // namespace

void RegisterSource(lua_State* state) {
  RegisterObject<SharedSource>(state, {});
  luaL_getmetatable(state, kObjectName<SharedSource>);
  SetFunctions(state, {{"__index", Index}, {"__len", Length}});
  lua_pop(state, 1);
}

int PushSource(lua_State* state, SharedSource source) {
  return PushObject(state, std::move(source));
}

SharedSource SourceAt(lua_State* state, int index) {
  const SharedSource* source = ObjectAt<SharedSource>(state, index);
  return source == nullptr ? nullptr : *source;
}

int NewSource(lua_State* state) {
  const std::vector<std::string> paths =
      ReadStrings(state, 1, "data.source: paths", "data.source: a path");
  data::SourceOptions options;
  options.format = ReadString(state, 2, "data.source: format");
  options.cache_folder = ReadString(state, 3, "data.source: cache");
  options.columns = ReadStrings(state, 4, "data.source: columns", "data.source: a column's name");
  options.load_unpack_parquet = LoadUnpackParquet;
  return PushSource(state, std::make_shared<const data::Source>(
                               ValueOrThrow(data::Source::Open(paths, options), "data.source: ")));
}

}  // namespace lockstep::lua
