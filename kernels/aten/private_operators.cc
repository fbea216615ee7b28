#include "kernels/aten/private_operators.h"

#include "ATen/ops/_cudnn_attention_forward.h"
#include "ATen/ops/_efficient_attention_forward.h"
#include "ATen/ops/_flash_attention_backward.h"
#include "ATen/ops/_flash_attention_forward.h"
#include "ATen/ops/_foreach_add.h"
#include "ATen/ops/_scaled_dot_product_cudnn_attention.h"
#include "ATen/ops/_scaled_dot_product_efficient_attention.h"
#include "ATen/ops/_scaled_dot_product_flash_attention.h"
#include "ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward_native.h"
#include "ATen/ops/_scaled_dot_product_flash_attention_for_cpu_native.h"
#include "ATen/ops/_scaled_mm.h"
#include "ATen/ops/_unsafe_view.h"
#include "ATen/ops/zeros.h"

namespace lockstep::kernels {
namespace {

// The tokens that a token sees to each side of it; -1: all.
struct Sides {
  int64_t left = -1, right = -1;
};

Sides SidesOf(const PackedSequences& s) {
  if (!s.window.has_value()) return {};
  const int64_t left = *s.window - 1;
  return {.left = left, .right = s.causal ? 0 : left};
}

}  // namespace

at::Tensor UnsafeView(const at::Tensor& x, at::IntArrayRef shape) {
  return at::_unsafe_view(x, shape);
}

void AddOneToAll(at::TensorList tensors) { at::_foreach_add_(tensors, 1); }

std::tuple<at::Tensor, at::Tensor> AtenFlashAttention(const at::Tensor& q, const at::Tensor& k,
                                                      const at::Tensor& v, double dropout,
                                                      bool causal,
                                                      const std::optional<at::Tensor>& mask,
                                                      std::optional<double> scale) {
  return at::native::_scaled_dot_product_flash_attention_cpu(q, k, v, dropout, causal, mask, scale);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> AtenFlashAttentionBackward(
    const at::Tensor& dy, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const at::Tensor& y, const at::Tensor& logsumexp, double dropout, bool causal,
    const std::optional<at::Tensor>& mask, std::optional<double> scale) {
  return at::native::_scaled_dot_product_flash_attention_cpu_backward(dy, q, k, v, y, logsumexp,
                                                                      dropout, causal, mask, scale);
}

std::tuple<at::Tensor, at::Tensor> FlashForward(const at::Tensor& q, const at::Tensor& k,
                                                const at::Tensor& v, const PackedSequences& s) {
  const auto [left, right] = SidesOf(s);
  const auto results = at::_flash_attention_forward(
      q, k, v, s.ends, s.ends, s.longest, s.longest, /*dropout_p=*/0, s.causal,
      /*return_debug_mask=*/false, s.scale, left, right);
  return {std::get<0>(results), std::get<1>(results)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> FlashBackward(
    const at::Tensor& dy, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const at::Tensor& y, const at::Tensor& logsumexp, const PackedSequences& s) {
  const auto [left, right] = SidesOf(s);
  const at::Tensor dropout = at::zeros({2}, q.options().dtype(at::kLong));  // the state of one
  return at::_flash_attention_backward(dy, q, k, v, y, logsumexp, s.ends, s.ends, s.longest,
                                       s.longest, /*dropout_p=*/0, s.causal, dropout, dropout,
                                       s.scale, left, right);
}

at::Tensor CudnnAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const PackedSequences& s, bool needs_gradient) {
  return std::get<0>(at::_cudnn_attention_forward(
      q, k, v, /*attn_bias=*/std::nullopt, s.ends, s.ends, s.longest, s.longest, needs_gradient,
      /*dropout_p=*/0, s.causal, /*return_debug_mask=*/false, s.scale));
}

at::Tensor CudnnAttentionOfBatch(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                 bool causal, std::optional<double> scale, bool needs_gradient) {
  return std::get<0>(at::_scaled_dot_product_cudnn_attention(
      q, k, v, /*attn_bias=*/std::nullopt, needs_gradient, /*dropout_p=*/0, causal,
      /*return_debug_mask=*/false, scale));
}

at::Tensor EfficientAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const PackedSequences& s, bool needs_gradient) {
  const int64_t mask_type = s.causal ? 1 : 0;  // 1: query i sees keys 0 to i
  return std::get<0>(at::_efficient_attention_forward(q.unsqueeze(0), k.unsqueeze(0),
                                                      v.unsqueeze(0), /*bias=*/std::nullopt, s.ends,
                                                      s.ends, s.longest, s.longest, /*dropout_p=*/0,
                                                      mask_type, needs_gradient, s.scale))
      .squeeze(0);
}

// Not _efficient_attention_forward: without cumulative lengths its node of autograd hands backward
// an undefined tensor for them.
at::Tensor EfficientAttentionOfBatch(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                     bool causal, std::optional<double> scale,
                                     bool needs_gradient) {
  return std::get<0>(at::_scaled_dot_product_efficient_attention(
      q, k, v, /*attn_bias=*/std::nullopt, needs_gradient, /*dropout_p=*/0, causal, scale));
}

at::Tensor FlashAttentionToCache(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  return std::get<0>(at::_scaled_dot_product_flash_attention(q, k, v));
}

at::Tensor EfficientAttentionToCache(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                     const std::optional<at::Tensor>& mask) {
  return std::get<0>(
      at::_scaled_dot_product_efficient_attention(q, k, v, mask, /*compute_log_sumexp=*/false));
}

at::Tensor ScaledMatrixProduct(const at::Tensor& a, const at::Tensor& b, const at::Tensor& a_factor,
                               const at::Tensor& b_factor, at::ScalarType dtype, bool fast) {
  return at::_scaled_mm(a, b, a_factor, b_factor, /*bias=*/std::nullopt,
                        /*scale_result=*/std::nullopt, dtype, fast);
}

}  // namespace lockstep::kernels
