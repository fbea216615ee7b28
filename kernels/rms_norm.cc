#include "ATen/ops/rms_norm.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "ATen/TensorOperators.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/add.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/mean.h"
#include "ATen/ops/mul.h"
#include "ATen/ops/rsqrt.h"
#include "ATen/ops/sum.h"
#include "ATen/ops/zeros.h"
#include "base/torch/empty_like.h"
#include "base/torch/operators.h"
#include "base/torch/versions/node.h"
#include "kernels/inputs.h"
#include "kernels/kernels.h"
#include "kernels/rows.h"
#include "torch/csrc/autograd/function.h"
#include "torch/csrc/autograd/functions/utils.h"
#include "torch/library.h"

namespace lockstep::kernels {
namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
using Pair = std::tuple<at::Tensor, at::Tensor>;

at::Tensor Call(const at::Tensor& x, const at::Tensor& weight, double eps) {
  static const auto op =
      base::FindOperator<at::Tensor(const at::Tensor&, const at::Tensor&, double)>(
          "lockstep::rms_norm");
  return op.call(x, weight, eps);
}

Pair CallAdd(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
             double eps) {
  static const auto op =
      base::FindOperator<Pair(const at::Tensor&, const at::Tensor&, const at::Tensor&, double)>(
          "lockstep::add_rms_norm");
  return op.call(x, residual, weight, eps);
}

Pair CallBackward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight, double eps,
                  const std::optional<at::Tensor>& more, bool need_weight) {
  static const auto op =
      base::FindOperator<Pair(const at::Tensor&, const at::Tensor&, const at::Tensor&, double,
                              const std::optional<at::Tensor>&, bool)>(
          "lockstep::rms_norm_backward");
  return op.call(dy, x, weight, eps, more, need_weight);
}

void Check(const char* op, const at::Tensor& x, const at::Tensor& weight) {
  CheckFloating(op, "x", x);
  CheckAlike(op, "x", x, "weight", weight);
  TORCH_CHECK_VALUE(weight.dim() == 1 && weight.sym_size(0) == x.sym_size(-1), op,
                    ": weight must have shape [", x.sym_size(-1),
                    "], the size of x's last dimension, got ", weight.sym_sizes(), "; x has shape ",
                    x.sym_sizes());
}

void CheckAdd(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight) {
  Check("add_rms_norm", x, weight);
  CheckAlike("add_rms_norm", "x", x, "residual", residual);
  TORCH_CHECK_VALUE(x.sym_sizes() == residual.sym_sizes(),
                    "add_rms_norm: x and residual must have one shape, got ", x.sym_sizes(),
                    " and ", residual.sym_sizes());
}

// The dtype that a kernel computes in.
at::ScalarType AccOf(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// --- ATen's operators

at::Tensor Composed(const at::Tensor& x, const at::Tensor& weight, double eps) {
  Check("rms_norm", x, weight);
  const int64_t size = x.size(-1);
  if (!at::isReducedFloatingType(x.scalar_type())) return at::rms_norm(x, {size}, weight, eps);
  return weight * at::rms_norm(x, {size}, std::nullopt, eps);
}

Pair ComposedAdd(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
                 double eps) {
  CheckAdd(x, residual, weight);
  const at::Tensor sum = x + residual;
  return {Composed(sum, weight, eps), sum};
}

Pair ComposedBackward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                      double eps, const std::optional<at::Tensor>& more, bool need_weight) {
  const at::ScalarType acc = AccOf(x);
  const at::Tensor wide = x.to(acc), dy_wide = dy.to(acc), gradient = dy_wide * weight.to(acc);
  const at::Tensor scale = at::rsqrt(at::mean(wide * wide, {-1}, true) + eps);
  const at::Tensor normalised = wide * scale;
  at::Tensor dx = scale * (gradient - normalised * at::mean(gradient * normalised, {-1}, true));
  if (more.has_value()) dx = dx + more->to(acc);
  at::Tensor dweight;
  if (need_weight)
    dweight = (dy_wide * normalised).reshape({-1, x.size(-1)}).sum(0).to(weight.scalar_type());
  return {dx.to(x.scalar_type()), dweight};
}

// --- The kernels

RmsNormRows MakeRows(const at::Tensor& x, const RowView& xs, const at::Tensor& weight, double eps,
                     const at::Tensor& y) {
  return {.dtype = x.scalar_type(),
          .size = x.size(-1),
          .eps = eps,
          .x = xs.data(),
          .x_stride = xs.stride,
          .residual = nullptr,
          .residual_stride = 0,
          .weight = weight.const_data_ptr(),
          .sum = nullptr,
          .y = y.mutable_data_ptr()};
}

void Run(const RmsNormRows& rows, const at::Tensor& y) {
  Launch(y, &RowKernels::rms_norm, rows, y.numel() / rows.size,
         std::max<int64_t>(1, kGrain / rows.size));
}

