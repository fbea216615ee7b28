// The cross entropy of logits and labels in one pass over memory, forward and backward.
//
// The failure it prevents. log_softmax and nll_loss write the log-probabilities, a gradient of
// zeros but for the labels, and the gradient of the logits. At 8,192 tokens and a vocabulary of
// 152,000 each takes 4.6 GiB in float32. Here forward reads the logits once, and keeps one
// number for each token. Backward reads them again, and writes their gradient.
//
//    const TokenLosses losses = CrossEntropy(logits, target, {.ignore_index = -100});
//    losses.loss.sum().backward();
//
// With z the logits of a token, y its label, e the label smoothing and V the vocabulary:
//
//    lse  = logsumexp(z)
//    loss = weight * ((1 - e) * (lse - z[y]) + e * (lse - mean(z)) + z_loss * lse^2)
//
// A vocabulary that is padded counts with its padding; give padded logits -infinity to leave them
// out. Not with label smoothing: their mean is -infinity, and the loss infinite.
//
// On the CPU it is a kernel for AVX-512, AVX2 and any other machine, chosen as ATen chooses. On an
// NVIDIA GPU it is a kernel if the program has //kernels:cuda. Elsewhere ATen's operators compute
// the same. Sums are in float32, in float64 for float64. Results have the same bits for any number
// of threads. Gradients of gradients are computed by ATen's operators. Thread-safe.
//
// Source: the sum of one pass, arXiv 1805.02867; z-loss: PaLM (arXiv 2204.02311).

#ifndef LOCKSTEP_KERNELS_CROSS_ENTROPY_CROSS_ENTROPY_H_
#define LOCKSTEP_KERNELS_CROSS_ENTROPY_CROSS_ENTROPY_H_

#include <cstdint>
#include <optional>

#include "ATen/core/TensorBody.h"

namespace lockstep::kernels {

struct LossOptions {
  // A factor of each token's loss, of the labels' shape, in the loss's dtype. Gets no gradient.
  std::optional<at::Tensor> weight = std::nullopt;
  int64_t ignore_index = -100;  // a label that does not count
  double label_smoothing = 0;   // from 0 to 1
  double z_loss = 0;
};

// The losses of tokens, in the labels' shape. They are 0 for ignored labels.
struct TokenLosses {
  at::Tensor loss;     // float32, or float64 if the logits are
  at::Tensor lse;      // float64: float32 would lose digits of small losses
  at::Tensor entropy;  // of the softmax, in loss's dtype; [0] if it is not asked for
};

// Takes logits [..., vocabulary] in float16, bfloat16, float32 or float64, and int64 labels [...].
// All three results are differentiable. Throws c10::ValueError if shapes, dtypes or devices do not
// fit together, or if an option is out of range. A label that is neither in the vocabulary nor
// ignored throws c10::IndexError on the CPU, and is a device-side assertion on a GPU.
TokenLosses CrossEntropy(const at::Tensor& logits, const at::Tensor& target,
                         const LossOptions& options = {}, bool with_entropy = false);

// Returns the losses, and writes the gradient of their sum to `logits`. For a caller that owns the
// logits and needs them no more. Nothing is recorded: throws c10::ValueError if logits require a
// gradient. Throws c10::Error for an expanded tensor, whose rows share memory.
at::Tensor CrossEntropyWithGradient(const at::Tensor& logits, const at::Tensor& target,
                                    const LossOptions& options = {});

}  // namespace lockstep::kernels

#endif  // LOCKSTEP_KERNELS_CROSS_ENTROPY_CROSS_ENTROPY_H_
