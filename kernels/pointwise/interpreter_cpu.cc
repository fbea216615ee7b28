// Compiled three times, with other flags and another CPU_CAPABILITY each time: see BUILD, and
// kernels/rows_cpu.cc on why it includes as little as it can.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "ATen/cpu/vec/functional.h"
#include "c10/util/BFloat16.h"
#include "c10/util/Half.h"
#include "kernels/pointwise/interpreter.h"

namespace lockstep::kernels::pointwise::CPU_CAPABILITY {
namespace {

// The size of a float64 tensor's dimensions is at most ATen's limit.
constexpr int64_t kMostDims = 64;

// ATen's vectors of float have an erf with twelve times the error of the one that its operator
// takes from MKL. Sleef's is as good.
template <typename Vec>
Vec Erf(const Vec& x) {
  return x.erf();
}
#if defined(CPU_CAPABILITY_AVX512)
inline at::vec::Vectorized<float> Erf(const at::vec::Vectorized<float>& x) {
  return Sleef_erff16_u10(x);
}
#elif defined(CPU_CAPABILITY_AVX2)
inline at::vec::Vectorized<float> Erf(const at::vec::Vectorized<float>& x) {
  return Sleef_erff8_u10(x);
}
#endif

// Computes with Acc, which is float or double.
template <typename Acc>
class Interpreter {
  using Vec = at::vec::Vectorized<Acc>;
  static constexpr int64_t kLanes = Vec::size();

  struct Slot {
    Acc* data;
    int64_t stride;  // 0: one vector, which stands for all
  };

  template <typename T>
  static constexpr bool kConvertsByVectors =
      at::vec::is_reduced_floating_point_v<T>&& std::is_same_v<Acc, float>;

 public:
  static void Range(const Execution& run, int64_t begin, int64_t end, Acc* scratch) {
    Slot slots[kMostSlots];
    const int64_t num_slots = NumSlots(run);
    const int64_t first_result = run.num_inputs + run.num_uniforms;
    for (int64_t i = 0; i < num_slots; ++i) slots[i] = {scratch + i * kSlotNumbers, 1};
    for (int64_t i = 0; i < run.num_uniforms; ++i)
      Fill(static_cast<Acc>(run.uniforms[i]), &slots[run.num_inputs + i]);
    for (int64_t i = 0; i < run.num_inputs; ++i) {
      if (run.inputs[i].access != Access::kUniform) continue;
      Load(run, run.inputs[i], 0, 1, slots[i].data);
      Fill(slots[i].data[0], &slots[i]);
    }
    for (int64_t at = begin; at < end; at += kBlock) {
      const int64_t count = std::min(kBlock, end - at);
      const bool is_whole = count % kLanes == 0;  // else vectors would reach beyond the memory
      for (int64_t i = 0; i < run.num_inputs; ++i) {
        const InputMemory& input = run.inputs[i];
        if (input.access == Access::kUniform) continue;
        if (input.access == Access::kFlat && input.dtype == kAccType && is_whole) {
          // It is only read.
          slots[i].data = const_cast<Acc*>(static_cast<const Acc*>(input.data)) + at;
        } else {
          slots[i].data = scratch + i * kSlotNumbers;
          Load(run, input, at, count, slots[i].data);
        }
      }
      for (int64_t i = 0; i < run.num_results; ++i) {
        const bool is_direct = run.results[i].dtype == kAccType && is_whole;
        const int64_t slot = first_result + i;
        slots[slot].data =
            is_direct ? static_cast<Acc*>(run.results[i].data) + at : scratch + slot * kSlotNumbers;
      }
      for (int64_t i = 0; i < run.num_steps; ++i) Execute(run.steps[i], slots, count);
      for (int64_t i = 0; i < run.num_results; ++i) {
        if (run.results[i].dtype != kAccType || !is_whole)
          Store(slots[first_result + i].data, run.results[i], at, count);
      }
    }
  }

 private:
  static constexpr at::ScalarType kAccType =
      std::is_same_v<Acc, double> ? at::ScalarType::Double : at::ScalarType::Float;

  static void Fill(Acc number, Slot* slot) {
    Vec(number).store(slot->data);
    slot->stride = 0;
  }

  // --- Memory

  // May write up to two vectors beyond `to + count`.
  template <typename T>
  static void LoadFlat(const T* from, int64_t count, Acc* to) {
    if constexpr (std::is_same_v<T, Acc>) {
      std::memcpy(to, from, count * sizeof(T));
    } else if constexpr (kConvertsByVectors<T>) {
      using Stored = at::vec::Vectorized<T>;
      for (int64_t i = 0; i < count; i += 2 * kLanes) {
        const Stored stored =
            i + 2 * kLanes <= count
                ? Stored::loadu(from + i)
                : Stored::loadu(from + i, static_cast<int16_t>(std::min(count - i, 2 * kLanes)));
        const auto [first, second] = at::vec::convert_to_float<T>(stored);
        first.store(to + i);
        second.store(to + i + kLanes);
      }
    } else {
      for (int64_t i = 0; i < count; ++i) to[i] = static_cast<Acc>(from[i]);
    }
  }

