// A thread of a GPU is a fiber here: it has a stack of its own, and gives up the processor at each
// barrier and shuffle. A block's threads run one after another up to there, and the blocks of a
// grid run one after another.
// Tests: emulator_test.cc.

#include "kernels/cuda/testing/emulator.h"

#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <unordered_map>

#include "kernels/cuda/testing/history.h"

// Bounds of the program's variables and constants, from the linker.
extern "C" char __executable_start[], __data_start[], _end[];

namespace lockstep::kernels::emulator {
namespace {

// Enough for a thread's packs and its copy of the arguments, which may have 4,096 bytes.
constexpr int64_t kStack = 128 << 10;
// Bytes before and behind Memory. Loads there are reported, and do no harm.
constexpr int64_t kMargin = 4096;
constexpr int64_t kMostSharedBytes = 48 << 10;

struct Region {
  std::string name;
  const uint8_t* begin;
  const uint8_t* end;
  bool is_input = false;
  std::vector<History> cells;
};

enum class State { kRunning, kDone, kAtBarrier, kAtWarpOperation };
enum class Operation { kBarrier, kShuffle, kMax };

struct Fiber {
  ucontext_t context;
  State state;
  int epoch, warp_epoch;
  Operation operation;
  uint32_t mask;
  uint64_t given, result;
  int offset;
};

struct Grid {
  Geometry geometry;
  int64_t block;  // runs now
  void (*thread)(void*);
  void* call;
  int64_t call_size;
};

std::vector<Region*> regions;
std::vector<std::string> faults;
std::set<std::string> kinds;
size_t num_faults = 0;
Counts counts;

Grid grid;
int32_t launch = 0;
std::vector<Fiber> fibers;
std::vector<uint8_t> stacks;
ucontext_t scheduler;
// The fiber that runs, or -1 outside of kernels. Other threads of the process are always outside.
thread_local int current = -1;
// The shared memory that a block has used.
std::unordered_map<const uint8_t*, History> shared;

int NumThreads() { return grid.geometry.threads_x * grid.geometry.threads_y; }

std::string Where() {
  const Index block = BlockIndex(), thread = ThreadIndex();
  return "block (" + std::to_string(block.x) + ", " + std::to_string(block.y) + "), thread (" +
         std::to_string(thread.x) + ", " + std::to_string(thread.y) + "): ";
}

// Keeps one fault of those that differ in numbers alone.
void Report(const std::string& fault) {
  ++num_faults;
  std::string kind;
  for (const char c : fault)
    if (c < '0' || c > '9') kind += c;
  if (kinds.insert(kind).second) faults.push_back(fault);
}

// Reports an access that would end the kernel on a GPU, and ends the thread.
void ReportAndEnd(const std::string& fault) {
  Report(Where() + fault);
  fibers[current].state = State::kDone;
  swapcontext(&fibers[current].context, &scheduler);
}

Access AccessNow(bool is_atomic) {
  const Fiber& fiber = fibers[current];
  return {static_cast<int32_t>(grid.block), fiber.epoch, fiber.warp_epoch,
          static_cast<int16_t>(current), is_atomic};
}

std::string Sized(int64_t size, bool is_store) {
  return std::to_string(size) + "-byte " + (is_store ? "store" : "load");
}

void Count(int64_t size, bool is_store, bool is_atomic) {
  (is_atomic ? counts.atomics : is_store ? counts.stores : counts.loads) += 1;
  if (is_atomic) return;
  (is_store ? counts.stored_bytes : counts.loaded_bytes) += size;
  if (size < 8) ++counts.narrow;
}

void CheckRegion(Region* region, const uint8_t* at, int64_t size, bool is_store, bool is_atomic) {
  const std::string name = region->name + " at byte " + std::to_string(at - region->begin);
  if (at < region->begin || at + size > region->end)
    return ReportAndEnd(Sized(size, is_store) + " of " + name + " of " +
                        std::to_string(region->end - region->begin));
  Count(size, is_store, is_atomic);
  if (is_store && region->is_input)
    return Report(Where() + Sized(size, is_store) + " of " + name + ", which is an input");
  History* const cells = region->cells.data() + (at - region->begin);
  const char* fault = nullptr;
  for (int64_t i = 0; i < size; ++i) {
    const char* const found = cells[i].Note(AccessNow(is_atomic), launch, is_store);
    if (found != nullptr) fault = found;
    if (cells[i].is_forbidden) fault = "lies between the rows";
  }
  if (fault != nullptr)
    Report(Where() + Sized(size, is_store) + " of " + name + ", which " + fault);
}

void CheckShared(const uint8_t* at, int64_t size, bool is_store) {
  const char* fault = nullptr;
  for (int64_t i = 0; i < size; ++i) {
    const char* const found = shared[at + i].Note(AccessNow(/*is_atomic=*/false), launch, is_store);
    if (found != nullptr) fault = found;
  }
  if (fault != nullptr)
    Report(Where() + Sized(size, is_store) + " of shared memory, which " + fault);
}

bool IsWithin(const uint8_t* at, const void* begin, int64_t size) {
  return at >= begin && at < static_cast<const uint8_t*>(begin) + size;
}

void Check(const void* address, int64_t size, bool is_store, bool is_atomic = false) {
  if (current < 0) return;
  const auto* at = static_cast<const uint8_t*>(address);
  if (IsWithin(at, stacks.data() + current * kStack, kStack)) return;
  for (Region* region : regions) {
    if (at >= region->begin - kMargin && at < region->end + kMargin)
      return CheckRegion(region, at, size, is_store, is_atomic);
  }
  if (IsWithin(at, __data_start, _end - __data_start)) return CheckShared(at, size, is_store);
  const bool is_constant = IsWithin(at, __executable_start, __data_start - __executable_start) ||
                           IsWithin(at, grid.call, grid.call_size);
  if (is_constant && !is_store) return;
  if (IsWithin(at, stacks.data(), stacks.size()))
    return ReportAndEnd(Sized(size, is_store) + " of another thread's stack");
  ReportAndEnd(Sized(size, is_store) + " of memory of the CPU");
}

// --- Threads

void RunFiber() {
  grid.thread(grid.call);
  fibers[current].state = State::kDone;
}

void Wait(State state) {
  Fiber& fiber = fibers[current];
  fiber.state = state;
  swapcontext(&fiber.context, &scheduler);
}

// Lets the threads run until each is done or waits. Returns whether any ran.
bool RunAll() {
  bool has_run = false;
  for (int i = 0; i < NumThreads(); ++i) {
    if (fibers[i].state != State::kRunning) continue;
    has_run = true;
    current = i;
    swapcontext(&scheduler, &fibers[i].context);
    current = -1;
  }
  return has_run;
}

// Ends the operation of one warp that waits for no other lane.
void EndWarpOperation(int first) {
  const int lanes = std::min(kWarp, NumThreads() - first);
  for (int lane = 0; lane < lanes; ++lane) {
    const Fiber& fiber = fibers[first + lane];
    if (fiber.state != State::kAtWarpOperation) continue;
    const auto is_here = [&](int other) {
      if ((fiber.mask >> other & 1) == 0) return true;
      return other < lanes && fibers[first + other].state == State::kAtWarpOperation &&
             fibers[first + other].mask == fiber.mask &&
             fibers[first + other].operation == fiber.operation;
    };
    bool are_here = true;
    for (int other = 0; other < kWarp; ++other) are_here = are_here && is_here(other);
    if (!are_here) continue;
    const uint32_t mask = fiber.mask;
    uint64_t most = 0;
    for (int one = 0; one < lanes; ++one)
      if (mask >> one & 1) most = std::max(most, fibers[first + one].given);
    for (int one = 0; one < lanes; ++one) {
      if ((mask >> one & 1) == 0) continue;
      Fiber& ended = fibers[first + one];
      ended.result = most;
      if (ended.operation == Operation::kShuffle) {
        const int other = one ^ ended.offset;
        if (other >= lanes || (mask >> other & 1) == 0) {
          Report("a lane shuffles with one that its mask does not name");
        } else {
          ended.result = fibers[first + other].given;
        }
      }
      if (ended.operation == Operation::kBarrier) ++ended.warp_epoch;
      ended.state = State::kRunning;
    }
  }
}

// Lets the block pass its barrier. Returns whether threads were there.
bool EndBarrier() {
  int waiting = 0, done = 0;
  for (int i = 0; i < NumThreads(); ++i) {
    waiting += fibers[i].state == State::kAtBarrier;
    done += fibers[i].state == State::kDone;
  }
  if (waiting == 0) return false;
  if (waiting < NumThreads())
    Report("block " + std::to_string(grid.block) + ": " + std::to_string(waiting) + " of " +
           std::to_string(NumThreads()) + " threads wait at a barrier, and " +
           std::to_string(done) + " have ended");
  for (int i = 0; i < NumThreads(); ++i) {
    ++fibers[i].epoch;
    if (fibers[i].state == State::kAtBarrier) fibers[i].state = State::kRunning;
  }
  ++counts.barriers;
  return waiting + done == NumThreads();
}

void RunBlock() {
  shared.clear();
  for (int i = 0; i < NumThreads(); ++i) {
    Fiber& fiber = fibers[i];
    fiber.state = State::kRunning;
    fiber.epoch = fiber.warp_epoch = 0;
    fiber.context.uc_stack.ss_sp = stacks.data() + i * kStack;
    fiber.context.uc_stack.ss_size = kStack;
    fiber.context.uc_link = &scheduler;
    makecontext(&fiber.context, RunFiber, 0);
  }
  for (;;) {
    while (RunAll())
      for (int i = 0; i < NumThreads(); i += kWarp) EndWarpOperation(i);
    if (!EndBarrier()) break;
  }
  int stuck = 0;
  for (int i = 0; i < NumThreads(); ++i) stuck += fibers[i].state != State::kDone;
  if (stuck > 0)
    Report("block " + std::to_string(grid.block) + ": " + std::to_string(stuck) +
           " threads wait for ever, at a barrier or for lanes of their masks");
  if (static_cast<int64_t>(shared.size()) > kMostSharedBytes)
    Report("the block uses " + std::to_string(shared.size()) + " bytes of shared memory, of " +
           std::to_string(kMostSharedBytes));
}

uint64_t WarpOperation(Operation operation, uint32_t mask, uint64_t given, int offset = 0) {
  Fiber& fiber = fibers[current];
  if ((mask >> (current % kWarp) & 1) == 0) Report(Where() + "its mask does not name the lane");
  fiber.operation = operation;
  fiber.mask = mask;
  fiber.given = given;
  fiber.offset = offset;
  Wait(State::kAtWarpOperation);
  return fiber.result;
}

Region& RegionOf(const uint8_t* data) {
  for (Region* region : regions)
    if (region->begin == data) return *region;
  abort();
}

}  // namespace

// --- For tests

std::vector<std::string> TakeFaults() {
  std::vector<std::string> taken = std::move(faults);
  if (num_faults > taken.size())
    taken.push_back("and " + std::to_string(num_faults - taken.size()) + " more");
  faults.clear();
  kinds.clear();
  num_faults = 0;
  return taken;
}

const Counts& CountsSoFar() { return counts; }
void ResetCounts() { counts = {}; }

Bytes::Bytes(std::string name, int64_t size, int64_t offset)
    : storage_(size + offset + 2 * kMargin + 256) {
  const auto address = reinterpret_cast<uintptr_t>(storage_.data()) + kMargin;
  data_ = reinterpret_cast<uint8_t*>((address + 255) / 256 * 256) + offset;
  memset(data_, 0xff, size);  // NaN, in each dtype of floating-point numbers
  regions.push_back(new Region{.name = std::move(name),
                               .begin = data_,
                               .end = data_ + size,
                               .cells = std::vector<History>(size)});
}

Bytes::~Bytes() {
  for (size_t i = 0; i < regions.size(); ++i) {
    if (regions[i]->begin != data_) continue;
    delete regions[i];
    regions.erase(regions.begin() + i);
    return;
  }
}

void Bytes::MarkInput() {
  MarkWritten();
  RegionOf(data_).is_input = true;
}

void Bytes::MarkWritten() {
  for (History& cell : RegionOf(data_).cells) cell.is_written = true;
}

void Bytes::Forbid(int64_t begin, int64_t end) {
  Region& region = RegionOf(data_);
  for (int64_t i = begin; i < end; ++i) region.cells[i].is_forbidden = true;
}

int64_t Bytes::num_unwritten() const {
  int64_t count = 0;
  for (const History& cell : RegionOf(data_).cells) count += !cell.is_written && !cell.is_forbidden;
  return count;
}

// --- For kernels

Index ThreadIndex() {
  const unsigned width = grid.geometry.threads_x;
  return {current % width, current / width};
}
Index BlockIndex() {
  const int64_t width = grid.geometry.blocks_x;
  return {static_cast<unsigned>(grid.block % width), static_cast<unsigned>(grid.block / width)};
}
Index ThreadsOfBlock() {
  return {static_cast<unsigned>(grid.geometry.threads_x),
          static_cast<unsigned>(grid.geometry.threads_y)};
}
Index BlocksOfGrid() {
  return {static_cast<unsigned>(grid.geometry.blocks_x),
          static_cast<unsigned>(grid.geometry.blocks_y)};
}

void Barrier() { Wait(State::kAtBarrier); }

void WarpBarrier(uint32_t mask) { WarpOperation(Operation::kBarrier, mask, 0); }

uint64_t ShuffleXor(uint32_t mask, uint64_t bits, int offset) {
  return WarpOperation(Operation::kShuffle, mask, bits, offset);
}

uint32_t ReduceMax(uint32_t mask, uint32_t number) {
  return static_cast<uint32_t>(WarpOperation(Operation::kMax, mask, number));
}

uint32_t AtomicMax(uint32_t* at, uint32_t number) {
  if (reinterpret_cast<uintptr_t>(at) % sizeof(*at) != 0)
    ReportAndEnd("atomicMax at an address that 4 does not divide");
  Check(at, sizeof(*at), /*is_store=*/true, /*is_atomic=*/true);
  const uint32_t before = *at;
  *at = std::max(before, number);
  return before;
}

void Assert(bool condition, const char* text) {
  if (!condition) ReportAndEnd(std::string("the assertion does not hold: ") + text);
}

void RunGrid(const Geometry& geometry, void (*thread)(void*), void* call, int64_t size) {
  ++launch;
  ++counts.launches;
  grid = {geometry, 0, thread, call, size};
  const bool fits = geometry.blocks_x >= 1 && geometry.blocks_x <= kMostBlocks &&
                    geometry.blocks_y >= 1 && geometry.blocks_y <= kMostBlocksY &&
                    geometry.threads_x >= 1 && geometry.threads_y >= 1 &&
                    NumThreads() <= kMostThreads;
  if (!fits)
    return Report("a launch of " + std::to_string(geometry.blocks_x) + " x " +
                  std::to_string(geometry.blocks_y) + " blocks of " +
                  std::to_string(geometry.threads_x) + " x " + std::to_string(geometry.threads_y) +
                  " threads exceeds a GPU's limits");
  if (fibers.empty()) {
    fibers.resize(kMostThreads);
    stacks.resize(kMostThreads * kStack);
    for (Fiber& fiber : fibers) getcontext(&fiber.context);
  }
  for (; grid.block < geometry.blocks_x * geometry.blocks_y; ++grid.block) RunBlock();
}

// --- For the functions that g++ calls

void CheckAccess(const void* at, int64_t size, int64_t alignment, bool is_store) {
  if (current < 0) return;
  if (reinterpret_cast<uintptr_t>(at) % alignment != 0)
    ReportAndEnd(Sized(size, is_store) + " at an address that " + std::to_string(alignment) +
                 " does not divide");
  Check(at, size, is_store);
}

void ReportMisaligned(uint64_t at) {
  if (current >= 0)
    ReportAndEnd("the address " + std::to_string(at) + " is not aligned as its type asks");
}

void ReportIndex(uint64_t index) {
  if (current >= 0) Report(Where() + "index " + std::to_string(index) + " is beyond the array");
}

}  // namespace lockstep::kernels::emulator

