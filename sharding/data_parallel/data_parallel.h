// Trains replicas of a module as one: averages gradients over ranks while backward still runs.
//
//   DataParallel replicas(parameters, buffers, group, {});
//   replicas.BeforeForward(buffers);
//   std::vector<at::Tensor> outputs = replicas.AfterForward({module.forward(x)});
//   loss(outputs[0]).backward();  // parameters' gradients are now the mean over ranks
//
// c10d::Reducer does the work. It is the engine of PyTorch's DistributedDataParallel, whose own
// class exists only in Python. This class takes its place for C++ and Lua.
//
// Every rank takes equally many forward passes with gradients, and one backward follows each. For
// gradient accumulation, call set_sync(false) around forward and backward: the gradients then add
// up locally, and the next synchronised backward averages the sum.
//
// Source: torch/nn/parallel/distributed.py and torch/csrc/distributed/c10d/reducer.hpp of
// PyTorch 2.11. Thread: used by the thread that runs forward and backward.

#ifndef LOCKSTEP_SHARDING_DATA_PARALLEL_DATA_PARALLEL_H_
#define LOCKSTEP_SHARDING_DATA_PARALLEL_DATA_PARALLEL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "c10/util/intrusive_ptr.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace lockstep::sharding {

struct ReducerOwner;  // private to data_parallel.cc

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

// The dtype that gradients are rounded to on their way between ranks. They are divided by the
// number of ranks in that dtype, so that sums stay in its range. Sums and means have its 8
// (bfloat16) or 11 (float16) significant bits.
enum class Compression { kNone, kBFloat16, kFloat16 };

struct DataParallelOptions {
  int64_t bucket_bytes = int64_t{25} << 20;  // gradients are reduced in groups of about this size
  // Parameters may take no part in a forward pass: the graph is searched for them each time.
  // Without it such a pass ends in an error that names them.
  bool find_unused = false;
  // The graph is the same in every iteration: allows checkpointing and parameters used several
  // times.
  bool static_graph = false;
  Compression compression = Compression::kNone;
  // The constructor and each forward pass give every rank the buffers of rank 0. If false, every
  // rank keeps its own.
  bool broadcast_buffers = true;
  // Gradients are views of the buckets that travel, which saves a copy of all gradients. A gradient
  // that is kept over the next backward then changes under its holder; clone what is kept.
  bool gradient_as_bucket_view = true;
  std::vector<int> ranks = {};  // the group's ranks as messages name them; empty: 0, 1, ...
};

class DataParallel {
 public:
  // Gives every rank the parameters and buffers of rank 0. Averages the gradients of parameters
  // that require one. Collective: every rank of `group` makes one, with the same names, dtypes and
  // shapes in the same order, and the same options. Throws c10::ValueError, on every rank alike,
  // naming what differs and each rank's version of it.
  DataParallel(const std::vector<NamedTensor>& parameters, const std::vector<NamedTensor>& buffers,
               c10::intrusive_ptr<c10d::ProcessGroup> group, const DataParallelOptions& options);
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;
  ~DataParallel();

  // Prepares a forward pass, and gives every rank rank 0's buffers. `buffers` are the module's at
  // this moment: a module may replace a buffer by a new tensor. Throws c10::ValueError where their
  // names, dtypes or shapes differ from those at construction. Collective where sync() is set and
  // gradients are enabled; does nothing otherwise.
  void BeforeForward(const std::vector<NamedTensor>& buffers);

  // Ends a forward pass. `outputs` are all outputs that may reach the loss. Use the returned
  // tensors in their place, so that backward goes through them.
  std::vector<at::Tensor> AfterForward(std::vector<at::Tensor> outputs);

  // Sets whether the backward passes of later forward passes average gradients. Every rank sets the
  // same.
  void set_sync(bool sync) { sync_ = sync; }
  bool sync() const { return sync_; }

  // Returns which trained parameters, by index, are averaged together. The Reducer arranges them
  // after the first backward, in the order in which gradients came. On three ranks or more the
  // place in a bucket decides the order in which a gradient's parts are added up, and so its last
  // bit. A resumed run therefore takes the buckets of the run before. Returns the same on every
  // rank, and nothing where there is no Reducer yet. Collective, between a backward and the next
  // forward.
  std::vector<std::vector<size_t>> Buckets();

  // Averages in these buckets from now on. Throws c10::ValueError where they do not hold each
  // trained parameter once. Collective, between steps.
  void SetBuckets(const std::vector<std::vector<size_t>>& buckets);

 private:
  void MakeReducer();
  void RebuildBuckets();

  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  DataParallelOptions options_;
  std::string buffers_;                       // names, dtypes and shapes of those that are sent
  std::vector<NamedTensor> trained_;          // the parameters whose gradients are averaged
  std::vector<std::vector<size_t>> buckets_;  // to begin with; empty: as the Reducer's sizes say
  // Null before the first pass that averages a static graph. The graph of that pass owns it too.
  c10::intrusive_ptr<ReducerOwner> reducer_;
  bool sync_ = true;
  bool delayed_ = false;  // the static graph's first, delayed, averaging has been arranged
};

}  // namespace lockstep::sharding

#endif  // LOCKSTEP_SHARDING_DATA_PARALLEL_DATA_PARALLEL_H_
