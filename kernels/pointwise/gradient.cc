#include <cmath>

#include "kernels/pointwise/program.h"

// Reverse accumulation over the nodes. The formulas are those of ATen's derivatives, with the same
// choices where a derivative does not exist: half of the gradient for each of two equal operands of
// a maximum, all of it for a number on the edge of a clamp, none for relu at 0.

namespace lockstep::kernels::pointwise {
namespace {

class Accumulator {
 public:
  Accumulator(Builder* builder, size_t num_nodes) : builder_(builder), gradients_(num_nodes) {}

  Value Of(int32_t node) const { return gradients_[node]; }

  void Add(int32_t node, Value gradient) {
    Value& sum = gradients_[node];
    sum = sum.defined() ? sum + gradient : gradient;
  }

  Value Zero() const { return builder_->Constant(0); }
  Value Where(Value condition, Value yes, Value no) const {
    return builder_->Emit(Op::kWhere, condition, yes, no);
  }
  Value Emit(Op op, Value a, Value b = {}) const { return builder_->Emit(op, a, b); }

 private:
  Builder* const builder_;
  std::vector<Value> gradients_;
};

// Returns d node / d x * g, where y is the node's value, for operators of one operand.
Value OfUnary(const Accumulator& to, Op op, Value x, Value y, Value g) {
  switch (op) {
    case Op::kNeg:
      return -g;
    case Op::kAbs:  // 0 at 0
      return g * (to.Emit(Op::kLess, to.Zero(), x) - to.Emit(Op::kLess, x, to.Zero()));
    case Op::kExp:
      return g * y;
    case Op::kLog:
      return g / x;
    case Op::kSqrt:
      return g / (2 * y);
    case Op::kRsqrt:
      return -0.5 * g * (y * y * y);
    case Op::kReciprocal:
      return -g * (y * y);
    case Op::kSigmoid:
      return g * ((1 - y) * y);
    case Op::kSilu: {
      const Value s = to.Emit(Op::kSigmoid, x);
      return g * (s * (1 + x * (1 - s)));
    }
    case Op::kRelu:
      return to.Where(to.Emit(Op::kLessEqual, x, to.Zero()), to.Zero(), g);
    case Op::kTanh:
      return g * (1 - y * y);
    case Op::kErf:
      return g * (M_2_SQRTPI * to.Emit(Op::kExp, -(x * x)));
    case Op::kSin:
      return g * to.Emit(Op::kCos, x);
    case Op::kCos:
      return -g * to.Emit(Op::kSin, x);
    default:  // kCopy
      return g;
  }
}

// Adds the gradients of operators of two operands. `wants` says which are needed.
void AddOfBinary(Accumulator* to, Builder* builder, const Node& node, Value a, Value b, Value y,
                 Value g, const bool* wants) {
  const Value zero = to->Zero();
  const auto add = [&](int operand, const auto& gradient) {
    if (wants[operand]) to->Add(node.args[operand], gradient());
  };
  switch (node.op) {
    case Op::kAdd:
      add(0, [&] { return g; });
      add(1, [&] { return g; });
      break;
    case Op::kSub:
      add(0, [&] { return g; });
      add(1, [&] { return -g; });
      break;
    case Op::kMul:
      add(0, [&] { return g * b; });
      add(1, [&] { return g * a; });
      break;
    case Op::kDiv:
      add(0, [&] { return g / b; });
      add(1, [&] { return -g * (y / b); });
      break;
    case Op::kPow:
      add(0, [&] {
        if (builder->node(b).op == Op::kConstant) {
          const double exponent = builder->node(b).value;
          if (exponent == 0) return zero;
          return g * (exponent * builder->Power(a, exponent - 1));
        }
        const Value slope = b * to->Emit(Op::kPow, a, b - builder->Constant(1));
        return to->Where(to->Emit(Op::kEqual, b, zero), zero, g * slope);
      });
      add(1, [&] {  // 0 for 0^b, whose logarithm is infinite
        const Value is_zero = to->Emit(Op::kEqual, a, zero) * to->Emit(Op::kLessEqual, zero, b);
        return to->Where(is_zero, zero, g * (y * to->Emit(Op::kLog, a)));
      });
      break;
    case Op::kMaximum:
    case Op::kMinimum: {
      const bool is_maximum = node.op == Op::kMaximum;
      const auto of = [&](Value mine, Value others) {
        const Value loses =
            is_maximum ? to->Emit(Op::kLess, mine, others) : to->Emit(Op::kLess, others, mine);
        return to->Where(loses, zero, to->Where(to->Emit(Op::kEqual, a, b), 0.5 * g, g));
      };
      add(0, [&] { return of(a, b); });
      add(1, [&] { return of(b, a); });
      break;
    }
    case Op::kClampMin:
      add(0, [&] { return to->Where(to->Emit(Op::kLessEqual, b, a), g, zero); });
      add(1, [&] { return to->Where(to->Emit(Op::kLess, a, b), g, zero); });
      break;
    case Op::kClampMax:
      add(0, [&] { return to->Where(to->Emit(Op::kLessEqual, a, b), g, zero); });
      add(1, [&] { return to->Where(to->Emit(Op::kLess, b, a), g, zero); });
      break;
    default:  // comparisons
      break;
  }
}

}  // namespace

Gradient GradientOf(const Program& program, uint64_t needed, uint64_t given,
                    const std::vector<at::ScalarType>& input_dtypes) {
  Builder builder;
  std::vector<Value> values;
  std::vector<bool> leads_to_needed;  // for each node
  for (const Node& node : program.nodes) {
    bool leads = node.op == Op::kInput && (needed >> node.args[0] & 1) != 0;
    Value operands[3];
    for (int i = 0; i < NumOperands(node.op); ++i) {
      operands[i] = values[node.args[i]];
      leads = leads || leads_to_needed[node.args[i]];
    }
    leads_to_needed.push_back(leads);
    if (node.op == Op::kInput) {
      values.push_back(builder.Input(node.args[0]));
    } else if (node.op == Op::kNumber) {
      values.push_back(builder.Number(node.args[0]));
    } else if (node.op == Op::kConstant) {
      values.push_back(builder.Constant(node.value));
    } else if (node.op == Op::kSilu) {  // its gradient has the sigmoid: one exponential for both
      values.push_back(operands[0] * builder.Emit(Op::kSigmoid, operands[0]));
    } else {
      values.push_back(builder.Emit(node.op, operands[0], operands[1], operands[2]));
    }
  }

  Accumulator accumulator(&builder, program.nodes.size());
  uint64_t first_given = 0;  // stays: its shape is that of the gradients
  for (size_t i = 0; i < program.results.size(); ++i) {
    if ((given >> i & 1) == 0) continue;
    const int32_t index = program.num_inputs + static_cast<int32_t>(i);
    if (first_given == 0) first_given = uint64_t{1} << index;
    accumulator.Add(program.results[i], builder.Input(index));
  }
  for (auto i = static_cast<int32_t>(program.nodes.size()) - 1; i >= 0; --i) {
    const Node& node = program.nodes[i];
    const Value g = accumulator.Of(i);
    const int count = NumOperands(node.op);
    if (!g.defined() || !leads_to_needed[i] || count == 0) continue;
    Value operands[3];
    bool wants[3] = {};
    for (int j = 0; j < count; ++j) {
      operands[j] = values[node.args[j]];
      wants[j] = leads_to_needed[node.args[j]];
    }
    if (count == 1) {
      accumulator.Add(node.args[0], OfUnary(accumulator, node.op, operands[0], values[i], g));
    } else if (count == 2) {
      AddOfBinary(&accumulator, &builder, node, operands[0], operands[1], values[i], g, wants);
    } else {
      const Value zero = builder.Constant(0);
      if (wants[1]) accumulator.Add(node.args[1], accumulator.Where(operands[0], g, zero));
      if (wants[2]) accumulator.Add(node.args[2], accumulator.Where(operands[0], zero, g));
    }
  }

  Gradient gradient;
  std::vector<Value> results;
  std::vector<at::ScalarType> dtypes;
  for (size_t i = 0; i < program.nodes.size(); ++i) {
    const Node& node = program.nodes[i];
    if (node.op != Op::kInput || (needed >> node.args[0] & 1) == 0) continue;
    const Value g = accumulator.Of(static_cast<int32_t>(i));
    if (!g.defined()) continue;
    results.push_back(g);
    gradient.of.push_back(node.args[0]);
    dtypes.push_back(input_dtypes[node.args[0]]);
  }
  std::vector<int32_t> inputs;
  gradient.program = builder.Finish(results, dtypes, program.wide, &inputs, first_given);
  for (const int32_t input : inputs) {
    if (input < program.num_inputs)
      gradient.inputs.push_back(input);
    else
      gradient.gradients.push_back(input - program.num_inputs);
  }
  return gradient;
}

}  // namespace lockstep::kernels::pointwise
