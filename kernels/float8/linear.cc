#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "ATen/TensorOperators.h"
#include "ATen/autocast_mode.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/mm.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/zeros.h"
#include "base/torch/operators.h"
#include "base/torch/versions/node.h"
#include "base/torch/weight_copies.h"
#include "c10/util/Exception.h"
#include "kernels/aten/private_operators.h"
#include "kernels/float8/float8.h"
#include "torch/csrc/autograd/VariableTypeUtils.h"
#include "torch/csrc/autograd/function.h"
#include "torch/csrc/autograd/functions/utils.h"
#include "torch/library.h"

namespace lockstep::kernels {
namespace {

using torch::autograd::variable_list;
using Bias = std::optional<at::Tensor>;
using Dim = std::optional<int64_t>;

// The dimensions that _scaled_mm takes are multiples of this.
constexpr int64_t kMultiple = 16;

struct Recipe {
  std::string_view name;
  bool by_row;                      // scales of rows, powers of 2
  at::ScalarType gradient;          // the format of the gradient of y
  bool has_float8_weight_gradient;  // else the product for it has x's dtype

  // The `dim` of CastToFloat8.
  Dim DimOfRows() const { return by_row ? Dim(1) : Dim(); }
  Dim DimOfColumns() const { return by_row ? Dim(0) : Dim(); }
};

constexpr Recipe kRecipes[] = {
    {"tensorwise", false, at::kFloat8_e5m2, true},
    {"rowwise", true, at::kFloat8_e4m3fn, true},
    {"rowwise_with_gw_hp", true, at::kFloat8_e4m3fn, false},
};

const Recipe& RecipeOf(std::string_view name) {
  const auto* found = std::find_if(std::begin(kRecipes), std::end(kRecipes),
                                   [&](const Recipe& recipe) { return recipe.name == name; });
  TORCH_CHECK_VALUE(found != std::end(kRecipes), "float8_linear: unknown recipe \"", name,
                    "\"; expected tensorwise, rowwise or rowwise_with_gw_hp");
  return *found;
}

// --- Products

// As below, for NVIDIA GPUs. With scales for rows _scaled_mm returns bfloat16 only, and is slow
// without fast accumulation. Then it runs without scales, and they are multiplied in afterwards.
at::Tensor ScaledProduct(const Float8& a, const Float8& b, at::ScalarType dtype, bool fast) {
  const at::Tensor a_factor = a.scale.reciprocal(), b_factor = b.scale.reciprocal().t();
  if (a.scale.dim() == 0 && b.scale.dim() == 0)
    return ScaledMatrixProduct(a.values, b.values.t(), a_factor, b_factor, dtype, fast);
  if (fast) {
    return ScaledMatrixProduct(a.values, b.values.t(), a_factor, b_factor.contiguous(),
                               at::kBFloat16, fast)
        .to(dtype);
  }
  const at::Tensor one = at::ones({}, a.scale.options());
  const at::Tensor y =
      ScaledMatrixProduct(a.values, b.values.t(), one, one, at::kBFloat16, /*fast=*/false);
  return y.mul_(a_factor).mul_(b_factor).to(dtype);
}

// Returns a b^T of the numbers that `a` [m, k] and `b` [n, k] stand for, which have scales for rows
// or one. `fast`: a GPU may add up in less than float32.
at::Tensor Product(const Float8& a, const Float8& b, at::ScalarType dtype, bool fast) {
  if (a.values.numel() == 0 || b.values.numel() == 0)
    return at::zeros({a.values.size(0), b.values.size(0)}, a.scale.options().dtype(dtype));
  if (a.values.is_cuda()) return ScaledProduct(a, b, dtype, fast);
  const at::Tensor y = at::mm(a.values.to(at::kFloat), b.values.to(at::kFloat).t());
  return (y * a.scale.reciprocal() * b.scale.reciprocal().t()).to(dtype);
}

// --- Casts of weights

constexpr at::ScalarType kOfWeights = at::kFloat8_e4m3fn;

// The number under which a cast is kept.
int64_t FormOf(Dim dim, bool by_row, bool is_transposed) {
  return (dim.value_or(2) * 2 + (by_row ? 1 : 0)) * 2 + (is_transposed ? 1 : 0);
}

// The casts of a weight for forward and for backward. They are kept until the weight changes.
class WeightCasts {
 public:
  // `keep`: false casts in each call.
  WeightCasts(at::Tensor weight, const Recipe& recipe, bool keep)
      : weight_(std::move(weight)), recipe_(recipe), keep_(keep) {}

  Float8 ForForward() const {
    const Dim dim = recipe_.DimOfRows();
    return KeptOr(FormOf(dim, recipe_.by_row, /*is_transposed=*/false),
                  [&] { return CastToFloat8(weight_, kOfWeights, dim, recipe_.by_row); });
  }

