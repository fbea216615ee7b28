// Tests properties of slices and orders on 10,000 random nested batches: samples with 0 to 3 items,
// items with different tokens, tensors of samples, items and tokens, in dicts of dicts. A third of
// the batches is packed.

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "ATen/ops/arange.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/equal.h"
#include "ATen/ops/tensor.h"
#include "absl/strings/str_cat.h"
#include "c10/util/Exception.h"
#include "gtest/gtest.h"
#include "mimo/batch/ownership.h"
#include "mimo/batch/reorder.h"
#include "mimo/batch/slice.h"
#include "mimo/testing/random_topology.h"

namespace lockstep::mimo {
namespace {

constexpr int kCases = 10'000;

// Every value is another, so that a row is known again.
at::Tensor Numbered(const std::vector<int64_t>& sizes) {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  return at::arange(count).view(sizes);
}

// A batch, its declarations, and by path the batch dim and the owner of each row.
struct Case {
  Value batch = Dict{};
  SliceOptions options;
  int64_t num_samples = 0;
  std::map<std::string, int64_t> dims;
  std::map<std::string, std::vector<int64_t>> owners;  // the sample of each row
  std::vector<int64_t> lengths;                        // of the sequences of a packed batch
};

std::vector<int64_t> OwnersOf(const std::vector<int64_t>& rows_per_sample) {
  std::vector<int64_t> owners;
  for (size_t s = 0; s < rows_per_sample.size(); ++s)
    owners.insert(owners.end(), static_cast<size_t>(rows_per_sample[s]), static_cast<int64_t>(s));
  return owners;
}

List NumberedList(size_t size) {
  List list;
  for (size_t i = 0; i < size; ++i) list.emplace_back(Opaque{static_cast<int64_t>(i)});
  return list;
}

// Items, tokens and their table under "<kind>."; the table is declared as it is or by its path.
Dict RandomKind(std::mt19937& random, Case& c, const std::string& kind) {
  std::vector<int64_t> items, tokens, tokens_of_samples, grid;
  for (int64_t s = 0; s < c.num_samples; ++s) {
    items.push_back(Draw(random, 0, 3));
    tokens_of_samples.push_back(0);
    for (int64_t i = 0; i < items.back(); ++i) {
      const int64_t height = Draw(random, 1, 3), width = Draw(random, 1, 2);
      grid.insert(grid.end(), {1, height, width});
      tokens.push_back(height * width);
      tokens_of_samples.back() += tokens.back();
    }
  }
  const auto num_items = static_cast<int64_t>(tokens.size());
  const int64_t num_tokens = std::accumulate(tokens.begin(), tokens.end(), int64_t{0});
  const Table table = std::make_shared<Ownership>(*MakeOwnership(items, tokens));
  const bool by_path = Draw(random, 0, 1) == 0;
  const auto owned = [&](RowsOf rows_of) {
    OwnedRows rows{.table = by_path ? nullptr : table, .rows_of = rows_of};
    if (by_path) rows.path = kind + ".table";
    return rows;
  };
  const auto add = [&](const char* key, int64_t dim, const std::vector<int64_t>& rows) {
    c.dims[absl::StrCat(kind, ".", key)] = dim;
    c.owners[absl::StrCat(kind, ".", key)] = OwnersOf(rows);
  };
  c.options.ownership[kind + ".items"] = owned(RowsOf::kItems);
  c.options.ownership[kind + ".names"] = owned(RowsOf::kItems);
  c.options.ownership[kind + ".tokens"] = owned(RowsOf::kTokens);
  c.options.ownership[kind + ".columns"] = owned(RowsOf::kTokens);
  c.options.batch_dims[kind + ".columns"] = 1;
  c.options.rows_per_sample[kind + ".counted"] = tokens_of_samples;
  c.options.rows_per_sample[kind + ".packed.image_grid_thw"] = items;
  add("items", 0, items);
  add("names", 0, items);
  add("tokens", 0, tokens_of_samples);
  add("columns", 1, tokens_of_samples);
  add("counted", 0, tokens_of_samples);
  add("packed.image_grid_thw", 0, items);
  add("packed.pixel_values", 0, tokens_of_samples);
  return Dict{{"items", Numbered({num_items, 2})},
              {"names", NumberedList(static_cast<size_t>(num_items))},
              {"tokens", Numbered({num_tokens, 3})},
              {"columns", Numbered({2, num_tokens})},
              {"counted", Numbered({num_tokens})},
              {"table", table},
              {"packed", Dict{{"image_grid_thw", at::tensor(grid, at::kLong).view({num_items, 3})},
                              {"pixel_values", Numbered({num_tokens, 2})}}}};
}

// The running sums of lengths, from 0.
at::Tensor SumsOf(const std::vector<int64_t>& lengths) {
  std::vector<int32_t> sums = {0};
  for (const int64_t length : lengths) sums.push_back(sums.back() + static_cast<int32_t>(length));
  return at::tensor(sums, at::kInt);
}

// Tokens of samples of one to three sequences each, one behind the other.
Dict PackedSamples(std::mt19937& random, Case& c) {
  const bool is_one_each = Draw(random, 0, 1) == 0, is_row = Draw(random, 0, 1) == 0;
  std::vector<int64_t> sequences, lengths, tokens;
  List seq_lens;
  for (int64_t s = 0; s < c.num_samples; ++s) {
    sequences.push_back(is_one_each ? 1 : Draw(random, 1, 3));
    tokens.push_back(0);
    for (int64_t i = 0; i < sequences.back(); ++i) {
      lengths.push_back(Draw(random, 1, 4));
      tokens.back() += lengths.back();
      seq_lens.emplace_back(Opaque{static_cast<int64_t>(lengths.size()) - 1, lengths.back()});
    }
  }
  const int64_t count = std::accumulate(tokens.begin(), tokens.end(), int64_t{0});
  if (!is_one_each) c.options.rows_per_sample["seq_lens"] = sequences;
  for (const char* key : {"input_ids", "position_ids", "streams.advantages", "streams.experts"})
    c.owners[key] = OwnersOf(tokens);
  c.dims = {{"input_ids", is_row ? 1 : 0}, {"position_ids", 1}, {"streams.experts", 0}};
  c.owners["seq_lens"] = OwnersOf(sequences);
  c.lengths = lengths;
  return Dict{{"input_ids",
               Numbered(is_row ? std::vector<int64_t>{1, count} : std::vector<int64_t>{count})},
              {"position_ids", Numbered({3, count})},
              {"seq_lens", seq_lens},
              {"cu_seqlens", SumsOf(lengths)},
              {"streams", Dict{{"advantages", NumberedList(static_cast<size_t>(count))},
                               {"experts", Numbered({count, 2, 3})}}}};
}

Case RandomCase(std::mt19937& random) {
  Case c;
  c.num_samples = Draw(random, 0, 9);
  const std::vector<int64_t> one_each(static_cast<size_t>(c.num_samples), 1);
  Dict batch;
  if (c.num_samples > 0 && Draw(random, 0, 2) == 0) {
    batch = PackedSamples(random, c);
  } else {
    batch = {{"input_ids", Numbered({c.num_samples, 2})},
             {"position_ids", Numbered({3, c.num_samples, 2})}};
    c.dims = {{"input_ids", 0}, {"position_ids", 1}};
    c.owners = {{"input_ids", OwnersOf(one_each)}, {"position_ids", OwnersOf(one_each)}};
  }
  batch.push_back({"rewards", Numbered({c.num_samples})});
  c.dims["rewards"] = 0;
  c.owners["rewards"] = OwnersOf(one_each);
  batch.push_back({"scale", Numbered({})});
  batch.push_back({"note", Opaque{7}});
  for (int64_t kind = Draw(random, 0, 2); kind > 0; --kind) {
    // "kind2", or "kind1.inner.kind": deeper.
    std::string name = absl::StrCat("kind", kind);
    if (Draw(random, 0, 1) == 0) {
      batch.push_back({name, RandomKind(random, c, name)});
    } else {
      batch.push_back(
          {name, Dict{{"inner", Dict{{"kind", RandomKind(random, c, name + ".inner.kind")}}}}});
    }
  }
  std::shuffle(batch.begin(), batch.end(), random);
  c.batch = std::move(batch);
  return c;
}

// Leaves by path.
void Flatten(const std::string& path, const Value& value, std::map<std::string, Value>* leaves) {
  const auto* dict = std::get_if<Dict>(&value.of);
  if (dict == nullptr) {
    leaves->emplace(path, value);
    return;
  }
  for (const Field& field : *dict)
    Flatten(path.empty() ? field.key : path + "." + field.key, field.value, leaves);
}

std::map<std::string, Value> Leaves(const Value& batch) {
  std::map<std::string, Value> leaves;
  Flatten("", batch, &leaves);
  return leaves;
}

std::vector<int64_t> IdsOf(const Value& list) {
  std::vector<int64_t> ids;
  for (const Value& value : std::get<List>(list.of)) ids.push_back(std::get<Opaque>(value.of).id);
  return ids;
}

Ownership TableOf(const Value& value) { return *std::get<Table>(value.of); }

// The samples of a replica, dealt one by one.
std::vector<int64_t> SamplesOf(int64_t num_samples, int64_t dp_rank, int64_t dp_size) {
  std::vector<int64_t> sizes(static_cast<size_t>(dp_size), 0);
  for (int64_t s = 0; s < num_samples; ++s) ++sizes[static_cast<size_t>(s % dp_size)];
  std::vector<int64_t> samples(static_cast<size_t>(sizes[static_cast<size_t>(dp_rank)]));
  std::iota(samples.begin(), samples.end(),
            std::accumulate(sizes.begin(), sizes.begin() + dp_rank, int64_t{0}));
  return samples;
}

// Rows of `samples`, in their order, by whose each row is.
std::vector<int64_t> RowsOfThese(const std::vector<int64_t>& samples,
                                 const std::vector<int64_t>& owners) {
  std::vector<int64_t> rows;
  for (const int64_t sample : samples) {
    for (size_t row = 0; row < owners.size(); ++row) {
      if (owners[row] == sample) rows.push_back(static_cast<int64_t>(row));
    }
  }
  return rows;
}

// Expects that a part has the rows of these samples, key by key, and their tables.
void ExpectSamples(const Case& c, const std::map<std::string, Value>& part,
                   const std::vector<int64_t>& samples) {
  const std::map<std::string, Value> whole = Leaves(c.batch);
  ASSERT_EQ(part.size(), whole.size());
  for (const auto& [path, value] : part) {
    SCOPED_TRACE(path);
    const Value& all = whole.at(path);
    if (std::holds_alternative<Table>(value.of)) {
      ASSERT_EQ(TableOf(value), Reordered(TableOf(all), samples));
    } else if (path == "cu_seqlens") {
      std::vector<int64_t> lengths;
      for (const int64_t i : RowsOfThese(samples, c.owners.at("seq_lens")))
        lengths.push_back(c.lengths[static_cast<size_t>(i)]);
      ASSERT_TRUE(at::equal(std::get<at::Tensor>(value.of), SumsOf(lengths)));
    } else if (c.owners.count(path) == 0) {  // handed on
      if (const auto* tensor = std::get_if<at::Tensor>(&value.of)) {
        ASSERT_TRUE(tensor->is_same(std::get<at::Tensor>(all.of)));
      }
    } else {
      const std::vector<int64_t> rows = RowsOfThese(samples, c.owners.at(path));
      if (std::holds_alternative<List>(value.of)) {
        ASSERT_EQ(IdsOf(value), rows);  // a list holds its numbers
      } else {
        const auto& tensor = std::get<at::Tensor>(value.of);
        const at::Tensor expected =
            std::get<at::Tensor>(all.of).index_select(c.dims.at(path), at::tensor(rows, at::kLong));
        ASSERT_TRUE(at::equal(tensor, expected));
      }
    }
  }
}

// Shards hold what their samples own, and nothing else; they share the batch's memory; put
// together they are the batch.
TEST(Slice, ShardsHoldTheRowsOfTheirSamplesAndConcatenateToTheBatch) {
  std::mt19937 random(4986);
  int64_t refused = 0, with_views = 0;
  for (int number = 0; number < kCases; ++number) {
    SCOPED_TRACE(number);
    Case c = RandomCase(random);
    c.options.dp_size = Draw(random, 1, 5);
    c.options.uneven = Draw(random, 0, 1) == 0;
    if (!c.options.uneven && c.num_samples % c.options.dp_size != 0) {
      EXPECT_THROW(Slice(c.batch, c.options), c10::ValueError);
      ++refused;
      continue;
    }
    const std::map<std::string, Value> whole = Leaves(c.batch);
    std::map<std::string, std::vector<at::Tensor>> tensors;
    std::map<std::string, std::vector<int64_t>> lists;
    for (int64_t rank = 0; rank < c.options.dp_size; ++rank) {
      SCOPED_TRACE(rank);
      c.options.dp_rank = rank;
      const std::map<std::string, Value> part = Leaves(Slice(c.batch, c.options));
      ASSERT_NO_FATAL_FAILURE(
          ExpectSamples(c, part, SamplesOf(c.num_samples, rank, c.options.dp_size)));
      for (const auto& [path, value] : part) {
        if (c.owners.count(path) == 0) continue;
        if (const auto* tensor = std::get_if<at::Tensor>(&value.of)) {
          ASSERT_TRUE(
              tensor->storage().is_alias_of(std::get<at::Tensor>(whole.at(path).of).storage()))
              << path;
          with_views += tensor->numel() > 0 ? 1 : 0;
          tensors[path].push_back(*tensor);
        } else {
          const std::vector<int64_t> ids = IdsOf(value);
          lists[path].insert(lists[path].end(), ids.begin(), ids.end());
        }
      }
    }
    for (const auto& [path, parts] : tensors) {
      ASSERT_TRUE(
          at::equal(at::cat(parts, c.dims.at(path)), std::get<at::Tensor>(whole.at(path).of)))
          << path;
    }
    for (const auto& [path, ids] : lists) ASSERT_EQ(ids, IdsOf(whole.at(path))) << path;
  }
  EXPECT_GT(refused, kCases / 10);
  EXPECT_GT(with_views, kCases);
}

// Tensors, lists and tables move alike: declarations of the batch by path also hold for the
// reordered one, and its sample p is sample order[p].
TEST(Slice, AnotherOrderMovesAllOfASampleTogether) {
  std::mt19937 random(4608);
  for (int number = 0; number < kCases / 4; ++number) {
    SCOPED_TRACE(number);
    const Case c = RandomCase(random);
    std::vector<int64_t> order(static_cast<size_t>(c.num_samples));
    std::iota(order.begin(), order.end(), int64_t{0});
    std::shuffle(order.begin(), order.end(), random);

    const Value reordered = Reorder(c.batch, order, c.options);

    ASSERT_NO_FATAL_FAILURE(ExpectSamples(c, Leaves(reordered), order));
  }
}

}  // namespace
}  // namespace lockstep::mimo
