#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <tuple>
#include <vector>

#include "ATen/TensorOperators.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/ops/abs.h"
#include "ATen/ops/amax.h"
#include "ATen/ops/clamp.h"
#include "ATen/ops/clamp_min.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/full.h"
#include "ATen/ops/zeros.h"
#include "base/torch/operators.h"
#include "c10/core/DeviceGuard.h"
#include "c10/util/BFloat16.h"
#include "c10/util/Exception.h"
#include "c10/util/Half.h"
#include "kernels/aten/instruction_set.h"
#include "kernels/aten/parallel.h"
#include "kernels/float8/cast_loops.h"
#include "kernels/float8/float8.h"
#include "kernels/float8/rounding.h"
#include "torch/library.h"

namespace lockstep::kernels {

// One of cast_cpu.cc's compilations each.
namespace float8 {
LOCKSTEP_DECLARE_COMPILATIONS(CastLoops kCastLoops)

static const CastLoops& ChosenLoops() {
  static const CastLoops& loops = LOCKSTEP_CHOSEN_COMPILATION(kCastLoops);
  return loops;
}

}  // namespace float8

namespace {

using Pair = std::tuple<at::Tensor, at::Tensor>;
// The values and the scale as they are, then the transposed ones.
using Both = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
using Dim = std::optional<int64_t>;

constexpr double kSmallestAmax = 1e-12;
// Numbers in a thread's smallest share, and columns.
constexpr int64_t kGrain = 16384, kColumns = 512;

int64_t PaddedTo16(int64_t rows) { return (rows + 15) / 16 * 16; }

float LargestOf(at::ScalarType format) {
  return format == at::kFloat8_e5m2 ? float8::kLargestE5m2 : float8::kLargestE4m3;
}

void Check(const at::Tensor& x, at::ScalarType format, Dim dim) {
  const at::ScalarType dtype = x.scalar_type();
  TORCH_CHECK_VALUE(x.dim() == 2, "float8_cast: x must be a matrix, got ", x.sizes());
  TORCH_CHECK_VALUE(dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf,
                    "float8_cast: x must be float32, bfloat16 or float16, got ", dtype);
  TORCH_CHECK_VALUE(format == at::kFloat8_e4m3fn || format == at::kFloat8_e5m2,
                    "float8_cast: the format must be float8_e4m3fn or float8_e5m2, got ", format);
  TORCH_CHECK_VALUE(!dim.has_value() || *dim == 0 || *dim == 1,
                    "float8_cast: dim must be 0 (a scale for each column), 1 (for each row) or "
                    "none (one scale), got ",
                    dim.value_or(0));
}

// --- ATen's operators

at::DimVector ScaleShape(const at::Tensor& x, Dim dim) {
  if (!dim.has_value()) return {};
  at::DimVector shape(x.sizes());
  shape[*dim] = 1;
  return shape;
}

at::Tensor ScaleOf(const at::Tensor& amax, double largest) {
  return (largest / at::clamp_min(amax.to(at::kDouble), kSmallestAmax)).to(at::kFloat);
}

at::Tensor Rounded(const at::Tensor& x, const at::Tensor& scale, at::ScalarType format) {
  const double largest = LargestOf(format);
  return at::clamp(x.to(at::kFloat) * scale, -largest, largest).to(format);
}

Pair Composed(const at::Tensor& x, at::ScalarType format, Dim dim, bool power_of_2) {
  Check(x, format, dim);
  at::Tensor amax;
  if (x.numel() == 0) {
    amax = at::full(ScaleShape(x, dim), 0, x.options());
  } else {
    amax = dim.has_value() ? at::amax(at::abs(x), *dim, /*keepdim=*/true) : at::amax(at::abs(x));
  }
  at::Tensor scale = ScaleOf(amax, LargestOf(format));
  if (power_of_2) {
    // The exponent's bits alone. The difference is 0, or NaN if the scale is.
    const at::Tensor exponent = at::bitwise_and(scale.view(at::kInt), 0x7f800000).view(at::kFloat);
    scale = exponent + (scale - scale);
  }
  return {Rounded(x, scale, format), scale};
}

Pair OnMeta(const at::Tensor& x, at::ScalarType format, Dim dim, bool /*power_of_2*/) {
  Check(x, format, dim);
  return {at::empty(x.sizes(), x.options().dtype(format)),
          at::empty(ScaleShape(x, dim), x.options().dtype(at::kFloat))};
}

at::Tensor ComposedTransposed(const at::Tensor& values) {
  TORCH_CHECK_VALUE(values.dim() == 2 && values.element_size() == 1 && values.is_contiguous(),
                    "float8_transposed: values must be a contiguous matrix of bytes");
  const int64_t rows = values.size(0);
  const at::Tensor bytes =
      at::zeros({values.size(1), PaddedTo16(rows)}, values.options().dtype(at::kByte));
  bytes.narrow(1, 0, rows).copy_(values.view(at::kByte).t());
  return bytes.view(values.scalar_type());
}

// Casts by the operators of this file, and transposes the bytes afterwards.
Pair ComposedCastTransposed(const at::Tensor& x, at::ScalarType format, Dim dim, bool power_of_2) {
  const Float8 transposed = Transposed(CastToFloat8(x, format, dim, power_of_2));
  return {transposed.values, transposed.scale};
}

Both ComposedCastBoth(const at::Tensor& x, at::ScalarType format, bool by_row, bool power_of_2) {
  const Float8 as_is = CastToFloat8(x, format, by_row ? Dim(1) : Dim(), power_of_2);
  const Float8 transposed =
      Transposed(by_row ? CastToFloat8(x, format, Dim(0), power_of_2) : as_is);
  return {as_is.values, as_is.scale, transposed.values, transposed.scale};
}

// --- The kernels

// A matrix whose rows are dense, and what becomes of it.
struct Cast {
  at::Tensor x, values, scale;

