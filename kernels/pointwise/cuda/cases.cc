#include "kernels/pointwise/cuda/cases.h"

#include <cstdint>
#include <limits>
#include <utility>

namespace lockstep::kernels::pointwise::cuda {
namespace {

using Values = std::vector<Value>;

void SetDims(Signature* signature) {
  for (const Signature::Input& input : signature->inputs) {
    if (input.access != Access::kStrided) continue;
    if (input.is_row)
      signature->num_row_dims = 1;
    else
      signature->num_dims = 2;
  }
}

Case Of(std::string name, const Builder& builder, const Values& results,
        std::vector<at::ScalarType> result_dtypes, std::vector<Signature::Input> inputs,
        bool wide = false) {
  std::vector<int32_t> used;
  Case made{std::move(name), builder.Finish(results, result_dtypes, wide, &used), {}};
  for (const int32_t input : used) made.signature.inputs.push_back(inputs[input]);
  SetDims(&made.signature);
  made.signature.results = std::move(result_dtypes);
  return made;
}

std::vector<Case> Operators() {
  std::vector<Case> cases;
  for (auto op = static_cast<int>(Op::kCopy); op < static_cast<int>(Op::kMulAdd); ++op) {
    Builder builder;
    const Value x = builder.Input(0), y = builder.Input(1), z = builder.Input(2);
    const int count = NumOperands(static_cast<Op>(op));
    const Value result =
        builder.Emit(static_cast<Op>(op), x, count > 1 ? y : Value{}, count > 2 ? z : Value{});
    cases.push_back(Of("operator " + std::to_string(op), builder, {result}, {at::kFloat},
                       {{at::kFloat, Access::kFlat},
                        {at::kFloat, Access::kStrided},
                        {at::kFloat, Access::kUniform}}));
  }
  return cases;
}

// A chain, and the program of its gradients.
std::vector<Case> Chains() {
  std::vector<Case> cases;
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    const bool wide = dtype == at::kDouble;
    Builder builder;
    const Value x = builder.Input(0), bias = builder.Input(1), mask = builder.Input(2);
    const Value cap = builder.Number(0) * builder.Number(1);
    const Value capped = cap * builder.Emit(Op::kTanh, (x + bias) / cap);
    const Value kept = builder.Emit(Op::kWhere, mask, capped, 0.1 * capped);
    const Value is_large = builder.Emit(Op::kLess, builder.Constant(0.5), kept);
    const std::vector<Signature::Input> inputs = {
        {dtype, Access::kFlat}, {dtype, Access::kStrided}, {at::kBool, Access::kStrided}};
    const std::string name = std::string("chain in ") + c10::toString(dtype);
    Case forward = Of(name, builder, {kept, is_large}, {dtype, at::kBool}, inputs, wide);
    Gradient gradient = GradientOf(forward.program, 0b011, 0b01, {dtype, dtype, at::kBool});
    Case backward{name + ", backward", std::move(gradient.program), {}};
    for (const int32_t input : gradient.inputs) backward.signature.inputs.push_back(inputs[input]);
    backward.signature.inputs.push_back({dtype, Access::kFlat});
    backward.signature.results = {dtype, dtype};
    SetDims(&backward.signature);
    backward.signature.is_large = true;
    cases.push_back(std::move(forward));
    cases.push_back(std::move(backward));
  }
  return cases;
}

// Chains that reduce rows, and the programs of their gradients. `row` has one number for each row.
std::vector<Case> Rows() {
  std::vector<Case> cases;
  const auto add = [&](Case forward, const std::vector<Signature::Input>& inputs, uint64_t needed) {
    std::vector<at::ScalarType> dtypes;
    for (const Signature::Input& input : inputs) dtypes.push_back(input.dtype);
    const uint64_t given = (uint64_t{1} << forward.program.results.size()) - 1;
    Gradient gradient = GradientOf(forward.program, needed, given, dtypes);
    Case backward{forward.name + ", backward", std::move(gradient.program), {}};
    for (const int32_t input : gradient.inputs) backward.signature.inputs.push_back(inputs[input]);
    for (const int32_t result : gradient.gradients)
      backward.signature.inputs.push_back(
          {forward.program.dtypes[result], Access::kFlat, forward.program.row_results[result]});
    for (const int32_t input : gradient.of) backward.signature.results.push_back(dtypes[input]);
    SetDims(&backward.signature);
    cases.push_back(std::move(forward));
    cases.push_back(std::move(backward));
  };
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const bool wide = dtype == at::kDouble;
    const std::string in = std::string(" in ") + c10::toString(dtype);
    {
      Builder builder;
      const Value x = builder.Number(0) * builder.Input(0) + builder.Input(1);
      const Value largest = builder.Emit(Op::kAmax, x);
      const Value e = builder.Emit(Op::kExp, x - largest), sum = builder.Emit(Op::kSum, e);
      const std::vector<Signature::Input> inputs = {{dtype, Access::kFlat},
                                                    {dtype, Access::kStrided}};
      Case softmax = Of("softmax" + in, builder, {e / sum, largest + builder.Emit(Op::kLog, sum)},
                        {dtype, dtype}, inputs, wide);
      softmax.program.row_results = {false, true};
      add(std::move(softmax), inputs, 0b11);
    }
    for (const Access access : {Access::kFlat, Access::kStrided, Access::kUniform}) {
      Builder builder;
      const Value x = builder.Input(0), shift = builder.RowInput(1);
      const Value centered = x - shift * builder.Emit(Op::kMean, x);
      const Value range = builder.Emit(Op::kAmax, x) - builder.Emit(Op::kAmin, x);
      const Value scale = builder.Emit(Op::kMean, centered * centered) + builder.Length();
      const Value normed = centered * builder.Emit(Op::kRsqrt, scale);
      const std::vector<Signature::Input> inputs = {{dtype, Access::kStrided},
                                                    {dtype, access, /*is_row=*/true}};
      Case norm = Of("norm" + in + ", access " + std::to_string(static_cast<int>(access)), builder,
                     {normed, range}, {dtype, dtype}, inputs, wide);
      norm.program.row_results = {false, true};
      add(std::move(norm), inputs, 0b11);
    }
  }
  Builder builder;
  const Value x = builder.Input(0);
  Case sums = Of("sums", builder, {builder.Emit(Op::kSum, x), builder.Emit(Op::kMean, x)},
                 {at::kFloat, at::kFloat}, {{at::kFloat, Access::kStrided}});
  sums.program.row_results = {true, true};
  cases.push_back(std::move(sums));
  return cases;
}

