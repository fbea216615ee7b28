// Cross entropy of hidden states and a head's weight that never holds the logits.
//
//   CrossEntropy result = TiledCrossEntropy(hidden, head, labels, {.ignore_index = -100});
//   result.loss.backward();                 // gradients of hidden and head
//
//   logits = hidden weight^T + bias;  logits = softcap * tanh(logits / softcap) where it is given
//   loss of a token = (1 - label_smoothing) * (logsumexp(logits) - logits[label])
//                     + label_smoothing * (logsumexp(logits) - mean(logits))
//                     + z_loss * logsumexp(logits)^2
//
// The failure it prevents: at a vocabulary of 128K the logits of 8K tokens, their log-softmax and
// their gradient take 12 GiB in float32, more than most of the model. Here a tile of tokens at a
// time is scored in one buffer, its gradient with respect to hidden and weight computed at once,
// while the logits are there, and scaled by the incoming gradient in backward: the three matrix
// multiplications of the plain loss, no fourth.
//
// hidden, weight and bias are the node's inputs, so the head's gradient arrives once, in backward,
// tied to an embedding or not, under a loss scale or gradient accumulation.
//
// With kNone each token's gradient may be scaled differently, so backward scores the tiles again.
//
// Source: Liger Kernel's fused linear cross entropy (arXiv 2410.10989); z-loss: PaLM (arXiv
// 2204.02311). Thread-safe.

#ifndef LOCKSTEP_TILED_MLP_CROSS_ENTROPY_H_
#define LOCKSTEP_TILED_MLP_CROSS_ENTROPY_H_

#include <cstdint>

#include "ATen/core/TensorBody.h"

namespace lockstep::tiled_mlp {

enum class Reduction { kMean, kSum, kNone };

struct CrossEntropyOptions {
  at::Tensor bias = {};  // [vocabulary]
  int64_t ignore_index = -100;
  double label_smoothing = 0;  // from 0 to 1
  double z_loss = 0;
  double softcap = 0;  // 0: none
  Reduction reduction = Reduction::kMean;
  // What kMean divides the sum by, a tensor of no dimensions; undefined: `count`, at least 1. For a
  // mean over ranks under data parallel, which averages gradients: the count of all ranks / ranks.
  at::Tensor divisor = {};
  // Tokens whose logits are held at a time: 1,024 unless given, whatever the sizes, and so the same
  // on every rank.
  int64_t tile_tokens = 0;
  bool accumulate_fp32 = false;  // the gradient of a bfloat16 or float16 weight, in float32
};

struct CrossEntropy {
  // float32, or float64 where hidden is: no dimensions, or labels' shape for kNone (0 where
  // ignored).
  at::Tensor loss;
  at::Tensor count;  // int64, no dimensions: labels that are not ignored
};

// hidden: [..., hidden]; weight: [vocabulary, hidden]; labels: int64 [...], hidden's leading shape.
// With no label that counts the loss is 0, with gradients 0 (a micro-batch of padding), not NaN.
//
// Throws c10::ValueError where shapes, dtypes or devices do not fit together, where an option is
// out of range, and, on a CPU, where a label is neither in the vocabulary nor ignored or the
// divisor not above 0.
CrossEntropy TiledCrossEntropy(const at::Tensor& hidden, const at::Tensor& weight,
                               const at::Tensor& labels, const CrossEntropyOptions& options);

}  // namespace lockstep::tiled_mlp

#endif  // LOCKSTEP_TILED_MLP_CROSS_ENTROPY_H_
