// Shards a model's parameters, gradients and optimizer state over ranks: a model that does not fit
// one device trains on several.
//
// The model is cut into units, a transformer's layers say. Each rank keeps an equal span of every
// unit. A unit is gathered before its forward, freed after it, gathered again for its backward, and
// its gradients are averaged into the ranks' spans as soon as they are complete.
//
//    FullyShard model({{"", root_parameters}, {"layers.0", ...}}, {}, groups, control, options);
//    std::vector<at::Tensor> shards;           // 1-D
//    for (const NamedTensor& shard : model.Shards()) shards.push_back(shard.tensor);
//    torch::optim::AdamW optimizer(shards);
//    model.BeginForward(0, {x});
//    model.BeginForward(1, {x});
//    y = layer(x);                             // the same tensors as before, now with values
//    model.EndForward(1, {y});
//    model.EndForward(0, {y});
//    loss.backward();                          // gathers, reduces and frees by itself
//    optimizer.step();
//    optimizer.zero_grad();
//
// The failure this prevents: one rank skips a unit, and its next collective meets a different one
// of another rank. The run then hangs, or mixes weights up. Here the ranks compare each collective
// first (turns.h). All of them get an error that names the unit and the ranks. With `joins`, a rank
// that skips a unit takes part with its span and a gradient of zero.
//
// Keep no view of a parameter beyond its unit's forward: its memory is given back. Nothing checks
// that in C++, and a kernel that reads the view gets a null pointer; from Lua it is an error. Views
// that autograd saved are there again in backward.
//
// Not for models that fit: data_parallel.h sends two thirds of the bytes. In a unit that ran, a
// parameter that is used on some ranks counts as zero on the others. A parameter that no rank has
// used gets no gradient, so an optimizer leaves its values and moments alone.
//
// Source: PyTorch's FSDP2 (torch.distributed.fsdp.fully_shard), which exists in Python alone. The
// gathered buffer as the parameters' memory: veScale-FSDP (arXiv 2602.22437).
//
// Thread: used by one thread, and backward runs on that thread or one device's thread.

#ifndef LOCKSTEP_SHARDING_FULLY_SHARD_FULLY_SHARD_H_
#define LOCKSTEP_SHARDING_FULLY_SHARD_FULLY_SHARD_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "sharding/agreement/collective.h"
#include "sharding/data_parallel/data_parallel.h"
#include "sharding/fully_shard/flat_unit.h"

namespace lockstep::sharding {

class Steps;  // private: steps.h

// Parameters that are gathered together.
struct UnitParameters {
  std::string name;  // "" for the root, the first of all
  std::vector<NamedTensor> parameters;
};

struct FullyShardOptions {
  UnitOptions unit;
  bool reshard_after_forward = true;  // false: a unit stays gathered until its backward is done
  int64_t prefetch = 1;               // units that are gathered ahead, in both directions
  bool joins = false;                 // ranks that skip a unit take part in its collectives
  // Bytes. A collective on CPUs in which no rank sends another one more than this travels with its
  // comparison, over the sockets of `control`. This takes less CPU time than Gloo, but the
  // computation waits for it. 0: all collectives go through the groups.
  int64_t exchange_bytes = 1 << 24;
  std::function<std::string()> place = [] { return std::string(); };  // the program's line
};

// Counts since the model was sharded.
struct FullyShardStats {
  int64_t gathers = 0, reductions = 0, joined = 0, prefetched = 0;
  int64_t exchanged = 0;           // gathers and reductions that travelled with their comparison
  int64_t gather_bytes = 0;        // that each rank sent to each other one in the gathers
  int64_t scale_reductions = 0;    // collectives that found the scales of all float8 weights
  int64_t float8_weights = 0;      // parameters that are gathered in float8
  int64_t shard_bytes = 0;         // this rank's masters
  int64_t largest_unit_bytes = 0;  // of the units beside the root, gathered
  int64_t root_bytes = 0;          // gathered
  int64_t pool_bytes = 0, peak_pool_bytes = 0;
};

// Throws c10::ValueError on all ranks unless they give the same number of replicas. Call it before
// the groups are made: ranks that make different groups wait for each other. Collective.
void CheckSameReplicas(Collective& control, int64_t replicas);

class FullyShard {
 public:
  // Copies rank 0's values to all ranks, unless `options.unit.has_values` is false: masters are
  // then zero until Load. From here on a parameter has values only between BeginForward and
  // EndForward of its unit, and in its backward. `buffers` stay whole. Ranks whose units, shapes,
  // dtypes or options differ get a c10::ValueError that shows the first differences. A
  // parameter that shares memory with another one or with a buffer is a c10::ValueError, too.
  // `control` carries the comparisons of collectives; use it for nothing else. It is null for a
  // model of one rank. Collective.
  FullyShard(const std::vector<UnitParameters>& units, const std::vector<at::Tensor>& buffers,
             const ShardGroups& groups, std::shared_ptr<Collective> control,
             FullyShardOptions options);
  ~FullyShard();
  FullyShard(const FullyShard&) = delete;
  FullyShard& operator=(const FullyShard&) = delete;

  // Gathers a unit before its computation. `inputs` are the tensors that it computes with. Calls of
  // units may be nested. Collective, unless the unit is gathered already. Throws c10::Error if the
  // ranks call different collectives.
  void BeginForward(size_t unit, const std::vector<at::Tensor>& inputs);
  // Ends the computation. `outputs` are its results: their backward begins the unit's backward.
  // For the root it is collective: the ranks compare the end of the pass. Backward is collective,
  // too: every rank must call it.
  void EndForward(size_t unit, const std::vector<at::Tensor>& outputs);
  // Takes the place of EndForward if the computation has thrown.
  void AbandonForward(size_t unit);

  // Returns this rank's part of every parameter, in the order of the units: 1-D leaves. Their
  // gradients are the averages over all ranks.
  std::vector<NamedTensor> Shards() const;

  // Turns averaging off or on. While it is off, backward keeps whole gradients on each rank. The
  // next backward with it on averages their sum. Every rank calls this alike.
  void set_sync(bool sync);
  bool sync() const;
  // Discards the whole gradients that were kept while it was off.
  void DropGradients();

  // Scales the shards' gradients so that the norm of all of them, over all ranks, is at most
  // `max_norm`; returns the norm before. `p`: above 0, or infinity. Collective: one scalar travels.
  at::Tensor ClipGradNorm(double max_norm, double p = 2);

  // Gather all parameters, and free them again. EndFull keeps values that were written to
  // parameters in place; every rank must have written the same. BeginFull is collective, and throws
  // c10::Error inside of forward or backward.
  void BeginFull();
  void EndFull();

  // Returns the whole masters of one unit. If `pieces` are given, one for each parameter of it,
  // gathers these instead: this rank's parts of a moment, say. Collective.
  std::vector<NamedTensor> GatherWhole(size_t unit, const std::vector<at::Tensor>& pieces = {});
  // Takes this rank's part of a whole value into the parameter's shard, or into another tensor of
  // the shard's size where `into` is defined. Throws c10::ValueError where its shape differs.
  void Load(const std::string& name, const at::Tensor& whole, const at::Tensor& into = {});

  FullyShardStats Stats() const;

 private:
  std::shared_ptr<Steps> steps_;  // graphs keep it as long as they live
};

}  // namespace lockstep::sharding

#endif  // LOCKSTEP_SHARDING_FULLY_SHARD_FULLY_SHARD_H_
