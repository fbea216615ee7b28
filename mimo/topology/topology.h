// Maps each rank to its module and to its position in the module's grid.
//
// The failure this prevents. A vision encoder with data-parallel size 3 and a language model with
// data-parallel size 1 run on separate ranks. If each module's sampler divides the data by its own
// size, the two modules get different samples, and training continues with wrong data and no error.
// Here all ranks that load data load the same global micro-batch (SamplingInfo), and each module
// keeps the part of its own replica (DpInfo).
//
//    absl::StatusOr<Topology> topology = Topology::Make(
//        4, {{.name = "vision", .dp = 3, .first_rank = 0}, {.name = "language", .first_rank = 3}});
//    topology->module(1)->name;           // "vision"
//    topology->dp_info(1);                // replica 1 of 3: the part of the micro-batch to keep
//    topology->sampling_info(1);          // rank 0 of 1, needs data: the values for a sampler
//    topology->Validate({.micro_batch_size = 6, .global_batch_size = 24});
//
// Words. A module has a grid of ranks with four axes: tp (tensor parallel), cp (context parallel),
// dp (data parallel: replicas), pp (pipeline stages). The first axis of `order` varies fastest from
// rank to rank. Two modules share all of their ranks (they are colocated) or none. One module has
// the name "language"; the edges say how the others feed it. A micro-batch size counts the
// samples of the global micro-batch: a replica holds micro_batch_size / dp of them.
//
// Use it when modules differ in their parallelism. When all ranks run the same model on different
// data, use sharding and batching instead.
//
// Source: Megatron-Bridge's pull requests 2956 (read the same, slice by module) and 4066, and
// Megatron-LM's HyperCommGrid for the order of groups. Sizes need not be powers of two, and need
// not divide each other (see routes.h).
//
// A topology depends on its arguments only: ranks that make the same one agree without
// communication. Thread-safe: it never changes.

#ifndef LOCKSTEP_MIMO_TOPOLOGY_TOPOLOGY_H_
#define LOCKSTEP_MIMO_TOPOLOGY_TOPOLOGY_H_

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
constexpr int64_t kMaxMicroBatchSize = 1 << 20;  // samples; a larger value is a mistake
constexpr char kLanguage[] = "language";

struct Module {
  std::string name;
  int64_t dp = 1;
  int64_t tp = 1;
  int64_t cp = 1;
  int64_t pp = 1;
  // The module's ranks are [first_rank, first_rank + tp * cp * dp * pp) if `ranks` is empty.
  // Otherwise ranks[i] has place i of the grid.
  int64_t first_rank = 0;
  std::vector<int32_t> ranks = {};
  std::string order = "tp-cp-dp-pp";  // the first axis varies fastest; all four axes, each once
};

// Activations flow from module `from` to module `to`.
struct Edge {
  std::string from;
  std::string to;
};

// A rank's position in a module's grid.
struct Coordinates {
  int32_t dp = 0;
  int32_t tp = 0;
  int32_t cp = 0;
  int32_t pp = 0;

  friend bool operator==(const Coordinates&, const Coordinates&) = default;
};

// A replica: its index and the number of replicas.
struct DpInfo {
  int64_t dp_rank = 0;
  int64_t dp_size = 1;

  friend bool operator==(const DpInfo&, const DpInfo&) = default;
};

// The values for a rank's sampler.
struct SamplingInfo {
  int64_t dp_rank = 0;
  int64_t dp_size = 1;
  bool needs_data = false;  // false: this rank needs no loader

  friend bool operator==(const SamplingInfo&, const SamplingInfo&) = default;
};

// The division of samples over replicas if their number is not a multiple of dp.
enum class Division {
  kEven,    // Returns an error.
  kUneven,  // The first (size % parts) parts hold one more.
};

// The sizes that Validate checks. micro_batch_size is required; the others are checked if given.
struct BatchSizes {
  std::optional<int64_t> micro_batch_size = {};   // samples of the global micro-batch
  std::optional<int64_t> global_batch_size = {};  // samples of a step
  std::optional<int64_t> eval_micro_batch_size = {};
  std::optional<int64_t> eval_global_batch_size = {};
  Division division = Division::kEven;
};

// Private to topology.cc; see check_topology.h.
struct TopologyParts;

