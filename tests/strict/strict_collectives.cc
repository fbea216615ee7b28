#include <iterator>

#include "absl/strings/str_cat.h"
#include "c10/util/Exception.h"
#include "tests/strict/strict_backend.h"

namespace lockstep::tests {
namespace {

using WorkPointer = StrictBackend::WorkPointer;
using c10d::OpType;

const char* NameOf(const c10d::ReduceOp& op) {
  static constexpr const char* kNames[] = {"sum", "avg", "product", "min", "max"};
  const auto index = static_cast<size_t>(static_cast<c10d::ReduceOp::RedOpType>(op));
  TORCH_CHECK(index < std::size(kNames), "strict: NCCL has no reduction of this kind, number ",
              index, "; it has sum, avg, product, min and max");
  return kNames[index];
}

}  // namespace

WorkPointer StrictBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  CheckOne("broadcast", tensors.size());
  return Collective(OpType::BROADCAST,
                    absl::StrCat("broadcast ", SizesOf(tensors), " from rank ",
                                 Name(static_cast<int>(options.rootRank))),
                    tensors, tensors, [this, tensors, options]() mutable {
                      return gloo_->broadcast(tensors, options);
                    });
}

WorkPointer StrictBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  CheckOne("all_reduce", tensors.size());
  return Collective(
      OpType::ALLREDUCE,
      absl::StrCat("all_reduce ", SizesOf(tensors), " ", NameOf(options.reduceOp)), tensors,
      tensors, [this, tensors, options]() mutable { return gloo_->allreduce(tensors, options); });
}

WorkPointer StrictBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  CheckOne("reduce", tensors.size());
  return Collective(OpType::REDUCE,
                    absl::StrCat("reduce ", SizesOf(tensors), " ", NameOf(options.reduceOp),
                                 " to rank ", Name(static_cast<int>(options.rootRank))),
                    tensors, tensors,
                    [this, tensors, options]() mutable { return gloo_->reduce(tensors, options); });
}

WorkPointer StrictBackend::allgather(TensorLists& outputs, Tensors& inputs,
                                     const c10d::AllgatherOptions& options) {
  CheckOne("all_gather", inputs.size());
  CheckOne("all_gather", outputs.size());
  return Collective(OpType::ALLGATHER, absl::StrCat("all_gather ", SizesOf(outputs[0])), inputs,
                    outputs[0], [this, outputs, inputs, options]() mutable {
                      return gloo_->allgather(outputs, inputs, options);
                    });
}

WorkPointer StrictBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                           const c10d::AllgatherOptions& options) {
  return Collective(OpType::_ALLGATHER_BASE,
                    absl::StrCat("all_gather_into_tensor ", SizesOf({output})), {output, input},
                    {output}, [this, output, input, options]() mutable {
                      return gloo_->_allgather_base(output, input, options);
                    });
}

WorkPointer StrictBackend::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                          const c10d::ReduceScatterOptions& options) {
  CheckOne("reduce_scatter", outputs.size());
  CheckOne("reduce_scatter", inputs.size());
  return Collective(
      OpType::REDUCE_SCATTER,
      absl::StrCat("reduce_scatter ", SizesOf(inputs[0]), " ", NameOf(options.reduceOp)), outputs,
      outputs, [this, outputs, inputs, options]() mutable {
        return gloo_->reduce_scatter(outputs, inputs, options);
      });
}

WorkPointer StrictBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                const c10d::ReduceScatterOptions& options) {
  return Collective(
      OpType::_REDUCE_SCATTER_BASE,
      absl::StrCat("reduce_scatter_tensor ", SizesOf({input}), " ", NameOf(options.reduceOp)),
      {output, input}, {output}, [this, output, input, options]() mutable {
        return gloo_->_reduce_scatter_base(output, input, options);
      });
}

WorkPointer StrictBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                         std::vector<int64_t>& output_sizes,
                                         std::vector<int64_t>& input_sizes,
                                         const c10d::AllToAllOptions& options) {
  // Elements for or from each rank; sizes are of dim 0.
  const auto count = [this](const at::Tensor& tensor, const std::vector<int64_t>& sizes) {
    if (sizes.empty()) {
      return std::vector<int64_t>(static_cast<size_t>(size_), tensor.numel() / size_);
    }
    const int64_t row = tensor.size(0) == 0 ? 0 : tensor.numel() / tensor.size(0);
    std::vector<int64_t> counts;
    for (const int64_t size : sizes) counts.push_back(size * row);
    return counts;
  };
  return Collective(
      OpType::ALLTOALL_BASE, absl::StrCat("all_to_all of ", c10::toString(input.scalar_type())),
      {output, input}, {output},
      [this, output, input, output_sizes, input_sizes, options]() mutable {
        return gloo_->alltoall_base(output, input, output_sizes, input_sizes, options);
      },
      count(input, input_sizes), count(output, output_sizes));
}

WorkPointer StrictBackend::barrier(const c10d::BarrierOptions& options) {
  return Collective(OpType::BARRIER, "barrier", {}, {},
                    [this, options] { return gloo_->barrier(options); });
}

}  // namespace lockstep::tests