  Cast(const at::Tensor& given, at::ScalarType format, Dim dim)
      : x(given.stride(1) == 1 ? given : given.contiguous()),
        values(at::empty(x.sizes(), x.options().dtype(format))),
        scale(at::empty(ScaleShape(x, dim), x.options().dtype(at::kFloat))) {}

  float8::Matrix MatrixWith(uint32_t* amax, Dim dim) const {
    return {
        .dtype = x.scalar_type(),
        .rows = x.size(0),
        .columns = x.size(1),
        .stride = x.stride(0),
        .x = x.const_data_ptr(),
        .amax = amax,
        .scale = scale.mutable_data_ptr<float>(),
        .scale_row_stride = dim == 1 ? 1 : 0,
        .scale_column_stride = dim == 0 ? 1 : 0,
        .is_e5m2 = values.scalar_type() == at::kFloat8_e5m2,
        .y = static_cast<uint8_t*>(values.mutable_data_ptr()),
    };
  }
};

float FromMagnitude(uint32_t bits, at::ScalarType dtype) {
  if (dtype == at::kHalf) return at::Half(static_cast<uint16_t>(bits), at::Half::from_bits());
  if (dtype == at::kBFloat16) bits <<= 16;
  float number;
  memcpy(&number, &bits, sizeof(number));
  return number;
}

Pair OnCpu(const at::Tensor& x, at::ScalarType format, Dim dim, bool power_of_2) {
  Check(x, format, dim);
  const Cast cast(x, format, dim);
  const int64_t rows = x.size(0), columns = x.size(1);
  std::vector<uint32_t> amax(dim == 0 ? columns : rows, 0);
  const float8::Matrix matrix = cast.MatrixWith(amax.data(), dim);
  const float8::CastLoops& loops = float8::ChosenLoops();
  const auto run = [&](auto loop, int64_t count, int64_t grain) {
    ParallelFor(count, grain, [&](int64_t begin, int64_t end) { loop(matrix, begin, end); });
  };
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, columns));
  if (dim == 0) {
    run(loops.amax_of_columns, columns, kColumns);
  } else {
    run(loops.amax_of_rows, rows, grain);
  }
  if (!dim.has_value()) {
    uint32_t most = 0;
    for (const uint32_t one : amax) most = std::max(most, one);
    amax.assign(1, most);
  }
  for (size_t i = 0; i < amax.size(); ++i) {
    matrix.scale[i] =
        float8::ScaleOf(FromMagnitude(amax[i], x.scalar_type()), LargestOf(format), power_of_2);
  }
  run(loops.cast, rows, grain);
  return {cast.values, cast.scale};
}

// Returns the kernels for GPUs, or nullptr where the program has none.
const float8::CudaCasts* CudaKernels() {
  // The library of the kernels is loaded before the first tensor on a GPU exists.
  static const float8::CudaCasts* const kernels = []() -> const float8::CudaCasts* {
    const auto op = c10::Dispatcher::singleton().findSchema({"lockstep::float8_casts_of_cuda", ""});
    if (!op.has_value()) return nullptr;
    return reinterpret_cast<const float8::CudaCasts*>(op->typed<int64_t()>().call());
  }();
  return kernels;
}

// Returns the buffer of magnitudes that a kernel compares.
at::Tensor Zeros(int64_t count, const at::Tensor& x) {
  return at::zeros({count}, x.options().dtype(at::kInt));
}
uint32_t* BitsOf(const at::Tensor& amax) { return static_cast<uint32_t*>(amax.mutable_data_ptr()); }

