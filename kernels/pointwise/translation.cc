#include "kernels/pointwise/translation.h"

#include <cmath>
#include <functional>
#include <unordered_map>

namespace lockstep::kernels::pointwise {
namespace {

// The arguments of one call, in the order of the operator's schema.
struct Call {
  Builder* builder;
  const std::vector<Operand>& operands;
  at::ScalarType dtype;  // of the result
  std::string* problem;

  Value Emit(Op op, Value a, Value b = {}, Value c = {}) const {
    return builder->Emit(op, a, b, c);
  }
  Value Constant(double value) const { return builder->Constant(value); }

  bool Has(size_t i) const { return i < operands.size() && operands[i].value.defined(); }

  Value At(size_t i) const {
    if (Has(i)) return operands[i].value;
    *problem = "without its argument " + std::to_string(i + 1) + " cannot be fused";
    return Constant(0);
  }

  // The product with a factor such as alpha, or the value if it is absent.
  Value Scaled(Value value, size_t factor) const {
    return Has(factor) ? operands[factor].value * value : value;
  }

  // a - alpha * b, of the arguments at these places.
  Value Difference(size_t a, size_t b, size_t alpha) const {
    const Value scaled = Scaled(At(b), alpha);
    if (scaled.node == At(b).node) return At(a) - At(b);
    return At(a) + Emit(Op::kNeg, operands[alpha].value) * At(b);
  }

  Value IsTrue(size_t i) const {
    return operands[i].dtype == at::kBool ? At(i) : Emit(Op::kNotEqual, At(i), Constant(0));
  }

