// The formulas of the kernels, each written once. g++ compiles them for packs of numbers (pack.h),
// and nvcc for those of a GPU's thread (device_pack.h).
// A V has +, -, *, / between values, V(number), Exp(v), Sqrt(v), and Rounded(v): v rounded to the
// dtype of the tensors. V computes in float32 where that dtype is float16 or bfloat16.
//
// Functions that are no templates are static: the linker must not share them between instruction
// sets (see rows_cpu.cc).

#ifndef LOCKSTEP_KERNELS_ARITHMETIC_H_
#define LOCKSTEP_KERNELS_ARITHMETIC_H_

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define LOCKSTEP_DEVICE __device__
#else
#define LOCKSTEP_DEVICE
#endif

namespace lockstep::kernels {

// RMSNorm: y = rounded(x / rms(x)) * weight, where scale = 1 / rms(x). Llama and
// Qwen in transformers round in the middle, too. It changes nothing in float32 and float64.
template <typename V>
LOCKSTEP_DEVICE V Normalised(const V& x, const V& weight, const V& scale) {
  return Rounded(x * scale) * weight;
}

// The gradient for x, where gradient = dy * weight, and shift = scale^2 * mean(gradient * x).
template <typename V>
LOCKSTEP_DEVICE V NormalisedGradient(const V& gradient, const V& x, const V& scale,
                                     const V& shift) {
  return scale * (gradient - x * shift);
}

// silu(gate) * up, where silu(x) = x * sigmoid(x).
template <typename V>
LOCKSTEP_DEVICE V Gated(const V& gate, const V& up) {
  return gate / (V(1) + Exp(V(0) - gate)) * up;
}

template <typename V>
struct GatedGradients {
  V gate, up;
};

template <typename V>
LOCKSTEP_DEVICE GatedGradients<V> GatedGradient(const V& dy, const V& gate, const V& up) {
  const V sigmoid = V(1) / (V(1) + Exp(V(0) - gate));
  return {.gate = dy * up * sigmoid * (V(1) + gate * (V(1) - sigmoid)),
          .up = dy * (gate * sigmoid)};
}

// One coordinate of a rotated pair.
template <typename V>
LOCKSTEP_DEVICE V Turned(const V& x, const V& other, const V& cos, const V& sin) {
  return x * cos + other * sin;
}

// The numbers of one step of AdamW that all elements of a tensor share.
struct AdamWFactors {
  double grad_scale, first_share, beta2, second_share, decay, step_size, correction, eps;
};

// `step` counts from 1.
LOCKSTEP_DEVICE static inline AdamWFactors FactorsOfStep(double step, double lr, double beta1,
                                                         double beta2, double eps,
                                                         double weight_decay, double grad_scale) {
  return {.grad_scale = grad_scale,
          .first_share = 1 - beta1,
          .beta2 = beta2,
          .second_share = 1 - beta2,
          .decay = 1 - lr * weight_decay,
          .step_size = lr / (1 - std::pow(beta1, step)),
          .correction = 1 / std::sqrt(1 - std::pow(beta2, step)),
          .eps = eps};
}

// A weight and its two moments.
template <typename V>
struct AdamWNumbers {
  V weight, first, second;
};

// arXiv 1711.05101.
template <typename V>
LOCKSTEP_DEVICE AdamWNumbers<V> AdamWStep(const AdamWNumbers<V>& old, const V& gradient,
                                          const AdamWFactors& factors) {
  const V scaled = gradient * V(factors.grad_scale);
  const V first = old.first + V(factors.first_share) * (scaled - old.first);
  const V second = old.second * V(factors.beta2) + V(factors.second_share) * scaled * scaled;
  return {.weight = old.weight * V(factors.decay) -
                    V(factors.step_size) * first /
                        (Sqrt(second) * V(factors.correction) + V(factors.eps)),
          .first = first,
          .second = second};
}

// Returns the key of the random numbers that one tensor takes in one step.
LOCKSTEP_DEVICE static inline uint32_t RandomKey(double step, int64_t salt) {
  return static_cast<uint32_t>(static_cast<int64_t>(step)) * 2654435761u +
         static_cast<uint32_t>(salt) * 668265263u;
}

// Returns the bits of one of the two bfloat16 numbers next to x. The nearer one comes more often,
// so that the mean is exact. bfloat16 is the upper half of float32. The sum with a random lower
// half carries as often as the lower half of x is large. lockstep.optim.precision draws the same
// bits.
LOCKSTEP_DEVICE static inline uint16_t RoundedAtRandom(float x, uint32_t key, uint32_t index) {
  uint32_t random = index * 2246822507u + key;
  random ^= random >> 15;
  random *= 3266489909u;
  random ^= random >> 13;
  random *= 2654435761u;
  uint32_t bits;
  memcpy(&bits, &x, sizeof(bits));
  const uint32_t magnitude = bits & 0x7fffffffu;
  // The carry would turn a NaN into a number.
  if (magnitude > 0x7f800000u) return 0x7fc0;
  return static_cast<uint16_t>((magnitude == 0x7f800000u ? bits : bits + (random >> 16)) >> 16);
}

}  // namespace lockstep::kernels

#endif  // LOCKSTEP_KERNELS_ARITHMETIC_H_
