#include "batching/cost.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace lockstep::batching {
namespace {

double Product(int64_t a, int64_t b) { return static_cast<double>(a) * static_cast<double>(b); }

// One layer's attention: projections per token, scores and their use per squared token.
SequenceCost AttentionCost(const TransformerShape& s) {
  const int64_t heads = s.num_attention_heads;
  if (s.kv_lora_rank > 0) {
    const int64_t qk_dim = s.qk_nope_head_dim + s.qk_rope_head_dim;
    const double queries = s.q_lora_rank > 0 ? Product(s.hidden_size, s.q_lora_rank) +
                                                   Product(s.q_lora_rank, heads * qk_dim)
                                             : Product(s.hidden_size, heads * qk_dim);
    const double keys_and_values =
        Product(s.hidden_size, s.kv_lora_rank + s.qk_rope_head_dim) +
        Product(s.kv_lora_rank, heads * (s.qk_nope_head_dim + s.v_head_dim));
    const double output = Product(heads * s.v_head_dim, s.hidden_size);
    return {2 * (queries + keys_and_values + output), Product(heads, qk_dim + s.v_head_dim)};
  }
  const int64_t head_dim = s.head_dim > 0 ? s.head_dim : s.hidden_size / heads;
  const int64_t kv_heads = s.num_key_value_heads > 0 ? s.num_key_value_heads : heads;
  const double queries_and_output = 4 * Product(s.hidden_size, heads * head_dim);
  const double keys_and_values = 4 * Product(s.hidden_size, kv_heads * head_dim);
  return {queries_and_output + keys_and_values, 2 * Product(heads, head_dim)};
}

// Returns the cost of all layers' MLPs per token. Each has three products; one of them is the gate.
double MlpCost(const TransformerShape& s) {
  const int64_t dense_layers = s.num_experts > 0 ? s.first_k_dense_replace : s.num_hidden_layers;
  const double dense =
      6 * Product(s.hidden_size, s.intermediate_size) * static_cast<double>(dense_layers);
  if (s.num_experts == 0) return dense;
  const double router = 2 * Product(s.hidden_size, s.num_experts);
  const double experts =
      6 * Product(s.hidden_size, s.moe_intermediate_size * s.num_experts_per_tok);
  const double shared = 6 * Product(s.hidden_size, s.shared_expert_intermediate_size);
  return dense +
         (router + experts + shared) * static_cast<double>(s.num_hidden_layers - dense_layers);
}

absl::Status CheckPositive(const std::pair<const char*, int64_t>& field) {
  if (field.second > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("batching: ", field.first,
                   " must be above 0 for the cost of a transformer, not ", field.second));
}

absl::Status CheckNotNegative(const TransformerShape& s) {
  for (const auto& [name, value] : kShapeFields) {
    if (s.*value < 0)
      return absl::InvalidArgumentError(
          absl::StrCat("batching: ", name, " must be at least 0, not ", s.*value));
  }
  return absl::OkStatus();
}

absl::Status Check(const TransformerShape& s) {
  std::pair<const char*, int64_t> needed[] = {{"hidden_size", s.hidden_size},
                                              {"num_hidden_layers", s.num_hidden_layers},
                                              {"num_attention_heads", s.num_attention_heads},
                                              {"vocab_size", s.vocab_size},
                                              {"intermediate_size", s.intermediate_size}};
  if (s.num_experts > 0) needed[4] = {"moe_intermediate_size", s.moe_intermediate_size};
  for (const auto& field : needed) {
    absl::Status status = CheckPositive(field);
    if (!status.ok()) return status;
  }
  absl::Status not_negative = CheckNotNegative(s);
  if (!not_negative.ok()) return not_negative;
  if (s.kv_lora_rank == 0 && s.head_dim == 0 && s.hidden_size < s.num_attention_heads) {
    return absl::InvalidArgumentError(absl::StrCat("batching: hidden_size (", s.hidden_size,
                                                   ") is less than num_attention_heads (",
                                                   s.num_attention_heads, "): give head_dim"));
  }
  if (s.num_experts > 0) {
    absl::Status status = CheckPositive({"num_experts_per_tok", s.num_experts_per_tok});
    if (!status.ok()) return status;
    if (s.first_k_dense_replace > s.num_hidden_layers) {
      return absl::InvalidArgumentError(
          absl::StrCat("batching: first_k_dense_replace (", s.first_k_dense_replace,
                       ") exceeds num_hidden_layers (", s.num_hidden_layers, ")"));
    }
    if (s.first_k_dense_replace > 0)
      return CheckPositive({"intermediate_size", s.intermediate_size});
  }
  if (s.kv_lora_rank > 0) return CheckPositive({"v_head_dim", s.v_head_dim});
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SequenceCost> TransformerCost(const TransformerShape& shape) {
  absl::Status status = Check(shape);
  if (!status.ok()) return status;
  const double layers = static_cast<double>(shape.num_hidden_layers);
  const SequenceCost attention = AttentionCost(shape);
  const double head = 2 * Product(shape.hidden_size, shape.vocab_size);
  return SequenceCost{layers * attention.linear + MlpCost(shape) + head,
                      layers * attention.quadratic};
}

SequenceCost VisionCost(const TransformerShape& shape) {
  const double depth = static_cast<double>(shape.vision_depth);
  const double attention = 8 * Product(shape.vision_hidden_size, shape.vision_hidden_size);
  const double mlp = 4 * Product(shape.vision_hidden_size, shape.vision_intermediate_size);
  return {depth * (attention + mlp), depth * 4 * static_cast<double>(shape.vision_hidden_size)};
}

}  // namespace lockstep::batching
