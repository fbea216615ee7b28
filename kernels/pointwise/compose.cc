#include <vector>

#include "ATen/Functions.h"
#include "ATen/ScalarOps.h"
#include "ATen/TensorOperators.h"
#include "kernels/pointwise/layout.h"
#include "kernels/pointwise/pointwise.h"

namespace lockstep::kernels::pointwise {
namespace {

at::Tensor Apply(Op op, const at::Tensor& a, const at::Tensor& b, const at::Tensor& c) {
  const at::ScalarType dtype = a.scalar_type();
  switch (op) {
    case Op::kSum: return a.sum(-1, /*keepdim=*/true);
    case Op::kMean: return a.mean(-1, /*keepdim=*/true);
    case Op::kAmax: return a.amax(-1, /*keepdim=*/true);
    case Op::kAmin: return a.amin(-1, /*keepdim=*/true);
    case Op::kNeg: return -a;
    case Op::kAbs: return a.abs();
    case Op::kExp: return a.exp();
    case Op::kLog: return a.log();
    case Op::kSqrt: return a.sqrt();
    case Op::kRsqrt: return a.rsqrt();
    case Op::kReciprocal: return a.reciprocal();
    case Op::kSigmoid: return a.sigmoid();
    case Op::kSilu: return at::silu(a);
    case Op::kRelu: return a.relu();
    case Op::kTanh: return a.tanh();
    case Op::kErf: return a.erf();
    case Op::kSin: return a.sin();
    case Op::kCos: return a.cos();
    case Op::kAdd: return a + b;
    case Op::kSub: return a - b;
    case Op::kMul: return a * b;
    case Op::kDiv: return a / b;
    case Op::kPow: return a.pow(b);
    case Op::kMaximum: return at::maximum(a, b);
    case Op::kMinimum: return at::minimum(a, b);
    case Op::kClampMin: return at::clamp_min(a, b);
    case Op::kClampMax: return at::clamp_max(a, b);
    case Op::kLess: return at::lt(a, b).to(dtype);
    case Op::kLessEqual: return at::le(a, b).to(dtype);
    case Op::kEqual: return at::eq(a, b).to(dtype);
    case Op::kNotEqual: return at::ne(a, b).to(dtype);
    case Op::kWhere: return at::where(a.ne(0), b, c);
    default:  // kCopy
      return a;
  }
}

}  // namespace

std::vector<at::Tensor> Compose(const Program& program, at::TensorList inputs,
                                at::ArrayRef<double> numbers, at::IntArrayRef shape) {
  const at::ScalarType dtype = program.wide ? at::kDouble : at::kFloat;
  const at::TensorOptions options = inputs[0].options().dtype(dtype);
  const at::DimVector row_shape = ShapeOfRows(shape);

  std::vector<at::Tensor> values;
  for (const Node& node : program.nodes) {
    if (node.op == Op::kInput || node.op == Op::kRowInput) {
      values.push_back(inputs[node.args[0]].to(dtype));
    } else if (NumOperands(node.op) == 0) {
      const double number = node.op == Op::kNumber   ? numbers[node.args[0]]
                            : node.op == Op::kLength ? static_cast<double>(LengthOf(shape))
                                                     : node.value;
      values.push_back(at::full({}, number, options));
    } else {
      const auto operand = [&](int i) {
        return i < NumOperands(node.op) ? values[node.args[i]] : at::Tensor();
      };
      values.push_back(Apply(node.op, operand(0), operand(1), operand(2)));
    }
  }
  std::vector<at::Tensor> results;
  for (size_t i = 0; i < program.results.size(); ++i) {
    at::Tensor value = values[program.results[i]];
    if (program.dtypes[i] == at::kBool) value = value.ne(0);
    results.push_back(value.expand(program.row_results[i] ? at::IntArrayRef(row_shape) : shape)
                          .to(program.dtypes[i]));
  }
  return results;
}

}  // namespace lockstep::kernels::pointwise
