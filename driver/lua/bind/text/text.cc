#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "driver/lua/bind/open.h"
#include "driver/lua/vm/object.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/status.h"
#include "driver/text/tokenizer.h"
#include "driver/text/training/bpe_trainer.h"

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
template <>
inline constexpr const char* kObjectName<text::BpeTrainer> = "tokenizer trainer";

namespace {

TokenizerObject& Self(lua_State* state) {
  return ReadObject<TokenizerObject>(state, 1, "text: the tokenizer");
}

// open(path) -> tokenizer
int Open(lua_State* state) {
  const auto tokenizer =
      ValueOrThrow(text::Tokenizer::Load(ReadString(state, 1, "text.tokenizer: the path")));
  return PushObject(state, TokenizerObject{tokenizer, text::Encoder(tokenizer)});
}

// tokenizer:encode(text, special) -> array of ids
int Encode(lua_State* state) {
  TokenizerObject& self = Self(state);
  const std::string given = ReadString(state, 2, "tokenizer:encode: the text");
  const bool special = ReadBoolean(state, 3, "tokenizer:encode: special");
  std::vector<int32_t> ids;
  Check(self.encoder.Encode(given, {.add_special_tokens = special}, ids));
  return PushArray(state, ids, [&](int32_t id) { lua_pushinteger(state, id); });
}

// tokenizer:decode(ids, skip_special) -> text
int Decode(lua_State* state) {
  TokenizerObject& self = Self(state);
  const std::vector<int64_t> ids = ReadIntegers(state, 2, "tokenizer:decode: the ids");
  const bool skip = ReadBoolean(state, 3, "tokenizer:decode: skip_special");
  return PushString(state,
                    ValueOrThrow(text::Decode(self.tokenizer, ids, {.skip_special_tokens = skip})));
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
int Size(lua_State* state) { return PushInteger(state, Self(state).tokenizer->size()); }

// tokenizer:stream(skip_special) -> stream
int Stream(lua_State* state) {
  TokenizerObject& self = Self(state);
  const bool skip = ReadBoolean(state, 2, "tokenizer:stream: skip_special");
  return PushObject(state, text::DecodeStream(self.tokenizer, {.skip_special_tokens = skip}));
}

// stream:push(id) -> text
int Push(lua_State* state) {
  auto& stream = ReadObject<text::DecodeStream>(state, 1, "text: the stream");
  return PushString(state, ValueOrThrow(stream.Push(ReadInteger(state, 2, "stream:push: the id"))));
}

// stream:finish() -> text
int Finish(lua_State* state) {
  return PushString(state, ReadObject<text::DecodeStream>(state, 1, "text: the stream").Finish());
}

// trainer(json) -> trainer, which splits text as the tokenizer.json `json` says
int Trainer(lua_State* state) {
  const std::string json = ReadString(state, 1, "text.train_tokenizer: the tokenizer's parts");
  return PushObject(
      state, text::BpeTrainer(ValueOrThrow(text::Tokenizer::Parse(json, "text.train_tokenizer"))));
}

text::BpeTrainer& SelfTrainer(lua_State* state) {
  return ReadObject<text::BpeTrainer>(state, 1, "text: the trainer");
}

// trainer:add(text)
int Add(lua_State* state) {
  Check(SelfTrainer(state).Add(ReadString(state, 2, "trainer:add: the text")));
  return 0;
}

// trainer:learn(num_tokens, min_frequency) -> tokens, merges {{left, right}, ...}
int Learn(lua_State* state) {
  const text::LearnedBpe learned = ValueOrThrow(SelfTrainer(state).Learn(
      {.num_tokens = ReadInteger(state, 2, "trainer:learn: num_tokens"),
       .min_frequency = ReadInteger(state, 3, "trainer:learn: min_frequency")}));
  PushStrings(state, learned.tokens);
  PushArray(state, learned.merges, [&](const auto& merge) {
    PushStrings(state, {merge.first, merge.second});
  });
  return 2;
}

}  // namespace

int OpenText(lua_State* state) {
  RegisterObject<TokenizerObject>(
      state,
      {{"encode", Encode}, {"decode", Decode}, {"id", Id}, {"size", Size}, {"stream", Stream}});
  RegisterObject<text::DecodeStream>(state, {{"push", Push}, {"finish", Finish}});
  RegisterObject<text::BpeTrainer>(state, {{"add", Add}, {"learn", Learn}});
  lua_newtable(state);
  SetFunctions(state, {{"open", Open}, {"trainer", Trainer}});
  return 1;
}

}  // namespace lockstep::lua
