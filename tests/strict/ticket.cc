#include "tests/strict/ticket.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>

#include "absl/strings/str_cat.h"

namespace lockstep::tests {
namespace {

template <size_t kSize>
void SetText(char (&text)[kSize], const std::string& value) {
  std::memset(text, 0, kSize);
  std::memcpy(text, value.data(), std::min(value.size(), kSize - 1));
}

const char* NameOf(NodeOrder order) {
  return order == NodeOrder::kOfLaterForward ? "a later" : "an earlier";
}

// Why the two never meet, or would carry the wrong data; "" where they agree.
std::string FindReason(int rank_a, const Ticket& a, int rank_b, const Ticket& b) {
  if (a.role == Role::kCollective && std::strcmp(a.what, b.what) != 0) {
    return "NCCL pairs the operations of a communicator by their order alone, and would hang or "
           "mix up their data; issue them in one order, with equal sizes and dtypes, on every rank";
  }
  if (a.role == b.role && a.role != Role::kCollective) {
    return absl::StrCat("NCCL runs the unbatched operations of a pair in order of issue, so that ",
                        a.role == Role::kSend ? "each send waits for the other's receive"
                                              : "each receive waits for the other's send",
                        "; give both in one batch, or let one of the ranks begin with the other "
                        "operation");
  }
  if (a.after != b.after) {
    return absl::StrCat("rank ", rank_a, " has issued ", a.after,
                        " collectives of the group "
                        "before it, rank ",
                        rank_b, " has issued ", b.after,
                        "; a communicator runs its operations in order of issue, so that each "
                        "rank would wait for the other");
  }
  if (a.tag != b.tag) {
    return absl::StrCat("the tags are ", a.tag, " and ", b.tag,
                        "; NCCL ignores tags and pairs "
                        "the messages of two ranks in order of issue, so that another message "
                        "than the one meant would arrive");
  }
  if (a.gives != b.takes || a.takes != b.gives || std::strcmp(a.dtype, b.dtype) != 0) {
    return "both sides must name the same size and dtype; NCCL does not compare them, and would "
           "hang or write past the end";
  }
  const auto is_known = [](NodeOrder order) {
    return order == NodeOrder::kOfLaterForward || order == NodeOrder::kOfEarlierForward;
  };
  if (is_known(a.order) && is_known(b.order) && a.order != b.order) {
    return absl::StrCat(
        "backward issues it, on rank ", rank_a, " for ", NameOf(a.order),
        " part of forward than the operation before, on rank ", rank_b, " for ", NameOf(b.order),
        " one; NCCL pairs operations in order of issue and would "
        "hand one part's data to the other; run backward in one order on all ranks");
  }
  return "";
}

}  // namespace

void Ticket::set_dtype(const std::string& value) { SetText(dtype, value); }

void Ticket::set_what(const std::string& value) {
  if (value.size() < sizeof(what)) {
    SetText(what, value);
    return;
  }
  const std::string rest = absl::StrCat("... (", absl::Hex(std::hash<std::string>()(value)), ")");
  SetText(what, value.substr(0, sizeof(what) - 1 - rest.size()) + rest);
}

std::string FindDisagreement(int rank_a, const Ticket& a, int rank_b, const Ticket& b) {
  if (rank_a > rank_b) return FindDisagreement(rank_b, b, rank_a, a);
  const std::string reason = FindReason(rank_a, a, rank_b, b);
  if (reason.empty()) return "";
  return absl::StrCat("rank ", rank_a, " issued \"", a.what, "\", rank ", rank_b, " issued \"",
                      b.what, "\": ", reason);
}

}  // namespace lockstep::tests
