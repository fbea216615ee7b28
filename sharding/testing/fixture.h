// The groups of a test's ranks, and a small network with units: shared by tests of sharded models.

#ifndef LOCKSTEP_SHARDING_TESTING_FIXTURE_H_
#define LOCKSTEP_SHARDING_TESTING_FIXTURE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "sharding/agreement/collective.h"
#include "sharding/fully_shard/fully_shard.h"
#include "tests/support/gloo_world.h"
#include "tests/support/ranks.h"

namespace lockstep::sharding {

// Makes groups for several models one after the other.
class World {
 public:
  explicit World(const tests::Rank& rank);

  // Groups for another model, whose masters `replicas` groups of ranks keep. On the strict backend
  // where `strict`: it fails where NCCL would hang or mix data up. Then `control` cannot exchange,
  // so that all collectives go through the groups. Otherwise it is over sockets. Collective.
  struct Groups {
    ShardGroups shard;
    std::shared_ptr<Collective> control;
  };
  Groups Make(int replicas = 1, bool strict = false);

  int rank() const { return rank_.rank; }
  int size() const { return rank_.world_size; }

 private:
  c10::intrusive_ptr<c10d::ProcessGroup> MakeGroup(const std::vector<int>& ranks, bool strict);

  tests::Rank rank_;
  tests::GlooWorld gloo_;
  int made_ = 0;
};

// Connects the ranks of a collective over sockets. Collective.
std::shared_ptr<Collective> Connect(Collective& others);

// An embedding, layers that are units, and a head; float64.
struct Net {
  Net(int64_t num_layers, uint64_t seed, int64_t hidden = 6);

  struct Layer {
    at::Tensor weight, bias, scale;  // [hidden, hidden], [hidden], []
  };
  at::Tensor embedding, head;  // [11, hidden], [3, hidden]
  std::vector<Layer> layers;

  // The root and a unit for each layer. `root_only`: one unit for all.
  std::vector<UnitParameters> Units(bool root_only = false) const;
  std::vector<NamedTensor> Parameters() const;

  at::Tensor Compute(size_t layer, const at::Tensor& x) const;
  // The same, as a unit of `model` where that is not null.
  at::Tensor Call(FullyShard* model, size_t layer, const at::Tensor& x) const;
  // A loss that depends on the tokens and on `calls`, the layers in order.
  at::Tensor Loss(FullyShard* model, const at::Tensor& tokens,
                  const std::vector<size_t>& calls) const;
};

// The tokens of a rank in a step.
at::Tensor Tokens(int rank, int step);

// Returns the message that `fn` throws, or "".
std::string Message(const std::function<void()>& fn);

}  // namespace lockstep::sharding

#endif  // LOCKSTEP_SHARDING_TESTING_FIXTURE_H_
