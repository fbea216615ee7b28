// Compiled three times, with other flags and another CPU_CAPABILITY each time: see BUILD, and
// kernels/rows_cpu.cc on why it includes as little as it can.
//
// A block of 4-bit numbers has 16 different ones: the values times its magnitude, rounded once.
// With AVX-512 they are one register, and an instruction looks up 16 or 32 of them. Elsewhere they
// are an array.

#include <array>
#include <cstdint>

#include "ATen/cpu/vec/functional.h"
#include "c10/util/BFloat16.h"
#include "c10/util/Half.h"
#include "kernels/few_bits/blocks.h"
#include "kernels/pack.h"

namespace lockstep::kernels::CPU_CAPABILITY {
namespace {

// Writes the numbers of bytes [begin, end) of a block.
template <typename T>
void LookUp(const Blocks& blocks, float magnitude, int64_t begin, int64_t end) {
  if (begin == end) return;
  std::array<T, 16> products;
  for (int i = 0; i < 16; ++i) products[i] = static_cast<T>(blocks.table[i] * magnitude);
  T* out = static_cast<T*>(blocks.out);
  for (int64_t i = begin; i < end; ++i) {
    out[2 * i] = products[blocks.packed[i] >> 4];
    out[2 * i + 1] = products[blocks.packed[i] & 15];
  }
}

#if defined(CPU_CAPABILITY_AVX512)

constexpr int64_t kBytes = 16;

// Returns the numbers of 16 bytes, in their order, one in a byte.
__m256i Codes(const uint8_t* packed) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(packed));
  const __m128i mask = _mm_set1_epi8(15);
  const __m128i upper = _mm_and_si128(_mm_srli_epi16(bytes, 4), mask);
  const __m128i lower = _mm_and_si128(bytes, mask);
  return _mm256_set_m128i(_mm_unpackhi_epi8(upper, lower), _mm_unpacklo_epi8(upper, lower));
}

// Writes the numbers of bytes [begin, end) of a block, as many as are a multiple of kBytes. Returns
// the first byte that is left.
template <typename T>
int64_t LookUpVectors(const Blocks& blocks, float magnitude, int64_t begin, int64_t end) {
  const at::vec::Vectorized<float> products =
      at::vec::Vectorized<float>::loadu(blocks.table) * at::vec::Vectorized<float>(magnitude);
  T* const out = static_cast<T*>(blocks.out);
  int64_t i = begin;
  if constexpr (sizeof(T) == 4) {
    for (; i + kBytes <= end; i += kBytes) {
      const __m256i codes = Codes(blocks.packed + i);
      const __m512i first = _mm512_cvtepu8_epi32(_mm256_castsi256_si128(codes));
      const __m512i second = _mm512_cvtepu8_epi32(_mm256_extracti128_si256(codes, 1));
      _mm512_storeu_ps(out + 2 * i, _mm512_permutexvar_ps(first, products));
      _mm512_storeu_ps(out + 2 * i + kBytes, _mm512_permutexvar_ps(second, products));
    }
  } else {
    const __m512i rounded = at::vec::convert_from_float<T>(products, products);
    for (; i + kBytes <= end; i += kBytes) {
      const __m512i codes = _mm512_cvtepu8_epi16(Codes(blocks.packed + i));
      _mm512_storeu_si512(out + 2 * i, _mm512_permutexvar_epi16(codes, rounded));
    }
  }
  return i;
}

#endif

template <typename T>
void Run(const Blocks& blocks, int64_t begin, int64_t end) {
  for (int64_t b = begin; b < end; ++b) {
    int64_t first = b * blocks.bytes_of_block;
    const int64_t limit = first + blocks.bytes_of_block;
    const int64_t last = limit < blocks.bytes ? limit : blocks.bytes;
#if defined(CPU_CAPABILITY_AVX512)
    first = LookUpVectors<T>(blocks, blocks.magnitudes[b], first, last);
#endif
    LookUp<T>(blocks, blocks.magnitudes[b], first, last);
  }
}

// --- 8 bits

using Vec = at::vec::Vectorized<float>;

template <typename T>
void RunBytes(const Blocks& blocks, int64_t begin, int64_t end) {
  constexpr int64_t kSize = 2 * Vec::size();
  for (int64_t b = begin; b < end; ++b) {
    const int64_t first = b * blocks.bytes_of_block;
    const int8_t* const bytes = reinterpret_cast<const int8_t*>(blocks.packed) + first;
    T* const out = static_cast<T*>(blocks.out) + first;
    const float magnitude = blocks.magnitudes[b];
    const Vec magnitudes(magnitude);
    int64_t i = 0;
    for (; i + kSize <= blocks.bytes_of_block; i += kSize) {
      const Vec low = LoadBytes(bytes + i) * magnitudes;
      const Vec high = LoadBytes(bytes + i + Vec::size()) * magnitudes;
      if constexpr (sizeof(T) == 4) {
        low.store(out + i);
        high.store(out + i + Vec::size());
      } else {
        at::vec::convert_from_float<T>(low, high).store(out + i);
      }
    }
    for (; i < blocks.bytes_of_block; ++i)
      out[i] = static_cast<T>(static_cast<float>(bytes[i]) * magnitude);
  }
}

}  // namespace

extern const FewBitsKernels kFewBitsKernels;
const FewBitsKernels kFewBitsKernels = {
    .to_float = Run<float>,
    .to_bfloat16 = Run<c10::BFloat16>,
    .to_half = Run<c10::Half>,
    .int8_to_float = RunBytes<float>,
    .int8_to_bfloat16 = RunBytes<c10::BFloat16>,
    .int8_to_half = RunBytes<c10::Half>,
};

}  // namespace lockstep::kernels::CPU_CAPABILITY
