#include "kernels/cross_entropy/cross_entropy.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>

#include "ATen/MemoryOverlap.h"
#include "ATen/TensorOperators.h"
#include "ATen/autocast_mode.h"
#include "ATen/core/Reduction.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/ones_like.h"
#include "ATen/ops/zeros_like.h"
#include "base/torch/operators.h"
#include "base/torch/versions/node.h"
#include "c10/core/DeviceGuard.h"
#include "c10/util/Exception.h"
#include "kernels/aten/instruction_set.h"
#include "kernels/aten/parallel.h"
#include "kernels/cross_entropy/loss_rows.h"
#include "kernels/inputs.h"
#include "torch/csrc/autograd/function.h"
#include "torch/csrc/autograd/functions/utils.h"
#include "torch/library.h"

namespace lockstep::kernels {

// One of cross_entropy_cpu.cc's compilations each.
LOCKSTEP_DECLARE_COMPILATIONS(LossKernels kLossKernels)

namespace {

using torch::autograd::variable_list;
using Optional = std::optional<at::Tensor>;
using Results = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

bool Has(const Optional& x) { return x.has_value() && x->defined(); }

// The operators' arguments next to tensors.
struct Numbers {
  int64_t ignore_index;
  double label_smoothing, z_loss;
};

at::ScalarType WideOf(const at::Tensor& logits) {
  return logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

Results Call(const at::Tensor& logits, const at::Tensor& target, const Optional& weight,
             const Numbers& n, bool entropy) {
  static const auto op =
      base::FindOperator<Results(const at::Tensor&, const at::Tensor&, const Optional&, int64_t,
                                 double, double, bool)>("lockstep::cross_entropy");
  return op.call(logits, target, weight, n.ignore_index, n.label_smoothing, n.z_loss, entropy);
}

at::Tensor CallBackward(const at::Tensor& logits, const at::Tensor& target, const Optional& weight,
                        const Numbers& n, const at::Tensor& lse, const Optional& entropy,
                        const Optional& dloss, const Optional& dlse, const Optional& dentropy) {
  static const auto op = base::FindOperator<at::Tensor(
      const at::Tensor&, const at::Tensor&, const Optional&, int64_t, double, double,
      const at::Tensor&, const Optional&, const Optional&, const Optional&, const Optional&)>(
      "lockstep::cross_entropy_backward");
  return op.call(logits, target, weight, n.ignore_index, n.label_smoothing, n.z_loss, lse, entropy,
                 dloss, dlse, dentropy);
}

// --- Checks

void Check(const at::Tensor& logits, const at::Tensor& target, const Optional& weight,
           const Numbers& n) {
  CheckFloating("cross_entropy", "logits", logits);
  const auto sizes = logits.sym_sizes();
  TORCH_CHECK_VALUE(sizes.back() > 0, "cross_entropy: logits must have at least one class, got ",
                    sizes);
  TORCH_CHECK_VALUE(
      target.scalar_type() == at::kLong && target.sym_sizes() == sizes.slice(0, sizes.size() - 1),
      "cross_entropy: target must be int64 ", sizes.slice(0, sizes.size() - 1), " for logits ",
      sizes, ", got ", target.scalar_type(), " ", target.sym_sizes());
  TORCH_CHECK_VALUE(target.device() == logits.device(), "cross_entropy: target is on ",
                    target.device(), ", but logits are on ", logits.device(), "; move one of them");
  TORCH_CHECK_VALUE(n.label_smoothing >= 0 && n.label_smoothing <= 1,
                    "cross_entropy: label_smoothing must be from 0 to 1, got ", n.label_smoothing);
  TORCH_CHECK_VALUE(n.z_loss >= 0 && std::isfinite(n.z_loss),
                    "cross_entropy: z_loss must be a finite number of at least 0, got ", n.z_loss);
  if (!Has(weight)) return;
  TORCH_CHECK_VALUE(weight->sym_sizes() == target.sym_sizes() &&
                        weight->scalar_type() == WideOf(logits) &&
                        weight->device() == logits.device(),
                    "cross_entropy: weight must be ", WideOf(logits), " ", target.sym_sizes(),
                    " on ", logits.device(), ", got ", weight->scalar_type(), " ",
                    weight->sym_sizes(), " on ", weight->device());
  TORCH_CHECK_VALUE(
      !weight->requires_grad() || !at::GradMode::is_enabled(),
      "cross_entropy: weight gets no gradient; detach it, or multiply the loss by it");
}

// Throws for a label on the CPU that is not in the vocabulary.
void CheckLabels(const at::Tensor& labels, int64_t size, int64_t ignore_index) {
  const int64_t* const label = labels.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < labels.numel(); ++i) {
    TORCH_CHECK_INDEX((label[i] >= 0 && label[i] < size) || label[i] == ignore_index,
                      "cross_entropy: target ", label[i], " of row ", i,
                      " is out of bounds: the logits have ", size, " classes, 0 to ", size - 1,
                      ", and ignore_index is ", ignore_index);
  }
}

// --- ATen's operators, which have gradients of gradients

struct Parts {
  at::Tensor ignored;  // [..., 1]
  at::Tensor index;    // [..., 1]; 0 where a label is ignored
  at::Tensor z;        // [..., size]
  at::Tensor lse;      // [..., 1]
  at::Tensor log_p;    // [..., size]; z - lse would lose digits of large logits

