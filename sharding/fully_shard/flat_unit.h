// One unit of a sharded model: the parameters that are gathered and reduced together.
//
// The masters are the unit's parameters in flat arrays (layout.h). Each rank keeps one span of
// them. An all-gather writes the whole parameters into a buffer of the pool, one after the
// other. They share a storage that lives as long as the unit; only its address changes. So tensors
// that autograd saved in forward show the weights again after backward has gathered them.
//
// Reading a parameter while the unit is sharded is an error that names it. Views that autograd
// saved have an older version than the parameter by then, so backward reports them as modified.
//
// This file knows neither the order of units nor the other ranks' plans; fully_shard.h does.
// Thread: used by one thread.

#ifndef LOCKSTEP_SHARDING_FULLY_SHARD_FLAT_UNIT_H_
#define LOCKSTEP_SHARDING_FULLY_SHARD_FLAT_UNIT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "base/torch/copies/copy_engine.h"
#include "c10/core/Storage.h"
#include "c10/util/intrusive_ptr.h"
#include "sharding/agreement/collective.h"
#include "sharding/data_parallel/data_parallel.h"
#include "sharding/fully_shard/host_copies.h"
#include "sharding/fully_shard/layout.h"
#include "sharding/fully_shard/slot_pool.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace lockstep::sharding {

struct UnitOptions {
  std::optional<at::ScalarType> param_dtype;   // of gathered floating-point parameters
  std::optional<at::ScalarType> reduce_dtype;  // in which gradients travel
  bool deterministic = false;                  // sums in the order of ranks on a device, too
  bool offload = false;                        // masters and their gradients in host memory
  // Makes the copies between host and device. Defaults to the device's own engine, and to none on a
  // CPU.
  std::shared_ptr<base::CopyEngine> engine;
  bool has_values = true;  // false: the parameters are not read, and masters are zero until Load
  // Names of parameters that are gathered in float8 (e4m3, one scale for each): one byte for each
  // number. While they are gathered, only lockstep::float8_linear with the recipe "tensorwise" can
  // read them. Its results have the bits of a cast of the gathered weight. The program must link
  // //kernels:torch. They must be matrices that would be gathered in float32, bfloat16 or float16,
  // without offload.
  std::set<std::string> float8_weights = {};
};

// The process groups of a sharded model. Null pointers where a group has one rank.
struct ShardGroups {
  c10::intrusive_ptr<c10d::ProcessGroup> all;       // every rank of the model
  c10::intrusive_ptr<c10d::ProcessGroup> gather;    // the ranks that share one copy of the masters
  c10::intrusive_ptr<c10d::ProcessGroup> reduce;    // the same ranks, for gradients
  c10::intrusive_ptr<c10d::ProcessGroup> replicas;  // the ranks that keep the same span
};

class FlatUnit {
 public:
  // Takes rank 0's values. The tensors, which must be leaves on one device, become sharded.
  // Collective over `groups.all`. `groups` and `pool` outlive this.
  FlatUnit(std::string name, const std::vector<NamedTensor>& parameters, const ShardGroups& groups,
           const UnitOptions& options, SlotPool* pool);
  ~FlatUnit();
  FlatUnit(const FlatUnit&) = delete;
  FlatUnit& operator=(const FlatUnit&) = delete;

  const std::string& name() const { return name_; }
  size_t num_parameters() const { return parameters_.size(); }
  const at::Tensor& parameter(size_t i) const { return parameters_[i].tensor; }
  // This rank's piece of a parameter: 1-D, a leaf, perhaps empty. Shares memory with the masters.
  const at::Tensor& shard(size_t i) const { return parameters_[i].shard; }
  const std::string& parameter_name(size_t i) const { return parameters_[i].name; }
  int64_t gathered_bytes() const;  // as it is gathered now
  int64_t gradient_bytes() const;  // of the largest buffer of its gradients
  int64_t shard_bytes() const;

