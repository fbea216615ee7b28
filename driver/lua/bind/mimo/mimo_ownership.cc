// lockstep.core.mimo: tables of ownership.

#include "driver/lua/bind/mimo/mimo_ownership.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "ATen/core/TensorBody.h"
#include "absl/strings/str_cat.h"
#include "driver/lua/tensor/tensor.h"
#include "driver/lua/vm/object.h"
#include "driver/lua/vm/stack.h"
#include "driver/lua/vm/status.h"
#include "driver/lua/vm/vm.h"
#include "mimo/batch/ownership.h"
#include "mimo/batch/reorder.h"
#include "mimo/topology/topology.h"

namespace lockstep::lua {

template <>
inline constexpr const char* kObjectName<mimo::Table> = "table of ownership";

namespace {

const mimo::Ownership& ReadOwnership(lua_State* state, int index) {
  return *ReadObject<mimo::Table>(state, index, "mimo: ownership");
}

int PushOwnership(lua_State* state, mimo::Ownership ownership) {
  return PushTable(state, std::make_shared<mimo::Ownership>(std::move(ownership)));
}

int PushNumbers(lua_State* state, const std::vector<double>& values) {
  return PushArray(state, values, [&](double value) { lua_pushnumber(state, value); });
}

mimo::RowsOf ReadRowsOf(lua_State* state, int index, const std::string& name) {
  if (lua_isnoneornil(state, index)) return mimo::RowsOf::kTokens;
  const std::string rows_of = ReadString(state, index, name.c_str());
  for (const auto each : {mimo::RowsOf::kSamples, mimo::RowsOf::kItems, mimo::RowsOf::kTokens}) {
    if (rows_of == mimo::NameOf(each)) return each;
  }
  throw Error(absl::StrCat(name, ": rows are of \"samples\", \"items\" or \"tokens\", not of \"",
                           rows_of, "\""));
}

std::vector<int64_t> TokensPerItem(const mimo::Ownership& ownership) {
  std::vector<int64_t> tokens;
  for (size_t i = 1; i < ownership.token_offsets.size(); ++i)
    tokens.push_back(ownership.token_offsets[i] - ownership.token_offsets[i - 1]);
  return tokens;
}

// An array has the keys 1 to its length, and no others.
void CheckIsArray(lua_State* state, int index, const std::string& name) {
  const auto size = static_cast<double>(lua_objlen(state, index));
  for (lua_pushnil(state); lua_next(state, index) != 0; lua_pop(state, 1)) {
    const double key = lua_type(state, -2) == LUA_TNUMBER ? lua_tonumber(state, -2) : 0;
    if (key >= 1 && key <= size && key == std::floor(key)) continue;
    lua_pushvalue(state, -2);  // lua_tostring changes what it reads
    const char* text = lua_tostring(state, -1);
    throw Error(absl::StrCat(name, " must be an array without holes, but beside 1 to ", size,
                             " it has the key ", text == nullptr ? TypeName(state, -2) : text));
  }
}

// --- Making a table

// Raises an error for options that have no effect next to others; they would be dropped silently.
void CheckOptionsAgree(const OptionTable& table, const std::string& way) {
  if (way == "rows_per_sample") {
    for (const char* option : {"tokens", "grid_thw", "merge"}) {
      if (table.Has(option)) {
        throw Error(
            absl::StrCat("mimo.ownership: rows_per_sample gives all rows, so there is no use for ",
                         option, "; leave it out, or give items instead of rows_per_sample"));
      }
    }
  }
  if (table.Has("merge") && !table.Has("grid_thw"))
    throw Error("mimo.ownership: merge needs grid_thw, which is not given");
  if (table.Has("num_samples") && way != "sample_of_item") {
    throw Error(absl::StrCat("mimo.ownership: num_samples goes with sample_of_item; ", way,
                             " gives the number of samples already; leave it out"));
  }
}

// t, h and w of each item, from a tensor or an array of rows.
std::vector<int64_t> ReadGrid(lua_State* state, int index) {
  const std::string name = "mimo.ownership: grid_thw";
  if (const at::Tensor* tensor = TensorAt(state, index)) {
    if (tensor->dim() != 2 || tensor->size(1) != 3) {
      throw Error(absl::StrCat(name, " must be [items, 3], the t, h and w of each item, not ",
                               Describe(*tensor)));
    }
    return ReadCounts(state, index, name, /*dims=*/2);
  }
  ReadTable(state, index, name.c_str());
  CheckIsArray(state, index, name);
  std::vector<int64_t> grid;
  ForEachElement(state, index, [&](int i) {
    const std::string row_name = absl::StrCat(name, "[", i, "]");
    const std::vector<int64_t> row = ReadCounts(state, lua_gettop(state), row_name);
    if (row.size() != 3) {
      throw Error(absl::StrCat(row_name, " must be the t, h and w of an item, not ", row.size(),
                               " numbers"));
    }
    grid.insert(grid.end(), row.begin(), row.end());
  });
  return grid;
}

// Tokens of each item: `tokens`, or by `grid_thw` and `merge`, or one each of `num_items`.
std::vector<int64_t> ReadTokens(lua_State* state, const OptionTable& table, int64_t num_items) {
  const bool has_tokens = table.Push("tokens");
  std::vector<int64_t> tokens;
  if (has_tokens) {
    tokens = ReadCounts(state, lua_gettop(state), "mimo.ownership: tokens");
    lua_pop(state, 1);
  }
  if (table.Push("grid_thw")) {
    if (has_tokens) throw Error("mimo.ownership: give tokens or grid_thw, not both");
    tokens = ValueOrThrow(
        mimo::TokensOfGrid(ReadGrid(state, lua_gettop(state)), table.Integer("merge", 1)));
    lua_pop(state, 1);
    return tokens;
  }
  if (has_tokens) return tokens;
  if (num_items > mimo::kMaxItems) {
    throw Error(absl::StrCat("mimo.ownership: items add up to ", num_items,
                             "; a micro-batch has at most ", mimo::kMaxItems,
                             ": items are counts of images or sounds, one for each sample"));
  }
  tokens.assign(static_cast<size_t>(num_items), 1);
  return tokens;
}

// ownership(options: mimo.OwnershipOptions) -> mimo.Ownership
// options: items, tokens, grid_thw, merge, sample_of_item, num_samples and rows_per_sample.
int NewOwnership(lua_State* state) {
  const OptionTable table(
      state, 1, "mimo.ownership",
      {"items", "tokens", "grid_thw", "merge", "sample_of_item", "num_samples", "rows_per_sample"});
  const char* const ways[] = {"items", "sample_of_item", "rows_per_sample"};
  const char* way = nullptr;
  for (const char* each : ways) {
    if (!table.Has(each)) continue;
    if (way != nullptr)
      throw Error(absl::StrCat("mimo.ownership: give ", way, " or ", each, ", not both"));
    way = each;
  }
  if (way == nullptr) {
    throw Error(
        "mimo.ownership: give the owners of the rows: items (of each sample), sample_of_item (of "
        "each item, with num_samples), or rows_per_sample");
  }
  CheckOptionsAgree(table, way);
  table.Push(way);
  std::vector<int64_t> counts =
      ReadCounts(state, lua_gettop(state), absl::StrCat("mimo.ownership: ", way));
  lua_pop(state, 1);
  if (way == ways[2]) {
    return PushOwnership(state, ValueOrThrow(mimo::OwnershipOfRows(counts)));
  }
  if (way == ways[0]) {
    int64_t num_items = 0;
    for (const int64_t count : counts)
      num_items = std::min(kMaxInteger, num_items + std::clamp<int64_t>(count, 0, kMaxInteger));
    const std::vector<int64_t> tokens = ReadTokens(state, table, num_items);
    return PushOwnership(state, ValueOrThrow(mimo::MakeOwnership(counts, tokens)));
  }
  const std::vector<int64_t> tokens = ReadTokens(state, table, static_cast<int64_t>(counts.size()));
  if (!table.Has("num_samples"))
    throw Error("mimo.ownership: sample_of_item needs num_samples too");
  const int64_t num_samples = table.Integer("num_samples", 0);
  for (size_t i = 0; i < counts.size(); ++i) {  // Lua counts from 1
    if (counts[i] < 1 || counts[i] > num_samples) {
      throw Error(absl::StrCat("mimo.ownership: sample_of_item[", i + 1, "] is ", counts[i],
                               ", but samples are 1 to num_samples, ", num_samples));
    }
    if (i > 0 && counts[i] - 1 < counts[i - 1]) {
      throw Error(absl::StrCat("mimo.ownership: sample_of_item[", i + 1, "] is ", counts[i],
                               ", less than the ", counts[i - 1] + 1,
                               " before it; items follow the order of samples"));
    }
    --counts[i];
  }
  return PushOwnership(state, ValueOrThrow(mimo::OwnershipOfItems(num_samples, counts, tokens)));
}

// --- Methods: see driver/lualib/types/mimo_ownership.lua

int RowsPerSample(lua_State* state) {
  return PushIntegers(state,
                      mimo::RowsPerSample(ReadOwnership(state, 1),
                                          ReadRowsOf(state, 2, "ownership:rows_per_sample")));
}

int TokensOfItems(lua_State* state) {
  return PushIntegers(state, TokensPerItem(ReadOwnership(state, 1)));
}

int NumRows(lua_State* state) {
  return PushInteger(
      state, mimo::NumRows(ReadOwnership(state, 1), ReadRowsOf(state, 2, "ownership:num_rows")));
}

int SliceOwnership(lua_State* state) {
  const mimo::Ownership& ownership = ReadOwnership(state, 1);
  const OptionTable table(state, 4, "ownership:slice", {"uneven"});
  const mimo::Range samples = ValueOrThrow(mimo::SamplesOfShard(
      ownership.num_samples(), ReadInteger(state, 2, "ownership:slice: dp_rank"),
      ReadInteger(state, 3, "ownership:slice: dp_size"),
      table.Boolean("uneven", false) ? mimo::Division::kUneven : mimo::Division::kEven));
  return PushOwnership(state, mimo::SliceOwnership(ownership, samples));
}

int ReorderOwnership(lua_State* state) {
  const mimo::Ownership& ownership = ReadOwnership(state, 1);
  return PushOwnership(state,
                       mimo::Reordered(ownership, ReadOrder(state, 2, "ownership:reordered: order",
                                                            ownership.num_samples())));
}

int SampleCosts(lua_State* state) {
  const mimo::Ownership& ownership = ReadOwnership(state, 1);
  const OptionTable table(state, 2, "ownership:costs",
                          {"text_tokens", "per_item_token", "per_text_token"});
  std::vector<int64_t> text(static_cast<size_t>(ownership.num_samples()), 0);
  if (table.Push("text_tokens"))
    text = ReadCounts(state, lua_gettop(state), "ownership:costs: text_tokens");
  if (static_cast<int64_t>(text.size()) != ownership.num_samples()) {
    throw Error(absl::StrCat("ownership:costs: text_tokens holds ", text.size(),
                             " numbers, but the table is of ", ownership.num_samples(),
                             " samples"));
  }
  return PushNumbers(state, mimo::SampleCosts(ownership, text, table.Number("per_item_token", 1),
                                              table.Number("per_text_token", 1)));
}

// group_costs(costs: number[], order: integer[], num_groups: integer) -> number[]
// order: samples, from 1.
int GroupCosts(lua_State* state) {
  const std::vector<double> costs = ReadCosts(state, 1, "mimo.group_costs: costs");
  const std::vector<int64_t> order =
      ReadOrder(state, 2, "mimo.group_costs: order", static_cast<int64_t>(costs.size()));
  const int64_t num_groups = ReadInteger(state, 3, "mimo.group_costs: num_groups");
  if (num_groups < 1)
    throw Error(absl::StrCat("mimo.group_costs: num_groups must be positive, not ", num_groups));
  return PushNumbers(state, mimo::GroupCosts(costs, order, num_groups));
}

int AreEqual(lua_State* state) {
  return PushBoolean(state, ReadOwnership(state, 1) == ReadOwnership(state, 2) ? 1 : 0);
}

int ToString(lua_State* state) {
  const mimo::Ownership& ownership = ReadOwnership(state, 1);
  return PushString(
      state, absl::StrCat("ownership: ", ownership.num_samples(), " samples, ",
                          ownership.num_items(), " items, ", ownership.num_tokens(), " tokens"));
}

}  // namespace

mimo::Table TableAt(lua_State* state, int index) {
  const mimo::Table* table = ObjectAt<mimo::Table>(state, index);
  return table == nullptr ? nullptr : *table;
}

int PushTable(lua_State* state, mimo::Table table) { return PushObject(state, std::move(table)); }

mimo::OwnedRows ReadOwnedRows(lua_State* state, int index, const std::string& name) {
  const int at = lua_gettop(state);
  lua_pushvalue(state, index);
  const bool is_pair = lua_type(state, -1) == LUA_TTABLE;
  if (is_pair) lua_rawgeti(state, at + 1, 1);
  mimo::OwnedRows rows;
  rows.table = TableAt(state, lua_gettop(state));
  if (rows.table == nullptr && lua_type(state, -1) == LUA_TSTRING)
    rows.path = lua_tostring(state, -1);
  if (rows.table == nullptr && rows.path.empty()) {
    throw Error(absl::StrCat(name,
                             " must be a table of mimo.ownership, its path in the batch, or "
                             "{either, \"samples\"|\"items\"|\"tokens\"}, not ",
                             TypeName(state, at + 1)));
  }
  if (is_pair) {
    lua_rawgeti(state, at + 1, 2);
    rows.rows_of = ReadRowsOf(state, lua_gettop(state), name);
  }
  lua_settop(state, at);
  return rows;
}

std::vector<int64_t> ReadCounts(lua_State* state, int index, const std::string& name, int dims) {
  const at::Tensor* tensor = TensorAt(state, index);
  if (tensor == nullptr && dims == 1) {
    std::vector<int64_t> values = ReadIntegers(state, index, name.c_str());
    CheckIsArray(state, index, name);
    return values;
  }
  if (tensor == nullptr || tensor->dim() != dims ||
      !at::isIntegralType(tensor->scalar_type(), /*includeBool=*/false)) {
    throw Error(absl::StrCat(name, " must be ", dims == 1 ? "an array of whole numbers or " : "",
                             "a ", dims, "-D tensor of ", dims == 1 ? "them" : "whole numbers",
                             ", not ",
                             tensor == nullptr ? TypeName(state, index) : Describe(*tensor)));
  }
  const at::Tensor values = tensor->to(at::kCPU, at::kLong).contiguous();
  const int64_t* data = values.const_data_ptr<int64_t>();
  return std::vector<int64_t>(data, data + values.numel());
}

std::vector<double> ReadCosts(lua_State* state, int index, const std::string& name) {
  ReadTable(state, index, name.c_str());
  std::vector<double> costs;
  ForEachElement(state, index, [&](int i) {
    costs.push_back(ReadNumber(state, -1, absl::StrCat(name, "[", i, "]").c_str()));
  });
  return costs;
}

std::vector<int64_t> ReadOrder(lua_State* state, int index, const std::string& name,
                               int64_t num_samples) {
  std::vector<int64_t> order = ReadCounts(state, index, name);
  std::vector<bool> seen(static_cast<size_t>(num_samples), false);
  bool fits = static_cast<int64_t>(order.size()) == num_samples;
  for (int64_t& sample : order) {
    --sample;
    fits = fits && sample >= 0 && sample < num_samples && !seen[static_cast<size_t>(sample)];
    if (fits) seen[static_cast<size_t>(sample)] = true;
  }
  if (fits) return order;
  throw Error(absl::StrCat(name, " must hold each of the samples 1 to ", num_samples,
                           " once, as mimo.balanced_order gives it"));
}

void OpenOwnership(lua_State* state) {
  RegisterObject<mimo::Table>(state, {{"rows_per_sample", RowsPerSample},
                                      {"tokens_per_item", TokensOfItems},
                                      {"num_rows", NumRows},
                                      {"slice", SliceOwnership},
                                      {"reordered", ReorderOwnership},
                                      {"costs", SampleCosts}});
  luaL_getmetatable(state, kObjectName<mimo::Table>);
  SetFunctions(state, {{"__eq", AreEqual}, {"__tostring", ToString}});
  lua_pop(state, 1);
  SetFunctions(state, {{"ownership", NewOwnership}, {"group_costs", GroupCosts}});
}

}  // namespace lockstep::lua
