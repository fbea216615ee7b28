#include "batching/cost.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lockstep::batching {
namespace {

using ::testing::HasSubstr;

TransformerShape Small() {
  TransformerShape shape;
  shape.hidden_size = 64;
  shape.num_hidden_layers = 2;
  shape.num_attention_heads = 4;
  shape.vocab_size = 1000;
  shape.intermediate_size = 256;
  return shape;
}

SequenceCost Cost(const TransformerShape& shape) {
  const absl::StatusOr<SequenceCost> cost = TransformerCost(shape);
  EXPECT_TRUE(cost.ok()) << cost.status();
  return cost.value_or(SequenceCost{});
}

TEST(TransformerCost, CountsADenseDecoder) {
  const SequenceCost cost = Cost(Small());

  // Per layer: four square projections and three MLP products, two operations each; then the head.
  EXPECT_EQ(cost.linear, 2 * (2.0 * 4 * 64 * 64 + 2.0 * 3 * 64 * 256) + 2.0 * 64 * 1000);
  // Scores and their use, each half masked away: 2 x 2 x 64 / 2 per squared token.
  EXPECT_EQ(cost.quadratic, 2 * 2.0 * 64);
}

TEST(TransformerCost, GroupedQueriesProjectFewerKeysAndValues) {
  TransformerShape shape = Small();
  shape.num_key_value_heads = 1;

  EXPECT_EQ(Cost(Small()).linear - Cost(shape).linear, 2 * 2.0 * 2 * 64 * (64 - 16));
  EXPECT_EQ(Cost(shape).quadratic, Cost(Small()).quadratic) << "every query head still attends";
}

TEST(TransformerCost, HeadDimNeedNotDivideTheHiddenSize) {
  TransformerShape shape = Small();
  shape.head_dim = 32;

  EXPECT_EQ(Cost(shape).quadratic, 2 * Cost(Small()).quadratic);
}

TEST(TransformerCost, LatentAttentionGoesThroughItsRanks) {
  TransformerShape shape = Small();
  shape.q_lora_rank = 24;
  shape.kv_lora_rank = 16;
  shape.qk_nope_head_dim = 8;
  shape.qk_rope_head_dim = 4;
  shape.v_head_dim = 8;

  const double queries = 64 * 24 + 24 * 4 * 12;
  const double keys_and_values = 64 * (16 + 4) + 16 * 4 * (8 + 8);
  const double output = 4 * 8 * 64;
  EXPECT_EQ(Cost(shape).linear,
            2 * (2 * (queries + keys_and_values + output) + 2.0 * 3 * 64 * 256) + 2.0 * 64 * 1000);
  EXPECT_EQ(Cost(shape).quadratic, 2 * 4.0 * (12 + 8));
}

TEST(TransformerCost, ATokenPaysForTheExpertsItVisits) {
  TransformerShape shape = Small();
  shape.num_experts = 8;
  shape.num_experts_per_tok = 2;
  shape.moe_intermediate_size = 32;
  shape.shared_expert_intermediate_size = 16;
  shape.first_k_dense_replace = 1;

  const double attention = 2.0 * 4 * 64 * 64;
  const double dense = 6.0 * 64 * 256;
  const double sparse = 2.0 * 64 * 8 + 6.0 * 64 * (2 * 32) + 6.0 * 64 * 16;
  EXPECT_EQ(Cost(shape).linear, 2 * attention + dense + sparse + 2.0 * 64 * 1000);
}

TEST(VisionCost, IsZeroWithoutATower) { EXPECT_EQ(CostOf(VisionCost(Small()), 1000), 0); }

TEST(VisionCost, AttendsWithinAnImage) {
  TransformerShape shape = Small();
  shape.vision_hidden_size = 32;
  shape.vision_depth = 3;
  shape.vision_intermediate_size = 128;

  const SequenceCost cost = VisionCost(shape);

  EXPECT_EQ(cost.linear, 3 * (2.0 * 4 * 32 * 32 + 2.0 * 2 * 32 * 128));
  EXPECT_EQ(cost.quadratic, 3 * 2.0 * 2 * 32) << "nothing is masked";
}

TEST(TransformerCost, ErrorsNameTheField) {
  const struct {
    int64_t TransformerShape::*field;
    const char* message;
  } kCases[] = {
      {&TransformerShape::hidden_size, "hidden_size must be above 0"},
      {&TransformerShape::num_hidden_layers, "num_hidden_layers must be above 0"},
      {&TransformerShape::num_attention_heads, "num_attention_heads must be above 0"},
      {&TransformerShape::vocab_size, "vocab_size must be above 0"},
      {&TransformerShape::intermediate_size, "intermediate_size must be above 0"},
  };
  for (const auto& c : kCases) {
    TransformerShape shape = Small();
    shape.*c.field = 0;
    EXPECT_THAT(std::string(TransformerCost(shape).status().message()), HasSubstr(c.message));
  }
  TransformerShape experts = Small();
  experts.num_experts = 4;
  EXPECT_THAT(std::string(TransformerCost(experts).status().message()),
              HasSubstr("moe_intermediate_size must be above 0"));
  TransformerShape negative = Small();
  negative.num_key_value_heads = -1;
  EXPECT_THAT(std::string(TransformerCost(negative).status().message()),
              HasSubstr("num_key_value_heads must be at least 0, not -1"));
  TransformerShape narrow = Small();
  narrow.num_attention_heads = narrow.hidden_size + 1;
  EXPECT_THAT(std::string(TransformerCost(narrow).status().message()), HasSubstr("give head_dim"));
}

}  // namespace
}  // namespace lockstep::batching
