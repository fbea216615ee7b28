#include "driver/data/mix.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace lockstep::data {
namespace {

// Shares `size` out by weights: the whole parts first, then one each to the largest remainders.
std::vector<int64_t> ShareOut(int64_t size, const std::vector<double>& weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<int64_t> counts(weights.size());
  std::vector<double> remainders(weights.size());
  int64_t left = size;
  for (size_t i = 0; i < weights.size(); ++i) {
    const double exact = static_cast<double>(size) * (weights[i] / sum);
    counts[i] = std::min(left, static_cast<int64_t>(exact));
    remainders[i] = exact - static_cast<double>(counts[i]);
    left -= counts[i];
  }
  for (; left > 0; --left) {
    const auto largest = std::max_element(remainders.begin(), remainders.end());
    ++counts[static_cast<size_t>(largest - remainders.begin())];
    *largest -= 1;
  }
  return counts;
}

// a * b / c without a product that overflows.
int64_t MultiplyDivide(int64_t a, int64_t b, int64_t c) {
  return static_cast<int64_t>(static_cast<unsigned __int128>(a) *
                              static_cast<unsigned __int128>(b) /
                              static_cast<unsigned __int128>(c));
}

}  // namespace

absl::StatusOr<Mix> Mix::Make(const MixOptions& options) {
  const size_t num_sources = options.sizes.size();
  if (num_sources == 0) return absl::InvalidArgumentError("there are no sources to mix");
  if (!options.weights.empty() && options.weights.size() != num_sources) {
    return absl::InvalidArgumentError(absl::StrCat("there are ", options.weights.size(),
                                                   " weights for ", num_sources, " sources"));
  }
  if (options.size < 0) {
    return absl::InvalidArgumentError(absl::StrCat("size must be at least 1, not ", options.size));
  }
  for (size_t i = 0; i < options.weights.size(); ++i) {
    const double weight = options.weights[i];
    if (!(weight > 0) || !std::isfinite(weight)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the weight of source ", i + 1, " must be a positive number, not ", weight));
    }
    if (options.sizes[i] == 0)
      return absl::InvalidArgumentError(absl::StrCat("source ", i + 1, " has no samples"));
  }
  Mix mix;
  mix.sizes_ = options.sizes;
  const int64_t sum = std::accumulate(mix.sizes_.begin(), mix.sizes_.end(), int64_t{0});
  mix.size_ = options.size == 0 ? sum : options.size;
  if (sum == 0 && mix.size_ > 0) return absl::InvalidArgumentError("no source has samples");
  mix.counts_ =
      options.weights.empty() && mix.size_ == sum
          ? mix.sizes_
          : ShareOut(mix.size_, options.weights.empty()
                                    ? std::vector<double>(mix.sizes_.begin(), mix.sizes_.end())
                                    : options.weights);
  return mix;
}

// The first source takes every (size / count)-th position, evenly; the second shares out in the
// same way what is left, and so on. Tested by EverySampleOfAnEpochComesOnce.
Mix::Located Mix::Locate(int64_t position, int64_t epoch) const {
  int64_t size = size_;
  size_t source = 0;
  for (; source + 1 < counts_.size(); ++source) {
    const int64_t before = MultiplyDivide(position, counts_[source], size);
    if (MultiplyDivide(position + 1, counts_[source], size) > before) {
      position = before;
      break;
    }
    position -= before;
    size -= counts_[source];
  }
  const unsigned __int128 walked =
      static_cast<unsigned __int128>(epoch) * static_cast<unsigned __int128>(counts_[source]) +
      static_cast<unsigned __int128>(position);
  const auto length = static_cast<unsigned __int128>(sizes_[source]);
  return {static_cast<int>(source), static_cast<int64_t>(walked % length),
          static_cast<int64_t>(walked / length)};
}

}  // namespace lockstep::data
