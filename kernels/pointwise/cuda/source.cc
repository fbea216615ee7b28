#include "kernels/pointwise/cuda/source.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "c10/util/Exception.h"

namespace lockstep::kernels::pointwise::cuda {
namespace {

// Conversions by bits. The rounding to float16 is c10's (fp16_ieee_from_fp32_value).
constexpr const char* kPrelude = R"(
struct BFloat16 { unsigned short bits; };
struct Half { unsigned short bits; };

__device__ float Load(float x) { return x; }
__device__ double Load(double x) { return x; }
__device__ float Load(bool x) { return x ? 1 : 0; }
__device__ float Load(BFloat16 x) { return __uint_as_float((unsigned)x.bits << 16); }
__device__ float Load(Half x) {
  const unsigned bits = (unsigned)x.bits << 16, magnitude = bits & 0x7fffffffu;
  const float wide = magnitude >= 0x7c000000u
                         ? __uint_as_float(0x7f800000u | magnitude >> 3)
                         : __uint_as_float(magnitude >> 3) * 0x1.0p+112f;
  return bits >> 31 ? -wide : wide;
}

template <typename T> __device__ void Store(T x, float* to) { *to = (float)x; }
template <typename T> __device__ void Store(T x, double* to) { *to = (double)x; }
template <typename T> __device__ void Store(T x, bool* to) { *to = x != 0; }
template <typename T> __device__ void Store(T x, BFloat16* to) {
  const float value = (float)x;
  const unsigned bits = __float_as_uint(value);
  to->bits = value != value ? 0x7fc0 : (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
template <typename T> __device__ void Store(T x, Half* to) {
  const unsigned bits = __float_as_uint((float)x), twice = bits + bits;
  const unsigned exponent = twice & 0xff000000u;
  const float scaled = __uint_as_float(bits & 0x7fffffffu) * 0x1.0p+112f * 0x1.0p-110f;
  const unsigned bias = exponent < 0x71000000u ? 0x71000000u : exponent;
  const unsigned rounded = __float_as_uint(__uint_as_float((bias >> 1) + 0x07800000u) + scaled);
  const unsigned half = (rounded >> 13 & 0x7c00u) + (rounded & 0xfffu);
  to->bits = (unsigned short)((bits >> 16 & 0x8000u) | (twice > 0xff000000u ? 0x7e00u : half));
}

// NaN if one of them is, as in ATen.
template <typename T> __device__ T Larger(T a, T b) { return a > b || a != a ? a : b; }
template <typename T> __device__ T Smaller(T a, T b) { return a < b || a != a ? a : b; }
)";

// A reduction over the threads of a block. All threads call it, and get the same bits.
constexpr const char* kReductions = R"(
__device__ double Sum(double a, double b) { return a + b; }

template <double (*Both)(double, double)> __device__ double OfBlock(double x, double* of_warps) {
  for (int lanes = 16; lanes > 0; lanes /= 2)
    x = Both(x, __shfl_xor_sync(0xffffffffu, x, lanes));
  __syncthreads();
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = x;
  __syncthreads();
  double result = of_warps[0];
  for (unsigned i = 1; i < blockDim.x / 32; ++i) result = Both(result, of_warps[i]);
  return result;
}
)";

const char* TypeName(at::ScalarType dtype) {
  switch (dtype) {
    case at::ScalarType::Float: return "float";
    case at::ScalarType::Double: return "double";
    case at::ScalarType::BFloat16: return "BFloat16";
    case at::ScalarType::Half: return "Half";
    default: return "bool";
  }
}

std::string ConstantOf(double value) {
  char text[64];
  int64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if (std::isfinite(value))
    std::snprintf(text, sizeof(text), "%a", value);
  else
    std::snprintf(text, sizeof(text), "__longlong_as_double(%lldll)", static_cast<long long>(bits));
  return text;
}

// The operator's value, of type T, from its operands $0, $1 and $2. nvcc rounds a * b + c once.
const char* FormulaOf(Op op) {
  switch (op) {
    case Op::kCopy: return "$0";
    case Op::kNeg: return "-$0";
    case Op::kAbs: return "fabs($0)";
    case Op::kExp: return "exp($0)";
    case Op::kLog: return "log($0)";
    case Op::kSqrt: return "sqrt($0)";
    case Op::kRsqrt: return "T(1) / sqrt($0)";
    case Op::kReciprocal: return "T(1) / $0";
    case Op::kSigmoid: return "T(1) / (T(1) + exp(-$0))";
    case Op::kSilu: return "$0 / (T(1) + exp(-$0))";
    case Op::kRelu: return "Larger($0, T(0))";
    case Op::kTanh: return "tanh($0)";
    case Op::kErf: return "erf($0)";
    case Op::kSin: return "sin($0)";
    case Op::kCos: return "cos($0)";
    case Op::kAdd: return "$0 + $1";
    case Op::kSub: return "$0 - $1";
    case Op::kMul: return "$0 * $1";
    case Op::kDiv: return "$0 / $1";
    case Op::kPow: return "pow($0, $1)";
    case Op::kMaximum:
    case Op::kClampMin: return "Larger($0, $1)";
    case Op::kMinimum:
    case Op::kClampMax: return "Smaller($0, $1)";
    case Op::kLess: return "T($0 < $1)";
    case Op::kLessEqual: return "T($0 <= $1)";
    case Op::kEqual: return "T($0 == $1)";
    case Op::kNotEqual: return "T($0 != $1)";
    case Op::kWhere: return "$0 != T(0) ? $1 : $2";
    default:
      TORCH_INTERNAL_ASSERT(false, "pointwise: no formula for operator ", static_cast<int>(op));
  }
}

// Names a node's number: u0, u1 and so on are uniform, r0... belong to rows, v0... to elements.
// The former two are float64.
std::string NameOf(int32_t node, Level level) {
  const char* const letter = level == Level::kUniform ? "u" : level == Level::kRow ? "r" : "v";
  return letter + std::to_string(node);
}

// Returns the number as an element's, of type Acc.
std::string Element(int32_t node, Level level) {
  return (level == Level::kFull ? "" : "(Acc)") + NameOf(node, level);
}

// Returns the formula of a node.
std::string Expression(const Node& node, const std::vector<Level>& levels, Level level) {
  std::string text;
  for (const char* at = FormulaOf(node.op); *at != '\0'; ++at) {
    if (*at == 'T') {
      text += level == Level::kFull ? "Acc" : "double";
    } else if (*at != '$') {
      text += *at;
    } else {
      const int32_t operand = node.args[*++at - '0'];
      text += level == Level::kFull ? Element(operand, levels[operand])
                                    : NameOf(operand, levels[operand]);
    }
  }
  return text;
}

int64_t NumNumbers(const Program& program) {
  int64_t count = 0;
  for (const Node& node : program.nodes)
    if (node.op == Op::kNumber) count = std::max<int64_t>(count, node.args[0] + 1);
  return count;
}

std::string Parameter(const Program& program, const Signature& signature) {
  std::string text = "struct Arguments {\n  long long count, length;\n";
  const auto array = [&](const std::string& name, int64_t size) {
    if (size > 0) text += name + "[" + std::to_string(size) + "];\n";
  };
  array("  long long sizes", signature.num_dims);
  array("  long long row_sizes", signature.num_row_dims);
  for (size_t i = 0; i < signature.inputs.size(); ++i) {
    const Signature::Input& input = signature.inputs[i];
    const std::string index = std::to_string(i);
    text += std::string("  const ") + TypeName(input.dtype) + "* input" + index + ";\n";
    if (input.access == Access::kStrided)
      array("  long long strides" + index,
            input.is_row ? signature.num_row_dims : signature.num_dims);
  }
  for (size_t i = 0; i < signature.results.size(); ++i)
    text +=
        std::string("  ") + TypeName(signature.results[i]) + "* result" + std::to_string(i) + ";\n";
  array("  double numbers", NumNumbers(program));
  return text + "};\n";
}

// Returns the lines that compute the numbers that all elements share. Each thread runs them once.
std::string Uniforms(const Program& program, const std::vector<Level>& levels) {
  std::string text;
  for (size_t i = 0; i < program.nodes.size(); ++i) {
    if (levels[i] != Level::kUniform) continue;
    const Node& node = program.nodes[i];
    text += "  const double u" + std::to_string(i) + " = ";
    if (node.op == Op::kConstant)
      text += ConstantOf(node.value);
    else if (node.op == Op::kNumber)
      text += "a.numbers[" + std::to_string(node.args[0]) + "]";
    else if (node.op == Op::kLength)
      text += "(double)a.length";
    else
      text += Expression(node, levels, Level::kUniform);
    text += ";\n";
  }
  return text;
}

// The place in memory of each strided input, of the row `row` or of element `i`.
std::string Places(const Signature& signature, bool of_row, const std::string& indent) {
  std::string declarations, steps;
  for (size_t i = 0; i < signature.inputs.size(); ++i) {
    const Signature::Input& input = signature.inputs[i];
    if (input.access != Access::kStrided || input.is_row != of_row) continue;
    const std::string index = std::to_string(i);
    declarations += indent + "long long at" + index + " = 0;\n";
    steps += indent + "  at" + index + " += index * a.strides" + index + "[dim];\n";
  }
  if (steps.empty()) return "";
  const int64_t num_dims = of_row ? signature.num_row_dims : signature.num_dims;
  const std::string rest = of_row ? "rest_of_row" : "rest";
  return declarations + indent + "Index " + rest + " = " + (of_row ? "row" : "i") + ";\n" + indent +
         "for (int dim = " + std::to_string(num_dims - 1) + "; dim >= 0; --dim) {\n" + indent +
         "  const Index size = (Index)a." + (of_row ? "row_" : "") + "sizes[dim];\n" + indent +
         "  const long long index = " + rest + " % size;\n" + indent + "  " + rest + " /= size;\n" +
         steps + indent + "}\n";
}

std::string LoadOf(const Signature& signature, int32_t input) {
  const Access access = signature.inputs[input].access;
  const std::string index = std::to_string(input);
  const std::string at = access == Access::kStrided       ? "at" + index
                         : access == Access::kUniform     ? "0"
                         : signature.inputs[input].is_row ? "row"
                                                          : "i";
  return "Load(a.input" + index + "[" + at + "])";
}

// The statements that compute those numbers of element `i` which are marked.
std::string Elements(const Program& program, const Signature& signature,
                     const std::vector<Level>& levels, const std::vector<bool>& marked,
                     const std::string& indent) {
  std::string text = Places(signature, /*of_row=*/false, indent);
  for (size_t i = 0; i < program.nodes.size(); ++i) {
    if (!marked[i] || levels[i] != Level::kFull) continue;
    const Node& node = program.nodes[i];
    text += indent + "const Acc v" + std::to_string(i) + " = " +
            (node.op == Op::kInput ? "(Acc)" + LoadOf(signature, node.args[0])
                                   : Expression(node, levels, Level::kFull)) +
            ";\n";
  }
  return text;
}

std::string StoreOf(const std::string& number, size_t result, const char* at) {
  return "Store(" + number + ", a.result" + std::to_string(result) + " + " + at + ");\n";
}

// One element in each turn of the loop.
std::string LoopOverElements(const Program& program, const Signature& signature) {
  const std::vector<Level> levels = LevelsOf(program);
  std::string text =
      "  const Index step = (Index)gridDim.x * blockDim.x;\n"
      "  for (Index i = (Index)blockIdx.x * blockDim.x + threadIdx.x; i < (Index)a.count; "
      "i += step) {\n" +
      Elements(program, signature, levels, std::vector<bool>(program.nodes.size(), true), "    ");
  for (size_t i = 0; i < program.results.size(); ++i)
    text += "    " + StoreOf(Element(program.results[i], levels[program.results[i]]), i, "i");
  return text + "  }\n";
}

// The passes over the elements of the row `row`. Each computes again what it needs of an element:
// that costs less than memory for it.
class Passes {
 public:
  Passes(const Program& program, const Signature& signature)
      : program_(program),
        signature_(signature),
        levels_(LevelsOf(program)),
        phases_(FirstPhases(program)) {}

