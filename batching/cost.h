// Estimates the cost of a sequence: the floating-point operations of a forward pass.
//
//    TransformerShape shape = {.hidden_size = 4096, .num_hidden_layers = 36, .vocab_size = 151'936,
//                              .num_attention_heads = 32, .intermediate_size = 12'288};
//    absl::StatusOr<SequenceCost> cost = TransformerCost(shape);
//    double flops = CostOf(*cost, /*length=*/4096);
//
// Why not the number of tokens: attention grows with the square of a sequence's length, so a plan
// that balances tokens leaves ranks with long sequences behind. Use the cost where sequences are
// long compared with hidden_size; for short ones tokens are enough.
//
// Only ratios matter to a plan. The backward pass doubles every term, so it changes nothing.
//
// The count includes the matrix products of attention, of the MLP or the experts that a token
// visits, of the language-model head, and of a vision tower. A multiply-add counts as 2. Attention
// is causal, so half of the scores count. The count leaves out norms, rotations and softmax, which
// are small and bound by memory.
//
// Thread-safe: pure functions.

#ifndef LOCKSTEP_BATCHING_COST_H_
#define LOCKSTEP_BATCHING_COST_H_

#include <cstdint>

#include "absl/status/statusor.h"

namespace lockstep::batching {

// A decoder and its vision tower, with the field names of Hugging Face configurations. 0 stands for
// a part that the model does not have.
struct TransformerShape {
  int64_t hidden_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t vocab_size = 0;

  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;  // 0: as many as num_attention_heads
  int64_t head_dim = 0;             // 0: hidden_size / num_attention_heads

  // Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434), where kv_lora_rank is above 0.
  int64_t q_lora_rank = 0;
  int64_t kv_lora_rank = 0;
  int64_t qk_nope_head_dim = 0;
  int64_t qk_rope_head_dim = 0;
  int64_t v_head_dim = 0;

  int64_t intermediate_size = 0;  // of the dense, gated MLP

  // Mixture of experts, where num_experts is above 0. Layers below first_k_dense_replace are dense.
  int64_t num_experts = 0;
  int64_t num_experts_per_tok = 0;
  int64_t moe_intermediate_size = 0;
  int64_t shared_expert_intermediate_size = 0;  // of all shared experts together
  int64_t first_k_dense_replace = 0;

  // Vision tower: full attention within an image, plain MLP.
  int64_t vision_hidden_size = 0;
  int64_t vision_depth = 0;
  int64_t vision_intermediate_size = 0;
};

// A field of TransformerShape by its name.
struct ShapeField {
  const char* name;
  int64_t TransformerShape::*value;
};

inline constexpr ShapeField kShapeFields[] = {
    {"hidden_size", &TransformerShape::hidden_size},
    {"num_hidden_layers", &TransformerShape::num_hidden_layers},
    {"vocab_size", &TransformerShape::vocab_size},
    {"num_attention_heads", &TransformerShape::num_attention_heads},
    {"num_key_value_heads", &TransformerShape::num_key_value_heads},
    {"head_dim", &TransformerShape::head_dim},
    {"q_lora_rank", &TransformerShape::q_lora_rank},
    {"kv_lora_rank", &TransformerShape::kv_lora_rank},
    {"qk_nope_head_dim", &TransformerShape::qk_nope_head_dim},
    {"qk_rope_head_dim", &TransformerShape::qk_rope_head_dim},
    {"v_head_dim", &TransformerShape::v_head_dim},
    {"intermediate_size", &TransformerShape::intermediate_size},
    {"num_experts", &TransformerShape::num_experts},
    {"num_experts_per_tok", &TransformerShape::num_experts_per_tok},
    {"moe_intermediate_size", &TransformerShape::moe_intermediate_size},
    {"shared_expert_intermediate_size", &TransformerShape::shared_expert_intermediate_size},
    {"first_k_dense_replace", &TransformerShape::first_k_dense_replace},
    {"vision_hidden_size", &TransformerShape::vision_hidden_size},
    {"vision_depth", &TransformerShape::vision_depth},
    {"vision_intermediate_size", &TransformerShape::vision_intermediate_size},
};

// Cost of one sequence of L tokens: linear * L + quadratic * L^2.
struct SequenceCost {
  double linear = 0;
  double quadratic = 0;
};

// Returns the cost of the decoder, or InvalidArgument with the field that is missing or negative.
absl::StatusOr<SequenceCost> TransformerCost(const TransformerShape& shape);

// Returns the cost of one image of P patches: linear * P + quadratic * P^2. Returns zeros without a
// vision tower.
SequenceCost VisionCost(const TransformerShape& shape);

// Returns the cost of a sequence of `length` tokens, or of an image of `length` patches.
inline double CostOf(const SequenceCost& cost, int64_t length) {
  const double n = static_cast<double>(length);
  return cost.linear * n + cost.quadratic * n * n;
}

}  // namespace lockstep::batching

#endif  // LOCKSTEP_BATCHING_COST_H_
