#include <poll.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/raw_bytes.h"
#include "sharding/agreement/socket_collective.h"

// Gathering in rounds. Before round k a rank has the blocks of 2^k ranks: its own, and those of the
// ranks before it. It sends them to the rank 2^k places ahead, and gets as many from the rank 2^k
// places behind. In the last round fewer are missing.
//
// Each direction of a connection belongs to one round. Its messages are in the order of the
// all-gathers.
//
// Why a rank that fails sends the reason: a rank that waits in a later round waits for a rank that
// waits itself, so it cannot name the cause. In round 0 a rank waits for one that has not sent its
// own bytes, which is the cause. Some rank always waits for it in round 0, and tells the others.
//
// Ranks that are still in an earlier all-gather complete it. A rank that fails in a later one has
// already sent everything that the earlier one needs.

namespace lockstep::sharding {
namespace {

// The time that a rank in a later round waits for the cause after its own timeout.
constexpr absl::Duration kPatience = absl::Seconds(2);

// Returns the block that begins at `begin`, with its length before it. If the message ends inside
// the block, returns the bytes that are there.
std::string_view BlockAt(std::string_view blocks, size_t begin) {
  if (blocks.size() - begin < sizeof(uint32_t)) return blocks.substr(begin);
  const auto length = base::FromBytes<uint32_t>(blocks.data() + begin);
  return blocks.substr(begin, sizeof(length) + length);
}

}  // namespace

size_t SocketCollective::State::Behind(size_t round) const {
  return (static_cast<size_t>(rank) + peers.size() - (size_t{1} << round)) % peers.size();
}

void SocketCollective::State::StartRounds(int64_t number, const std::string& bytes) {
  Spread& spread = spreads[number];
  spread.blocks = base::BytesOf(static_cast<uint32_t>(bytes.size())) + bytes;
  SendBlocks(0, spread.blocks);
}

void SocketCollective::State::SendBlocks(size_t round, std::string_view blocks) {
  Peer& next = peers[(static_cast<size_t>(rank) + (size_t{1} << round)) % peers.size()];
  next.outgoing += base::BytesOf(static_cast<uint32_t>(blocks.size()));
  next.outgoing += blocks;
  Send(next);
}

// As far as messages have come.
void SocketCollective::State::Advance(int64_t number, Spread& spread) {
  while (spread.round < rounds) {
    const auto came = peers[Behind(spread.round)].messages.extract(number);
    if (came.empty()) return;
    spread.blocks += came.mapped();
    if (++spread.round == rounds) return;
    const size_t have = size_t{1} << spread.round;
    size_t end = spread.blocks.size();
    if (peers.size() - have < have) {  // the rest of what the other one needs
      end = 0;
      for (size_t i = 0; i < peers.size() - have; ++i) end += BlockAt(spread.blocks, end).size();
    }
    SendBlocks(spread.round, std::string_view(spread.blocks).substr(0, end));
  }
}

absl::Status SocketCollective::State::AwaitRounds(int64_t number) {
  const Deadline deadline(timeout), last(timeout + kPatience);
  const Spread& spread = spreads.at(number);
  std::vector<Peer*> open;  // connections
  for (const int each : neighbours) open.push_back(&peers[static_cast<size_t>(each)]);
  std::vector<pollfd> wanted(open.size(), {-1, 0, POLLIN});  // something may have come before
  for (;;) {
    for (size_t i = 0; i < open.size(); ++i) {
      Send(*open[i]);
      if (wanted[i].revents != 0) Receive(*open[i]);
    }
    for (auto& [each, other] : spreads) Advance(each, other);
    if (!failure.ok() && number >= failed) return failure;
    const bool missing = spread.round < rounds;
    const size_t awaited = missing ? Behind(spread.round) : 0;
    if (missing && peers[awaited].closed) return Fail(number, Lost(awaited));
    std::erase_if(open, [](const Peer* peer) { return peer->closed; });
    wanted.clear();
    bool sends = false;
    for (const Peer* peer : open) {
      sends |= !peer->outgoing.empty();
      wanted.push_back({peer->socket.fd(),
                        static_cast<short>(POLLIN | (peer->outgoing.empty() ? 0 : POLLOUT)), 0});
    }
    if (!missing && !sends) return absl::OkStatus();
    const bool is_direct = missing && spread.round == 0;
    const absl::Status polled = Poll(wanted, {NameOf(awaited)}, is_direct ? deadline : last);
    if (polled.ok()) continue;
    if (polled.code() != absl::StatusCode::kDeadlineExceeded) return polled;
    if (is_direct) return Fail(number, polled);
    return absl::DeadlineExceededError(
        absl::StrCat("sharding: rank ", OwnName(), " has waited ", absl::FormatDuration(timeout),
                     " for rank ", NameOf(awaited), ", or for a rank that this one waits for"));
  }
}

absl::StatusOr<std::vector<std::string>> SocketCollective::State::TakeBlocks(int64_t number,
                                                                             size_t expected) {
  const std::string blocks = std::move(spreads.extract(number).mapped().blocks);
  std::vector<std::string> all(peers.size());
  size_t begin = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    const std::string_view block = BlockAt(blocks, begin);
    begin += block.size();
    all[(static_cast<size_t>(rank) + all.size() - i) % all.size()] =
        block.substr(std::min(block.size(), sizeof(uint32_t)));
  }
  for (size_t other = 0; other < all.size(); ++other) {
    if (all[other].size() != expected) return WrongSize(other, all[other].size(), expected);
  }
  return all;
}

absl::Status SocketCollective::State::Fail(int64_t number, absl::Status status) {
  // A gathering that was given up may be behind.
  for (const auto& [each, spread] : spreads) {
    if (spread.round < rounds) number = std::min(number, each);
  }
  return Tell(number, std::move(status));
}

absl::Status SocketCollective::State::Tell(int64_t number, absl::Status status) {
  failure = std::move(status);
  failed = number;
  const std::string text =
      absl::StrCat(failed, " ", static_cast<int>(failure.code()), " ", failure.message());
  const std::string message = base::BytesOf(kFailure | static_cast<uint32_t>(text.size())) + text;
  for (const int each : neighbours) {
    Peer& peer = peers[static_cast<size_t>(each)];
    peer.outgoing += message;
    Send(peer);
  }
  return failure;
}

// Passes the error on, unless this rank knows one of the same gathering or of an earlier one.
void SocketCollective::State::ReadFailure(const std::string& message) {
  const std::vector<std::string> parts = absl::StrSplit(message, absl::MaxSplits(' ', 2));
  int64_t number = 0;
  int code = 0;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &number) ||
      !absl::SimpleAtoi(parts[1], &code))
    return;
  if (!failure.ok() && failed <= number) return;
  Tell(number, absl::Status(static_cast<absl::StatusCode>(code), parts[2])).IgnoreError();
}

}  // namespace lockstep::sharding
