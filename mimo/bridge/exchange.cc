#include "mimo/bridge/exchange.h"

#include <exception>
#include <string>
#include <utility>

#include "c10/util/Exception.h"

namespace lockstep::mimo {
namespace {

// Gloo keeps messages of two ranks apart by tags of 31 bits: 27 of the call, 4 of the tensor.
int TagOf(int64_t call, int tensor) {
  static_assert(kMaxTensors <= 16);
  return static_cast<int>((call & 0x7ffffff) << 4 | tensor);
}

}  // namespace

c10d::ProcessGroup& Exchange::Group() const {
  return direction_ == Direction::kForward ? *link_.forward : *link_.backward;
}

Exchange::Exchange(const Link& link, Direction direction, int64_t call)
    : link_(link), direction_(direction), call_(call) {}

void Exchange::StartRows(std::vector<Piece> sends, std::vector<Piece> receives) {
  if (sends.empty() && receives.empty()) return;
  const c10::Device device = (sends.empty() ? receives : sends).front().rows.device();
  const bool is_batch = Group().getBackend(device.type())->supportsCoalescing();
  if (is_batch) Group().startCoalescing(device.type());
  for (Piece& piece : receives) {
    std::vector<at::Tensor> tensors = {piece.rows};
    auto work = Group().recv(tensors, link_.position(piece.peer), TagOf(call_, piece.tensor));
    receives_.push_back({std::move(piece), std::move(work)});
  }
  for (Piece& piece : sends) {
    std::vector<at::Tensor> tensors = {piece.rows};
    auto work = Group().send(tensors, link_.position(piece.peer), TagOf(call_, piece.tensor));
    sends_.push_back({std::move(piece), std::move(work)});
  }
  if (is_batch) batches_.push_back(Group().endCoalescing(device.type()));
}

void Exchange::WaitForReceives() {
  for (const auto& batch : batches_) batch->wait();
  for (const Started& receive : receives_) {
    if (batches_.empty()) WaitFor("the rows of", receive.piece.peer, receive.work);
  }
  receives_.clear();
}

void Exchange::WaitForSends() {
  for (const auto& batch : batches_) batch->wait();
  for (const Started& send : sends_) {
    if (batches_.empty()) WaitFor(nullptr, send.piece.peer, send.work);
    // A gradient that is shared with anybody has been copied.
    const bool same =
        direction_ == Direction::kBackward || VersionOf(send.piece.rows) == send.piece.version;
    TORCH_CHECK(same, "mimo: bridge ", link_.name, ", call ", call_,
                ": x was changed in place while it was being sent to ",
                link_.Describe(send.piece.peer),
                "; give the bridge x:clone(), or leave x as it is until backward has run");
  }
  sends_.clear();
}

void Exchange::WaitFor(const char* what, int64_t peer,
                       const c10::intrusive_ptr<c10d::Work>& work) const {
  const auto complain = [&](const std::string& cause) {
    const std::string waited = what == nullptr ? "what was sent to be taken by" : what;
    TORCH_CHECK(false, link_.DescribeLoss(call_, waited, peer, cause));
  };
  try {
    work->wait();
  } catch (const c10::Error& error) {
    complain(error.what_without_backtrace());
  } catch (const std::exception& error) {
    complain(error.what());
  }
}

}  // namespace lockstep::mimo
