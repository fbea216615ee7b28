// Compares the replicas of a module over the ranks: which tensors there are, and their values.
// Private to data_parallel.cc, whose header says what it is for.
//
// The failure this prevents. A script raises the learning rate on rank 0, or loads weights there,
// or skips one update. The replicas then hold different weights, and every gradient that they
// average is a mean over different models. No number shows it.

#ifndef LOCKSTEP_SHARDING_DATA_PARALLEL_REPLICA_COMPARISON_H_
#define LOCKSTEP_SHARDING_DATA_PARALLEL_REPLICA_COMPARISON_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sharding/agreement/collective.h"
#include "sharding/data_parallel/named_tensor.h"

namespace lockstep::sharding {

// Returns a line for each tensor with its dtype and shape; for a parameter also whether it is
// trained.
std::string DescribeBuffers(const std::vector<NamedTensor>& buffers);
std::string DescribeParameters(const std::vector<NamedTensor>& parameters);

// Throws c10::ValueError on every rank unless all give the same description. The message has each
// rank's version of the first five lines that differ. Collective.
void CheckSameModule(Collective& collective, const std::string& description);

class ReplicaComparison {
 public:
  // `control` carries the messages. Weights are compared 1, 2, 4, 8, ... passes after BeginAnew,
  // and after each multiple of `weights_every`; never if it is 0.
  ReplicaComparison(std::shared_ptr<Collective> control, int64_t weights_every)
      : control_(std::move(control)), weights_every_(weights_every) {}

  // Sets the description that all ranks must have in common from this pass on. Values of new
  // parameters may still differ in it.
  void BeginAnew(int64_t pass, std::string description);

  // Compares the beginning of a pass: its number, the description, and perhaps the weights. Throws
  // c10::ValueError on every rank if they differ, with the ranks and the first parameter that
  // differs. Collective: one gathering of 16 bytes.
  void Compare(int64_t pass, const std::vector<NamedTensor>& parameters);

 private:
  bool ComparesWeightsIn(int64_t pass) const;
  void CheckSameWeights(int64_t pass, const std::vector<NamedTensor>& parameters,
                        const std::vector<int64_t>& checksums);

  std::shared_ptr<Collective> control_;
  int64_t weights_every_;
  int64_t first_pass_ = 0;
  std::string description_;
  uint64_t description_hash_ = 0;
  int64_t last_compared_ = 0;  // the last pass in which weights were compared and equal; 0: none
};

}  // namespace lockstep::sharding

#endif  // LOCKSTEP_SHARDING_DATA_PARALLEL_REPLICA_COMPARISON_H_