  Parts(const at::Tensor& logits, const at::Tensor& target, int64_t ignore_index)
      : ignored(target.eq(ignore_index).unsqueeze(-1)),
        index(target.unsqueeze(-1).masked_fill(ignored, 0)),
        z(logits.to(WideOf(logits))),
        lse(z.logsumexp(-1, /*keepdim=*/true)),
        log_p(z.log_softmax(-1)) {}

  // Returns log_p as a factor of p. p is 0 at the bound, and 0 times -infinity would be NaN.
  at::Tensor BoundedLogP() const { return log_p.clamp_min(-1e4); }

  at::Tensor Counted(const at::Tensor& x) const { return x.masked_fill(ignored, 0); }
};

Results Composed(const at::Tensor& logits, const at::Tensor& target, const Optional& weight,
                 int64_t ignore_index, double label_smoothing, double z_loss, bool entropy) {
  Check(logits, target, weight, {ignore_index, label_smoothing, z_loss});
  const Parts parts(logits, target, ignore_index);
  const at::Tensor& log_p = parts.log_p;
  at::Tensor loss;
  // 0 times the infinite loss of a label at -infinity would be NaN.
  if (label_smoothing < 1) loss = log_p.gather(-1, parts.index) * (label_smoothing - 1);
  if (label_smoothing > 0) {
    const at::Tensor smooth = log_p.mean(-1, /*keepdim=*/true) * -label_smoothing;
    loss = loss.defined() ? loss + smooth : smooth;
  }
  if (z_loss > 0) loss = loss + parts.lse.square() * z_loss;
  if (Has(weight)) loss = loss * weight->unsqueeze(-1);
  const at::Tensor own =
      entropy ? parts.Counted(-(log_p.exp() * parts.BoundedLogP()).sum(-1, true)).squeeze(-1)
              : at::empty({0}, parts.z.options());
  return {parts.Counted(loss).squeeze(-1), parts.Counted(parts.lse).squeeze(-1).to(at::kDouble),
          own};
}

at::Tensor ComposedBackward(const at::Tensor& logits, const at::Tensor& target,
                            const Optional& weight, int64_t ignore_index, double label_smoothing,
                            double z_loss, const at::Tensor&, const Optional&,
                            const Optional& dloss, const Optional& dlse, const Optional& dentropy) {
  const Parts parts(logits, target, ignore_index);
  const at::Tensor p = parts.log_p.exp();
  at::Tensor gradient = at::zeros_like(parts.z);
  if (Has(dloss)) {
    at::Tensor of_loss = dloss->unsqueeze(-1);
    if (Has(weight)) of_loss = of_loss * weight->unsqueeze(-1);
    gradient = p * (of_loss * (1 + parts.lse * (2 * z_loss)));
    gradient = gradient.scatter_add(-1, parts.index, of_loss * (label_smoothing - 1));
    if (label_smoothing > 0) gradient = gradient - of_loss * label_smoothing / parts.z.sym_size(-1);
  }
  if (Has(dlse)) gradient = gradient + p * dlse->unsqueeze(-1).to(p.scalar_type());
  if (Has(dentropy)) {
    const at::Tensor log_p = parts.BoundedLogP(), mean = (p * log_p).sum(-1, /*keepdim=*/true);
    gradient = gradient - p * (log_p - mean) * dentropy->unsqueeze(-1);
  }
  return parts.Counted(gradient).to(logits.scalar_type());
}

at::Tensor ComposedInPlace(at::Tensor& logits, const at::Tensor& target, const Optional& weight,
                           int64_t ignore_index, double label_smoothing, double z_loss) {
  const auto [loss, lse, entropy] =
      Composed(logits, target, weight, ignore_index, label_smoothing, z_loss, false);
  logits.copy_(ComposedBackward(logits, target, weight, ignore_index, label_smoothing, z_loss, lse,
                                std::nullopt, at::ones_like(loss), std::nullopt, std::nullopt));
  return loss;
}

// --- The kernels

// Returns the kernels for GPUs, or nullptr where the program has none.
const LossKernels* CudaKernels() {
  // The library of the kernels is loaded before the first tensor on a GPU exists.
  static const LossKernels* const kernels = []() -> const LossKernels* {
    const auto op = c10::Dispatcher::singleton().findSchema({"lockstep::loss_kernels_of_cuda", ""});
    if (!op.has_value()) return nullptr;
    return reinterpret_cast<const LossKernels*>(op->typed<int64_t()>().call());
  }();
  return kernels;
}

// nn.use_fused(false) turns the kernels off.
std::atomic<bool> kernels_are_on = true;

bool HasKernel(const at::Tensor& logits) {
  return kernels_are_on && (logits.is_cpu() || (logits.is_cuda() && CudaKernels() != nullptr));
}

template <typename Rows>
void RunKernel(const at::Tensor& logits,
               void (*LossKernels::*kernel)(const Rows&, int64_t, int64_t), const Rows& rows) {
  const int64_t size = logits.size(-1), count = logits.numel() / size;
  if (count == 0) return;
  if (logits.is_cuda()) {
    const c10::DeviceGuard guard(logits.device());
    return (CudaKernels()->*kernel)(rows, 0, count);
  }
  const LossKernels& kernels = LOCKSTEP_CHOSEN_COMPILATION(kLossKernels);
  ParallelFor(count, std::max<int64_t>(1, kGrain / size),
              [&](int64_t begin, int64_t end) { (kernels.*kernel)(rows, begin, end); });
}

// The inputs of a kernel, dense enough for it.
struct Inputs {
  RowView logits;
  at::Tensor target, weight;

