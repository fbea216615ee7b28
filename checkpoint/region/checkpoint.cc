#include "checkpoint/region/checkpoint.h"

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "ATen/DimVector.h"
#include "ATen/core/grad_mode.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/torch/is_parameter.h"
#include "base/torch/replay.h"
#include "base/torch/runs_again.h"
#include "c10/core/InferenceMode.h"
#include "c10/util/Exception.h"
#include "checkpoint/offload/host_offload.h"
#include "checkpoint/region/engine.h"
#include "checkpoint/region/selection.h"
#include "torch/csrc/autograd/engine.h"
#include "torch/csrc/autograd/graph_task.h"
#include "torch/csrc/autograd/saved_variable.h"

// A frame is one forward pass of a region. In forward each tensor that an operator saves becomes a
// Placeholder: an index into the frame, without a tensor. The first placeholder that a backward
// call unpacks runs the function again, under hooks that put the i-th saved tensor into slot i.
// Every placeholder of that backward call then takes its tensor out of its slot, and nothing stays
// behind. Another backward call has its own slots: the function runs again.
//
// The frame keeps its inputs as autograd keeps saved tensors, under the hooks that are in force
// where the region is called. Within another region these are the outer frame's: so unpacking an
// input runs the outer function first, and nesting to any depth needs no code. A recomputation
// installs hooks of its own, and regions met on the way make new frames, as in forward.
//
// Ownership points one way: graph node, saved variable, placeholder, frame, inputs, earlier nodes.
// A frame knows its placeholders by plain pointers, which they clear. Aliases without history fill
// the slots. So there is no cycle, and a dropped graph frees everything.

namespace lockstep::checkpoint {

namespace {

struct Counts {
  std::atomic<int64_t> regions{0};
  std::atomic<int64_t> recomputes{0};
  std::atomic<int64_t> modified_results{0};
};

}  // namespace

struct Checkpoint::State {
  CheckpointOptions options;
  Counts counts;
};

namespace {

struct Metadata {
  explicit Metadata(const at::Tensor& tensor)
      : dtype(tensor.scalar_type()), device(tensor.device()), sizes(tensor.sizes()) {
    if (base::IsOfParameter(tensor)) version = tensor._version();
  }
  // A region's input is no parameter in forward, and like one when it is recomputed.
  bool operator==(const Metadata& other) const {
    return dtype == other.dtype && device == other.device && sizes == other.sizes &&
           (version < 0 || other.version < 0 || version == other.version);
  }
  std::string ToString() const {
    return absl::StrCat(c10::toString(dtype), " {", absl::StrJoin(sizes, ", "), "} on ",
                        device.str(),
                        version < 0 ? "" : absl::StrCat(", a parameter at version ", version));
  }

  at::ScalarType dtype;
  at::Device device;
  at::DimVector sizes;
  int64_t version = -1;  // of a parameter or its view: as backward must find it
};

struct Slot {
  enum class Content { kNothing, kTensor, kTaken };
  Content content = Content::kNothing;
  at::Tensor tensor;
  uint32_t version = 0;
};

class Placeholder;

class Frame : public std::enable_shared_from_this<Frame> {
 public:
  Frame(const CheckpointOptions& options, Counts& counts, Checkpoint::Region region,
        const std::vector<at::Tensor>& inputs, std::string name)
      : options_(options),
        counts_(counts),
        region_(std::move(region)),
        name_(std::move(name)),
        random_(options.preserve_rng ? base::RandomState::Of(inputs) : base::RandomState()) {
    kept_results_.keep_random = options.preserve_rng;
    SaveInputs(inputs);
  }

  // Runs the function for the first time.
  void Forward(const std::vector<at::Tensor>& inputs);

  // The index of what a placeholder stands for.
  size_t Add(Placeholder* placeholder, const at::Tensor& tensor);
  void Forget(size_t index);
  at::Tensor Take(size_t index);

 private:
  friend class Pass;
  struct Input {
    torch::autograd::SavedVariable saved;
    bool requires_grad = false;
  };
  using Slots = std::vector<Slot>;