  template <typename T>
  static void LoadStrided(const Execution& run, const InputMemory& input, int64_t at, int64_t count,
                          Acc* to) {
    const int64_t inner = run.num_dims - 1;
    int64_t index[kMostDims], rest = at, offset = 0;
    for (int64_t dim = inner; dim >= 0; --dim) {
      index[dim] = rest % run.sizes[dim];
      rest /= run.sizes[dim];
      offset += index[dim] * input.strides[dim];
    }
    const int64_t stride = input.strides[inner];
    while (true) {
      const T* from = static_cast<const T*>(input.data) + offset;
      const int64_t length = std::min(count, run.sizes[inner] - index[inner]);
      if (stride == 1 && length >= kLanes) {
        LoadFlat(from, length, to);
      } else if (stride == 0) {
        std::fill_n(to, length, static_cast<Acc>(*from));
      } else {
        for (int64_t i = 0; i < length; ++i) to[i] = static_cast<Acc>(from[i * stride]);
      }
      count -= length;
      if (count == 0) return;
      to += length;
      offset -= index[inner] * stride;
      index[inner] = 0;
      for (int64_t dim = inner - 1; dim >= 0; --dim) {
        offset += input.strides[dim];
        if (++index[dim] < run.sizes[dim]) break;
        offset -= index[dim] * input.strides[dim];
        index[dim] = 0;
      }
    }
  }

  template <typename T>
  static void LoadAs(const Execution& run, const InputMemory& input, int64_t at, int64_t count,
                     Acc* to) {
    if (input.access == Access::kStrided)
      LoadStrided<T>(run, input, at, count, to);
    else
      LoadFlat(static_cast<const T*>(input.data) + at, count, to);
  }

  static void Load(const Execution& run, const InputMemory& input, int64_t at, int64_t count,
                   Acc* to) {
    switch (input.dtype) {
      case at::ScalarType::Float:
        return LoadAs<float>(run, input, at, count, to);
      case at::ScalarType::Double:
        return LoadAs<double>(run, input, at, count, to);
      case at::ScalarType::BFloat16:
        return LoadAs<c10::BFloat16>(run, input, at, count, to);
      case at::ScalarType::Half:
        return LoadAs<c10::Half>(run, input, at, count, to);
      default:
        return LoadAs<bool>(run, input, at, count, to);
    }
  }

