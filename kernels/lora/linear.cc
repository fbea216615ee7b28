#include "ATen/ops/linear.h"

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "ATen/TensorOperators.h"
#include "ATen/TensorSubclassLikeUtils.h"
#include "ATen/autocast_mode.h"
#include "ATen/core/LegacyTypeDispatch.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/dropout.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/mm.h"
#include "base/torch/operators.h"
#include "base/torch/versions/node.h"
#include "c10/util/Exception.h"
#include "c10/util/string_view.h"
#include "kernels/aten/private_operators.h"
#include "kernels/few_bits/few_bits.h"
#include "kernels/kernels.h"
#include "kernels/lora/lora.h"
#include "kernels/lora/products.h"
#include "torch/csrc/autograd/VariableTypeUtils.h"
#include "torch/csrc/autograd/function.h"
#include "torch/csrc/autograd/functions/utils.h"
#include "torch/library.h"

namespace lockstep::kernels {
namespace {

using torch::autograd::variable_list;
using Bias = std::optional<at::Tensor>;

bool Has(const Bias& bias) { return bias.has_value() && bias->defined(); }

// Adds low b^T, or low b with a transposed b, to `y`, and returns the sum in y's dtype. Writes to
// y's memory where the dtypes are the same.
at::Tensor AddProduct(const at::Tensor& y, const at::Tensor& low, const at::Tensor& b) {
  if (y.scalar_type() == low.scalar_type()) return y.addmm_(low, b);
  return y.to(low.scalar_type()).addmm_(low, b).to(y.scalar_type());
}

// The same with a matrix in place of a product.
at::Tensor AddTo(const at::Tensor& y, const at::Tensor& more) {
  if (y.scalar_type() == more.scalar_type()) return y.add_(more);
  return y.to(more.scalar_type()).add_(more).to(y.scalar_type());
}

// Sets numbers of the adapter's input to 0, and scales the others. Undefined: leaves all as they
// are.
at::Tensor Dropped(const at::Tensor& x, const at::Tensor& mask, double dropout) {
  return mask.defined() ? (x * mask).mul_(1 / (1 - dropout)) : x;
}

// The weight of the layer: whole, or in few bits.
struct Weight {
  at::Tensor tensor;            // the numbers, or the bytes
  std::optional<FewBits> form;  // of a weight in few bits, without its bytes
  at::ScalarType dtype;         // in which the layer multiplies

  FewBits WithBytes(const at::Tensor& bytes) const {
    FewBits weight = *form;
    weight.packed = bytes;
    return weight;
  }
};

class LoraLinearBackward final : public base::SavingNode<6> {
 public:
  // `low`: scale x a^T, with the numbers of x that `mask` keeps. Backward reads x for the gradient
  // of a, and the weight for the gradient of x.
  LoraLinearBackward(const at::Tensor& x, const Weight& weight, const Bias& bias,
                     const at::Tensor& a, const at::Tensor& b, double scale, const at::Tensor& low,
                     double dropout, const at::Tensor& mask)
      : SavingNode(torch::autograd::collect_next_edges(x, weight.tensor, bias, a, b),
                   a.requires_grad() || b.requires_grad() || weight.tensor.requires_grad()
                       ? x
                       : at::Tensor(),
                   x.requires_grad() ? weight.tensor : at::Tensor(), a, b, low, mask),
        weight_({.tensor = {}, .form = weight.form, .dtype = weight.dtype}),
        sizes_(x.sizes()),
        scale_(scale),
        dropout_(dropout) {}

  std::string name() const override { return "LoraLinearBackward"; }

  variable_list apply(variable_list&& gradients) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!gradients[0].defined()) return variable_list(5);
    const int64_t rows = c10::multiply_integers(sizes_.begin(), sizes_.end() - 1);
    const at::Tensor dy = gradients[0].reshape({rows, gradients[0].size(-1)});
    return at::GradMode::is_enabled() ? OfAten(dy, rows) : Fast(dy.contiguous(), rows);
  }

