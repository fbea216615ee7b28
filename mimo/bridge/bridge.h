// Activations from the ranks of one module to those of the next, and their gradients back.
//
// The failure this prevents. Modules whose data-parallel sizes differ, and samples that differ in
// tokens: a bridge that cuts tensors in equal parts hands the language model the image of another
// sample, or gets forward right and cuts the gradient elsewhere. Here both ways follow one table,
// the rows of each sample of the micro-batch, which every rank knows from the batch: any two
// data-parallel sizes, any number of rows for a sample, and no sizes to exchange.
//
//   // On every rank of both modules. 4 samples; vision dp 2, language dp 1.
//   Bridge bridge(topology, /*edge=*/0, rank, new_group, {});
//   Ownership images = *MakeOwnership({1, 0, 2, 1}, {4, 4, 4, 4});
//   // on a rank of vision: x, the tokens of its samples [4 or 12, H]
//   at::Tensor y = bridge.Run({x}, images)[0];    // [0, H]: carries the graph alone
//   y.sum().backward();                           // waits for the gradient, and goes on into x
//   // on a rank of language
//   at::Tensor tokens = bridge.Run({}, images)[0];  // [16, H]
//   loss(tokens).backward();                        // sends it
//
// Asynchronous. On ranks of `from` a call does not wait: what it sends is taken while it goes on,
// and only the call after the next waits for it. Ranks of `to` may start the next call before they
// compute on this one's rows: Start, and Wait later. A gradient is sent without waiting. Do not
// change x in place before it is taken, in backward or two calls later. All ranks run backward
// through their calls in one order, which may be any: NCCL matches rows by order alone. Another
// order on one side is an error that names both calls.
//
// Frozen. No gradient is sent to a rank whose x does not require grad; backward there does nothing.
//
// What is checked. Every rank tells its peers what it planned (words.h), before any rows are
// received: a disagreement about rows, dtypes, shapes or the number of tensors, and a graph on `to`
// that was thrown away although `from` waits for its gradient, are errors that name both ranks, on
// both sides. A call that fails on one rank fails on every rank that waits for it, for its siblings
// over tp and cp, or for one of these, with the first cause and the rank that had it. Dtype and
// sizes are those of the first call; without an ownership table the rows are, too: each row counts
// as one sample, and each rank of `from` must have equally many.
//
// Ranks of both modules (colocated): x comes back as it is where both have the same grid; is
// narrowed, y a view of x's memory, where each rank has all that it needs; else as above, with x in
// and y out on each rank. A y that is a view cannot be changed in place under grad mode, any other
// can.
//
// tp > 1: every tp rank of `from` sends its share and those of `to` all-gather. The gradient of y
// is taken to be equal over tp, as layers that are divided over tp leave it (BridgeOptions::audit
// checks that); over cp it is summed, in float32 where it is bfloat16 or float16.
// cp > 1: the cp ranks of `from` all hold x, and each gets the gradient of the rows that it sent,
// with zeros for the others: over cp they add up to the gradient of one x, and what parameters get
// adds up in the reduction over dp and cp (gradients.h).
//
// Backward must run through `backward()`: torch.grad of y alone skips the bridge. Not for modules
// on the same ranks with the same grid: there is nothing to carry. Source: BridgeCommunicator of
// Megatron-LM, whose limits (one size must divide the other, equal tokens for fan-in) this lifts.
//
// Thread: one at a time, the one that runs forward and backward.

#ifndef LOCKSTEP_MIMO_BRIDGE_BRIDGE_H_
#define LOCKSTEP_MIMO_BRIDGE_BRIDGE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "c10/util/intrusive_ptr.h"
#include "mimo/batch/ownership.h"
#include "mimo/topology/topology.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace lockstep::mimo {

// Makes the group of `ranks`, of which this rank is one. All of them call it, in the same order.
// `purpose`, as "vision -> language gradient", is for reports.
using NewGroup = std::function<c10::intrusive_ptr<c10d::ProcessGroup>(const std::vector<int>& ranks,
                                                                      const std::string& purpose)>;