at::Tensor ByKernel(const at::Tensor& x, const at::Tensor& weight, double eps) {
  if (!HasKernels(x)) return Composed(x, weight, eps);
  Check("rms_norm", x, weight);
  const at::Tensor y = base::EmptyLike(x);
  if (y.numel() == 0) return y;
  const RowView xs = RowsOf(x);
  const at::Tensor dense_weight = weight.contiguous();
  Run(MakeRows(x, xs, dense_weight, eps, y), y);
  return y;
}

Pair AddByKernel(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
                 double eps) {
  if (!HasKernels(x)) return ComposedAdd(x, residual, weight, eps);
  CheckAdd(x, residual, weight);
  const at::Tensor y = base::EmptyLike(x), sum = base::EmptyLike(x);
  if (y.numel() == 0) return {y, sum};
  const RowView xs = RowsOf(x), residuals = RowsOf(residual);
  const at::Tensor dense_weight = weight.contiguous();
  RmsNormRows rows = MakeRows(x, xs, dense_weight, eps, y);
  rows.residual = residuals.data();
  rows.residual_stride = residuals.stride;
  rows.sum = sum.mutable_data_ptr();
  Run(rows, y);
  return {y, sum};
}

Pair BackwardByKernel(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                      double eps, const std::optional<at::Tensor>& more, bool need_weight) {
  if (!HasKernels(x)) return ComposedBackward(dy, x, weight, eps, more, need_weight);
  CheckAdd(x, dy, weight);
  const at::Tensor dx = base::EmptyLike(x);
  if (dx.numel() == 0)
    return {dx, need_weight ? at::zeros(weight.sizes(), weight.options()) : at::Tensor()};
  const int64_t size = x.size(-1), num_rows = x.numel() / size;
  const int64_t rows_of_part = KernelsFor(x).rows_of_part(size);
  const int64_t parts = (num_rows + rows_of_part - 1) / rows_of_part;
  at::Tensor shares;
  if (need_weight) shares = at::empty({parts, size}, x.options().dtype(AccOf(x)));
  const RowView xs = RowsOf(x), dys = RowsOf(dy);
  const RowView mores = more.has_value() ? RowsOf(*more) : RowView{at::Tensor(), 0};
  const at::Tensor dense_weight = weight.contiguous();
  const RmsNormGradientRows rows = {
      .dtype = x.scalar_type(),
      .rows = num_rows,
      .size = size,
      .rows_of_part = rows_of_part,
      .eps = eps,
      .dy = dys.data(),
      .dy_stride = dys.stride,
      .x = xs.data(),
      .x_stride = xs.stride,
      .weight = dense_weight.const_data_ptr(),
      .more = more.has_value() ? mores.data() : nullptr,
      .more_stride = mores.stride,
      .dx = dx.mutable_data_ptr(),
      .dweight = need_weight ? shares.mutable_data_ptr() : nullptr,
  };
  Launch(x, &RowKernels::rms_norm_gradient, rows, parts,
         std::max<int64_t>(1, kGrain / (size * rows_of_part)));
  if (!need_weight) return {dx, at::Tensor()};
  const at::Tensor dweight = parts == 1 ? shares.view({size}) : shares.sum(0);
  return {dx, dweight.to(weight.scalar_type())};
}

at::Tensor OnMeta(const at::Tensor& x, const at::Tensor& weight, double) {
  Check("rms_norm", x, weight);
  return base::EmptyLike(x);
}

Pair AddOnMeta(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight, double) {
  CheckAdd(x, residual, weight);
  return {base::EmptyLike(x), base::EmptyLike(x)};
}

Pair BackwardOnMeta(const at::Tensor&, const at::Tensor& x, const at::Tensor& weight, double,
                    const std::optional<at::Tensor>&, bool need_weight) {
  return {base::EmptyLike(x), need_weight ? base::EmptyLike(weight) : at::Tensor()};
}

// --- Gradients

// The node of all: of rms_norm and rms_norm_and_input, whose inputs are x and weight, and of
// add_rms_norm, whose inputs are x, residual and weight, and whose second result, the sum, is what
// it saves.
class RmsNormBackward final : public base::SavingNode<2> {
 public:
  RmsNormBackward(torch::autograd::edge_list&& inputs, const at::Tensor& weight, double eps)
      : SavingNode(std::move(inputs), weight), eps_(eps) {}

  std::string name() const override { return "RmsNormBackward"; }

  // Called once, before backward.
  void Save(const at::Tensor& x, bool is_output) {
    is_output_ = is_output;
    saved_[1] = SavedVariable(x, is_output);
  }

