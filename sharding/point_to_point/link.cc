#include "sharding/point_to_point/link.h"

#include <exception>
#include <string>
#include <utility>

#include "base/torch/element_bytes.h"
#include "base/torch/runs_again.h"
#include "c10/util/Exception.h"

namespace lockstep::sharding {
namespace {

// Messages of one tag arrive in their order.
constexpr int kTag = 0;

}  // namespace

void MessageBatch::Wait() {
  const auto complain = [this](const std::string& cause) {
    TORCH_CHECK(false, "the connection to rank ", rank_, " has failed: ", cause);
  };
  for (const auto& work : std::exchange(works_, {})) {
    try {
      work->wait();
    } catch (const c10::Error& error) {
      complain(error.what_without_backtrace());
    } catch (const std::exception& error) {
      complain(error.what());
    }
  }
  tensors_.clear();
}

Link::Link(c10::intrusive_ptr<c10d::ProcessGroup> group, int position, int rank)
    : group_(std::move(group)), position_(position), rank_(rank) {}

std::unique_ptr<MessageBatch> Link::Start(const std::vector<at::Tensor>& sends,
                                          const std::vector<at::Tensor>& receives) {
  base::CheckRunsOnce("a message between two ranks");
  auto batch = std::make_unique<MessageBatch>();
  batch->rank_ = rank_;
  if (sends.empty() && receives.empty()) return batch;
  const c10::Device device = (sends.empty() ? receives : sends).front().device();
  const bool is_batch = group_->getBackend(device.type())->supportsCoalescing();
  if (is_batch) group_->startCoalescing(device.type());
  for (const at::Tensor& x : receives) {
    std::vector<at::Tensor> bytes = {base::ElementBytes(x.detach())};
    auto work = group_->recv(bytes, position_, kTag);
    if (!is_batch) batch->works_.push_back(std::move(work));
    batch->tensors_.push_back(bytes[0]);
  }
  for (const at::Tensor& x : sends) {
    std::vector<at::Tensor> bytes = {
        base::ElementBytes(x.detach().resolve_conj().resolve_neg().contiguous())};
    auto work = group_->send(bytes, position_, kTag);
    if (!is_batch) batch->works_.push_back(std::move(work));
    batch->tensors_.push_back(bytes[0]);
  }
  if (is_batch) {
    auto work = group_->endCoalescing(device.type());
    if (work != nullptr) batch->works_.push_back(std::move(work));
  }
  return batch;
}

}  // namespace lockstep::sharding
