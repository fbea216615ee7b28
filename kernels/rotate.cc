#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "ATen/Dispatch.h"
#include "ATen/TensorOperators.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/addcmul.h"
#include "ATen/ops/cos.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/roll.h"
#include "ATen/ops/sin.h"
#include "base/torch/operators.h"
#include "base/torch/versions/node.h"
#include "kernels/aten/parallel.h"
#include "kernels/inputs.h"
#include "kernels/kernels.h"
#include "kernels/rows.h"
#include "torch/csrc/autograd/function.h"
#include "torch/csrc/autograd/functions/utils.h"
#include "torch/library.h"

namespace lockstep::kernels {
namespace {

using torch::autograd::variable_list;
using Signature = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&);

at::Tensor Call(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  static const auto op = base::FindOperator<Signature>("lockstep::rotate");
  return op.call(x, cos, sin);
}

at::Tensor CallBackward(const at::Tensor& dy, const at::Tensor& cos, const at::Tensor& sin) {
  static const auto op = base::FindOperator<Signature>("lockstep::rotate_backward");
  return op.call(dy, cos, sin);
}

void Check(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  CheckFloating("rotate", "x", x);
  TORCH_CHECK_VALUE(x.dim() >= 2 && x.sym_size(-1) % 2 == 0,
                    "rotate: x must have shape [..., heads, size] with an even size, got ",
                    x.sym_sizes());
  std::vector<c10::SymInt> expected = x.sym_sizes().vec();
  expected[expected.size() - 2] = 1;
  TORCH_CHECK_VALUE(cos.sym_sizes() == expected && sin.sym_sizes() == expected,
                    "rotate: cos and sin must have shape ", c10::SymIntArrayRef(expected),
                    ", because x has shape ", x.sym_sizes(), "; got ", cos.sym_sizes(), " and ",
                    sin.sym_sizes());
  CheckAlike("rotate", "cos", cos, "sin", sin);
  TORCH_CHECK_VALUE(cos.device() == x.device(), "rotate: cos is on ", cos.device(),
                    ", but x is on ", x.device(), "; move one of them");
  TORCH_CHECK_VALUE(
      cos.scalar_type() == x.scalar_type() ||
          (cos.scalar_type() == at::kFloat && at::isReducedFloatingType(x.scalar_type())),
      "rotate: cos and sin are ", cos.scalar_type(), ", but x is ", x.scalar_type(),
      "; they must have x's dtype, or be float32 where x is float16 or bfloat16");
}

// --- ATen's operators

at::Tensor Composed(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  Check(x, cos, sin);
  const at::Tensor wide = x.to(cos.scalar_type());
  return at::addcmul(wide * cos, at::roll(wide, x.size(-1) / 2, -1), sin).to(x.scalar_type());
}

at::Tensor ComposedBackward(const at::Tensor& dy, const at::Tensor& cos, const at::Tensor& sin) {
  return Composed(dy, cos, at::roll(sin, sin.size(-1) / 2, -1));
}

// --- The kernels

at::Tensor Run(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool backward) {
  Check(x, cos, sin);
  const at::Tensor y = at::empty(x.sizes(), x.options());
  if (y.numel() == 0) return y;
  const bool is_dense = x.is_contiguous() || (x.dim() == 3 && x.stride(-1) == 1);
  const at::Tensor xs = is_dense ? x : x.contiguous();
  const at::Tensor dense_cos = cos.contiguous(), dense_sin = sin.contiguous();
  const int64_t heads = x.size(-2), size = x.size(-1);
  const RotateRows rows = {
      .dtype = x.scalar_type(),
      .wide_angles = cos.scalar_type() != x.scalar_type(),
      .heads = heads,
      .size = size,
      .x = xs.const_data_ptr(),
      .token_stride = xs.is_contiguous() ? heads * size : xs.stride(0),
      .head_stride = xs.is_contiguous() ? size : xs.stride(1),
      .cos = dense_cos.const_data_ptr(),
      .sin = dense_sin.const_data_ptr(),
      .backward = backward,
      .y = y.mutable_data_ptr(),
  };
  Launch(y, &RowKernels::rotate, rows, y.numel() / size, std::max<int64_t>(1, kGrain / size));
  return y;
}

at::Tensor ByKernel(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  if (!HasKernels(x)) return Composed(x, cos, sin);
  return Run(x, cos, sin, /*backward=*/false);
}

at::Tensor BackwardByKernel(const at::Tensor& dy, const at::Tensor& cos, const at::Tensor& sin) {
  if (!HasKernels(dy)) return ComposedBackward(dy, cos, sin);
  return Run(dy, cos, sin, /*backward=*/true);
}

at::Tensor OnMeta(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  Check(x, cos, sin);
  return at::empty_symint(x.sym_sizes(), x.options());
}

// --- Gradients

class RotateBackward final : public base::SavingNode<2> {
 public:
  RotateBackward(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin)
      : SavingNode(torch::autograd::collect_next_edges(x), cos, sin) {}

