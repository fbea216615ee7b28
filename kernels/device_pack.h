// DevicePack: the eight numbers that one GPU thread computes with at a time. The formulas of
// arithmetic.h and the loops of loops.h are templates over a pack; pack.h has the packs of CPUs.

#ifndef LOCKSTEP_KERNELS_DEVICE_PACK_H_
#define LOCKSTEP_KERNELS_DEVICE_PACK_H_

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/loops.h"

namespace lockstep::kernels {

// Loads and stores numbers of type T, and computes with them in type Acc.
template <typename T>
struct DevicePack {
  using Acc = std::conditional_t<std::is_same_v<T, double>, double, float>;
  // 16 bytes of bfloat16 or float16: the most that a thread loads at once.
  static constexpr int64_t kSize = 8;

  Acc v[kSize];

  LOCKSTEP_DEVICE DevicePack() : v{} {}
  LOCKSTEP_DEVICE explicit DevicePack(Acc number) {
    for (Acc& place : v) place = number;
  }

  template <typename Amount>
  LOCKSTEP_DEVICE static DevicePack Load(const T* from, Amount amount) {
    return LoadFrom(from, amount);
  }
  template <typename Amount>
  LOCKSTEP_DEVICE static DevicePack LoadAcc(const Acc* from, Amount amount) {
    return LoadFrom(from, amount);
  }
  template <typename Amount>
  LOCKSTEP_DEVICE void Store(T* to, Amount amount) const {
    StoreTo(to, amount);
  }
  template <typename Amount>
  LOCKSTEP_DEVICE void StoreAcc(Acc* to, Amount amount) const {
    StoreTo(to, amount);
  }

  // Returns the sum of all numbers, added up in pairs.
  LOCKSTEP_DEVICE Acc Total() const {
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
  }

  // The same numbers, to be stored as To.
  template <typename To>
  LOCKSTEP_DEVICE DevicePack<To> As() const {
    DevicePack<To> result;
    for (int i = 0; i < kSize; ++i) result.v[i] = v[i];
    return result;
  }

 private:
  // 16 bytes of numbers, which move at once where their address allows it.
  template <typename From>
  struct alignas(16) Chunk {
    static constexpr int64_t kCount = 16 / sizeof(From);
    From x[kCount];
  };
  template <typename From>
  LOCKSTEP_DEVICE static bool IsAligned(const From* at) {
    return reinterpret_cast<uintptr_t>(at) % sizeof(Chunk<From>) == 0;
  }

  template <typename From>
  LOCKSTEP_DEVICE static DevicePack LoadFrom(const From* from, Whole) {
    if (!IsAligned(from)) return LoadFrom(from, First{kSize});
    constexpr int64_t kCount = Chunk<From>::kCount;
    DevicePack result;
    for (int i = 0; i < kSize; i += kCount) {
      const Chunk<From> chunk = *reinterpret_cast<const Chunk<From>*>(from + i);
      for (int j = 0; j < kCount; ++j) result.v[i + j] = static_cast<Acc>(chunk.x[j]);
    }
    return result;
  }
  template <typename From>
  LOCKSTEP_DEVICE static DevicePack LoadFrom(const From* from, First part) {
    DevicePack result;
    for (int i = 0; i < kSize; ++i)
      if (i < part.count) result.v[i] = static_cast<Acc>(from[i]);
    return result;
  }

  template <typename To>
  LOCKSTEP_DEVICE void StoreTo(To* to, Whole) const {
    if (!IsAligned(to)) return StoreTo(to, First{kSize});
    constexpr int64_t kCount = Chunk<To>::kCount;
    for (int i = 0; i < kSize; i += kCount) {
      Chunk<To> chunk;
      for (int j = 0; j < kCount; ++j) chunk.x[j] = static_cast<To>(v[i + j]);
      *reinterpret_cast<Chunk<To>*>(to + i) = chunk;
    }
  }
  template <typename To>
  LOCKSTEP_DEVICE void StoreTo(To* to, First part) const {
    for (int i = 0; i < kSize; ++i)
      if (i < part.count) to[i] = static_cast<To>(v[i]);
  }
};

// Returns a pack of call(i) for each of its places.
template <typename T, typename Call>
LOCKSTEP_DEVICE DevicePack<T> ForPlaces(const Call& call) {
  DevicePack<T> result;
  for (int i = 0; i < DevicePack<T>::kSize; ++i) result.v[i] = call(i);
  return result;
}

template <typename T>
LOCKSTEP_DEVICE DevicePack<T> operator+(const DevicePack<T>& x, const DevicePack<T>& y) {
  return ForPlaces<T>([&](int i) { return x.v[i] + y.v[i]; });
}
template <typename T>
LOCKSTEP_DEVICE DevicePack<T> operator-(const DevicePack<T>& x, const DevicePack<T>& y) {
  return ForPlaces<T>([&](int i) { return x.v[i] - y.v[i]; });
}
template <typename T>
LOCKSTEP_DEVICE DevicePack<T> operator*(const DevicePack<T>& x, const DevicePack<T>& y) {
  return ForPlaces<T>([&](int i) { return x.v[i] * y.v[i]; });
}
template <typename T>
LOCKSTEP_DEVICE DevicePack<T> operator/(const DevicePack<T>& x, const DevicePack<T>& y) {
  return ForPlaces<T>([&](int i) { return x.v[i] / y.v[i]; });
}
template <typename T>
LOCKSTEP_DEVICE DevicePack<T> Exp(const DevicePack<T>& x) {
  return ForPlaces<T>([&](int i) { return std::exp(x.v[i]); });
}
template <typename T>
LOCKSTEP_DEVICE DevicePack<T> Sqrt(const DevicePack<T>& x) {
  return ForPlaces<T>([&](int i) { return std::sqrt(x.v[i]); });
}

template <typename T>
LOCKSTEP_DEVICE DevicePack<T> Rounded(const DevicePack<T>& x) {
  using Acc = typename DevicePack<T>::Acc;
  return ForPlaces<T>([&](int i) { return static_cast<Acc>(static_cast<T>(x.v[i])); });
}

}  // namespace lockstep::kernels

#endif  // LOCKSTEP_KERNELS_DEVICE_PACK_H_
