// Samples in order of falling cost, from which the most expensive one that fits is taken.
//
//    Queue queue(samples, order);
//    queue.Take(/*most_cost=*/10, /*most_tokens=*/100);  // an element of `order`, or -1
//
// Private to balance.cc and ride.cc. Not thread-safe.

#ifndef LOCKSTEP_BATCHING_BALANCE_QUEUE_H_
#define LOCKSTEP_BATCHING_BALANCE_QUEUE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/types/span.h"
#include "batching/plan.h"

namespace lockstep::batching {

// A tree holds the fewest tokens of any sample below each node, so finding the most expensive
// sample that fits takes O(log n).
class Queue {
 public:
  // `order` holds indices into `samples`, by falling cost. Both must outlive the queue.
  Queue(absl::Span<const Sample> samples, const std::vector<int64_t>& order)
      : samples_(samples), order_(order) {
    while (capacity_ < order.size()) capacity_ *= 2;
    fewest_.assign(2 * capacity_, kTaken);
    for (size_t position = 0; position < order.size(); ++position) {
      fewest_[capacity_ + position] = at(order[position]).tokens;
      cost_left_ += at(order[position]).cost;
    }
    for (size_t node = capacity_ - 1; node >= 1; --node)
      fewest_[node] = std::min(fewest_[2 * node], fewest_[2 * node + 1]);
  }

  bool empty() const { return fewest_[1] == kTaken; }
  double cost_left() const { return cost_left_; }
  const Sample& most_expensive() const { return at(order_[First(0, kTaken - 1)]); }

  // Takes the most expensive sample of at most this cost and so many tokens; returns -1 if there is
  // no such sample.
  int64_t Take(double most_cost, int64_t most_tokens) {
    const auto begin = std::partition_point(order_.begin(), order_.end(),
                                            [&](int64_t i) { return at(i).cost > most_cost; });
    const size_t position = First(static_cast<size_t>(begin - order_.begin()), most_tokens);
    if (position == order_.size()) return -1;
    size_t node = capacity_ + position;
    fewest_[node] = kTaken;
    for (node /= 2; node >= 1; node /= 2)
      fewest_[node] = std::min(fewest_[2 * node], fewest_[2 * node + 1]);
    cost_left_ -= at(order_[position]).cost;
    return order_[position];
  }

  // Returns the remaining samples, most expensive first.
  std::vector<int64_t> Rest() const {
    std::vector<int64_t> rest;
    for (size_t position = 0; position < order_.size(); ++position) {
      if (fewest_[capacity_ + position] != kTaken) rest.push_back(order_[position]);
    }
    return rest;
  }

 private:
  static constexpr int64_t kTaken = std::numeric_limits<int64_t>::max();

  const Sample& at(int64_t i) const { return samples_[static_cast<size_t>(i)]; }

  // The first position from `from` on of a sample of at most `most_tokens`; order_.size() where
  // none is.
  size_t First(size_t from, int64_t most_tokens) const {
    size_t node = capacity_ + from;
    if (from >= order_.size()) return order_.size();
    // Up until a subtree to the right holds one, then down to its leftmost.
    while (fewest_[node] > most_tokens) {
      while (node % 2 == 1) node /= 2;
      if (node == 0) return order_.size();
      ++node;
    }
    while (node < capacity_) node = fewest_[2 * node] <= most_tokens ? 2 * node : 2 * node + 1;
    return node - capacity_;
  }

  absl::Span<const Sample> samples_;
  const std::vector<int64_t>& order_;
  size_t capacity_ = 1;
  std::vector<int64_t> fewest_;  // heap order; leaves from capacity_ on
  double cost_left_ = 0;
};

}  // namespace lockstep::batching

#endif  // LOCKSTEP_BATCHING_BALANCE_QUEUE_H_