  template <typename T>
  static void StoreAs(const Acc* from, T* to, int64_t count) {
    if constexpr (std::is_same_v<T, Acc>) {
      std::memcpy(to, from, count * sizeof(T));
    } else if constexpr (kConvertsByVectors<T>) {
      for (int64_t i = 0; i < count; i += 2 * kLanes) {
        const auto stored =
            at::vec::convert_from_float<T>(Vec::loadu(from + i), Vec::loadu(from + i + kLanes));
        if (i + 2 * kLanes <= count)
          stored.store(to + i);
        else
          stored.store(to + i, static_cast<int>(std::min(count - i, 2 * kLanes)));
      }
    } else if constexpr (std::is_same_v<T, bool>) {
      for (int64_t i = 0; i < count; ++i) to[i] = from[i] != 0;
    } else {
      for (int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(static_cast<float>(from[i]));
    }
  }

  static void Store(const Acc* from, const ResultMemory& result, int64_t at, int64_t count) {
    switch (result.dtype) {
      case at::ScalarType::Float:
        return StoreAs(from, static_cast<float*>(result.data) + at, count);
      case at::ScalarType::Double:
        return StoreAs(from, static_cast<double*>(result.data) + at, count);
      case at::ScalarType::BFloat16:
        return StoreAs(from, static_cast<c10::BFloat16*>(result.data) + at, count);
      case at::ScalarType::Half:
        return StoreAs(from, static_cast<c10::Half*>(result.data) + at, count);
      default:
        return StoreAs(from, static_cast<bool*>(result.data) + at, count);
    }
  }

  // --- Steps

  template <typename Function>
  static void Unary(const Step& step, const Slot* slots, int64_t count, const Function& function) {
    const Slot a = slots[step.args[0]];
    Acc* const to = slots[step.to].data;
    for (int64_t i = 0; i < count; i += kLanes)
      function(Vec::loadu(a.data + i * a.stride)).store(to + i);
  }

  template <typename Function>
  static void Binary(const Step& step, const Slot* slots, int64_t count, const Function& function) {
    const Slot a = slots[step.args[0]], b = slots[step.args[1]];
    Acc* const to = slots[step.to].data;
    for (int64_t i = 0; i < count; i += kLanes)
      function(Vec::loadu(a.data + i * a.stride), Vec::loadu(b.data + i * b.stride)).store(to + i);
  }

  static void Where(const Step& step, const Slot* slots, int64_t count) {
    const Slot a = slots[step.args[0]], b = slots[step.args[1]], c = slots[step.args[2]];
    Acc* const to = slots[step.to].data;
    const Vec zero(Acc(0));
    for (int64_t i = 0; i < count; i += kLanes) {
      const Vec is_yes = Vec::loadu(a.data + i * a.stride) != zero;
      Vec::blendv(Vec::loadu(c.data + i * c.stride), Vec::loadu(b.data + i * b.stride), is_yes)
          .store(to + i);
    }
  }

  static void MulAdd(const Step& step, const Slot* slots, int64_t count) {
    const Slot a = slots[step.args[0]], b = slots[step.args[1]], c = slots[step.args[2]];
    Acc* const to = slots[step.to].data;
    for (int64_t i = 0; i < count; i += kLanes)
      at::vec::fmadd(Vec::loadu(a.data + i * a.stride), Vec::loadu(b.data + i * b.stride),
                     Vec::loadu(c.data + i * c.stride))
          .store(to + i);
  }

  static void Execute(const Step& step, const Slot* slots, int64_t count) {
    const auto unary = [&](const auto& function) { Unary(step, slots, count, function); };
    const auto binary = [&](const auto& function) { Binary(step, slots, count, function); };
    const Vec one(Acc(1));
    switch (step.op) {
      case Op::kCopy:
        return unary([](const Vec& x) { return x; });
      case Op::kNeg:
        return unary([](const Vec& x) { return x.neg(); });
      case Op::kAbs:
        return unary([](const Vec& x) { return x.abs(); });
      case Op::kExp:
        return unary([](const Vec& x) { return x.exp(); });
      case Op::kLog:
        return unary([](const Vec& x) { return x.log(); });
      case Op::kSqrt:
        return unary([](const Vec& x) { return x.sqrt(); });
      case Op::kRsqrt:
        return unary([&](const Vec& x) { return one / x.sqrt(); });
      case Op::kReciprocal:
        return unary([&](const Vec& x) { return one / x; });
      case Op::kSigmoid:
        return unary([&](const Vec& x) { return one / (one + x.neg().exp()); });
      case Op::kSilu:
        return unary([&](const Vec& x) { return x / (one + x.neg().exp()); });
      case Op::kRelu:
        return unary([](const Vec& x) { return at::vec::maximum(x, Vec(Acc(0))); });
      case Op::kTanh:
        return unary([](const Vec& x) { return x.tanh(); });
      case Op::kErf:
        return unary([](const Vec& x) { return Erf(x); });
      case Op::kSin:
        return unary([](const Vec& x) { return x.sin(); });
      case Op::kCos:
        return unary([](const Vec& x) { return x.cos(); });
      case Op::kAdd:
        return binary([](const Vec& a, const Vec& b) { return a + b; });
      case Op::kSub:
        return binary([](const Vec& a, const Vec& b) { return a - b; });
      case Op::kMul:
        return binary([](const Vec& a, const Vec& b) { return a * b; });
      case Op::kDiv:
        return binary([](const Vec& a, const Vec& b) { return a / b; });
      case Op::kPow:
        return binary([](const Vec& a, const Vec& b) { return a.pow(b); });
      case Op::kMaximum:
      case Op::kClampMin:
        return binary([](const Vec& a, const Vec& b) { return at::vec::maximum(a, b); });
      case Op::kMinimum:
      case Op::kClampMax:
        return binary([](const Vec& a, const Vec& b) { return at::vec::minimum(a, b); });
      case Op::kLess:
        return binary([](const Vec& a, const Vec& b) { return a.lt(b); });
      case Op::kLessEqual:
        return binary([](const Vec& a, const Vec& b) { return a.le(b); });
      case Op::kEqual:
        return binary([](const Vec& a, const Vec& b) { return a.eq(b); });
      case Op::kNotEqual:
        return binary([](const Vec& a, const Vec& b) { return a.ne(b); });
      case Op::kWhere:
        return Where(step, slots, count);
      case Op::kMulAdd:
        return MulAdd(step, slots, count);
      case Op::kInput:
      case Op::kNumber:
      case Op::kConstant:
        return;  // no step has them
    }
  }
};

}  // namespace

extern const Interpreters kInterpreters;
const Interpreters kInterpreters = {Interpreter<float>::Range, Interpreter<double>::Range};

}  // namespace lockstep::kernels::pointwise::CPU_CAPABILITY
