// Runs the kernels for GPUs on a CPU, thread by thread, and finds their mistakes. For tests.
//
//    emulator::Memory<float> x("x", {.numbers = 100, .offset = 3}), y("y", {.numbers = 100});
//    x.Fill([](int64_t i) { return i * 0.5f; });
//    kRowKernelsOfCuda.rms_norm({.x = x.input(), .y = y.output(), ...}, 0, 1);
//    EXPECT_THAT(emulator::TakeFaults(), IsEmpty());
//
// The source of a kernel stays as it is. g++ compiles it with -fsanitize=thread,alignment,bounds.
// The compiled code calls a function before each load and store. emulator.cc has these functions;
// no library of a sanitizer is linked. It reports:
//
//   outside     an access outside of all Memory, of shared memory and of the thread's own stack
//   alignment   an access that is not aligned as its type asks for; an index beyond its array
//   unwritten   a load of memory, global or shared, that nobody wrote; a store to an input
//   race        two threads use one byte, one stores, and no barrier is between, or two blocks do
//   divergence  a barrier or a shuffle that some threads do not reach
//   assertion   LOCKSTEP_KERNEL_ASSERT of a condition that does not hold
//   limits      a launch that exceeds the limits of a GPU
//
// The arguments of a kernel, constants, and the stack of a thread are private and not checked.
// Races are found by barriers passed, not by the order in which the threads happened to run.
//
// Not thread-safe: one test runs at a time.

#ifndef LOCKSTEP_KERNELS_CUDA_TESTING_EMULATOR_H_
#define LOCKSTEP_KERNELS_CUDA_TESTING_EMULATOR_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/geometry.h"

namespace lockstep::kernels::emulator {

// --- For tests

// Returns the faults since the last call: the first of those that differ in numbers alone, and how
// many more there were. An access outside of memory, or a misaligned one, ends its thread.
std::vector<std::string> TakeFaults();

// Accesses to Memory since ResetCounts, by all threads.
struct Counts {
  int64_t loads = 0, stores = 0, atomics = 0;
  int64_t loaded_bytes = 0, stored_bytes = 0;
  int64_t narrow = 0;  // loads and stores of less than 8 bytes
  int64_t barriers = 0, launches = 0;
};
const Counts& CountsSoFar();
void ResetCounts();

// Bytes of global memory that kernels may use, between two stretches that they may not.
class Bytes {
 public:
  // The first byte is at `offset` from an address that 256 divides.
  Bytes(std::string name, int64_t size, int64_t offset);
  ~Bytes();
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;

  uint8_t* data() { return data_; }
  const uint8_t* data() const { return data_; }
  // The tests wrote all of it, and kernels may not.
  void MarkInput();
  // The tests wrote all of it, and kernels may, too.
  void MarkWritten();
  // Takes [begin, end) away from kernels: the numbers between two rows, say.
  void Forbid(int64_t begin, int64_t end);
  // Returns the bytes that kernels may use and nobody wrote.
  int64_t num_unwritten() const;

 private:
  std::vector<uint8_t> storage_;
  uint8_t* data_;
};

struct MemoryOptions {
  int64_t numbers;
  int64_t offset = 0;  // of the first number, in numbers: not 0 for a misaligned one
};

template <typename T>
class Memory {
 public:
  Memory(std::string name, const MemoryOptions& options)
      : bytes_(std::move(name), options.numbers * sizeof(T), options.offset * sizeof(T)),
        size_(options.numbers) {}

  // Writes value(i) to each number.
  template <typename Value>
  void Fill(const Value& value) {
    for (int64_t i = 0; i < size_; ++i) data()[i] = static_cast<T>(value(i));
  }
  T* data() { return reinterpret_cast<T*>(bytes_.data()); }
  const T& operator[](int64_t i) const { return reinterpret_cast<const T*>(bytes_.data())[i]; }
  int64_t size() const { return size_; }
  // The pointers that a kernel gets: to what it reads, to what it writes, to what it does both.
  const T* input() {
    bytes_.MarkInput();
    return data();
  }
  T* output() { return data(); }
  T* in_out() {
    bytes_.MarkWritten();
    return data();
  }
  Bytes& bytes() { return bytes_; }
  // Keeps kernels from the numbers behind the first `columns` of each row.
  void ForbidGaps(int64_t columns, int64_t stride) {
    for (int64_t begin = columns; begin < size_; begin += stride)
      bytes_.Forbid(begin * sizeof(T), std::min(begin + stride - columns, size_) * sizeof(T));
  }

 private:
  Bytes bytes_;
  int64_t size_;
};

// --- For kernels, by cuda_on_cpu.h

struct Index {
  unsigned x, y;
};
Index ThreadIndex();
Index BlockIndex();
Index ThreadsOfBlock();
Index BlocksOfGrid();

void Barrier();
void WarpBarrier(uint32_t mask);
uint64_t ShuffleXor(uint32_t mask, uint64_t bits, int offset);
uint32_t ReduceMax(uint32_t mask, uint32_t number);
uint32_t AtomicMax(uint32_t* at, uint32_t number);
void Assert(bool condition, const char* text);

// Calls thread(call) for each thread of each block. The `size` bytes at `call` hold the arguments.
void RunGrid(const Geometry& geometry, void (*thread)(void* call), void* call, int64_t size);

}  // namespace lockstep::kernels::emulator

#endif  // LOCKSTEP_KERNELS_CUDA_TESTING_EMULATOR_H_
