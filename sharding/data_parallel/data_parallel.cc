#include "sharding/data_parallel/data_parallel.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "ATen/core/ivalue.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/torch/versions/node.h"
#include "c10/util/Exception.h"
#include "sharding/agreement/c10d_collective.h"
#include "sharding/agreement/gather_texts.h"
#include "sharding/data_parallel/replica_comparison.h"
#include "torch/csrc/autograd/custom_function.h"
#include "torch/csrc/autograd/engine.h"
#include "torch/csrc/autograd/graph_task.h"
#include "torch/csrc/autograd/utils/lambda_post_hook.h"
#include "torch/csrc/autograd/variable.h"
#include "torch/csrc/distributed/c10d/comm.hpp"
#include "torch/csrc/distributed/c10d/logger.hpp"
#include "torch/csrc/distributed/c10d/reducer.hpp"

namespace lockstep::sharding {

// Keeps the Reducer as long as the DataParallel or a graph needs it. The Reducer uses its logger
// without checking that there is one.
struct ReducerOwner : public torch::CustomClassHolder {
  explicit ReducerOwner(std::shared_ptr<c10d::Reducer> made)
      : reducer(std::move(made)), logger(std::make_shared<c10d::Logger>(reducer)) {
    reducer->set_logger(logger);
  }

  std::shared_ptr<c10d::Reducer> reducer;
  std::shared_ptr<c10d::Logger> logger;
};

// Tells backward passes apart. The Reducer averages the first one that fills gradients after a
// forward pass, and no other.
struct BackwardWatch {
  BackwardWatch(const std::vector<NamedTensor>& trained, int rank) {
    for (const NamedTensor& p : trained) {
      auto accumulator = torch::autograd::impl::grad_accumulator(p.tensor);
      const auto note = [passes = passes, rank](const auto& outputs, const auto& /*inputs*/) {
        passes->NoteGradient(rank);
        return outputs;
      };
      const uintptr_t key = accumulator->add_post_hook(
          std::make_unique<torch::autograd::utils::LambdaPostHook>(note));
      hooks.emplace_back(std::move(accumulator), key);
    }
  }
  ~BackwardWatch() {
    for (const auto& [accumulator, key] : hooks) accumulator->del_post_hook(key);
  }

  // Notes that a forward pass ends whose backward is to be averaged.
  void NoteForward(const std::vector<at::Tensor>& outputs) const {
    passes->averaged = kNone;
    for (const at::Tensor& output : outputs) {
      if (!output.requires_grad() || output.is_leaf()) continue;
      output.register_hook([passes = passes](const at::Tensor& /*gradient*/) {
        passes->reached = torch::autograd::get_current_graph_task_id();
      });
    }
  }

  static constexpr int kNone = -1;

  // Graph tasks: numbers that autograd gives to calls of backward. Its threads may be several.
  struct Passes {
    void NoteGradient(int rank) {
      const int current = torch::autograd::get_current_graph_task_id();
      if (reached != current) return;  // not of an output of ours, or of one without averaging
      int before = kNone;
      TORCH_CHECK(averaged.compare_exchange_strong(before, current) || before == current,
                  "data_parallel: on rank ", rank,
                  " this backward pass is the second since the last forward pass, and its "
                  "gradients would not be averaged. Run one backward after each forward, add the "
                  "losses of several forwards up and run one, or call no_sync where a pass is not "
                  "to be averaged");
    }

    std::atomic<int> reached = kNone;   // the last one through an output
    std::atomic<int> averaged = kNone;  // the first one since the last forward
  };