  void SaveInputs(const std::vector<at::Tensor>& inputs);
  std::vector<at::Tensor> RestoreInputs() const;
  Slots Recompute();
  std::string Name() const;
  std::string Where() const;

  const CheckpointOptions options_;
  Counts& counts_;  // of the Checkpoint, which a shared pointer in region_ keeps
  const Checkpoint::Region region_;
  const std::string name_;
  const base::RandomState random_;
  const base::Autocast autocast_ = base::Autocast::Now();
  std::vector<Input> inputs_;
  KeptResults kept_results_;

  // Recursive: a recomputation may drop the graph that holds placeholders of its own frame.
  mutable std::recursive_mutex mutex_;      // guards all below, and keeps recomputations apart
  std::vector<Placeholder*> placeholders_;  // null: the graph has dropped it
  std::vector<Metadata> metadata_;
  bool forward_is_complete_ = false;
  std::map<int, Slots> slots_;  // by backward call, as libtorch numbers them
};

// Stands for one tensor that forward saved.
class Placeholder : public torch::autograd::SavedVariableHooks {
 public:
  explicit Placeholder(std::shared_ptr<Frame> frame) : frame_(std::move(frame)) {}
  ~Placeholder() override {
    if (index_.has_value()) frame_->Forget(*index_);
  }
  void call_pack_hook(const at::Tensor& tensor) override { index_ = frame_->Add(this, tensor); }
  at::Tensor call_unpack_hook() override { return frame_->Take(*index_); }

 private:
  const std::shared_ptr<Frame> frame_;
  std::optional<size_t> index_;
};

// One run of a frame's function for its saved tensors.
class Pass {
 public:
  explicit Pass(const Frame& frame) : frame_(frame), slots_(frame.placeholders_.size()) {
    for (size_t i = 0; i < slots_.size(); ++i)
      if (frame.placeholders_[i] != nullptr) num_needed_ = i + 1;
  }

  // Keeps what the function saves now; returns it for a backward within the function. Throws
  // StopRecomputation after the last that is needed.
  at::Tensor Add(const at::Tensor& tensor);

  // Returns the kept tensors. Throws if the function did not do the same as in forward.
  std::vector<Slot> Finish();

  bool stopped() const { return stopped_; }

 private:
  void Compare(size_t index, const at::Tensor& tensor);

  const Frame& frame_;
  std::vector<Slot> slots_;
  size_t num_needed_ = 0;
  size_t num_saved_ = 0;
  bool stopped_ = false;
  std::vector<std::string> differences_;
};

// A saved tensor of the graph that a recomputation builds. It ends with that graph.
class RecomputedTensor : public torch::autograd::SavedVariableHooks {
 public:
  explicit RecomputedTensor(Pass* pass) : pass_(pass) {}
  void call_pack_hook(const at::Tensor& tensor) override { tensor_ = pass_->Add(tensor); }
  at::Tensor call_unpack_hook() override { return tensor_; }

