// Another project's program: packs samples of tensors with @lockstep//batching:torch.

#include <cstdint>
#include <cstdio>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "ATen/ops/arange.h"
#include "ATen/ops/ones.h"
#include "lockstep/batching/prepare.h"

int main() {
  namespace batching = lockstep::batching;
  std::vector<batching::TensorSample> samples;
  for (const int64_t tokens : {5, 3, 6, 2}) {
    samples.push_back({.input_ids = at::arange(tokens), .loss_mask = at::ones(tokens, at::kBool)});
  }
  batching::PrepareOptions options;
  options.seq_len = 8;
  options.ranks = 2;

  const batching::Prepared prepared = batching::Prepare(samples, options);

  for (size_t rank = 0; rank < prepared.batches.size(); ++rank) {
    for (const batching::TensorMicroBatch& batch : prepared.batches[rank]) {
      std::printf("rank %d: %d tokens of %d samples\n", static_cast<int>(rank),
                  static_cast<int>(batch.input_ids.numel()),
                  static_cast<int>(batch.samples.size()));
    }
  }
  return 0;
}
