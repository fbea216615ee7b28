// Which rank runs which module, and where in it.
//
// The failure this prevents. A vision encoder with data-parallel size 3 and a language model with 1
// run on ranks of their own. Two samplers that each divide the data by their own module's size hand
// the two modules different samples, and training goes on, wrongly and silently. So ranks that load
// data all load the same global micro-batch (SamplingInfo), and each module cuts it by its own
// replicas (DpInfo), in the order of the replicas.
//
//   absl::StatusOr<Topology> topology = Topology::Make(
//       4, {{.name = "vision", .dp = 3, .first_rank = 0}, {.name = "language", .first_rank = 3}});
//   topology->module(1)->name;           // "vision"
//   topology->dp_info(1);                // replica 1 of 3: which part of the micro-batch to keep
//   topology->sampling_info(1);          // rank 0 of 1, needs data: what a sampler must use
//   topology->Validate({.micro_batch_size = 6, .global_batch_size = 24});
//
// Words. A module has a grid of ranks with four axes: tp (tensor parallel), cp (context parallel),
// dp (data parallel: replicas), pp (pipeline stages). The first axis of `order` varies fastest from
// rank to rank. Modules either have ranks of their own, or share all of them (colocated). One
// module is "language"; the others are encoders, or whatever the edges make of them. Micro-batch
// sizes are those of the global micro-batch: a replica holds micro_batch_size / dp samples of it.
//
// Use it where modules differ in their parallelism. Where all ranks run the same model on different
// data, see sharding and batching.
//
// Source: Megatron-Bridge's pull requests 2956 (read the same, slice by module) and 4066, and
// Megatron-LM's HyperCommGrid for the order of groups. Sizes need not be powers of two nor divide
// each other: routes (routes.h) do not need it.
//
// Plain functions of the arguments: ranks that make the same topology agree without communication.
// Thread-safe: immutable once made.

#ifndef LOCKSTEP_MIMO_TOPOLOGY_H_
#define LOCKSTEP_MIMO_TOPOLOGY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace lockstep::mimo {

constexpr int64_t kMaxWorldSize = 1 << 20;
constexpr int64_t kMaxMicroBatchSize = 1 << 20;  // samples: beyond, something else was meant
constexpr char kLanguage[] = "language";

struct Module {
  std::string name;
  int64_t dp = 1;
  int64_t tp = 1;
  int64_t cp = 1;
  int64_t pp = 1;
  // Its ranks are [first_rank, first_rank + tp * cp * dp * pp), or, where not empty, `ranks`:
  // ranks[i] has place i of the grid.
  int64_t first_rank = 0;
  std::vector<int32_t> ranks = {};
  std::string order = "tp-cp-dp-pp";  // the first axis varies fastest; each of the four once
};

// `to` takes the activations of `from`.
struct Edge {
  std::string from;
  std::string to;
};

// Where a rank stands in a module's grid.
struct Coordinates {
  int32_t dp = 0;
  int32_t tp = 0;
  int32_t cp = 0;
  int32_t pp = 0;

  friend bool operator==(const Coordinates&, const Coordinates&) = default;
};

struct DpInfo {
  int64_t dp_rank = 0;
  int64_t dp_size = 1;

  friend bool operator==(const DpInfo&, const DpInfo&) = default;
};

struct SamplingInfo {
  int64_t dp_rank = 0;
  int64_t dp_size = 1;
  bool needs_data = false;  // false: this rank builds no loader

  friend bool operator==(const SamplingInfo&, const SamplingInfo&) = default;
};

// How a module, or a micro-batch, is divided where the replicas do not divide it.
enum class Division {
  kEven,    // an error
  kUneven,  // the first (size % parts) parts hold one more
};

// Where nothing is given, nothing is checked, but micro_batch_size, which must be.
struct BatchSizes {
  std::optional<int64_t> micro_batch_size = {};   // samples of the global micro-batch
  std::optional<int64_t> global_batch_size = {};  // samples of a step
  std::optional<int64_t> eval_micro_batch_size = {};
  std::optional<int64_t> eval_global_batch_size = {};
  Division division = Division::kEven;
};

struct TopologyParts;

