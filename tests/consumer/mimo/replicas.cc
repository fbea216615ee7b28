// Another project's program: which samples each rank keeps and which it reads, with
// @lockstep//mimo.

#include <cstdio>

#include "absl/status/statusor.h"
#include "lockstep/mimo/topology/topology.h"

int main() {
  namespace mimo = lockstep::mimo;
  const absl::StatusOr<mimo::Topology> topology = mimo::Topology::Make(
      4, {{.name = "vision", .dp = 3, .first_rank = 0}, {.name = "language", .first_rank = 3}});
  if (!topology.ok()) return 1;
  for (int rank = 0; rank < 4; ++rank) {
    const mimo::DpInfo part = topology->dp_info(rank);
    const mimo::SamplingInfo read = topology->sampling_info(rank);
    std::printf("rank %d: keeps %d of %d, reads %d of %d\n", rank, static_cast<int>(part.dp_rank),
                static_cast<int>(part.dp_size), static_cast<int>(read.dp_rank),
                static_cast<int>(read.dp_size));
  }
  return 0;
}