// Modules on ranks, and the edges between them. It never changes after Make.
class Topology {
 public:
  // Makes a topology. Without `edges`, every other module feeds "language"; with {} no module feeds
  // another. Returns InvalidArgument if a rule is broken. The message names all broken rules, their
  // values and the nearest values that work:
  //    - world_size is from 1 to kMaxWorldSize; there are modules, one of them named "language"
  //    - names are not empty and appear once; sizes are positive; `order` holds each axis once
  //    - a module's ranks lie in the world, appear once, and are tp * cp * dp * pp
  //    - two modules share all of their ranks or none; every rank has a module
  //    - edges name modules, appear once and make no cycle
  //
  // Cost: O(world_size * modules of a rank).
  static absl::StatusOr<Topology> Make(int64_t world_size, std::vector<Module> modules);
  static absl::StatusOr<Topology> Make(int64_t world_size, std::vector<Module> modules,
                                       std::vector<Edge> edges);

  int64_t world_size() const { return world_size_; }
  // Returns the modules as given, with `ranks` filled in. Functions below take an index into it.
  const std::vector<Module>& modules() const { return modules_; }
  // Returns the edges as given, or the default edges to "language" in the order of modules.
  const std::vector<Edge>& edges() const { return edges_; }
  // Return the indices of the modules at both ends of edges()[edge].
  int from(int edge) const { return edge_ends_[static_cast<size_t>(edge)].from; }
  int to(int edge) const { return edge_ends_[static_cast<size_t>(edge)].to; }
  // Returns indices of modules, sorted so that each comes after all modules that feed it. Ties keep
  // the order of modules.
  const std::vector<int>& forward_order() const { return forward_order_; }

  // Returns the index of the module with this name, or -1.
  int index(absl::string_view name) const;
  // Returns the indices of the rank's modules, in the order of modules. Empty outside the world.
  absl::Span<const int32_t> modules_of(int64_t rank) const;
  // Returns the rank's first module, or nullptr outside the world.
  const Module* module(int64_t rank) const;
  // Returns whether the rank runs more than one module.
  bool colocated(int64_t rank) const { return modules_of(rank).size() > 1; }

  // Returns the rank's position in the module's grid. Returns NotFound if the module does not run
  // on it.
  absl::StatusOr<Coordinates> coordinates(int64_t rank, int module) const;
  // Returns the position in the grid of the rank's first module.
  absl::StatusOr<Coordinates> coordinates(int64_t rank) const;
  // Returns the rank at a position of the module's grid. The coordinates must lie in the grid.
  int32_t rank(int module, const Coordinates& coordinates) const;

  // Returns which part of the micro-batch the rank's module keeps. Use it to slice a batch, never
  // for a sampler (see sampling_info). Without a name the result is {0, 1} where modules are
  // colocated, because each slices by its own size, and {0, 1} outside the world. With a name it is
  // that module's part; returns NotFound if the module does not run on the rank.
  DpInfo dp_info(int64_t rank) const;
  absl::StatusOr<DpInfo> dp_info(int64_t rank, absl::string_view name) const;

  // Returns whether the module reads the batch at this stage. "language" reads it at every stage,
  // because middle stages need the metadata. Any other module reads it at its first stage.
  bool NeedsData(int module, int64_t pp_rank) const;

  // Returns the values that a sampler must use: {0, 1} on every rank that loads. With
  // `scalable_reads` (see reads.h) they are the module's replica, unless colocated modules differ
  // in their replicas.
  SamplingInfo sampling_info(int64_t rank, bool scalable_reads = false) const;

  // Checks batch sizes. Returns InvalidArgument if a rule is broken. The message names all broken
  // rules and the nearest sizes that work:
  //    - sizes are positive, and micro_batch_size is at most kMaxMicroBatchSize
  //    - micro_batch_size is divisible by dp of every module (with kUneven: at least dp)
  //    - global_batch_size is divisible by micro_batch_size
  //    - the same for evaluation
  absl::Status Validate(const BatchSizes& sizes) const;

 private:
  struct EdgeEnds {
    int from;
    int to;
  };
  // A module's strides: place = sum of coordinate * stride.
  struct Strides {
    int64_t dp;
    int64_t tp;
    int64_t cp;
    int64_t pp;
  };

  static absl::StatusOr<Topology> MakeOf(TopologyParts parts);
  // Fills in the members that follow from the modules.
  void PlaceRanks();
  Coordinates CoordinatesOf(int module, int64_t place) const;
  // Returns the rank's place in the module's grid, or -1.
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

#endif  // LOCKSTEP_MIMO_TOPOLOGY_TOPOLOGY_H_
