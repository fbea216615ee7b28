#include "driver/lua/tensor/bits.h"

#include <algorithm>
#include <cstring>

#include "c10/util/Exception.h"

namespace lockstep::lua {
namespace {

constexpr int64_t kWordBytes = 8;
constexpr int64_t kWordsAtOnce = int64_t{1} << 20;  // as in replicas.lua
constexpr uint64_t kWeightOfTheRest = 2654435761;

uint64_t WordAt(const char* data, int64_t index) {
  uint64_t word = 0;
  std::memcpy(&word, data + index * kWordBytes, kWordBytes);
  return word;
}

}  // namespace

// All sums are of unsigned numbers, which wrap around as the tensors' do.
int64_t SumOfBits(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.is_cpu() && tensor.is_contiguous(),
              "the tensor must be contiguous, on the CPU");
  const char* const data = static_cast<const char*>(tensor.const_data_ptr());
  const auto num_bytes = static_cast<int64_t>(tensor.nbytes());
  const int64_t num_words = num_bytes / kWordBytes;
  uint64_t total = 0;
  for (int64_t part = 0, first = 0; first < num_words; ++part, first += kWordsAtOnce) {
    const int64_t size = std::min(kWordsAtOnce, num_words - first);
    uint64_t sum = 0;
    for (int64_t i = 0; i < size; ++i)
      sum += WordAt(data, first + i) * static_cast<uint64_t>(2 * i + 1);
    total += sum * static_cast<uint64_t>(2 * part + 3);
  }
  uint64_t rest = 0;
  const int64_t at = num_words * kWordBytes;
  if (at < num_bytes) std::memcpy(&rest, data + at, static_cast<size_t>(num_bytes - at));
  return static_cast<int64_t>(total + rest * kWeightOfTheRest);
}

}  // namespace lockstep::lua
