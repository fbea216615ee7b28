// Runs the library's agreements over a c10d process group, and keeps its notes in a c10d store.
//
//    C10dCollective collective(control_group);          // a Gloo group of its own
//    StoreNotes notes(store, "guard", rank);
//    Guard guard(&collective, &notes, /*timeout_s=*/30);
//
// The process group of the training cannot serve: its collectives must keep their order, and an
// agreement would fall between them. So create another group of the same ranks for it.
//
// When to use it: where a program has a c10d group for its CPU work anyway. SocketCollective
// (socket_collective.h) costs less for each step.
//
// Source: c10d of PyTorch 2.11.

#ifndef LOCKSTEP_SHARDING_AGREEMENT_C10D_COLLECTIVE_H_
#define LOCKSTEP_SHARDING_AGREEMENT_C10D_COLLECTIVE_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "c10/util/intrusive_ptr.h"
#include "sharding/agreement/collective.h"
#include "sharding/agreement/guard.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"
#include "torch/csrc/distributed/c10d/Store.hpp"

namespace lockstep::sharding {

// Gathers through the group's backend for CPU tensors (Gloo), so a device never waits. Use a group
// that nothing else uses. Errors: Unavailable if a rank is lost or the group's timeout passes.
// Thread: used by one thread.
class C10dCollective : public Collective {
 public:
  // `ranks` are the world ranks of the group's members, as messages name them. Empty: 0 to size -
  // 1.
  explicit C10dCollective(c10::intrusive_ptr<c10d::ProcessGroup> group, std::vector<int> ranks = {})
      : group_(std::move(group)), ranks_(std::move(ranks)) {}

  int rank() const override { return group_->getRank(); }
  int size() const override { return group_->getSize(); }
  int WorldRank(int position) const override {
    return ranks_.empty() ? position : ranks_[static_cast<size_t>(position)];
  }
  std::unique_ptr<Pending> StartAllGather(const std::string& bytes) override;

 private:
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  std::vector<int> ranks_;
};

// Keeps notes under "<prefix>/<position>" in the store that the ranks met through. `position` is
// this rank's in the group. One Guard has one prefix. As thread-safe as the store.
class StoreNotes : public Notes {
 public:
  StoreNotes(c10::intrusive_ptr<c10d::Store> store, std::string prefix, int position)
      : store_(std::move(store)), prefix_(std::move(prefix)), position_(position) {}

  void Write(const std::string& note) override;
  std::string Read(int position) override;

 private:
  std::string Key(int position) const;

  c10::intrusive_ptr<c10d::Store> store_;
  std::string prefix_;
  int position_;
};

}  // namespace lockstep::sharding

#endif  // LOCKSTEP_SHARDING_AGREEMENT_C10D_COLLECTIVE_H_
