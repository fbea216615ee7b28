#include "driver/ranks/mirror/mirror.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/grad_mode.h"
#include "ATen/core/ivalue.h"
#include "c10/util/Exception.h"

namespace lockstep::driver {
namespace {

using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<std::vector<at::Tensor>>;
using WorkPointer = c10::intrusive_ptr<c10d::Work>;

// Over when it is made.
class Done : public c10d::Work {
 public:
  Done(int rank, c10d::OpType type, Tensors outputs)
      : Work(rank, type),
        outputs_(std::move(outputs)),
        future_(c10::make_intrusive<c10::ivalue::Future>(
            c10::ListType::create(c10::TensorType::get()))) {
    finish();
    future_->markCompleted(c10::IValue(outputs_));
  }

  Tensors result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  Tensors outputs_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

class MirrorBackend : public c10d::Backend {
 public:
  MirrorBackend(int rank, int size) : Backend(rank, size) {}

  const std::string getBackendName() const override { return "mirror"; }

  WorkPointer broadcast(Tensors& tensors, const c10d::BroadcastOptions& /*options*/) override {
    return Return(c10d::OpType::BROADCAST, tensors);
  }

  WorkPointer allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    Reduce(tensors, options.reduceOp);
    return Return(c10d::OpType::ALLREDUCE, tensors);
  }

  WorkPointer allgather(TensorLists& outputs, Tensors& inputs,
                        const c10d::AllgatherOptions& /*options*/) override {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < outputs.size(); ++i) {
      for (at::Tensor& output : outputs[i]) output.copy_(inputs[i]);
    }
    return Return(c10d::OpType::ALLGATHER, outputs[0]);
  }

  WorkPointer _allgather_base(at::Tensor& output, at::Tensor& input,
                              const c10d::AllgatherOptions& /*options*/) override {
    const at::NoGradGuard no_grad;
    output.view({size_, -1}).copy_(input.reshape({1, -1}));
    return Return(c10d::OpType::_ALLGATHER_BASE, {output});
  }

  // The other ranks' parts for this rank equal this rank's own part for itself.
  WorkPointer reduce_scatter(Tensors& outputs, TensorLists& inputs,
                             const c10d::ReduceScatterOptions& options) override {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < outputs.size(); ++i)
      outputs[i].copy_(inputs[i][static_cast<size_t>(rank_)]);
    Reduce(outputs, options.reduceOp);
    return Return(c10d::OpType::REDUCE_SCATTER, outputs);
  }

  WorkPointer _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                   const c10d::ReduceScatterOptions& options) override {
    const at::NoGradGuard no_grad;
    output.view({-1}).copy_(input.reshape({size_, -1})[rank_]);
    Tensors outputs = {output};
    Reduce(outputs, options.reduceOp);
    return Return(c10d::OpType::_REDUCE_SCATTER_BASE, outputs);
  }

  // Each of the others sends what this rank keeps for itself. Sizes that differ are not known, but
  // where all comes from one rank (a ring) the amount is: what this rank gives stands for it.
  WorkPointer alltoall_base(at::Tensor& output, at::Tensor& input,
                            std::vector<int64_t>& output_sizes, std::vector<int64_t>& input_sizes,
                            const c10d::AllToAllOptions& /*options*/) override {
    const auto is_shift = [](const std::vector<int64_t>& sizes) {
      return std::count(sizes.begin(), sizes.end(), 0) + 1 >= static_cast<int64_t>(sizes.size());
    };
    if (!output_sizes.empty() && is_shift(output_sizes) && is_shift(input_sizes)) {
      const at::NoGradGuard no_grad;
      const int64_t alike = std::min(output.numel(), input.numel());
      output.zero_();
      output.view(-1).narrow(0, 0, alike).copy_(input.view(-1).narrow(0, 0, alike));
      return Return(c10d::OpType::ALLTOALL_BASE, {output});
    }
    TORCH_CHECK(output_sizes.empty() && input_sizes.empty(),
                "a dry run has this rank alone: what others send in parts of different sizes is "
                "not known; run it with its ranks");
    const at::NoGradGuard no_grad;
    output.view({size_, -1}).copy_(input.reshape({size_, -1})[rank_].unsqueeze(0));
    return Return(c10d::OpType::ALLTOALL_BASE, {output});
  }

  WorkPointer send(Tensors& tensors, int /*destination*/, int /*tag*/) override {
    return Return(c10d::OpType::SEND, tensors);
  }

  WorkPointer recv(Tensors& /*tensors*/, int source, int /*tag*/) override {
    TORCH_CHECK(false, "a dry run has this rank alone: what position ", source,
                " of the group would send is not known; run it with its ranks");
  }

  WorkPointer barrier(const c10d::BarrierOptions& /*options*/) override {
    return Return(c10d::OpType::BARRIER, {});
  }

 private:
  WorkPointer Return(c10d::OpType type, Tensors outputs) const {
    return c10::make_intrusive<Done>(rank_, type, std::move(outputs));
  }

  // Reduces `size` equal values.
  void Reduce(Tensors& tensors, const c10d::ReduceOp& op) const {
    const at::NoGradGuard no_grad;
    switch (op.op_) {
      case c10d::ReduceOp::SUM:
        for (at::Tensor& tensor : tensors) tensor.mul_(size_);
        return;
      case c10d::ReduceOp::AVG:
      case c10d::ReduceOp::MIN:
      case c10d::ReduceOp::MAX:
      case c10d::ReduceOp::BAND:
      case c10d::ReduceOp::BOR: return;
      default: TORCH_CHECK(false, "a dry run reduces by sum, mean, minimum and maximum alone");
    }
  }
};

class MirrorCollective : public sharding::Collective {
 public:
  MirrorCollective(int rank, int size) : rank_(rank), size_(size) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::unique_ptr<Pending> StartAllGather(const std::string& bytes) override {
    return std::make_unique<Copies>(std::vector<std::string>(static_cast<size_t>(size_), bytes));
  }

 private:
  class Copies : public Pending {
   public:
    explicit Copies(std::vector<std::string> copies) : copies_(std::move(copies)) {}
    absl::StatusOr<std::vector<std::string>> Wait() override { return copies_; }

   private:
    std::vector<std::string> copies_;
  };

  const int rank_;
  const int size_;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> NewMirrorBackend(int rank, int size) {
  return c10::make_intrusive<MirrorBackend>(rank, size);
}

std::unique_ptr<sharding::Collective> NewMirrorCollective(int rank, int size) {
  return std::make_unique<MirrorCollective>(rank, size);
}

}  // namespace lockstep::driver