  // --- Gathering ---
  bool is_gathered() const { return state_ == State::kGathered; }
  bool is_in_flight() const { return state_ == State::kInFlight; }
  // Sets whether the next gathers take float8 weights as whole values. Call it while the unit is
  // sharded.
  void set_gathers_whole(bool whole) { gathers_whole_ = whole; }
  void StartGather();   // Collective over the group. Returns before the values are there.
  void FinishGather();  // Waits for them; the parameters are usable from here on.
  void Reshard();       // Gives the buffer back. Waits first for a gather that is under way.
  // Tells a unit with masters in host memory that the next gather must read them again.
  void MastersMayHaveChanged();
  // With masters in host memory: returns once no copy reads them.
  void LeaveMasters();
  // Takes part in a gather that this rank does not need. `whole`: as after set_gathers_whole(true).
  void JoinGather(bool whole);
  // Puts parameters that were written while gathered into the masters. Every rank writes alike.
  void WriteBack();
  // Throws c10::Error that names a parameter which was written while gathered, once for a change.
  // WriteBack has taken what it found.
  void CheckUnchanged();

  // --- Float8 ---
  // The scale of a float8 weight is that of its largest magnitude on all ranks. In each pass
  // one collective reduces the magnitudes of all units. TakeMagnitudes gets the result for this
  // unit.
  size_t num_float8() const;  // weights that are gathered in float8
  // Returns the largest magnitude of this rank's part of each float8 weight: int32, the bits of the
  // float32 number. Their order is that of the numbers, with NaN as the largest.
  at::Tensor Magnitudes() const;
  void TakeMagnitudes(const at::Tensor& largest);

  // --- Gradients ---
  // Moves the parameter's gradient into the unit's flat gradient, which it is added to.
  void TakeGradient(size_t i);
  bool has_gradients() const { return num_gradients_ > 0; }
  // Whether this backward has given all parameters that require a gradient one.
  bool has_all_gradients() const { return num_arrived_ == num_trained_; }
  // Whether a parameter is trained from the next gather on, if no script changes that.
  bool is_trained(size_t i) const;
  bool all_are_trained() const { return num_trained_ == parameters_.size(); }
  // Returns a byte for each parameter: 1 if it has a gradient that is not reduced yet.
  std::string HaveGradients() const;
  // Starts to average the flat gradient over all ranks; zero for what has none. Parameters whose
  // byte in `any` is 0 have one on no rank, and their shards get none. Collective.
  void StartReduce(const std::string& any);
  // Waits, and adds the result to the shards' gradients. With masters in host memory it starts to
  // copy the result there, and FinishDownload adds it.
  void FinishReduce();
  void FinishDownload();
  // Ends the backward that has_all_gradients speaks of.
  void ForgetArrivals();
  void DropGradients();

  // --- Bytes that the caller moves ---
  // For collectives of memory on the host. Prepare returns what to send and where to receive. After
  // the exchange call TakeGather in place of StartGather, or TakeReduce in place of StartReduce,
  // and finish as usual. GiveUp undoes Prepare. Each size is what one rank sends another one.
  int64_t gather_part_bytes() const;
  int64_t reduce_part_bytes() const;
  Collective::Parts PrepareGather();
  void TakeGather();
  Collective::Parts PrepareReduce();
  void TakeReduce(const std::string& any);
  void GiveUp();

  // --- Whole values ---
  // Returns whole tensors: the masters where `pieces` is empty. Otherwise `pieces` holds this
  // rank's part of each, 1-D and in the size of the parameter's shard. Collective.
  std::vector<at::Tensor> GatherWhole(const std::vector<at::Tensor>& pieces = {});
  // Takes this rank's part of a whole value, into the shard unless `into` is defined.
  void Load(size_t i, const at::Tensor& whole, const at::Tensor& into);

 private:
  enum class State { kSharded, kInFlight, kGathered };

