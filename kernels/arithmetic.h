// The formulas of the kernels, each written once. g++ compiles them for packs of numbers (pack.h).
// A V has +, -, *, / between values, V(number), Exp(v), and Rounded(v): v rounded to the dtype of
// the tensors. V computes in float32 where that dtype is float16 or bfloat16.

#ifndef LOCKSTEP_KERNELS_ARITHMETIC_H_
#define LOCKSTEP_KERNELS_ARITHMETIC_H_

namespace lockstep::kernels {

// RMSNorm: y = rounded(x / rms(x)) * weight, where scale = 1 / rms(x). Llama and
// Qwen in transformers round in the middle, too. It changes nothing in float32 and float64.
template <typename V>
V Normalised(const V& x, const V& weight, const V& scale) {
  return Rounded(x * scale) * weight;
}

// The gradient for x, where gradient = dy * weight, and shift = scale^2 * mean(gradient * x).
template <typename V>
V NormalisedGradient(const V& gradient, const V& x, const V& scale, const V& shift) {
  return scale * (gradient - x * shift);
}

// silu(gate) * up, where silu(x) = x * sigmoid(x).
template <typename V>
V Gated(const V& gate, const V& up) {
  return gate / (V(1) + Exp(V(0) - gate)) * up;
}

template <typename V>
struct GatedGradients {
  V gate, up;
};

template <typename V>
GatedGradients<V> GatedGradient(const V& dy, const V& gate, const V& up) {
  const V sigmoid = V(1) / (V(1) + Exp(V(0) - gate));
  return {.gate = dy * up * sigmoid * (V(1) + gate * (V(1) - sigmoid)),
          .up = dy * (gate * sigmoid)};
}

// One coordinate of a rotated pair.
template <typename V>
V Turned(const V& x, const V& other, const V& cos, const V& sin) {
  return x * cos + other * sin;
}

}  // namespace lockstep::kernels

#endif  // LOCKSTEP_KERNELS_ARITHMETIC_H_
