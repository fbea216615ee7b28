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

template <template <typename, typename> typename Kernel, typename Rows>
void RunByDtype(const Rows& rows, int64_t begin, int64_t end) {
  switch (rows.dtype) {
    case at::kFloat:
      return Kernel<OneThread, float>::Run({}, rows, begin, end);
    case at::kDouble:
      return Kernel<OneThread, double>::Run({}, rows, begin, end);
    case at::kBFloat16:
      return Kernel<OneThread, at::BFloat16>::Run({}, rows, begin, end);
    default:
      return Kernel<OneThread, at::Half>::Run({}, rows, begin, end);
  }
}

void RunOneThread(const AdamWTensors& all, int64_t begin, int64_t end) {
  RunAdamW(OneThread{}, all, begin, end);
}

const RowKernels kRowKernels = {
    .rms_norm = RunByDtype<RmsNorm, RmsNormRows>,
    .rms_norm_gradient = RunByDtype<RmsNormGradient, RmsNormGradientRows>,
    .swiglu = RunByDtype<Swiglu, SwigluRows>,
    .swiglu_gradient = RunByDtype<SwigluGradient, SwigluRows>,
    .rotate = RunByDtype<Rotate, RotateRows>,
    .adamw = RunOneThread,
};

const bool is_replaced = [] {
  ReplaceRowKernels(kRowKernels);
  return true;
}();

}  // namespace
}  // namespace lockstep::kernels
