#include "kernels/pointwise/program.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "c10/util/Exception.h"

namespace lockstep::kernels::pointwise {
namespace {

uint64_t BitsOf(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

bool IsConstant(const Node& node, double value) {
  return node.op == Op::kConstant && node.value == value;
}

template <typename T>
void AppendBytes(const T& value, std::string* bytes) {
  bytes->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// NaN if one of them is, as in ATen.
double Larger(double a, double b) { return std::isnan(a) || a > b ? a : b; }
double Smaller(double a, double b) { return std::isnan(a) || a < b ? a : b; }

}  // namespace

int NumOperands(Op op) {
  if (op <= Op::kConstant) return 0;
  if (op < Op::kAdd) return 1;
  return op >= Op::kWhere ? 3 : 2;
}

double Evaluate(Op op, double a, double b, double c) {
  switch (op) {
    case Op::kNeg: return -a;
    case Op::kAbs: return std::abs(a);
    case Op::kExp: return std::exp(a);
    case Op::kLog: return std::log(a);
    case Op::kSqrt: return std::sqrt(a);
    case Op::kRsqrt: return 1 / std::sqrt(a);
    case Op::kReciprocal: return 1 / a;
    case Op::kSigmoid: return 1 / (1 + std::exp(-a));
    case Op::kSilu: return a / (1 + std::exp(-a));
    case Op::kRelu: return Larger(a, 0);
    case Op::kTanh: return std::tanh(a);
    case Op::kErf: return std::erf(a);
    case Op::kSin: return std::sin(a);
    case Op::kCos: return std::cos(a);
    case Op::kAdd: return a + b;
    case Op::kSub: return a - b;
    case Op::kMul: return a * b;
    case Op::kDiv: return a / b;
    case Op::kPow: return std::pow(a, b);
    case Op::kMaximum:
    case Op::kClampMin: return std::isnan(b) ? b : Larger(a, b);
    case Op::kMinimum:
    case Op::kClampMax: return std::isnan(b) ? b : Smaller(a, b);
    case Op::kLess: return a < b ? 1 : 0;
    case Op::kLessEqual: return a <= b ? 1 : 0;
    case Op::kEqual: return a == b ? 1 : 0;
    case Op::kNotEqual: return a != b ? 1 : 0;
    case Op::kWhere: return a != 0 ? b : c;
    case Op::kMulAdd: return a * b + c;
    default:  // kCopy; the others have no value of their own
      break;
  }
  return a;
}

std::string KeyOf(const Program& program) {
  std::string key;
  for (const Node& node : program.nodes) {
    AppendBytes(node.op, &key);
    AppendBytes(node.args, &key);
    AppendBytes(node.value, &key);
  }
  key += '/';
  for (const int32_t result : program.results) AppendBytes(result, &key);
  for (const at::ScalarType dtype : program.dtypes) AppendBytes(dtype, &key);
  for (const bool is_row : program.row_results) key += is_row ? 'r' : 'f';
  AppendBytes(program.num_inputs, &key);
  AppendBytes(program.wide, &key);
  return key;
}

namespace {

Level LevelOf(const Node& node, const std::vector<Level>& levels) {
  if (node.op == Op::kInput) return Level::kFull;
  if (node.op == Op::kRowInput || IsReduction(node.op)) return Level::kRow;
  Level level = Level::kUniform;
  for (int i = 0; i < NumOperands(node.op); ++i) level = std::max(level, levels[node.args[i]]);
  return level;
}

bool IsInput(Op op) { return op == Op::kInput || op == Op::kRowInput; }

}  // namespace

std::vector<Level> LevelsOf(const Program& program) {
  std::vector<Level> levels;
  for (const Node& node : program.nodes) levels.push_back(LevelOf(node, levels));
  return levels;
}

std::vector<int32_t> FirstPhases(const Program& program) {
  std::vector<int32_t> phases;
  for (const Node& node : program.nodes) {
    int32_t phase = 0;
    for (int j = 0; j < NumOperands(node.op); ++j) phase = std::max(phase, phases[node.args[j]]);
    phases.push_back(IsReduction(node.op) ? phase + 1 : phase);
  }
  return phases;
}

bool HasReductions(const Program& program) {
  return std::any_of(program.nodes.begin(), program.nodes.end(),
                     [](const Node& node) { return IsReduction(node.op); });
}

bool NeedsRows(const Program& program) {
  const std::vector<bool>& of_rows = program.row_results;
  if (std::find(of_rows.begin(), of_rows.end(), true) != of_rows.end()) return true;
  return std::any_of(program.nodes.begin(), program.nodes.end(), [](const Node& node) {
    return IsReduction(node.op) || node.op == Op::kRowInput || node.op == Op::kLength;
  });
}

std::vector<uint64_t> InputsOfNodes(const Program& program) {
  std::vector<uint64_t> inputs;
  for (const Node& node : program.nodes) {
    uint64_t set = IsInput(node.op) ? uint64_t{1} << node.args[0] : 0;
    for (int i = 0; i < NumOperands(node.op); ++i) set |= inputs[node.args[i]];
    inputs.push_back(set);
  }
  return inputs;
}

Value Builder::Add(const Node& node) {
  const Key key(node.op, node.args, BitsOf(node.value));
  const auto [place, is_new] = known_.emplace(key, static_cast<int32_t>(nodes_.size()));
  if (is_new) {
    levels_.push_back(LevelOf(node, levels_));
    nodes_.push_back(node);
  }
  return {this, place->second};
}

Value Builder::Input(int32_t index) { return Add({Op::kInput, {index, 0, 0}}); }

Value Builder::RowInput(int32_t index) { return Add({Op::kRowInput, {index, 0, 0}}); }

Value Builder::Number(int32_t index) { return Add({Op::kNumber, {index, 0, 0}}); }

Value Builder::Length() { return Add({Op::kLength}); }

Value Builder::Constant(double value) { return Add({Op::kConstant, {0, 0, 0}, value}); }

Value Builder::Emit(Op op, Value a, Value b, Value c) {
  const Value operands[] = {a, b, c};
  const int count = NumOperands(op);
  Node node{op};
  bool is_constant = true;
  double values[3] = {0, 0, 0};
  for (int i = 0; i < count; ++i) {
    TORCH_INTERNAL_ASSERT(operands[i].builder == this);
    node.args[i] = operands[i].node;
    is_constant = is_constant && nodes_[operands[i].node].op == Op::kConstant;
    values[i] = nodes_[operands[i].node].value;
  }
  if (IsReduction(op)) return Add(node);
  if (is_constant) return Constant(Evaluate(op, values[0], values[1], values[2]));
  if (op == Op::kMul && IsConstant(nodes_[a.node], 1)) return b;
  if (op == Op::kMul && IsConstant(nodes_[b.node], 1)) return a;
  if (op == Op::kMul && IsConstant(nodes_[a.node], -1)) return Emit(Op::kNeg, b);
  if (op == Op::kMul && IsConstant(nodes_[b.node], -1)) return Emit(Op::kNeg, a);
  return Add(node);
}

Value Builder::Copy(const Node& node, const Value* operands) {
  if (NumOperands(node.op) == 0) return Add(node);
  return Emit(node.op, operands[0], operands[1], operands[2]);
}

Value Builder::Power(Value base, double exponent) {
  if (exponent == 1) return base;
  if (exponent == 2) return base * base;
  if (exponent == 3) return base * base * base;
  if (exponent == 0.5) return Emit(Op::kSqrt, base);
  if (exponent == -0.5) return Emit(Op::kRsqrt, base);
  if (exponent == -1) return Emit(Op::kReciprocal, base);
  return Emit(Op::kPow, base, Constant(exponent));
}

Program Builder::Finish(const std::vector<Value>& results,
                        const std::vector<at::ScalarType>& dtypes, bool wide,
                        std::vector<int32_t>* inputs, uint64_t kept) const {
  std::vector<bool> is_used(nodes_.size());
  for (const Value& result : results) is_used[result.node] = true;
  for (size_t i = nodes_.size(); i-- > 0;) {
    const Node& node = nodes_[i];
    if (IsInput(node.op) && (kept >> node.args[0] & 1) != 0) is_used[i] = true;
    for (int j = 0; is_used[i] && j < NumOperands(node.op); ++j) is_used[node.args[j]] = true;
  }
  inputs->clear();
  for (size_t i = 0; i < nodes_.size(); ++i)
    if (is_used[i] && IsInput(nodes_[i].op)) inputs->push_back(nodes_[i].args[0]);
  std::sort(inputs->begin(), inputs->end());

  Program program;
  std::vector<int32_t> places(nodes_.size());
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (!is_used[i]) continue;
    Node node = nodes_[i];
    for (int j = 0; j < NumOperands(node.op); ++j) node.args[j] = places[node.args[j]];
    if (IsInput(node.op)) {
      const auto place = std::lower_bound(inputs->begin(), inputs->end(), node.args[0]);
      node.args[0] = static_cast<int32_t>(place - inputs->begin());
    }
    places[i] = static_cast<int32_t>(program.nodes.size());
    program.nodes.push_back(node);
  }
  for (const Value& result : results) program.results.push_back(places[result.node]);
  program.dtypes = dtypes;
  program.row_results.resize(results.size());
  program.num_inputs = static_cast<int32_t>(inputs->size());
  program.wide = wide;
  return program;
}

Value operator+(Value a, Value b) { return a.builder->Emit(Op::kAdd, a, b); }
Value operator-(Value a, Value b) { return a.builder->Emit(Op::kSub, a, b); }
Value operator*(Value a, Value b) { return a.builder->Emit(Op::kMul, a, b); }
Value operator/(Value a, Value b) { return a.builder->Emit(Op::kDiv, a, b); }
Value operator-(Value a) { return a.builder->Emit(Op::kNeg, a); }
Value operator+(double a, Value b) { return b.builder->Constant(a) + b; }
Value operator-(double a, Value b) { return b.builder->Constant(a) - b; }
Value operator*(double a, Value b) { return b.builder->Constant(a) * b; }

Program Select(const Program& program, uint64_t results, uint64_t row_inputs,
               std::vector<int32_t>* inputs) {
  Builder builder;
  std::vector<Value> values, chosen;
  for (const Node& node : program.nodes) {
    Value operands[3];
    for (int i = 0; i < NumOperands(node.op); ++i) operands[i] = values[node.args[i]];
    if (node.op == Op::kInput && (row_inputs >> node.args[0] & 1) != 0)
      values.push_back(builder.RowInput(node.args[0]));
    else if (IsReduction(node.op) && builder.level(operands[0]) != Level::kFull)
      values.push_back(operands[0]);
    else
      values.push_back(builder.Copy(node, operands));
  }
  std::vector<at::ScalarType> dtypes;
  std::vector<bool> row_results;
  for (size_t i = 0; i < program.results.size(); ++i) {
    if ((results >> i & 1) == 0) continue;
    chosen.push_back(values[program.results[i]]);
    dtypes.push_back(program.dtypes[i]);
    row_results.push_back(builder.level(chosen.back()) == Level::kRow);
  }
  Program selected = builder.Finish(chosen, dtypes, program.wide, inputs);
  selected.row_results = std::move(row_results);
  return selected;
}

}  // namespace lockstep::kernels::pointwise