  Inputs(const at::Tensor& given, const at::Tensor& labels, const Optional& factors)
      : logits(RowsOf(given)), target(labels.contiguous()) {
    if (Has(factors)) weight = factors->contiguous();
  }

  LossRows Rows(const Numbers& n) const {
    return {.dtype = logits.tensor.scalar_type(),
            .size = logits.tensor.size(-1),
            .logits = logits.data(),
            .stride = logits.stride,
            .target = target.const_data_ptr<int64_t>(),
            .ignore_index = n.ignore_index,
            .label_smoothing = n.label_smoothing,
            .z_loss = n.z_loss,
            .weight = weight.defined() ? weight.const_data_ptr() : nullptr,
            .loss = nullptr,
            .lse = nullptr,
            .entropy = nullptr,
            .gradient = nullptr};
  }
};

// Runs the losses' kernel. `gradient`: where it writes theirs, in place of the logits, or nullptr.
Results Losses(const at::Tensor& logits, const Inputs& inputs, const Numbers& n, bool entropy,
               void* gradient) {
  if (logits.is_cpu()) CheckLabels(inputs.target, logits.size(-1), n.ignore_index);
  const auto wide = logits.options().dtype(WideOf(logits));
  const at::Tensor loss = at::empty(inputs.target.sizes(), wide);
  const at::Tensor lse = at::empty(inputs.target.sizes(), wide.dtype(at::kDouble));
  const at::Tensor own = entropy ? at::empty(inputs.target.sizes(), wide) : at::empty({0}, wide);
  LossRows rows = inputs.Rows(n);
  rows.loss = loss.mutable_data_ptr();
  rows.lse = lse.mutable_data_ptr<double>();
  rows.entropy = entropy ? own.mutable_data_ptr() : nullptr;
  rows.gradient = gradient;
  RunKernel(logits, &LossKernels::losses, rows);
  return {loss, lse, own};
}

Results ByKernel(const at::Tensor& logits, const at::Tensor& target, const Optional& weight,
                 int64_t ignore_index, double label_smoothing, double z_loss, bool entropy) {
  if (!HasKernel(logits))
    return Composed(logits, target, weight, ignore_index, label_smoothing, z_loss, entropy);
  const Numbers n = {ignore_index, label_smoothing, z_loss};
  Check(logits, target, weight, n);
  return Losses(logits, Inputs(logits, target, weight), n, entropy, nullptr);
}

at::Tensor InPlaceByKernel(at::Tensor& logits, const at::Tensor& target, const Optional& weight,
                           int64_t ignore_index, double label_smoothing, double z_loss) {
  const Numbers n = {ignore_index, label_smoothing, z_loss};
  Check(logits, target, weight, n);
  at::assert_no_internal_overlap(logits);  // a row's gradient would become the next row's logits
  const Inputs inputs(logits, target, weight);
  // A copy of logits that lie otherwise would get the gradient.
  if (!HasKernel(logits) || !inputs.logits.tensor.is_same(logits))
    return ComposedInPlace(logits, target, weight, ignore_index, label_smoothing, z_loss);
  return std::get<0>(Losses(logits, inputs, n, false, logits.mutable_data_ptr()));
}

// A gradient of each row: dense, or one number for all.
struct RowGradients {
  at::Tensor tensor;

