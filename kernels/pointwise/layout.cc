#include "kernels/pointwise/layout.h"

#include <algorithm>

namespace lockstep::kernels::pointwise {
namespace {

int64_t StrideOf(const at::Tensor& input, int64_t dim, int64_t num_dims) {
  const int64_t own = dim - (num_dims - input.dim());
  return own < 0 || input.size(own) == 1 ? 0 : input.stride(own);
}

}  // namespace

Layout LayoutOf(at::IntArrayRef shape, const std::vector<const at::Tensor*>& inputs) {
  Layout layout;
  layout.strides.resize(inputs.size());
  const auto num_dims = static_cast<int64_t>(shape.size());
  for (int64_t dim = 0; dim < num_dims; ++dim) {
    if (shape[dim] == 1) continue;
    bool joins = !layout.sizes.empty();
    for (size_t i = 0; i < inputs.size() && joins; ++i)
      joins = layout.strides[i].back() == StrideOf(*inputs[i], dim, num_dims) * shape[dim];
    if (joins)
      layout.sizes.back() *= shape[dim];
    else
      layout.sizes.push_back(shape[dim]);
    for (size_t i = 0; i < inputs.size(); ++i) {
      const int64_t stride = StrideOf(*inputs[i], dim, num_dims);
      if (joins)
        layout.strides[i].back() = stride;
      else
        layout.strides[i].push_back(stride);
    }
  }
  return layout;
}

Access AccessOf(const at::DimVector& sizes, const at::DimVector& strides) {
  if (std::all_of(strides.begin(), strides.end(), [](int64_t stride) { return stride == 0; }))
    return Access::kUniform;
  int64_t expected = 1;
  for (size_t dim = sizes.size(); dim-- > 0; expected *= sizes[dim])
    if (strides[dim] != expected) return Access::kStrided;
  return Access::kFlat;
}

}  // namespace lockstep::kernels::pointwise
