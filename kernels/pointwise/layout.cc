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

int64_t LengthOf(at::IntArrayRef shape) { return shape.empty() ? 1 : shape.back(); }

at::DimVector ShapeOfRows(at::IntArrayRef shape) {
  at::DimVector rows(shape);
  if (!rows.empty()) rows.back() = 1;
  return rows;
}

CallMemory::CallMemory(const Program& program, at::IntArrayRef shape, at::TensorList inputs,
                       at::TensorList results) {
  std::vector<bool> is_row(inputs.size());
  for (const Node& node : program.nodes)
    if (node.op == Op::kRowInput) is_row[node.args[0]] = true;
  std::vector<const at::Tensor*> of_elements, of_rows;
  for (size_t i = 0; i < inputs.size(); ++i)
    (is_row[i] ? of_rows : of_elements).push_back(&inputs[i]);
  elements_ = LayoutOf(shape, of_elements);
  rows_ = LayoutOf(ShapeOfRows(shape), of_rows);
  size_t num_elements = 0, num_rows = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Layout& layout = is_row[i] ? rows_ : elements_;
    const at::DimVector& strides = layout.strides[is_row[i] ? num_rows++ : num_elements++];
    inputs_.push_back({inputs[i].const_data_ptr(), inputs[i].scalar_type(),
                       AccessOf(layout.sizes, strides), layout.sizes.data(), strides.data(),
                       static_cast<int64_t>(layout.sizes.size()), is_row[i]});
  }
  for (size_t i = 0; i < results.size(); ++i)
    results_.push_back(
        {results[i].mutable_data_ptr(), results[i].scalar_type(), program.row_results[i]});
}

}  // namespace lockstep::kernels::pointwise