  RowGradients(const Optional& given, at::ScalarType dtype) {
    if (!Has(given)) return;
    tensor = given->to(dtype);
    if (IsOne()) return;
    tensor = tensor.contiguous();
  }
  // Returns whether it is a number that a sum expanded to all rows.
  bool IsOne() const {
    return std::all_of(tensor.strides().begin(), tensor.strides().end(),
                       [](int64_t stride) { return stride == 0; });
  }
  const void* data() const { return tensor.defined() ? tensor.const_data_ptr() : nullptr; }
  int64_t stride() const { return tensor.defined() && !IsOne() ? 1 : 0; }
};

at::Tensor BackwardByKernel(const at::Tensor& logits, const at::Tensor& target,
                            const Optional& weight, int64_t ignore_index, double label_smoothing,
                            double z_loss, const at::Tensor& lse, const Optional& entropy,
                            const Optional& dloss, const Optional& dlse, const Optional& dentropy) {
  if (!HasKernel(logits))
    return ComposedBackward(logits, target, weight, ignore_index, label_smoothing, z_loss, lse,
                            entropy, dloss, dlse, dentropy);
  const Numbers n = {ignore_index, label_smoothing, z_loss};
  Check(logits, target, weight, n);
  TORCH_CHECK_VALUE(
      lse.scalar_type() == at::kDouble && lse.is_contiguous() && lse.sizes() == target.sizes(),
      "cross_entropy_backward: lse must be forward's");
  TORCH_CHECK_VALUE(!Has(dentropy) || (Has(entropy) && entropy->is_contiguous() &&
                                       entropy->sizes() == target.sizes()),
                    "cross_entropy_backward: entropy must be forward's");
  const at::Tensor dlogits = at::empty(logits.sizes(), logits.options());
  const Inputs inputs(logits, target, weight);
  if (logits.is_cpu()) CheckLabels(inputs.target, logits.size(-1), ignore_index);
  const at::ScalarType wide = WideOf(logits);
  const RowGradients of_loss(dloss, wide), of_lse(dlse, wide), of_entropy(dentropy, wide);
  LossGradientRows rows = {.rows = inputs.Rows(n),
                           .dloss = of_loss.data(),
                           .dloss_stride = of_loss.stride(),
                           .dlse = of_lse.data(),
                           .dlse_stride = of_lse.stride(),
                           .dentropy = of_entropy.data(),
                           .dentropy_stride = of_entropy.stride(),
                           .dlogits = dlogits.mutable_data_ptr()};
  // The kernel reads what forward wrote.
  rows.rows.lse = const_cast<double*>(lse.const_data_ptr<double>());
  rows.rows.entropy = Has(entropy) ? const_cast<void*>(entropy->const_data_ptr()) : nullptr;
  RunKernel(logits, &LossKernels::gradients, rows);
  return dlogits;
}

Results OnMeta(const at::Tensor& logits, const at::Tensor& target, const Optional& weight,
               int64_t ignore_index, double label_smoothing, double z_loss, bool entropy) {
  Check(logits, target, weight, {ignore_index, label_smoothing, z_loss});
  const auto wide = logits.options().dtype(WideOf(logits));
  const auto sizes = target.sym_sizes();
  return {at::empty_symint(sizes, wide), at::empty_symint(sizes, wide.dtype(at::kDouble)),
          entropy ? at::empty_symint(sizes, wide) : at::empty({0}, wide)};
}

at::Tensor InPlaceOnMeta(at::Tensor& logits, const at::Tensor& target, const Optional&, int64_t,
                         double, double) {
  return at::empty_symint(target.sym_sizes(), logits.options().dtype(WideOf(logits)));
}

at::Tensor BackwardOnMeta(const at::Tensor& logits, const at::Tensor&, const Optional&, int64_t,
                          double, double, const at::Tensor&, const Optional&, const Optional&,
                          const Optional&, const Optional&) {
  return at::empty_symint(logits.sym_sizes(), logits.options());
}

// --- Gradients

class CrossEntropyBackward final : public base::SavingNode<5> {
 public:
  CrossEntropyBackward(const at::Tensor& logits, const at::Tensor& target, const at::Tensor& weight,
                       const Numbers& numbers, const at::Tensor& lse, const at::Tensor& entropy)
      : SavingNode(torch::autograd::collect_next_edges(logits), logits, target, weight, lse,
                   entropy),
        numbers_(numbers) {}