  std::string name() const override { return "RotateBackward"; }

  variable_list apply(variable_list&& gradients) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!gradients[0].defined()) return variable_list(1);
    const auto backward = at::GradMode::is_enabled() ? ComposedBackward : CallBackward;
    return {backward(gradients[0], saved_[0].unpack(), saved_[1].unpack())};
  }
};

at::Tensor WithGradients(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  TORCH_CHECK_VALUE(!torch::autograd::compute_requires_grad(cos, sin),
                    "rotate: cos or sin requires a gradient, which rotate does not compute; "
                    "detach them");
  if (!HasKernels(x)) return Composed(x, cos, sin);
  base::NodePointer<RotateBackward> node;
  if (torch::autograd::compute_requires_grad(x)) node = base::MakeNode<RotateBackward>(x, cos, sin);
  const at::Tensor y = base::BelowAutograd([&] { return Call(x, cos, sin); });
  if (node != nullptr) torch::autograd::set_history(y, node);
  return y;
}

// --- Angles

using Pair = std::tuple<at::Tensor, at::Tensor>;

// Writes each cosine and sine twice, the first sine negated.
template <typename T>
void WriteTurns(const at::Tensor& cosines, const at::Tensor& sines, float factor, T* cos, T* sin) {
  const int64_t half = cosines.size(-1);
  const float *cosine = cosines.const_data_ptr<float>(), *sine = sines.const_data_ptr<float>();
  ParallelFor(cosines.numel(), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i / half * 2 * half + i % half, second = first + half;
      cos[first] = cos[second] = static_cast<T>(cosine[i] * factor);
      sin[first] = static_cast<T>(-sine[i] * factor);
      sin[second] = static_cast<T>(sine[i] * factor);
    }
  });
}

Pair TurnsOf(const at::Tensor& angles, double factor, at::ScalarType dtype) {
  TORCH_CHECK_VALUE(angles.dim() >= 1 && angles.scalar_type() == at::kFloat,
                    "turns_of: angles must be float32 of shape [..., size / 2], got ",
                    angles.scalar_type(), " of shape ", angles.sizes());
  TORCH_CHECK_VALUE(!torch::autograd::compute_requires_grad(angles),
                    "turns_of: angles require a gradient, which it does not compute");
  std::vector<int64_t> sizes = angles.sizes().vec();
  sizes.back() *= 2;
  sizes.insert(sizes.end() - 1, 1);
  const at::Tensor cos = at::empty(sizes, angles.options().dtype(dtype));
  const at::Tensor sin = at::empty(sizes, angles.options().dtype(dtype));
  const at::Tensor dense = angles.contiguous(), cosines = at::cos(dense), sines = at::sin(dense);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, dtype, "turns_of", [&] {
    WriteTurns(cosines, sines, static_cast<float>(factor), cos.mutable_data_ptr<scalar_t>(),
               sin.mutable_data_ptr<scalar_t>());
  });
  return {cos, sin};
}

TORCH_LIBRARY_FRAGMENT(lockstep, library) {
  library.def("rotate(Tensor x, Tensor cos, Tensor sin) -> Tensor");
  library.def(
      "turns_of(Tensor angles, float factor, ScalarType dtype) -> (Tensor cos, Tensor sin)");
  library.def("rotate_backward(Tensor dy, Tensor cos, Tensor sin) -> Tensor");
}
TORCH_LIBRARY_IMPL(lockstep, CPU, library) {
  library.impl("turns_of", TurnsOf);
  library.impl("rotate", ByKernel);
  library.impl("rotate_backward", BackwardByKernel);
}
TORCH_LIBRARY_IMPL(lockstep, CUDA, library) {
  library.impl("rotate", ByKernel);
  library.impl("rotate_backward", BackwardByKernel);
}
TORCH_LIBRARY_IMPL(lockstep, Meta, library) {
  library.impl("rotate", OnMeta);
  library.impl("rotate_backward", OnMeta);
}
TORCH_LIBRARY_IMPL(lockstep, CompositeExplicitAutograd, library) {
  library.impl("rotate", Composed);
  library.impl("rotate_backward", ComposedBackward);
}
TORCH_LIBRARY_IMPL(lockstep, Autograd, library) { library.impl("rotate", WithGradients); }

}  // namespace

at::Tensor Rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  return Call(x, cos, sin);
}

}  // namespace lockstep::kernels