  std::shared_ptr<Passes> passes = std::make_shared<Passes>();
  std::vector<std::pair<base::NodePointer<torch::autograd::Node>, uintptr_t>> hooks;
};

namespace {

// Checks that all ranks give the same options. Ranks that rounded to different dtypes would add up
// bytes of one as bytes of the other.
void CheckSameOptions(Collective& collective, const DataParallelOptions& options) {
  static constexpr const char* kCompressions[] = {"none", "bf16", "fp16"};
  const std::string own =
      absl::StrCat("bucket_bytes = ", options.bucket_bytes, "\nfind_unused = ", options.find_unused,
                   "\nstatic_graph = ", options.static_graph,
                   "\ncompression = ", kCompressions[static_cast<size_t>(options.compression)],
                   "\nbroadcast_buffers = ", options.broadcast_buffers,
                   "\ngradient_as_bucket_view = ", options.gradient_as_bucket_view,
                   "\ncompare_every = ", options.compare_every);
  const absl::StatusOr<std::vector<std::string>> texts = GatherTexts(collective, own);
  TORCH_CHECK(texts.ok(), std::string(texts.status().message()));
  int count = 0;
  const std::string differences = DifferentLines(collective, *texts, &count);
  TORCH_CHECK_VALUE(count == 0, "data_parallel: the ranks give different options:", differences);
}

// --- The Reducer ---------------------------------------------------------------------------------

// Returns its inputs. Its backward waits for all gradients before any are averaged: that is how the
// first iteration of a static graph learns which parameters it uses, and how often.
struct DelayAveraging : public torch::autograd::Function<DelayAveraging> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context,
                                                at::TensorList outputs,
                                                c10::intrusive_ptr<ReducerOwner> owner) {
    context->saved_data["owner"] = at::IValue::make_capsule(std::move(owner));
    context->set_materialize_grads(false);
    torch::autograd::variable_list copies;
    for (const at::Tensor& output : outputs) copies.push_back(output.view_as(output));
    return copies;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    torch::autograd::Engine::get_default_engine().queue_callback(
        [owner = c10::static_intrusive_pointer_cast<ReducerOwner>(
             context->saved_data["owner"].toCapsule())] { owner->reducer->delay_all_reduce(); });
    gradients.emplace_back();  // for the owner, which has none
    return gradients;
  }
};

// Averages a bucket in `dtype`, which takes half the bytes of float32, as PyTorch's
// bf16_compress_hook and fp16_compress_hook do in Python.
class CompressHook : public c10d::CommHookInterface {
 public:
  CompressHook(c10::intrusive_ptr<c10d::ProcessGroup> group, at::ScalarType dtype)
      : group_(std::move(group)), dtype_(dtype) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    at::Tensor full = bucket.getBufferRef();
    std::vector<at::Tensor> compressed = {full.to(dtype_).div_(group_->getSize())};
    const auto work = group_->allreduce(compressed);
    return work->getFuture()->then(
        [full, compressed](c10::ivalue::Future& future) -> at::IValue {
          if (future.hasError()) std::rethrow_exception(future.exception_ptr());
          full.copy_(compressed[0]);
          return full;
        },
        c10::TensorType::get());
  }

  at::Tensor parseHookResult(const c10::IValue& result) override { return result.toTensor(); }

 private:
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  at::ScalarType dtype_;
};

// Makes a Reducer that begins with the buckets `given`, or, where it is empty, with buckets by
// size.
std::shared_ptr<c10d::Reducer> NewReducer(const std::vector<NamedTensor>& trained,
                                          const std::vector<std::vector<size_t>>& given,
                                          const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                          const DataParallelOptions& options) {
  std::vector<at::Tensor> tensors;
  std::unordered_map<size_t, std::string> names;
  for (const NamedTensor& p : trained) {
    names[tensors.size()] = p.name;
    tensors.push_back(p.tensor);
  }
  const std::vector<bool> sparse(tensors.size(), false);
  // The first bucket is small, so that averaging starts early in backward.
  const std::vector<size_t> sizes = {
      static_cast<size_t>(std::min<int64_t>(c10d::kDefaultFirstBucketBytes, options.bucket_bytes)),
      static_cast<size_t>(options.bucket_bytes)};
  auto [buckets, limits] = c10d::compute_bucket_assignment_by_size(tensors, sizes, sparse);
  // Gradients come in about the reverse order of the parameters.
  std::reverse(buckets.begin(), buckets.end());
  if (!given.empty()) buckets = given;
  auto reducer = std::make_shared<c10d::Reducer>(
      std::move(tensors), std::move(buckets), group, sparse, options.bucket_bytes,
      options.find_unused, options.gradient_as_bucket_view, std::move(names),
      static_cast<int64_t>(sizes[0]),
      /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false,
      std::vector<int64_t>{});
  if (options.static_graph) reducer->set_static_graph();
  if (options.compression != Compression::kNone) {
    reducer->register_comm_hook(std::make_unique<CompressHook>(
        group, options.compression == Compression::kBFloat16 ? at::kBFloat16 : at::kHalf));
  }
  return reducer;
}

// Returns the names of the parameters that got no gradient; the Reducer's message has their
// indices.
std::string NameUnused(const std::string& message, const std::vector<NamedTensor>& trained) {
  constexpr char kMarker[] = "did not receive grad for rank ";
  const size_t marker = message.find(kMarker);
  if (marker == std::string::npos) return "";
  const std::string rest = message.substr(message.find(':', marker) + 1);
  std::vector<std::string> names;
  for (const absl::string_view word : absl::StrSplit(
           rest.substr(0, rest.find_first_not_of(" 0123456789")), ' ', absl::SkipEmpty())) {
    size_t index = 0;
    if (absl::SimpleAtoi(word, &index) && index < trained.size())
      names.push_back(trained[index].name);
  }
  return absl::StrJoin(names, ", ");
}

}  // namespace

