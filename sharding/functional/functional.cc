#include "sharding/functional/functional.h"

#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "ATen/WrapDimUtils.h"
#include "ATen/core/LegacyTypeDispatch.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/empty_like.h"
#include "base/torch/versions/collectives.h"
#include "base/torch/versions/node.h"
#include "c10/util/Exception.h"
#include "torch/csrc/autograd/function.h"
#include "torch/csrc/autograd/functions/utils.h"
#include "torch/csrc/autograd/variable.h"

// Each function's gradient is another of these functions: a sum's is a sum, a gathering's is a
// scattering, a broadcast's is a reduction. Each backward below calls that function and not the
// bare collective, so the gradient of a gradient needs no code. Test: functional_test.cc compares
// with finite differences over two and three ranks.

namespace lockstep::sharding::functional {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

// --- Without gradients --------------------------------------------------------------------------

// The values in memory of their own order, without autograd: x's own memory where it is so.
at::Tensor Dense(const at::Tensor& x) {
  return x.detach().resolve_conj().resolve_neg().contiguous();
}

// The dimension `dim` cut into `size` parts, which become dimension 0 of dense memory.
at::Tensor PartsFirst(const at::Tensor& x, int64_t dim, int64_t size) {
  return Dense(x.detach().unflatten(dim, {size, x.size(dim) / size}).movedim(dim, 0));
}

// The opposite: dimension 0 moves in front of `dim` of the parts, and the two become one.
at::Tensor PartsOn(const at::Tensor& parts, int64_t dim) {
  return parts.movedim(0, dim).flatten(dim, dim + 1).contiguous();
}

int64_t WrapDim(const at::Tensor& x, int64_t dim, const char* name) {
  TORCH_CHECK_VALUE(x.dim() > 0, name, ": a tensor without dimensions has no parts");
  TORCH_CHECK_VALUE(dim >= -x.dim() && dim < x.dim(), name, ": dimension ", dim,
                    " is out of range for a tensor of ", x.dim(), " dimensions");
  return at::maybe_wrap_dim(dim, x.dim());
}

void CheckDivisible(const at::Tensor& x, int64_t dim, const Group& group, const char* name) {
  TORCH_CHECK_VALUE(x.size(dim) % group->getSize() == 0, name, ": dimension ", dim, " has size ",
                    x.size(dim), ", which is not divisible by the ", group->getSize(),
                    " ranks of the group");
}

// The values in dense memory of their own.
at::Tensor Copy(const at::Tensor& x) {
  return x.detach().resolve_conj().resolve_neg().clone(at::MemoryFormat::Contiguous);
}

at::Tensor RunAllReduce(const at::Tensor& x, const Group& group) {
  std::vector<at::Tensor> tensors = {Copy(x)};
  group->allreduce(tensors)->wait();
  return tensors[0];
}

at::Tensor RunAllGather(const at::Tensor& x, int64_t dim, const Group& group) {
  at::Tensor input = Dense(x);
  std::vector<int64_t> sizes = input.sizes().vec();
  sizes.insert(sizes.begin(), group->getSize());
  const at::Tensor parts = at::empty(sizes, input.options());
  // As one dimension: Gloo wants the input to have the shape of a slice of the output.
  at::Tensor all = parts.view(-1);
  at::Tensor own = input.view(-1);
  base::AllGatherSingle(*group, all, own)->wait();
  return PartsOn(parts, dim);
}

at::Tensor RunReduceScatter(const at::Tensor& x, int64_t dim, const Group& group) {
  const at::Tensor parts = PartsFirst(x, dim, group->getSize());
  const at::Tensor output = at::empty_like(parts[0], at::MemoryFormat::Contiguous);
  at::Tensor all = parts.view(-1);
  at::Tensor own = output.view(-1);
  base::ReduceScatterSingle(*group, own, all)->wait();
  return output;
}

at::Tensor RunAllToAll(const at::Tensor& x, int64_t split_dim, int64_t concat_dim,
                       const Group& group) {
  at::Tensor parts = PartsFirst(x, split_dim, group->getSize());
  at::Tensor arrived = at::empty_like(parts);
  std::vector<int64_t> equal_sizes;
  base::AllToAllSingle(*group, arrived, parts, equal_sizes, equal_sizes)->wait();
  return PartsOn(arrived, concat_dim);
}

at::Tensor RunAllToAllRows(const at::Tensor& x, std::vector<int64_t> sent,
                           std::vector<int64_t> received, const Group& group) {
  at::Tensor given = Dense(x);
  std::vector<int64_t> sizes = given.sizes().vec();
  sizes[0] = std::accumulate(received.begin(), received.end(), int64_t{0});
  at::Tensor taken = at::empty(sizes, given.options());
  base::AllToAllSingle(*group, taken, given, received, sent)->wait();
  return taken;
}

void CheckCounts(const std::vector<int64_t>& counts, const char* name, const Group& group) {
  TORCH_CHECK_VALUE(static_cast<int>(counts.size()) == group->getSize(), "all_to_all: ", name,
                    " has ", counts.size(), " counts of rows, but the group has ", group->getSize(),
                    " ranks");
  for (const int64_t count : counts) {
    TORCH_CHECK_VALUE(count >= 0, "all_to_all: ", name, " has the count ", count,
                      "; counts of rows are at least 0");
  }
}

at::Tensor RunBroadcast(const at::Tensor& x, int source, const Group& group) {
  const bool is_source = group->getRank() == source;
  std::vector<at::Tensor> tensors = {
      is_source ? Copy(x) : at::empty_like(x.detach(), at::MemoryFormat::Contiguous)};
  c10d::BroadcastOptions options;
  options.rootRank = source;
  group->broadcast(tensors, options)->wait();
  return tensors[0];
}

at::Tensor RunReduce(const at::Tensor& x, int destination, const Group& group) {
  std::vector<at::Tensor> tensors = {Copy(x)};
  c10d::ReduceOptions options;
  options.rootRank = destination;
  group->reduce(tensors, options)->wait();
  // Elsewhere the backend leaves parts of the sum.
  return group->getRank() == destination ? tensors[0] : tensors[0].zero_();
}

// --- With gradients -----------------------------------------------------------------------------

using Map = std::function<at::Tensor(const at::Tensor&)>;

class CollectiveBackward final : public Node {
 public:
  CollectiveBackward(const char* name, Map gradient)
      : name_(name), gradient_(std::move(gradient)) {}
  std::string name() const override { return name_; }

