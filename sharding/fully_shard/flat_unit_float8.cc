#include <cstddef>
#include <tuple>
#include <utility>
#include <vector>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/aminmax.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/maximum.h"
#include "ATen/ops/stack.h"
#include "ATen/ops/zeros.h"
#include "base/torch/operators.h"
#include "sharding/fully_shard/flat_memory.h"
#include "sharding/fully_shard/flat_unit.h"

// Weights that travel in float8. Each rank casts its part with the scale of the whole weight, and
// the gathered bytes are the cast of the whole weight: rounding knows one number at a time. The
// layers find them as a copy of the weight (base/torch/weight_copies.h).
//
// Source: torchao's enable_fsdp_float8_all_gather and precompute_float8_dynamic_scale_for_fsdp.

namespace lockstep::sharding {
namespace {

constexpr at::ScalarType kFormat = at::kFloat8_e4m3fn;

// The operators of //kernels:torch; another library cannot be a dependency.
at::Tensor ScaleOf(const at::Tensor& largest) {
  static const auto op =
      base::FindOperator<at::Tensor(const at::Tensor&, at::ScalarType)>("lockstep::float8_scale");
  return op.call(largest, kFormat);
}

void CastPart(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& out) {
  static const auto op =
      base::FindOperator<void(const at::Tensor&, const at::Tensor&, const at::Tensor&)>(
          "lockstep::float8_cast_part");
  op.call(x, scale, out);
}

void Give(const at::Tensor& weight, const at::Tensor& values, const at::Tensor& scale) {
  static const auto op =
      base::FindOperator<void(const at::Tensor&, const at::Tensor&, const at::Tensor&)>(
          "lockstep::float8_give");
  op.call(weight, values, scale);
}

}  // namespace

size_t FlatUnit::num_float8() const {
  size_t count = 0;
  for (const Segment& segment : segments_) count += segment.is_float8 ? segment.members.size() : 0;
  return count;
}

// The scale is of the weight as it would be gathered without float8. Rounding to that dtype keeps
// the order of numbers, so the largest one can be rounded alone.
at::Tensor FlatUnit::Magnitudes() const {
  const at::NoGradGuard no_grad;
  const NoAutogradGuard quiet;
  std::vector<at::Tensor> all;
  for (const Segment& segment : segments_) {
    if (!segment.is_float8) continue;
    const at::Tensor none = at::zeros({}, segment.master.options());
    std::vector<at::Tensor> least, most;
    for (const size_t i : segment.members) {
      const Piece& piece = parameters_[i].piece;
      auto [min, max] = piece.size > 0
                            ? at::aminmax(segment.master.narrow(0, piece.in_span, piece.size))
                            : std::make_tuple(none, none);
      least.push_back(std::move(min));
      most.push_back(std::move(max));
    }
    const at::Tensor largest = at::maximum(at::stack(most), at::stack(least).neg()).abs();
    all.push_back(largest.to(segment.gathered_dtype).to(at::kFloat));
  }
  return at::cat(all).view(at::kInt);
}

void FlatUnit::TakeMagnitudes(const at::Tensor& largest) {
  const at::NoGradGuard no_grad;
  const NoAutogradGuard quiet;
  const at::Tensor scales = ScaleOf(largest.view(at::kFloat));
  int64_t begin = 0;
  for (Segment& segment : segments_) {
    if (!segment.is_float8) continue;
    const auto count = static_cast<int64_t>(segment.members.size());
    segment.scales = scales.narrow(0, begin, count);
    begin += count;
  }
}

at::Tensor FlatUnit::Float8InputOf(const Segment& segment) const {
  const at::Tensor span =
      at::zeros({segment.layout.span}, segment.master.options().dtype(at::kByte));
  const at::Tensor input = span.view(kFormat);
  for (size_t k = 0; k < segment.members.size(); ++k) {
    const Piece& piece = parameters_[segment.members[k]].piece;
    if (piece.size == 0) continue;
    CastPart(segment.master.narrow(0, piece.in_span, piece.size).to(segment.gathered_dtype),
             segment.scales[static_cast<int64_t>(k)], input.narrow(0, piece.in_span, piece.size));
  }
  return input;
}

void FlatUnit::GiveFloat8(const Segment& segment) {
  const at::Tensor values = slot_.narrow(0, InSlot(segment), WholeBytes(segment)).view(kFormat);
  for (size_t k = 0; k < segment.members.size(); ++k) {
    const Parameter& parameter = parameters_[segment.members[k]];
    Give(
        parameter.tensor,
        values.narrow(0, parameter.offset, parameter.tensor.numel()).view(parameter.tensor.sizes()),
        segment.scales[static_cast<int64_t>(k)]);
  }
}

}  // namespace lockstep::sharding
