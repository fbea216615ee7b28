// Rounds float32 to float8, as ATen's conversion does, but saturates; and computes scales. g++
// compiles it for the CPU's loops, and nvcc for a GPU's threads.
//
// Without branches, so that loops over it become vector code. The anonymous namespace keeps each
// copy private: the linker must not share code between instruction sets (see cast_cpu.cc).

#ifndef LOCKSTEP_KERNELS_FLOAT8_ROUNDING_H_
#define LOCKSTEP_KERNELS_FLOAT8_ROUNDING_H_

#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define LOCKSTEP_FLOAT8_DEVICE __device__
#else
#define LOCKSTEP_FLOAT8_DEVICE
#endif

namespace lockstep::kernels::float8 {
namespace {

// The largest number of each format.
constexpr float kLargestE4m3 = 448, kLargestE5m2 = 57344;

// Returns the scale of numbers whose largest magnitude is `amax`. NaN stays NaN.
LOCKSTEP_FLOAT8_DEVICE inline float ScaleOf(float amax, float largest, bool power_of_2) {
  constexpr double kSmallestAmax = 1e-12;
  const float scale = static_cast<float>(largest / (amax < kSmallestAmax ? kSmallestAmax : amax));
  if (!power_of_2 || scale != scale) return scale;
  uint32_t bits;
  memcpy(&bits, &scale, sizeof(bits));
  bits &= 0x7f800000u;  // the exponent: no scale is infinite or subnormal
  float rounded;
  memcpy(&rounded, &bits, sizeof(rounded));
  return rounded;
}

// Returns the byte of the nearest number of the format; halfway, of the even one. Numbers that are
// too large, and infinity, become the largest number. NaN stays NaN.
template <int kMantissa, int kBias>
LOCKSTEP_FLOAT8_DEVICE inline uint8_t Rounded(float x, float largest) {
  constexpr int kShift = 23 - kMantissa;
  // The sum with 2^kAddendExponent has the format's smallest number as its last bit.
  constexpr int kAddendExponent = 24 - kBias - kMantissa;
  constexpr uint32_t kSmallestNormal = uint32_t{128 - kBias} << 23;
  constexpr uint32_t kAddend = uint32_t{127 + kAddendExponent} << 23;
  uint32_t bits, most;
  memcpy(&bits, &x, sizeof(bits));
  memcpy(&most, &largest, sizeof(most));
  const uint32_t whole = bits & 0x7fffffffu;
  const uint32_t magnitude = whole < most ? whole : most;
  // Half of the last kept bit, minus 1 where that bit is 0: ties go to even.
  const uint32_t increment = (1u << (kShift - 1)) - 1 + ((magnitude >> kShift) & 1);
  const uint32_t normal = (magnitude + increment - (uint32_t{127 - kBias} << 23)) >> kShift;
  float number, addend;
  memcpy(&number, &magnitude, sizeof(number));
  memcpy(&addend, &kAddend, sizeof(addend));
  const float sum = number + addend;
  uint32_t subnormal;
  memcpy(&subnormal, &sum, sizeof(subnormal));
  subnormal -= kAddend;
  const uint32_t result = magnitude < kSmallestNormal ? subnormal : normal;
  return static_cast<uint8_t>((bits >> 31 << 7) | (whole > 0x7f800000u ? 0x7fu : result));
}

LOCKSTEP_FLOAT8_DEVICE inline uint8_t ToE4m3(float x) { return Rounded<3, 7>(x, kLargestE4m3); }
LOCKSTEP_FLOAT8_DEVICE inline uint8_t ToE5m2(float x) { return Rounded<2, 15>(x, kLargestE5m2); }

}  // namespace
}  // namespace lockstep::kernels::float8

#endif  // LOCKSTEP_KERNELS_FLOAT8_ROUNDING_H_
