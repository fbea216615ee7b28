// The ends of a tile's own graph: aliases of x's rows and of the weights, whose gradients go where
// they belong the moment autograd has them.
//
// torch::autograd::grad returns a tile's gradients together, so that those of all weights are held
// until its backward is over. A leaf adds its share at once, and the share is gone before the next
// weight's is computed: beside the sums one share is held at a time.
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

// Makes leaves that are alive as long as it is: a graph that the function has kept, and runs a
// backward of its own through later, meets an error and not what `take` refers to.
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

// Throws c10::ValueError where backward from `roots` would reach a trained tensor that is none of
// `leaves`: the function took it from elsewhere than its arguments, and it would lose its gradient.
void CheckNothingElseIsTrained(const torch::autograd::edge_list& roots,
                               const std::vector<at::Tensor>& leaves);

}  // namespace lockstep::tiled_mlp

#endif  // LOCKSTEP_TILED_MLP_LEAVES_H_
