// lockstep.core.tiled_mlp: the library tiled_mlp.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/grad_mode.h"
#include "absl/strings/str_cat.h"
#include "driver/lua/bind/open.h"
#include "driver/lua/tensor/captured.h"
#include "driver/lua/tensor/tensor.h"
#include "driver/lua/vm/fields.h"
#include "driver/lua/vm/object.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/vm.h"
#include "tiled_mlp/cross_entropy.h"
#include "tiled_mlp/mlp.h"
#include "tiled_mlp/tiled.h"

namespace lockstep::lua {
namespace {

using Tiles = std::unique_ptr<tiled_mlp::TileOptions>;

}  // namespace

template <>
inline constexpr const char* kObjectName<Tiles> = "tiled mlp";

namespace {

// --- Functions and modules as bodies -------------------------------------------------------------

// Puts aliases where a module keeps its parameters, until its end. `places` is an array of {fields,
// name, index of the weight from 1}.
class InPlaces {
 public:
  InPlaces(const LuaReference& places, at::TensorList weights) {
    lua_State* state = places.Push();
    if (lua_checkstack(state, 16) == 0) throw Error("tiled_mlp: the stack is full");
    lua_newtable(state);
    const int before = lua_gettop(state);
    places_ = std::make_unique<LuaReference>(state, before - 1);
    before_ = std::make_unique<LuaReference>(state, before);
    count_ = static_cast<int>(lua_objlen(state, before - 1));
    for (int i = 1; i <= count_; ++i) {
      lua_rawgeti(state, before - 1, i);  // place
      lua_rawgeti(state, -1, 1);          // place, fields
      lua_rawgeti(state, -2, 2);          // place, fields, name
      lua_pushvalue(state, -1);
      lua_rawget(state, -3);  // place, fields, name, value
      lua_rawseti(state, before, i);
      lua_rawgeti(state, -3, 3);
      const auto index = static_cast<size_t>(lua_tointeger(state, -1));
      lua_pop(state, 1);
      PushTensor(state, weights[index - 1]);
      lua_rawset(state, -3);
      lua_pop(state, 2);
    }
    lua_settop(state, before - 2);
  }
  InPlaces(const InPlaces&) = delete;
  InPlaces& operator=(const InPlaces&) = delete;

  ~InPlaces() {
    lua_State* state = places_->Push();
    const int places = lua_gettop(state);
    before_->Push();
    for (int i = 1; i <= count_; ++i) {
      lua_rawgeti(state, places, i);
      lua_rawgeti(state, -1, 1);
      lua_rawgeti(state, -2, 2);
      lua_rawgeti(state, places + 1, i);
      lua_rawset(state, -3);
      lua_pop(state, 2);
    }
    lua_settop(state, places - 1);
  }

