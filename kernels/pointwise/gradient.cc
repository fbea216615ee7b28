#include <cmath>
#include <utility>

#include "kernels/pointwise/program.h"

// Reverse accumulation over the nodes. The formulas are those of ATen's derivatives. Where a
// derivative does not exist, the choices are ATen's too. Each of two equal operands of a maximum
// gets half of the gradient, and equal largest numbers of a row get equal shares. A number on the
// edge of a clamp gets all of it, and relu at 0 none.

namespace lockstep::kernels::pointwise {
namespace {

// The gradients of a program's nodes. A node of a row has one gradient for all elements that are
// computed from it: the sum over the row.
class Accumulator {
 public:
  Accumulator(Builder* builder, const Program& program, bool rows_are_empty)
      : builder_(builder),
        rows_are_empty_(rows_are_empty),
        levels_(LevelsOf(program)),
        gradients_(program.nodes.size()),
        of_elements_(program.nodes.size()) {}

  // Returns the sum of a node's gradients so far.
  Value Of(int32_t node) const {
    if (!of_elements_[node].defined()) return gradients_[node];
    const Value sum = SumOverRow(of_elements_[node]);
    return gradients_[node].defined() ? gradients_[node] + sum : sum;
  }

  // Sets the level of the node, or of the result, that the next gradients come from.
  void From(Level level) { from_ = level; }
  void From(int32_t node) { from_ = levels_[node]; }

  void Add(int32_t node, Value gradient) {
    const bool is_of_elements = from_ == Level::kFull && levels_[node] == Level::kRow;
    Value& sum = (is_of_elements ? of_elements_ : gradients_)[node];
    sum = sum.defined() ? sum + gradient : gradient;
  }

  // Returns the sum of a value over the row. Factors that are the same for all of the row are
  // applied after that, so that the sum need not wait for them. The sum of an empty row is 0, even
  // if a factor is NaN.
  Value SumOverRow(Value value) const {
    if (rows_are_empty_) return Zero();
    std::vector<Value> factors, divisors;
    bool is_negative = false;
    const Value rest = WithoutFactors(value, &factors, &divisors, &is_negative);
    Value sum = rest.defined() ? Emit(Op::kSum, rest) : builder_->Length();
    for (const Value& factor : factors) sum = sum * factor;
    for (const Value& divisor : divisors) sum = sum / divisor;
    return is_negative ? -sum : sum;
  }

  Value Length() const { return builder_->Length(); }
  bool IsFull(Value value) const { return builder_->level(value) == Level::kFull; }
  Value Zero() const { return builder_->Constant(0); }
  Value Where(Value condition, Value yes, Value no) const {
    return builder_->Emit(Op::kWhere, condition, yes, no);
  }
  Value Emit(Op op, Value a, Value b = {}) const { return builder_->Emit(op, a, b); }

 private:
  // Returns the value without its factors that are the same for all of a row, which are appended to
  // the lists. Nothing may be left of it.
  Value WithoutFactors(Value value, std::vector<Value>* factors, std::vector<Value>* divisors,
                       bool* is_negative) const {
    if (!IsFull(value)) {
      factors->push_back(value);
      return {};
    }
    const Node node = builder_->node(value);
    const auto operand = [&](int i) { return Value{builder_, node.args[i]}; };
    const auto rest = [&](Value part) {
      return WithoutFactors(part, factors, divisors, is_negative);
    };
    if (node.op == Op::kNeg) {
      *is_negative = !*is_negative;
      return rest(operand(0));
    }
    if (node.op == Op::kMul) {
      const Value a = rest(operand(0)), b = rest(operand(1));
      return !a.defined() ? b : !b.defined() ? a : a * b;
    }
    if (node.op == Op::kDiv && !IsFull(operand(1))) {
      divisors->push_back(operand(1));
      return rest(operand(0));
    }
    return value;
  }

