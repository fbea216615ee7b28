// A gated or plain MLP in tiles, with its arithmetic written out: faster and smaller than the same
// body through RunTiled (tiled.h).
//
//    at::Tensor y = RunTiledMlp(x, {.gate = w_gate, .up = w_up, .down = w_down},
//                               Activation::kSilu, {.size = {.tile_tokens = 8192}});
//
//    gated:  y = (act(x gate^T + gate_bias) * (x up^T + up_bias)) down^T + down_bias
//    plain:  y = act(x up^T + up_bias) down^T + down_bias
//
// The savings over RunTiled. All tiles of a pass use the same activation buffers. The matrix
// multiplications add a tile's weight gradients to the sum (beta = 1), so a tile needs no temporary
// of weight size. Outputs and the input's gradient are written in place. Backward computes gate and
// up again, but not the product with `down`, because no gradient needs it. A step takes the work of
// 3.67 forward passes; untiled takes 3, RunTiled 4.
//
// The weights are inputs of one autograd node: gradients arrive once, as with RunTiled.
//
// Under autocast it computes and returns autocast's dtype, and casts the weights once per pass.
//
// Source: Shazeer, arXiv 2002.05202 (gated MLPs). Thread-safe.

#ifndef LOCKSTEP_TILED_MLP_MLP_H_
#define LOCKSTEP_TILED_MLP_MLP_H_

#include "ATen/core/TensorBody.h"
#include "tiled_mlp/tiled.h"

namespace lockstep::tiled_mlp {

enum class Activation { kSilu, kGelu, kGeluTanh };

// The weights, in the shapes of nn.Linear. An undefined tensor stands for an absent weight.
struct MlpWeights {
  at::Tensor gate;            // [intermediate, hidden]; undefined for a plain MLP
  at::Tensor up;              // [intermediate, hidden]
  at::Tensor down;            // [out, intermediate]
  at::Tensor gate_bias = {};  // [intermediate]
  at::Tensor up_bias = {};    // [intermediate]
  at::Tensor down_bias = {};  // [out]
};

// Takes x [..., hidden] and returns [..., out]. Each weight may be frozen.
//
// options.accumulate_fp32 adds weight gradients up in float32 inside the matrix multiplications. On
// a GPU their operands stay bfloat16. On a CPU a tile's operands are cast to float32, and
// activations are not rounded in between. options.preserve_rng has no effect: the MLP draws no
// random numbers.
//
// Throws c10::ValueError with the weight whose shape, dtype or device does not fit.
at::Tensor RunTiledMlp(const at::Tensor& x, const MlpWeights& weights, Activation activation,
                       const TileOptions& options);

}  // namespace lockstep::tiled_mlp

#endif  // LOCKSTEP_TILED_MLP_MLP_H_
