#include "mimo/exchange.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "ATen/ops/empty.h"
#include "absl/strings/str_cat.h"
#include "c10/util/Exception.h"

namespace lockstep::mimo {
namespace {

// Tags keep the messages of two ranks apart, in the 31 bits that Gloo has for them: 7 of the call,
// 4 of the tensor, 20 of what the ranks planned. Rows under one tag that differ in size end a
// process of Gloo's, so two plans that disagree must not share one: of a million pairs one does.
// The call's other bits are mixed into the 20, so that no two of 2^27 calls of one plan are alike.
// Directions have a group each, and need no bit.
int TagOf(int64_t call, int slot, uint64_t fingerprint) {
  const int64_t planned = static_cast<int64_t>((fingerprint ^ fingerprint >> 20) & 0xfffff);
  return static_cast<int>((call & 0x7f) << 24 | int64_t{slot} << 20 |
                          (planned ^ (call >> 7 & 0xfffff)));
}
constexpr int kWordSlot = 15;
static_assert(kMaxTensors <= kWordSlot);

}  // namespace

void Word::set_text(const std::string& value) {
  const size_t size = std::min(value.size(), sizeof(text) - 1);
  std::memcpy(text, value.data(), size);
  std::memset(text + size, 0, sizeof(text) - size);
}

int Link::position(int64_t rank) const {
  const auto it = std::find(ranks.begin(), ranks.end(), rank);
  TORCH_INTERNAL_ASSERT(it != ranks.end(), "mimo: rank ", rank, " is not of the bridge ", name);
  return static_cast<int>(it - ranks.begin());
}

std::string Link::Describe(int64_t rank) const {
  return absl::StrCat("rank ", rank, " (", modules[static_cast<size_t>(position(rank))], ")");
}

c10d::ProcessGroup& Exchange::Group() const {
  return direction_ == Direction::kForward ? *link_.forward : *link_.backward;
}

Exchange::Exchange(const Link& link, Direction direction, int64_t call)
    : link_(link), direction_(direction), call_(call) {}

void Exchange::ReceiveWords(const std::vector<int32_t>& from) {
  for (const int32_t peer : from) {
    from_.push_back(peer);
    word_tensors_.push_back(at::empty({static_cast<int64_t>(sizeof(Word))}, at::kByte));
    std::vector<at::Tensor> tensors = {word_tensors_.back()};
    word_receives_.push_back(
        Group().recv(tensors, link_.position(peer), TagOf(call_, kWordSlot, 0)));
  }
}

void Exchange::SendWord(const Word& word, int32_t to) {
  to_.push_back(to);
  std::vector<at::Tensor> tensors = {at::empty({static_cast<int64_t>(sizeof(Word))}, at::kByte)};
  std::memcpy(tensors[0].mutable_data_ptr(), &word, sizeof(Word));
  word_sends_.push_back(Group().send(tensors, link_.position(to), TagOf(call_, kWordSlot, 0)));
}

const std::vector<Word>& Exchange::WaitForWords() {
  for (size_t i = words_.size(); i < from_.size(); ++i) {
    WaitFor("the word", from_[i], word_receives_[i]);
    Word word;
    std::memcpy(&word, word_tensors_[i].const_data_ptr(), sizeof(Word));
    words_.push_back(word);
    TORCH_CHECK(word.is_error == 0, "mimo: bridge ", link_.name, ", call ", call_, ": ",
                link_.Describe(from_[i]), " failed: ", word.text);
  }
  return words_;
}

void Exchange::StartRows(std::vector<Piece> sends, std::vector<Piece> receives,
                         uint64_t fingerprint) {
  if (sends.empty() && receives.empty()) return;
  const c10::Device device = (sends.empty() ? receives : sends).front().rows.device();
  const auto tag = [&](const Piece& piece) { return TagOf(call_, piece.tensor, fingerprint); };
  if (device.is_cuda()) Group().startCoalescing(device.type());
  for (Piece& piece : receives) {
    std::vector<at::Tensor> tensors = {piece.rows};
    auto work = Group().recv(tensors, link_.position(piece.peer), tag(piece));
    receives_.push_back({std::move(piece), std::move(work)});
  }
  for (Piece& piece : sends) {
    std::vector<at::Tensor> tensors = {piece.rows};
    auto work = Group().send(tensors, link_.position(piece.peer), tag(piece));
    const int64_t version = piece.rows.is_inference() ? 0 : piece.rows._version();
    sends_.push_back({std::move(piece), std::move(work), version});
  }
  if (device.is_cuda()) batches_.push_back(Group().endCoalescing(device.type()));
}

void Exchange::WaitForReceives() {
  for (const auto& batch : batches_) batch->wait();
  for (const Started& receive : receives_) {
    if (batches_.empty()) WaitFor("rows", receive.piece.peer, receive.work);
  }
  receives_.clear();
}

void Exchange::WaitForSends() {
  for (const auto& batch : batches_) batch->wait();
  for (const Started& send : sends_) {
    if (batches_.empty()) WaitFor(nullptr, send.piece.peer, send.work);
    // A gradient that is shared with anybody has been copied.
    const bool same = direction_ == Direction::kBackward || send.piece.rows.is_inference() ||
                      send.piece.rows._version() == send.version;
    TORCH_CHECK(same, "mimo: bridge ", link_.name, ", call ", call_,
                ": x was changed in place while it was being sent to ",
                link_.Describe(send.piece.peer),
                "; give the bridge x:clone(), or leave x as it is until backward has run");
  }
  for (size_t i = 0; i < word_sends_.size(); ++i) WaitFor(nullptr, to_[i], word_sends_[i]);
  sends_.clear();
  word_sends_.clear();
}

void Exchange::WaitFor(const char* what, int64_t peer,
                       const c10::intrusive_ptr<c10d::Work>& work) const {
  const auto complain = [&](const std::string& cause) {
    const std::string waited =
        what == nullptr ? absl::StrCat(link_.Describe(peer), " to take what was sent to it")
                        : absl::StrCat(what, " of ", link_.Describe(peer));
    TORCH_CHECK(false, "mimo: bridge ", link_.name, ", call ", call_,
                direction_ == Direction::kForward ? "" : ", gradient", ": ",
                link_.Describe(link_.rank), " waited for ", waited, ": ", cause);
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
