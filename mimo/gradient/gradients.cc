#include "mimo/gradient/gradients.h"

#include <map>
#include <string>
#include <unordered_set>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/_foreach_mul.h"
#include "ATen/ops/_foreach_norm.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/clamp.h"
#include "ATen/ops/isfinite.h"
#include "ATen/ops/stack.h"
#include "ATen/ops/tensor.h"
#include "ATen/ops/where.h"
#include "ATen/ops/zeros.h"
#include "ATen/ops/zeros_like.h"
#include "c10/core/ScalarType.h"
#include "c10/util/Exception.h"
#include "mimo/gradient/gradient_scale.h"

namespace lockstep::mimo {
namespace {

// Gradients of one dtype and device, summed in one message.
struct Bucket {
  std::vector<at::Tensor> gradients;
  int64_t bytes = 0;
};

void Reduce(const Bucket& bucket, c10d::ProcessGroup& group, double factor) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& gradient : bucket.gradients) flat.push_back(gradient.reshape({-1}));
  const at::ScalarType type = SumType(bucket.gradients[0].scalar_type());
  std::vector<at::Tensor> sums = {at::cat(flat).to(type)};
  group.allreduce(sums)->wait();
  if (factor != 1) sums[0].mul_(factor);
  int64_t begin = 0;
  for (const at::Tensor& gradient : bucket.gradients) {
    gradient.copy_(sums[0].narrow(0, begin, gradient.numel()).view(gradient.sizes()));
    begin += gradient.numel();
  }
}

// The parameters in order, each once: two modules may share one.
class Seen {
 public:
  // Whether this is the first time.
  bool Add(const at::Tensor& parameter) {
    return seen_.insert(parameter.unsafeGetTensorImpl()).second;
  }

 private:
  std::unordered_set<const c10::TensorImpl*> seen_;
};

std::vector<at::Tensor> Distinct(const std::vector<at::Tensor>& parameters) {
  Seen seen;
  std::vector<at::Tensor> distinct;
  for (const at::Tensor& parameter : parameters) {
    if (seen.Add(parameter)) distinct.push_back(parameter);
  }
  return distinct;
}

// Whether any rank has a gradient, for each parameter: over the CPU.
std::vector<bool> HaveGradients(const std::vector<at::Tensor>& parameters,
                                c10d::ProcessGroup* group) {
  std::vector<int32_t> here;
  for (const at::Tensor& parameter : parameters) here.push_back(parameter.grad().defined() ? 1 : 0);
  std::vector<at::Tensor> any = {at::tensor(here, at::kInt)};
  if (group != nullptr && !here.empty()) {
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::MAX;
    group->allreduce(any, options)->wait();
  }
  std::vector<bool> have;
  for (size_t i = 0; i < here.size(); ++i) have.push_back(any[0].const_data_ptr<int32_t>()[i] != 0);
  return have;
}

std::vector<at::Tensor> GradientsOf(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  }
  return gradients;
}

// Shards may be in host memory while other modules' gradients are on a device.
std::map<std::string, std::vector<at::Tensor>> ByDevice(const std::vector<at::Tensor>& tensors) {
  std::map<std::string, std::vector<at::Tensor>> groups;
  for (const at::Tensor& tensor : tensors) groups[tensor.device().str()].push_back(tensor);
  return groups;
}

// Returns the square of this rank's share of the norm.
at::Tensor SquareHere(const std::vector<NormPart>& parts, c10::Device device) {
  std::vector<at::Tensor> counted, replicas;
  Seen seen;
  for (const NormPart& part : parts) {
    for (size_t i = 0; i < part.parameters.size(); ++i) {
      const at::Tensor gradient = part.parameters[i].grad();
      if (!gradient.defined() || !seen.Add(part.parameters[i])) continue;
      const bool counts = CountsInNorm(part.coordinates, part.divided_over_tp[i]);
      (counts ? counted : replicas).push_back(gradient);
    }
  }
  at::Tensor sum = at::zeros({}, at::TensorOptions(at::kDouble).device(device));
  const auto norms = [](const std::vector<at::Tensor>& gradients) {
    return at::stack(at::_foreach_norm(gradients, 2, at::kDouble));
  };
  for (const auto& [name, gradients] : ByDevice(counted))
    sum = sum + norms(gradients).square().sum().to(device);
  // A replica adds nothing, but for a value that is not finite: 0 times that is NaN.
  for (const auto& [name, gradients] : ByDevice(replicas))
    sum = sum + norms(gradients).mul(0).sum().to(device);
  return sum;
}

}  // namespace

