#include <algorithm>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/empty.h"
#include "base/torch/element_bytes.h"
#include "base/torch/versions/collectives.h"
#include "c10/util/Exception.h"
#include "sharding/fully_shard/flat_memory.h"
#include "sharding/fully_shard/flat_unit.h"
#include "torch/csrc/autograd/function_hook.h"
#include "torch/csrc/autograd/variable.h"

// The gradients of a unit: from the parameters into one flat array, over the ranks, into the
// shards.

namespace lockstep::sharding {

void FlatUnit::EnsureGradient(Segment& segment) {
  if (segment.gradient.defined()) return;
  const int64_t total = segment.layout.total;
  if (ranks_ == 1) {  // becomes the shards' gradients as it is
    segment.gradient =
        at::empty({total}, at::TensorOptions().dtype(segment.reduce_dtype).device(device_));
    return;
  }
  segment.gradient_slot = pool_->Acquire(BytesOf(total, segment.reduce_dtype));
  segment.gradient = ViewOf(segment.gradient_slot, total, segment.reduce_dtype);
}

at::Tensor FlatUnit::GradientOf(const Parameter& parameter) const {
  const at::Tensor& tensor = parameter.tensor;
  return segments_[parameter.segment]
      .gradient.narrow(0, parameter.offset, tensor.numel())
      .view(tensor.sizes());
}

void FlatUnit::TakeGradient(size_t i) {
  Parameter& parameter = parameters_[i];
  const at::Tensor gradient = parameter.tensor.grad();
  if (!gradient.defined()) return;
  TORCH_CHECK_VALUE(gradient.layout() == at::kStrided, "fully_shard: the gradient of \"",
                    parameter.name, "\" is sparse; only dense gradients can be sharded");
  const at::NoGradGuard no_grad;
  const NoAutogradGuard quiet;
  FinishReduce();  // which may be under way with the unit's earlier gradients
  EnsureGradient(segments_[parameter.segment]);
  if (!std::exchange(parameter.has_arrived, true)) ++num_arrived_;
  const at::Tensor flat = GradientOf(parameter);
  if (parameter.has_gradient) {
    flat.add_(gradient);
  } else {
    flat.copy_(gradient);
    parameter.has_gradient = true;
    ++num_gradients_;
  }
  parameter.tensor.mutable_grad().reset();
}

bool FlatUnit::IsTrained(const Segment& segment) const {
  return std::any_of(segment.members.begin(), segment.members.end(),
                     [&](size_t i) { return parameters_[i].shard.requires_grad(); });
}

// Makes the flat gradient complete: zero for what has none.
void FlatUnit::FillGradient(Segment& segment) {
  EnsureGradient(segment);
  for (const size_t i : segment.members) {
    if (!parameters_[i].has_gradient) GradientOf(parameters_[i]).zero_();
  }
}

void FlatUnit::AcquireReceived(Segment& segment) {
  const int64_t bytes = BytesOf(segment.layout.total, segment.reduce_dtype);
  segment.received_slot = pool_->Acquire(bytes);
  segment.received = segment.received_slot.narrow(0, 0, bytes);
}

// On the CPU, and where sums must have one order: each rank gets its span from every other rank and
// adds them up in the order of ranks. Gloo's own reduce-scatter is an all-reduce of everything.
void FlatUnit::StartReduceOf(Segment& segment) {
  FillGradient(segment);
  const auto wide = segment.master_dtype == at::kDouble ? at::kDouble : at::kFloat;
  if (ranks_ == 1) {
    segment.reduced = segment.gradient.to(wide);
  } else if (device_.is_cpu() || options_.deterministic) {
    AcquireReceived(segment);
    at::Tensor given = base::ElementBytes(segment.gradient);
    std::vector<int64_t> equal;
    segment.reduce_work =
        base::AllToAllSingle(*groups_.reduce, segment.received, given, equal, equal);
  } else {
    // A sum of float16 would overflow before it is divided.
    if (segment.reduce_dtype == at::kHalf) segment.gradient.div_(world_);
    segment.reduced = at::empty({segment.layout.span}, segment.gradient.options());
    segment.reduce_work =
        base::ReduceScatterSingle(*groups_.reduce, segment.reduced, segment.gradient);
  }
}

std::string FlatUnit::HaveGradients() const {
  std::string have;
  for (const Parameter& parameter : parameters_) have += parameter.has_gradient ? '\1' : '\0';
  return have;
}

void FlatUnit::StartReduce(const std::string& any) {
  const at::NoGradGuard no_grad;
  const NoAutogradGuard quiet;
  for (Segment& segment : segments_) {
    if (IsTrained(segment)) StartReduceOf(segment);
  }
  NoteReduction(any);
}

void FlatUnit::NoteReduction(const std::string& any) {
  FinishDownload();  // of the unit's earlier gradients
  for (size_t i = 0; i < parameters_.size(); ++i) {
    parameters_[i].has_gradient = false;
    parameters_[i].is_reduced = any[i] != 0;
  }
  num_gradients_ = 0;
  ForgetArrivals();
  is_reducing_ = true;
}

void FlatUnit::ForgetArrivals() {
  for (Parameter& parameter : parameters_) parameter.has_arrived = false;
  num_arrived_ = 0;
}

void FlatUnit::FinishReduce() {
  if (!std::exchange(is_reducing_, false)) return;
  const at::NoGradGuard no_grad;
  const NoAutogradGuard quiet;
  for (Segment& segment : segments_) {
    if (!segment.gradient.defined()) continue;
    WaitFor(segment.reduce_work);
    const auto wide = segment.master_dtype == at::kDouble ? at::kDouble : at::kFloat;
    bool is_divided = false;
    if (segment.received.defined()) {
      const at::Tensor parts =
          segment.received.view(segment.reduce_dtype).view({ranks_, segment.layout.span});
      // at::sum would add up five ranks or more in an order that depends on the place in the span.
      segment.reduced = parts[0].to(wide, /*non_blocking=*/false, /*copy=*/true);
      for (int rank = 1; rank < ranks_; ++rank) segment.reduced.add_(parts[rank]);
      segment.received.reset();
      pool_->Release(std::exchange(segment.received_slot, at::Tensor()));
    } else if (ranks_ > 1) {
      is_divided = segment.reduce_dtype == at::kHalf;
      segment.reduced = segment.reduced.to(wide);
    }
    segment.gradient.reset();
    if (segment.gradient_slot.defined())
      pool_->Release(std::exchange(segment.gradient_slot, at::Tensor()));
    if (groups_.replicas != nullptr) {
      std::vector<at::Tensor> tensors = {segment.reduced};
      groups_.replicas->allreduce(tensors)->wait();
    }
    if (world_ > 1 && !is_divided) segment.reduced.div_(world_);
    const at::Tensor reduced = segment.reduced.to(segment.master_dtype);
    segment.reduced.reset();
    if (segment.copies != nullptr) {
      segment.copies->StartDownload(reduced);
    } else {
      AddToShards(segment, reduced);
    }
  }
}

void FlatUnit::FinishDownload() {
  const at::NoGradGuard no_grad;
  const NoAutogradGuard quiet;
  for (const Segment& segment : segments_) {
    if (segment.copies == nullptr) continue;
    if (const at::Tensor reduced = segment.copies->FinishDownload(); reduced.defined())
      AddToShards(segment, reduced);
  }
}

void FlatUnit::AddToShards(const Segment& segment, const at::Tensor& reduced) {
  for (const size_t i : segment.members) {
    const Parameter& parameter = parameters_[i];
    if (!parameter.is_reduced || !parameter.shard.requires_grad()) continue;
    at::Tensor piece =
        LeafOver(reduced.storage(), reduced.scalar_type(), reduced.device(),
                 reduced.storage_offset() + parameter.piece.in_span, {parameter.piece.size});
    // Copies a hook's result: others may hold it, and the next gradient is added to it in place.
    for (const auto& hook : torch::autograd::impl::hooks(parameter.shard))
      piece = (*hook)({piece})[0].clone();
    at::Tensor& gradient = parameter.shard.mutable_grad();
    if (gradient.defined()) {
      gradient.add_(piece);
      // Autograd does not see this addition; who keeps a version does.
      gradient.unsafeGetTensorImpl()->bump_version();
    } else {
      gradient = piece;
    }
  }
}

void FlatUnit::DropGradients() {
  for (Parameter& parameter : parameters_) {
    parameter.has_gradient = false;
    parameter.tensor.mutable_grad().reset();
  }
  num_gradients_ = 0;
  ForgetArrivals();
  FinishReduce();
  FinishDownload();
  for (Segment& segment : segments_) {
    segment.gradient.reset();
    if (segment.gradient_slot.defined())
      pool_->Release(std::exchange(segment.gradient_slot, at::Tensor()));
  }
}

}  // namespace lockstep::sharding
