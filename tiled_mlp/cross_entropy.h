// Computes the cross entropy of hidden states and a head's weight without holding the logits.
//
//    CrossEntropy result = TiledCrossEntropy(hidden, head, labels, {.ignore_index = -100});
//    result.loss.backward();                 // gradients of hidden and head
//
//    logits = hidden weight^T + bias;  logits = softcap * tanh(logits / softcap) where it is given
//    loss of a token = (1 - label_smoothing) * (logsumexp(logits) - logits[label])
//                      + label_smoothing * (logsumexp(logits) - mean(logits))
//                      + z_loss * logsumexp(logits)^2
//
// The failure it prevents. At a vocabulary of 128K the logits of 8K tokens, their log-softmax and
// their gradient take 12 GiB in float32, more than most of the model. Here forward scores one tile
// of tokens at a time in one buffer, and computes the gradients of hidden and weight from it at
// once. Backward scales them by the incoming gradient. So the loss takes the same three matrix
// multiplications as the plain one.
//
// hidden, weight and bias are the node's inputs, so the head's gradient arrives once, in backward.
// The head may be tied to an embedding.
//
// With kNone each token's gradient may have another scale, so backward scores the tiles again.
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
  // The divisor of kMean, a tensor of no dimensions. Undefined: `count`, or 1 if that is 0. Data
  // parallel averages gradients, so a mean over ranks needs the count of all ranks / ranks.
  at::Tensor divisor = {};
  // The number of tokens in a tile. 0: 1,024, for all sizes, and so the same on every rank.
  int64_t tile_tokens = 0;
  bool accumulate_fp32 = false;  // adds up a bfloat16 or float16 weight's gradient in float32
};

struct CrossEntropy {
  // float32, or float64 if hidden is. It has no dimensions, or with kNone the labels' shape, with 0
  // for ignored tokens.
  at::Tensor loss;
  at::Tensor count;  // int64, no dimensions: number of labels that are not ignored
};

// Takes hidden [..., hidden], weight [vocabulary, hidden] and int64 labels [...], with hidden's
// leading shape. If all labels are ignored (a padding micro-batch), the loss and its gradients are
// 0, not NaN.
//
// Throws c10::ValueError if shapes, dtypes or devices do not fit together, or if an option is out
// of range. On a CPU it also throws for a label that is neither in the vocabulary nor ignored, and
// for a divisor that is not above 0.
CrossEntropy TiledCrossEntropy(const at::Tensor& hidden, const at::Tensor& weight,
                               const at::Tensor& labels, const CrossEntropyOptions& options);

}  // namespace lockstep::tiled_mlp

#endif  // LOCKSTEP_TILED_MLP_CROSS_ENTROPY_H_