  std::string name() const override { return "CrossEntropyBackward"; }

  variable_list apply(variable_list&& gradients) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!gradients[0].defined() && !gradients[1].defined() && !gradients[2].defined())
      return variable_list(1);
    const at::Tensor logits = saved_[0].unpack(), target = saved_[1].unpack();
    const auto optional = [](const at::Tensor& x) {
      return x.defined() ? Optional(x) : Optional();
    };
    const Optional weight = optional(saved_[2].unpack()), entropy = optional(saved_[4].unpack());
    const Optional dloss = optional(gradients[0]), dlse = optional(gradients[1]),
                   dentropy = optional(gradients[2]);
    const at::Tensor lse = saved_[3].unpack();
    if (!at::GradMode::is_enabled())
      return {CallBackward(logits, target, weight, numbers_, lse, entropy, dloss, dlse, dentropy)};
    return {ComposedBackward(logits, target, weight, numbers_.ignore_index,
                             numbers_.label_smoothing, numbers_.z_loss, lse, entropy, dloss, dlse,
                             dentropy)};
  }

 private:
  const Numbers numbers_;
};

Results WithGradients(const at::Tensor& logits, const at::Tensor& target, const Optional& weight,
                      int64_t ignore_index, double label_smoothing, double z_loss, bool entropy) {
  const Numbers numbers = {ignore_index, label_smoothing, z_loss};
  if (!HasKernel(logits) && !logits.is_meta())
    return Composed(logits, target, weight, ignore_index, label_smoothing, z_loss, entropy);
  auto [loss, lse, own] =
      base::BelowAutograd([&] { return Call(logits, target, weight, numbers, entropy); });
  if (torch::autograd::compute_requires_grad(logits)) {
    // Detached: a node that held its own results would never be freed.
    const auto node = base::MakeNode<CrossEntropyBackward>(
        logits, target, Has(weight) ? *weight : at::Tensor(), numbers, lse.detach(),
        entropy ? own.detach() : at::Tensor());
    torch::autograd::set_history(loss, node);
    torch::autograd::set_history(lse, node);
    torch::autograd::set_history(own, node);  // also if empty: the node has three results
  }
  return {loss, lse, own};
}

at::Tensor InPlaceWithoutGradients(at::Tensor& logits, const at::Tensor& target,
                                   const Optional& weight, int64_t ignore_index,
                                   double label_smoothing, double z_loss) {
  TORCH_CHECK_VALUE(!torch::autograd::compute_requires_grad(logits),
                    "cross_entropy_with_gradient_: logits require a gradient, and would be "
                    "overwritten; detach them, or call cross_entropy");
  static const auto op =
      base::FindOperator<at::Tensor(at::Tensor&, const at::Tensor&, const Optional&, int64_t,
                                    double, double)>("lockstep::cross_entropy_with_gradient_");
  const at::AutoDispatchBelowAutograd below;
  at::Tensor loss = op.call(logits, target, weight, ignore_index, label_smoothing, z_loss);
  if (!logits.is_inference()) logits.unsafeGetTensorImpl()->bump_version();
  return loss;
}