 private:
  Pass* const pass_;
  at::Tensor tensor_;
};

// --- Pass ----------------------------------------------------------------------------------------

at::Tensor Pass::Add(const at::Tensor& tensor) {
  // A function that kept the last StopRecomputation from leaving gets another.
  if (stopped_) throw StopRecomputation();
  at::Tensor alias = Alias(tensor);
  const size_t index = num_saved_++;
  if (index >= slots_.size()) return alias;
  Compare(index, tensor);
  if (frame_.placeholders_[index] != nullptr)
    slots_[index] = {Slot::Content::kTensor, alias, static_cast<uint32_t>(alias._version())};
  if (frame_.options_.early_stop && num_saved_ >= num_needed_) {
    stopped_ = true;
    throw StopRecomputation();
  }
  return alias;
}

void Pass::Compare(size_t index, const at::Tensor& tensor) {
  if (!frame_.options_.check_metadata) return;
  const Metadata now(tensor);
  if (now == frame_.metadata_[index]) return;
  differences_.push_back(absl::StrCat("saved tensor ", index, " is ", now.ToString(), ", and was ",
                                      frame_.metadata_[index].ToString(), " in forward"));
}

std::vector<Slot> Pass::Finish() {
  constexpr char kAdvice[] =
      ". A region's function must do the same each time: let it depend on its inputs, not on what "
      "changes between forward and backward (a counter, a cache, a grown batch, a weight in place)";
  const size_t num_in_forward = frame_.placeholders_.size();
  // A backward call within the function meets a frame that is not complete: the function goes on
  // past what forward has saved so far.
  const bool all_there = stopped_ || (frame_.forward_is_complete_ ? num_saved_ == num_in_forward
                                                                  : num_saved_ >= num_needed_);
  TORCH_CHECK(all_there, frame_.Where(), "the recomputation saved ", num_saved_,
              " tensors for backward, forward saved ", num_in_forward, kAdvice);
  constexpr size_t kShown = 5;
  const size_t num_different = differences_.size();
  if (num_different > kShown) differences_.resize(kShown);
  TORCH_CHECK(num_different == 0, frame_.Where(), num_different,
              " recomputed tensors differ from those of forward:\n  ",
              absl::StrJoin(differences_, "\n  "), num_different > kShown ? "\n  ..." : "",
              kAdvice);
  return std::move(slots_);
}

// --- Frame ---------------------------------------------------------------------------------------

std::string Frame::Name() const {
  return name_.empty() ? "checkpoint region" : absl::StrCat("checkpoint region ", name_);
}

std::string Frame::Where() const {
  return absl::StrCat("checkpoint: ", name_.empty() ? "region" : "region " + name_,
                      options_.rank < 0 ? "" : absl::StrCat(" on rank ", options_.rank), ": ");
}

void Frame::SaveInputs(const std::vector<at::Tensor>& inputs) {
  inputs_.reserve(inputs.size());
  std::optional<ScopedHooks> offload;
  // Under other hooks, those of a region around this one or of SaveOnHost, inputs are theirs.
  if (options_.offload != nullptr && !HooksAreActive())
    offload.emplace(options_.offload->HooksOfRegion());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const at::Tensor& input = inputs[i];
    if (!input.defined()) {
      inputs_.emplace_back();
      continue;
    }
    TORCH_CHECK_VALUE(!input.is_inference(), Where(), "input ", i,
                      " was made in inference mode, and cannot be kept for backward; clone it "
                      "outside of inference mode first");
    inputs_.push_back(
        {torch::autograd::SavedVariable(input, /*is_output=*/false), input.requires_grad()});
  }
}

std::vector<at::Tensor> Frame::RestoreInputs() const {
  std::vector<at::Tensor> inputs;
  inputs.reserve(inputs_.size());
  for (const Input& input : inputs_) {
    const at::Tensor tensor = input.saved.unpack();
    inputs.push_back(tensor.defined() ? Alias(tensor).set_requires_grad(input.requires_grad)
                                      : at::Tensor());
  }
  return inputs;
}

void Frame::Forward(const std::vector<at::Tensor>& inputs) {
  const bool accelerator_was_in_use = base::AcceleratorIsInUse();
  {
    const ScopedHooks hooks([this] { return std::make_unique<Placeholder>(shared_from_this()); });
    const SelectionScope selection(options_.save.get(), &kept_results_,
                                   SelectionScope::Mode::kForward);
    const base::RunsAgainScope runs_again(Name());
    region_(inputs);
  }
  TORCH_CHECK(!options_.preserve_rng || accelerator_was_in_use == base::AcceleratorIsInUse(),
              Where(),
              "the first use of the accelerator is within the region, so that its random state "
              "before is unknown; make a tensor on the device first, or turn preserve_rng off");
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  forward_is_complete_ = true;
  kept_results_.is_complete = true;
}

size_t Frame::Add(Placeholder* placeholder, const at::Tensor& tensor) {
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  placeholders_.push_back(placeholder);
  if (options_.check_metadata) metadata_.emplace_back(tensor);
  return placeholders_.size() - 1;
}

void Frame::Forget(size_t index) {
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  placeholders_[index] = nullptr;
}

at::Tensor Frame::Take(size_t index) {
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  const int task = torch::autograd::get_current_graph_task_id();
  const bool in_backward = task != -1;
  auto found = slots_.find(task);
  // Forward may have gone on since, within a backward call around it.
  if (found == slots_.end() || index >= found->second.size()) {
    found = slots_.insert_or_assign(task, Recompute()).first;
    // Tensors that this backward call does not need must not outlive it.
    if (in_backward)
      torch::autograd::Engine::get_default_engine().queue_callback([weak = weak_from_this(), task] {
        if (const std::shared_ptr<Frame> frame = weak.lock()) {
          const std::lock_guard<std::recursive_mutex> lock(frame->mutex_);
          frame->slots_.erase(task);
        }
      });
  }
  Slot slot = std::exchange(found->second[index], {Slot::Content::kTaken, {}, 0});
  if (!in_backward) slots_.erase(found);
  TORCH_CHECK(slot.content != Slot::Content::kTaken, Where(), "saved tensor ", index,
              " is unpacked twice in one backward call; a custom Function must call "
              "get_saved_variables once and keep the result");
  TORCH_CHECK(slot.tensor._version() == slot.version, Where(), "saved tensor ", index,
              " was modified in place after it was saved, as it would have been without the "
              "region; use an operator that is not in place");
  return std::move(slot.tensor);
}

Frame::Slots Frame::Recompute() {
  ++counts_.recomputes;
  Pass pass(*this);
  const std::vector<at::Tensor> inputs = RestoreInputs();
  {
    const c10::InferenceMode no_inference(false);
    const at::AutoGradMode gradients(true);
    const base::RandomScope random(random_);
    const base::AutocastScope autocast(autocast_);
    const ScopedHooks hooks([&pass] { return std::make_unique<RecomputedTensor>(&pass); });
    const SelectionScope selection(options_.save.get(), &kept_results_,
                                   SelectionScope::Mode::kRecompute);
    const base::RunsAgainScope runs_again(Name());
    try {
      region_(inputs);
    } catch (const std::exception&) {
      // A language between us and the operator may have made another exception of ours.
      if (!pass.stopped()) throw;
    }
  }
  counts_.modified_results += std::exchange(kept_results_.num_modified, 0);
  return pass.Finish();
}

}  // namespace

