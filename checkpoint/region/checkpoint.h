// Activation checkpointing: a region of a model keeps its inputs and none of its activations, and
// computes them again when backward needs them.
//
//   Checkpoint checkpoint;
//   std::vector<at::Tensor> y = checkpoint(layer, {x});   // layer: vector of tensors to vector
//   y[0].sum().backward();                                // layer runs once more, in here
//
// Gradients equal those without, bit for bit where operators are deterministic. It is
// non-reentrant: the graph is the plain one, whose saved tensors are placeholders. So everything
// that works on a graph works: several outputs, gradients of any input, frozen weights, inputs that
// need no gradient, several backward calls, data parallel reducers that look for unused parameters.
// Regions nest: what an inner region keeps is an activation of the outer one. The recomputation
// stops as soon as the last tensor that backward may ask for is there, and happens once for each
// backward. Memory is that of the graph: it is freed when the graph is.
//
// Where operators are cheap and activations large (pointwise chains, attention without a fused
// kernel) regions cost little; a whole layer costs about a third of a step. With `offload`
// (host_offload.h) the inputs wait in host memory; with `save` (selective.h) the results of dear
// operators are kept.
//
// The function of a region runs again, with other tensors that hold the same elements as its
// inputs. It must do the same: an error names the tensor that differs in shape, dtype or device. An
// exception leaves it when the recomputation stops early: let it pass (StopRecomputation). With
// gradients off the region just runs.
//
// Source: the rules of torch/utils/checkpoint.py of PyTorch 2.11, use_reentrant=False.
// Thread: regions of one Checkpoint may run on several threads; backward runs functions on the
// thread that needs their activations.

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
  // Random generators are put back for the recomputation: dropout draws the same masks.
  bool preserve_rng = true;
  // The recomputation stops at the last tensor that is needed. Without, it runs to the end, and
  // tells where it saves more than forward did.
  bool early_stop = true;
  // Shape, dtype and device of each recomputed tensor are compared to forward's.
  bool check_metadata = true;
  std::shared_ptr<HostOffload> offload = nullptr;   // null: inputs stay where they are
  std::shared_ptr<const Selection> save = nullptr;  // null: everything is recomputed
  int rank = -1;                                    // named in errors, where it is one
};

// Leaves a region's function when its recomputation is done. No error: catch it nowhere.
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
  // Results that `save` names and that were computed again, since they were modified in place.
  int64_t modified_results = 0;
};

class Checkpoint {
 public:
  using Function = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;
  // One that keeps its results itself: the recomputation has no use for them.
  using Region = std::function<void(const std::vector<at::Tensor>&)>;

  explicit Checkpoint(CheckpointOptions options = {});

  // What `function` returns for `inputs`, of which some may be undefined. `function` is kept until
  // backward, or the graph's end. `name` calls the region in messages. Throws what `function`
  // throws.
  std::vector<at::Tensor> operator()(const Function& function,
                                     const std::vector<at::Tensor>& inputs,
                                     const std::string& name = "") const;

  void Run(const Region& region, const std::vector<at::Tensor>& inputs,
           const std::string& name = "") const;

  CheckpointStats stats() const;
  const CheckpointOptions& options() const;

 private:
  struct State;
  std::shared_ptr<State> state_;  // outlived by no region
};

}  // namespace lockstep::checkpoint

#endif  // LOCKSTEP_CHECKPOINT_REGION_CHECKPOINT_H_
