#include "batching/testing/test_samples.h"

#include <numeric>

#include "ATen/ops/arange.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/tensor.h"

namespace lockstep::batching {

TensorSample Text(int64_t tokens, int64_t first) {
  TensorSample sample;
  sample.input_ids = at::arange(first, first + tokens, at::kLong);
  sample.loss_mask = at::ones({tokens}, at::kBool);
  sample.loss_mask[0].fill_(false);
  return sample;
}

TensorSample Images(const std::vector<int64_t>& patches, int64_t first, int64_t pixels) {
  std::vector<int64_t> types = {0};
  std::vector<int64_t> grid;
  for (const int64_t n : patches) {
    types.insert(types.end(), static_cast<size_t>(n / 4), 1);
    types.push_back(0);
    grid.insert(grid.end(), {1, 2, n / 2});
  }
  TensorSample sample = Text(static_cast<int64_t>(types.size()), first);
  sample.streams["mm_token_type_ids"] = at::tensor(types, at::kLong);
  const int64_t rows = std::accumulate(patches.begin(), patches.end(), int64_t{0});
  sample.tensors["pixel_values"] =
      at::arange(first * pixels, (first + rows) * pixels, at::kFloat).view({rows, pixels});
  sample.tensors["image_grid_thw"] = at::tensor(grid, at::kLong).view({-1, 3});
  return sample;
}

std::vector<TensorSample> Texts(const std::vector<int64_t>& lengths) {
  std::vector<TensorSample> samples;
  for (const int64_t length : lengths) samples.push_back(Text(length));
  return samples;
}

PrepareOptions With(int64_t seq_len, int ranks, Balance balance) {
  PrepareOptions options;
  options.seq_len = seq_len;
  options.ranks = ranks;
  options.balance = balance;
  return options;
}

}  // namespace lockstep::batching
