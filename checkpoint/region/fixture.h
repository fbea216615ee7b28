// What the tests of this library share: small networks, and a meter of memory.

#ifndef LOCKSTEP_CHECKPOINT_REGION_FIXTURE_H_
#define LOCKSTEP_CHECKPOINT_REGION_FIXTURE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ATen/TensorOperators.h"
#include "ATen/core/TensorBody.h"
#include "checkpoint/region/checkpoint.h"
#include "tests/support/message_of.h"

namespace lockstep::checkpoint {

using Tensors = std::vector<at::Tensor>;

// Two matrix products with a tanh between, of float64: 5 tensors saved.
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

// The region of a function of one tensor.
at::Tensor Call(const Checkpoint& checkpoint, const std::function<at::Tensor(const at::Tensor&)>& f,
                const at::Tensor& x, const std::string& name = "");

// Gradients of the sum of squares of `y` with respect to `inputs`. Clears those that are there.
Tensors GradientsOf(const at::Tensor& y, const Tensors& inputs, bool retain_graph = false);

// Whether each pair is equal to the last bit.
bool SameBits(const Tensors& a, const Tensors& b);

// Bytes that the CPU's allocator hands out while `function` runs, at the most and in the end, less
// what was there before.
struct Memory {
  int64_t peak = 0;
  int64_t kept = 0;
};
Memory MemoryOf(const std::function<void()>& function);

using tests::MessageOf;

}  // namespace lockstep::checkpoint

#endif  // LOCKSTEP_CHECKPOINT_REGION_FIXTURE_H_
