// Activation checkpointing: a region of a model keeps its inputs and none of its activations, and
// computes the activations again when backward needs them.
//
//    Checkpoint checkpoint;
//    std::vector<at::Tensor> y = checkpoint(layer, {x});   // layer: vector of tensors to vector
//    y[0].sum().backward();                                // layer runs once more, in here
//
// Use it when activations do not fit into memory. A region of cheap operators with large
// activations (pointwise chains, attention without a fused kernel) costs little time. A whole layer
// costs about a third of a step. With `offload` (host_offload.h) the inputs wait in host memory.
// With `save` (selection.h) the results of expensive operators are kept.
//
// Gradients equal those without checkpointing, bit for bit if operators are deterministic. The
// method is non-reentrant: the graph is the plain graph, and its saved tensors are placeholders. So
// everything that works on a graph works: several outputs, gradients of any input, frozen weights,
// inputs that need no gradient, several backward calls, data parallel reducers that look for unused
// parameters. Regions may nest: the inputs of an inner region are activations of the outer one. The
// recomputation runs once for each backward, and stops at the last tensor that backward may need.
// Its memory is freed with the graph.
//
// The function of a region runs again, on other tensors that hold the same elements as its inputs.
// It must do the same in both runs. If it does not, an error names the tensor that differs in
// shape, dtype or device. An exception, StopRecomputation, leaves the function when the
// recomputation stops early: do not catch it. With gradients off the function just runs.
//
// Source: the rules of torch/utils/checkpoint.py of PyTorch 2.11, use_reentrant=False. Thread:
// regions of one Checkpoint may run on several threads. Backward runs functions on the thread that
// needs their activations.

#ifndef LOCKSTEP_CHECKPOINT_REGION_CHECKPOINT_H_
#define LOCKSTEP_CHECKPOINT_REGION_CHECKPOINT_H_

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ATen/core/TensorBody.h"

namespace lockstep::checkpoint {

class HostOffload;
class Selection;

struct CheckpointOptions {
  // Restores random generators for the recomputation, so that dropout draws the same masks.
  bool preserve_rng = true;
  // Stops the recomputation at the last tensor that backward needs. If false, it runs to the end
  // and reports if it saves more tensors than forward did.
  bool early_stop = true;
  // Compares shape, dtype and device of each recomputed tensor with forward's.
  bool check_metadata = true;
  std::shared_ptr<HostOffload> offload = nullptr;   // null: inputs stay on their device
  std::shared_ptr<const Selection> save = nullptr;  // null: everything is recomputed
  int rank = -1;                                    // named in errors; -1: not named
};

// Leaves a region's function when its recomputation is done. It is not an error; do not catch it.
class StopRecomputation : public std::exception {
 public:
  const char* what() const noexcept override {
    return "checkpoint: the recomputation has all it needs and stops here; this is no error, and "
           "no handler of the region's function should keep it";
  }
};

struct CheckpointStats {
  int64_t regions = 0;     // forward passes of regions, with gradients on
  int64_t recomputes = 0;  // runs of a region's function within backward
  // Results that `save` names but that were computed again because they were modified in place.
  int64_t modified_results = 0;
};

class Checkpoint {
 public:
  using Function = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;
  // A function that keeps its results itself. The recomputation ignores them.
  using Region = std::function<void(const std::vector<at::Tensor>&)>;

  explicit Checkpoint(CheckpointOptions options = {});

  // Returns function(inputs); inputs may be undefined. Keeps `function` until backward, or until
  // the graph ends. `name` stands for the region in messages. Throws the exceptions of `function`.
  std::vector<at::Tensor> operator()(const Function& function,
                                     const std::vector<at::Tensor>& inputs,
                                     const std::string& name = "") const;

  // Does the same for a function without results.
  void Run(const Region& region, const std::vector<at::Tensor>& inputs,
           const std::string& name = "") const;

  CheckpointStats stats() const;
  const CheckpointOptions& options() const;

 private:
  struct State;
  std::shared_ptr<State> state_;  // lives at least as long as every region
};

}  // namespace lockstep::checkpoint

#endif  // LOCKSTEP_CHECKPOINT_REGION_CHECKPOINT_H_
