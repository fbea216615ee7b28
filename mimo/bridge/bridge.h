// Carries activations from the ranks of one module to the ranks of the next, and gradients back.
//
// The failure this prevents. Two modules have different data-parallel sizes, and samples have
// different numbers of tokens. A bridge that cuts tensors in equal parts then hands the language
// model the image of another sample. Or forward is right, and the gradient is cut at other rows.
// Here both directions follow one table, the rows of each sample of the micro-batch, which every
// rank knows from the batch. Any two data-parallel sizes and any number of rows for a sample work,
// and no sizes are exchanged.
//
//    // On every rank of both modules. 4 samples; vision dp 2, language dp 1.
//    Bridge bridge(topology, /*edge=*/0, rank, new_group, {});
//    Ownership images = *MakeOwnership({1, 0, 2, 1}, {4, 4, 4, 4});
//    // on a rank of vision: x, the tokens of its samples [4 or 12, H]
//    at::Tensor y = bridge.Run({x}, images)[0];    // [0, H]: carries the graph only
//    y.sum().backward();                           // waits for the gradient, and goes on into x
//    // on a rank of language
//    at::Tensor tokens = bridge.Run({}, images)[0];  // [16, H]
//    loss(tokens).backward();                        // sends it
//
// When not to use it: for modules on the same ranks with the same grid there is nothing to carry.
//
// Asynchronous. On ranks of `from` a call does not wait: its rows are sent while the rank goes on,
// and only the call after the next waits for them. Ranks of `to` may start the next call before
// they compute on the rows of this one: call Start now and Wait later. A gradient is sent without
// waiting. Do not change x in place until backward or until two calls later. All ranks run backward
// through their calls in one order, which may be any: NCCL matches rows by order only. If one side
// uses another order, an error names both calls.
//
// Frozen. No gradient is sent to a rank whose x does not require grad. Backward does nothing there.
//
// Checks. Before any rows are received, every rank tells its peers its plan (messages.h). A
// disagreement about rows, dtypes, shapes or the number of tensors is an error on both sides that
// names both ranks. So is a graph on `to` that was thrown away although `from` waits for its
// gradient. A call that fails on one rank fails on every rank that waits for it, on its siblings
// over tp and cp, and on the ranks that wait for these. The error has the first cause and its rank.
// Sizes are fixed by the first call, dtypes by the first rows: a tensor without rows may be of any
// dtype. Until rows have come, y has the dtype that `from` gave. Without an ownership table the
// number of rows is fixed too: each row counts as one sample, and all ranks of `from` must have
// equally many.
//
// Ranks of both modules (colocated). If both modules have the same grid, x is returned as it is. If
// each rank has all rows that it needs, y is a view of x's memory. Otherwise rows travel as above,
// with x in and y out on each rank. A y that is a view cannot be changed in place under grad mode;
// any other y can.
//
// tp > 1. Every tp rank of `from` sends its share, and the tp ranks of `to` all-gather. The
// gradient of y must be equal over tp, as layers that are divided over tp leave it.
// BridgeOptions::audit checks this. Over cp the gradient is summed, in float32 if it is bfloat16 or
// float16.
//
// Needs. A rank that keeps a chunk of each sequence would drop most rows of its replica. With
// BridgeOptions::receives, each call states the rows that every cp coordinate of `to`, or every
// rank of it, needs. Only these are sent, and y holds them in their order. The gradient of y is
// then the part that its cp coordinate, or its rank, adds: `from` sums the parts of a row that
// several have received, in float32 if they are bfloat16 or float16. A row that no rank needs has
// gradient 0.
//
// cp > 1. All cp ranks of `from` hold x. Each gets the gradient of the rows that it sent, and zeros
// for the other rows. Over cp these add up to the gradient of one x. The gradients of parameters
// add up in the reduction over dp and cp (gradients.h).
//
// Backward must run through `backward()`: torch.grad of y alone skips the bridge.
//
// Calling a bridge in a checkpointed region is an error on both sides: backward would run the
// region again on one side only (base/torch/runs_again.h).
//
// Source: BridgeCommunicator of Megatron-LM. Its limits (one size must divide the other, equal
// tokens for fan-in) do not apply here. Thread: one thread at a time, the thread that runs forward
// and backward.

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
#include "mimo/bridge/routes.h"
#include "mimo/topology/topology.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace lockstep::mimo {

// Makes the process group of `ranks`. This rank is one of them. All of them call it, in the same
// order. `purpose`, such as "vision -> language gradient", is for reports.
using NewGroup = std::function<c10::intrusive_ptr<c10d::ProcessGroup>(const std::vector<int>& ranks,
                                                                      const std::string& purpose)>;

// The rows of its replica that a rank of `to` receives.
enum class Receives {
  kReplica,  // all
  kChunk,    // the needs of its cp coordinate, the same on its tp ranks
  kShard,    // its own needs
};

