#include "ATen/ops/linear.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>

#include "ATen/TensorOperators.h"
#include "ATen/autocast_mode.h"
#include "ATen/core/LegacyTypeDispatch.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/empty.h"
#include "base/torch/versions/node.h"
#include "c10/util/Exception.h"
#include "kernels/aten/parallel.h"
#include "kernels/aten/private_operators.h"
#include "kernels/few_bits/few_bits.h"
#include "kernels/generation/generation.h"
#include "kernels/lora/products.h"
#include "torch/csrc/autograd/VariableTypeUtils.h"
#include "torch/csrc/autograd/function.h"
#include "torch/csrc/autograd/functions/utils.h"
#include "torch/csrc/autograd/saved_variable.h"
#include "torch/library.h"

namespace lockstep::kernels {
namespace {

using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

class FewBitsLinearBackward final : public Node {
 public:
  FewBitsLinearBackward(const at::Tensor& x, const FewBits& weight)
      : Node(torch::autograd::collect_next_edges(x)),
        weight_(weight),
        // Its memory may be given back and filled again before backward: fully_shard.h.
        packed_(weight.packed, /*is_output=*/false) {
    weight_.packed.reset();
  }

  std::string name() const override { return "FewBitsLinearBackward"; }

  variable_list apply(variable_list&& gradients) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!gradients[0].defined() || !task_should_compute_output(0)) return variable_list(1);
    TORCH_CHECK_NOT_IMPLEMENTED(
        !at::GradMode::is_enabled(),
        "linear_few_bits: gradients of gradients are not supported; call backward without "
        "create_graph, or load the model with whole weights");
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    FewBits weight = weight_;
    weight.packed = packed_.unpack();
    const at::Tensor& dy = gradients[0];
    at::DimVector shape(dy.sizes());
    shape.back() = weight.columns;
    return {FewBitsInputGradient(dy.reshape({-1, weight.rows}).contiguous(), weight).view(shape)};
  }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    packed_.reset_data();
  }

 private:
  FewBits weight_;  // without its bytes
  SavedVariable packed_;
};

bool IsForInt8Rows(const at::Tensor& x, const FewBits& weight) {
  return weight.type == FewBitsType::kInt8 && x.is_cpu() &&
         IsForLinearRows(x.size(0), weight.columns) && weight.rows > 0;
}

// Returns x W^T + bias of few rows. The loop reads the bytes, and makes no whole weight.
at::Tensor ProductOfInt8Rows(const at::Tensor& x, const FewBits& weight,
                             const std::optional<at::Tensor>& bias) {
  const at::Tensor wide = x.to(at::kFloat).contiguous(), scales = FactorsOfBlocks(weight);
  const at::Tensor biases =
      bias.has_value() && bias->defined() ? bias->to(at::kFloat).contiguous() : at::Tensor();
  const at::Tensor y = at::empty({x.size(0), weight.rows}, x.options().dtype(at::kFloat));
  const LinearRows rows = {
      .dtype = at::kFloat,
      .rows = x.size(0),
      .size = weight.columns,
      .outputs = weight.rows,
      .x = wide.const_data_ptr(),
      .weight = weight.packed.const_data_ptr(),
      .weight_stride = weight.columns,
      .scales = scales.const_data_ptr<float>(),
      .bias = biases.defined() ? biases.const_data_ptr() : nullptr,
      .residual = nullptr,
      .y = y.mutable_data_ptr(),
  };
  ParallelFor(
      weight.rows, std::max<int64_t>(1, kWeightGrain / weight.columns),
      [&](int64_t begin, int64_t end) { ChosenGenerationKernels().linear_int8(rows, begin, end); });
  return y.to(x.scalar_type());
}

void Check(const at::Tensor& x, const FewBits& weight, const std::optional<at::Tensor>& bias) {
  const at::ScalarType dtype = x.scalar_type();
  TORCH_CHECK_VALUE(dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf,
                    "linear_few_bits: x must be float32, bfloat16 or float16, got ", dtype);
  TORCH_CHECK_VALUE(x.dim() >= 1 && x.size(-1) == weight.columns,
                    "linear_few_bits: x must be [..., ", weight.columns, "], got ", x.sizes());
  TORCH_CHECK_VALUE(x.device() == weight.packed.device(), "linear_few_bits: x is on ", x.device(),
                    ", but the weight is on ", weight.packed.device(), "; move one of them");
  TORCH_CHECK_NOT_IMPLEMENTED(!torch::autograd::isFwGradDefined(x),
                              "linear_few_bits: forward-mode derivatives are not supported");
  if (!bias.has_value() || !bias->defined()) return;
  TORCH_CHECK_VALUE(bias->dim() == 1 && bias->size(0) == weight.rows,
                    "linear_few_bits: bias must be [", weight.rows, "], got ", bias->sizes());
}