  std::string Text() {
    const int32_t last = *std::max_element(phases_.begin(), phases_.end());
    for (int32_t phase = 0; phase <= last; ++phase) {
      ComputeRow(phase);
      OverElements(phase);
    }
    std::string stores;
    for (size_t i = 0; i < program_.results.size(); ++i) {
      const int32_t node = program_.results[i];
      if (program_.row_results[i])
        stores += "      " + StoreOf(NameOf(node, levels_[node]), i, "row");
    }
    if (!stores.empty()) text_ += "    if (threadIdx.x == 0) {\n" + stores + "    }\n";
    return text_;
  }

 private:
  // Adds the numbers of the row that are computed from those of earlier phases. OverElements adds
  // reductions, at the end of the phase before.
  void ComputeRow(int32_t phase) {
    for (size_t i = 0; i < program_.nodes.size(); ++i) {
      const Node& node = program_.nodes[i];
      if (levels_[i] != Level::kRow || phases_[i] != phase || IsReduction(node.op)) continue;
      text_ += "    const double r" + std::to_string(i) + " = " +
               (node.op == Op::kRowInput ? LoadOf(signature_, node.args[0])
                                         : Expression(node, levels_, Level::kRow)) +
               ";\n";
    }
  }

  // Adds a loop over the row's elements: the reductions that end with this phase, and the results
  // that need no later one.
  void OverElements(int32_t phase) {
    std::vector<bool> marked(program_.nodes.size());
    std::string starts, turns, ends;
    for (size_t i = 0; i < program_.nodes.size(); ++i) {
      const Node& node = program_.nodes[i];
      if (!IsReduction(node.op) || phases_[i] != phase + 1) continue;
      const int32_t operand = node.args[0];
      marked[operand] = true;
      const std::string index = std::to_string(i);
      const bool is_extreme = node.op == Op::kAmax || node.op == Op::kAmin;
      const std::string both = node.op == Op::kAmax   ? "Larger"
                               : node.op == Op::kAmin ? "Smaller"
                                                      : "Sum";
      const double none = node.op == Op::kAmax ? -INFINITY : node.op == Op::kAmin ? INFINITY : 0;
      starts += "    double s" + index + " = " + ConstantOf(none) + ";\n";
      turns += "      s" + index + " = " + both + "(s" + index + ", (double)" +
               Element(operand, levels_[operand]) + ");\n";
      ends += "    const double r" + index + " = OfBlock<" + both + (is_extreme ? "<double>" : "") +
              ">(s" + index + ", of_warps)" + (node.op == Op::kMean ? " / (double)a.length" : "") +
              ";\n";
    }
    for (size_t i = 0; i < program_.results.size(); ++i) {
      const int32_t node = program_.results[i];
      if (program_.row_results[i] || phases_[node] != phase) continue;
      marked[node] = true;
      turns += "      " + StoreOf(Element(node, levels_[node]), i, "i");
    }
    if (turns.empty()) return;
    for (size_t i = program_.nodes.size(); i-- > 0;) {
      const Node& node = program_.nodes[i];
      for (int j = 0; marked[i] && !IsReduction(node.op) && j < NumOperands(node.op); ++j)
        marked[node.args[j]] = true;
    }
    text_ += starts +
             "    for (Index column = threadIdx.x; column < (Index)a.length; "
             "column += blockDim.x) {\n"
             "      const Index i = row * (Index)a.length + column;\n" +
             Elements(program_, signature_, levels_, marked, "      ") + turns + "    }\n" + ends;
  }

