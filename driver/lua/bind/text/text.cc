#include "driver/lua/bind/text/text.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "driver/lua/vm/object.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/vm.h"
#include "driver/text/tokenizer.h"

namespace lockstep::lua {
namespace {

struct TokenizerObject {
  std::shared_ptr<const text::Tokenizer> tokenizer;
  text::Encoder encoder;
};

}  // namespace

template <>
inline constexpr const char* kObjectName<TokenizerObject> = "tokenizer";
template <>
inline constexpr const char* kObjectName<text::DecodeStream> = "token stream";

namespace {

void Check(const absl::Status& status) {
  if (!status.ok()) throw Error(std::string(status.message()));
}

TokenizerObject& Self(lua_State* state) {
  return ReadObject<TokenizerObject>(state, 1, "text: the tokenizer");
}

// open(path) -> tokenizer
int Open(lua_State* state) {
  auto tokenizer = text::Tokenizer::Load(ReadString(state, 1, "text.tokenizer: the path"));
  Check(tokenizer.status());
  PushObject(state, TokenizerObject{*tokenizer, text::Encoder(*tokenizer)});
  return 1;
}

// tokenizer:encode(text, special) -> array of ids
int Encode(lua_State* state) {
  TokenizerObject& self = Self(state);
  const std::string given = ReadString(state, 2, "tokenizer:encode: the text");
  const bool special = ReadBoolean(state, 3, "tokenizer:encode: special");
  std::vector<int32_t> ids;
  Check(self.encoder.Encode(given, {.special = special}, ids));
  lua_createtable(state, static_cast<int>(ids.size()), 0);
  for (size_t i = 0; i < ids.size(); ++i) {
    lua_pushinteger(state, ids[i]);
    lua_rawseti(state, -2, static_cast<int>(i + 1));
  }
  return 1;
}

// tokenizer:decode(ids, skip_special) -> text
int Decode(lua_State* state) {
  TokenizerObject& self = Self(state);
  const std::vector<int64_t> ids = ReadIntegers(state, 2, "tokenizer:decode: the ids");
  const bool skip = ReadBoolean(state, 3, "tokenizer:decode: skip_special");
  const absl::StatusOr<std::string> decoded =
      text::Decode(self.tokenizer, ids, {.skip_special = skip});
  Check(decoded.status());
  PushString(state, *decoded);
  return 1;
}

// tokenizer:id(token) -> id, or nil
int Id(lua_State* state) {
  const std::optional<int32_t> id =
      Self(state).tokenizer->Id(ReadString(state, 2, "tokenizer:id: the token"));
  if (id) {
    lua_pushinteger(state, *id);
  } else {
    lua_pushnil(state);
  }
  return 1;
}

// tokenizer:size() -> number of tokens
int Size(lua_State* state) {
  PushInteger(state, Self(state).tokenizer->size());
  return 1;
}

// tokenizer:stream(skip_special) -> stream
int Stream(lua_State* state) {
  TokenizerObject& self = Self(state);
  const bool skip = ReadBoolean(state, 2, "tokenizer:stream: skip_special");
  PushObject(state, text::DecodeStream(self.tokenizer, {.skip_special = skip}));
  return 1;
}

// stream:push(id) -> text
int Push(lua_State* state) {
  auto& stream = ReadObject<text::DecodeStream>(state, 1, "text: the stream");
  const absl::StatusOr<std::string> more =
      stream.Push(ReadInteger(state, 2, "stream:push: the id"));
  Check(more.status());
  PushString(state, *more);
  return 1;
}

// stream:finish() -> text
int Finish(lua_State* state) {
  PushString(state, ReadObject<text::DecodeStream>(state, 1, "text: the stream").Finish());
  return 1;
}

}  // namespace

int OpenText(lua_State* state) {
  RegisterObject<TokenizerObject>(
      state,
      {{"encode", Encode}, {"decode", Decode}, {"id", Id}, {"size", Size}, {"stream", Stream}});
  RegisterObject<text::DecodeStream>(state, {{"push", Push}, {"finish", Finish}});
  lua_newtable(state);
  SetFunctions(state, {{"open", Open}});
  return 1;
}

}  // namespace lockstep::lua
