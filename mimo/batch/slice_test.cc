#include "mimo/batch/slice.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ATen/ops/arange.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/equal.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/tensor.h"
#include "ATen/ops/zeros.h"
#include "c10/util/Exception.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/message_of.h"

namespace lockstep::mimo {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using tests::MessageOf;

at::Tensor Rows(int64_t rows, int64_t columns = 2) {
  return at::arange(rows * columns).view({rows, columns});
}

at::Tensor Grid(const std::vector<int64_t>& thw) {
  return at::tensor(thw, at::kLong).view({-1, 3});
}

const Value& At(const Value& value, const std::string& key) {
  for (const Field& field : std::get<Dict>(value.of)) {
    if (field.key == key) return field.value;
  }
  throw std::out_of_range(key);
}

const at::Tensor& TensorOf(const Value& value, const std::string& key) {
  return std::get<at::Tensor>(At(value, key).of);
}

const List& ListOf(const Value& value, const std::string& key) {
  return std::get<List>(At(value, key).of);
}

std::string ErrorOf(const Value& batch, const SliceOptions& options) {
  return MessageOf([&] { Slice(batch, options); });
}

TEST(Slice, HeaderExample) {
  const at::Tensor patches = Rows(4 + 4 + 16);
  const Value batch = Dict{{"input_ids", Rows(4, 5)},
                           {"position_ids", at::zeros({3, 4, 5})},
                           {"image_grid_thw", Grid({1, 2, 2, 1, 2, 2, 1, 4, 4})},
                           {"pixel_values", patches}};

  const Value mine = Slice(
      batch, {.dp_rank = 1, .dp_size = 2, .rows_per_sample = {{"image_grid_thw", {1, 0, 2, 0}}}});

  EXPECT_TRUE(at::equal(TensorOf(mine, "input_ids"), Rows(4, 5).narrow(0, 2, 2)));
  EXPECT_EQ(TensorOf(mine, "position_ids").sizes(), (std::vector<int64_t>{3, 2, 5}));
  EXPECT_TRUE(at::equal(TensorOf(mine, "image_grid_thw"), Grid({1, 2, 2, 1, 4, 4})));
  EXPECT_TRUE(at::equal(TensorOf(mine, "pixel_values"), patches.narrow(0, 4, 20)));
}

// As batching packs them: three sequences of 5, 2 and 1 tokens and two images, the last with
// padding.
Dict PackedBatch() {
  return {{"input_ids", at::arange(8)},
          {"position_ids", at::arange(24).view({3, 8})},
          {"loss_mask", at::ones({8})},
          {"seq_lens", List{Opaque{1, 5}, Opaque{2, 2}, Opaque{3, 1}}},
          {"cu_seqlens", at::tensor({0, 5, 7, 8}, at::kInt)},
          {"samples", List{Opaque{4}, Opaque{5}, Opaque{6}}},
          {"advantages", List(8, Opaque{7})},
          {"experts", at::zeros({8, 2, 3})},
          {"rewards", at::arange(3)},
          {"kind", Opaque{8}},
          {"image_grid_thw", Grid({1, 2, 2, 1, 2, 4})},
          {"pixel_values", Rows(4 + 8)}};
}

TEST(Slice, CutsAPackedBatchBetweenItsSequences) {
  const Value mine = Slice(PackedBatch(), {.dp_rank = 1,
                                           .dp_size = 2,
                                           .rows_per_sample = {{"image_grid_thw", {1, 0, 1}}},
                                           .uneven = true});

  EXPECT_TRUE(at::equal(TensorOf(mine, "input_ids"), at::arange(7, 8)));
  EXPECT_TRUE(at::equal(TensorOf(mine, "position_ids"), at::tensor({7, 15, 23}).view({3, 1})));
  EXPECT_EQ(TensorOf(mine, "loss_mask").sizes(), (std::vector<int64_t>{1}));
  ASSERT_EQ(ListOf(mine, "seq_lens").size(), 1u);
  EXPECT_EQ(std::get<Opaque>(ListOf(mine, "seq_lens")[0].of).id, 3);
  EXPECT_TRUE(at::equal(TensorOf(mine, "cu_seqlens"), at::tensor({0, 1}, at::kInt)));
  EXPECT_EQ(std::get<Opaque>(ListOf(mine, "samples")[0].of).id, 6);
  EXPECT_EQ(ListOf(mine, "advantages").size(), 1u);
  EXPECT_EQ(TensorOf(mine, "experts").sizes(), (std::vector<int64_t>{1, 2, 3}));
  EXPECT_TRUE(at::equal(TensorOf(mine, "rewards"), at::arange(2, 3)));
  EXPECT_TRUE(at::equal(TensorOf(mine, "image_grid_thw"), Grid({1, 2, 4})));
  EXPECT_TRUE(at::equal(TensorOf(mine, "pixel_values"), Rows(12).narrow(0, 4, 8)));
}

TEST(Slice, VideosKeepTheirSeconds) {
  const Value mine = Slice(Dict{{"input_ids", at::arange(4)},
                                {"seq_lens", at::tensor({2, 2}, at::kInt)},
                                {"video_grid_thw", Grid({1, 2, 2, 1, 2, 4})},
                                {"pixel_values_videos", Rows(12)},
                                {"second_per_grid_ts", List{Opaque{1}, Opaque{2}}}},
                           {.dp_size = 2, .rows_per_sample = {{"video_grid_thw", {2, 0}}}});

  EXPECT_EQ(ListOf(mine, "second_per_grid_ts").size(), 2u);  // both are of sample 0
  EXPECT_EQ(TensorOf(mine, "pixel_values_videos").size(0), 12);
}

TEST(Slice, SharesMemoryAndCopiesNothing) {
  const at::Tensor ids = Rows(6);

  const Value mine = Slice(Dict{{"input_ids", ids}}, {.dp_rank = 2, .dp_size = 3});

  EXPECT_EQ(TensorOf(mine, "input_ids").data_ptr<int64_t>(), ids.data_ptr<int64_t>() + 8);
}

TEST(Slice, OfOneReplicaIsTheSame) {
  const at::Tensor odd = Rows(7);

  const Value whole = Slice(Dict{{"cu_seqlens", odd}, {"scalar", at::zeros({})}}, {});

  EXPECT_TRUE(TensorOf(whole, "cu_seqlens").is_same(odd));
}

// Presence of images in the samples 2 and 3 alone: cut by its rows, the first replica would get the
// pixels of sample 2 (Megatron-Bridge's issue 4986).
TEST(Slice, ReplicasOfTextAloneGetNoImage) {
  const Value batch =
      Dict{{"input_ids", Rows(4)},
           {"modality_inputs", Dict{{"clip", Dict{{"pixel_values", at::zeros({2, 3, 8, 8})}}}}}};
  SliceOptions options{.dp_size = 2, .rows_per_sample = {{"pixel_values", {0, 0, 1, 1}}}};

  const Value text = Slice(batch, options);
  options.dp_rank = 1;
  const Value images = Slice(batch, options);

  EXPECT_EQ(TensorOf(At(At(text, "modality_inputs"), "clip"), "pixel_values").size(0), 0);
  EXPECT_EQ(TensorOf(At(At(images, "modality_inputs"), "clip"), "pixel_values").size(0), 2);
}

TEST(Slice, PartsOfAllReplicasConcatenateToTheWhole) {
  const at::Tensor grid = Grid({1, 2, 2, 1, 4, 2, 2, 2, 2, 1, 2, 4, 1, 2, 2});
  const at::Tensor patches = Rows(4 + 8 + 8 + 8 + 4);
  const Value batch =
      Dict{{"input_ids", Rows(7)}, {"clip", Dict{{"grid_thw", grid}, {"hidden_states", patches}}}};
  for (const int64_t dp_size : {2, 3, 5, 7, 9}) {
    std::vector<at::Tensor> ids, grids, rows;
    for (int64_t dp_rank = 0; dp_rank < dp_size; ++dp_rank) {
      const Value part =
          Slice(batch, {.dp_rank = dp_rank,
                        .dp_size = dp_size,
                        .rows_per_sample = {{"clip.grid_thw", {2, 0, 0, 1, 0, 2, 0}}},
                        .uneven = true});
      ids.push_back(TensorOf(part, "input_ids"));
      grids.push_back(TensorOf(At(part, "clip"), "grid_thw"));
      rows.push_back(TensorOf(At(part, "clip"), "hidden_states"));
    }
    EXPECT_TRUE(at::equal(at::cat(ids), Rows(7))) << dp_size;
    EXPECT_TRUE(at::equal(at::cat(grids), grid)) << dp_size;
    EXPECT_TRUE(at::equal(at::cat(rows), patches)) << dp_size;
  }
}

TEST(Slice, CutsListsOfBatchLengthAndHandsOnTheRest) {
  const Value batch = Dict{{"input_ids", Rows(4)},
                           {"names", List{Opaque{1}, Opaque{2}, Opaque{3}, Opaque{4}}},
                           {"size", List{Opaque{224}, Opaque{224}}},
                           {"levels", List{Rows(4), Rows(4, 3), Rows(4, 1)}},
                           {"scale", at::zeros({})},
                           {"note", Opaque{7}}};

  const Value mine = Slice(batch, {.dp_rank = 1, .dp_size = 2});

  ASSERT_EQ(ListOf(mine, "names").size(), 2u);
  EXPECT_EQ(std::get<Opaque>(ListOf(mine, "names")[0].of).id, 3);
  EXPECT_EQ(ListOf(mine, "size").size(), 2u);
  ASSERT_EQ(ListOf(mine, "levels").size(), 3u);
  EXPECT_EQ(std::get<at::Tensor>(ListOf(mine, "levels")[1].of).sizes(),
            (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(TensorOf(mine, "scale").dim(), 0);
  EXPECT_EQ(std::get<Opaque>(At(mine, "note").of).id, 7);
}

TEST(Slice, DeclarationsGoBeforeTheRules) {
  const Value batch = Dict{{"input_ids", Rows(2)},
                           {"embeddings", at::zeros({5, 2, 8})},
                           {"mean", at::zeros({2})},
                           {"vision", Dict{{"mean", at::zeros({2})}}},
                           {"crops", List{Opaque{1}, Opaque{2}, Opaque{3}}}};

  const Value mine =
      Slice(batch, {.dp_size = 2,
                    .batch_dims = {{"embeddings", 1}, {"mean", std::nullopt}, {"vision.mean", 0}},
                    .rows_per_sample = {{"crops", {2, 1}}}});

  EXPECT_EQ(TensorOf(mine, "embeddings").sizes(), (std::vector<int64_t>{5, 1, 8}));
  EXPECT_EQ(TensorOf(mine, "mean").size(0), 2);
  EXPECT_EQ(TensorOf(At(mine, "vision"), "mean").size(0), 1);
  EXPECT_EQ(ListOf(mine, "crops").size(), 2u);
}

TEST(Slice, OneTableSaysWhoseItemsAndTokensAre) {
  const Table images = std::make_shared<Ownership>(*MakeOwnership({1, 0, 2, 0}, {4, 4, 16}));
  const Value batch = Dict{{"input_ids", Rows(4)},
                           {"images", images},
                           {"crops", Rows(3)},
                           {"names", List{Opaque{1}, Opaque{2}, Opaque{3}}},
                           {"patches", Rows(24)}};
  const SliceOptions options{
      .dp_rank = 1,
      .dp_size = 2,
      .ownership = {{"crops", {.table = images, .rows_of = RowsOf::kItems}},
                    {"names", {.rows_of = RowsOf::kItems, .path = "images"}},
                    {"patches", {.path = "images"}},
                    {"sounds", {.path = "sounds"}}}};  // of which this micro-batch has none

  const Value mine = Slice(batch, options);

  EXPECT_TRUE(at::equal(TensorOf(mine, "crops"), Rows(3).narrow(0, 1, 2)));
  EXPECT_TRUE(at::equal(TensorOf(mine, "patches"), Rows(24).narrow(0, 4, 20)));
  EXPECT_EQ(ListOf(mine, "names").size(), 2u);
  EXPECT_EQ(*std::get<Table>(At(mine, "images").of), *MakeOwnership({2, 0}, {4, 16}));

  const Value reordered = Reorder(batch, {2, 0, 1, 3}, options);

  EXPECT_EQ(*std::get<Table>(At(reordered, "images").of), *MakeOwnership({2, 1, 0, 0}, {4, 16, 4}));
  EXPECT_TRUE(at::equal(TensorOf(reordered, "patches"),
                        at::cat({Rows(24).narrow(0, 4, 20), Rows(24).narrow(0, 0, 4)})));
  EXPECT_EQ(std::get<Opaque>(ListOf(reordered, "names")[0].of).id, 2);
}

TEST(Slice, TablesThatDoNotFitAreNamed) {
  const Table images = std::make_shared<Ownership>(*MakeOwnership({1, 0, 2, 0}, {4, 4, 16}));
  const Dict batch = {{"input_ids", Rows(4)}, {"images", images}, {"patches", Rows(23)}};
  const auto error = [&](SliceOptions options) {
    options.dp_size = 2;
    return ErrorOf(batch, options);
  };

  EXPECT_EQ(error({.ownership = {{"patches", {.table = images}}}}),
            "mimo: ownership of \"patches\" [23, 2] has 24 tokens, but there are 23 rows");
  EXPECT_EQ(error({.ownership = {{"patches", {.table = images, .rows_of = RowsOf::kItems}}}}),
            "mimo: ownership of \"patches\" [23, 2] has 3 items, but there are 23 rows");
  EXPECT_EQ(error({.ownership = {{"patches",
                                  {.table = std::make_shared<Ownership>(UniformOwnership(3))}}}}),
            "mimo: ownership of \"patches\" [23, 2] is of 3 samples, but the batch has 4 samples "
            "(of \"input_ids\" [4, 2])");
  EXPECT_EQ(
      error({.ownership = {{"patches", {.path = "image"}}}}),
      "mimo: ownership of \"patches\" is to be \"image\" of the batch, which has no ownership "
      "table there; did you mean \"images\"?");
  EXPECT_THAT(error({.ownership = {{"patch", {.table = images}}}}),
              HasSubstr("ownership declares \"patch\", which the batch does not have"));
  EXPECT_EQ(error({.ownership = {{"patches", {.table = images}}},
                   .rows_per_sample = {{"patches", {1, 2, 3, 4}}}}),
            "mimo: both ownership and rows_per_sample declare \"patches\"; one of them is enough");
  EXPECT_EQ(ErrorOf(Dict{{"input_ids", Rows(2)}, {"images", images}}, {.dp_size = 2}),
            "mimo: the table \"images\" is of 4 samples, but the batch has 2 (of \"input_ids\" "
            "[2, 2])");
  EXPECT_THROW(Reorder(batch, {0, 1, 1, 2}, {}), c10::ValueError);
  EXPECT_THROW(Reorder(batch, {0, 1, 2, 4}, {}), c10::ValueError);
  EXPECT_THROW(Reorder(batch, {0, 1, 2}, {}), c10::ValueError);
}

TEST(Slice, UnevenPartsDifferByOne) {
  const Value batch = Dict{{"input_ids", Rows(5)}};
  const std::vector<int64_t> sizes = {2, 2, 1};
  for (int64_t dp_rank = 0; dp_rank < 3; ++dp_rank) {
    const Value part = Slice(batch, {.dp_rank = dp_rank, .dp_size = 3, .uneven = true});
    EXPECT_EQ(TensorOf(part, "input_ids").size(0), sizes[static_cast<size_t>(dp_rank)]);
  }
}

struct Refused {
  const char* name;
  Dict batch;
  SliceOptions options;
  std::vector<std::string> parts;  // of the message
};

TEST(Slice, ErrorsNameThePathTheShapeAndTheSizes) {
  const Refused cases[] = {
      {"size",
       {{"input_ids", Rows(10)}},
       {.dp_size = 3},
       {"batch size 10 of \"input_ids\" [10, 2] is not divisible by dp_size 3; use 9 or 12"}},
      {"nested size",
       {{"modality_inputs", Dict{{"clip", Dict{{"pixel_values", Rows(10)}}}}}},
       {.dp_size = 3},
       {"batch size 10 of \"modality_inputs.clip.pixel_values\" [10, 2]", "use 9 or 12"}},
      {"too few", {{"input_ids", Rows(2)}}, {.dp_size = 3}, {"batch size 2", "; use 3,"}},
      {"dp_rank",
       {{"input_ids", Rows(4)}},
       {.dp_rank = 2, .dp_size = 2},
       {"dp_rank 2 is not one of 0 to dp_size - 1 = 1"}},
      {"negative dp_rank", {}, {.dp_rank = -1}, {"dp_rank -1"}},
      {"dp_size", {}, {.dp_size = 0}, {"dp_size must be 1 or more, but is 0"}},
      {"rows of tokens",
       {{"input_ids", Rows(4)}, {"patches", Rows(6)}},
       {.dp_size = 2},
       {"\"patches\" [6, 2] has 6 rows on dim 0, but the batch has 4 samples (of \"input_ids\" "
        "[4, 2])",
        "rows_per_sample"}},
      {"offsets",
       {{"input_ids", Rows(4)}, {"cu_seqlens", at::zeros({4})}},
       {.dp_size = 2},
       {"\"cu_seqlens\" [4] holds offsets"}},
      {"images by count",
       {{"input_ids", Rows(4)}, {"image_grid_thw", Rows(4, 3)}},
       {.dp_size = 2},
       {"\"image_grid_thw\" [4, 3] has one row for each image", "rows_per_sample"}},
      {"too few patches",
       {{"input_ids", Rows(2)}, {"image_grid_thw", Grid({1, 2, 2})}, {"pixel_values", Rows(5)}},
       {.dp_size = 2, .rows_per_sample = {{"image_grid_thw", {1, 0}}}},
       {"\"pixel_values\" [5, 2] adds up to 4, but there are 5 rows"}},
      {"samples of rows",
       {{"input_ids", Rows(4)}, {"images", Rows(2)}},
       {.dp_size = 2, .rows_per_sample = {{"images", {1, 1}}}},
       {"rows_per_sample of \"images\" [2, 2] holds 2 numbers, but the batch has 4 samples"}},
      {"negative rows",
       {{"input_ids", Rows(2)}, {"images", Rows(2)}},
       {.dp_size = 2, .rows_per_sample = {{"images", {3, -1}}}},
       {"holds -1 for sample 1"}},
      {"batch dim",
       {{"input_ids", Rows(4)}, {"x", Rows(4)}},
       {.dp_size = 2, .batch_dims = {{"x", 2}}},
       {"\"x\" [4, 2] has no dim 2"}},
      {"scalar",
       {{"input_ids", Rows(4)}, {"x", at::zeros({})}},
       {.dp_size = 2, .batch_dims = {{"x", 0}}},
       {"\"x\" [] has no dimension"}},
      {"declared list",
       {{"input_ids", Rows(4)}, {"x", List{Opaque{1}}}},
       {.dp_size = 2, .batch_dims = {{"x", 0}}},
       {"\"x\" is a list of 1 values", "4 samples"}},
      {"declared number",
       {{"input_ids", Rows(4)}, {"x", Opaque{1}}},
       {.dp_size = 2, .batch_dims = {{"x", 0}}},
       {"\"x\" is neither a tensor nor a list"}},
      {"packed",
       {{"input_ids", at::arange(8)}, {"seq_lens", at::tensor({5, 2, 1})}},
       {.dp_size = 2},
       {"batch size 3 of the sequences in \"seq_lens\" is not divisible by dp_size 2; use 2 or 4, "
        "or allow uneven parts"}},
      {"packed, of other tokens",
       {{"input_ids", at::arange(9)}, {"seq_lens", List{Opaque{1, 5}, Opaque{2, 3}}}},
       {.dp_size = 2},
       {"\"input_ids\" [9] has 9 rows on dim 0, but the batch has 2 samples (of the sequences in "
        "\"seq_lens\") of 8 tokens"}},
      {"packed, of other offsets",
       {{"seq_lens", at::tensor({5, 3})}, {"cu_seqlens_q", at::tensor({0, 6, 8})}},
       {.dp_size = 2},
       {"\"cu_seqlens_q\" [3] does not hold the running sums of \"seq_lens\", from 0 to 8"}},
      {"packed, of other sequences",
       {{"a", Dict{{"seq_lens", at::tensor({5, 3})}}}, {"b", Dict{{"seq_lens", at::tensor({5})}}}},
       {.dp_size = 2},
       {"\"b.seq_lens\" is of 1 sequences, but the batch has 2 samples (of the sequences in "
        "\"a.seq_lens\")"}},
      {"packed, unclear",
       {{"seq_lens", at::tensor({0, 2})}, {"x", at::arange(2)}},
       {.dp_size = 2},
       {"\"x\" [2] has as many rows as the batch has samples and as \"seq_lens\" has tokens; "
        "declare which: batch_dims for samples, rows_per_sample for tokens"}},
      {"lengths",
       {{"seq_lens", List{Opaque{1, 5}, Opaque{2}}}},
       {.dp_size = 2},
       {"\"seq_lens[1]\" must be a whole number, the length of a sequence"}},
      {"negative lengths",
       {{"seq_lens", at::tensor({5, -1})}},
       {.dp_size = 2},
       {"\"seq_lens[1]\" is -1; a sequence has 0 tokens or more"}},
      {"within a list",
       {{"input_ids", Rows(4)}, {"levels", List{Rows(4), Rows(3)}}},
       {.dp_size = 2},
       {"\"levels[1]\" [3, 2] has 3 rows"}},
  };
  for (const Refused& refused : cases) {
    const std::string error = ErrorOf(refused.batch, refused.options);
    for (const std::string& part : refused.parts)
      EXPECT_THAT(error, HasSubstr(part)) << refused.name;
  }
}

TEST(Slice, TheBatchSizeMayBeGiven) {
  const Value batch = Dict{{"a", Rows(6)}, {"b", Rows(4)}};

  EXPECT_THAT(ErrorOf(batch, {.dp_size = 2, .batch_size = 4}),
              AllOf(HasSubstr("\"a\" [6, 2] has 6 rows"), HasSubstr("of the option batch_size")));
}

TEST(Slice, PositionsOfSeveralAxesAreCutWhereTheBatchIsOrRefused) {
  const auto cut = [](std::vector<int64_t> sizes, int64_t batch) {
    const Value whole =
        Dict{{"input_ids", at::zeros({batch, 5})}, {"text.position_ids", at::zeros(sizes)}};
    return TensorOf(Slice(whole, {.dp_rank = 0, .dp_size = 2}), "text.position_ids").sizes().vec();
  };
  using Sizes = std::vector<int64_t>;

  EXPECT_EQ(cut({3, 2, 5}, 2), (Sizes{3, 1, 5}));
  EXPECT_EQ(cut({4, 2, 5}, 2), (Sizes{4, 1, 5}));
  EXPECT_EQ(cut({2, 4, 5}, 2), (Sizes{1, 4, 5}));
  EXPECT_EQ(cut({4, 5}, 4), (Sizes{2, 5}));

  const Dict ambiguous = {{"input_ids", at::zeros({4, 5})}, {"position_ids", at::zeros({4, 4, 5})}};
  EXPECT_EQ(ErrorOf(ambiguous, {.dp_rank = 0, .dp_size = 2}),
            "mimo: \"position_ids\" [4, 4, 5] has the 4 samples of the batch (of \"input_ids\" "
            "[4, 5]) on dim 0 or on dim 1; declare which: batch_dims of \"position_ids\"");
  EXPECT_EQ(
      TensorOf(Slice(ambiguous, {.dp_rank = 1, .dp_size = 2, .batch_dims = {{"position_ids", 1}}}),
               "position_ids")
          .sizes(),
      (Sizes{4, 2, 5}));
  EXPECT_THAT(ErrorOf(Dict{{"position_ids", at::zeros({4, 2, 5})}}, {.dp_rank = 0, .dp_size = 2}),
              HasSubstr("does not tell which dim is the batch's"));
}

TEST(Slice, ADeclarationWithoutAKeyIsAnErrorForEveryReplica) {
  const Value batch = Dict{{"input_ids", Rows(4)}, {"clip", Dict{{"pixel_values", Rows(6)}}}};
  for (const int64_t dp_size : {1, 2}) {
    const auto error = [&](SliceOptions options) {
      options.dp_size = dp_size;
      return ErrorOf(batch, options);
    };

    EXPECT_EQ(error({.rows_per_sample = {{"pixel_value", {1, 2, 1, 2}}}}),
              "mimo: rows_per_sample declares \"pixel_value\", which the batch does not have; did "
              "you mean \"pixel_values\"?");
    EXPECT_EQ(error({.batch_dims = {{"attention", 0}}}),
              "mimo: batch_dims declares \"attention\", which the batch does not have; it has "
              "\"clip\", \"clip.pixel_values\", \"input_ids\", \"pixel_values\"");
    EXPECT_THAT(error({.batch_dims = {{"siglip.pixel_values", std::nullopt}}}),
                HasSubstr("did you mean \"clip.pixel_values\"?"));
    EXPECT_EQ(error({.rows_per_sample = {{"clip.pixel_values", {1, 2, 1, 2}},
                                         {"video_grid_thw", {0, 0, 0, 0}}}}),
              "no error");
    // A declaration for an existing key must fit.
    EXPECT_THAT(error({.rows_per_sample = {{"pixel_values", {1, 2, 1}}}}),
                HasSubstr("holds 3 numbers, but the batch has 4 samples"));
    EXPECT_THAT(error({.rows_per_sample = {{"pixel_values", {1, 2, 1, 1}}}}),
                HasSubstr("adds up to 5, but there are 6 rows"));
    EXPECT_THAT(error({.batch_dims = {{"pixel_values", 0}}}), HasSubstr("has 6 rows on dim 0"));
    EXPECT_THAT(error({.batch_dims = {{"pixel_values", 2}}}), HasSubstr("has no dim 2"));
    EXPECT_THAT(error({.batch_dims = {{"clip", 0}}}), HasSubstr("neither a tensor nor a list"));
  }
  EXPECT_EQ(ErrorOf(batch, {}), "no error");  // undeclared, and whole
}

}  // namespace
}  // namespace lockstep::mimo