  const Program& program_;
  const Signature& signature_;
  const std::vector<Level> levels_;
  const std::vector<int32_t> phases_;
  std::string text_;
};

// A row in each turn of the loop.
std::string LoopOverRows(const Program& program, const Signature& signature) {
  return "  __shared__ double of_warps[32];\n"
         "  for (Index row = blockIdx.x; row < (Index)a.count; row += gridDim.x) {\n" +
         Places(signature, /*of_row=*/true, "    ") + Passes(program, signature).Text() + "  }\n";
}

}  // namespace

Signature SignatureOf(int64_t num_elements, at::ArrayRef<InputMemory> inputs,
                      at::ArrayRef<ResultMemory> results) {
  Signature signature;
  signature.is_large = num_elements > INT32_MAX;
  for (const InputMemory& input : inputs) {
    signature.inputs.push_back({input.dtype, input.access, input.is_row});
    if (input.access == Access::kStrided)
      (input.is_row ? signature.num_row_dims : signature.num_dims) = input.num_dims;
  }
  for (const ResultMemory& result : results) signature.results.push_back(result.dtype);
  return signature;
}

std::string SourceOf(const Program& program, const Signature& signature, const std::string& name) {
  const bool has_rows = NeedsRows(program);
  return std::string("typedef ") + (program.wide ? "double" : "float") +
         " Acc;\ntypedef unsigned " + (signature.is_large ? "long long" : "int") + " Index;\n" +
         kPrelude + (has_rows ? kReductions : "") + Parameter(program, signature) +
         "extern \"C\" __global__ void " + name + "(const Arguments a) {\n" +
         Uniforms(program, LevelsOf(program)) +
         (has_rows ? LoopOverRows(program, signature) : LoopOverElements(program, signature)) +
         "}\n";
}

std::vector<int64_t> ArgumentsOf(int64_t count, int64_t length, at::ArrayRef<InputMemory> inputs,
                                 at::ArrayRef<ResultMemory> results, at::ArrayRef<double> numbers) {
  std::vector<int64_t> words = {count, length};
  for (const bool of_rows : {false, true}) {
    const auto* const strided = std::find_if(inputs.begin(), inputs.end(), [&](const auto& input) {
      return input.access == Access::kStrided && input.is_row == of_rows;
    });
    if (strided != inputs.end())
      words.insert(words.end(), strided->sizes, strided->sizes + strided->num_dims);
  }
  for (const InputMemory& input : inputs) {
    words.push_back(reinterpret_cast<int64_t>(input.data));
    if (input.access == Access::kStrided)
      words.insert(words.end(), input.strides, input.strides + input.num_dims);
  }
  for (const ResultMemory& result : results)
    words.push_back(reinterpret_cast<int64_t>(result.data));
  for (const double number : numbers) {
    words.emplace_back();
    std::memcpy(&words.back(), &number, sizeof(number));
  }
  return words;
}

}  // namespace lockstep::kernels::pointwise::cuda
