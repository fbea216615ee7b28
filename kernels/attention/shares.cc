#include "kernels/attention/shares.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace lockstep::kernels {
namespace {

// The operators around a kernel take as long as a sequence of so many tokens.
constexpr double kTokensOfACall = 48;
constexpr double kMostAboveMean = 1.1;

double CostOf(int64_t length) {
  const double tokens = static_cast<double>(length);
  return tokens * tokens + kTokensOfACall * kTokensOfACall;
}

}  // namespace

// Longest first, each to the thread with the least so far (Graham, 1969). If the result is uneven,
// the longest sequence is taken out and the rest is shared out again.
Shares ShareOut(c10::IntArrayRef seq_lens, int64_t threads) {
  std::vector<int64_t> order(seq_lens.size());
  std::iota(order.begin(), order.end(), 0);
  if (threads <= 1) return {.alone = {}, .together = {order}};
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return seq_lens[a] > seq_lens[b]; });
  double rest = 0;
  for (const int64_t length : seq_lens) rest += CostOf(length);
  for (auto first = order.begin(); order.end() - first >= threads; ++first) {
    std::vector<std::vector<int64_t>> together(threads);
    std::vector<double> costs(threads, 0.0);
    for (auto i = first; i != order.end(); ++i) {
      const auto least = std::min_element(costs.begin(), costs.end());
      *least += CostOf(seq_lens[*i]);
      together[least - costs.begin()].push_back(*i);
    }
    const double most = *std::max_element(costs.begin(), costs.end());
    if (most * static_cast<double>(threads) <= kMostAboveMean * rest)
      return {.alone = {order.begin(), first}, .together = std::move(together)};
    rest -= CostOf(seq_lens[*first]);
  }
  return {.alone = std::move(order), .together = {}};
}

}  // namespace lockstep::kernels