// at::cross_entropy_loss. Sums and divides before it rounds to the dtype of the logits. Within
// autocast the result is float32, as ATen's is.
at::Tensor ReducedLoss(const at::Tensor& logits, const at::Tensor& target, int64_t reduction,
                       int64_t ignore_index, double label_smoothing) {
  const at::Tensor losses = std::get<0>(
      Call(logits, target, std::nullopt, {ignore_index, label_smoothing, 0}, /*entropy=*/false));
  at::Tensor loss = reduction == at::Reduction::None ? losses : losses.sum();
  if (reduction == at::Reduction::Mean) loss = loss / target.ne(ignore_index).sum();
  if (at::autocast::is_autocast_enabled(logits.device().type())) return loss;
  return loss.to(logits.scalar_type());
}

TORCH_LIBRARY_FRAGMENT(lockstep, library) {
  library.def("use_cross_entropy_kernels(bool enabled) -> ()",
              [](bool enabled) { kernels_are_on = enabled; });
  library.def("has_cross_entropy_kernel(Tensor logits) -> bool", HasKernel);
  library.def(
      "cross_entropy_loss(Tensor logits, Tensor target, int reduction=1, int ignore_index=-100, "
      "float label_smoothing=0.) -> Tensor",
      ReducedLoss);
  library.def(
      "cross_entropy(Tensor logits, Tensor target, Tensor? weight=None, int ignore_index=-100, "
      "float label_smoothing=0., float z_loss=0., bool entropy=False) -> (Tensor loss, Tensor lse, "
      "Tensor entropy)");
  library.def(
      "cross_entropy_backward(Tensor logits, Tensor target, Tensor? weight, int ignore_index, "
      "float label_smoothing, float z_loss, Tensor lse, Tensor? entropy, Tensor? dloss, Tensor? "
      "dlse, Tensor? dentropy) -> Tensor");
  library.def(
      "cross_entropy_with_gradient_(Tensor(a!) logits, Tensor target, Tensor? weight=None, int "
      "ignore_index=-100, float label_smoothing=0., float z_loss=0.) -> Tensor");
}
TORCH_LIBRARY_IMPL(lockstep, CPU, library) {
  library.impl("cross_entropy", ByKernel);
  library.impl("cross_entropy_backward", BackwardByKernel);
  library.impl("cross_entropy_with_gradient_", InPlaceByKernel);
}
TORCH_LIBRARY_IMPL(lockstep, CUDA, library) {
  library.impl("cross_entropy", ByKernel);
  library.impl("cross_entropy_backward", BackwardByKernel);
  library.impl("cross_entropy_with_gradient_", InPlaceByKernel);
}
TORCH_LIBRARY_IMPL(lockstep, Meta, library) {
  library.impl("cross_entropy", OnMeta);
  library.impl("cross_entropy_backward", BackwardOnMeta);
  library.impl("cross_entropy_with_gradient_", InPlaceOnMeta);
}
TORCH_LIBRARY_IMPL(lockstep, CompositeExplicitAutograd, library) {
  library.impl("cross_entropy", Composed);
  library.impl("cross_entropy_backward", ComposedBackward);
  library.impl("cross_entropy_with_gradient_", ComposedInPlace);
}
TORCH_LIBRARY_IMPL(lockstep, Autograd, library) {
  library.impl("cross_entropy", WithGradients);
  library.impl("cross_entropy_with_gradient_", InPlaceWithoutGradients);
}

}  // namespace

TokenLosses CrossEntropy(const at::Tensor& logits, const at::Tensor& target,
                         const LossOptions& options, bool with_entropy) {
  auto [loss, lse, entropy] =
      Call(logits, target, options.weight,
           {options.ignore_index, options.label_smoothing, options.z_loss}, with_entropy);
  return {.loss = loss, .lse = lse, .entropy = entropy};
}

at::Tensor CrossEntropyWithGradient(const at::Tensor& logits, const at::Tensor& target,
                                    const LossOptions& options) {
  static const auto op =
      base::FindOperator<at::Tensor(at::Tensor&, const at::Tensor&, const Optional&, int64_t,
                                    double, double)>("lockstep::cross_entropy_with_gradient_");
  at::Tensor written = logits;
  return op.call(written, target, options.weight, options.ignore_index, options.label_smoothing,
                 options.z_loss);
}

}  // namespace lockstep::kernels
