// The steps of a program over a block of numbers: loading it, computing, storing it. Private to
// interpreter_cpu.cc, which is compiled three times; see there.

#ifndef LOCKSTEP_KERNELS_POINTWISE_BLOCKS_H_
#define LOCKSTEP_KERNELS_POINTWISE_BLOCKS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "ATen/cpu/vec/functional.h"
#include "c10/util/BFloat16.h"
#include "c10/util/Half.h"
#include "kernels/pointwise/interpreter.h"

namespace lockstep::kernels::pointwise::CPU_CAPABILITY {

// Layouts drop dimensions of size 1: a tensor whose size fits int64_t has fewer others.
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

// The numbers of a block. Computes with Acc, which is float or double.
template <typename Acc>
struct Blocks {
  using Vec = at::vec::Vectorized<Acc>;
  static constexpr int64_t kLanes = Vec::size();
  static constexpr at::ScalarType kAccType =
      std::is_same_v<Acc, double> ? at::ScalarType::Double : at::ScalarType::Float;

  struct Slot {
    Acc* data;
    int64_t stride;  // 0: one vector, which stands for all
  };

  template <typename T>
  static constexpr bool kConvertsByVectors =
      at::vec::is_reduced_floating_point_v<T>&& std::is_same_v<Acc, float>;

  static void Fill(Acc number, Slot* slot) {
    Vec(number).store(slot->data);
    slot->stride = 0;
  }

  // --- Memory

  // Returns where element `at` is, and its index.
  static int64_t Seek(const InputMemory& input, int64_t at, int64_t* index) {
    int64_t offset = 0;
    for (int64_t dim = input.num_dims - 1; dim >= 0; --dim) {
      index[dim] = at % input.sizes[dim];
      at /= input.sizes[dim];
      offset += index[dim] * input.strides[dim];
    }
    return offset;
  }

  // Returns the block of an input if it can be read where it lies, or nullptr. Whole vectors are
  // read.
  static Acc* InPlace(const InputMemory& input, int64_t at, int64_t count) {
    if (input.dtype != kAccType || count % kLanes != 0) return nullptr;
    int64_t offset = at;
    if (input.access == Access::kStrided) {
      const int64_t inner = input.num_dims - 1;
      int64_t index[kMostDims];
      if (input.strides[inner] != 1) return nullptr;
      offset = Seek(input, at, index);
      if (index[inner] + count > input.sizes[inner]) return nullptr;
    }
    // It is only read.
    return const_cast<Acc*>(static_cast<const Acc*>(input.data)) + offset;
  }

  // Loads a block into the slot, whose own memory is `own`.
  static void LoadSlot(const InputMemory& input, int64_t at, int64_t count, Acc* own, Slot* slot) {
    slot->data = InPlace(input, at, count);
    if (slot->data != nullptr) return;
    slot->data = own;
    Load(input, at, count, own);
  }

  // Makes the slot a block of the result itself, if that takes whole vectors.
  static void PlaceResult(const ResultMemory& result, int64_t at, int64_t count, Acc* own,
                          Slot* slot) {
    const bool is_direct = result.dtype == kAccType && count % kLanes == 0;
    slot->data = is_direct ? static_cast<Acc*>(result.data) + at : own;
  }

  static void StoreSlot(const Slot& slot, const ResultMemory& result, int64_t at, int64_t count) {
    if (result.dtype != kAccType || count % kLanes != 0) Store(slot.data, result, at, count);
  }

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
  static void LoadStrided(const InputMemory& input, int64_t at, int64_t count, Acc* to) {
    const int64_t inner = input.num_dims - 1;
    int64_t index[kMostDims];
    int64_t offset = Seek(input, at, index);
    const int64_t stride = input.strides[inner];
    while (true) {
      const T* from = static_cast<const T*>(input.data) + offset;
      const int64_t length = std::min(count, input.sizes[inner] - index[inner]);
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
        if (++index[dim] < input.sizes[dim]) break;
        offset -= index[dim] * input.strides[dim];
        index[dim] = 0;
      }
    }
  }

