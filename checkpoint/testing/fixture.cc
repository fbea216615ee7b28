#include "checkpoint/testing/fixture.h"

#include <algorithm>

#include "ATen/ops/equal.h"
#include "ATen/ops/randn.h"
#include "ATen/ops/sum.h"
#include "ATen/ops/tanh.h"
#include "torch/csrc/autograd/autograd.h"

namespace lockstep::checkpoint {
Layer::Layer(int64_t size) : first_(Random({size, size})), second_(Random({size, size})) {}

at::Tensor Layer::operator()(const at::Tensor& x) const {
  return at::tanh(x.matmul(first_)).matmul(second_);
}

at::Tensor Random(at::IntArrayRef sizes, bool requires_grad) {
  return at::randn(sizes, at::kDouble).set_requires_grad(requires_grad);
}

at::Tensor Call(const Checkpoint& checkpoint, const std::function<at::Tensor(const at::Tensor&)>& f,
                const at::Tensor& x, const std::string& name) {
  return checkpoint([f](const Tensors& in) { return Tensors{f(in[0])}; }, {x}, name)[0];
}

Tensors GradientsOf(const at::Tensor& y, const Tensors& inputs, bool retain_graph) {
  for (const at::Tensor& input : inputs) input.mutable_grad() = at::Tensor();
  torch::autograd::backward({(y * y).sum()}, {}, retain_graph);
  Tensors gradients;
  for (const at::Tensor& input : inputs) gradients.push_back(input.grad());
  return gradients;
}

bool SameBits(const Tensors& a, const Tensors& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const at::Tensor& x, const at::Tensor& y) {
                      return x.defined() == y.defined() && (!x.defined() || at::equal(x, y));
                    });
}

}  // namespace lockstep::checkpoint