  variable_list apply(variable_list&& gradients) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const size_t weight_at = num_outputs() - 1;
    variable_list results(num_outputs());
    const at::Tensor dsum = gradients.size() > 1 ? gradients[1] : at::Tensor();
    at::Tensor dx = dsum;
    if (gradients[0].defined()) {
      const at::Tensor x = is_output_ ? saved_[1].unpack(getptr()) : saved_[1].unpack();
      const auto backward = at::GradMode::is_enabled() ? ComposedBackward : CallBackward;
      std::tie(dx, results[weight_at]) =
          backward(gradients[0], x, saved_[0].unpack(), eps_,
                   dsum.defined() ? std::optional(dsum) : std::nullopt,
                   task_should_compute_output(weight_at));
    }
    for (size_t i = 0; i < weight_at; ++i) results[i] = dx;
    return results;
  }

 private:
  double eps_;
  bool is_output_ = false;
};

template <typename... Inputs>
base::NodePointer<RmsNormBackward> NodeOf(const at::Tensor& weight, double eps,
                                          const Inputs&... inputs) {
  if (!torch::autograd::compute_requires_grad(inputs..., weight)) return nullptr;
  return base::MakeNode<RmsNormBackward>(torch::autograd::collect_next_edges(inputs..., weight),
                                         weight, eps);
}

at::Tensor WithGradients(const at::Tensor& x, const at::Tensor& weight, double eps) {
  if (!HasKernels(x)) return Composed(x, weight, eps);
  const auto node = NodeOf(weight, eps, x);
  const at::Tensor y = base::BelowAutograd([&] { return Call(x, weight, eps); });
  if (node != nullptr) {
    node->Save(x, /*is_output=*/false);
    torch::autograd::set_history(y, node);
  }
  return y;
}

Pair AndInputWithGradients(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const auto node = HasKernels(x) ? NodeOf(weight, eps, x) : nullptr;
  if (node == nullptr) return {Call(x, weight, eps), x};
  const at::Tensor y = base::BelowAutograd([&] { return Call(x, weight, eps); });
  // It shares x's memory and version: backward sees a change of either.
  const at::Tensor input = x.detach();
  node->Save(x, /*is_output=*/false);
  torch::autograd::set_history(y, node);
  torch::autograd::set_history(input, node);
  return {y, input};
}

Pair AddWithGradients(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight,
                      double eps) {
  if (!HasKernels(x)) return ComposedAdd(x, residual, weight, eps);
  const auto node = NodeOf(weight, eps, x, residual);
  const auto [y, sum] = base::BelowAutograd([&] { return CallAdd(x, residual, weight, eps); });
  if (node != nullptr) {
    torch::autograd::set_history(y, node);
    torch::autograd::set_history(sum, node);
    node->Save(sum, /*is_output=*/true);
  }
  return {y, sum};
}

TORCH_LIBRARY_FRAGMENT(lockstep, library) {
  library.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor");
  library.def(
      "add_rms_norm(Tensor x, Tensor residual, Tensor weight, float eps) -> (Tensor y, Tensor "
      "sum)");
  library.def("rms_norm_and_input(Tensor x, Tensor weight, float eps) -> (Tensor y, Tensor input)",
              AndInputWithGradients);
  library.def(
      "rms_norm_backward(Tensor dy, Tensor x, Tensor weight, float eps, Tensor? more, bool "
      "need_weight) -> (Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(lockstep, CPU, library) {
  library.impl("rms_norm", ByKernel);
  library.impl("add_rms_norm", AddByKernel);
  library.impl("rms_norm_backward", BackwardByKernel);
}
TORCH_LIBRARY_IMPL(lockstep, CUDA, library) {
  library.impl("rms_norm", ByKernel);
  library.impl("add_rms_norm", AddByKernel);
  library.impl("rms_norm_backward", BackwardByKernel);
}
TORCH_LIBRARY_IMPL(lockstep, Meta, library) {
  library.impl("rms_norm", OnMeta);
  library.impl("add_rms_norm", AddOnMeta);
  library.impl("rms_norm_backward", BackwardOnMeta);
}
TORCH_LIBRARY_IMPL(lockstep, CompositeExplicitAutograd, library) {
  library.impl("rms_norm", Composed);
  library.impl("add_rms_norm", ComposedAdd);
  library.impl("rms_norm_backward", ComposedBackward);
}
TORCH_LIBRARY_IMPL(lockstep, Autograd, library) {
  library.impl("rms_norm", WithGradients);
  library.impl("add_rms_norm", AddWithGradients);
}

}  // namespace

at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return Call(x, weight, eps);
}

std::pair<at::Tensor, at::Tensor> RmsNormAndInput(const at::Tensor& x, const at::Tensor& weight,
                                                  double eps) {
  const auto [y, input] = AndInputWithGradients(x, weight, eps);
  return {y, input};
}

std::pair<at::Tensor, at::Tensor> AddRmsNorm(const at::Tensor& x, const at::Tensor& residual,
                                             const at::Tensor& weight, double eps) {
  const auto [y, sum] = CallAdd(x, residual, weight, eps);
  return {y, sum};
}

}  // namespace lockstep::kernels