 private:
  // Calls operators that record a graph, for gradients of gradients.
  variable_list OfAten(const at::Tensor& dy, int64_t rows) {
    const at::Tensor a = saved_[2].unpack(), b = saved_[3].unpack();
    const at::Tensor wide = dy.to(a.scalar_type());
    const at::Tensor x = Unpack(0, rows), mask = saved_[5].unpack();
    const at::Tensor dlow = at::mm(wide, b) * scale_;
    const auto x_of_a = [&] { return Dropped(x.to(a.scalar_type()), mask, dropout_); };
    variable_list results(5);
    if (task_should_compute_output(0)) {
      const at::Tensor saved = saved_[1].unpack();
      const at::Tensor weight =
          weight_.form ? Dequantize(weight_.WithBytes(saved), weight_.dtype) : saved;
      const at::Tensor dx = at::mm(dy.to(weight.scalar_type()), weight).to(dy.scalar_type());
      results[0] =
          (dx + Dropped(at::mm(dlow, a), mask, dropout_)).to(dy.scalar_type()).view(sizes_);
    }
    if (task_should_compute_output(1)) results[1] = at::mm(dy.t(), x);
    if (task_should_compute_output(2)) results[2] = dy.sum(0);
    if (task_should_compute_output(3)) results[3] = at::mm(dlow.t(), x_of_a());
    if (task_should_compute_output(4))
      results[4] = at::mm(wide.t(), at::mm(x_of_a(), a.t())) * scale_;
    return results;
  }

  variable_list Fast(const at::Tensor& dy, int64_t rows) {
    const at::Tensor a = saved_[2].unpack(), b = saved_[3].unpack(), mask = saved_[5].unpack();
    const at::Tensor wide = dy.to(a.scalar_type());
    variable_list results(5);
    at::Tensor dlow;
    if (task_should_compute_output(0) || task_should_compute_output(3))
      dlow = ProductOfRows(wide, b.t()).mul_(scale_);
    if (task_should_compute_output(0)) {
      const at::Tensor dx = InputGradient(dy);
      results[0] = (mask.defined() ? AddTo(dx, Dropped(ProductOfRows(dlow, a.t()), mask, dropout_))
                                   : AddProduct(dx, dlow, a))
                       .view(sizes_);
    }
    if (task_should_compute_output(1)) results[1] = at::mm(dy.t(), Unpack(0, rows));
    if (task_should_compute_output(2)) results[2] = dy.sum(0);
    // The few rows of an adapter come first, so that x and dy are read without a transposed copy.
    if (task_should_compute_output(3)) {
      const at::Tensor x = Dropped(Unpack(0, rows).to(a.scalar_type()), mask, dropout_);
      results[3] = ProductOfRows(dlow.t().contiguous(), x.t());
    }
    if (task_should_compute_output(4)) {
      const at::Tensor low = saved_[4].unpack();
      results[4] = ProductOfRows(low.t().contiguous(), wide.t()).t().contiguous();
    }
    return results;
  }

  // Returns the gradient that x gets from the layer itself.
  at::Tensor InputGradient(const at::Tensor& dy) {
    const at::Tensor saved = saved_[1].unpack();
    if (!weight_.form) return ProductOfRows(dy, saved.t());
    return FewBitsInputGradient(dy.to(weight_.dtype), weight_.WithBytes(saved))
        .to(dy.scalar_type());
  }

  // Returns a saved input of forward as a matrix, or an undefined one.
  at::Tensor Unpack(size_t index, int64_t rows) {
    const at::Tensor x = saved_[index].unpack();
    return x.defined() ? x.reshape({rows, sizes_.back()}) : x;
  }

  const Weight weight_;        // without its tensor
  const at::DimVector sizes_;  // of x
  const double scale_;
  const double dropout_;
};

bool IsDense(const at::Tensor& x) {
  return x.layout() == at::kStrided && x.is_contiguous() && !at::isTensorSubclassLike(x) &&
         !torch::autograd::isFwGradDefined(x);
}

