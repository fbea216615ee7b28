// The loops that make whole numbers of 4-bit and 8-bit ones on CPUs. Private to dequantize.cc and
// dequantize_cpu.cc, which is compiled once for each instruction set.

#ifndef LOCKSTEP_KERNELS_FEW_BITS_BLOCKS_H_
#define LOCKSTEP_KERNELS_FEW_BITS_BLOCKS_H_

#include <cstdint>

namespace lockstep::kernels {

struct Blocks {
  const uint8_t* packed;    // two numbers in a byte, or int8
  const float* magnitudes;  // one for each block
  const float* table;       // the 16 values of 4-bit numbers
  int64_t bytes;            // of all blocks; the last block may have fewer than the others
  int64_t bytes_of_block;
  void* out;
};

// Writes the numbers of blocks [begin, end).
using BlocksLoop = void (*)(const Blocks& blocks, int64_t begin, int64_t end);

struct FewBitsKernels {
  BlocksLoop to_float, to_bfloat16, to_half;                 // 4-bit numbers
  BlocksLoop int8_to_float, int8_to_bfloat16, int8_to_half;  // bytes times magnitudes
};

}  // namespace lockstep::kernels

#endif  // LOCKSTEP_KERNELS_FEW_BITS_BLOCKS_H_