struct BridgeOptions {
  int64_t dim = 0;                 // of the rows, in every tensor
  c10::Device device = c10::kCPU;  // of tensors, on this rank
  // Compares the gradient of y over the tp ranks of `to` in every backward. Costs an all-gather of
  // the gradient over the lanes of a replica.
  bool audit = false;
  // Says why a rank is gone, "" where that is not known: for the error of a rank that waits for it.
  std::function<std::string(int64_t rank)> why_gone = nullptr;
};

class Bridge {
 public:
  class State;

  // A call that has been started.
  class Pending {
   public:
    // On ranks of `to` blocks until the rows are there; on ranks of `from` alone returns at once:
    // tensors without rows that carry the graph. Under grad mode those of a floating dtype require
    // grad on every rank, frozen or not, so that backward runs alike on all. To be called once.
    std::vector<at::Tensor> Wait();

   private:
    friend class Bridge;
    struct Call;
    explicit Pending(std::shared_ptr<Call> call) : call_(std::move(call)) {}
    std::shared_ptr<Call> call_;
  };

  // For topology.edges()[edge]. Collective: every rank of both modules makes one, in the same
  // order; on stages that do not bridge (see EdgeGroup in groups.h) a call returns what it is
  // given. Throws c10::ValueError where this rank has neither module.
  Bridge(const Topology& topology, int edge, int64_t rank, const NewGroup& new_group,
         const BridgeOptions& options);
  Bridge(const Bridge&) = delete;
  Bridge& operator=(const Bridge&) = delete;
  // Waits for nothing: what peers have not taken yet is kept, until FinishAll. Where an exception
  // ends this rank's part, tells the other ranks so.
  ~Bridge();

  // `tensors`: on ranks of `from` one to eight of at most 8 dims, with the rows of this rank's
  // samples on `dim`; on other ranks none. `ownership`: of the rows, for the whole micro-batch, the
  // same on every rank; its samples may be divided unevenly. Collective: every rank of the edge
  // calls this equally often. Throws c10::ValueError for a mistake of this rank's caller, which its
  // peers learn, and c10::Error for one of theirs. After an error the bridge is of no more use.
  // `samples`: what else must be the same on every rank, the ids of the micro-batch's samples; an
  // error shows it.
  Pending Start(const std::vector<at::Tensor>& tensors,
                const std::optional<Ownership>& ownership = std::nullopt,
                const std::string& samples = "");

  // A call whose arguments the caller could not even read: peers learn `text` as from a Start that
  // fails, and the bridge is of no more use. Does nothing where it is that already.
  void Refuse(const std::string& text);

  // Start and Wait.
  std::vector<at::Tensor> Run(const std::vector<at::Tensor>& tensors,
                              const std::optional<Ownership>& ownership = std::nullopt,
                              const std::string& samples = "") {
    return Start(tensors, ownership, samples).Wait();
  }

  // Throws c10::ValueError where backward has not come through a call whose gradient this rank is
  // to take or to send: before an optimizer steps without it. A call whose gradient nobody is to
  // have runs under no_grad on every rank.
  void CheckBackward() const;

  // Why the bridge is of no more use on this rank; "" where it is sound. A rank that shares no rows
  // with those that failed does not hear of it through the bridge: ask before a step is taken.
  const std::string& failure() const;

  // How many gradients this rank has sent and keeps: it has not heard yet that they were taken.
  int64_t num_gradients_kept() const;

  // Waits until peers have taken what this process's bridges have sent, destroyed bridges included,
  // and frees them: before a process ends well. Collective: returns when all ranks of these bridges
  // have called it, have failed or are gone. A rank that still waits for rows of this one gets an
  // error that says that this one has left. Throws c10::Error where a rank left without taking
  // what this one sent.
  static void FinishAll();

 private:
  static std::vector<std::shared_ptr<State>>& AllStates();

  std::shared_ptr<State> state_;
};

}  // namespace lockstep::mimo

#endif  // LOCKSTEP_MIMO_BRIDGE_BRIDGE_H_