DataParallel::DataParallel(const std::vector<NamedTensor>& parameters,
                           const std::vector<NamedTensor>& buffers,
                           c10::intrusive_ptr<c10d::ProcessGroup> group,
                           const DataParallelOptions& options)
    : group_(std::move(group)), options_(options) {
  TORCH_CHECK_VALUE(options.bucket_bytes > 0, "data_parallel: bucket_bytes must be above 0, not ",
                    options.bucket_bytes);
  TORCH_CHECK_VALUE(options.compare_every >= 0,
                    "data_parallel: compare_every must be at least 0, not ", options.compare_every);
  TORCH_CHECK_VALUE(
      !(options.find_unused && options.static_graph),
      "data_parallel: a static graph finds its unused parameters by itself; drop find_unused");
  if (options_.ranks.empty()) {
    options_.ranks.resize(static_cast<size_t>(group_->getSize()));
    std::iota(options_.ranks.begin(), options_.ranks.end(), 0);
  }
  C10dCollective collective(group_, options_.ranks);
  CheckSameOptions(collective, options_);
  if (options_.control != nullptr) {
    comparison_ =
        std::make_unique<ReplicaComparison>(std::move(options_.control), options_.compare_every);
    comparison_->BeginAnew(0, Describe(parameters, buffers));
  }
  Adopt(parameters, buffers);
}

DataParallel::~DataParallel() = default;

bool DataParallel::HasChanged(const std::vector<NamedTensor>& parameters) const {
  const auto is_known = [](const NamedTensor& now, const Known& known) {
    return now.tensor.is_same(known.tensor) && now.tensor.requires_grad() == known.is_trained;
  };
  return !std::equal(parameters.begin(), parameters.end(), known_.begin(), known_.end(), is_known);
}

// The number of changes tells a rank that has replaced a tensor by an equal one.
std::string DataParallel::Describe(const std::vector<NamedTensor>& parameters,
                                   const std::vector<NamedTensor>& buffers) const {
  return absl::StrCat(DescribeParameters(parameters),
                      options_.broadcast_buffers ? DescribeBuffers(buffers) : "",
                      "changes since the module was replicated: ", changes_, "\n");
}

// Takes the parameters as they are now. Tensors that were not there before get rank 0's values.
void DataParallel::Adopt(const std::vector<NamedTensor>& parameters,
                         const std::vector<NamedTensor>& buffers) {
  C10dCollective collective(group_, options_.ranks);
  CheckSameModule(collective, Describe(parameters, buffers));

  std::vector<at::Tensor> added;
  const auto is_known = [&](const NamedTensor& p) {
    return std::any_of(known_.begin(), known_.end(),
                       [&](const Known& known) { return known.tensor.is_same(p.tensor); });
  };
  for (const NamedTensor& p : parameters) {
    if (!is_known(p)) added.push_back(p.tensor.detach());
  }
  if (options_.broadcast_buffers) {
    for (const NamedTensor& b : buffers) added.push_back(b.tensor.detach());
  }
  constexpr size_t kBroadcastBytes = size_t{250} << 20;
  if (!added.empty()) c10d::broadcast_coalesced(group_, added, kBroadcastBytes, 0);

  trained_.clear();
  known_.clear();
  for (const NamedTensor& p : parameters) {
    if (p.tensor.requires_grad()) trained_.push_back(p);
    known_.push_back({p.tensor, p.tensor.requires_grad()});
  }
  if (options_.broadcast_buffers) buffers_ = DescribeBuffers(buffers);
  buckets_.clear();
  watch_ = nullptr;
  if (!trained_.empty()) {
    watch_ = std::make_unique<BackwardWatch>(
        trained_, options_.ranks[static_cast<size_t>(group_->getRank())]);
  }
  RenewReducer();
}

// With unused parameters the Reducer must exist from the first pass on: it records used parameters
// while averaging is off. With a static graph it must not exist: it counts each parameter's
// gradients, also in passes without averaging, and would then wait for more than come.
void DataParallel::RenewReducer() {
  delayed_ = false;
  if (reducer_ != nullptr) reducer_->reducer->remove_autograd_hooks();  // a graph may own it longer
  reducer_ = nullptr;
  if (!trained_.empty() && !options_.static_graph) MakeReducer();
}

