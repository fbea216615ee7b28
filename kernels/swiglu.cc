#include <memory>
#include <mutex>
#include <tuple>

#include "ATen/TensorOperators.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/sigmoid.h"
#include "ATen/ops/silu.h"
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

using torch::autograd::variable_list;

at::Tensor Call(const at::Tensor& gate, const at::Tensor& up) {
  static const auto op =
      base::FindOperator<at::Tensor(const at::Tensor&, const at::Tensor&)>("lockstep::swiglu");
  return op.call(gate, up);
}

std::tuple<at::Tensor, at::Tensor> CallBackward(const at::Tensor& dy, const at::Tensor& gate,
                                                const at::Tensor& up) {
  static const auto op = base::FindOperator<std::tuple<at::Tensor, at::Tensor>(
      const at::Tensor&, const at::Tensor&, const at::Tensor&)>("lockstep::swiglu_backward");
  return op.call(dy, gate, up);
}

void Check(const at::Tensor& gate, const at::Tensor& up) {
  CheckFloating("swiglu", "gate", gate);
  CheckAlike("swiglu", "gate", gate, "up", up);
  TORCH_CHECK_VALUE(gate.sym_sizes() == up.sym_sizes(),
                    "swiglu: gate and up must have one shape, got ", gate.sym_sizes(), " and ",
                    up.sym_sizes());
}

// --- ATen's operators

at::Tensor Composed(const at::Tensor& gate, const at::Tensor& up) {
  Check(gate, up);
  return at::silu(gate) * up;
}

std::tuple<at::Tensor, at::Tensor> ComposedBackward(const at::Tensor& dy, const at::Tensor& gate,
                                                    const at::Tensor& up) {
  const at::Tensor sigmoid = at::sigmoid(gate);  // at::silu_backward has no derivative
  return {dy * up * (sigmoid * (1 + gate * (1 - sigmoid))), dy * (gate * sigmoid)};
}

// --- The kernels

// One row of all numbers if nothing lies apart, else the rows of the last dimension.
SwigluRows MakeRows(const at::Tensor& gate, const RowView& gates, const RowView& ups) {
  return {.dtype = gate.scalar_type(),
          .size = gate.size(-1),
          .gate = gates.data(),
          .gate_stride = gates.stride,
          .up = ups.data(),
          .up_stride = ups.stride,
          .dy = nullptr,
          .dy_stride = 0,
          .y = nullptr,
          .dgate = nullptr,
          .dup = nullptr};
}

at::Tensor ByKernel(const at::Tensor& gate, const at::Tensor& up) {
  if (!HasKernels(gate)) return Composed(gate, up);
  Check(gate, up);
  const at::Tensor y = base::EmptyLike(gate);
  if (y.numel() == 0) return y;
  const RowView gates = RowsOf(gate), ups = RowsOf(up);
  SwigluRows rows = MakeRows(gate, gates, ups);
  rows.y = y.mutable_data_ptr();
  if (gates.tensor.is_contiguous() && ups.tensor.is_contiguous()) rows.size = y.numel();
  Launch(y, &RowKernels::swiglu, rows, y.numel(), kGrain);
  return y;
}

std::tuple<at::Tensor, at::Tensor> BackwardByKernel(const at::Tensor& dy, const at::Tensor& gate,
                                                    const at::Tensor& up) {
  if (!HasKernels(gate)) return ComposedBackward(dy, gate, up);
  Check(gate, up);
  Check(gate, dy);
  const at::Tensor dgate = base::EmptyLike(gate), dup = base::EmptyLike(gate);
  if (dgate.numel() == 0) return {dgate, dup};
  const RowView gates = RowsOf(gate), ups = RowsOf(up), dys = RowsOf(dy);
  SwigluRows rows = MakeRows(gate, gates, ups);
  rows.dy = dys.data();
  rows.dy_stride = dys.stride;
  rows.dgate = dgate.mutable_data_ptr();
  rows.dup = dup.mutable_data_ptr();
  if (gates.tensor.is_contiguous() && ups.tensor.is_contiguous() && dys.tensor.is_contiguous())
    rows.size = dgate.numel();
  Launch(gate, &RowKernels::swiglu_gradient, rows, dgate.numel(), kGrain);
  return {dgate, dup};
}

at::Tensor OnMeta(const at::Tensor& gate, const at::Tensor& up) {
  Check(gate, up);
  return base::EmptyLike(gate);
}

std::tuple<at::Tensor, at::Tensor> BackwardOnMeta(const at::Tensor&, const at::Tensor& gate,
                                                  const at::Tensor&) {
  return {base::EmptyLike(gate), base::EmptyLike(gate)};
}

// --- Gradients

class SwigluBackward final : public base::SavingNode<2> {
 public:
  SwigluBackward(const at::Tensor& gate, const at::Tensor& up)
      : SavingNode(torch::autograd::collect_next_edges(gate, up), gate, up) {}

  std::string name() const override { return "SwigluBackward"; }

  variable_list apply(variable_list&& gradients) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!gradients[0].defined()) return variable_list(2);
    const at::Tensor gate = saved_[0].unpack(), up = saved_[1].unpack();
    auto [dgate, dup] = at::GradMode::is_enabled() ? ComposedBackward(gradients[0], gate, up)
                                                   : CallBackward(gradients[0], gate, up);
    return {dgate, dup};
  }
};

at::Tensor WithGradients(const at::Tensor& gate, const at::Tensor& up) {
  if (!HasKernels(gate)) return Composed(gate, up);
  base::NodePointer<SwigluBackward> node;
  if (torch::autograd::compute_requires_grad(gate, up))
    node = base::MakeNode<SwigluBackward>(gate, up);
  const at::Tensor y = base::BelowAutograd([&] { return Call(gate, up); });
  if (node != nullptr) torch::autograd::set_history(y, node);
  return y;
}

TORCH_LIBRARY_FRAGMENT(lockstep, library) {
  library.def("swiglu(Tensor gate, Tensor up) -> Tensor");
  library.def("swiglu_backward(Tensor dy, Tensor gate, Tensor up) -> (Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(lockstep, CPU, library) {
  library.impl("swiglu", ByKernel);
  library.impl("swiglu_backward", BackwardByKernel);
}
TORCH_LIBRARY_IMPL(lockstep, CUDA, library) {
  library.impl("swiglu", ByKernel);
  library.impl("swiglu_backward", BackwardByKernel);
}
TORCH_LIBRARY_IMPL(lockstep, Meta, library) {
  library.impl("swiglu", OnMeta);
  library.impl("swiglu_backward", BackwardOnMeta);
}
TORCH_LIBRARY_IMPL(lockstep, CompositeExplicitAutograd, library) {
  library.impl("swiglu", Composed);
  library.impl("swiglu_backward", ComposedBackward);
}
TORCH_LIBRARY_IMPL(lockstep, Autograd, library) { library.impl("swiglu", WithGradients); }

}  // namespace

at::Tensor Swiglu(const at::Tensor& gate, const at::Tensor& up) { return Call(gate, up); }

}  // namespace lockstep::kernels
