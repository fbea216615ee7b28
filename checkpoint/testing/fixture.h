// Small networks that the tests of this library share.

#ifndef LOCKSTEP_CHECKPOINT_TESTING_FIXTURE_H_
#define LOCKSTEP_CHECKPOINT_TESTING_FIXTURE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ATen/TensorOperators.h"
#include "ATen/core/TensorBody.h"
#include "checkpoint/region/checkpoint.h"
#include "tests/support/cpu_memory.h"
#include "tests/support/message_of.h"

namespace lockstep::checkpoint {

using Tensors = std::vector<at::Tensor>;

// Two float64 matrix products with a tanh between them. They save 5 tensors.
class Layer {
 public:
  explicit Layer(int64_t size);
  at::Tensor operator()(const at::Tensor& x) const;
  Tensors weights() const { return {first_, second_}; }

 private:
  at::Tensor first_;
  at::Tensor second_;
};

at::Tensor Random(at::IntArrayRef sizes, bool requires_grad = true);

// Runs a region that is a function of one tensor.
at::Tensor Call(const Checkpoint& checkpoint, const std::function<at::Tensor(const at::Tensor&)>& f,
                const at::Tensor& x, const std::string& name = "");

// Returns the gradients of the sum of squares of `y` with respect to `inputs`. Clears existing
// gradients first.
Tensors GradientsOf(const at::Tensor& y, const Tensors& inputs, bool retain_graph = false);

// Returns whether each pair of tensors has equal bits.
bool SameBits(const Tensors& a, const Tensors& b);

using tests::Memory;
using tests::MemoryOf;
using tests::MessageOf;

}  // namespace lockstep::checkpoint

#endif  // LOCKSTEP_CHECKPOINT_TESTING_FIXTURE_H_
