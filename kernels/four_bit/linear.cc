#include "ATen/ops/linear.h"

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>

#include "ATen/TensorOperators.h"
#include "ATen/autocast_mode.h"
#include "ATen/core/LegacyTypeDispatch.h"
#include "ATen/core/grad_mode.h"
#include "base/torch/versions/node.h"
#include "c10/util/Exception.h"
#include "kernels/aten/private_operators.h"
#include "kernels/four_bit/four_bit.h"
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

class FourBitLinearBackward final : public Node {
 public:
  FourBitLinearBackward(const at::Tensor& x, const FourBit& weight)
      : Node(torch::autograd::collect_next_edges(x)),
        weight_(weight),
        // Its memory may be given back and filled again before backward: fully_shard.h.
        packed_(weight.packed, /*is_output=*/false) {
    weight_.packed.reset();
  }

  std::string name() const override { return "FourBitLinearBackward"; }

  variable_list apply(variable_list&& gradients) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!gradients[0].defined() || !task_should_compute_output(0)) return variable_list(1);
    TORCH_CHECK_NOT_IMPLEMENTED(
        !at::GradMode::is_enabled(),
        "linear_4bit: gradients of gradients are not supported; call backward without "
        "create_graph, or load the model without load_in_4bit");
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    FourBit weight = weight_;
    weight.packed = packed_.unpack();
    const at::Tensor& dy = gradients[0];
    at::DimVector shape(dy.sizes());
    shape.back() = weight.columns;
    return {FourBitInputGradient(dy.reshape({-1, weight.rows}).contiguous(), weight).view(shape)};
  }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    packed_.reset_data();
  }

 private:
  FourBit weight_;  // without its bytes
  SavedVariable packed_;
};

void Check(const at::Tensor& x, const FourBit& weight, const std::optional<at::Tensor>& bias) {
  const at::ScalarType dtype = x.scalar_type();
  TORCH_CHECK_VALUE(dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf,
                    "linear_4bit: x must be float32, bfloat16 or float16, got ", dtype);
  TORCH_CHECK_VALUE(x.dim() >= 1 && x.size(-1) == weight.columns, "linear_4bit: x must be [..., ",
                    weight.columns, "], got ", x.sizes());
  TORCH_CHECK_VALUE(x.device() == weight.packed.device(), "linear_4bit: x is on ", x.device(),
                    ", but the weight is on ", weight.packed.device(), "; move one of them");
  TORCH_CHECK_NOT_IMPLEMENTED(!torch::autograd::isFwGradDefined(x),
                              "linear_4bit: forward-mode derivatives are not supported");
  if (!bias.has_value() || !bias->defined()) return;
  TORCH_CHECK_VALUE(bias->dim() == 1 && bias->size(0) == weight.rows, "linear_4bit: bias must be [",
                    weight.rows, "], got ", bias->sizes());
}

bool IsFp4(c10::string_view type) {
  const std::string_view name(type.data(), type.size());
  TORCH_CHECK_VALUE(name == "nf4" || name == "fp4", "dequantize_4bit: unknown type \"", name,
                    "\"; expected nf4 or fp4");
  return name == "fp4";
}

at::Tensor DequantizeOf(const at::Tensor& packed, const at::Tensor& absmax,
                        const std::optional<at::Tensor>& nested_absmax,
                        const std::optional<at::Tensor>& nested_map, double offset,
                        at::IntArrayRef shape, at::IntArrayRef blocks, c10::string_view type,
                        at::ScalarType dtype) {
  return Dequantize(
      MakeFourBit(packed, absmax, nested_absmax, nested_map, offset, shape, blocks, type), dtype);
}

