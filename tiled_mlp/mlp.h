// A gated or plain MLP in tiles, with its arithmetic written out: faster and smaller than the same
// body through RunTiled (tiled.h).
//
//   at::Tensor y = RunTiledMlp(x, {.gate = w_gate, .up = w_up, .down = w_down},
//                              Activation::kSilu, {.size = {.tile_tokens = 8192}});
//
//   gated:  y = (act(x gate^T + gate_bias) * (x up^T + up_bias)) down^T + down_bias
//   plain:  y = act(x up^T + up_bias) down^T + down_bias
//
// What it saves. Buffers for a tile's activations are allocated once for a pass and used by each
// tile. A tile's weight gradients are added by the matrix multiplication itself (beta = 1), so a
// tile costs no temporary of weight size: one set of weight gradients is all. Outputs and the
// input's gradient are written where they belong. Backward computes gate and up again but not the
// product with `down`, which no gradient needs: 3.67 forward passes' work for a step where untiled
// costs 3 and RunTiled 4.
//
// One autograd node with the weights as its inputs: gradients arrive once, as with RunTiled.
//
// Under autocast it computes, and returns, in autocast's dtype, with the weights cast once a pass.
//
// Source: Shazeer, arXiv 2002.05202 (gated MLPs). Thread-safe: as RunTiled.

#ifndef LOCKSTEP_TILED_MLP_MLP_H_
#define LOCKSTEP_TILED_MLP_MLP_H_

#include "ATen/core/TensorBody.h"
#include "tiled_mlp/tiled.h"

namespace lockstep::tiled_mlp {

enum class Activation { kSilu, kGelu, kGeluTanh };

// Shapes as nn.Linear has them. Undefined: absent.
struct MlpWeights {
  at::Tensor gate;            // [intermediate, hidden]; absent: a plain MLP
  at::Tensor up;              // [intermediate, hidden]
  at::Tensor down;            // [out, intermediate]
  at::Tensor gate_bias = {};  // [intermediate]
  at::Tensor up_bias = {};    // [intermediate]
  at::Tensor down_bias = {};  // [out]
};

// x: [..., hidden]; returns [..., out]. Each weight may be frozen. options.accumulate_fp32 adds up
// in float32 by the matrix multiplications' own accumulators: on a GPU with bfloat16 operands, on a
// CPU with a tile's operands cast to float32, for which activations are not rounded in between.
// options.preserve_rng is of no effect: nothing is drawn.
//
// Throws c10::ValueError, naming the weight, where shapes, dtypes or devices do not fit together.
at::Tensor RunTiledMlp(const at::Tensor& x, const MlpWeights& weights, Activation activation,
                       const TileOptions& options);

}  // namespace lockstep::tiled_mlp

#endif  // LOCKSTEP_TILED_MLP_MLP_H_
