// Runs the tests of a binary that links this with the packs of a GPU's thread (device_pack.h). A
// block has one thread here.

#include <cstdint>

#include "kernels/device_pack.h"
#include "kernels/loops.h"
#include "kernels/rows.h"

namespace lockstep::kernels {
namespace {

// The Machine of loops.h.
struct OneThread {
  template <typename T>
  using Pack = DevicePack<T>;

  template <typename T, typename Visit>
  void ForEachPack(int64_t length, const Visit& visit) const {
    constexpr int64_t kSize = DevicePack<T>::kSize;
    for (int64_t i = 0; i < length; i += kSize) {
      if (i + kSize <= length)
        visit(i, Whole{});
      else
        visit(i, First{length - i});
    }
  }

  template <typename P>
  typename P::Acc Total(const P& pack) const {
    return pack.Total();
  }

  template <typename Make>
  auto Once(const Make& make) const {
    return make();
  }
};

constexpr RowKernels kRowKernels = KernelsOfOneThread<OneThread>();

const bool is_replaced = [] {
  ReplaceRowKernels(kRowKernels);
  return true;
}();

}  // namespace
}  // namespace lockstep::kernels
