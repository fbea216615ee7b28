// Replicas of a module that train as one: gradients are averaged over ranks while backward still
// runs.
//
// The work is done by c10d::Reducer, the engine of PyTorch's DistributedDataParallel, which is C++
// but whose surrounding class is Python only. This is that surrounding, for C++ and for Lua:
//
//   DataParallel replicas(parameters, buffers, group, {});
//   replicas.BeforeForward();
//   std::vector<at::Tensor> outputs = replicas.AfterForward({module.forward(x)});
//   loss(outputs[0]).backward();        // parameters' gradients are now the mean over ranks
//
// Forward passes with gradients: every rank takes equally many, and one backward follows each. To
// skip the averaging for some (gradient accumulation), switch set_sync(false) around forward and
// backward: the gradients add up locally, and the next synchronised backward averages the sum.
//
// Source: torch/nn/parallel/distributed.py and torch/csrc/distributed/c10d/reducer.hpp of
// PyTorch 2.11. Thread: used by the thread that runs forward and backward.

#ifndef LOCKSTEP_SHARDING_DATA_PARALLEL_H_
#define LOCKSTEP_SHARDING_DATA_PARALLEL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "c10/util/intrusive_ptr.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace c10d {
class Logger;
class Reducer;
}  // namespace c10d

namespace lockstep::sharding {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

// What gradients are rounded to on their way between ranks. They are divided by the number of ranks
// in that dtype, so that sums stay in its range; sums and means have its 8 (bfloat16) or 11
// (float16) significant bits.
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
};

class DataParallel {
 public:
  // Gives every rank the parameters and buffers of rank 0. Those that do not require a gradient are
  // left out of the averaging. Collective: every rank of `group` makes one, with the same names,
  // dtypes and shapes in the same order, and the same options. Throws c10::ValueError, on every
  // rank alike, naming what differs and each rank's version of it.
  DataParallel(const std::vector<NamedTensor>& parameters, const std::vector<NamedTensor>& buffers,
               c10::intrusive_ptr<c10d::ProcessGroup> group, const DataParallelOptions& options);
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;
  ~DataParallel();

  // Collective (with sync, and gradients enabled): before each forward pass. Buffers follow rank 0.
  void BeforeForward();

  // After each forward pass, with every output that may reach the loss; backward must go through
  // what is returned in their place.
  std::vector<at::Tensor> AfterForward(std::vector<at::Tensor> outputs);

  // Whether forward passes from now on are followed by averaging. All ranks alike.
  void set_sync(bool sync) { sync_ = sync; }
  bool sync() const { return sync_; }

  // Which trained parameters, by index, are averaged together: what the Reducer arranges anew after
  // the first backward, in the order in which gradients came. On three ranks or more the place in a
  // bucket decides in which order a gradient's parts are added up, and so its last bit: a run that
  // is resumed takes the buckets of the one before. Collective, between a backward and the next
  // forward; the same on every rank. Empty where no Reducer is made yet.
  std::vector<std::vector<size_t>> Buckets();

  // From now on averages in these buckets. Collective, between steps. ValueError where they do not
  // hold each trained parameter once.
  void SetBuckets(const std::vector<std::vector<size_t>>& buckets);

 private:
  void MakeReducer();
  void RebuildBuckets();

  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  DataParallelOptions options_;
  std::vector<at::Tensor> buffers_;
  std::vector<NamedTensor> trained_;          // the parameters whose gradients are averaged
  std::vector<std::vector<size_t>> buckets_;  // to begin with; empty: as the Reducer's sizes say
  std::shared_ptr<c10d::Reducer>
      reducer_;  // of a static graph: made before the first pass that averages
  std::shared_ptr<c10d::Logger> logger_;  // the Reducer's, which takes it for granted
  bool sync_ = true;
  bool delayed_ = false;  // the static graph's first, delayed, averaging has been arranged
};

}  // namespace lockstep::sharding

#endif  // LOCKSTEP_SHARDING_DATA_PARALLEL_H_
