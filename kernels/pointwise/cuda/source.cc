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

__device__ void Store(Acc x, float* to) { *to = (float)x; }
__device__ void Store(Acc x, double* to) { *to = x; }
__device__ void Store(Acc x, bool* to) { *to = x != 0; }
__device__ void Store(Acc x, BFloat16* to) {
  const float value = (float)x;
  const unsigned bits = __float_as_uint(value);
  to->bits = value != value ? 0x7fc0 : (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
__device__ void Store(Acc x, Half* to) {
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

// Returns the formula of a node. Uniform numbers are variables u0, u1 and so on, others v0, v1.
std::string Expression(const Node& node, const std::vector<Level>& levels, const char* type) {
  std::string text;
  for (const char* at = FormulaOf(node.op); *at != '\0'; ++at) {
    if (*at == 'T') {
      text += type;
    } else if (*at != '$') {
      text += *at;
    } else {
      const int32_t operand = node.args[*++at - '0'];
      const bool is_uniform = levels[operand] == Level::kUniform;
      text += is_uniform ? std::string("(") + type + ")u" : "v";
      text += std::to_string(operand);
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
  std::string text = "struct Arguments {\n  long long count;\n";
  const std::string dims = "[" + std::to_string(signature.num_dims) + "];\n";
  if (signature.num_dims > 0) text += "  long long sizes" + dims;
  for (size_t i = 0; i < signature.inputs.size(); ++i) {
    const std::string index = std::to_string(i);
    text +=
        std::string("  const ") + TypeName(signature.inputs[i].dtype) + "* input" + index + ";\n";
    if (signature.inputs[i].access == Access::kStrided)
      text += "  long long strides" + index + dims;
  }
  for (size_t i = 0; i < signature.results.size(); ++i)
    text +=
        std::string("  ") + TypeName(signature.results[i]) + "* result" + std::to_string(i) + ";\n";
  const int64_t num_numbers = NumNumbers(program);
  if (num_numbers > 0) text += "  double numbers[" + std::to_string(num_numbers) + "];\n";
  return text + "};\n";
}

// Numbers that are the same for all elements are computed once for each thread, in float64.
std::string Uniforms(const Program& program, const std::vector<Level>& levels) {
  std::string text;
  for (size_t i = 0; i < program.nodes.size(); ++i) {
    if (levels[i] != Level::kUniform) continue;
    const Node& node = program.nodes[i];
    const std::string index = std::to_string(i);
    const std::string value = node.op == Op::kConstant ? ConstantOf(node.value)
                              : node.op == Op::kNumber
                                  ? "a.numbers[" + std::to_string(node.args[0]) + "]"
                                  : Expression(node, levels, "double");
    text += "  const double u" + index + " = " + value + ";\n";
  }
  return text;
}

// The place of each strided input's element.
std::string Places(const Signature& signature) {
  std::string declarations, steps;
  for (size_t i = 0; i < signature.inputs.size(); ++i) {
    if (signature.inputs[i].access != Access::kStrided) continue;
    const std::string index = std::to_string(i);
    declarations += "    long long at" + index + " = 0;\n";
    steps += "      at" + index + " += index * a.strides" + index + "[dim];\n";
  }
  if (steps.empty()) return "";
  return declarations +
         "    Index rest = i;\n    for (int dim = " + std::to_string(signature.num_dims - 1) +
         "; dim >= 0; --dim) {\n      const Index size = (Index)a.sizes[dim];\n"
         "      const long long index = rest % size;\n      rest /= size;\n" +
         steps + "    }\n";
}

std::string LoadOf(const Signature& signature, int32_t input) {
  const Access access = signature.inputs[input].access;
  const std::string index = std::to_string(input);
  const std::string at = access == Access::kFlat      ? "i"
                         : access == Access::kUniform ? "0"
                                                      : "at" + index;
  return "(Acc)Load(a.input" + index + "[" + at + "])";
}

}  // namespace

std::string SourceOf(const Program& program, const Signature& signature, const std::string& name) {
  const std::vector<Level> levels = LevelsOf(program);
  std::string text = std::string("typedef ") + (program.wide ? "double" : "float") +
                     " Acc;\ntypedef unsigned " + (signature.is_large ? "long long" : "int") +
                     " Index;\n" + kPrelude + Parameter(program, signature) +
                     "extern \"C\" __global__ void " + name + "(const Arguments a) {\n" +
                     Uniforms(program, levels) +
                     "  const Index step = (Index)gridDim.x * blockDim.x;\n"
                     "  for (Index i = (Index)blockIdx.x * blockDim.x + threadIdx.x; i < "
                     "(Index)a.count; i += step) {\n" +
                     Places(signature);
  for (size_t i = 0; i < program.nodes.size(); ++i) {
    if (levels[i] == Level::kUniform) continue;
    const Node& node = program.nodes[i];
    TORCH_INTERNAL_ASSERT(levels[i] == Level::kFull, "pointwise: no source for reductions");
    text += "    const Acc v" + std::to_string(i) + " = " +
            (node.op == Op::kInput ? LoadOf(signature, node.args[0])
                                   : Expression(node, levels, "Acc")) +
            ";\n";
  }
  for (size_t i = 0; i < program.results.size(); ++i)
    text += "    Store(v" + std::to_string(program.results[i]) + ", a.result" + std::to_string(i) +
            " + i);\n";
  return text + "  }\n}\n";
}

std::vector<int64_t> ArgumentsOf(const Signature& signature, int64_t num_elements,
                                 at::IntArrayRef sizes, at::ArrayRef<InputMemory> inputs,
                                 at::ArrayRef<ResultMemory> results, at::ArrayRef<double> numbers) {
  std::vector<int64_t> words = {num_elements};
  words.insert(words.end(), sizes.begin(), sizes.begin() + signature.num_dims);
  for (const InputMemory& input : inputs) {
    words.push_back(reinterpret_cast<int64_t>(input.data));
    if (input.access == Access::kStrided)
      words.insert(words.end(), input.strides, input.strides + signature.num_dims);
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
