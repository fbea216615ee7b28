// Trains replicas of a module as one model: averages gradients over ranks while backward still
// runs.
//
//    DataParallel replicas(parameters, buffers, group, {.control = control});
//    replicas.BeginPass(parameters, buffers);
//    replicas.BeforeForward(buffers);
//    std::vector<at::Tensor> outputs = replicas.AfterForward({module.forward(x)});
//    loss(outputs[0]).backward();  // parameters' gradients are now the mean over ranks
//
// The failure this prevents: replicas that start from different weights, or that average different
// gradients, drift apart with no error. The constructor compares names, dtypes and shapes over
// ranks. With a `control`, each pass begins with a comparison of 16 bytes over the CPU. It names a
// rank that has run another number of passes, and weights that have drifted apart.
//
// The module may change between passes: BeginPass follows parameters that are frozen, unfrozen,
// added or removed, if all ranks change alike. Without BeginPass such a parameter would train on
// this rank's gradient alone.
//
// Use it if the model fits on one device. c10d::Reducer does the work. It is the engine of
// PyTorch's DistributedDataParallel, whose own class exists only in Python. This class takes its
// place for C++ and Lua.
//
// Every rank must run the same number of forward passes with gradients, and one backward after
// each. For gradient accumulation, call set_sync(false) around forward and backward: the gradients
// then add up locally, and the next synchronised backward averages the sum. The Reducer would leave
// a second backward unaveraged, with no error; here it is one.
//
// Source: torch/nn/parallel/distributed.py and torch/csrc/distributed/c10d/reducer.hpp of PyTorch
// 2.11. Thread: used by the thread that runs forward and backward.

#ifndef LOCKSTEP_SHARDING_DATA_PARALLEL_DATA_PARALLEL_H_
#define LOCKSTEP_SHARDING_DATA_PARALLEL_DATA_PARALLEL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "c10/util/intrusive_ptr.h"
#include "sharding/agreement/collective.h"
#include "sharding/data_parallel/named_tensor.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace lockstep::sharding {

// Private to data_parallel.cc.
struct ReducerOwner;
struct BackwardWatch;
class ReplicaComparison;

// The dtype that gradients are rounded to before they are sent to other ranks. They are divided by
// the number of ranks in that dtype, so that sums stay in its range. Sums and means have its 8
// (bfloat16) or 11 (float16) significant bits.
enum class Compression { kNone, kBFloat16, kFloat16 };

struct DataParallelOptions {
  int64_t bucket_bytes = int64_t{25} << 20;  // gradients are reduced in groups of about this size
  // Allows forward passes that do not use all parameters: each one searches the graph for unused
  // ones. If false, such a pass ends in an error that names them.
  bool find_unused = false;
  // Promises that the graph is the same in every iteration. Allows checkpointing and parameters
  // that are used several times.
  bool static_graph = false;
  Compression compression = Compression::kNone;
  // Copies the buffers of rank 0 to every rank, in the constructor and before each forward pass. If
  // false, every rank keeps its own.
  bool broadcast_buffers = true;
  // Makes gradients views of the buckets that are sent, which saves a copy of all gradients. A
  // gradient that is kept during the next backward then changes; clone it to keep it.
  bool gradient_as_bucket_view = true;
  std::vector<int> ranks = {};  // world ranks of the group, for messages; empty: 0, 1, ...
  // Carries the comparisons at the beginning of passes; use it for nothing else. If it has one
  // order with the group's collectives, it also finds a rank that skips a backward. Null: no
  // comparison.
  std::shared_ptr<Collective> control = nullptr;
  // Weights are compared in the passes 1, 2, 4, 8, ... and in each multiple of this; 0: never. It
  // reads every parameter once and waits for the device.
  int64_t compare_every = 100;
};

class DataParallel {
 public:
  // Copies the parameters of rank 0, and its buffers if broadcast_buffers, to every rank. Averages
  // the gradients of parameters that require one. Collective: every rank of `group` constructs one,
  // with the same names, dtypes and shapes in the same order, and the same options. Throws
  // c10::ValueError on every rank otherwise, with each rank's version of the first five that
  // differ.
  DataParallel(const std::vector<NamedTensor>& parameters, const std::vector<NamedTensor>& buffers,
               c10::intrusive_ptr<c10d::ProcessGroup> group, const DataParallelOptions& options);
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;
  ~DataParallel();

