#include "sharding/ring/exchange.h"

#include <numeric>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/empty.h"
#include "base/torch/versions/collectives.h"
#include "c10/util/Exception.h"

namespace lockstep::sharding {
namespace {

int64_t SumOf(const std::vector<int64_t>& counts, const char* name, int ranks) {
  TORCH_CHECK_VALUE(static_cast<int>(counts.size()) == ranks, "exchange: ", name, " has ",
                    counts.size(), " counts, but the group has ", ranks, " ranks");
  for (const int64_t count : counts)
    TORCH_CHECK_VALUE(count >= 0, "exchange: ", name, " has the count ", count,
                      "; counts are at least 0");
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

}  // namespace

Exchange::Exchange(const at::Tensor& x, std::vector<int64_t> gives, std::vector<int64_t> takes,
                   const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  const at::NoGradGuard no_grad;
  const int64_t given = SumOf(gives, "gives", group->getSize());
  TORCH_CHECK_VALUE(given == x.numel(), "exchange: gives adds up to ", given,
                    " elements, but x has ", x.numel());
  given_ = x.detach().resolve_conj().resolve_neg().contiguous().view(-1);
  taken_ = at::empty({SumOf(takes, "takes", group->getSize())}, given_.options());
  work_ = base::AllToAllSingle(*group, taken_, given_, takes, gives);
}

at::Tensor Exchange::Wait() {
  TORCH_CHECK(taken_.defined(), "exchange: the tensors have been taken before");
  work_->wait();
  work_ = nullptr;
  given_ = at::Tensor();
  return std::exchange(taken_, at::Tensor());
}

}  // namespace lockstep::sharding
