#include "sharding/fully_shard/fully_shard.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/zeros.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/torch/element_bytes.h"
#include "c10/util/Exception.h"
#include "sharding/agreement/gather_texts.h"
#include "sharding/fully_shard/steps.h"
#include "sharding/fully_shard/turns.h"

namespace lockstep::sharding {

namespace {

std::string NameOf(std::optional<at::ScalarType> dtype) {
  return dtype.has_value() ? c10::toString(*dtype) : "the parameters' own";
}

// A line for everything that must be the same on all ranks.
std::string Describe(const std::vector<UnitParameters>& units,
                     const std::vector<at::Tensor>& buffers, const ShardGroups& groups,
                     const FullyShardOptions& options) {
  std::string text = absl::StrCat(
      "param_dtype: ", NameOf(options.unit.param_dtype),
      "\nreduce_dtype: ", NameOf(options.unit.reduce_dtype),
      "\nreshard_after_forward: ", options.reshard_after_forward, "\nprefetch: ", options.prefetch,
      "\nskipped: ", options.joins ? "join" : "error",
      "\nbytes that travel with comparisons: ", options.exchange_bytes,
      "\ndeterministic: ", options.unit.deterministic, "\noffload: ", options.unit.offload,
      "\nhas values: ", options.unit.has_values,
      "\nranks that share one copy: ", groups.gather == nullptr ? 1 : groups.gather->getSize(),
      "\n");
  for (const UnitParameters& unit : units) {
    for (const NamedTensor& p : unit.parameters) {
      absl::StrAppend(
          &text, "unit \"", unit.name, "\", ", p.name, ": ", c10::toString(p.tensor.scalar_type()),
          " [", absl::StrJoin(p.tensor.sizes(), ", "), "], ",
          p.tensor.requires_grad() ? "trained" : "frozen",
          options.unit.float8_weights.count(p.name) > 0 ? ", gathered in float8" : "", "\n");
    }
  }
  for (const at::Tensor& buffer : buffers) {
    absl::StrAppend(&text, "buffer: ", c10::toString(buffer.scalar_type()), " [",
                    absl::StrJoin(buffer.sizes(), ", "), "]\n");
  }
  return text;
}

void CheckSame(Collective& control, const std::string& own) {
  const absl::StatusOr<std::vector<std::string>> texts = GatherTexts(control, own);
  TORCH_CHECK(texts.ok(), std::string(texts.status().message()));
  int count = 0;
  const std::string differences = DifferentLines(control, *texts, &count);
  TORCH_CHECK_VALUE(count == 0, "fully_shard: the ranks give different models or options, in ",
                    count, " places:", differences);
}

void CheckUnits(const std::vector<UnitParameters>& units, const FullyShardOptions& options) {
  TORCH_CHECK_VALUE(!units.empty() && units[0].name.empty(),
                    "fully_shard: the first unit must be the root, named \"\"");
  TORCH_CHECK_VALUE(options.prefetch >= 0, "fully_shard: prefetch must be at least 0, not ",
                    options.prefetch);
  std::set<const void*> seen;
  for (const UnitParameters& unit : units) {
    for (const NamedTensor& p : unit.parameters) {
      TORCH_CHECK_VALUE(seen.insert(p.tensor.unsafeGetTensorImpl()).second, "fully_shard: \"",
                        p.name,
                        "\" is in two units; a shared weight belongs to the lowest unit "
                        "that contains all modules with it");
    }
  }
  TORCH_CHECK_VALUE(!seen.empty(), "fully_shard: the model has no parameters");
}

// The first byte of a tensor in its storage, and the one behind its last.
std::pair<int64_t, int64_t> Extent(const at::Tensor& tensor) {
  int64_t last = tensor.storage_offset();
  for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  return {tensor.storage_offset() * tensor.element_size(), (last + 1) * tensor.element_size()};
}

// Whether two tensors over one storage have a byte in common.
bool ShareMemory(const at::Tensor& a, const at::Tensor& b) {
  if (a.numel() == 0 || b.numel() == 0 || a.is_meta()) return false;
  const auto [a_begin, a_end] = Extent(a);
  const auto [b_begin, b_end] = Extent(b);
  if (a_end <= b_begin || b_end <= a_begin) return false;
  // Columns of one matrix lie between each other.
  const int64_t begin = std::min(a_begin, b_begin);
  const at::Tensor touched = at::zeros({std::max(a_end, b_end) - begin}, at::kByte);
  const auto bytes_of = [&](const at::Tensor& tensor) {
    const int64_t size = tensor.element_size();
    std::vector<int64_t> sizes = tensor.sizes().vec(), strides = tensor.strides().vec();
    for (int64_t& stride : strides) stride *= size;
    sizes.push_back(size);
    strides.push_back(1);
    return touched.as_strided(sizes, strides, tensor.storage_offset() * size - begin);
  };
  bytes_of(a).fill_(1);
  return bytes_of(b).any().item<bool>();
}

// They would be independent of each other once they are sharded.
void CheckNoSharedMemory(const std::vector<UnitParameters>& units,
                         const std::vector<at::Tensor>& buffers) {
  const at::NoGradGuard no_grad;
  std::map<const void*, std::vector<NamedTensor>> by_storage;
  const auto check = [&](const std::string& name, const at::Tensor& tensor) {
    if (!tensor.has_storage()) return;
    for (const NamedTensor& other : by_storage[tensor.storage().unsafeGetStorageImpl()]) {
      TORCH_CHECK_VALUE(!ShareMemory(other.tensor, tensor), "fully_shard: ", name,
                        " shares memory with \"", other.name,
                        "\", and would be a copy of its own once the model is sharded; compute it "
                        "from the parameter in forward, or use the same tensor in both places");
    }
  };
  for (const UnitParameters& unit : units) {
    for (const NamedTensor& p : unit.parameters) {
      check(absl::StrCat("\"", p.name, "\""), p.tensor);
      if (p.tensor.has_storage())
        by_storage[p.tensor.storage().unsafeGetStorageImpl()].push_back(p);
    }
  }
  for (const at::Tensor& buffer : buffers)
    check(absl::StrCat("a buffer of shape [", absl::StrJoin(buffer.sizes(), ", "), "]"), buffer);
}

}  // namespace

void CheckSameReplicas(Collective& control, int64_t replicas) {
  CheckSame(control, absl::StrCat("replicas: ", replicas));
}

FullyShard::FullyShard(const std::vector<UnitParameters>& units,
                       const std::vector<at::Tensor>& buffers, const ShardGroups& groups,
                       std::shared_ptr<Collective> control, FullyShardOptions options) {
  CheckUnits(units, options);
  if (control != nullptr) CheckSame(*control, Describe(units, buffers, groups, options));
  CheckNoSharedMemory(units, buffers);
  if (groups.all != nullptr) {
    for (const at::Tensor& buffer : buffers) {
      const at::NoGradGuard no_grad;
      const at::Tensor dense = buffer.detach().contiguous();
      std::vector<at::Tensor> bytes = {base::ElementBytes(dense)};
      groups.all->broadcast(bytes)->wait();
      if (!dense.is_same(buffer)) buffer.detach().copy_(dense);
    }
  }
  steps_ = std::make_shared<Steps>(units, groups, std::move(control), std::move(options));
  steps_->WatchGradients();
}

FullyShard::~FullyShard() = default;

void FullyShard::BeginForward(size_t unit, const std::vector<at::Tensor>& inputs) {
  steps_->BeginForward(unit, inputs);
}

void FullyShard::EndForward(size_t unit, const std::vector<at::Tensor>& outputs) {
  steps_->EndForward(unit, outputs);
}

void FullyShard::AbandonForward(size_t unit) { steps_->AbandonForward(unit); }

std::vector<NamedTensor> FullyShard::Shards() const {
  std::vector<NamedTensor> shards;
  for (size_t u = 0; u < steps_->size(); ++u) {
    const FlatUnit& unit = steps_->unit(u);
    for (size_t i = 0; i < unit.num_parameters(); ++i)
      shards.push_back({unit.parameter_name(i), unit.shard(i)});
  }
  return shards;
}

void FullyShard::set_sync(bool sync) { steps_->sync = sync; }

bool FullyShard::sync() const { return steps_->sync; }

void FullyShard::DropGradients() { steps_->DropGradients(); }

at::Tensor FullyShard::ClipGradNorm(double max_norm, double p) {
  return steps_->ClipGradNorm(max_norm, p);
}

void FullyShard::BeginFull() { steps_->BeginFull(); }

void FullyShard::EndFull() { steps_->EndFull(); }

std::vector<NamedTensor> FullyShard::GatherWhole(size_t unit,
                                                 const std::vector<at::Tensor>& pieces) {
  const std::vector<at::Tensor> whole = steps_->GatherWhole(unit, pieces);
  std::vector<NamedTensor> named;
  for (size_t i = 0; i < whole.size(); ++i)
    named.push_back({steps_->unit(unit).parameter_name(i), whole[i]});
  return named;
}

void FullyShard::Load(const std::string& name, const at::Tensor& whole, const at::Tensor& into) {
  for (size_t u = 0; u < steps_->size(); ++u) {
    FlatUnit& unit = steps_->unit(u);
    for (size_t i = 0; i < unit.num_parameters(); ++i) {
      if (unit.parameter_name(i) == name) return unit.Load(i, whole, into);
    }
  }
  TORCH_CHECK_VALUE(false, "fully_shard: the model has no parameter \"", name, "\"");
}

FullyShardStats FullyShard::Stats() const { return steps_->Stats(); }

}  // namespace lockstep::sharding
