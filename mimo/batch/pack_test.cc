#include "mimo/batch/pack.h"

#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "ATen/ops/arange.h"
#include "ATen/ops/equal.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/tensor.h"
#include "ATen/ops/zeros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "mimo/batch/ownership.h"
#include "mimo/batch/slice.h"
#include "mimo/testing/random_topology.h"
#include "tests/support/message_of.h"

namespace lockstep::mimo {
namespace {

using ::testing::HasSubstr;
using tests::MessageOf;

const Value& At(const Value& value, const std::string& key) {
  for (const Field& field : std::get<Dict>(value.of)) {
    if (field.key == key) return field.value;
  }
  throw std::out_of_range(key);
}

const at::Tensor& TensorOf(const Value& value, const std::string& key) {
  return std::get<at::Tensor>(At(value, key).of);
}

std::vector<int64_t> LengthsOf(const Value& value) {
  std::vector<int64_t> lengths;
  for (const Value& each : std::get<List>(At(value, "seq_lens").of))
    lengths.push_back(*std::get<Opaque>(each.of).number);
  return lengths;
}

bool AreEqual(const Value& a, const Value& b) {
  if (a.of.index() != b.of.index() || a.tag != b.tag) return false;
  if (const auto* tensor = std::get_if<at::Tensor>(&a.of))
    return at::equal(*tensor, std::get<at::Tensor>(b.of));
  if (const auto* table = std::get_if<Table>(&a.of)) return **table == *std::get<Table>(b.of);
  if (const auto* list = std::get_if<List>(&a.of)) {
    const auto& other = std::get<List>(b.of);
    if (list->size() != other.size()) return false;
    for (size_t i = 0; i < list->size(); ++i) {
      if (!AreEqual((*list)[i], other[i])) return false;
    }
    return true;
  }
  if (const auto* dict = std::get_if<Dict>(&a.of)) {
    if (dict->size() != std::get<Dict>(b.of).size()) return false;
    for (const Field& field : *dict) {
      if (!AreEqual(field.value, At(b, field.key))) return false;
    }
    return true;
  }
  const auto &x = std::get<Opaque>(a.of), &y = std::get<Opaque>(b.of);
  return x.id == y.id && x.number == y.number;
}

// Four samples of 2, 4, 5 and 3 tokens in rows of 5. The id of a token is 10 * its sample + its
// place, and -1 is padding.
Dict Padded() {
  return {{"input_ids", at::tensor({0,  1,  -1, -1, -1,  //
                                    10, 11, 12, 13, -1,  //
                                    20, 21, 22, 23, 24,  //
                                    30, 31, 32, -1, -1})
                            .view({4, 5})},
          {"attention_mask", at::tensor({1, 1, 0, 0, 0,  //
                                         1, 1, 1, 1, 0,  //
                                         1, 1, 1, 1, 1,  //
                                         1, 1, 1, 0, 0})
                                 .view({4, 5})},
          {"position_ids", at::arange(5).view({1, 1, 5}).expand({3, 4, 5})}};
}

TEST(Pack, HeaderExample) {
  const Value mine = Slice(Padded(), {.dp_rank = 1, .dp_size = 2});

  const Value packed = Pack(mine);

  EXPECT_TRUE(
      at::equal(TensorOf(packed, "input_ids"), at::tensor({20, 21, 22, 23, 24, 30, 31, 32})));
  EXPECT_TRUE(at::equal(TensorOf(packed, "position_ids"),
                        at::tensor({0, 1, 2, 3, 4, 0, 1, 2}).view({1, 8}).expand({3, 8})));
  EXPECT_THAT(LengthsOf(packed), testing::ElementsAre(5, 3));
  EXPECT_EQ(std::get<Dict>(packed.of).size(), 3u);  // no mask
}

// The failure without this library: the row is packed first and cut into equal parts.
TEST(Pack, EqualPartsOfAPackedRowHoldTokensOfOtherReplicasSamples) {
  const at::Tensor ids = TensorOf(Pack(Padded()), "input_ids");
  const at::Tensor naive = ids.narrow(0, ids.size(0) / 2, ids.size(0) / 2);
  const Value mine = Pack(Slice(Padded(), {.dp_rank = 1, .dp_size = 2}));

  EXPECT_EQ(naive[0].item<int64_t>(), 21);  // sample 2 has lost its first token,
  EXPECT_EQ(naive.size(0), 7);              // which replica 0 trains on
  EXPECT_TRUE(at::equal(TensorOf(mine, "input_ids"), ids.narrow(0, 6, 8)));
}

// Samples with 0 to 3 images each; one in four samples has no token. Padding is on a random side.
struct Case {
  Dict batch;
  SliceOptions options;
};

Case RandomCase(std::mt19937& random, int64_t samples) {
  const int64_t width = Draw(random, 2, 9);
  std::vector<int64_t> mask;
  int64_t num_tokens = 0;
  for (int64_t s = 0; s < samples; ++s) {
    const int64_t length = Draw(random, 0, 3) == 0 ? 0 : Draw(random, 1, width);
    const bool left = Draw(random, 0, 1) == 0;
    for (int64_t i = 0; i < width; ++i) mask.push_back(left ? i >= width - length : i < length);
    num_tokens += length;
  }
  if (num_tokens == 0 || num_tokens == samples) return RandomCase(random, samples);
  const Table images = std::make_shared<Ownership>(RandomOwnership(random, samples));
  const auto numbered = [](std::vector<int64_t> sizes) {
    const int64_t count =
        std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
    return at::arange(count).view(sizes);
  };
  List rows;
  for (int64_t s = 0; s < samples; ++s) {
    List row;
    for (int64_t i = 0; i < width; ++i) row.emplace_back(Opaque{.id = 1 + s * width + i});
    rows.emplace_back(std::move(row));
  }
  Case result;
  result.batch = {{"input_ids", numbered({samples, width})},
                  {"attention_mask", at::tensor(mask).view({samples, width})},
                  {"position_ids", numbered({3, samples, width})},
                  {"experts", numbered({samples, width, 2, 3})},
                  {"advantages", std::move(rows)},
                  {"rewards", numbered({samples})},
                  {"images", images},
                  {"vision", Dict{{"patches", numbered({images->num_tokens(), 2})}}}};
  result.options.ownership["vision.patches"] = {.path = "images"};
  result.options.uneven = true;
  return result;
}

TEST(Pack, PartsThatArePackedAreThePartsOfThePackedWhole) {
  std::mt19937 random(20261127);
  for (int c = 0; c < 3'000; ++c) {
    const int64_t samples = Draw(random, 1, 7), dp_size = Draw(random, 2, 4);
    Case drawn = RandomCase(random, samples);
    drawn.options.dp_size = dp_size;
    const Value whole = Pack(drawn.batch);
    for (int64_t dp_rank = 0; dp_rank < dp_size; ++dp_rank) {
      drawn.options.dp_rank = dp_rank;
      const Value part = Slice(drawn.batch, drawn.options);
      const int64_t real = TensorOf(part, "attention_mask").sum().item<int64_t>();
      // A part whose samples are padding alone is an error.
      if (real == 0 && TensorOf(part, "attention_mask").size(0) > 0) continue;

      ASSERT_TRUE(AreEqual(Pack(part), Slice(whole, drawn.options))) << "case " << c;
    }
  }
}

TEST(Pack, KeepsWhatHasNoTokens) {
  Dict batch = Padded();
  batch.push_back({"scores", at::ones({4, 5})});
  batch.push_back({"pixels", at::ones({4, 5, 2})});
  batch.push_back({"rewards", at::ones({4})});
  batch.push_back({"name", Opaque{7}});

  const Value packed = Pack(batch, {.whole = {"pixels"}});

  EXPECT_EQ(TensorOf(packed, "scores").sizes(), (std::vector<int64_t>{14}));
  EXPECT_EQ(TensorOf(packed, "pixels").sizes(), (std::vector<int64_t>{4, 5, 2}));
  EXPECT_EQ(TensorOf(packed, "rewards").sizes(), (std::vector<int64_t>{4}));
  EXPECT_EQ(std::get<Opaque>(At(packed, "name").of).id, 7);
}

TEST(Pack, MediaWhoseSizesAreThoseOfTheMaskByChanceArePassedOn) {
  Dict batch = Padded();
  const std::vector<std::string> keys = {
      "pixel_values",        "pixel_values_videos",    "image_grid_thw", "input_features",
      "input_features_mask", "feature_attention_mask", "hidden_states",  "grid_thw"};
  for (const std::string& key : keys) batch.push_back({key, at::ones({4, 5, 2})});

  const Value packed = Pack(batch);

  for (const std::string& key : keys)
    EXPECT_EQ(TensorOf(packed, key).sizes(), (std::vector<int64_t>{4, 5, 2})) << key;
  // Without a grid, hidden states are those of tokens.
  Dict states = Padded();
  states.push_back({"hidden_states", at::ones({4, 5, 2})});
  EXPECT_EQ(TensorOf(Pack(states), "hidden_states").sizes(), (std::vector<int64_t>{14, 2}));
}

TEST(Pack, OffsetsMustBeThoseOfThePackedSamples) {
  const auto packed = [](Value offsets, const PackOptions& options = {}) {
    Dict batch = Padded();
    batch.push_back({"cu_seqlens", std::move(offsets)});
    return Pack(batch, options);
  };
  const auto error = [&](Value offsets) { return MessageOf([&] { packed(std::move(offsets)); }); };
  const at::Tensor right = at::tensor({0, 2, 6, 11, 14}, at::kInt);

  EXPECT_TRUE(TensorOf(packed(right), "cu_seqlens").is_same(right));
  EXPECT_EQ(error(List{Opaque{.number = 0}, Opaque{.number = 2}, Opaque{.number = 6},
                       Opaque{.number = 11}, Opaque{.number = 14}}),
            "no error");
  // Those of the padded batch, as a loader makes them.
  const at::Tensor padded = at::tensor({0, 5, 10, 15, 20}, at::kInt);
  EXPECT_THAT(error(padded),
              HasSubstr("mimo: pack: \"cu_seqlens\" does not hold the running sums of the packed "
                        "samples, from 0 to 14: its value 1 is 5, and theirs 2; leave it out, and "
                        "make it from seq_lens after packing"));
  EXPECT_TRUE(TensorOf(packed(padded, {.whole = {"cu_seqlens"}}), "cu_seqlens").is_same(padded));
  EXPECT_THAT(error(at::tensor({0, 2, 6, 11})),
              HasSubstr("from 0 to 14: it has 4 values, and they need 5"));
  EXPECT_THAT(error(at::tensor({0, 2, 6, 5, 14})), HasSubstr("its value 3 is 5, and theirs 11"));
  EXPECT_THAT(error(at::tensor({0, 2, 6, 11, 13})), HasSubstr("its value 4 is 13, and theirs 14"));
  EXPECT_THAT(error(List{Opaque{.number = 1}}), HasSubstr("its value 0 is 1, and theirs 0"));
  EXPECT_THAT(error(at::ones({5})),
              HasSubstr("\"cu_seqlens\" [5] is Float; offsets are whole numbers"));
  EXPECT_THAT(error(Opaque{1}), HasSubstr("must be a tensor or a list of whole numbers"));
}

TEST(Pack, ValuesOfTokensOfAnotherWidthAreAnError) {
  const auto packed = [](const std::string& key, const at::Tensor& value,
                         const PackOptions& options = {}) {
    Dict batch = Padded();
    batch.push_back({key, value});
    return Pack(batch, options);
  };
  const at::Tensor wide = at::ones({4, 6});
  for (const std::string key : {"mm_token_type_ids", "advantages"}) {
    EXPECT_EQ(MessageOf([&] { packed(key, wide); }),
              "mimo: pack: \"" + key +
                  "\" [4, 6] has width 6, but \"attention_mask\" [4, 5] has width 5: the values of "
                  "tokens need the same width; if \"" +
                  key + "\" has no value for each token, name it in whole");
    EXPECT_TRUE(TensorOf(packed(key, wide, {.whole = {key}}), key).is_same(wide));
  }
  EXPECT_TRUE(TensorOf(packed("image_sizes", wide), "image_sizes").is_same(wide));
  for (const char* media : {"tgt_sizes", "spatial_shapes", "image_grid_hws"})
    EXPECT_EQ(MessageOf([&] { packed(media, at::ones({4, 2})); }), "no error") << media;
  EXPECT_EQ(MessageOf([&] { packed("cu_seqlens_vision", at::arange(3)); }), "no error");
  EXPECT_EQ(MessageOf([&] { packed("rewards", at::ones({4, 1})); }), "no error");
  EXPECT_EQ(MessageOf([&] { packed("frames", at::ones({4, 3, 2, 2})); }), "no error");
  EXPECT_EQ(MessageOf([&] { packed("clips", at::ones({3, 6})); }), "no error");
}

TEST(Pack, AReplicaWithoutSamplesHasARowWithoutTokens) {
  const Value none = Slice(Padded(), {.dp_rank = 4, .dp_size = 5, .uneven = true});

  const Value packed = Pack(none);

  EXPECT_EQ(TensorOf(packed, "input_ids").sizes(), (std::vector<int64_t>{0}));
  EXPECT_EQ(TensorOf(packed, "position_ids").sizes(), (std::vector<int64_t>{3, 0}));
  EXPECT_TRUE(LengthsOf(packed).empty());
}

TEST(Pack, ErrorsNameWhatDoesNotFit) {
  const auto error = [](const Dict& batch, const PackOptions& options = {}) {
    return MessageOf([&] { Pack(batch, options); });
  };
  const auto with = [](const std::string& key, Value value) {
    Dict batch;
    for (Field& field : Padded()) {
      if (field.key != key) batch.push_back(std::move(field));
    }
    batch.push_back({key, std::move(value)});
    return batch;
  };

  EXPECT_THAT(
      error({{"input_ids", at::ones({2, 3})}}),
      HasSubstr("mimo: pack: the batch has no tensor \"attention_mask\", which tells tokens "
                "from padding; it has \"input_ids\""));
  EXPECT_THAT(error(Padded(), {.mask = "atention_mask"}),
              HasSubstr("did you mean \"attention_mask\"?"));
  EXPECT_THAT(error(with("attention_mask", List{List{Opaque{1}}})),
              HasSubstr("\"attention_mask\" must be a tensor [samples, width], not a list"));
  EXPECT_THAT(error(with("attention_mask", at::ones({4, 1, 5}))),
              HasSubstr("\"attention_mask\" [4, 1, 5] must be [samples, width]"));
  EXPECT_THAT(error(with("attention_mask", at::zeros({4, 5}))),
              HasSubstr("is Float; it must be bool or whole numbers, where 0 is padding"));
  EXPECT_THAT(error(with("attention_mask", at::zeros({4, 5}, at::kLong))),
              HasSubstr("\"attention_mask\" [4, 5] has no token in any of its 4 samples"));
  EXPECT_THAT(
      error(with("attention_mask", at::ones({4, 6}, at::kLong))),
      HasSubstr("\"input_ids\" [4, 5] does not have the shape of \"attention_mask\" [4, 6]; "
                "it must be [4, 6, ...]"));
  EXPECT_THAT(error(with("position_ids", at::ones({4, 3, 5}))),
              HasSubstr("\"position_ids\" [4, 3, 5] does not have the shape of \"attention_mask\" "
                        "[4, 5]; it must be [..., 4, 5]"));
  EXPECT_THAT(error(with("labels", List{Opaque{1}})),
              HasSubstr("\"labels\" must be a tensor or lists in the shape of \"attention_mask\""));
  EXPECT_THAT(error(with("seq_lens", List{Opaque{1, 2}})), HasSubstr("it is packed already"));
  EXPECT_THAT(error(Padded(), {.whole = {"pixels"}}),
              HasSubstr("whole names \"pixels\", which the batch does not have; it has"));
}

}  // namespace
}  // namespace lockstep::mimo