  // Begins a pass. Compares it over the ranks, and follows the module: `parameters` are those that
  // it has now. Averages the gradients of all that require one, and gives tensors that are new rank
  // 0's values. Returns whether anything has changed. Throws c10::ValueError on every rank if the
  // ranks have different parameters, passes or weights. Collective if sync() is true, and where the
  // parameters have changed; does nothing where gradients are disabled.
  bool BeginPass(const std::vector<NamedTensor>& parameters,
                 const std::vector<NamedTensor>& buffers);
  int64_t passes() const { return passes_; }  // that have been compared

  // Prepares a forward pass. If broadcast_buffers, also copies rank 0's buffers to every rank, and
  // throws c10::ValueError if their names, dtypes or shapes differ from those at construction.
  // `buffers` are the module's current buffers: a module may replace a buffer by a new tensor.
  // Collective if sync() is true and gradients are enabled; does nothing otherwise.
  void BeforeForward(const std::vector<NamedTensor>& buffers);

  // Ends a forward pass. `outputs` are all outputs that may reach the loss. Use the returned
  // tensors in their place, so that backward goes through them. It throws c10::Error if another
  // backward since the last forward pass has been averaged.
  std::vector<at::Tensor> AfterForward(std::vector<at::Tensor> outputs);

  // Throws c10::Error if the last backward left gradients unaveraged, because a parameter got no
  // gradient. The next forward would throw, too; call this before the gradients are used. Does not
  // communicate.
  void CheckBackward();

  // Sets whether the backward passes of later forward passes average gradients. Must be the same on
  // every rank.
  void set_sync(bool sync) { sync_ = sync; }
  bool sync() const { return sync_; }

  // Returns the trained parameters, by index, that each bucket averages together; empty before
  // the Reducer exists. The same on every rank.
  //
  // The Reducer arranges the buckets after the first backward, in the order in which gradients
  // came. On three ranks or more the position in a bucket decides the order in which a gradient's
  // parts are added up, and so its last bit. So a resumed run must take the buckets of the run
  // before. Collective, between a backward and the next forward.
  std::vector<std::vector<size_t>> Buckets();

  // Averages in these buckets from now on. Throws c10::ValueError unless they hold each trained
  // parameter once. Collective, between steps.
  void SetBuckets(const std::vector<std::vector<size_t>>& buckets);

 private:
  struct Known {
    at::Tensor tensor;
    bool is_trained;
  };

  std::string Describe(const std::vector<NamedTensor>& parameters,
                       const std::vector<NamedTensor>& buffers) const;
  bool HasChanged(const std::vector<NamedTensor>& parameters) const;
  void Adopt(const std::vector<NamedTensor>& parameters, const std::vector<NamedTensor>& buffers);
  void MakeReducer();
  void RenewReducer();
  void RebuildBuckets();
  void NamingUnused(const std::function<void()>& call);

  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  DataParallelOptions options_;
  std::string buffers_;               // names, dtypes and shapes of the buffers that are sent
  std::vector<Known> known_;          // all parameters, as of the last pass
  std::vector<NamedTensor> trained_;  // the parameters whose gradients are averaged
  std::vector<std::vector<size_t>> buckets_;  // at the start; empty: the Reducer chooses
  // Null before the first pass that averages a static graph. The graph of that pass owns it too.
  c10::intrusive_ptr<ReducerOwner> reducer_;
  std::unique_ptr<BackwardWatch> watch_;
  std::unique_ptr<ReplicaComparison> comparison_;  // null without `control`
  int64_t passes_ = 0;
  int64_t changes_ = 0;  // of the parameters
  bool sync_ = true;
  bool delayed_ = false;  // the static graph's first, delayed, averaging has been arranged
};

}  // namespace lockstep::sharding

#endif  // LOCKSTEP_SHARDING_DATA_PARALLEL_DATA_PARALLEL_H_
