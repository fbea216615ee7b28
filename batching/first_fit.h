// First fit: each thing goes into the first of a growing row of bins that has room for it.
//
//   FirstFit first_fit(/*capacity=*/10);
//   first_fit.Place(6);  // 0
//   first_fit.Place(5);  // 1: bin 0 has room for 4
//   first_fit.Place(4);  // 0
//
// Things placed in order of falling size need at most 11/9 of the fewest bins, and one more
// (Johnson 1973). Of plan.cc alone. Thread: used by one thread.

#ifndef LOCKSTEP_BATCHING_FIRST_FIT_H_
#define LOCKSTEP_BATCHING_FIRST_FIT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::batching {

class FirstFit {
 public:
  explicit FirstFit(int64_t capacity) : capacity_(capacity) {}

  // The bin, from 0, that takes something of this size, from 1 to `capacity`: a new one, behind the
  // others, where none has room. O(log bins).
  size_t Place(int64_t size);

 private:
  void Append();
  void SetRoom(size_t leaf, int64_t room);

  int64_t capacity_;
  size_t num_bins_ = 0;
  size_t num_leaves_ = 0;  // a power of two, or none
  // A tree in heap order, of the most room below each node; leaves, which are the bins, from
  // num_leaves_ on. -1 where there is no bin yet.
  std::vector<int64_t> room_;
};

}  // namespace lockstep::batching

#endif  // LOCKSTEP_BATCHING_FIRST_FIT_H_
