// Another project's program: host memory that is used again, with @lockstep//checkpoint.

#include <cstdio>

#include "absl/status/statusor.h"
#include "lockstep/checkpoint/offload/host_memory_pool.h"

int main() {
  namespace checkpoint = lockstep::checkpoint;
  checkpoint::HostMemoryPool pool(checkpoint::PageableMemory());
  for (int step = 0; step < 3; ++step) {
    const absl::StatusOr<checkpoint::HostMemoryPool::Block> block = pool.Take(1000);
    if (!block.ok()) return 1;
  }
  std::printf("3 blocks, %d allocation\n", static_cast<int>(pool.usage().allocations));
  return 0;
}