  // Transposed: the product for dx sums over columns of the weight.
  Float8 ForBackward() const {
    // One scale for the weight, where its gradient is not of float8.
    const Dim dim = recipe_.has_float8_weight_gradient ? recipe_.DimOfColumns() : Dim();
    return KeptOr(FormOf(dim, recipe_.by_row, /*is_transposed=*/true), [&] {
      // With one scale the bytes of forward are those of backward, in another order.
      const std::optional<Float8> as_is =
          dim.has_value() ? std::nullopt : Find(FormOf(dim, recipe_.by_row, false));
      return as_is.has_value() ? Transposed(*as_is)
                               : CastTransposed(weight_, kOfWeights, dim, recipe_.by_row);
    });
  }

 private:
  std::optional<Float8> Find(int64_t form) const {
    const std::optional<base::WeightCopy> copy =
        keep_ ? base::FindCopy(weight_, form) : base::FindGivenCopy(weight_, form);
    return copy.has_value() ? std::optional(Float8{copy->at(0), copy->at(1)}) : std::nullopt;
  }
  template <typename Make>
  Float8 KeptOr(int64_t form, const Make& make) const {
    if (const std::optional<Float8> kept = Find(form)) return *kept;
    // A selective checkpoint must not count a call that the recomputation does not make.
    Float8 cast = base::BelowAutograd(make);
    if (keep_) base::KeepCopy(weight_, form, {cast.values, cast.scale});
    return cast;
  }

  const at::Tensor weight_;
  const Recipe& recipe_;
  const bool keep_;
};

at::Tensor Forward(const at::Tensor& x, const at::Tensor& weight, const Recipe& recipe, bool keep) {
  return Product(CastToFloat8(x, at::kFloat8_e4m3fn, recipe.DimOfRows(), recipe.by_row),
                 WeightCasts(weight, recipe, keep).ForForward(), x.scalar_type(), /*fast=*/true);
}

// --- Gradients

class Float8LinearBackward final : public base::SavingNode<2> {
 public:
  Float8LinearBackward(const at::Tensor& x, const at::Tensor& weight, const Recipe& recipe,
                       bool keep)
      : SavingNode(torch::autograd::collect_next_edges(x, weight),
                   weight.requires_grad() ? x : at::Tensor(),
                   x.requires_grad() ? weight : at::Tensor()),
        recipe_(recipe),
        keep_(keep),
        sizes_(x.sizes()),
        weight_dtype_(weight.scalar_type()) {}

  std::string name() const override { return "Float8LinearBackward"; }

  variable_list apply(variable_list&& gradients) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    variable_list results(2);
    if (!gradients[0].defined()) return results;
    TORCH_CHECK_NOT_IMPLEMENTED(
        !at::GradMode::is_enabled(),
        "float8_linear: gradients of gradients are not supported; call backward without "
        "create_graph, or leave these layers as they were");
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const int64_t rows = c10::multiply_integers(sizes_.begin(), sizes_.end() - 1);
    const at::Tensor dy = gradients[0].reshape({rows, gradients[0].size(-1)});
    const bool needs_x = task_should_compute_output(0), needs_w = task_should_compute_output(1);
    Float8Both dys;  // of dy, as far as the products need it
    if (needs_x && needs_w && recipe_.has_float8_weight_gradient) {
      dys = CastBoth(dy, recipe_.gradient, recipe_.by_row, recipe_.by_row);
    } else if (needs_x) {
      dys.as_is = CastToFloat8(dy, recipe_.gradient, recipe_.DimOfRows(), recipe_.by_row);
    } else if (needs_w && recipe_.has_float8_weight_gradient) {
      dys.transposed = CastTransposed(dy, recipe_.gradient, recipe_.DimOfColumns(), recipe_.by_row);
    }
    if (needs_x) {
      const Float8 weight = WeightCasts(saved_[1].unpack(), recipe_, keep_).ForBackward();
      results[0] = Product(dys.as_is, weight, dy.scalar_type(), /*fast=*/false).view(sizes_);
    }
    if (needs_w) {
      const at::Tensor x = saved_[0].unpack().reshape({rows, sizes_.back()});
      results[1] = WeightGradient(dy, dys.transposed, x);
    }
    return results;
  }

 private:
  at::Tensor WeightGradient(const at::Tensor& dy, const Float8& dys, const at::Tensor& x) const {
    if (!recipe_.has_float8_weight_gradient) return at::mm(dy.t(), x).to(weight_dtype_);
    const Float8 xs = CastTransposed(x, at::kFloat8_e4m3fn, recipe_.DimOfColumns(), recipe_.by_row);
    return Product(dys, xs, weight_dtype_, /*fast=*/false);
  }

