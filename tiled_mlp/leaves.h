// The ends of a tile's own graph: aliases of x's rows and of the weights, whose gradients go where
// they belong the moment autograd has them.
//
// torch::autograd::grad returns a tile's gradients together, so it holds those of all weights until
// the end of its backward. A leaf adds its share at once, and frees it before the next weight's
// share is computed. So there is one share at a time, in addition to the sums.
//
// A leaf has no AccumulateGrad, and so no hooks of the tensor that it is an alias of.

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
  // In float32, where asked for, if the weight is bfloat16 or float16.
  WeightGradient(const at::Tensor& weight, bool accumulate_fp32);

  void Add(at::Tensor gradient);

  // In the weight's dtype. Undefined where nothing was added, unless `zeros`.
  at::Tensor Take(bool zeros);

 private:
  at::Tensor weight_;
  bool in_fp32_;
  at::Tensor sum_;
};

// Gets a gradient, defined, once for each backward that reaches the leaf.
using TakeGradient = std::function<void(at::Tensor gradient)>;

// Makes leaves that live as long as this object. If the function keeps a graph and runs a backward
// pass through it later, that pass fails with an error and does not call `take`.
class Leaves {
 public:
  Leaves() : alive_(std::make_shared<std::atomic<bool>>(true)) {}
  Leaves(const Leaves&) = delete;
  Leaves& operator=(const Leaves&) = delete;
  ~Leaves() { *alive_ = false; }

  // On the memory of `tensor` and with its version, but without its history and hooks. `take` runs
  // on the thread of the backward that computes the gradient, with gradients off.
  at::Tensor On(const at::Tensor& tensor, TakeGradient take) const;

 private:
  std::shared_ptr<std::atomic<bool>> alive_;
};

// Throws c10::ValueError if backward from `roots` would reach a trained tensor other than through
// `leaves`. The function did not get that tensor as an argument, and it would lose its gradient.
void CheckNothingElseIsTrained(const torch::autograd::edge_list& roots,
                               const std::vector<at::Tensor>& leaves);

}  // namespace lockstep::tiled_mlp

#endif  // LOCKSTEP_TILED_MLP_LEAVES_H_