Pair OnCuda(const at::Tensor& x, at::ScalarType format, Dim dim, bool power_of_2) {
  if (CudaKernels() == nullptr || x.numel() == 0) return Composed(x, format, dim, power_of_2);
  Check(x, format, dim);
  const c10::DeviceGuard guard(x.device());
  const Cast cast(x, format, dim);
  // A scale for each row is found without it.
  const at::Tensor amax = Zeros(dim == 1 ? 0 : cast.scale.numel(), x);
  CudaKernels()->cast(cast.MatrixWith(BitsOf(amax), dim), power_of_2);
  return {cast.values, cast.scale};
}

// The transposed copy of a cast, and what a kernel needs for it.
struct SecondCopy {
  at::Tensor amax, values, scale;

  // `one`: the matrix's scale, which the copy has too. Undefined: a scale for each column.
  SecondCopy(const at::Tensor& x, at::ScalarType format, const at::Tensor& one)
      : amax(Zeros(one.defined() ? 0 : x.size(1), x)),
        values(at::empty({x.size(1), PaddedTo16(x.size(0))}, x.options().dtype(format))),
        scale(one.defined() ? one : at::empty({x.size(1), 1}, x.options().dtype(at::kFloat))) {}

  float8::TransposedCopy View() const {
    return {.amax = BitsOf(amax),
            .scale = scale.mutable_data_ptr<float>(),
            .scale_stride = scale.dim() == 0 ? 0 : 1,
            .padded = values.size(1),
            .y = static_cast<uint8_t*>(values.mutable_data_ptr())};
  }
};

Pair CastTransposedOnCuda(const at::Tensor& x, at::ScalarType format, Dim dim, bool power_of_2) {
  // The scales of rows would be those of columns: nothing needs them.
  if (CudaKernels() == nullptr || x.numel() == 0 || dim == 1)
    return ComposedCastTransposed(x, format, dim, power_of_2);
  Check(x, format, dim);
  const c10::DeviceGuard guard(x.device());
  const bool is_one = !dim.has_value();
  const at::Tensor one = is_one ? at::empty({}, x.options().dtype(at::kFloat)) : at::Tensor();
  const at::Tensor dense = x.stride(1) == 1 ? x : x.contiguous();
  const at::Tensor amax = Zeros(is_one ? 1 : 0, x);
  const SecondCopy copy(dense, format, one);
  CudaKernels()->cast_transposed({.dtype = x.scalar_type(),
                                  .rows = x.size(0),
                                  .columns = x.size(1),
                                  .stride = dense.stride(0),
                                  .x = dense.const_data_ptr(),
                                  .amax = BitsOf(amax),
                                  .scale = is_one ? one.mutable_data_ptr<float>() : nullptr,
                                  .scale_row_stride = 0,
                                  .scale_column_stride = 0,
                                  .is_e5m2 = format == at::kFloat8_e5m2,
                                  .y = nullptr},
                                 copy.View(), power_of_2);
  return {copy.values, copy.scale};
}

Both CastBothOnCuda(const at::Tensor& x, at::ScalarType format, bool by_row, bool power_of_2) {
  if (CudaKernels() == nullptr || x.numel() == 0)
    return ComposedCastBoth(x, format, by_row, power_of_2);
  const Dim dim = by_row ? Dim(1) : Dim();
  Check(x, format, dim);
  const c10::DeviceGuard guard(x.device());
  const Cast cast(x, format, dim);
  const at::Tensor amax = Zeros(cast.scale.numel(), x);
  const SecondCopy copy(cast.x, format, by_row ? at::Tensor() : cast.scale);
  CudaKernels()->cast_transposed(cast.MatrixWith(BitsOf(amax), dim), copy.View(), power_of_2);
  return {cast.values, cast.scale, copy.values, copy.scale};
}

at::Tensor TransposedOnCuda(const at::Tensor& values) {
  if (CudaKernels() == nullptr || values.numel() == 0) return ComposedTransposed(values);
  const int64_t rows = values.size(0), columns = values.size(1), padded = PaddedTo16(rows);
  const c10::DeviceGuard guard(values.device());
  const at::Tensor result = at::empty({columns, padded}, values.options());
  CudaKernels()->transpose(static_cast<const uint8_t*>(values.const_data_ptr()), rows, columns,
                           padded, static_cast<uint8_t*>(result.mutable_data_ptr()));
  return result;
}

// --- Parts of a tensor whose scale is known

at::Tensor ScaleOfMagnitude(const at::Tensor& amax, at::ScalarType format) {
  return ScaleOf(amax, LargestOf(format));
}

