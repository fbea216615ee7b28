// The ends of a tile's own graph: aliases of x's rows and of the weights. A leaf passes its
// gradient on as soon as autograd has it.
//
// torch::autograd::grad returns all gradients of a tile together, so it holds those of all weights
// until the tile's backward ends. A leaf adds its gradient to the sum at once and frees it before
// autograd computes the next one. So one temporary gradient exists at a time, in addition to the
// sums.
//
// A leaf has no AccumulateGrad, so hooks of the original tensor do not run.

#ifndef LOCKSTEP_TILED_MLP_LEAVES_H_
#define LOCKSTEP_TILED_MLP_LEAVES_H_

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "torch/csrc/autograd/function.h"

namespace lockstep::tiled_mlp {

// The sum of a weight's gradients over tiles.
class WeightGradient {
 public:
  // With `accumulate_fp32`, sums a bfloat16 or float16 weight's gradients in float32.
  WeightGradient(const at::Tensor& weight, bool accumulate_fp32);

  void Add(at::Tensor gradient);

  // Returns the sum in the weight's dtype. If nothing was added, returns zeros with `zeros`, else
  // an undefined tensor.
  at::Tensor Take(bool zeros);

 private:
  at::Tensor weight_;
  bool in_fp32_;
  at::Tensor sum_;
};

// Called with a defined gradient, once for each backward that reaches the leaf.
using TakeGradient = std::function<void(at::Tensor gradient)>;

// Makes leaves that live as long as this object. If the function keeps a graph and runs a backward
// pass through it later, that pass fails with an error and does not call `take`.
class Leaves {
 public:
  Leaves() : alive_(std::make_shared<std::atomic<bool>>(true)) {}
  Leaves(const Leaves&) = delete;
  Leaves& operator=(const Leaves&) = delete;
  ~Leaves() { *alive_ = false; }

  // Returns a leaf on the memory of `tensor`, with its version but without its history and hooks.
  // `take` runs on the thread of the backward that computes the gradient, with gradients off.
  at::Tensor On(const at::Tensor& tensor, TakeGradient take) const;

 private:
  std::shared_ptr<std::atomic<bool>> alive_;
};

// Throws c10::ValueError if backward from `roots` would reach a trained tensor other than through
// `leaves`. The function did not get that tensor as an argument, so its gradient would be lost.
void CheckNothingElseIsTrained(const torch::autograd::edge_list& roots,
                               const std::vector<at::Tensor>& leaves);

}  // namespace lockstep::tiled_mlp

#endif  // LOCKSTEP_TILED_MLP_LEAVES_H_