// Returns whether the operator takes these, and the weight, as a whole.
bool IsForOneNode(const at::Tensor& x, const Weight& weight, const Bias& bias, const at::Tensor& a,
                  const at::Tensor& b) {
  const at::ScalarType dtype = x.scalar_type(), adapter = a.scalar_type();
  return at::isFloatingType(dtype) &&
         (weight.form.has_value() || weight.tensor.scalar_type() == dtype) &&
         b.scalar_type() == adapter &&
         (adapter == dtype || (adapter == at::kFloat && at::isReducedFloatingType(dtype))) &&
         (!Has(bias) || (bias->scalar_type() == dtype && IsDense(*bias))) && x.dim() >= 2 &&
         x.numel() > 1 && IsDense(x) && IsDense(weight.tensor) && IsDense(a) && IsDense(b) &&
         x.device() == weight.tensor.device() &&
         !at::autocast::is_autocast_enabled(x.device().type());
}

// Adds an adapter to the layer's own result.
at::Tensor Plain(const at::Tensor& y, const at::Tensor& x, const at::Tensor& a, const at::Tensor& b,
                 double scale, double dropout) {
  const at::Tensor wide = x.to(a.scalar_type());
  const at::Tensor kept = dropout > 0 ? at::dropout(wide, dropout, /*train=*/true) : wide;
  const at::Tensor update = Linear(Linear(kept, a), b) * scale;
  return (y + update).to(y.scalar_type());
}

// `weight`: the sizes of the whole weight.
void Check(const at::Tensor& x, at::IntArrayRef weight, const Bias& bias, const at::Tensor& a,
           const at::Tensor& b, double dropout) {
  TORCH_CHECK_VALUE(dropout >= 0 && dropout < 1,
                    "lora_linear: dropout must be from 0 to below 1, got ", dropout);
  TORCH_CHECK_VALUE(x.dim() >= 1 && weight.size() == 2 && x.size(-1) == weight[1],
                    "lora_linear: x must be [..., in] and weight [out, in], got ", x.sizes(),
                    " and ", weight);
  TORCH_CHECK_VALUE(!Has(bias) || (bias->dim() == 1 && bias->size(0) == weight[0]),
                    "lora_linear: bias must be [", weight[0], "], got ",
                    Has(bias) ? bias->sizes() : at::IntArrayRef());
  TORCH_CHECK_VALUE(a.dim() == 2 && b.dim() == 2 && a.size(1) == weight[1] &&
                        b.size(0) == weight[0] && a.size(0) == b.size(1),
                    "lora_linear: a must be [r, ", weight[1], "] and b [", weight[0], ", r], got ",
                    a.sizes(), " and ", b.sizes());
}

// Returns the layer's own result, [rows, out], with the bits that it has without an adapter: Linear
// calls other kernels where nothing is recorded for backward. The caller may write to it.
at::Tensor Base(const at::Tensor& x, const Weight& weight, const Bias& bias, bool records) {
  if (weight.form) {
    const Bias added = Has(bias) ? Bias(bias->to(weight.dtype)) : std::nullopt;
    return FewBitsProduct(x.to(weight.dtype), weight.WithBytes(weight.tensor), added)
        .to(x.scalar_type());
  }
  return records ? at::linear(x, weight.tensor, bias) : Linear(x, weight.tensor, bias);
}