at::ScalarType SumType(at::ScalarType dtype) {
  return c10::isReducedFloatingType(dtype) ? at::kFloat : dtype;
}

void ReduceGradients(const std::vector<at::Tensor>& given, c10d::ProcessGroup* group, double factor,
                     int64_t bucket_bytes) {
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> parameters = Distinct(given);
  if (group == nullptr) {
    for (const at::Tensor& gradient : GradientsOf(parameters)) {
      if (factor != 1) gradient.mul_(factor);
    }
    return;
  }
  const std::vector<bool> have = HaveGradients(parameters, group);
  std::map<std::pair<at::ScalarType, std::string>, Bucket> open;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!have[i]) continue;
    at::Tensor& gradient = parameters[i].mutable_grad();
    if (!gradient.defined()) gradient = at::zeros_like(parameters[i]);
    TORCH_CHECK_VALUE(!gradient.is_sparse(), "mimo: the gradient of parameter ", i,
                      " is sparse; such gradients cannot be reduced over ranks");
    const auto key = std::make_pair(gradient.scalar_type(), gradient.device().str());
    Bucket& bucket = open[key];
    bucket.gradients.push_back(gradient);
    bucket.bytes +=
        gradient.numel() * static_cast<int64_t>(c10::elementSize(SumType(gradient.scalar_type())));
    if (bucket.bytes < bucket_bytes) continue;
    Reduce(bucket, *group, factor);
    open.erase(key);
  }
  for (const auto& [key, bucket] : open) Reduce(bucket, *group, factor);
}

at::Tensor GradientNorm(const std::vector<NormPart>& parts, c10d::ProcessGroup* world,
                        c10::Device device) {
  return GradientNormAndLimits(parts, world, device, 0).norm;
}

NormAndLimits GradientNormAndLimits(const std::vector<NormPart>& parts, c10d::ProcessGroup* world,
                                    c10::Device device, double limit) {
  const at::NoGradGuard no_grad;
  const int64_t size = world == nullptr ? 1 : world->getSize();
  const int64_t rank = world == nullptr ? 0 : world->getRank();
  // Each rank has a place for its limit, and 0 in the others: the sum holds all of them.
  std::vector<at::Tensor> sums = {
      at::zeros({1 + size}, at::TensorOptions(at::kDouble).device(device))};
  sums[0][0].copy_(SquareHere(parts, device));
  sums[0][1 + rank].fill_(limit);
  if (world != nullptr) world->allreduce(sums)->wait();
  return {sums[0][0].sqrt(), sums[0].narrow(0, 1, size)};
}

namespace {

// A tensor that was made in inference mode has no version: nobody knows when it changes.
int64_t VersionOf(const at::Tensor& tensor) {
  return tensor.is_inference() ? -1 : static_cast<int64_t>(tensor._version());
}

}  // namespace

void ReducedGradients::Remember(const std::vector<at::Tensor>& parameters) {
  gradients_.clear();
  for (const at::Tensor& gradient : GradientsOf(Distinct(parameters)))
    gradients_.push_back({c10::weak_intrusive_ptr<c10::TensorImpl>(gradient.getIntrusivePtr()),
                          VersionOf(gradient)});
}

bool ReducedGradients::AreUnchanged(const std::vector<at::Tensor>& parameters) const {
  const std::vector<at::Tensor> now = GradientsOf(Distinct(parameters));
  if (now.empty() || now.size() != gradients_.size()) return false;
  for (size_t i = 0; i < now.size(); ++i) {
    const auto then = gradients_[i].tensor.lock();
    if (then.get() != now[i].unsafeGetTensorImpl() || now[i].is_inference() ||
        gradients_[i].version != VersionOf(now[i]))
      return false;
  }
  return true;
}

void ClipGradients(const std::vector<at::Tensor>& parameters, const at::Tensor& norm,
                   double max_norm) {
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> gradients = GradientsOf(Distinct(parameters));
  if (gradients.empty()) return;
  const at::Tensor clipping = at::clamp((norm + 1e-6).reciprocal().mul(max_norm), {}, 1);
  const at::Tensor factor = at::where(at::isfinite(norm), clipping, 1);
  for (const auto& [name, own] : ByDevice(gradients))
    at::_foreach_mul_(own, factor.to(own[0].device()));
}

}  // namespace lockstep::mimo