std::vector<Case> Conversions() {
  std::vector<Case> cases;
  for (const auto& [from, to] :
       std::vector<std::pair<at::ScalarType, at::ScalarType>>{{at::kHalf, at::kFloat},
                                                              {at::kBFloat16, at::kFloat},
                                                              {at::kFloat, at::kHalf},
                                                              {at::kFloat, at::kBFloat16},
                                                              {at::kFloat, at::kBool},
                                                              {at::kDouble, at::kFloat}}) {
    Builder builder;
    cases.push_back(Of(std::string(c10::toString(from)) + " to " + c10::toString(to), builder,
                       {builder.Input(0)}, {to}, {{from, Access::kFlat}}, from == at::kDouble));
  }
  return cases;
}

std::vector<Case> Constants() {
  Builder builder;
  const Value x = builder.Input(0);
  const Value infinite = builder.Constant(-std::numeric_limits<double>::infinity());
  const Value nan = builder.Constant(std::numeric_limits<double>::quiet_NaN());
  const Value is_positive = builder.Emit(Op::kLess, builder.Constant(1), x);
  return {Of("constants", builder,
             {x * builder.Constant(1e-3), builder.Emit(Op::kWhere, is_positive, x, infinite),
              builder.Emit(Op::kMaximum, x, builder.Emit(Op::kWhere, is_positive, nan, x))},
             {at::kFloat, at::kFloat, at::kFloat}, {{at::kFloat, Access::kFlat}})};
}

}  // namespace

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const auto& some : {Operators(), Chains(), Rows(), Conversions(), Constants()})
    cases.insert(cases.end(), some.begin(), some.end());
  return cases;
}

}  // namespace lockstep::kernels::pointwise::cuda
