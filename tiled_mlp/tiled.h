// Runs a token-wise function over tiles of a sequence, forward and backward, so that its
// activations take the memory of one tile; each weight's gradient arrives once.
//
//   const TileBody body = [](const at::Tensor& tile, at::TensorList w) -> std::vector<at::Tensor> {
//     return {at::linear(at::silu(at::linear(tile, w[0])) * at::linear(tile, w[1]), w[2])};
//   };
//   at::Tensor y = RunTiled(body, x, {gate, up, down}, {.size = {.num_tiles = 4}})[0];
//
// The failure it prevents. Tiled MLPs run backward tile by tile with weights that autograd does not
// know of, so each weight's accumulation hook fires once for each tile, and c10d's Reducer stops
// with "marked ready twice"; or never, for a weight that the last tile does not use. Here the
// weights are inputs of one autograd node: the tiles work on detached aliases, and the node returns
// the sum. So data parallel (with find_unused, with a static graph), gradient accumulation, hooks
// on weights and optimizers in backward see what they would without tiles, whatever the number of
// tiles on this rank in this step.
//
// Cost: one more forward pass, a third of a step; beside the weight gradients a tile's share of
// one of them.
// Below break-even (tiles.h) it runs untiled. Not for functions that mix tokens (attention).
//
// Source: hidden weights and their hooks, docs/tiled_mlp.md; tiling, arXiv 2506.13996.
// Thread: forward and backward may run on different threads; the body must allow it.

#ifndef LOCKSTEP_TILED_MLP_TILED_H_
#define LOCKSTEP_TILED_MLP_TILED_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "tiled_mlp/tiles.h"

namespace lockstep::tiled_mlp {

// (tile [rows, hidden], weights) -> outputs, each [rows, ...]. It must compute each row from that
// row alone, draw random numbers from the default generators alone, and use every tensor that is
// trained through its arguments: one that it captures is an error in backward. It runs twice for
// each tile: without gradients, then in backward with them.
using TileBody =
    std::function<std::vector<at::Tensor>(const at::Tensor& tile, at::TensorList weights)>;

// What happened, over all calls that were given it.
struct TileStats {
  std::atomic<int64_t> calls{0};
  std::atomic<int64_t> untiled{0};         // of these, below break-even
  std::atomic<int64_t> tiles{0};           // run forward
  std::atomic<int64_t> backward_tiles{0};  // run again for their gradients
  std::atomic<int64_t> skipped_tiles{0};   // whose output's gradient was zero
  std::atomic<int64_t> tile_tokens{0};     // rows of the largest tile of the last call
};

struct TileOptions {
  TileSize size = {};
  bool preserve_rng = true;  // a tile's second run draws what its first drew
  // Add up the gradients of bfloat16 and float16 weights in float32: twice their bytes.
  bool accumulate_fp32 = false;
  // Leave out tiles whose output's gradient is all zero (a prompt without loss). Looking costs a
  // CPU little and a GPU a wait, so unless said otherwise only CPUs do.
  std::optional<bool> skip_zero_gradients = {};
  std::shared_ptr<TileStats> stats = {};  // none: nothing is counted
};

// The body's outputs for all of x, [..., hidden], with x's leading shape: [...] + the output's
// sizes after its first. Integer outputs carry no gradient. Gradients reach x and each of `weights`
// that requires one; a weight that no tile used gets none, or zeros where a tile was left out.
//
// Throws c10::ValueError for an x that is not floating-point or a size that contradicts itself;
// where outputs are not of the tile's rows, or differ in number or shape between tiles; where the
// body captures a tensor that is trained; and in a backward with create_graph. What the body throws
// passes through, with "tile 3 of 7" added to a c10::Error.
std::vector<at::Tensor> RunTiled(const TileBody& body, const at::Tensor& x, at::TensorList weights,
                                 const TileOptions& options);

}  // namespace lockstep::tiled_mlp

#endif  // LOCKSTEP_TILED_MLP_TILED_H_
