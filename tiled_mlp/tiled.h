// Runs a token-wise function over tiles of a sequence, forward and backward, so that its
// activations take the memory of one tile; each weight's gradient arrives once.
//
//    const TileBody body = [](const at::Tensor& tile, at::TensorList w) {
//      const at::Tensor inner = at::silu(at::linear(tile, w[0])) * at::linear(tile, w[1]);
//      return std::vector<at::Tensor>{at::linear(inner, w[2])};
//    };
//    at::Tensor y = RunTiled(body, x, {gate, up, down}, {.size = {.num_tiles = 4}})[0];
//
// The failure it prevents. Usual tiled MLPs run a whole backward pass in each tile. Autograd does
// not know their weights, so each weight's accumulation hook fires once for each tile, and c10d's
// Reducer stops with "marked ready twice". A weight that the last tile does not use may have no
// call at all. Here the weights are inputs of one autograd node. The tiles work on detached
// aliases, and the node returns the sum. So data parallel, gradient accumulation, hooks on weights
// and optimizers in backward see the same as without tiles. Ranks may have different numbers of
// tiles.
//
// Cost: one more forward pass, which is a third of a step. Memory for one tile's share of one
// weight gradient at a time, in addition to the weight gradients. Below break-even (tiles.h)
// RunTiled runs untiled. Not for functions that mix tokens (attention).
//
// Source: docs/tiled_mlp.md (hooks of hidden weights); arXiv 2506.13996 (tiling).
// Forward and backward may run on different threads; the body must allow it.

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

// Maps (tile [rows, hidden], weights) to outputs, each [rows, ...]. It must compute each row from
// that row alone, and draw random numbers only from the default generators. It must get every
// trained tensor as an argument. To capture one is an error: in backward if tiled, in forward if
// untiled. It must not change its arguments. It runs twice for each tile: without gradients, then
// again in backward.
using TileBody =
    std::function<std::vector<at::Tensor>(const at::Tensor& tile, at::TensorList weights)>;

// Counters over all calls with these stats.
struct TileStats {
  std::atomic<int64_t> calls{0};
  std::atomic<int64_t> untiled{0};         // calls below break-even
  std::atomic<int64_t> tiles{0};           // run in forward
  std::atomic<int64_t> backward_tiles{0};  // run again in backward
  std::atomic<int64_t> skipped_tiles{0};   // not run again: their outputs' gradients were zero
  std::atomic<int64_t> tile_tokens{0};     // rows of the largest tile of the last call
};

struct TileOptions {
  TileSize size = {};
  bool preserve_rng = true;  // a tile's second run draws the same random numbers as its first
  // Adds up the gradients of bfloat16 and float16 weights in float32: twice their bytes.
  bool accumulate_fp32 = false;
  // Skips tiles whose outputs' gradients are all zero (a prompt without loss). The check is cheap
  // on a CPU, but a GPU must wait for it. Defaults to true on CPUs only.
  std::optional<bool> skip_zero_gradients = {};
  std::shared_ptr<TileStats> stats = {};  // optional
};

// Returns the body's outputs for all of x, [..., hidden]. Each has x's leading shape, then the
// output's sizes after its first. Integer outputs carry no gradient. Gradients reach x and each of
// `weights` that requires one. A weight that no tile used gets no gradient, or zeros if a tile was
// skipped.
//
// Throws c10::ValueError for an x that is not floating-point and for contradictory sizes. It throws
// for outputs without a row for each row of the tile, or with another number, dtype or row shape
// than the first tile's. It throws if the body captures a trained tensor or changes its arguments,
// and in a backward with create_graph if tiled. Errors of the body pass through; a c10::Error gets
// "tile 3 of 7" added.
std::vector<at::Tensor> RunTiled(const TileBody& body, const at::Tensor& x, at::TensorList weights,
                                 const TileOptions& options);

}  // namespace lockstep::tiled_mlp

#endif  // LOCKSTEP_TILED_MLP_TILED_H_