at::Tensor OneNode(const at::Tensor& x, const Weight& weight, int64_t out, const Bias& bias,
                   const at::Tensor& a, const at::Tensor& b, double scale, double dropout) {
  at::DimVector shape(x.sizes());
  shape.back() = out;
  const bool base_records = torch::autograd::compute_requires_grad(x, weight.tensor, bias);
  at::Tensor low, y, mask;
  {
    // Selections of checkpoint see calls that pass the key below autograd, so it stays.
    const at::NoGradGuard no_grad;
    const at::AutoDispatchBelowAutograd below;
    const at::Tensor rows = x.reshape({-1, x.size(-1)});
    at::Tensor wide = rows.to(a.scalar_type());
    if (dropout > 0) {
      mask = at::empty(wide.sizes(), wide.options().dtype(at::kBool)).bernoulli_(1 - dropout);
      wide = Dropped(wide, mask, dropout);
    }
    low = ProductOfRows(wide, a).mul_(scale);
    // Not a view: autograd would refuse to write to a view that was made without gradients.
    y = UnsafeView(AddProduct(Base(rows, weight, bias, base_records), low, b.t()), shape);
  }
  if (torch::autograd::compute_requires_grad(x, weight.tensor, bias, a, b)) {
    torch::autograd::set_history(
        y, base::MakeNode<LoraLinearBackward>(x, weight, bias, a, b, scale, low, dropout, mask));
  }
  return y;
}

at::Tensor OfDispatcher(const at::Tensor& x, const at::Tensor& weight, const Bias& bias,
                        const at::Tensor& a, const at::Tensor& b, double scale, double dropout) {
  return LoraLinear(x, weight, bias, a, b, scale, dropout);
}

at::Tensor OfDispatcherFewBits(const at::Tensor& x, const at::Tensor& packed,
                               const at::Tensor& absmax,
                               const std::optional<at::Tensor>& nested_absmax,
                               const std::optional<at::Tensor>& nested_map, double offset,
                               at::IntArrayRef shape, at::IntArrayRef blocks, c10::string_view type,
                               std::optional<at::ScalarType> compute_dtype, const Bias& bias,
                               const at::Tensor& a, const at::Tensor& b, double scale,
                               double dropout) {
  return LoraLinear(
      x, MakeFewBits(packed, absmax, nested_absmax, nested_map, offset, shape, blocks, type),
      compute_dtype, bias, a, b, scale, dropout);
}

TORCH_LIBRARY_FRAGMENT(lockstep, library) {
  library.def(
      "lora_linear(Tensor x, Tensor weight, Tensor? bias, Tensor a, Tensor b, float scale, "
      "float dropout=0.) -> Tensor",
      OfDispatcher);
  library.def(
      "lora_linear_few_bits(Tensor x, Tensor packed, Tensor absmax, Tensor? nested_absmax, "
      "Tensor? nested_map, float offset, int[] shape, int[] blocks, str type, "
      "ScalarType? compute_dtype, Tensor? bias, Tensor a, Tensor b, float scale, "
      "float dropout=0.) -> Tensor",
      OfDispatcherFewBits);
}

}  // namespace

at::Tensor LoraLinear(const at::Tensor& x, const at::Tensor& weight, const Bias& bias,
                      const at::Tensor& a, const at::Tensor& b, double scale, double dropout) {
  Check(x, weight.sizes(), bias, a, b, dropout);
  const Weight whole = {.tensor = weight, .form = std::nullopt, .dtype = weight.scalar_type()};
  if (!IsForOneNode(x, whole, bias, a, b))
    return Plain(Linear(x, weight, bias), x, a, b, scale, dropout);
  return OneNode(x, whole, weight.size(0), bias, a, b, scale, dropout);
}

at::Tensor LoraLinear(const at::Tensor& x, const FewBits& weight,
                      std::optional<at::ScalarType> compute_dtype, const Bias& bias,
                      const at::Tensor& a, const at::Tensor& b, double scale, double dropout) {
  Check(x, {weight.rows, weight.columns}, bias, a, b, dropout);
  Weight form = {
      .tensor = weight.packed, .form = weight, .dtype = compute_dtype.value_or(x.scalar_type())};
  form.form->packed.reset();
  if (x.scalar_type() == at::kDouble || !IsForOneNode(x, form, bias, a, b)) {
    const at::Tensor y = FewBitsLinear(compute_dtype ? x.to(*compute_dtype) : x, weight, bias);
    return Plain(compute_dtype ? y.to(x.scalar_type()) : y, x, a, b, scale, dropout);
  }
  return OneNode(x, form, weight.rows, bias, a, b, scale, dropout);
}

}  // namespace lockstep::kernels