  template <typename T>
  static void LoadAs(const InputMemory& input, int64_t at, int64_t count, Acc* to) {
    if (input.access == Access::kStrided)
      LoadStrided<T>(input, at, count, to);
    else
      LoadFlat(static_cast<const T*>(input.data) + at, count, to);
  }

  static void Load(const InputMemory& input, int64_t at, int64_t count, Acc* to) {
    switch (input.dtype) {
      case at::ScalarType::Float: return LoadAs<float>(input, at, count, to);
      case at::ScalarType::Double: return LoadAs<double>(input, at, count, to);
      case at::ScalarType::BFloat16: return LoadAs<c10::BFloat16>(input, at, count, to);
      case at::ScalarType::Half: return LoadAs<c10::Half>(input, at, count, to);
      default: return LoadAs<bool>(input, at, count, to);
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
      default: return StoreAs(from, static_cast<bool*>(result.data) + at, count);
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
      case Op::kCopy: return unary([](const Vec& x) { return x; });
      case Op::kNeg: return unary([](const Vec& x) { return x.neg(); });
      case Op::kAbs: return unary([](const Vec& x) { return x.abs(); });
      case Op::kExp: return unary([](const Vec& x) { return x.exp(); });
      case Op::kLog: return unary([](const Vec& x) { return x.log(); });
      case Op::kSqrt: return unary([](const Vec& x) { return x.sqrt(); });
      case Op::kRsqrt: return unary([&](const Vec& x) { return one / x.sqrt(); });
      case Op::kReciprocal: return unary([&](const Vec& x) { return one / x; });
      case Op::kSigmoid: return unary([&](const Vec& x) { return one / (one + x.neg().exp()); });
      case Op::kSilu: return unary([&](const Vec& x) { return x / (one + x.neg().exp()); });
      case Op::kRelu: return unary([](const Vec& x) { return at::vec::maximum(x, Vec(Acc(0))); });
      case Op::kTanh: return unary([](const Vec& x) { return x.tanh(); });
      case Op::kErf: return unary([](const Vec& x) { return Erf(x); });
      case Op::kSin: return unary([](const Vec& x) { return x.sin(); });
      case Op::kCos: return unary([](const Vec& x) { return x.cos(); });
      case Op::kAdd: return binary([](const Vec& a, const Vec& b) { return a + b; });
      case Op::kSub: return binary([](const Vec& a, const Vec& b) { return a - b; });
      case Op::kMul: return binary([](const Vec& a, const Vec& b) { return a * b; });
      case Op::kDiv: return binary([](const Vec& a, const Vec& b) { return a / b; });
      case Op::kPow: return binary([](const Vec& a, const Vec& b) { return a.pow(b); });
      case Op::kMaximum:
      case Op::kClampMin:
        return binary([](const Vec& a, const Vec& b) { return at::vec::maximum(a, b); });
      case Op::kMinimum:
      case Op::kClampMax:
        return binary([](const Vec& a, const Vec& b) { return at::vec::minimum(a, b); });
      case Op::kLess: return binary([](const Vec& a, const Vec& b) { return a.lt(b); });
      case Op::kLessEqual: return binary([](const Vec& a, const Vec& b) { return a.le(b); });
      case Op::kEqual: return binary([](const Vec& a, const Vec& b) { return a.eq(b); });
      case Op::kNotEqual: return binary([](const Vec& a, const Vec& b) { return a.ne(b); });
      case Op::kWhere: return Where(step, slots, count);
      case Op::kMulAdd: return MulAdd(step, slots, count);
      default: return;  // no step has them
    }
  }
};

}  // namespace lockstep::kernels::pointwise::CPU_CAPABILITY

#endif  // LOCKSTEP_KERNELS_POINTWISE_BLOCKS_H_
