#include "sharding/agreement/call_order.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/raw_bytes.h"

namespace lockstep::sharding {
namespace {

// A message is a hash of what must be alike, the number of gathered bytes, these bytes, then text
// for people, filled up with zeros. One size for all: so a message needs no second round, and one
// packet carries it.
constexpr size_t kMessageBytes = 256;
constexpr size_t kGatheredAt = sizeof(uint64_t) + 1;
constexpr size_t kTextAt = kGatheredAt + CallOrder::kMaxGatheredBytes;
constexpr size_t kTextBytes = kMessageBytes - kTextAt;

// As many announcements as may wait for a check. Those before have long arrived.
constexpr size_t kMaxUnchecked = 64;

std::string MessageOf(const CallOrder::Call& call, const std::string& bytes) {
  const std::string at = call.place.empty() ? "" : absl::StrCat(" (", call.place, ")");
  // The line is worth more than the end of a long list of shapes.
  const size_t room = kTextBytes - std::min(at.size(), kTextBytes / 2);
  const std::string what =
      call.what.size() <= room ? call.what : absl::StrCat(call.what.substr(0, room - 3), "...");
  const uint64_t hash =
      base::TextHash(absl::StrCat(call.what, "\n", call.is_one_place ? call.place : "any place"));
  std::string message = base::BytesOf(hash);
  message += static_cast<char>(bytes.size());
  message += bytes;
  message.resize(kTextAt, '\0');
  absl::StrAppend(&message, what, at);
  message.resize(kMessageBytes, '\0');
  return message;
}

std::string TextOf(const std::string& message) {
  const std::string text = message.substr(kTextAt);
  return text.substr(0, text.find('\0'));
}

std::string GatheredOf(const std::string& message) {
  return message.substr(kGatheredAt, static_cast<unsigned char>(message[kGatheredAt - 1]));
}

bool IsSameCall(const std::string& a, const std::string& b) {
  return a.compare(0, sizeof(uint64_t), b, 0, sizeof(uint64_t)) == 0;
}

}  // namespace

CallOrder::CallOrder(Collective* collective, std::string group)
    : collective_(collective), group_(std::move(group)) {}

std::shared_ptr<CallOrder::Told> CallOrder::Tell(const Call& call, const std::string& bytes) {
  for (const Call& refused : std::exchange(refused_, {})) TellOne(refused, "", true);
  return TellOne(call, bytes, false);
}

std::shared_ptr<CallOrder::Told> CallOrder::TellOne(const Call& call, const std::string& bytes,
                                                    bool is_refused) {
  std::string message = MessageOf(call, bytes);
  std::unique_ptr<Collective::Pending> pending = collective_->StartAllGather(message);
  auto told = std::make_shared<Told>(
      Told{std::move(message), ++calls_, is_refused, std::move(pending), {}});
  told_.push_back(told);
  return told;
}

void CallOrder::Refuse(const Call& call) { refused_.push_back(call); }

absl::Status CallOrder::Check(const Call& call) {
  Tell(call, "");
  while (!told_.empty()) {
    const absl::Status status = CompareOldest();
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status CallOrder::Announce(const Call& call) {
  Tell(call, "");
  while (told_.size() > kMaxUnchecked) {
    const absl::Status status = CompareOldest();
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// A gathering among the calls. Another call may compare it first, and then leaves its bytes here.
class CallOrder::Gathering : public Collective::Pending {
 public:
  Gathering(CallOrder& order, std::shared_ptr<Told> told) : order_(order), told_(std::move(told)) {}

  absl::StatusOr<std::vector<std::string>> Wait() override {
    while (told_->gathered.empty()) {
      if (order_.told_.empty())
        return absl::FailedPreconditionError("the ranks called different collectives before");
      const absl::Status status = order_.CompareOldest();
      if (!status.ok()) return status;
    }
    return std::move(told_->gathered);
  }

 private:
  CallOrder& order_;
  std::shared_ptr<Told> told_;
};

std::unique_ptr<Collective::Pending> CallOrder::StartGather(const Call& call,
                                                            const std::string& bytes) {
  return std::make_unique<Gathering>(*this, Tell(call, bytes));
}

absl::Status CallOrder::CompareOldest() {
  const std::shared_ptr<Told> told = std::move(told_.front());
  told_.pop_front();
  const absl::StatusOr<std::vector<std::string>> messages = told->pending->Wait();
  if (!messages.ok()) {
    return absl::Status(messages.status().code(),
                        absl::StrCat("collective ", told->number, " of ", group_, ", ",
                                     TextOf(told->message), ": ", messages.status().message()));
  }
  if (told->is_refused) return absl::OkStatus();
  const auto is_same = [&](const std::string& other) { return IsSameCall(other, told->message); };
  if (std::all_of(messages->begin(), messages->end(), is_same)) {
    for (const std::string& message : *messages) told->gathered.push_back(GatheredOf(message));
    return absl::OkStatus();
  }
  std::string text = absl::StrCat("the ranks call different collectives, each as its collective ",
                                  told->number, " of ", group_, ":");
  for (size_t i = 0; i < messages->size(); ++i) {
    absl::StrAppend(&text, "\n  rank ", collective_->WorldRank(static_cast<int>(i)), ": ",
                    TextOf((*messages)[i]));
  }
  absl::StrAppend(
      &text,
      "\nEvery rank of a group calls the same collectives in the same order. Calls that "
      "belong together stand on one line, in a function that all ranks call.");
  return absl::FailedPreconditionError(text);
}

}  // namespace lockstep::sharding