  variable_list apply(variable_list&& gradients) override {
    // The other ranks wait for this one, also where its own loss has no gradient.
    return {gradient_(gradients[0].defined() ? gradients[0] : input_metadata(0).zeros_like())};
  }

 private:
  const char* name_;
  Map gradient_;
};

// Returns run(x). `gradient` maps the gradient of the result to the gradient of x.
at::Tensor Apply(const char* name, const at::Tensor& x, const Map& run, Map gradient) {
  at::Tensor y;
  {
    const at::NoGradGuard no_grad;
    y = run(x);
    // No view to autograd: the caller may change y in place.
    const at::AutoDispatchBelowADInplaceOrView below;
    y = y.alias();
  }
  if (!at::GradMode::is_enabled() || !x.requires_grad()) return y;
  const auto node = base::MakeNode<CollectiveBackward>(name, std::move(gradient));
  node->set_next_edges(torch::autograd::collect_next_edges(x));
  torch::autograd::set_history(y, node);
  return y;
}

// The sum over ranks at the position `destination`, elsewhere 0: the gradient of Broadcast.
at::Tensor Reduce(const at::Tensor& x, int destination, const Group& group) {
  return Apply(
      "ReduceBackward", x, [&](const at::Tensor& t) { return RunReduce(t, destination, group); },
      [destination, group](const at::Tensor& g) { return Broadcast(g, destination, group); });
}

}  // namespace

at::Tensor AllReduce(const at::Tensor& x, const Group& group, Reduction reduction) {
  TORCH_CHECK_VALUE(
      reduction == Reduction::kSum || x.is_floating_point(),
      "all_reduce: the mean of whole numbers would be rounded; convert the tensor to a "
      "floating-point dtype");
  const at::Tensor sum = Apply(
      "AllReduceBackward", x, [&](const at::Tensor& t) { return RunAllReduce(t, group); },
      [group](const at::Tensor& g) { return AllReduce(g, group); });
  return reduction == Reduction::kSum ? sum : sum / group->getSize();
}

at::Tensor AllGather(const at::Tensor& x, int64_t dim, const Group& group) {
  const int64_t wrapped = WrapDim(x, dim, "all_gather");
  return Apply(
      "AllGatherBackward", x, [&](const at::Tensor& t) { return RunAllGather(t, wrapped, group); },
      [wrapped, group](const at::Tensor& g) { return ReduceScatter(g, wrapped, group); });
}

at::Tensor ReduceScatter(const at::Tensor& x, int64_t dim, const Group& group) {
  const int64_t wrapped = WrapDim(x, dim, "reduce_scatter");
  CheckDivisible(x, wrapped, group, "reduce_scatter");
  return Apply(
      "ReduceScatterBackward", x,
      [&](const at::Tensor& t) { return RunReduceScatter(t, wrapped, group); },
      [wrapped, group](const at::Tensor& g) { return AllGather(g, wrapped, group); });
}

at::Tensor AllToAll(const at::Tensor& x, int64_t split_dim, int64_t concat_dim,
                    const Group& group) {
  const int64_t split = WrapDim(x, split_dim, "all_to_all");
  const int64_t concat = WrapDim(x, concat_dim, "all_to_all");
  CheckDivisible(x, split, group, "all_to_all");
  return Apply(
      "AllToAllBackward", x,
      [&](const at::Tensor& t) { return RunAllToAll(t, split, concat, group); },
      [split, concat, group](const at::Tensor& g) { return AllToAll(g, concat, split, group); });
}

at::Tensor AllToAllRows(const at::Tensor& x, const std::vector<int64_t>& sent,
                        const std::vector<int64_t>& received, const Group& group) {
  TORCH_CHECK_VALUE(x.dim() > 0, "all_to_all: a tensor without dimensions has no rows");
  CheckCounts(sent, "sent", group);
  CheckCounts(received, "received", group);
  const int64_t rows = std::accumulate(sent.begin(), sent.end(), int64_t{0});
  TORCH_CHECK_VALUE(rows == x.size(0), "all_to_all: sent adds up to ", rows,
                    " rows, but the tensor has ", x.size(0));
  return Apply(
      "AllToAllRowsBackward", x,
      [&](const at::Tensor& t) { return RunAllToAllRows(t, sent, received, group); },
      [sent, received, group](const at::Tensor& g) {
        return AllToAllRows(g, received, sent, group);
      });
}

at::Tensor Broadcast(const at::Tensor& x, int source, const Group& group) {
  TORCH_CHECK_VALUE(source >= 0 && source < group->getSize(), "broadcast: position ", source,
                    " is not one of the group's ", group->getSize());
  return Apply(
      "BroadcastBackward", x, [&](const at::Tensor& t) { return RunBroadcast(t, source, group); },
      [source, group](const at::Tensor& g) { return Reduce(g, source, group); });
}

}  // namespace lockstep::sharding::functional