FewBitsType TypeOf(c10::string_view type) {
  const std::string_view name(type.data(), type.size());
  TORCH_CHECK_VALUE(name == "nf4" || name == "fp4" || name == "int8",
                    "dequantize_few_bits: unknown type \"", name, "\"; expected nf4, fp4 or int8");
  if (name == "int8") return FewBitsType::kInt8;
  return name == "fp4" ? FewBitsType::kFp4 : FewBitsType::kNf4;
}

at::Tensor DequantizeOf(const at::Tensor& packed, const at::Tensor& absmax,
                        const std::optional<at::Tensor>& nested_absmax,
                        const std::optional<at::Tensor>& nested_map, double offset,
                        at::IntArrayRef shape, at::IntArrayRef blocks, c10::string_view type,
                        at::ScalarType dtype) {
  return Dequantize(
      MakeFewBits(packed, absmax, nested_absmax, nested_map, offset, shape, blocks, type), dtype);
}

at::Tensor LinearOf(const at::Tensor& x, const at::Tensor& packed, const at::Tensor& absmax,
                    const std::optional<at::Tensor>& nested_absmax,
                    const std::optional<at::Tensor>& nested_map, double offset,
                    at::IntArrayRef shape, at::IntArrayRef blocks, c10::string_view type,
                    const std::optional<at::Tensor>& bias) {
  return FewBitsLinear(
      x, MakeFewBits(packed, absmax, nested_absmax, nested_map, offset, shape, blocks, type), bias);
}

TORCH_LIBRARY_FRAGMENT(lockstep, library) {
  library.def(
      "dequantize_few_bits(Tensor packed, Tensor absmax, Tensor? nested_absmax, Tensor? "
      "nested_map, "
      "float offset, int[] shape, int[] blocks, str type, ScalarType dtype) -> Tensor",
      DequantizeOf);
  library.def(
      "linear_few_bits(Tensor x, Tensor packed, Tensor absmax, Tensor? nested_absmax, "
      "Tensor? nested_map, float offset, int[] shape, int[] blocks, str type, Tensor? bias) -> "
      "Tensor",
      LinearOf);
}

}  // namespace

FewBits MakeFewBits(const at::Tensor& packed, const at::Tensor& absmax,
                    const std::optional<at::Tensor>& nested_absmax,
                    const std::optional<at::Tensor>& nested_map, double offset,
                    at::IntArrayRef shape, at::IntArrayRef blocks, c10::string_view type) {
  TORCH_CHECK_VALUE(shape.size() == 2 && blocks.size() == 2,
                    "dequantize_few_bits: expected the shape [out, in], and two sizes of blocks");
  return {.packed = packed,
          .absmax = absmax,
          .nested_absmax = nested_absmax.value_or(at::Tensor()),
          .nested_map = nested_map.value_or(at::Tensor()),
          .offset = offset,
          .rows = shape[0],
          .columns = shape[1],
          .block = blocks[0],
          .nested_block = blocks[1],
          .type = TypeOf(type)};
}

at::Tensor FewBitsProduct(const at::Tensor& x, const FewBits& weight,
                          const std::optional<at::Tensor>& bias) {
  if (IsForInt8Rows(x, weight)) return ProductOfInt8Rows(x, weight, bias);
  const at::Tensor whole = Dequantize(weight, x.scalar_type());
  if (!IsForOneDnn(x, whole)) return at::linear(x, whole, bias);
  const at::Tensor y = ProductOfRows(x, whole);
  return bias.has_value() && bias->defined() ? y.add_(*bias) : y;
}

at::Tensor FewBitsInputGradient(const at::Tensor& dy, const FewBits& weight) {
  return ProductOfRows(dy, Dequantize(weight, dy.scalar_type()).t());
}

at::Tensor FewBitsLinear(const at::Tensor& given, const FewBits& weight,
                         const std::optional<at::Tensor>& bias) {
  const at::DeviceType device = given.device().type();
  const bool is_autocast =
      at::autocast::is_autocast_available(device) && at::autocast::is_autocast_enabled(device);
  Check(given, weight, bias);
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const at::Tensor x = is_autocast ? given.to(at::autocast::get_autocast_dtype(device)) : given;
  const bool has_bias = bias.has_value() && bias->defined();
  const bool adds_bias = has_bias && !bias->requires_grad();  // within the product
  base::NodePointer<FewBitsLinearBackward> node;
  if (torch::autograd::compute_requires_grad(x))
    node = base::MakeNode<FewBitsLinearBackward>(x, weight);
  const at::Tensor y = [&] {
    const at::AutoDispatchBelowADInplaceOrView below;
    const std::optional<at::Tensor> added =
        adds_bias ? std::optional(bias->to(x.scalar_type())) : std::nullopt;
    at::DimVector shape(x.sizes());
    shape.back() = weight.rows;
    // Not a view: autograd would refuse to write to a view that was made without gradients.
    return UnsafeView(FewBitsProduct(x.reshape({-1, weight.columns}), weight, added), shape);
  }();
  if (node != nullptr) torch::autograd::set_history(y, node);
  return has_bias && !adds_bias ? y + bias->to(y.scalar_type()) : y;
}

}  // namespace lockstep::kernels
