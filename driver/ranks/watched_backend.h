// A c10d backend that reports each collective to this rank's Activity, and lets the ranks compare
// their collectives.
//
// It stands in front of Gloo or NCCL and passes the calls on; c10d refuses the collectives that
// nothing here uses. Like c10d's ProcessGroupWrapper it compares the operator, dtypes, shapes and
// the arguments that must be equal; its messages have the script's lines. By default the script's
// own collectives are compared before they begin, and the others later (script_calls.h). With
// --debug-collectives each waits for its comparison.

#ifndef LOCKSTEP_DRIVER_RANKS_WATCHED_BACKEND_H_
#define LOCKSTEP_DRIVER_RANKS_WATCHED_BACKEND_H_

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "driver/ranks/activity.h"
#include "driver/ranks/script_calls.h"
#include "torch/csrc/distributed/c10d/Backend.hpp"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace lockstep::driver {

class WatchedBackend : public c10d::Backend {
 public:
  // Compares a collective's label, fingerprint and place over the group's ranks; throws c10::Error
  // where they differ, or where a rank does not come.
  using Compare = std::function<void(const std::string& label, const std::string& fingerprint,
                                     const std::string& place)>;

  // `group` and its `ranks` of the world: as reports name them. `key`: the same on all ranks of the
  // group, and of this backend alone: see waits.h. `limit`: for a collective to wait;
  // 0: it is not watched. `compare`: empty, or called before each collective; sends and receives
  // pair two ranks alone. `calls`: null, or what compares calls where `compare` is empty.
  // `without_tensors`: null, or returns a work that ends with the given one and holds no tensors.
  // Reports keep it instead of the given one.
  using WithoutTensors =
      c10::intrusive_ptr<c10d::Work> (*)(const c10::intrusive_ptr<c10d::Work>& work);
  WatchedBackend(c10::intrusive_ptr<c10d::Backend> backend, std::string group,
                 const std::string& key, std::vector<int> ranks, std::shared_ptr<Activity> activity,
                 std::chrono::milliseconds limit, Compare compare,
                 std::shared_ptr<CallComparison> calls, WithoutTensors without_tensors = nullptr);

  // Returns what compares this group's calls, or null.
  CallComparison* calls() const { return calls_compared_.get(); }
  // Compares a call of the program's libraries as one of this group, if `compare` is given.
  void CompareCall(const std::string& what);
  // Counts a collective that this rank has refused to call: see CallOrder::Refuse.
  void Refuse(const std::string& what, const std::string& place);

  const std::string getBackendName() const override { return backend_->getBackendName(); }
  bool supportsCoalescing() const override { return backend_->supportsCoalescing(); }
  void startCoalescing() override { backend_->startCoalescing(); }
  c10::intrusive_ptr<c10d::Work> endCoalescing() override;
  void setTimeout(std::chrono::milliseconds timeout) override { backend_->setTimeout(timeout); }
  void setSequenceNumberForGroup() override { backend_->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return backend_->getSequenceNumberForGroup(); }
  void abort() override { backend_->abort(); }
  void shutdown() override { backend_->shutdown(); }

  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<std::vector<at::Tensor>>;
  using WorkPointer = c10::intrusive_ptr<c10d::Work>;

  WorkPointer broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPointer allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPointer allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPointer reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPointer allgather(TensorLists& outputs, Tensors& inputs,
                        const c10d::AllgatherOptions& options) override;
  WorkPointer _allgather_base(at::Tensor& output, at::Tensor& input,
                              const c10d::AllgatherOptions& options) override;
  WorkPointer reduce_scatter(Tensors& outputs, TensorLists& inputs,
                             const c10d::ReduceScatterOptions& options) override;
  WorkPointer _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                   const c10d::ReduceScatterOptions& options) override;
  WorkPointer alltoall_base(at::Tensor& output, at::Tensor& input,
                            std::vector<int64_t>& output_sizes, std::vector<int64_t>& input_sizes,
                            const c10d::AllToAllOptions& options) override;
  WorkPointer send(Tensors& tensors, int destination, int tag) override;
  WorkPointer recv(Tensors& tensors, int source, int tag) override;
  WorkPointer barrier(const c10d::BarrierOptions& options) override;

 private:
  // `arguments`: what else must be alike, "sum" or "from 0"; `tensors`: whose shapes must be.
  WorkPointer Run(const char* name, const std::string& arguments, at::TensorList tensors,
                  const std::function<WorkPointer()>& call);
  // "from rank 5", "to rank 5": the rank of the world at a position of the group.
  std::string FromRank(int64_t position) const;
  std::string ToRank(int64_t position) const;
  // Without a comparison.
  WorkPointer RunUnchecked(const std::string& what, const std::string& place,
                           const std::function<WorkPointer()>& call);
  // `is_message`: a send or a receive, which Gloo completes only while the script waits.
  WorkPointer Record(int sequence, int64_t number, const std::string& what,
                     const std::string& place, const std::function<WorkPointer()>& call,
                     bool is_message = false);

  // The messages between this rank and another one, in one direction and with one tag.
  struct Messages {
    int sequence = -1;
    int64_t sent = 0;  // or received, on this rank
  };
  // `is_send`: whether this rank sends. `peer`: a position of the group.
  Messages& MessagesWith(bool is_send, int peer, int tag);

  const c10::intrusive_ptr<c10d::Backend> backend_;
  const std::string group_;
  const std::vector<int> ranks_;
  const std::shared_ptr<Activity> activity_;
  const std::chrono::milliseconds limit_;
  const Compare compare_;
  const std::shared_ptr<CallComparison> calls_compared_;
  const WithoutTensors without_tensors_;
  const std::string key_;
  const int sequence_;  // of the collectives
  int64_t calls_ = 0;
  std::map<std::string, Messages> messages_;  // by the sequence's key
};

// Returns the backend of a group that this program has made; null for another one.
c10::intrusive_ptr<WatchedBackend> WatchedBackendOf(c10d::ProcessGroup& group);
// Counts a collective of a group that this rank has refused to call: see CallOrder::Refuse.
void RefuseCall(c10d::ProcessGroup& group, const std::string& what, const std::string& place);

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_RANKS_WATCHED_BACKEND_H_