void CastPart(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& out) {
  TORCH_CHECK_VALUE(x.is_contiguous() && out.is_contiguous() && x.sizes() == out.sizes() &&
                        scale.numel() == 1 && scale.scalar_type() == at::kFloat,
                    "float8_cast_part: x and out must be contiguous and of one shape, and scale "
                    "one float32 number, got ",
                    x.sizes(), ", ", out.sizes(), " and ", scale.sizes());
  Check(x.view({1, -1}), out.scalar_type(), std::nullopt);
  if (!x.is_cpu()) {
    out.copy_(Rounded(x, scale.view({}), out.scalar_type()));
    return;
  }
  const auto* const from = static_cast<const char*>(x.const_data_ptr());
  auto* const to = static_cast<uint8_t*>(out.mutable_data_ptr());
  float factor = scale.item<float>();
  ParallelFor(x.numel(), kGrain, [&](int64_t begin, int64_t end) {
    const float8::Matrix part = {.dtype = x.scalar_type(),
                                 .rows = 1,
                                 .columns = end - begin,
                                 .stride = end - begin,
                                 .x = from + begin * static_cast<int64_t>(x.element_size()),
                                 .amax = nullptr,
                                 .scale = &factor,
                                 .scale_row_stride = 0,
                                 .scale_column_stride = 0,
                                 .is_e5m2 = out.scalar_type() == at::kFloat8_e5m2,
                                 .y = to + begin};
    float8::ChosenLoops().cast(part, 0, 1);
  });
}

TORCH_LIBRARY_FRAGMENT(lockstep, library) {
  library.def("float8_scale(Tensor amax, ScalarType format) -> Tensor", ScaleOfMagnitude);
  library.def("float8_cast_part(Tensor x, Tensor scale, Tensor(a!) out) -> ()", CastPart);
  library.def(
      "float8_cast(Tensor x, ScalarType format, int? dim=None, bool power_of_2=False) -> (Tensor "
      "values, Tensor scale)");
  library.def("float8_transposed(Tensor values) -> Tensor");
  library.def(
      "float8_cast_transposed(Tensor x, ScalarType format, int? dim=None, bool power_of_2=False) "
      "-> (Tensor values, Tensor scale)");
  library.def(
      "float8_cast_both(Tensor x, ScalarType format, bool by_row=False, bool power_of_2=False) -> "
      "(Tensor values, Tensor scale, Tensor transposed, Tensor transposed_scale)");
}
TORCH_LIBRARY_IMPL(lockstep, CPU, library) { library.impl("float8_cast", OnCpu); }
TORCH_LIBRARY_IMPL(lockstep, CUDA, library) {
  library.impl("float8_cast", OnCuda);
  library.impl("float8_transposed", TransposedOnCuda);
  library.impl("float8_cast_transposed", CastTransposedOnCuda);
  library.impl("float8_cast_both", CastBothOnCuda);
}
TORCH_LIBRARY_IMPL(lockstep, Meta, library) { library.impl("float8_cast", OnMeta); }
TORCH_LIBRARY_IMPL(lockstep, CompositeExplicitAutograd, library) {
  library.impl("float8_cast", Composed);
  library.impl("float8_transposed", ComposedTransposed);
  library.impl("float8_cast_transposed", ComposedCastTransposed);
  library.impl("float8_cast_both", ComposedCastBoth);
}

}  // namespace

Float8 CastToFloat8(const at::Tensor& x, at::ScalarType format, std::optional<int64_t> dim,
                    bool power_of_2) {
  static const auto op = base::FindOperator<Pair(const at::Tensor&, at::ScalarType, Dim, bool)>(
      "lockstep::float8_cast");
  auto [values, scale] = op.call(x, format, dim, power_of_2);
  return {values, scale};
}

at::Tensor Float8Scale(const at::Tensor& amax, at::ScalarType format) {
  return ScaleOfMagnitude(amax, format);
}

void CastPartToFloat8(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& out) {
  CastPart(x, scale, out);
}

Float8 Transposed(const Float8& matrix) {
  static const auto op =
      base::FindOperator<at::Tensor(const at::Tensor&)>("lockstep::float8_transposed");
  return {op.call(matrix.values), matrix.scale.t()};
}

Float8 CastTransposed(const at::Tensor& x, at::ScalarType format, std::optional<int64_t> dim,
                      bool power_of_2) {
  static const auto op = base::FindOperator<Pair(const at::Tensor&, at::ScalarType, Dim, bool)>(
      "lockstep::float8_cast_transposed");
  auto [values, scale] = op.call(x, format, dim, power_of_2);
  return {values, scale};
}

Float8Both CastBoth(const at::Tensor& x, at::ScalarType format, bool by_row, bool power_of_2) {
  static const auto op = base::FindOperator<Both(const at::Tensor&, at::ScalarType, bool, bool)>(
      "lockstep::float8_cast_both");
  auto [values, scale, transposed, transposed_scale] = op.call(x, format, by_row, power_of_2);
  return {{values, scale}, {transposed, transposed_scale}};
}

}  // namespace lockstep::kernels
