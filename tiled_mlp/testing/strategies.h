// Small versions of the ways in which other libraries run tiled MLPs backward. Tests use them to
// reproduce their failures under data parallel, next to our version, which has none.

#ifndef LOCKSTEP_TILED_MLP_TESTING_STRATEGIES_H_
#define LOCKSTEP_TILED_MLP_TESTING_STRATEGIES_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "tiled_mlp/tiled.h"

namespace lockstep::tiled_mlp {

enum class Strategy {
  kBackwardPerTile,  // A: weights hidden from autograd, .backward() on each tile
  kReadyFlag,  // B: as A; a flag on the weight tells hooks that know it which tile is the last
  kGradThenBackward,  // C: grad() adds to weight.grad for all tiles but the last, .backward() there
  kOwnSums,   // D: as A, but each tile's weight.grad moves to a sum that is written at the end
  kExplicit,  // E: ours
};

void PrintTo(Strategy strategy, std::ostream* out);  // for GoogleTest's messages

// Runs the body over `num_tiles` tiles, cut as torch.chunk does (E: balanced). x: [rows, hidden].
at::Tensor RunStrategy(Strategy strategy, const TileBody& body, const at::Tensor& x,
                       const std::vector<at::Tensor>& weights, int64_t num_tiles);

// Returns B's flag: whether the weight's gradient is complete, as set by the tile that runs
// backward.
bool IsReady(const at::Tensor& weight);

// Counts the calls in which autograd accumulates into each weight.
class AccumulateCounter {
 public:
  // `is_ready`: counts only calls for which it holds.
  explicit AccumulateCounter(const std::vector<at::Tensor>& weights,
                             std::function<bool(const at::Tensor&)> is_ready = nullptr);
  ~AccumulateCounter();
  AccumulateCounter(const AccumulateCounter&) = delete;
  AccumulateCounter& operator=(const AccumulateCounter&) = delete;

  std::vector<int> Take();  // counts by weight, since the last Take

 private:
  struct Watched;
  std::vector<std::unique_ptr<Watched>> watched_;
  std::shared_ptr<std::vector<int>> counts_;
};

}  // namespace lockstep::tiled_mlp

#endif  // LOCKSTEP_TILED_MLP_TESTING_STRATEGIES_H_