  struct Parameter {
    std::string name;
    at::Tensor tensor;
    at::Tensor shard;
    c10::Storage stub;         // says that the parameter is sharded
    c10::Storage float8_stub;  // says that its values are gathered in float8
    size_t segment = 0;
    int64_t offset = 0;         // in the segment
    Piece piece;                // of this rank
    bool has_gradient = false;  // of this backward or of earlier ones without reduction
    bool has_arrived = false;   // in this backward
    bool is_reduced = false;    // by the reduction under way
    bool is_trained = false;    // as of the last gather
    int64_t version = 0;        // while gathered
  };

  // Parameters of one dtype that are trained, or that are frozen.
  struct Segment {
    std::vector<size_t> members;
    FlatLayout layout;
    at::ScalarType master_dtype, gathered_dtype, reduce_dtype;
    bool is_float8 = false;
    at::Tensor scales;                   // float32 [members]
    at::Tensor master;                   // [span]
    std::unique_ptr<HostCopies> copies;  // null: the masters are on the device
    c10::VariableVersion written;        // counts writes to the shards
    int64_t gathered_version = -1;
    c10::Storage storage;  // of the parameters while they are gathered
    at::Tensor input;      // keeps what travels
    c10::intrusive_ptr<c10d::Work> work;
    at::Tensor gradient;       // [total] in reduce_dtype
    at::Tensor gradient_slot;  // its buffer; undefined where it is its own
    at::Tensor reduced;
    c10::intrusive_ptr<c10d::Work> reduce_work;
    at::Tensor received, received_slot;  // of an exchange in the order of ranks
  };

  void AddToSegments(const std::vector<NamedTensor>& parameters);
  void ShardSegment(Segment& segment);
  void BecomeSharded(Parameter& parameter, const Segment& segment);
  void StartGatherOf(Segment& segment, const at::Tensor& slot);
  // As the segment is gathered now.
  bool TravelsInFloat8(const Segment& segment) const;
  at::ScalarType WireDtype(const Segment& segment) const;
  int64_t SpanBytes(const Segment& segment) const;   // of one rank
  int64_t WholeBytes(const Segment& segment) const;  // of all ranks
  int64_t InSlot(const Segment& segment) const;      // its first byte in the unit's buffer
  at::Tensor InputOf(Segment& segment) const;
  at::Tensor Float8InputOf(const Segment& segment) const;
  void GiveFloat8(const Segment& segment);
  void LeaveWholeValues(Segment& segment);
  static void WaitForGather(Segment& segment);
  void Hide(Parameter& parameter);
  void NoteChange(Parameter& parameter);
  void FollowFreezing(Parameter& parameter);
  void EnsureGradient(Segment& segment);
  at::Tensor GradientOf(const Parameter& parameter) const;
  bool IsTrained(const Segment& segment) const;
  void StartReduceOf(Segment& segment);
  void FillGradient(Segment& segment);
  void AcquireReceived(Segment& segment);
  void NoteReduction(const std::string& any);
  void AddToShards(const Segment& segment, const at::Tensor& reduced);

  std::string name_;
  const ShardGroups& groups_;
  UnitOptions options_;
  SlotPool* pool_;
  int rank_ = 0;   // among those that share one copy
  int ranks_ = 1;  // that share one copy
  int world_ = 1;  // of the model
  c10::Device device_ = c10::kCPU;
  State state_ = State::kSharded;
  bool gathers_whole_ = false;
  at::Tensor slot_;      // the buffer; undefined where the masters serve
  std::string changed_;  // the parameter that CheckUnchanged is to name
  std::vector<Parameter> parameters_;
  std::vector<Segment> segments_;
  size_t num_gradients_ = 0;
  size_t num_arrived_ = 0;
  size_t num_trained_ = 0;  // of the parameters
  bool is_reducing_ = false;
};

}  // namespace lockstep::sharding

#endif  // LOCKSTEP_SHARDING_FULLY_SHARD_FLAT_UNIT_H_
