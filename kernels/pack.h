// Two vectors of numbers to compute with, as arithmetic.h wants them. Private to rows_cpu.cc,
// generation_cpu.cc and few_bits/dequantize_cpu.cc, which are compiled once for each instruction
// set. Everything here is in a namespace of that set's name, so that the linker never gives one
// set's code to another.

#ifndef LOCKSTEP_KERNELS_PACK_H_
#define LOCKSTEP_KERNELS_PACK_H_

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "ATen/cpu/vec/functional.h"
#include "kernels/loops.h"

namespace lockstep::kernels::CPU_CAPABILITY {

// The numbers are loaded from and stored to memory as T. They are computed with as Acc.
template <typename T>
struct Pack {
  static constexpr bool kIsReduced = at::vec::is_reduced_floating_point_v<T>;
  using Acc = std::conditional_t<kIsReduced, float, T>;
  using Vec = at::vec::Vectorized<Acc>;
  static constexpr int64_t kHalf = Vec::size();
  static constexpr int64_t kSize = 2 * kHalf;

  Vec a, b;

  Pack(const Vec& first, const Vec& second) : a(first), b(second) {}
  explicit Pack(Acc number) : a(number), b(number) {}

  template <typename Amount>
  static Pack Load(const T* from, Amount amount) {
    if constexpr (kIsReduced) {
      return FromStored(LoadStored(from, amount));
    } else {
      return LoadAcc(from, amount);
    }
  }

  static Pack LoadAcc(const Acc* from, Whole) {
    return {Vec::loadu(from), Vec::loadu(from + kHalf)};
  }
  static Pack LoadAcc(const Acc* from, First part) {
    if (part.count <= kHalf) return {Vec::loadu(from, part.count), Vec(Acc(0))};
    // The minimum is for gcc, which warns of a count that ForEachPack never gives.
    return {Vec::loadu(from), Vec::loadu(from + kHalf, std::min(part.count - kHalf, kHalf))};
  }

  template <typename Amount>
  void Store(T* to, Amount amount) const {
    if constexpr (kIsReduced) {
      StoreStored(at::vec::convert_from_float<T>(a, b), to, amount);
    } else {
      StoreAcc(to, amount);
    }
  }

  void StoreAcc(Acc* to, Whole) const {
    a.store(to);
    b.store(to + kHalf);
  }
  void StoreAcc(Acc* to, First part) const {
    a.store(to, static_cast<int>(std::min(part.count, kHalf)));
    if (part.count > kHalf) b.store(to + kHalf, static_cast<int>(part.count - kHalf));
  }

  // Returns the sum of all numbers, added up in pairs.
  Acc Total() const {
    Acc numbers[kHalf];
    (a + b).store(numbers);
    for (int64_t half = kHalf / 2; half > 0; half /= 2) {
      for (int64_t i = 0; i < half; ++i) numbers[i] += numbers[i + half];
    }
    return numbers[0];
  }

  // The same numbers, to be stored as To.
  template <typename To>
  Pack<To> As() const {
    return {a, b};
  }

  static Pack FromStored(const at::vec::Vectorized<T>& stored) {
    const auto [first, second] = at::vec::convert_to_float<T>(stored);
    return {first, second};
  }

 private:
  using Stored = at::vec::Vectorized<T>;

  static Stored LoadStored(const T* from, Whole) { return Stored::loadu(from); }
  static Stored LoadStored(const T* from, First part) {
    return Stored::loadu(from, static_cast<int16_t>(part.count));
  }
  static void StoreStored(const Stored& stored, T* to, Whole) { stored.store(to); }
  static void StoreStored(const Stored& stored, T* to, First part) {
    stored.store(to, static_cast<int>(part.count));
  }
};

template <typename T>
Pack<T> operator+(const Pack<T>& x, const Pack<T>& y) {
  return {x.a + y.a, x.b + y.b};
}
template <typename T>
Pack<T> operator-(const Pack<T>& x, const Pack<T>& y) {
  return {x.a - y.a, x.b - y.b};
}
template <typename T>
Pack<T> operator*(const Pack<T>& x, const Pack<T>& y) {
  return {x.a * y.a, x.b * y.b};
}
template <typename T>
Pack<T> operator/(const Pack<T>& x, const Pack<T>& y) {
  return {x.a / y.a, x.b / y.b};
}
template <typename T>
Pack<T> Exp(const Pack<T>& x) {
  return {x.a.exp(), x.b.exp()};
}
template <typename T>
Pack<T> Sqrt(const Pack<T>& x) {
  return {x.a.sqrt(), x.b.sqrt()};
}

template <typename T>
Pack<T> Rounded(const Pack<T>& x) {
  if constexpr (Pack<T>::kIsReduced) {
    return Pack<T>::FromStored(at::vec::convert_from_float<T>(x.a, x.b));
  } else {
    return x;
  }
}

// Returns the first numbers of `from`, as many as a vector has.
inline at::vec::Vectorized<float> LoadBytes(const int8_t* from) {
#if defined(CPU_CAPABILITY_AVX512)
  return _mm512_cvtepi32_ps(
      _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#elif defined(CPU_CAPABILITY_AVX2)
  return _mm256_cvtepi32_ps(
      _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#else
  float numbers[at::vec::Vectorized<float>::size()];
  std::copy_n(from, at::vec::Vectorized<float>::size(), numbers);
  return at::vec::Vectorized<float>::loadu(numbers);
#endif
}

// The Machine of loops.h: one thread.
struct Cpu {
  template <typename T>
  using Pack = CPU_CAPABILITY::Pack<T>;

  template <typename T, typename Visit>
  void ForEachPack(int64_t length, const Visit& visit) const {
    int64_t offset = 0;
    for (; offset + Pack<T>::kSize <= length; offset += Pack<T>::kSize) visit(offset, Whole{});
    if (offset < length) visit(offset, First{length - offset});
  }

  template <typename P>
  typename P::Acc Total(const P& pack) const {
    return pack.Total();
  }

  template <typename Make>
  auto Once(const Make& make) const {
    return make();
  }
};

}  // namespace lockstep::kernels::CPU_CAPABILITY

#endif  // LOCKSTEP_KERNELS_PACK_H_