struct BridgeOptions {
  int64_t dim = 0;                 // the dim of rows in every tensor
  c10::Device device = c10::kCPU;  // of the tensors on this rank
  // Compares the gradient of y over the tp ranks of `to` in every backward. Costs an all-gather of
  // the gradient over the lanes of a replica.
  bool audit = false;
  // The same on every rank. Not for modules with the same grid, between which nothing travels.
  Receives receives = Receives::kReplica;
  // Calls without ownership may have any number of rows, which `to` learns from the plan of the
  // source. For a bridge from one rank to one rank, which cuts nothing.
  bool rows_may_vary = false;
  // Returns why a rank is gone, or "" if unknown, for the error of a rank that waits for it.
  std::function<std::string(int64_t rank)> why_gone = nullptr;
};

class Bridge {
 public:
  class State;

  // A call that has started.
  class Pending {
   public:
    // Returns the rows, and blocks for them on ranks of `to`. On a rank of `from` only, returns at
    // once, with tensors of no rows that carry the graph. Under grad mode tensors of a floating
    // dtype require grad on every rank, frozen or not, so that backward runs alike on all. Call it
    // once.
    std::vector<at::Tensor> Wait();

   private:
    friend class Bridge;
    struct Call;
    explicit Pending(std::shared_ptr<Call> call) : call_(std::move(call)) {}
    std::shared_ptr<Call> call_;
  };

  // Makes the bridge over topology.edges()[edge]. On stages that do not bridge (see EdgeGroup in
  // groups.h) a call returns its arguments. Throws c10::ValueError if this rank has neither module.
  // Collective: every rank of both modules makes one, in the same order. Also frees the groups of
  // earlier bridges that all of their ranks have dropped, if those are ranks of this bridge.
  // Throws what FinishAll throws about these, but no failure that another rank has reported.
  Bridge(const Topology& topology, int edge, int64_t rank, const NewGroup& new_group,
         const BridgeOptions& options);
  Bridge(const Bridge&) = delete;
  Bridge& operator=(const Bridge&) = delete;
  // Does not wait. The process groups stay, because peers may still take rows. They are freed by
  // FinishAll, or by the next bridge that the ranks make together after all of them have dropped
  // this one and the results of its calls. If an exception ends this rank's part, tells the others.
  ~Bridge();

  // Starts a call. `tensors`: on ranks of `from`, one to eight tensors of at most 8 dims, with the
  // rows of this rank's samples on `dim`; on other ranks none. `ownership`: the owners of the rows
  // of the whole micro-batch, the same on every rank; its samples may be divided unevenly.
  // `samples`: a text that must also be the same on every rank, such as the ids of the
  // micro-batch's samples; errors show it. `needs`: only with an ownership table, and only if
  // the bridge is not of Receives::kReplica. It lists for each replica of `to` the rows of each cp
  // coordinate or of each rank (tp varies fastest), the same on every rank (see routes.h).
  //
  // Collective: every rank of the edge calls this equally often. Throws c10::ValueError for a
  // mistake of this rank's caller, which its peers learn, and c10::Error for a mistake of theirs.
  // After an error the bridge cannot be used again.
  Pending Start(const std::vector<at::Tensor>& tensors,
                const std::optional<Ownership>& ownership = std::nullopt,
                const std::string& samples = "", const std::optional<Needs>& needs = std::nullopt);

  // Reports a call whose arguments the caller could not read. Peers receive `text` as if a Start
  // had failed, and the bridge cannot be used again. Does nothing if the bridge has failed before.
  void Refuse(const std::string& text);

  // Calls Start and Wait.
  std::vector<at::Tensor> Run(const std::vector<at::Tensor>& tensors,
                              const std::optional<Ownership>& ownership = std::nullopt,
                              const std::string& samples = "",
                              const std::optional<Needs>& needs = std::nullopt) {
    return Start(tensors, ownership, samples, needs).Wait();
  }

  // Throws c10::ValueError if backward has not run through a call whose gradient this rank must
  // take or send. Call it before the optimizer steps. Run a call whose gradient no rank needs under
  // no_grad on every rank.
  void CheckBackward() const;

  // Returns why the bridge cannot be used on this rank, or "". A rank that shares no rows with the
  // failed ranks does not learn of the failure through the bridge, so check this before a step.
  const std::string& failure() const;

  // Returns the number of gradients that this rank has sent and still keeps, because the receivers
  // have not confirmed them.
  int64_t num_gradients_kept() const;

  // Waits until peers have taken all that this process's bridges have sent, destroyed bridges
  // included, and frees it. Call it before a process ends normally. Collective: returns when all
  // ranks of these bridges have called it, have failed or are gone. A rank that still waits for
  // rows of this one gets an error that says that this rank has left. Throws c10::Error if a rank
  // left without taking a gradient that this rank sent.
  static void FinishAll();

 private:
  static std::vector<std::shared_ptr<State>>& AllStates();
  static void Finish(const std::vector<std::shared_ptr<State>>& states, bool told_by_others);
  static bool IsDropped(const std::shared_ptr<State>& state);
  std::vector<std::shared_ptr<State>> TakeDropped();

  std::shared_ptr<State> state_;
};

}  // namespace lockstep::mimo

#endif  // LOCKSTEP_MIMO_BRIDGE_BRIDGE_H_
