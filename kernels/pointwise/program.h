// A pointwise function as data: a list of nodes. Each node computes one number from the numbers of
// earlier nodes. The same list is run for every element. No tensors here.
//
// A function may also reduce its last dimension. An element's row is all elements with the same
// position in the other dimensions; a reduction computes one number of a row from all of its
// elements. LevelsOf tells such nodes apart.
//
//    Builder builder;
//    const Value x = builder.Input(0), y = builder.Input(1);
//    const Value z = builder.Emit(Op::kSilu, x) * y;
//    std::vector<int32_t> inputs;
//    const Program program = builder.Finish({z}, {at::kFloat}, /*wide=*/false, &inputs);
//
// A builder returns the same node for the same computation, and computes constants at once.

#ifndef LOCKSTEP_KERNELS_POINTWISE_PROGRAM_H_
#define LOCKSTEP_KERNELS_POINTWISE_PROGRAM_H_

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "c10/core/ScalarType.h"

namespace lockstep::kernels::pointwise {

enum class Op : uint8_t {
  kInput,     // the element of input number args[0]
  kRowInput,  // the row's number in input number args[0], whose last dimension has size 1
  kNumber,    // number args[0] of the call, the same for all elements
  kLength,    // the number of elements of a row
  kConstant,  // `value`
  kSum,       // the row's sum, mean, largest and smallest number
  kMean,
  kAmax,
  kAmin,
  kCopy,
  kNeg,
  kAbs,
  kExp,
  kLog,
  kSqrt,
  kRsqrt,
  kReciprocal,
  kSigmoid,
  kSilu,
  kRelu,
  kTanh,
  kErf,
  kSin,
  kCos,
  kAdd,
  kSub,
  kMul,
  kDiv,
  kPow,
  kMaximum,
  kMinimum,
  kClampMin,  // as kMaximum; only their gradients differ where the operands are equal
  kClampMax,
  kLess,  // comparisons give 1 or 0
  kLessEqual,
  kEqual,
  kNotEqual,
  kWhere,   // args[1] where args[0] is not 0, else args[2]
  kMulAdd,  // args[0] * args[1] + args[2], rounded once; only in the steps of the interpreter
  // These too are steps only: see row_code.h.
  kLoad,
  kStore,
  kExpand,
};

// Returns the number of operands that are nodes: 0 for kConstant and what comes before it.
int NumOperands(Op op);

inline bool IsReduction(Op op) { return op >= Op::kSum && op <= Op::kAmin; }

// Returns the operator's result in float64, with `a`, `b` and `c` as its operands.
double Evaluate(Op op, double a, double b, double c);

struct Node {
  Op op;
  std::array<int32_t, 3> args = {0, 0, 0};
  double value = 0;
};

struct Program {
  std::vector<Node> nodes;             // operands come before what uses them
  std::vector<int32_t> results;        // nodes
  std::vector<at::ScalarType> dtypes;  // of the results, as they are stored
  std::vector<bool> row_results;       // whether a result has one number for each row
  int32_t num_inputs = 0;              // tensors
  bool wide = false;                   // computes in float64, not in float32
};

// Returns the bytes that tell programs apart.
std::string KeyOf(const Program& program);

// The number of values of a node.
enum class Level : uint8_t {
  kUniform,  // one: constants, numbers, and what is computed from them alone
  kRow,      // one for each row
  kFull,     // one for each element
};

// Returns the level of each node.
std::vector<Level> LevelsOf(const Program& program);

// Returns the first phase of each node. Each phase is a pass over a row's elements. A node of rows
// is computed before its phase begins. A reduction's phase follows the phase of its operand.
std::vector<int32_t> FirstPhases(const Program& program);

bool HasReductions(const Program& program);

// Returns whether the program must be run row by row: it has reductions, values or results of rows,
// or reads the length of a row.
bool NeedsRows(const Program& program);

// Returns, for each node, the set of inputs that it depends on, as bits.
std::vector<uint64_t> InputsOfNodes(const Program& program);

class Builder;

// A node of a builder, with the operators of C++.
struct Value {
  Builder* builder = nullptr;
  int32_t node = -1;

  bool defined() const { return node >= 0; }
};

class Builder {
 public:
  Value Input(int32_t index);
  Value RowInput(int32_t index);
  Value Number(int32_t index);
  Value Length();
  Value Constant(double value);
  Value Emit(Op op, Value a, Value b = {}, Value c = {});

  // Returns base^exponent: products and roots for the usual exponents, as ATen computes them.
  Value Power(Value base, double exponent);

  const Node& node(Value value) const { return nodes_[value.node]; }
  Level level(Value value) const { return levels_[value.node]; }

  // Returns a copy of a node of another program, whose operands are these values.
  Value Copy(const Node& node, const Value* operands);

  // Returns the program that computes these results, without unused nodes. Its inputs are numbered
  // from 0, in their order; `*inputs` becomes the list of their old numbers. Inputs in the set
  // `kept` (bits) stay, even if unused. All row_results are false.
  Program Finish(const std::vector<Value>& results, const std::vector<at::ScalarType>& dtypes,
                 bool wide, std::vector<int32_t>* inputs, uint64_t kept = 0) const;

 private:
  Value Add(const Node& node);

  using Key = std::tuple<Op, std::array<int32_t, 3>, uint64_t>;
  std::vector<Node> nodes_;
  std::vector<Level> levels_;
  std::map<Key, int32_t> known_;
};

Value operator+(Value a, Value b);
Value operator-(Value a, Value b);
Value operator*(Value a, Value b);
Value operator/(Value a, Value b);
Value operator-(Value a);
Value operator+(double a, Value b);
Value operator-(double a, Value b);
Value operator*(double a, Value b);

// Returns the program of some of the results (bits), and the inputs that it reads. `row_inputs`
// (bits) have one number for each row; a reduction of what depends on no other input is that number
// itself. Results that depend on at least one row, and on no other input outside of reductions, are
// results of rows.
Program Select(const Program& program, uint64_t results, uint64_t row_inputs,
               std::vector<int32_t>* inputs);

// --- Gradients

struct Gradient {
  Program program;
  // The program's inputs: first these inputs of the function, then the gradients of these of its
  // results.
  std::vector<int32_t> inputs, gradients;
  // The inputs of the function whose gradients are the program's results. An input through which
  // no gradient flows (the condition of a where) is not among them.
  std::vector<int32_t> of;
};

// Derives the program of the function's gradients by reverse accumulation. Each gradient is the sum
// over the results of d result / d input * gradient of the result. It computes again what it needs
// of the function. `needed`: the inputs whose gradients are wanted; `given`: the results that have
// gradients; both as bits. The program's dtypes are those of `input_dtypes`. `rows_are_empty`: the
// last dimension of the call has size 0.
Gradient GradientOf(const Program& program, uint64_t needed, uint64_t given,
                    const std::vector<at::ScalarType>& input_dtypes, bool rows_are_empty = false);

}  // namespace lockstep::kernels::pointwise

#endif  // LOCKSTEP_KERNELS_POINTWISE_PROGRAM_H_
