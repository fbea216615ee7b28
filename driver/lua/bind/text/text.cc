// lockstep.core.text: tokenizers.

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

// open(path: string) -> Tokenizer
// Reads tokenizer.json, or the one in a folder.
int Open(lua_State* state) {
  const auto tokenizer =
      ValueOrThrow(text::Tokenizer::Load(ReadString(state, 1, "text.tokenizer: the path")));
  return PushObject(state, TokenizerObject{tokenizer, text::Encoder(tokenizer)});
}

// Tokenizer:encode(given: string, special: boolean) -> integer[]
// Returns the ids of a text in an array. given: UTF-8.
int Encode(lua_State* state) {
  TokenizerObject& self = Self(state);
  const std::string given = ReadString(state, 2, "tokenizer:encode: the text");
  const bool special = ReadBoolean(state, 3, "tokenizer:encode: special");
  std::vector<int32_t> ids;
  Check(self.encoder.Encode(given, {.add_special_tokens = special}, ids));
  return PushArray(state, ids, [&](int32_t id) { lua_pushinteger(state, id); });
}

// Tokenizer:decode(ids: integer[], skip_special: boolean) -> string
// Returns the text of the ids.
int Decode(lua_State* state) {
  TokenizerObject& self = Self(state);
  const std::vector<int64_t> ids = ReadIntegers(state, 2, "tokenizer:decode: the ids");
  const bool skip = ReadBoolean(state, 3, "tokenizer:decode: skip_special");
  return PushString(state,
                    ValueOrThrow(text::Decode(self.tokenizer, ids, {.skip_special_tokens = skip})));
}

// Tokenizer:id(token: string) -> integer?
// Returns the id of a token, or nil where it is not in the vocabulary.
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

// Tokenizer:size() -> integer
// Returns the number of tokens, added ones included.
int Size(lua_State* state) { return PushInteger(state, Self(state).tokenizer->size()); }

// Tokenizer:stream(skip_special: boolean) -> Stream
// Returns a stream that decodes ids as they come.
int Stream(lua_State* state) {
  TokenizerObject& self = Self(state);
  const bool skip = ReadBoolean(state, 2, "tokenizer:stream: skip_special");
  return PushObject(state, text::DecodeStream(self.tokenizer, {.skip_special_tokens = skip}));
}

// Stream:push(id: integer) -> string
// Returns the text that is complete and was not returned before.
int Push(lua_State* state) {
  auto& stream = ReadObject<text::DecodeStream>(state, 1, "text: the stream");
  return PushString(state, ValueOrThrow(stream.Push(ReadInteger(state, 2, "stream:push: the id"))));
}

// Stream:finish() -> string
// Returns the text that waited for more, and begins anew.
int Finish(lua_State* state) {
  return PushString(state, ReadObject<text::DecodeStream>(state, 1, "text: the stream").Finish());
}

// trainer(json: string) -> Trainer
// Returns a trainer that normalizes and splits text as a tokenizer does. json: tokenizer.json; its
// model is not used.
int Trainer(lua_State* state) {
  const std::string json = ReadString(state, 1, "text.train_tokenizer: the tokenizer's parts");
  return PushObject(
      state, text::BpeTrainer(ValueOrThrow(text::Tokenizer::Parse(json, "text.train_tokenizer"))));
}

text::BpeTrainer& SelfTrainer(lua_State* state) {
  return ReadObject<text::BpeTrainer>(state, 1, "text: the trainer");
}

// Trainer:add(given: string)
// Counts the words of a text. given: UTF-8.
int Add(lua_State* state) {
  Check(SelfTrainer(state).Add(ReadString(state, 2, "trainer:add: the text")));
  return 0;
}

// Trainer:learn(num_tokens: integer, min_frequency: integer) -> tokens: string[],
//     merges: string[][]
// Returns the tokens that it learnt, num_tokens at most, by id from 0, and the merges {left, right}
// in their order. A pair of a lower frequency than min_frequency becomes no token.
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