// --- What g++ calls before each load and store. The address is the first of `size` bytes.

namespace emulator = lockstep::kernels::emulator;

#define LOCKSTEP_ACCESS(size)                                                               \
  void __tsan_read##size(void* at) { emulator::CheckAccess(at, size, size, false); }        \
  void __tsan_write##size(void* at) { emulator::CheckAccess(at, size, size, true); }        \
  void __tsan_unaligned_read##size(void* at) { emulator::CheckAccess(at, size, 1, false); } \
  void __tsan_unaligned_write##size(void* at) { emulator::CheckAccess(at, size, 1, true); }

extern "C" {

void __tsan_init() {}
LOCKSTEP_ACCESS(1)
LOCKSTEP_ACCESS(2)
LOCKSTEP_ACCESS(4)
LOCKSTEP_ACCESS(8)
LOCKSTEP_ACCESS(16)
void __tsan_read_range(void* at, int64_t size) { emulator::CheckAccess(at, size, 1, false); }
void __tsan_write_range(void* at, int64_t size) { emulator::CheckAccess(at, size, 1, true); }

// A pointer's type asks for more alignment than its address has; an index is beyond its array.
void __ubsan_handle_type_mismatch_v1(void*, uint64_t at) { emulator::ReportMisaligned(at); }
void __ubsan_handle_out_of_bounds(void*, uint64_t index) { emulator::ReportIndex(index); }
}