class Topology {
 public:
  // Without `edges`, every other module feeds "language"; {} is none at all. InvalidArgument names
  // every broken rule at once, with the values and the nearest that work:
  //   - world_size is from 1 to kMaxWorldSize; there are modules, one of them named "language"
  //   - names are not empty and appear once; sizes are positive; `order` holds each axis once
  //   - a module's ranks lie in the world, appear once, and are tp * cp * dp * pp
  //   - two modules share all of their ranks or none; every rank has a module
  //   - edges name modules, appear once and make no cycle
  //
  // Cost: O(world_size * modules of a rank).
  static absl::StatusOr<Topology> Make(int64_t world_size, std::vector<Module> modules);
  static absl::StatusOr<Topology> Make(int64_t world_size, std::vector<Module> modules,
                                       std::vector<Edge> edges);

  int64_t world_size() const { return world_size_; }
  // As given, with `ranks` filled in; an index into it names a module below.
  const std::vector<Module>& modules() const { return modules_; }
  // As given, or those to "language" in the order of modules.
  const std::vector<Edge>& edges() const { return edges_; }
  // The indices of both ends of edges()[edge].
  int from(int edge) const { return edge_ends_[static_cast<size_t>(edge)].from; }
  int to(int edge) const { return edge_ends_[static_cast<size_t>(edge)].to; }
  // Indices of modules, each after all that feed it; among equals in the order of modules.
  const std::vector<int>& forward_order() const { return forward_order_; }

  // The index of the module called `name`; -1 if there is none.
  int index(absl::string_view name) const;
  // Indices of the modules of `rank`, in the order of modules; none outside the world.
  absl::Span<const int32_t> modules_of(int64_t rank) const;
  // The first of them; nullptr outside the world.
  const Module* module(int64_t rank) const;
  // Whether `rank` has more modules than one.
  bool colocated(int64_t rank) const { return modules_of(rank).size() > 1; }

  // NotFound if `rank` is not of the module.
  absl::StatusOr<Coordinates> coordinates(int64_t rank, int module) const;
  // Of the rank's first module.
  absl::StatusOr<Coordinates> coordinates(int64_t rank) const;
  // The inverse. The coordinates must lie in the grid.
  int32_t rank(int module, const Coordinates& coordinates) const;

  // Which part of the micro-batch this rank's module keeps. For slicing only, never for a sampler:
  // that is sampling_info. Without a name, {0, 1} where modules are colocated, since each cuts by
  // its own size, and {0, 1} outside the world. By name, that module's also where it is colocated;
  // NotFound if `rank` is not of it.
  DpInfo dp_info(int64_t rank) const;
  absl::StatusOr<DpInfo> dp_info(int64_t rank, absl::string_view name) const;

  // Whether the module at this stage reads the batch: "language" at every stage (middle ones need
  // the metadata), any other at its first.
  bool NeedsData(int module, int64_t pp_rank) const;

  // What a sampler must use: {0, 1}, the same for every rank that loads. With `scalable_reads` (see
  // reads.h) the replica of the module; {0, 1} still where colocated modules have different ones.
  SamplingInfo sampling_info(int64_t rank, bool scalable_reads = false) const;

  // InvalidArgument names every broken rule at once, with the nearest sizes that work: sizes are
  // positive, and micro_batch_size at most kMaxMicroBatchSize; micro_batch_size is divisible by dp
  // of every module (with kUneven: no less than dp, so that each replica has a sample);
  // global_batch_size is divisible by micro_batch_size; the same for evaluation.
  absl::Status Validate(const BatchSizes& sizes) const;

 private:
  struct EdgeEnds {
    int from;
    int to;
  };
  // Of a module: place = sum of coordinate * stride.
  struct Strides {
    int64_t dp;
    int64_t tp;
    int64_t cp;
    int64_t pp;
  };

  static absl::StatusOr<Topology> MakeOf(TopologyParts parts);
  // Fills in what follows from the modules.
  void PlaceRanks();
  Coordinates CoordinatesOf(int module, int64_t place) const;
  // The place of the rank in the module's grid; -1 if it has none.
  int64_t FindPlace(int64_t rank, int module) const;

  int64_t world_size_ = 0;
  std::vector<Module> modules_;
  std::vector<Edge> edges_;
  std::vector<EdgeEnds> edge_ends_;
  std::vector<Strides> strides_;  // of each module
  std::vector<int> forward_order_;
  // Rank r has modules rank_modules_[rank_offsets_[r] .. rank_offsets_[r + 1]), and in each of them
  // the place of the same index.
  std::vector<int32_t> rank_offsets_;
  std::vector<int32_t> rank_modules_;
  std::vector<int32_t> rank_places_;
};

}  // namespace lockstep::mimo

#endif  // LOCKSTEP_MIMO_TOPOLOGY_H_
