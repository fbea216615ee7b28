// Another project's program: the images of one replica's samples, with @lockstep//mimo:torch.

#include "lockstep/mimo/batch/slice.h"

#include <cstdio>
#include <variant>

#include "ATen/core/TensorBody.h"
#include "ATen/ops/zeros.h"

int main() {
  namespace mimo = lockstep::mimo;
  const mimo::Dict batch = {{"input_ids", at::zeros({4, 7}, at::kLong)},
                            {"crops", at::zeros({3, 5})}};  // of samples 0, 2 and 2

  const mimo::Value mine = mimo::Slice(
      batch, {.dp_rank = 1, .dp_size = 2, .rows_per_sample = {{"crops", {1, 0, 2, 0}}}});

  for (const mimo::Field& field : std::get<mimo::Dict>(mine.of)) {
    std::printf("%s: %d rows\n", field.key.c_str(),
                static_cast<int>(std::get<at::Tensor>(field.value.of).size(0)));
  }
  return 0;
}