 private:
  std::unique_ptr<LuaReference> places_, before_;
  int count_ = 0;
};

// Calls the Lua function with the tile and the weights; with places, which a module has, with the
// tile alone.
tiled_mlp::TileBody MakeBody(lua_State* state, int function, int places,
                             const std::shared_ptr<const CapturedVariables>& captured) {
  auto callee = std::make_shared<LuaReference>(state, function);
  std::shared_ptr<LuaReference> kept;
  if (!lua_isnil(state, places)) kept = std::make_shared<LuaReference>(state, places);
  const std::string where = absl::StrCat("tiled_mlp: ", RunningScriptLine(), ": ");
  return [callee, kept, captured, where](const at::Tensor& tile, at::TensorList weights) {
    if (captured != nullptr) captured->Check(where);
    std::optional<InPlaces> in_places;
    if (kept != nullptr) in_places.emplace(*kept, weights);
    lua_State* running = callee->Push();
    const int base = lua_gettop(running) - 1;
    if (lua_checkstack(running, static_cast<int>(weights.size()) + 16) == 0)
      throw Error("tiled_mlp: the stack is full");
    PushTensor(running, tile);
    if (kept == nullptr) {
      for (const at::Tensor& weight : weights) PushTensor(running, weight);
    }
    Call(running, lua_gettop(running) - base - 1, LUA_MULTRET);
    std::vector<at::Tensor> outputs;
    for (int i = base + 1; i <= lua_gettop(running); ++i) {
      const std::string name = absl::StrCat("tiled_mlp: result ", i - base, " of the function");
      outputs.push_back(ReadTensor(running, i, name.c_str()));
    }
    lua_settop(running, base);
    return outputs;
  };
}

// --- The object ----------------------------------------------------------------------------------

constexpr Field<tiled_mlp::TileOptions> kOptions[] = {
    {"preserve_rng", &tiled_mlp::TileOptions::preserve_rng},
    {"accumulate_fp32", &tiled_mlp::TileOptions::accumulate_fp32},
    {"skip_zero_gradients", &tiled_mlp::TileOptions::skip_zero_gradients},
};

// new(options: table<string, integer|boolean>) -> Tiles
// options: as tiled_mlp.new takes them.
int NewTiles(lua_State* state) {
  const OptionTable table(state, 1, "tiled_mlp.new", NamesOf(kOptions, {"tiles", "tile_tokens"}));
  auto options = std::make_unique<tiled_mlp::TileOptions>();
  for (const auto& [key, field] : {std::pair{"tiles", &options->size.num_tiles},
                                   {"tile_tokens", &options->size.tile_tokens}}) {
    *field = table.Integer(key, 0);
    if (table.Has(key) && *field < 1)
      throw Error(absl::StrCat("tiled_mlp.new: ", key, " must be at least 1, not ", *field));
  }
  if (options->size.num_tiles > 0 && options->size.tile_tokens > 0)
    throw Error("tiled_mlp.new: give tiles or tile_tokens, not both");
  ReadFields(table, kOptions, *options);
  options->stats = std::make_shared<tiled_mlp::TileStats>();
  return PushObject<Tiles>(state, std::move(options));
}

tiled_mlp::TileOptions& ReadTiles(lua_State* state) {
  return *ReadObject<Tiles>(state, 1, "tiled_mlp");
}

// Tiles:run(fn: function|nn.Module, x: torch.Tensor, weights: torch.Tensor[], places: table[]?) ->
//     ...: torch.Tensor
// fn's results for all of x. With places fn is called with the tile alone, while each {fields,
// name, index} holds the tile's alias of weights[index].
int RunTiles(lua_State* state) {
  const tiled_mlp::TileOptions& options = ReadTiles(state);
  ReadFunction(state, 2, "tiled_mlp: fn");
  const at::Tensor x = ReadTensor(state, 3, "tiled_mlp: x");
  const std::vector<at::Tensor> weights = ReadTensors(state, 4, "tiled_mlp: weights");
  lua_settop(state, 5);
  std::shared_ptr<CapturedVariables> captured;
  if (at::GradMode::is_enabled()) captured = std::make_shared<CapturedVariables>(state, 2);
  std::vector<at::Tensor> outputs =
      tiled_mlp::RunTiled(MakeBody(state, 2, 5, captured), x, weights, options);
  if (captured != nullptr) captured->EndFirstRun();
  for (at::Tensor& output : outputs) PushTensor(state, std::move(output));
  return static_cast<int>(outputs.size());
}

at::Tensor OptionalTensor(const OptionTable& table, const char* key) {
  return table.Find(key, ReadTensor).value_or(at::Tensor());
}

template <typename Choice>
Choice ReadChoice(const OptionTable& table, const char* key, const char* otherwise,
                  const char* function, const std::map<std::string, Choice>& choices) {
  const std::string value = table.String(key, otherwise);
  const auto choice = choices.find(value);
  if (choice != choices.end()) return choice->second;
  std::string names;
  for (const auto& [name, unused] : choices) absl::StrAppend(&names, " \"", name, "\"");
  throw Error(absl::StrCat(function, ": ", key, " must be one of", names, ", not \"", value, "\""));
}

// Tiles:dense(options: table<string, torch.Tensor|string>) -> torch.Tensor
// options: as tiled_mlp.TiledMlp:dense takes them.
int RunDense(lua_State* state) {
  constexpr const char* kName = "tiled_mlp: dense";
  const tiled_mlp::TileOptions& options = ReadTiles(state);
  const OptionTable table(
      state, 2, kName,
      {"x", "gate", "up", "down", "gate_bias", "up_bias", "down_bias", "activation"});
  const auto tensor = [&](const char* key) { return OptionalTensor(table, key); };
  const at::Tensor x = tensor("x");
  if (!x.defined()) throw Error("tiled_mlp: dense: x is missing");
  using tiled_mlp::Activation;
  const Activation activation = ReadChoice<Activation>(table, "activation", "silu", kName,
                                                       {{"silu", Activation::kSilu},
                                                        {"gelu", Activation::kGelu},
                                                        {"gelu_tanh", Activation::kGeluTanh}});
  return PushTensor(state, tiled_mlp::RunTiledMlp(x,
                                                  {.gate = tensor("gate"),
                                                   .up = tensor("up"),
                                                   .down = tensor("down"),
                                                   .gate_bias = tensor("gate_bias"),
                                                   .up_bias = tensor("up_bias"),
                                                   .down_bias = tensor("down_bias")},
                                                  activation, options));
}

// Tiles:stats() -> tiled_mlp.Stats
int Stats(lua_State* state) {
  const tiled_mlp::TileStats& stats = *ReadTiles(state).stats;
  lua_newtable(state);
  for (const auto& [name, count] : {std::pair{"calls", &stats.calls},
                                    {"untiled", &stats.untiled},
                                    {"tiles", &stats.tiles},
                                    {"backward_tiles", &stats.backward_tiles},
                                    {"skipped_tiles", &stats.skipped_tiles},
                                    {"tile_tokens", &stats.tile_tokens}})
    SetInteger(state, name, count->load());
  return 1;
}

// --- Cross entropy -------------------------------------------------------------------------------

constexpr Field<tiled_mlp::CrossEntropyOptions> kCrossEntropy[] = {
    {"ignore_index", &tiled_mlp::CrossEntropyOptions::ignore_index},
    {"label_smoothing", &tiled_mlp::CrossEntropyOptions::label_smoothing},
    {"z_loss", &tiled_mlp::CrossEntropyOptions::z_loss},
    {"softcap", &tiled_mlp::CrossEntropyOptions::softcap},
    {"tile_tokens", &tiled_mlp::CrossEntropyOptions::tile_tokens},
    {"accumulate_fp32", &tiled_mlp::CrossEntropyOptions::accumulate_fp32},
};

// cross_entropy(options: table<string, any>) -> loss: torch.Tensor, count: torch.Tensor
// options: tiled_mlp.cross_entropy's, less over_ranks and group; divisor: a tensor.
int CrossEntropy(lua_State* state) {
  constexpr const char* kName = "tiled_mlp.cross_entropy";
  const OptionTable table(
      state, 1, kName,
      NamesOf(kCrossEntropy, {"hidden", "weight", "labels", "bias", "divisor", "reduction"}));
  using tiled_mlp::Reduction;
  tiled_mlp::CrossEntropyOptions options;
  options.bias = OptionalTensor(table, "bias");
  options.divisor = OptionalTensor(table, "divisor");
  ReadFields(table, kCrossEntropy, options);
  options.reduction = ReadChoice<Reduction>(
      table, "reduction", "mean", kName,
      {{"mean", Reduction::kMean}, {"sum", Reduction::kSum}, {"none", Reduction::kNone}});
  const at::Tensor hidden = OptionalTensor(table, "hidden");
  const at::Tensor weight = OptionalTensor(table, "weight");
  const at::Tensor labels = OptionalTensor(table, "labels");
  tiled_mlp::CrossEntropy result = tiled_mlp::TiledCrossEntropy(hidden, weight, labels, options);
  PushTensor(state, std::move(result.loss));
  PushTensor(state, std::move(result.count));
  return 2;
}

}  // namespace

int OpenTiledMlp(lua_State* state) {
  RegisterObject<Tiles>(state, {{"run", RunTiles}, {"dense", RunDense}, {"stats", Stats}});
  lua_newtable(state);
  SetFunctions(state, {{"new", NewTiles}, {"cross_entropy", CrossEntropy}});
  SetDefaults<tiled_mlp::TileOptions>(state, "defaults", kOptions);
  SetDefaults<tiled_mlp::CrossEntropyOptions>(state, "cross_entropy_defaults", kCrossEntropy);
  return 1;
}

}  // namespace lockstep::lua