  const Recipe& recipe_;
  const bool keep_;            // the casts of the weight
  const at::DimVector sizes_;  // of x
  const at::ScalarType weight_dtype_;
};

// --- The layer

void CheckOperand(const char* name, const at::Tensor& given, const at::Tensor& x) {
  const at::ScalarType dtype = given.scalar_type();
  TORCH_CHECK_VALUE(dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf,
                    "float8_linear: ", name, " must be float32, bfloat16 or float16, got ", dtype);
  TORCH_CHECK_VALUE(given.device() == x.device(), "float8_linear: ", name, " is on ",
                    given.device(), ", but x is on ", x.device(), "; move one of them");
  TORCH_CHECK_NOT_IMPLEMENTED(!torch::autograd::isFwGradDefined(given),
                              "float8_linear: forward-mode derivatives are not supported");
}

void Check(const at::Tensor& x, const at::Tensor& weight, const Bias& bias) {
  CheckOperand("x", x, x);
  CheckOperand("weight", weight, x);
  TORCH_CHECK_VALUE(x.dim() >= 1 && weight.dim() == 2 && x.size(-1) == weight.size(1),
                    "float8_linear: x must be [..., in] and weight [out, in], got ", x.sizes(),
                    " and ", weight.sizes());
  TORCH_CHECK_VALUE(weight.size(0) % kMultiple == 0 && weight.size(1) % kMultiple == 0,
                    "float8_linear: the dimensions of weight must be multiples of ", kMultiple,
                    ", got ", weight.sizes());
  if (!bias.has_value() || !bias->defined()) return;
  CheckOperand("bias", *bias, x);
  TORCH_CHECK_VALUE(bias->dim() == 1 && bias->size(0) == weight.size(0),
                    "float8_linear: bias must be [", weight.size(0), "], got ", bias->sizes());
}

at::Tensor WithoutBias(const at::Tensor& x, const at::Tensor& weight, const Recipe& recipe,
                       bool keep) {
  base::NodePointer<Float8LinearBackward> node;
  if (torch::autograd::compute_requires_grad(x, weight))
    node = base::MakeNode<Float8LinearBackward>(x, weight, recipe, keep);
  const at::Tensor y = base::BelowAutograd([&] {
    at::DimVector sizes(x.sizes());
    sizes.back() = weight.size(0);
    const int64_t rows = c10::multiply_integers(sizes.begin(), sizes.end() - 1);
    return Forward(x.reshape({rows, weight.size(1)}), weight, recipe, keep).view(sizes);
  });
  if (node != nullptr) torch::autograd::set_history(y, node);
  return y;
}

at::Tensor Float8LinearOf(const at::Tensor& given, const at::Tensor& weight, const Bias& bias,
                          c10::string_view recipe, bool keep) {
  const at::DeviceType device = given.device().type();
  const bool is_autocast =
      at::autocast::is_autocast_available(device) && at::autocast::is_autocast_enabled(device);
  Check(given, weight, bias);
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const at::Tensor x = is_autocast ? given.to(at::autocast::get_autocast_dtype(device)) : given;
  const at::Tensor y = WithoutBias(x, weight, RecipeOf({recipe.data(), recipe.size()}), keep);
  return bias.has_value() && bias->defined() ? y + bias->to(y.scalar_type()) : y;
}

void Give(const at::Tensor& weight, const at::Tensor& values, const at::Tensor& scale) {
  TORCH_CHECK_VALUE(values.sizes() == weight.sizes() && values.scalar_type() == kOfWeights &&
                        scale.dim() == 0 && scale.scalar_type() == at::kFloat,
                    "float8_give: expected ", kOfWeights, " values ", weight.sizes(),
                    " and a float32 scale [], got ", values.scalar_type(), " ", values.sizes(),
                    " and ", scale.scalar_type(), " ", scale.sizes());
  const int64_t form = FormOf(std::nullopt, /*by_row=*/false, /*is_transposed=*/false);
  base::GiveCopy(weight, form, {values, scale});
}

TORCH_LIBRARY_FRAGMENT(lockstep, library) {
  library.def("float8_give(Tensor weight, Tensor values, Tensor scale) -> ()", Give);
  library.def(
      "float8_linear(Tensor x, Tensor weight, Tensor? bias, str recipe, bool keep=False) -> Tensor",
      Float8LinearOf);
  library.def("float8_kept_bytes() -> int", base::BytesOfCopies);
  library.def("float8_forget() -> ()", base::ForgetAllCopies);
}

}  // namespace

void GiveFloat8(const at::Tensor& weight, const Float8& cast) {
  Give(weight, cast.values, cast.scale);
}

at::Tensor Float8Linear(const at::Tensor& x, const at::Tensor& weight,
                        const std::optional<at::Tensor>& bias, std::string_view recipe, bool keep) {
  return Float8LinearOf(x, weight, bias, {recipe.data(), recipe.size()}, keep);
}

}  // namespace lockstep::kernels
