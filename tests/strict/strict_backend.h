// A c10d backend over Gloo that fails where NCCL would hang, mix up data or fail.
//
// Gloo permits more than NCCL. It distinguishes messages by tags, lets two ranks send to each other
// at once, and does not need ranks that exchange nothing. So a test passes on Gloo, and the same
// code hangs on GPUs. On this backend it fails with an error that names the ranks and the reason.
//
//    auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
//    group->setBackend(c10::kCPU, c10d::ProcessGroup::BackendType::GLOO,
//                      c10::make_intrusive<StrictBackend>(gloo, "world", ranks));
//
// The rules. strict_backend_test.cc breaks and keeps each of them:
//
//    - A group has one communicator for its collectives and batches, and one more for each pair of
//      ranks that sends or receives outside a batch. The first operation on a communicator creates
//      it: it blocks the calling thread until all of the communicator's ranks have come.
//    - A communicator runs its operations one by one, in the order in which one thread issued them.
//      The k-th collective must be the same on every rank, with the same sizes and dtypes.
//    - Tags mean nothing. The messages from one rank to another are paired in order of issue. Both
//      messages of a pair must have the same size, dtype and tag.
//    - Outside a batch, the k-th operation of a pair is a send on one rank, a receive on the other.
//    - If backward nodes of two ranks issue operations, they do so in the same order of their
//      forwards. Nodes that accumulate gradients have no such order: the Reducer orders its
//      operations itself.
//    - A tensor is contiguous, one for each call, and of a dtype that NCCL has. There is no bitwise
//      reduction and no receive from any rank.
//
// Method. Each rank sends a description of each operation to the others at once, over Gloo. A
// thread for each communicator waits for the others' descriptions, compares them (ticket.h), and
// then lets Gloo carry the data. A rank that never comes is detected by the group's timeout, or
// when it leaves the group. If two ranks disagree about an operation that no caller waits for, the
// next operation of that thread fails.
//
// Not checked: rules that NCCL leaves undefined across communicators, and streams of a device.
//
// Thread: one thread issues all operations of a group, which is one of the rules.

#ifndef LOCKSTEP_TESTS_STRICT_STRICT_BACKEND_H_
#define LOCKSTEP_TESTS_STRICT_STRICT_BACKEND_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tests/strict/ticket.h"
#include "torch/csrc/distributed/c10d/Backend.hpp"

namespace lockstep::tests {

class StrictBackend : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<std::vector<at::Tensor>>;
  using WorkPointer = c10::intrusive_ptr<c10d::Work>;

  // `gloo` is this group's Gloo backend; only this object may use it. `group` and `ranks` (world
  // ranks in the order of the group) are for messages.
  StrictBackend(c10::intrusive_ptr<c10d::Backend> gloo, std::string group, std::vector<int> ranks);
  ~StrictBackend() override;  // operations in progress fail

  const std::string getBackendName() const override { return "strict"; }
  void setTimeout(std::chrono::milliseconds timeout) override { gloo_->setTimeout(timeout); }
  void setSequenceNumberForGroup() override { gloo_->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return gloo_->getSequenceNumberForGroup(); }

  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  WorkPointer endCoalescing() override;  // null if the batch is empty

  WorkPointer broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPointer allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
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
  WorkPointer barrier(const c10d::BarrierOptions& options) override;

  // Wait for the batch, not for a work of it: that fails.
  WorkPointer send(Tensors& tensors, int destination, int tag) override;
  WorkPointer recv(Tensors& tensors, int source, int tag) override;

 private:
  struct Communicator;
  struct Appointment;  // this rank and a peer exchange tickets of one operation
  struct Message;      // a send or a receive

  static std::string SizesOf(const Tensors& tensors);  // "4 of Float", "4, 8 of Float"
  static void CheckOne(const char* name, size_t count);

  // Runs an operation of all ranks. `gives` and `takes`: elements for and from each peer, or empty.
  WorkPointer Collective(c10d::OpType type, const std::string& what, Tensors checked,
                         Tensors outputs, std::function<WorkPointer()> run,
                         const std::vector<int64_t>& gives = {},
                         const std::vector<int64_t>& takes = {});
  WorkPointer PointToPoint(Role role, Tensors& tensors, int peer, int tag);
  Message MakeMessage(Role role, const Tensors& tensors, int peer, int tag) const;

  Communicator& OfGroup();
  Communicator& OfPair(int peer);
  // Blocks until all ranks of the communicator have come. `what` is this rank's operation.
  void Meet(Communicator& communicator, const std::string& what);
  WorkPointer Enqueue(Communicator& communicator, c10d::OpType type, Tensors outputs,
                      std::function<void()> run);

  Appointment Tell(const Ticket& ticket, int peer, int out_tag, int in_tag);
  // Waits for all peers' tickets. Throws c10::Error if one has a different operation.
  void Agree(const std::vector<Appointment>& appointments);
  void Carry(const std::vector<Message>& messages);

  WorkPointer SendNow(const at::Tensor& tensor, int peer, int tag);
  WorkPointer ReceiveNow(const at::Tensor& tensor, int peer, int tag);
  void WaitFor(const WorkPointer& work, int peer, const std::string& purpose);

  std::string Complain(const std::string& text) const;
  int Name(int position) const { return ranks_[static_cast<size_t>(position)]; }

  const c10::intrusive_ptr<c10d::Backend> gloo_;
  const std::string group_;
  const std::vector<int> ranks_;
  std::optional<std::vector<Message>> batch_;  // since startCoalescing

  // Guards calls of Gloo, of all groups: c10d's flight recorder adds each group to one std::map of
  // the process as the group's first operation starts, before it takes its lock.
  inline static std::mutex gloo_mutex_;
  std::mutex mutex_;  // guards the members below, and calls of gloo_
  std::vector<WorkPointer> under_way_;
  bool is_closing_ = false;

  // Last, so that their threads end before the other members are destroyed.
  std::map<int, std::unique_ptr<Communicator>> communicators_;  // by peer; -1: the group's
};

}  // namespace lockstep::tests

#endif  // LOCKSTEP_TESTS_STRICT_STRICT_BACKEND_H_