// --- Checkpoint ----------------------------------------------------------------------------------

Checkpoint::Checkpoint(CheckpointOptions options) : state_(std::make_shared<State>()) {
  state_->options = std::move(options);
}

std::vector<at::Tensor> Checkpoint::operator()(const Function& function,
                                               const std::vector<at::Tensor>& inputs,
                                               const std::string& name) const {
  // The recomputation's results are dropped where they arise.
  auto results = std::make_shared<std::vector<at::Tensor>>();
  Run(
      [function, weak = std::weak_ptr(results)](const std::vector<at::Tensor>& tensors) {
        std::vector<at::Tensor> outputs = function(tensors);
        if (const auto kept = weak.lock()) *kept = std::move(outputs);
      },
      inputs, name);
  return std::move(*results);
}

void Checkpoint::Run(const Region& region, const std::vector<at::Tensor>& inputs,
                     const std::string& name) const {
  if (!at::GradMode::is_enabled()) return region(inputs);
  ++state_->counts.regions;
  const auto keeping = [state = state_, region](const std::vector<at::Tensor>& tensors) {
    region(tensors);
  };
  std::make_shared<Frame>(state_->options, state_->counts, keeping, inputs, name)->Forward(inputs);
}

CheckpointStats Checkpoint::stats() const {
  const Counts& counts = state_->counts;
  return {counts.regions, counts.recomputes, counts.modified_results};
}

const CheckpointOptions& Checkpoint::options() const { return state_->options; }

}  // namespace lockstep::checkpoint
