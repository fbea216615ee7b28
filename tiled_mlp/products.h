// Matrix multiplications into existing tensors, so that a tile needs no temporaries. They make no
// graph. Operands have the computing dtype. A target of another dtype costs a temporary.

#ifndef LOCKSTEP_TILED_MLP_PRODUCTS_H_
#define LOCKSTEP_TILED_MLP_PRODUCTS_H_

#include "ATen/core/TensorBody.h"

namespace lockstep::tiled_mlp {

// Computes out = x weight^T + bias, or without the bias if it is undefined.
void LinearInto(at::Tensor out, const at::Tensor& x, const at::Tensor& weight,
                const at::Tensor& bias);

// Computes out = a b, or out += a b with `add`. Casts `a` to b's dtype.
void MatmulInto(at::Tensor out, const at::Tensor& a, const at::Tensor& b, bool add);

// A weight's gradient, added up over tiles in `dtype` by the multiplication itself (beta = 1).
class GradientSum {
 public:
  GradientSum() = default;  // needs no gradient: adding does nothing
  GradientSum(const at::Tensor& weight, at::ScalarType dtype) : weight_(weight), dtype_(dtype) {}

  void AddProduct(const at::Tensor& a, const at::Tensor& b);  // a^T b: [rows, out], [rows, in]
  void AddRows(const at::Tensor& a);                          // for a bias: the sum of a's rows

  // Returns the sum in its dtype: zeros if nothing was added, undefined if no gradient is needed.
  at::Tensor Take();

 private:
  at::Tensor weight_;
  at::ScalarType dtype_ = at::kFloat;
  at::Tensor sum_;
};

}  // namespace lockstep::tiled_mlp

#endif  // LOCKSTEP_TILED_MLP_PRODUCTS_H_
