// First fit: each item goes into the first bin that has room for it.
//
//    FirstFit first_fit(/*capacity=*/10);
//    first_fit.Place(6);  // 0
//    first_fit.Place(5);  // 1: bin 0 has room for 4
//    first_fit.Place(4);  // 0
//
// Items placed in order of falling size need at most 11/9 of the fewest bins, and one more
// (Johnson 1973). Private to //batching. Not thread-safe.

#ifndef LOCKSTEP_BATCHING_BALANCE_FIRST_FIT_H_
#define LOCKSTEP_BATCHING_BALANCE_FIRST_FIT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::batching {

class FirstFit {
 public:
  explicit FirstFit(int64_t capacity) : capacity_(capacity) {}

  // Returns the bin, counted from 0, that takes an item of `size` (from 1 to `capacity`). Opens a
  // new bin if no bin has room. O(log bins).
  size_t Place(int64_t size);

 private:
  void Append();
  void SetRoom(size_t leaf, int64_t room);

  int64_t capacity_;
  size_t num_bins_ = 0;
  size_t num_leaves_ = 0;  // a power of two, or none
  // A tree in heap order. Each node holds the most room of any bin below it. The bins are the
  // leaves, from num_leaves_ on; -1 stands for a bin that is not open yet.
  std::vector<int64_t> room_;
};

}  // namespace lockstep::batching

#endif  // LOCKSTEP_BATCHING_BALANCE_FIRST_FIT_H_
