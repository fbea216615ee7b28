// lockstep.core.batching: the library batching.

#include <cmath>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "batching/cost.h"
#include "batching/outline.h"
#include "batching/prepare.h"
#include "driver/lua/bind/batching/outline.h"
#include "driver/lua/bind/open.h"
#include "driver/lua/bind/torch/nested.h"
#include "driver/lua/tensor/tensor.h"
#include "driver/lua/vm/fields.h"
#include "driver/lua/vm/object.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/status.h"
#include "driver/lua/vm/vm.h"

namespace lockstep::lua {
namespace {

// --- Samples -------------------------------------------------------------------------------------

at::Tensor ReadPerToken(lua_State* state, int index, const std::string& name,
                        at::ScalarType dtype) {
  if (const at::Tensor* tensor = TensorAt(state, index)) return *tensor;
  ReadTable(state, index, name.c_str());
  try {
    return ReadNested(state, index, dtype);
  } catch (const Error& error) {
    throw Error(absl::StrCat(name, ": ", error.what()));
  }
}

// Raises an error for a whole number that float32 cannot hold, as an id may be.
void CheckFloat(const at::Tensor& values, const std::string& name) {
  const auto* value = values.const_data_ptr<double>();
  for (int64_t i = 0; i < values.numel(); ++i) {
    if (value[i] != std::floor(value[i]) || std::isinf(value[i]) ||
        static_cast<double>(static_cast<float>(value[i])) == value[i]) {
      continue;
    }
    throw Error(absl::StrCat(name, ": ", absl::StrFormat("%.0f", value[i]),
                             " would be rounded to float32; give a tensor of another dtype, as "
                             "torch.tensor(array, {dtype = torch.int64})"));
  }
}

// Raises an error for a number that would become true, and is not 1.
void CheckBool(const at::Tensor& values, const std::string& name) {
  const auto* value = values.const_data_ptr<double>();
  for (int64_t i = 0; i < values.numel(); ++i) {
    if (value[i] == 0 || value[i] == 1) continue;
    throw Error(absl::StrCat(name, ": ", value[i],
                             " would become true; a stream whose value for absent samples is a "
                             "boolean holds 0, 1, true or false"));
  }
}

// A tensor, an array, or one value that holds for every token of the sample and has no dimensions:
// the sample's length is known once all is read. All but tensors are bool if the fill is, and else
// float32.
at::Tensor ReadStream(lua_State* state, int index, const std::string& name,
                      const c10::Scalar& fill) {
  if (const at::Tensor* tensor = TensorAt(state, index)) return *tensor;
  const int type = lua_type(state, index);
  const at::Tensor values = type == LUA_TNUMBER || type == LUA_TBOOLEAN
                                ? ReadNested(state, index, at::kDouble)
                                : ReadPerToken(state, index, name, at::kDouble);
  if (fill.isBoolean()) {
    CheckBool(values, name);
    return values.to(at::kBool);
  }
  CheckFloat(values, name);
  return values.to(at::kFloat);
}

// Raises an error for a stream or tensor with the name of another field of a micro-batch.
void CheckName(const std::string& name, const std::string& where) {
  for (const char* own :
       {"input_ids", "loss_mask", "position_ids", "cu_seqlens", "seq_lens", "samples", "kind",
        "padding", "padding_tokens", "padding_values", "cost", "shares"}) {
    if (name == own)
      throw Error(absl::StrCat(where, " is a field of every micro-batch; give it another name"));
  }
}

void ReadField(lua_State* state, int index, const std::string& key, const std::string& where,
               const batching::PrepareOptions& options, batching::TensorSample& sample) {
  const std::string name = absl::StrCat(where, ": ", key);
  if (key == "input_ids") {
    sample.input_ids = ReadPerToken(state, index, name, at::kLong);
  } else if (key == "loss_mask") {
    // As booleans, 0.5 and NaN would be true.
    sample.loss_mask = ReadPerToken(state, index, name, at::kDouble);
  } else if (key == "position_ids") {
    sample.position_ids = ReadPerToken(state, index, name, at::kLong);
  } else if (key == "kind") {
    sample.kind = ReadString(state, index, name.c_str());
    if (sample.kind.empty()) throw Error(absl::StrCat(name, " is empty; leave it out, or name it"));
  } else if (key == options.token_types) {
    sample.streams[key] = ReadPerToken(state, index, name, at::kLong);
  } else if (options.streams.count(key) > 0) {
    sample.streams[key] = ReadStream(state, index, name, options.streams.at(key).absent);
  } else if (const at::Tensor* tensor = TensorAt(state, index)) {
    CheckName(key, name);
    sample.tensors[key] = *tensor;
  } else {
    throw Error(absl::StrCat(name, " is ", TypeName(state, index),
                             "; beside input_ids, loss_mask, position_ids and kind a sample holds "
                             "tensors, and what `streams` declares"));
  }
}

batching::TensorSample ReadSample(lua_State* state, int index, int number,
                                  const batching::PrepareOptions& options) {
  const std::string where = absl::StrCat("batching: sample ", number);
  ReadTable(state, index, where.c_str());
  batching::TensorSample sample;
  for (lua_pushnil(state); lua_next(state, index) != 0; lua_pop(state, 1)) {
    if (lua_type(state, -2) != LUA_TSTRING)
      throw Error(
          absl::StrCat(where, ": fields are named, but there is the key ", TypeName(state, -2)));
    ReadField(state, lua_gettop(state), lua_tostring(state, -2), where, options, sample);
  }
  if (!sample.input_ids.defined()) throw Error(absl::StrCat(where, " has no input_ids"));
  for (auto& [name, stream] : sample.streams) {
    if (stream.dim() == 0) stream = stream.expand({sample.input_ids.numel()});
  }
  return sample;
}

// Reads an array of the options: `read(index, number)` makes each element of its Lua value. Sets
// may_wait of each.
template <typename Element, typename Read>
std::vector<Element> ReadArray(lua_State* state, const OptionTable& table, const char* key,
                               const Read& read) {
  const std::string name = absl::StrCat("batching.prepare: ", key);
  if (!table.Push(key)) throw Error(absl::StrCat(name, " is missing"));
  const int index = lua_gettop(state);
  ReadTable(state, index, name.c_str());
  std::vector<Element> elements;
  const int size = static_cast<int>(lua_objlen(state, index));
  for (lua_pushnil(state); lua_next(state, index) != 0; lua_pop(state, 1)) {
    if (lua_type(state, -2) != LUA_TNUMBER || !(lua_tonumber(state, -2) <= size))
      throw Error(absl::StrCat(name, " is an array, but there is the key ", TypeName(state, -2)));
  }
  ForEachElement(state, index, [&](int i) { elements.push_back(read(lua_gettop(state), i)); });
  lua_pop(state, 1);
  if (table.Push("may_wait")) {
    const int waits = lua_gettop(state);
    ReadTable(state, waits, "batching.prepare: may_wait");
    for (size_t i = 0; i < elements.size(); ++i) {
      lua_rawgeti(state, waits, static_cast<int>(i + 1));
      elements[i].may_wait = lua_toboolean(state, -1) != 0;
      lua_pop(state, 1);
    }
    lua_pop(state, 1);
  }
  return elements;
}

std::vector<batching::TensorSample> ReadSamples(lua_State* state, const OptionTable& table,
                                                const batching::PrepareOptions& options) {
  return ReadArray<batching::TensorSample>(state, table, "samples", [&](int index, int number) {
    return ReadSample(state, index, number, options);
  });
}

// --- Options -------------------------------------------------------------------------------------

constexpr Field<batching::PrepareOptions> kOptions[] = {
    {"seq_len", &batching::PrepareOptions::seq_len},
    {"pad_to_multiple_of", &batching::PrepareOptions::pad_to_multiple_of},
    {"pad_token_id", &batching::PrepareOptions::pad_token_id},
    {"worth_a_step", &batching::PrepareOptions::worth_a_step},
    {"mix_kinds", &batching::PrepareOptions::mix_kinds},
    {"token_types", &batching::PrepareOptions::token_types},
    {"image_token_id", &batching::PrepareOptions::image_token_id},
    {"video_token_id", &batching::PrepareOptions::video_token_id},
    {"audio_token_id", &batching::PrepareOptions::audio_token_id},
};

c10::Scalar ReadFill(lua_State* state, int index, const std::string& name) {
  if (lua_type(state, index) == LUA_TBOOLEAN) return c10::Scalar(lua_toboolean(state, index) != 0);
  return c10::Scalar(ReadNumber(state, index, name.c_str()));
}

// A value for padding and for samples without the stream, or {absent = value, padding = value}.
batching::StreamFill ReadStreamFill(lua_State* state, int index, const std::string& name) {
  batching::StreamFill fill;
  if (lua_type(state, index) != LUA_TTABLE) {
    fill.absent = fill.padding = ReadFill(state, index, name);
    return fill;
  }
  const OptionTable table(state, index, name.c_str(), {"absent", "padding"});
  for (const auto& [key, value] : {std::pair{"absent", &fill.absent}, {"padding", &fill.padding}}) {
    if (!table.Push(key)) continue;
    *value = ReadFill(state, lua_gettop(state), absl::StrCat(name, ".", key));
    lua_pop(state, 1);
  }
  return fill;
}

void ReadStreams(lua_State* state, const OptionTable& table, batching::PrepareOptions& options) {
  if (!table.Push("streams")) return;
  const int index = lua_gettop(state);
  ReadTable(state, index, "batching.prepare: streams");
  for (lua_pushnil(state); lua_next(state, index) != 0; lua_pop(state, 1)) {
    if (lua_type(state, -2) != LUA_TSTRING)
      throw Error(absl::StrCat(
          "batching.prepare: streams must be {name = value for samples without it}, not ",
          TypeName(state, -2), " as a name"));
    const std::string name = lua_tostring(state, -2);
    CheckName(name, absl::StrCat("batching.prepare: streams.", name));
    options.streams[name] =
        ReadStreamFill(state, lua_gettop(state), absl::StrCat("batching.prepare: streams.", name));
  }
  lua_pop(state, 1);
}

// Raises an error for a name whose rows are known without own_rows.
void CheckOwnRows(const std::string& name) {
  const std::string where = absl::StrCat("batching.prepare: own_rows names \"", name, "\"");
  for (const char* own : {"input_ids", "loss_mask", "position_ids", "kind"}) {
    if (name == own)
      throw Error(absl::StrCat(where, ", which every sample may have; name only further tensors"));
  }
  CheckName(name, where);
}

void ReadOwnRows(lua_State* state, const OptionTable& table, batching::PrepareOptions& options) {
  if (!table.Push("own_rows")) return;
  const std::string option = "batching.prepare: own_rows";
  const int index = lua_gettop(state);
  ReadTable(state, index, option.c_str());
  for (lua_pushnil(state); lua_next(state, index) != 0; lua_pop(state, 1)) {
    if (lua_type(state, -2) != LUA_TNUMBER)
      throw Error(absl::StrCat(option,
                               " must be an array of names, as {\"clips\"}, but there is the key ",
                               TypeName(state, -2)));
  }
  ForEachElement(state, index, [&](int) {
    const std::string name = ReadString(state, -1, absl::StrCat(option, "'s names").c_str());
    CheckOwnRows(name);
    options.own_rows.insert(name);
  });
  lua_pop(state, 1);
}

batching::Balance ReadBalance(const OptionTable& table) {
  const std::string balance = table.String("balance", "makespan");
  if (balance == "makespan" || balance == "lockstep") return batching::Balance::kMakespan;
  if (balance == "round_robin") return batching::Balance::kRoundRobin;
  throw Error(absl::StrCat(
      "batching.prepare: balance must be \"makespan\" or \"round_robin\", not \"", balance, "\""));
}

double CallCost(const LuaReference& cost, const std::vector<int64_t>& seq_lens) {
  lua_State* state = cost.Push();
  PushIntegers(state, seq_lens);
  Call(state, 1, 1);
  const double value = ReadNumber(state, -1, "batching.prepare: what the cost function returns");
  lua_pop(state, 1);
  return value;
}

// A table {linear, quadratic, image_linear, image_quadratic}, or a function of seq_lens.
void ReadCost(lua_State* state, const OptionTable& table, batching::PrepareOptions& options) {
  if (!table.Push("cost")) return;
  const int index = lua_gettop(state);
  if (lua_type(state, index) == LUA_TFUNCTION) {
    auto cost = std::make_shared<LuaReference>(state, index);
    options.micro_batch_cost = [cost](const std::vector<int64_t>& seq_lens) {
      return CallCost(*cost, seq_lens);
    };
    options.sequence_cost = [cost](int64_t tokens) { return CallCost(*cost, {tokens}); };
  } else if (lua_type(state, index) != LUA_TTABLE) {
    throw Error(
        absl::StrCat("batching.prepare: cost must be batching.cost.tokens(), "
                     "batching.cost.transformer{...} or function(seq_lens), not ",
                     TypeName(state, index)));
  } else {
    const OptionTable terms(state, index, "batching.prepare: cost",
                            {"linear", "quadratic", "image_linear", "image_quadratic"});
    const batching::SequenceCost sequence{terms.Number("linear", 0), terms.Number("quadratic", 0)};
    options.sequence_cost = [sequence](int64_t tokens) {
      return batching::CostOf(sequence, tokens);
    };
    options.image_cost = {terms.Number("image_linear", 0), terms.Number("image_quadratic", 0)};
  }
  lua_pop(state, 1);
}

void ReadRanks(lua_State* state, const OptionTable& table, batching::PrepareOptions& options) {
  const int64_t ranks = table.Integer("ranks", 1);
  if (ranks < 1 || ranks > batching::kMaxRanks) {
    throw Error(absl::StrCat("batching.prepare: ranks must be from 1 to ", batching::kMaxRanks,
                             ", not ", ranks));
  }
  options.ranks = static_cast<int>(ranks);
  if (!table.Push("rank")) return;
  const int64_t rank = ReadInteger(state, -1, "batching.prepare: rank");
  if (rank < 0 || rank >= ranks) {
    throw Error(absl::StrCat("batching.prepare: rank must be from 0 to ranks - 1 = ", ranks - 1,
                             ", not ", rank));
  }
  options.only_rank = static_cast<int>(rank);
  lua_pop(state, 1);
}

// {max_group = 8, overhead = 0.05}.
void ReadSplit(lua_State* state, const OptionTable& table, batching::PrepareOptions& options) {
  if (!table.Push("split")) return;
  const OptionTable split(state, lua_gettop(state), "batching.prepare: split",
                          {"max_group", "overhead"});
  const int64_t most = split.Integer("max_group", options.max_group);
  if (most < 1 || most > batching::kMaxRanks) {
    throw Error(absl::StrCat("batching.prepare: split.max_group must be a power of two from 1 to ",
                             batching::kMaxRanks, ", not ", most));
  }
  options.max_group = static_cast<int>(most);
  options.split_overhead = split.Number("overhead", options.split_overhead);
  lua_pop(state, 1);
}

batching::PrepareOptions ReadOptions(lua_State* state, const OptionTable& table) {
  batching::PrepareOptions options;
  ReadFields(table, kOptions, options);
  ReadRanks(state, table, options);
  options.balance = ReadBalance(table);
  options.first_number = 1;
  ReadStreams(state, table, options);
  ReadOwnRows(state, table, options);
  ReadCost(state, table, options);
  ReadSplit(state, table, options);
  return options;
}

// --- Results -------------------------------------------------------------------------------------

void SetTensor(lua_State* state, const std::string& name, const at::Tensor& tensor) {
  PushTensor(state, tensor);
  lua_setfield(state, -2, name.c_str());
}

// Lua's arrays start at 1.
void PushIndices(lua_State* state, std::vector<int64_t> indices) {
  for (int64_t& index : indices) ++index;
  PushIntegers(state, indices);
}

// {largest_group=, labels=, {sample=, tokens=, first_rank=, ranks=, place=}, ...}
void PushShares(lua_State* state, const batching::TensorMicroBatch& batch) {
  PushArray(state, batch.shares, [&](const batching::SampleShare& share) {
    lua_newtable(state);
    SetInteger(state, "sample", share.sample + 1);
    SetInteger(state, "tokens", share.tokens);
    SetInteger(state, "first_rank", share.first_rank);
    SetInteger(state, "ranks", share.ranks);
    SetInteger(state, "place", share.place);
  });
  SetInteger(state, "largest_group", batch.largest_group);
  SetTensor(state, "labels", batch.labels);
}

void PushMicroBatch(lua_State* state, const batching::TensorMicroBatch& batch) {
  lua_newtable(state);
  SetTensor(state, "input_ids", batch.input_ids);
  SetTensor(state, "loss_mask", batch.loss_mask);
  SetTensor(state, "position_ids", batch.position_ids);
  SetTensor(state, "cu_seqlens", batch.cu_seqlens);
  for (const auto& [name, tensor] : batch.streams) SetTensor(state, name, tensor);
  for (const auto& [name, tensor] : batch.tensors) SetTensor(state, name, tensor);
  SetIntegers(state, "seq_lens", batch.seq_lens);
  PushIndices(state, batch.samples);
  lua_setfield(state, -2, "samples");
  SetString(state, "kind", batch.kind);
  SetBoolean(state, "padding", batch.padding);
  SetInteger(state, "padding_tokens", batch.padding_tokens);
  SetNumber(state, "cost", batch.cost);
  if (batch.largest_group == 1) return;
  PushShares(state, batch);
  lua_setfield(state, -2, "shares");
}

constexpr Field<batching::Report> kReport[] = {
    {"micro_steps", &batching::Report::micro_steps},
    {"tokens", &batching::Report::tokens},
    {"loss_tokens", &batching::Report::loss_tokens},
    {"padding_tokens", &batching::Report::padding_tokens},
    {"padding_micro_batches", &batching::Report::padding_micro_batches},
    {"split_samples", &batching::Report::split_samples},
    {"truncated_samples", &batching::Report::truncated_samples},
    {"truncated_tokens", &batching::Report::truncated_tokens},
    {"truncated_loss_tokens", &batching::Report::truncated_loss_tokens},
    {"dropped_samples", &batching::Report::dropped_samples},
    {"samples_without_loss", &batching::Report::samples_without_loss},
    {"makespan", &batching::Report::makespan},
    {"ideal", &batching::Report::ideal},
    {"lower_bound", &batching::Report::lower_bound},
};

void PushReport(lua_State* state, const batching::Report& report) {
  lua_newtable(state);
  SetFields(state, kReport, report);
  SetString(state, "fingerprint", absl::StrCat(absl::Hex(report.fingerprint, absl::kZeroPad16)));
}

int PushPrepared(lua_State* state, const batching::Prepared& prepared) {
  PushArray(state, prepared.batches, [&](const std::vector<batching::TensorMicroBatch>& of_rank) {
    PushArray(state, of_rank,
              [&](const batching::TensorMicroBatch& batch) { PushMicroBatch(state, batch); });
  });
  PushReport(state, prepared.report);
  PushIndices(state, prepared.held);
  return 3;
}

OptionTable PrepareTable(lua_State* state) {
  return OptionTable(state, 1, "batching.prepare",
                     NamesOf(kOptions, {"samples", "index", "load", "ranks", "rank", "balance",
                                        "cost", "streams", "own_rows", "may_wait", "split"}));
}

// Plans from the option `index`, and calls `load(entry, number)` for the samples of the result.
int PrepareFromIndex(lua_State* state, const OptionTable& table,
                     const batching::PrepareOptions& options) {
  const std::vector<batching::Outline> outlines =
      ReadArray<batching::Outline>(state, table, "index", [&](int index, int number) {
        return ReadOutline(state, index,
                           absl::StrCat("batching: sample ", number, " of the index"));
      });
  table.Push("index");
  const LuaReference entries(state, -1);
  if (!table.Push("load")) throw Error("batching.prepare: load is missing");
  ReadFunction(state, -1, "batching.prepare: load");
  const LuaReference load(state, -1);
  lua_pop(state, 2);
  const auto load_sample = [&](int64_t index) {
    const int number = static_cast<int>(index) + 1;
    lua_State* running = load.Push();
    entries.Push();
    lua_rawgeti(running, -1, number);
    lua_remove(running, -2);
    lua_pushinteger(running, number);
    Call(running, 2, 1);
    batching::TensorSample sample = ReadSample(running, lua_gettop(running), number, options);
    lua_pop(running, 1);
    return sample;
  };
  return PushPrepared(state, batching::PrepareFromIndex(outlines, load_sample, options));
}

// prepare(options: {samples: batching.Sample[]?, seq_len: integer, ranks: integer?, rank: integer?,
//     [string]: any}) -> batches: batching.MicroBatch[][], report: batching.Report, held: integer[]
// held: samples that wait, by their index.
int Prepare(lua_State* state) {
  const OptionTable table = PrepareTable(state);
  const batching::PrepareOptions options = ReadOptions(state, table);
  if (table.Push("index")) {
    lua_pop(state, 1);
    return PrepareFromIndex(state, table, options);
  }
  return PushPrepared(state, batching::Prepare(ReadSamples(state, table, options), options));
}

// describe(sample: batching.Sample, options: {streams: table, token_types: string, [string]: any})
//     -> batching.Entry
int Describe(lua_State* state) {
  const OptionTable table(
      state, 2, "batching.describe",
      {"streams", "token_types", "image_token_id", "video_token_id", "audio_token_id"});
  batching::PrepareOptions options = ReadOptions(state, table);
  options.seq_len = batching::kMaxSeqLen;
  return PushOutline(state, batching::Describe(ReadSample(state, 1, 1, options), 1, options));
}

// --- In the background ---------------------------------------------------------------------------

using Preparation = std::unique_ptr<std::future<batching::Prepared>>;

}  // namespace

template <>
inline constexpr const char* kObjectName<Preparation> = "batching preparation";

namespace {

// start(options: {samples: batching.Sample[], seq_len: integer, ranks: integer?, rank: integer?,
//     [string]: any}) -> Preparation
// Prepares in the background; the cost may be no Lua function.
int Start(lua_State* state) {
  const OptionTable table = PrepareTable(state);
  const batching::PrepareOptions options = ReadOptions(state, table);
  if (options.micro_batch_cost) {
    throw Error(
        "batching: a cost that is a Lua function is called by the script's own thread; prepare in "
        "the background with "
        "batching.cost.tokens or batching.cost.transformer");
  }
  std::vector<batching::TensorSample> samples = ReadSamples(state, table, options);
  return PushObject<Preparation>(state,
                                 std::make_unique<std::future<batching::Prepared>>(
                                     batching::PrepareInBackground(std::move(samples), options)));
}

// Preparation:wait() -> batches: batching.MicroBatch[][], report: batching.Report, held: integer[]
// The result of batching.prepare. Call it once for each preparation. held: samples that wait, by
// their index.
int Wait(lua_State* state) {
  Preparation& preparation = ReadObject<Preparation>(state, 1, "batching: preparation");
  if (!preparation->valid()) throw Error("batching: this preparation has been waited for already");
  return PushPrepared(state, preparation->get());
}

// transformer_cost(shape: table<string, integer>) -> linear: number, quadratic: number,
//     image_linear: number, image_quadratic: number
// Floating-point operations of a sequence of n tokens, linear * n + quadratic * n * n, and of an
// image likewise. shape: the fields of batching::TransformerShape.
int TransformerCost(lua_State* state) {
  ReadTable(state, 1, "batching.cost.transformer: the argument");
  batching::TransformerShape shape;
  for (const auto& [name, field] : batching::kShapeFields) {
    lua_getfield(state, 1, name);
    if (!lua_isnil(state, -1))
      shape.*field =
          ReadInteger(state, -1, absl::StrCat("batching.cost.transformer: ", name).c_str());
    lua_pop(state, 1);
  }
  const batching::SequenceCost cost = ValueOrThrow(batching::TransformerCost(shape));
  const batching::SequenceCost image = batching::VisionCost(shape);
  for (const double term : {cost.linear, cost.quadratic, image.linear, image.quadratic})
    lua_pushnumber(state, term);
  return 4;
}

}  // namespace

int OpenBatching(lua_State* state) {
  RegisterObject<Preparation>(state, {{"wait", Wait}});
  lua_newtable(state);
  SetFunctions(state, {{"prepare", Prepare},
                       {"describe", Describe},
                       {"start", Start},
                       {"transformer_cost", TransformerCost}});
  SetDefaults<batching::PrepareOptions>(state, "defaults", kOptions);
  return 1;
}

}  // namespace lockstep::lua