  // Bitwise operators are logical for booleans; ATen refuses them for floating-point numbers.
  Value And() const { return IsTrue(0) * IsTrue(1); }
  Value Or() const { return Emit(Op::kMaximum, IsTrue(0), IsTrue(1)); }
  Value Not() const { return Emit(Op::kEqual, At(0), Constant(0)); }
};

using Translator = std::function<Value(const Call&)>;

Translator Unary(Op op) {
  return [op](const Call& call) { return call.Emit(op, call.At(0)); };
}

Translator Binary(Op op) {
  return [op](const Call& call) { return call.Emit(op, call.At(0), call.At(1)); };
}

// The recorder has looked at the dimensions.
Translator Reduction(Op op) {
  return [op](const Call& call) { return call.Emit(op, call.At(0)); };
}

Translator Swapped(Op op) {
  return [op](const Call& call) { return call.Emit(op, call.At(1), call.At(0)); };
}

// The same number everywhere. The choice between two equal numbers depends on the argument, whose
// shape the result has.
Value Full(const Call& call, Value number) {
  return call.Emit(Op::kWhere, call.At(0), number, number);
}

Value Same(const Call& call) { return call.At(0); }

// Whole numbers would be rounded: only tensors of booleans and floating-point numbers get here.
Value Divide(const Call& call) {
  if (call.operands.size() > 2 && !call.operands[2].other.isNone())
    *call.problem = "with a rounding mode cannot be fused";
  return call.At(0) / call.At(1);
}

Value Power(const Call& call) {
  const Value base = call.At(0), exponent = call.At(1);
  const Node& node = call.builder->node(exponent);
  return node.op == Op::kConstant ? call.builder->Power(base, node.value)
                                  : call.Emit(Op::kPow, base, exponent);
}

// The formulas of ATen's kernels.
Value Gelu(const Call& call) {
  const Value x = call.At(0);
  const bool by_tanh = call.operands.size() > 1 && call.operands[1].other.isString() &&
                       call.operands[1].other.toStringRef() == "tanh";
  if (by_tanh) {
    const double beta = M_SQRT2 * M_2_SQRTPI * 0.5;
    return 0.5 * x * (1 + call.Emit(Op::kTanh, beta * (x + 0.044715 * (x * x * x))));
  }
  return 0.5 * x * (1 + call.Emit(Op::kErf, M_SQRT1_2 * x));
}

Value Clamp(const Call& call) {
  Value value = call.At(0);
  if (call.Has(1)) value = call.Emit(Op::kClampMin, value, call.At(1));
  if (call.Has(2)) value = call.Emit(Op::kClampMax, value, call.At(2));
  return value;
}

constexpr const char* kMaximumOverDimensions =
    "over dimensions is not pointwise; torch.amax(x, -1, true) and torch.amin reduce rows";

// max(x) and max(x, dim) have the same name as max(x, y).
Translator OfTwo(Op op) {
  return [op](const Call& call) {
    if (call.operands.size() != 2 || !call.operands[1].dtype.has_value()) {
      *call.problem = kMaximumOverDimensions;
      return call.At(0);
    }
    return call.Emit(op, call.At(0), call.At(1));
  };
}

Value Cast(const Call& call) {
  const bool is_truth = call.dtype == at::kBool && call.operands[0].dtype != at::kBool;
  return is_truth ? call.Emit(Op::kNotEqual, call.At(0), call.Constant(0)) : call.At(0);
}

const std::unordered_map<std::string, Translator>& Translators() {
  static const auto* const translators = new std::unordered_map<std::string, Translator>{
      {"add", [](const Call& call) { return call.At(0) + call.Scaled(call.At(1), 2); }},
      {"sub", [](const Call& call) { return call.Difference(0, 1, 2); }},
      {"rsub", [](const Call& call) { return call.Difference(1, 0, 2); }},
      {"mul", Binary(Op::kMul)},
      {"multiply", Binary(Op::kMul)},
      {"div", Divide},
      {"divide", Divide},
      {"true_divide", Divide},
      {"neg", Unary(Op::kNeg)},
      {"negative", Unary(Op::kNeg)},
      {"abs", Unary(Op::kAbs)},
      {"exp", Unary(Op::kExp)},
      {"log", Unary(Op::kLog)},
      {"sqrt", Unary(Op::kSqrt)},
      {"rsqrt", Unary(Op::kRsqrt)},
      {"square", [](const Call& call) { return call.At(0) * call.At(0); }},
      {"reciprocal", Unary(Op::kReciprocal)},
      {"pow", Power},
      {"sigmoid", Unary(Op::kSigmoid)},
      {"silu", Unary(Op::kSilu)},
      {"relu", Unary(Op::kRelu)},
      {"gelu", Gelu},
      {"tanh", Unary(Op::kTanh)},
      {"erf", Unary(Op::kErf)},
      {"sin", Unary(Op::kSin)},
      {"cos", Unary(Op::kCos)},
      {"maximum", Binary(Op::kMaximum)},
      {"minimum", Binary(Op::kMinimum)},
      {"max", OfTwo(Op::kMaximum)},
      {"min", OfTwo(Op::kMinimum)},
      {"clamp", Clamp},
      {"clip", Clamp},
      {"clamp_min", Binary(Op::kClampMin)},
      {"clamp_max", Binary(Op::kClampMax)},
      {"lt", Binary(Op::kLess)},
      {"le", Binary(Op::kLessEqual)},
      {"gt", Swapped(Op::kLess)},
      {"ge", Swapped(Op::kLessEqual)},
      {"eq", Binary(Op::kEqual)},
      {"ne", Binary(Op::kNotEqual)},
      {"logical_and", [](const Call& call) { return call.And(); }},
      {"logical_or", [](const Call& call) { return call.Or(); }},
      {"logical_not", [](const Call& call) { return call.Not(); }},
      {"bitwise_and", [](const Call& call) { return call.And(); }},
      {"bitwise_or", [](const Call& call) { return call.Or(); }},
      {"bitwise_not", [](const Call& call) { return call.Not(); }},
      {"where",
       [](const Call& call) {
         return call.Emit(Op::kWhere, call.IsTrue(0), call.At(1), call.At(2));
       }},
      {"masked_fill",
       [](const Call& call) { return call.Emit(Op::kWhere, call.At(1), call.At(2), call.At(0)); }},
      {"addcmul",
       [](const Call& call) { return call.At(0) + call.Scaled(call.At(1) * call.At(2), 3); }},
      {"addcdiv",
       [](const Call& call) { return call.At(0) + call.Scaled(call.At(1) / call.At(2), 3); }},
      {"empty_like", [](const Call& call) { return Full(call, call.Constant(0)); }},
      {"zeros_like", [](const Call& call) { return Full(call, call.Constant(0)); }},
      {"ones_like", [](const Call& call) { return Full(call, call.Constant(1)); }},
      {"full_like", [](const Call& call) { return Full(call, call.At(1)); }},
      {"fill", [](const Call& call) { return Full(call, call.At(1)); }},
      {"to", Cast},
      {"_to_copy", Cast},
      {"clone", Same},
      {"contiguous", Same},
      {"sum", Reduction(Op::kSum)},
      {"mean", Reduction(Op::kMean)},
      {"amax", Reduction(Op::kAmax)},
      {"amin", Reduction(Op::kAmin)},
      {"swiglu", [](const Call& call) { return call.Emit(Op::kSilu, call.At(0)) * call.At(1); }},
  };
  return *translators;
}

std::string BareName(const std::string& name) {
  for (const char* library : {"aten::", "lockstep::"})
    if (name.rfind(library, 0) == 0) return name.substr(std::string(library).size());
  return name;
}

}  // namespace

bool IsTranslated(const std::string& name) { return Translators().count(BareName(name)) > 0; }

bool IsReduction(const std::string& name) {
  const std::string bare = BareName(name);
  return bare == "sum" || bare == "mean" || bare == "amax" || bare == "amin";
}

bool KeepsDimension(const std::vector<Operand>& operands) {
  return operands.size() > 2 && operands[2].other.isBool() && operands[2].other.toBool();
}

std::string ProblemOfReduction(const std::vector<Operand>& operands) {
  const char* const advice = " cannot be fused; it may reduce the last dimension, given as -1";
  if (operands.size() < 2 || !operands[1].other.isIntList() ||
      operands[1].other.toIntVector().empty())
    return std::string("over all dimensions") + advice;
  const std::vector<int64_t> dims = operands[1].other.toIntVector();
  if (dims.size() > 1) return std::string("over several dimensions") + advice;
  if (dims[0] != -1) return "over dimension " + std::to_string(dims[0]) + advice;
  return "";
}

std::string ShownName(const std::string& name) { return "torch." + BareName(name); }

Value Translate(Builder* builder, const std::string& name, const std::vector<Operand>& operands,
                at::ScalarType dtype, std::string* problem) {
  const Value value = Translators().at(BareName(name))({builder, operands, dtype, problem});
  // The sum of two booleans is a boolean.
  const Op op = builder->node(value).op;
  const bool may_be_more = op == Op::kAdd || op == Op::kSub || op == Op::kPow || op == Op::kNeg;
  if (dtype == at::kBool && may_be_more)
    return builder->Emit(Op::kNotEqual, value, builder->Constant(0));
  return value;
}

}  // namespace lockstep::kernels::pointwise