at::Tensor LinearOf(const at::Tensor& x, const at::Tensor& packed, const at::Tensor& absmax,
                    const std::optional<at::Tensor>& nested_absmax,
                    const std::optional<at::Tensor>& nested_map, double offset,
                    at::IntArrayRef shape, at::IntArrayRef blocks, c10::string_view type,
                    const std::optional<at::Tensor>& bias) {
  return FourBitLinear(
      x, MakeFourBit(packed, absmax, nested_absmax, nested_map, offset, shape, blocks, type), bias);
}

TORCH_LIBRARY_FRAGMENT(lockstep, library) {
  library.def(
      "dequantize_4bit(Tensor packed, Tensor absmax, Tensor? nested_absmax, Tensor? nested_map, "
      "float offset, int[] shape, int[] blocks, str type, ScalarType dtype) -> Tensor",
      DequantizeOf);
  library.def(
      "linear_4bit(Tensor x, Tensor packed, Tensor absmax, Tensor? nested_absmax, "
      "Tensor? nested_map, float offset, int[] shape, int[] blocks, str type, Tensor? bias) -> "
      "Tensor",
      LinearOf);
}

}  // namespace

FourBit MakeFourBit(const at::Tensor& packed, const at::Tensor& absmax,
                    const std::optional<at::Tensor>& nested_absmax,
                    const std::optional<at::Tensor>& nested_map, double offset,
                    at::IntArrayRef shape, at::IntArrayRef blocks, c10::string_view type) {
  TORCH_CHECK_VALUE(shape.size() == 2 && blocks.size() == 2,
                    "dequantize_4bit: expected the shape [out, in], and two sizes of blocks");
  return {.packed = packed,
          .absmax = absmax,
          .nested_absmax = nested_absmax.value_or(at::Tensor()),
          .nested_map = nested_map.value_or(at::Tensor()),
          .offset = offset,
          .rows = shape[0],
          .columns = shape[1],
          .block = blocks[0],
          .nested_block = blocks[1],
          .is_fp4 = IsFp4(type)};
}

at::Tensor FourBitProduct(const at::Tensor& x, const FourBit& weight,
                          const std::optional<at::Tensor>& bias) {
  const at::Tensor whole = Dequantize(weight, x.scalar_type());
  if (!IsForOneDnn(x, whole)) return at::linear(x, whole, bias);
  const at::Tensor y = ProductOfRows(x, whole);
  return bias.has_value() && bias->defined() ? y.add_(*bias) : y;
}

at::Tensor FourBitInputGradient(const at::Tensor& dy, const FourBit& weight) {
  return ProductOfRows(dy, Dequantize(weight, dy.scalar_type()).t());
}

at::Tensor FourBitLinear(const at::Tensor& given, const FourBit& weight,
                         const std::optional<at::Tensor>& bias) {
  const at::DeviceType device = given.device().type();
  const bool is_autocast =
      at::autocast::is_autocast_available(device) && at::autocast::is_autocast_enabled(device);
  Check(given, weight, bias);
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const at::Tensor x = is_autocast ? given.to(at::autocast::get_autocast_dtype(device)) : given;
  const bool has_bias = bias.has_value() && bias->defined();
  const bool adds_bias = has_bias && !bias->requires_grad();  // within the product
  base::NodePointer<FourBitLinearBackward> node;
  if (torch::autograd::compute_requires_grad(x))
    node = base::MakeNode<FourBitLinearBackward>(x, weight);
  const at::Tensor y = [&] {
    const at::AutoDispatchBelowADInplaceOrView below;
    const std::optional<at::Tensor> added =
        adds_bias ? std::optional(bias->to(x.scalar_type())) : std::nullopt;
    at::DimVector shape(x.sizes());
    shape.back() = weight.rows;
    // Not a view: autograd would refuse to write to a view that was made without gradients.
    return UnsafeView(FourBitProduct(x.reshape({-1, weight.columns}), weight, added), shape);
  }();
  if (node != nullptr) torch::autograd::set_history(y, node);
  return has_bias && !adds_bias ? y + bias->to(y.scalar_type()) : y;
}

}  // namespace lockstep::kernels
