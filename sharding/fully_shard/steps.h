// One sharded model at work: which unit is gathered when, and what backward does to it.
// Private to fully_shard.cc, whose header says what it is for.

#ifndef LOCKSTEP_SHARDING_FULLY_SHARD_STEPS_H_
#define LOCKSTEP_SHARDING_FULLY_SHARD_STEPS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "base/torch/versions/node.h"
#include "sharding/fully_shard/flat_unit.h"
#include "sharding/fully_shard/fully_shard.h"
#include "sharding/fully_shard/slot_pool.h"
#include "sharding/fully_shard/turns.h"
#include "torch/csrc/autograd/function.h"

namespace lockstep::sharding {

class Steps : public std::enable_shared_from_this<Steps> {
 public:
  Steps(const std::vector<UnitParameters>& units, const ShardGroups& groups,
        std::shared_ptr<Collective> control, FullyShardOptions options);
  ~Steps();

  // Installs the hooks that move gradients; separate because they hold a weak pointer to this.
  void WatchGradients();

  void BeginForward(size_t unit, const std::vector<at::Tensor>& inputs);
  void EndForward(size_t unit, const std::vector<at::Tensor>& outputs);
  void AbandonForward(size_t unit);
  void BeginFull();
  void EndFull();
  at::Tensor ClipGradNorm(double max_norm, double p);
  std::vector<at::Tensor> GatherWhole(size_t unit, const std::vector<at::Tensor>& pieces);

  // One forward call of a unit whose backward may come. Hooks in the graph own it.
  struct Call;
  void BeginBackward(Call& call);
  void EndBackward(Call& call);
  void TakeGradient(size_t unit, size_t parameter);
  void AbandonBackward();
  void DropGradients();

  FlatUnit& unit(size_t i) { return *units_[i].flat; }
  size_t size() const { return units_.size(); }
  FullyShardStats Stats() const;

  bool sync = true;

 private:
  struct Unit {
    std::unique_ptr<FlatUnit> flat;
    int depth = 0;         // of forward calls under way
    int calls_begun = 0;   // whose backward has begun and not ended
    int boundaries = 0;    // of these, the calls whose end backward will see
    bool is_idle = false;  // gathered, and nobody computes with it
    std::vector<base::NodePointer<torch::autograd::Node>> inputs;  // that made them
  };

  // One forward pass of the whole model. Backward may come in another order of passes.
  struct Pass {
    std::vector<size_t> order;    // of units
    std::vector<bool> has_graph;  // by unit: backward comes to it
  };

  std::shared_ptr<Pass> NewPass() const;
  void Do(Action action, size_t unit, std::optional<Phase> phase = std::nullopt,
          const std::string& terms = "");
  Terms TermsOf(Action action, size_t unit, const std::string& given);
  bool GoesWithComparison(Action action, const FlatUnit& flat) const;
  void Perform(const Turn& turn, bool has_come, const std::string& any);
  void Join(const Turn& turn);
  void ReduceMagnitudes();
  std::string HaveGradients(const Turn& turn, bool is_unanimous);
  void Gather(size_t unit);
  void Obtain(size_t unit);
  void Prefetch(const std::vector<size_t>& candidates);
  void PrefetchForForward(size_t unit);
  void PrefetchForBackward(const Call& call);
  void ReshardIdle(size_t except);
  void ReshardUnused();
  void LeaveMasters();
  void CheckUnchanged();
  void Attach(size_t unit, const std::vector<at::Tensor>& outputs);
  void Reduce(size_t unit);
  void FinishReduction();
  void EnterBackward();
  void FinishBackward();
  void Recover();

  ShardGroups groups_;
  std::shared_ptr<Collective> control_;  // null where there is one rank
  FullyShardOptions options_;
  SlotPool root_pool_, pool_;
  std::vector<Unit> units_;
  std::optional<Turns> turns_;
  int64_t pass_ = 0;
  std::shared_ptr<Pass> forward_;   // the last one
  std::shared_ptr<Pass> backward_;  // whose backward runs now
  std::vector<size_t> last_order_;  // of units in the pass before forward_
  size_t cursor_ = 0;               // in last_order_, forward
  size_t back_cursor_ = 0;          // in backward_->order, backward
  int full_depth_ = 0;
  bool has_float8_ = false;    // weights that are gathered in float8
  bool knows_scales_ = false;  // of these weights; the masters may have changed otherwise
  bool exchanges_ = false;     // small collectives travel with their comparison
  bool backward_entered_ = false;
  bool must_recover_ = false;                 // the last backward was abandoned
  std::vector<std::shared_ptr<Call>> begun_;  // in this backward
  std::optional<size_t> reducing_;            // the unit whose reduction is under way
  FullyShardStats stats_;
};

}  // namespace lockstep::sharding

#endif  // LOCKSTEP_SHARDING_FULLY_SHARD_STEPS_H_