  Builder* const builder_;
  const bool rows_are_empty_;
  const std::vector<Level> levels_;
  std::vector<Value> gradients_;
  std::vector<Value> of_elements_;  // to be summed over the row
  Level from_ = Level::kFull;
};

// Returns d node / d x * g, where y is the node's value, for operators of one operand.
Value OfUnary(const Accumulator& to, Op op, Value x, Value y, Value g) {
  switch (op) {
    case Op::kSum: return g;
    case Op::kMean: return g / to.Length();
    case Op::kAmax:
    case Op::kAmin: {  // in equal shares for equal numbers
      const Value is_it = to.Emit(Op::kEqual, x, y);
      return is_it * (g / to.SumOverRow(is_it));
    }
    case Op::kNeg: return -g;
    case Op::kAbs:  // 0 at 0
      return g * (to.Emit(Op::kLess, to.Zero(), x) - to.Emit(Op::kLess, x, to.Zero()));
    case Op::kExp: return g * y;
    case Op::kLog: return g / x;
    case Op::kSqrt: return g / (2 * y);
    case Op::kRsqrt: return -0.5 * g * (y * y * y);
    case Op::kReciprocal: return -g * (y * y);
    case Op::kSigmoid: return g * ((1 - y) * y);
    case Op::kSilu: {
      const Value s = to.Emit(Op::kSigmoid, x);
      return g * (s * (1 + x * (1 - s)));
    }
    case Op::kRelu: return to.Where(to.Emit(Op::kLessEqual, x, to.Zero()), to.Zero(), g);
    case Op::kTanh: return g * (1 - y * y);
    case Op::kErf: return g * (M_2_SQRTPI * to.Emit(Op::kExp, -(x * x)));
    case Op::kSin: return g * to.Emit(Op::kCos, x);
    case Op::kCos: return -g * to.Emit(Op::kSin, x);
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
                    const std::vector<at::ScalarType>& input_dtypes, bool rows_are_empty) {
  Builder builder;
  std::vector<Value> values;
  std::vector<bool> leads_to_needed;  // for each node
  for (const Node& node : program.nodes) {
    const bool is_input = node.op == Op::kInput || node.op == Op::kRowInput;
    bool leads = is_input && (needed >> node.args[0] & 1) != 0;
    Value operands[3];
    for (int i = 0; i < NumOperands(node.op); ++i) {
      operands[i] = values[node.args[i]];
      leads = leads || leads_to_needed[node.args[i]];
    }
    leads_to_needed.push_back(leads);
    if (node.op == Op::kSilu)  // its gradient has the sigmoid: one exponential for both
      values.push_back(operands[0] * builder.Emit(Op::kSigmoid, operands[0]));
    else
      values.push_back(builder.Copy(node, operands));
  }

  Accumulator accumulator(&builder, program, rows_are_empty);
  uint64_t first_given = 0;  // stays, so that there is an input
  for (size_t i = 0; i < program.results.size(); ++i) {
    if ((given >> i & 1) == 0) continue;
    const int32_t index = program.num_inputs + static_cast<int32_t>(i);
    if (first_given == 0) first_given = uint64_t{1} << index;
    const bool is_row = program.row_results[i];
    accumulator.From(is_row ? Level::kRow : Level::kFull);
    accumulator.Add(program.results[i], is_row ? builder.RowInput(index) : builder.Input(index));
  }
  for (auto i = static_cast<int32_t>(program.nodes.size()) - 1; i >= 0; --i) {
    const Node& node = program.nodes[i];
    const int count = NumOperands(node.op);
    if (!leads_to_needed[i] || count == 0) continue;
    const Value g = accumulator.Of(i);
    if (!g.defined()) continue;
    Value operands[3];
    bool wants[3] = {};
    for (int j = 0; j < count; ++j) {
      operands[j] = values[node.args[j]];
      wants[j] = leads_to_needed[node.args[j]];
    }
    accumulator.From(i);
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
  std::vector<bool> row_results;
  for (size_t i = 0; i < program.nodes.size(); ++i) {
    const Node& node = program.nodes[i];
    const bool is_input = node.op == Op::kInput || node.op == Op::kRowInput;
    if (!is_input || (needed >> node.args[0] & 1) == 0) continue;
    const Value g = accumulator.Of(static_cast<int32_t>(i));
    if (!g.defined()) continue;
    results.push_back(g);
    row_results.push_back(node.op == Op::kRowInput);
    gradient.of.push_back(node.args[0]);
    dtypes.push_back(input_dtypes[node.args[0]]);
  }
  std::vector<int32_t> inputs;
  gradient.program = builder.Finish(results, dtypes, program.wide, &inputs, first_given);
  gradient.program.row_results = std::move(row_results);
  for (const int32_t input : inputs) {
    if (input < program.num_inputs)
      gradient.inputs.push_back(input);
    else
      gradient.gradients.push_back(input - program.num_inputs);
  }
  return gradient;
}

}  // namespace lockstep::kernels::pointwise
