#include "kernels/aten/private_operators.h"

#include "ATen/ops/_foreach_add.h"
#include "ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward_native.h"
#include "ATen/ops/_scaled_dot_product_flash_attention_for_cpu_native.h"
#include "ATen/ops/_scaled_mm.h"
#include "ATen/ops/_unsafe_view.h"

namespace lockstep::kernels {

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

at::Tensor ScaledMatrixProduct(const at::Tensor& a, const at::Tensor& b, const at::Tensor& a_factor,
                               const at::Tensor& b_factor, at::ScalarType dtype, bool fast) {
  return at::_scaled_mm(a, b, a_factor, b_factor, /*bias=*/std::nullopt,
                        /*scale_result=*/std::nullopt, dtype, fast);
}

}  // namespace lockstep::kernels
