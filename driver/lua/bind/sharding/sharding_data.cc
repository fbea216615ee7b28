// lockstep.core.sharding: parts of datasets, and packing.

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "driver/lua/bind/sharding/functions.h"
#include "driver/lua/vm/fields.h"
#include "driver/lua/vm/object.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/status.h"
#include "driver/lua/vm/vm.h"
#include "sharding/dataset/pack.h"
#include "sharding/dataset/shard.h"

namespace lockstep::lua {

template <>
inline constexpr const char* kObjectName<sharding::Shard> = "shard";
template <>
inline constexpr const char* kObjectName<sharding::Packer> = "packer";

namespace {

// --- dataset -------------------------------------------------------------------------------------

sharding::Tail ReadTail(const OptionTable& table) {
  const bool drop = table.Boolean("drop_last", false);
  const bool pad = table.Boolean("pad", false);
  if (drop && pad) throw Error("sharding.dataset: drop_last and pad exclude each other");
  return drop ? sharding::Tail::kDrop : pad ? sharding::Tail::kPad : sharding::Tail::kUneven;
}

constexpr Field<sharding::ShardOptions> kOptions[] = {
    {"epoch", &sharding::ShardOptions::epoch},
    {"shuffle", &sharding::ShardOptions::shuffle},
    {"start", &sharding::ShardOptions::start},
};

// dataset(options: table<string, any>) -> Shard
// options: as sharding.dataset takes them, with rank, world and start.
int NewShard(lua_State* state) {
  const OptionTable table(state, 1, "sharding.dataset",
                          NamesOf(kOptions, {"size", "rank", "world", "seed", "drop_last", "pad"}));
  sharding::ShardOptions options;
  ReadFields(table, kOptions, options);
  options.size = table.Integer("size", -1);
  options.rank = static_cast<int>(table.Integer("rank", 0));
  options.world = static_cast<int>(table.Integer("world", 1));
  options.seed = static_cast<uint64_t>(table.Integer("seed", 0));
  options.tail = ReadTail(table);
  return PushObject<sharding::Shard>(state, ValueOrThrow(sharding::Shard::Make(options)));
}

sharding::Shard& ReadShard(lua_State* state) {
  return ReadObject<sharding::Shard>(state, 1, "sharding.dataset");
}

// Shard:next() -> integer?
// The next sample's index, from 1; nothing at the end.
int NextIndex(lua_State* state) {
  const std::optional<int64_t> index = ReadShard(state).Next();
  if (!index.has_value()) return 0;
  return PushInteger(state, *index + 1);
}

// Shard:counts() -> length: integer, taken: integer, padded: integer, dropped: integer
int ShardCounts(lua_State* state) {
  const sharding::Shard& shard = ReadShard(state);
  for (const int64_t count : {shard.length(), shard.taken(), shard.padded(), shard.dropped()})
    PushInteger(state, count);
  return 4;
}

// Shard:start_after(taken: integer) -> integer
// Where another world's ranks start once every rank has taken so many samples.
int StartAfter(lua_State* state) {
  return PushInteger(state,
                     ReadShard(state).StartAfter(ReadInteger(state, 2, "sharding.dataset: taken")));
}

// permute(size: integer, seed: integer, epoch: integer, position: integer) -> index: integer
// The order of an epoch that shards share, computed and not stored. position: from 0 to size - 1;
// index: from 1 to size.
int Permute(lua_State* state) {
  const int64_t size = ReadInteger(state, 1, "permute: size");
  const auto seed = static_cast<uint64_t>(ReadInteger(state, 2, "permute: seed"));
  const int64_t epoch = ReadInteger(state, 3, "permute: epoch");
  const int64_t position = ReadInteger(state, 4, "permute: position");
  if (position < 0 || position >= size) {
    throw Error(absl::StrCat("permute: position must be from 0 to size - 1 = ", size - 1, ", not ",
                             position));
  }
  return PushInteger(state, sharding::Permutation(size, seed, epoch)(position) + 1);
}

// --- pack ----------------------------------------------------------------------------------------

// packer(seq_len: integer, split: boolean, drop_last: boolean) -> Packer
// split: a sample may reach over a chunk's end.
int NewPacker(lua_State* state) {
  sharding::PackOptions options;
  options.seq_len = ReadInteger(state, 1, "sharding.pack: seq_len");
  if (options.seq_len < 1)
    throw Error(absl::StrCat("sharding.pack: seq_len must be at least 1, not ", options.seq_len));
  options.split = lua_toboolean(state, 2) != 0;
  options.drop_last = lua_toboolean(state, 3) != 0;
  return PushObject<sharding::Packer>(state, sharding::Packer(options));
}

sharding::Packer& ReadPacker(lua_State* state) {
  return ReadObject<sharding::Packer>(state, 1, "sharding.pack");
}

// {sample, begin, end, sample, begin, end, ...}, samples from 1
int PushChunk(lua_State* state, const sharding::Chunk& chunk) {
  std::vector<int64_t> numbers;
  for (const sharding::SamplePart& part : chunk)
    numbers.insert(numbers.end(), {part.sample + 1, part.begin, part.end});
  return PushIntegers(state, numbers);
}

// Packer:add(tokens: integer) -> integer[][]
// The chunks that the tokens of the next sample complete, as PushChunk writes them.
int AddSample(lua_State* state) {
  const std::vector<sharding::Chunk> chunks =
      ReadPacker(state).Add(ReadInteger(state, 2, "sharding.pack: tokens"));
  return PushArray(state, chunks, [&](const sharding::Chunk& chunk) { PushChunk(state, chunk); });
}

// Packer:finish() -> integer[]?
// The rest at the end; nothing if it is empty or dropped.
int FinishPacking(lua_State* state) {
  const std::optional<sharding::Chunk> chunk = ReadPacker(state).Finish();
  if (!chunk.has_value()) return 0;
  return PushChunk(state, *chunk);
}

// Packer:waiting() -> integer[]
// The chunk that is not full yet.
int WaitingPieces(lua_State* state) { return PushChunk(state, ReadPacker(state).waiting()); }

// Packer:dropped_tokens() -> integer
int DroppedTokens(lua_State* state) {
  return PushInteger(state, ReadPacker(state).dropped_tokens());
}

}  // namespace

void SetDataFunctions(lua_State* state) {
  RegisterObject<sharding::Shard>(
      state, {{"next", NextIndex}, {"counts", ShardCounts}, {"start_after", StartAfter}});
  RegisterObject<sharding::Packer>(state, {{"add", AddSample},
                                           {"finish", FinishPacking},
                                           {"waiting", WaitingPieces},
                                           {"dropped_tokens", DroppedTokens}});
  SetFunctions(state, {{"dataset", NewShard}, {"packer", NewPacker}, {"permute", Permute}});
}

}  // namespace lockstep::lua
