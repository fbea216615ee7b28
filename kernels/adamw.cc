#include "kernels/adamw.h"

#include <cstdint>
#include <optional>
#include <vector>

#include "base/torch/operators.h"
#include "c10/util/Exception.h"
#include "kernels/aten/private_operators.h"
#include "kernels/inputs.h"
#include "kernels/rows.h"
#include "torch/library.h"

namespace lockstep::kernels {
namespace {

using Number = std::optional<at::Tensor>;
using Signature = void(at::TensorList, at::TensorList, at::TensorList, at::TensorList,
                       at::TensorList, at::TensorList, at::IntArrayRef, double, const Number&,
                       double, double, double, double, const Number&);

void CheckLength(const char* name, size_t length, size_t expected) {
  TORCH_CHECK_VALUE(length == expected, "adamw_: expected ", expected, " ", name,
                    ", one for each parameter, got ", length);
}

// Checks one tensor of parameter `i`.
void CheckTensor(const char* name, size_t i, const at::Tensor& x, const at::Tensor& param,
                 bool is_dtype_good) {
  TORCH_CHECK_VALUE(is_dtype_good, "adamw_: ", name, " ", i, " is ", x.scalar_type(),
                    ", which does not go with a parameter of ", param.scalar_type());
  TORCH_CHECK_VALUE(x.device() == param.device(), "adamw_: ", name, " ", i, " is on ", x.device(),
                    ", but its parameter is on ", param.device());
  // Where a dimension has size 1, its stride says nothing: both may be contiguous.
  TORCH_CHECK_VALUE(
      x.sizes() == param.sizes() &&
          (x.strides() == param.strides() || (x.is_contiguous() && param.is_contiguous())),
      "adamw_: ", name, " ", i, " must have the shape ", param.sizes(), " and the strides ",
      param.strides(), " of its parameter, got ", x.sizes(), " and ", x.strides());
}

void Check(const AdamWLists& lists) {
  const size_t count = lists.params.size();
  CheckLength("gradients", lists.grads.size(), count);
  CheckLength("exp_avgs", lists.exp_avgs.size(), count);
  CheckLength("exp_avg_sqs", lists.exp_avg_sqs.size(), count);
  CheckLength("steps", lists.steps.size(), count);
  if (!lists.masters.empty()) CheckLength("masters", lists.masters.size(), count);
  if (!lists.salts.empty()) CheckLength("salts", lists.salts.size(), count);
  for (size_t i = 0; i < count; ++i) {
    const at::Tensor& param = lists.params[i];
    const at::ScalarType dtype = param.scalar_type(), moment = lists.exp_avgs[i].scalar_type();
    const bool is_low = at::isReducedFloatingType(dtype);
    CheckTensor("parameter", i, param, param,
                is_low || dtype == at::kFloat || dtype == at::kDouble);
    TORCH_CHECK_VALUE(param.device() == lists.params[0].device(), "adamw_: parameter ", i,
                      " is on ", param.device(), ", but parameter 0 is on ",
                      lists.params[0].device());
    TORCH_CHECK_VALUE(param.is_non_overlapping_and_dense(), "adamw_: parameter ", i,
                      " is a slice of a larger tensor; make it a clone");
    const at::ScalarType grad = lists.grads[i].scalar_type();
    CheckTensor("gradient", i, lists.grads[i], param,
                grad == dtype || (is_low && grad == at::kFloat));
    CheckTensor(
        "exp_avg", i, lists.exp_avgs[i], param,
        dtype == at::kDouble ? moment == dtype : moment == at::kFloat || moment == at::kBFloat16);
    CheckTensor("exp_avg_sq", i, lists.exp_avg_sqs[i], param,
                lists.exp_avg_sqs[i].scalar_type() == moment);
    if (!lists.masters.empty())
      CheckTensor("master", i, lists.masters[i], param,
                  is_low && lists.masters[i].scalar_type() == at::kFloat);
    const at::Tensor& step = lists.steps[i];
    TORCH_CHECK_VALUE(
        step.numel() == 1 && step.scalar_type() == at::kFloat && step.device() == param.device(),
        "adamw_: step ", i, " must be one float32 number on ", param.device(), ", got ",
        step.numel(), " of ", step.scalar_type(), " on ", step.device());
    TORCH_CHECK_VALUE(lists.salts.empty() || param.is_contiguous(), "adamw_: parameter ", i,
                      " must be contiguous, to be rounded at random");
  }
}

// Returns the number as float64 on the parameters' device, or no tensor.
at::Tensor NumberOn(const char* name, const Number& number, const at::Tensor& param) {
  if (!number.has_value() || !number->defined()) return {};
  TORCH_CHECK_VALUE(number->numel() == 1, "adamw_: ", name, " must be one number, got shape ",
                    number->sizes());
  return number->to(param.device(), at::kDouble);
}

const double* DataOf(const at::Tensor& number) {
  return number.defined() ? number.const_data_ptr<double>() : nullptr;
}

// One launch for all, on a GPU. On a CPU a call of ATen for each would take as long as the update
// of a small parameter.
void CountStep(at::TensorList steps) {
  if (steps.empty()) return;
  if (!steps[0].is_cpu()) return AddOneToAll(steps);
  for (const at::Tensor& step : steps) {
    *step.mutable_data_ptr<float>() += 1;
    if (!step.is_inference()) step.unsafeGetTensorImpl()->bump_version();
  }
}

std::vector<AdamWTensor> Pointers(const AdamWLists& lists) {
  std::vector<AdamWTensor> tensors;
  tensors.reserve(lists.params.size());
  int64_t parts = 0;
  for (size_t i = 0; i < lists.params.size(); ++i) {
    const at::Tensor& param = lists.params[i];
    if (param.numel() == 0) continue;
    tensors.push_back({
        .dtype = param.scalar_type(),
        .grad_dtype = lists.grads[i].scalar_type(),
        .moment_dtype = lists.exp_avgs[i].scalar_type(),
        .param = param.mutable_data_ptr(),
        .grad = lists.grads[i].const_data_ptr(),
        .exp_avg = lists.exp_avgs[i].mutable_data_ptr(),
        .exp_avg_sq = lists.exp_avg_sqs[i].mutable_data_ptr(),
        .master = lists.masters.empty() ? nullptr : lists.masters[i].mutable_data_ptr(),
        .step = lists.steps[i].const_data_ptr<float>(),
        .salt = lists.salts.empty() ? -1 : lists.salts[i],
        .numel = param.numel(),
        .first_part = parts,
    });
    parts += (param.numel() + kNumbersOfPart - 1) / kNumbersOfPart;
  }
  return tensors;
}

AdamWLists MakeLists(at::TensorList params, at::TensorList grads, at::TensorList exp_avgs,
                     at::TensorList exp_avg_sqs, at::TensorList masters, at::TensorList steps,
                     at::IntArrayRef salts) {
  return {.params = params,
          .grads = grads,
          .exp_avgs = exp_avgs,
          .exp_avg_sqs = exp_avg_sqs,
          .masters = masters,
          .steps = steps,
          .salts = salts};
}

void Run(at::TensorList params, at::TensorList grads, at::TensorList exp_avgs,
         at::TensorList exp_avg_sqs, at::TensorList masters, at::TensorList steps,
         at::IntArrayRef salts, double lr, const Number& lr_factor, double beta1, double beta2,
         double weight_decay, double eps, const Number& grad_scale) {
  const AdamWLists lists = MakeLists(params, grads, exp_avgs, exp_avg_sqs, masters, steps, salts);
  Check(lists);
  TORCH_CHECK_VALUE(params.empty() || HasKernels(params[0]),
                    "adamw_: this program has no kernels for GPUs; it was built without nvcc");
  CountStep(steps);
  const std::vector<AdamWTensor> tensors = Pointers(lists);
  if (tensors.empty()) return;
  const at::Tensor factor = NumberOn("lr_factor", lr_factor, params[0]);
  const at::Tensor scale = NumberOn("grad_scale", grad_scale, params[0]);
  const AdamWTensors all = {.tensors = tensors.data(),
                            .count = static_cast<int64_t>(tensors.size()),
                            .lr = lr,
                            .beta1 = beta1,
                            .beta2 = beta2,
                            .eps = eps,
                            .weight_decay = weight_decay,
                            .lr_factor = DataOf(factor),
                            .grad_scale = DataOf(scale)};
  const AdamWTensor& last = tensors.back();
  const int64_t parts = last.first_part + (last.numel + kNumbersOfPart - 1) / kNumbersOfPart;
  Launch(params[0], &RowKernels::adamw, all, parts, 1);
  for (const at::TensorList& list : {params, exp_avgs, exp_avg_sqs, masters})
    for (const at::Tensor& tensor : list)
      if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

void OnMeta(at::TensorList params, at::TensorList grads, at::TensorList exp_avgs,
            at::TensorList exp_avg_sqs, at::TensorList masters, at::TensorList steps,
            at::IntArrayRef salts, double, const Number&, double, double, double, double,
            const Number&) {
  Check(MakeLists(params, grads, exp_avgs, exp_avg_sqs, masters, steps, salts));
}

TORCH_LIBRARY_FRAGMENT(lockstep, library) {
  library.def(
      "adamw_(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avgs, Tensor(c!)[] "
      "exp_avg_sqs, Tensor(d!)[] masters, Tensor(e!)[] steps, int[] salts, *, float lr, Tensor? "
      "lr_factor=None, float beta1, float beta2, float weight_decay, float eps, Tensor? "
      "grad_scale=None) -> ()");
  library.def("has_cuda_kernels() -> bool", [] { return CudaRowKernels() != nullptr; });
}
TORCH_LIBRARY_IMPL(lockstep, CPU, library) { library.impl("adamw_", Run); }
TORCH_LIBRARY_IMPL(lockstep, CUDA, library) { library.impl("adamw_", Run); }
TORCH_LIBRARY_IMPL(lockstep, Meta, library) { library.impl("adamw_", OnMeta); }
TORCH_LIBRARY_IMPL(lockstep, Autograd, library) {
  library.impl("adamw_", torch::CppFunction::makeFallthrough());  // an update has no gradient
}

}  // namespace

void AdamW(const AdamWLists& lists, const AdamWOptions& options) {
  static const auto op = base::FindOperator<Signature>("lockstep::adamw_");
  op.call(lists.params, lists.grads, lists.exp_avgs, lists.exp_avg_sqs, lists.masters, lists.steps,
          lists.salts, options.lr, options.lr_factor, options.beta1, options.beta2,
          options.weight_decay, options.eps, options.grad_scale);
}

}  // namespace lockstep::kernels