void DataParallel::MakeReducer() {
  reducer_ = c10::make_intrusive<ReducerOwner>(NewReducer(trained_, buckets_, group_, options_));
}

bool DataParallel::BeginPass(const std::vector<NamedTensor>& parameters,
                             const std::vector<NamedTensor>& buffers) {
  if (!at::GradMode::is_enabled()) return false;
  const bool has_changed = HasChanged(parameters);
  if (!has_changed && (!sync_ || trained_.empty())) return false;
  ++passes_;
  if (has_changed) {
    CheckBackward();  // of the Reducer that goes
    ++changes_;
    if (comparison_ != nullptr) comparison_->BeginAnew(passes_, Describe(parameters, buffers));
  }
  if (comparison_ != nullptr) comparison_->Compare(passes_, parameters);
  if (has_changed) Adopt(parameters, buffers);
  return has_changed;
}

void DataParallel::BeforeForward(const std::vector<NamedTensor>& buffers) {
  if (trained_.empty() || !at::GradMode::is_enabled() || !sync_) return;
  if (reducer_ == nullptr) MakeReducer();
  reducer_->reducer->prepare_for_forward();
  RebuildBuckets();
  if (!options_.broadcast_buffers) return;
  const std::string now = DescribeBuffers(buffers);
  TORCH_CHECK_VALUE(now == buffers_, "data_parallel: the module's buffers on rank ",
                    options_.ranks[static_cast<size_t>(group_->getRank())],
                    " are not those that it was replicated with.\nThen:\n", buffers_, "Now:\n", now,
                    "Replicate the module again, or pass broadcast_buffers = false");
  std::vector<at::Tensor> tensors;
  for (const NamedTensor& b : buffers) tensors.push_back(b.tensor.detach());
  constexpr size_t kBroadcastBytes = size_t{1} << 20;
  if (!tensors.empty()) c10d::broadcast_coalesced(group_, tensors, kBroadcastBytes, 0);
}

// Calls it, and names the parameters in its error.
void DataParallel::NamingUnused(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    const std::string names = NameUnused(error.what_without_backtrace(), trained_);
    if (names.empty()) throw;
    TORCH_CHECK(false, "data_parallel: on rank ",
                options_.ranks[static_cast<size_t>(group_->getRank())],
                " the last backward gave no gradient to ", names,
                ". Let every parameter take part in forward and every output in the loss, call "
                "no_sync where a pass is not to be "
                "averaged, freeze what is not trained with requires_grad_(false), or pass "
                "find_unused = true");
  }
}

void DataParallel::RebuildBuckets() {
  NamingUnused([this] { reducer_->reducer->rebuild_buckets(); });
}

void DataParallel::CheckBackward() {
  if (reducer_ != nullptr) NamingUnused([this] { reducer_->reducer->check_finalized(); });
}

std::vector<at::Tensor> DataParallel::AfterForward(std::vector<at::Tensor> outputs) {
  if (reducer_ == nullptr || !at::GradMode::is_enabled() || !sync_) return outputs;
  watch_->NoteForward(outputs);
  if (!options_.static_graph) {
    reducer_->reducer->prepare_for_backward(options_.find_unused ? outputs
                                                                 : std::vector<at::Tensor>());
    return outputs;
  }
  reducer_->reducer->prepare_for_backward({});
  if (!delayed_) {
    delayed_ = true;
    return DelayAveraging::apply(at::TensorList(outputs), reducer_);
  }
  return outputs;
}

std::vector<std::vector<size_t>> DataParallel::Buckets() {
  if (reducer_ == nullptr) return {};
  // The next forward would do this first.
  RebuildBuckets();
  return reducer_->logger->get_per_bucket_variable_indices();
}

void DataParallel::SetBuckets(const std::vector<std::vector<size_t>>& buckets) {
  std::vector<bool> seen(trained_.size(), false);
  size_t num_seen = 0;
  for (const std::vector<size_t>& bucket : buckets) {
    for (const size_t index : bucket) {
      TORCH_CHECK_VALUE(index < seen.size() && !seen[index], "data_parallel: the buckets hold ",
                        index, ", which is none of the ", seen.size(),
                        " trained parameters, or is there twice");
      seen[index] = true;
      ++num_seen;
    }
  }
  TORCH_CHECK_VALUE(num_seen == seen.size(), "data_parallel: the buckets hold ", num_seen, " of ",
                    seen.size(), " trained parameters");
  buckets_ = buckets;
  RenewReducer();
}

}  // namespace lockstep::sharding
