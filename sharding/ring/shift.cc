#include "sharding/ring/shift.h"

#include <utility>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/empty.h"
#include "base/torch/versions/collectives.h"
#include "c10/util/Exception.h"
#include "c10/util/accumulate.h"

namespace lockstep::sharding {

Shift::Shift(const at::Tensor& x, at::IntArrayRef sizes,
             const c10::intrusive_ptr<c10d::ProcessGroup>& group)
    : sizes_(sizes.vec()) {
  const at::NoGradGuard no_grad;
  given_ = x.detach().resolve_conj().resolve_neg().contiguous().view(-1);
  if (group->getSize() == 1) {
    taken_ = given_.clone();
    return;
  }
  const auto ranks = static_cast<size_t>(group->getSize());
  const auto rank = static_cast<size_t>(group->getRank());
  taken_ = at::empty({c10::multiply_integers(sizes)}, given_.options());
  std::vector<int64_t> gives(ranks, 0), takes(ranks, 0);
  gives[(rank + 1) % ranks] = given_.numel();
  takes[(rank + ranks - 1) % ranks] = taken_.numel();
  work_ = base::AllToAllSingle(*group, taken_, given_, takes, gives);
}

at::Tensor Shift::Wait() {
  TORCH_CHECK(taken_.defined(), "shift: the tensor has been taken before");
  if (work_ != nullptr) work_->wait();
  work_ = nullptr;
  given_ = at::Tensor();
  return std::exchange(taken_, at::Tensor()).view(sizes_);
}

}  // namespace lockstep::sharding
