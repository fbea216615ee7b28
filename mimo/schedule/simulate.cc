// Simulate: whether the lists of all ranks match and end. Declared in schedule.h.
//
// The lists alone decide which operations meet. The k-th send from a to b meets the k-th receive at
// b from a. The k-th collective of a group is the same one on all members.
//
// The first half pairs them up in linear time, and reports operations without a partner or with a
// different one. The second half lets every rank go as far as it can. A rank starts a batch; each
// pair or collective completes when its last member has started; a rank whose batch is complete
// starts its next. Every operation starts once, so this is linear too, and the result does not
// depend on the order of ranks.
//
// If ranks are left over, each waits for one that has not started its part. Following them must
// lead to a cycle, because every operation has a partner: that cycle is the deadlock.
//
// schedule_test checks it against schedules that are broken on purpose, simulate_test against a
// simulation that tries all orders.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "mimo/schedule/schedule.h"

namespace lockstep::mimo {
namespace {

constexpr size_t kMaxReported = 8;

// Where each group of the schedule is.
absl::StatusOr<std::vector<absl::Span<const int32_t>>> AllGroups(const Schedule& schedule) {
  std::vector<absl::Span<const int32_t>> groups;
  for (const GroupSet& set : schedule.group_sets) {
    if (set.group_size < 1 || static_cast<int64_t>(set.ranks.size()) % set.group_size != 0) {
      return absl::InvalidArgumentError(absl::StrCat("mimo: no schedule: the ", set.ranks.size(),
                                                     " ranks of ", set.name, " are no groups of ",
                                                     set.group_size));
    }
    for (int64_t i = 0; i < set.num_groups(); ++i) groups.push_back(set.group(i));
  }
  return groups;
}

absl::Status CheckForm(const Schedule& schedule,
                       const std::vector<absl::Span<const int32_t>>& groups) {
  const auto invalid = [](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat("mimo: no schedule: ", what));
  };
  const std::vector<int64_t>& offsets = schedule.op_offsets;
  const bool whole = schedule.world_size >= 1 &&
                     offsets.size() == static_cast<size_t>(schedule.world_size) + 1 &&
                     offsets.front() == 0 && std::is_sorted(offsets.begin(), offsets.end()) &&
                     offsets.back() == static_cast<int64_t>(schedule.ops.size());
  if (!whole) return invalid("op_offsets do not divide the operations among the ranks");
  std::vector<int64_t> last_group(static_cast<size_t>(schedule.world_size), -1);
  for (size_t g = 0; g < groups.size(); ++g) {
    for (int32_t rank : groups[g]) {
      if (rank < 0 || rank >= schedule.world_size) {
        return invalid(absl::StrCat("a group has rank ", rank));
      }
      int64_t& last = last_group[static_cast<size_t>(rank)];
      if (last == static_cast<int64_t>(g)) {
        return invalid(absl::StrCat("a group has rank ", rank, " twice"));
      }
      last = static_cast<int64_t>(g);
    }
  }
  for (int64_t rank = 0; rank < schedule.world_size; ++rank) {
    const absl::Span<const Op> ops = schedule.ops_of(rank);
    if (!ops.empty() && ops[0].with_previous) {
      return invalid(absl::StrCat("the first operation of rank ", rank, " has none before it"));
    }
    for (const Op& op : ops) {
      if (op.kind == OpKind::kWait) continue;
      const bool collective = op.kind == OpKind::kCollective;
      const int64_t partners =
          collective ? static_cast<int64_t>(groups.size()) : schedule.world_size;
      if (op.partner < 0 || op.partner >= partners) {
        return invalid(absl::StrCat("rank ", rank, " has an operation with ",
                                    collective ? "group " : "rank ", op.partner, " of ", partners));
      }
    }
  }
  return absl::OkStatus();
}

bool CarrySame(const Op& a, const Op& b) {
  return a.payload == b.payload && a.subject == b.subject && a.micro_batch == b.micro_batch &&
         a.rows == b.rows;
}

// The operations that meet.
struct Matches {
  std::vector<int32_t> rank_of;  // of each operation
  // For a send or receive the index of the other; for a collective its number among all.
  std::vector<int64_t> partner_of;
  std::vector<int64_t> wait_of;         // of each detached operation, or -1; empty if there is none
  std::vector<int64_t> members;         // operations, collective after collective, by rank
  std::vector<int64_t> member_offsets;  // collectives + 1
  int64_t transfers = 0;

  int64_t num_collectives() const { return static_cast<int64_t>(member_offsets.size()) - 1; }
  absl::Span<const int64_t> members_of(int64_t collective) const {
    const auto c = static_cast<size_t>(collective);
    return absl::MakeConstSpan(members).subspan(
        static_cast<size_t>(member_offsets[c]),
        static_cast<size_t>(member_offsets[c + 1] - member_offsets[c]));
  }
};

// Pairs up the operations of a schedule, and collects what cannot be.
class Matcher {
 public:
  Matcher(const Schedule& schedule, const std::vector<absl::Span<const int32_t>>& groups)
      : schedule_(schedule), groups_(groups) {
    matches_.partner_of.assign(schedule.ops.size(), -1);
    for (int64_t rank = 0; rank < schedule.world_size; ++rank) {
      matches_.rank_of.insert(matches_.rank_of.end(), schedule.ops_of(rank).size(),
                              static_cast<int32_t>(rank));
    }
  }

  absl::StatusOr<Matches> Match() {
    MatchTransfers();
    MatchCollectives();
    FindWaits();
    if (num_problems_ == 0) return std::move(matches_);
    std::string message = absl::StrCat("mimo: the schedule does not match in ", num_problems_,
                                       num_problems_ == 1 ? " place:" : " places:");
    for (const std::string& problem : problems_) absl::StrAppend(&message, "\n  ", problem);
    if (num_problems_ > problems_.size()) {
      absl::StrAppend(&message, "\n  and ", num_problems_ - problems_.size(), " more");
    }
    return absl::FailedPreconditionError(message);
  }

 private:
  const Op& op(int64_t index) const { return schedule_.ops[static_cast<size_t>(index)]; }
  int32_t rank_of(int64_t index) const { return matches_.rank_of[static_cast<size_t>(index)]; }
  std::string Text(int64_t index) const { return Describe(schedule_, rank_of(index), op(index)); }
  // "<operation><what>", and another operation; the text is made only where it is shown.
  void Report(int64_t index, const std::string& what, int64_t other = -1) {
    if (++num_problems_ > kMaxReported) return;
    problems_.push_back(absl::StrCat(Text(index), what, other < 0 ? "" : Text(other)));
  }

  // Indices of sends, or of receives, by sender, then by receiver, then in the order of their rank.
  std::vector<int64_t> BySenderAndReceiver(OpKind kind) const {
    std::vector<int64_t> found;
    for (size_t i = 0; i < schedule_.ops.size(); ++i) {
      if (schedule_.ops[i].kind == kind) found.push_back(static_cast<int64_t>(i));
    }
    // They come by rank. Sends lack order among one rank's partners alone; receives are dealt out
    // to their senders, which keeps the order of receivers.
    if (kind == OpKind::kSend) {
      for (auto begin = found.begin(); begin != found.end();) {
        const auto end = std::find_if(begin, found.end(),
                                      [&](int64_t i) { return rank_of(i) != rank_of(*begin); });
        std::stable_sort(begin, end,
                         [&](int64_t a, int64_t b) { return op(a).partner < op(b).partner; });
        begin = end;
      }
      return found;
    }
    std::vector<size_t> next(static_cast<size_t>(schedule_.world_size) + 1, 0);
    for (int64_t i : found) ++next[static_cast<size_t>(op(i).partner) + 1];
    for (size_t r = 1; r < next.size(); ++r) next[r] += next[r - 1];
    std::vector<int64_t> sorted(found.size());
    for (int64_t i : found) sorted[next[static_cast<size_t>(op(i).partner)]++] = i;
    return sorted;
  }

  void MatchTransfers() {
    const std::vector<int64_t> sends = BySenderAndReceiver(OpKind::kSend);
    const std::vector<int64_t> receives = BySenderAndReceiver(OpKind::kReceive);
    size_t s = 0;
    size_t r = 0;
    while (s < sends.size() || r < receives.size()) {
      const auto none = std::make_pair(INT32_MAX, INT32_MAX);
      const auto sent =
          s < sends.size() ? std::make_pair(rank_of(sends[s]), op(sends[s]).partner) : none;
      const auto received = r < receives.size()
                                ? std::make_pair(op(receives[r]).partner, rank_of(receives[r]))
                                : none;
      if (sent < received) {
        Report(sends[s++], absl::StrCat(", which rank ", sent.second, " never receives"));
      } else if (received < sent) {
        Report(receives[r++], absl::StrCat(", which rank ", received.first, " never sends"));
      } else {
        MatchPair(sends[s++], receives[r++]);
      }
    }
  }

  void MatchPair(int64_t send, int64_t receive) {
    matches_.partner_of[static_cast<size_t>(send)] = receive;
    matches_.partner_of[static_cast<size_t>(receive)] = send;
    ++matches_.transfers;
    if (CarrySame(op(send), op(receive))) return;
    Report(send, ", meets ", receive);
  }

  void MatchCollectives() {
    // The number of each group's k-th collective, and how many the rank at hand has had of it.
    std::vector<std::vector<int64_t>> numbers(groups_.size());
    std::vector<size_t> had(groups_.size(), 0);
    std::vector<int32_t> had_by(groups_.size(), -1);
    std::vector<std::vector<int64_t>> members;
    for (size_t i = 0; i < schedule_.ops.size(); ++i) {
      if (schedule_.ops[i].kind != OpKind::kCollective) continue;
      const auto group = static_cast<size_t>(schedule_.ops[i].partner);
      const int32_t rank = matches_.rank_of[i];
      if (had_by[group] != rank) {
        had_by[group] = rank;
        had[group] = 0;
      }
      const size_t k = had[group]++;
      if (k == numbers[group].size()) {
        numbers[group].push_back(static_cast<int64_t>(members.size()));
        members.emplace_back();
      }
      matches_.partner_of[i] = numbers[group][k];
      members[static_cast<size_t>(numbers[group][k])].push_back(static_cast<int64_t>(i));
    }
    CheckCollectives(numbers, members);
    matches_.member_offsets = {0};
    for (const std::vector<int64_t>& list : members) {
      matches_.members.insert(matches_.members.end(), list.begin(), list.end());
      matches_.member_offsets.push_back(static_cast<int64_t>(matches_.members.size()));
    }
  }

  void CheckCollectives(const std::vector<std::vector<int64_t>>& numbers,
                        const std::vector<std::vector<int64_t>>& members) {
    std::vector<int64_t> group_of_rank(static_cast<size_t>(schedule_.world_size), -1);
    for (size_t g = 0; g < groups_.size(); ++g) {
      if (numbers[g].empty()) continue;
      for (int32_t rank : groups_[g]) {
        group_of_rank[static_cast<size_t>(rank)] = static_cast<int64_t>(g);
      }
      for (int64_t number : numbers[g]) {
        CheckCollective(groups_[g], static_cast<int64_t>(g), group_of_rank,
                        members[static_cast<size_t>(number)]);
      }
    }
  }

  void CheckCollective(absl::Span<const int32_t> group, int64_t number,
                       const std::vector<int64_t>& group_of_rank,
                       const std::vector<int64_t>& members) {
    const size_t before = num_problems_;
    for (int64_t member : members) {
      if (group_of_rank[static_cast<size_t>(rank_of(member))] != number) {
        Report(member, ", which the rank is not in");
      } else if (!CarrySame(op(member), op(members[0]))) {
        Report(member, ", meets ", members[0]);
      }
    }
    if (num_problems_ > before || members.size() == group.size()) return;
    for (int32_t rank : group) {
      const bool takes_part = std::ranges::binary_search(
          members, rank, {}, [&](int64_t member) { return rank_of(member); });
      if (takes_part) continue;
      Report(members[0], absl::StrCat(", which rank ", rank, " never joins"));
      return;
    }
  }

  // Finds the kWait of each detached operation.
  void FindWaits() {
    const std::vector<Op>& ops = schedule_.ops;
    if (std::ranges::none_of(ops, [](const Op& op) { return op.detached; })) return;
    matches_.wait_of.assign(ops.size(), -1);
    std::map<std::tuple<Payload, int32_t, int32_t>, std::vector<int64_t>> detached;
    int32_t rank = -1;
    for (size_t i = 0; i < ops.size(); ++i) {
      if (matches_.rank_of[i] != rank) detached.clear();
      rank = matches_.rank_of[i];
      if (!ops[i].detached && ops[i].kind != OpKind::kWait) continue;
      std::vector<int64_t>& alike = detached[{ops[i].payload, ops[i].subject, ops[i].micro_batch}];
      if (ops[i].kind != OpKind::kWait) {
        alike.push_back(static_cast<int64_t>(i));
        continue;
      }
      for (const int64_t index : alike)
        matches_.wait_of[static_cast<size_t>(index)] = static_cast<int64_t>(i);
      alike.clear();
    }
  }

  const Schedule& schedule_;
  const std::vector<absl::Span<const int32_t>>& groups_;
  Matches matches_;
  std::vector<std::string> problems_;
  size_t num_problems_ = 0;
};

// Lets every rank go as far as it can.
class Runner {
 public:
  Runner(const Schedule& schedule, const Matches& matches)
      : schedule_(schedule),
        matches_(matches),
        started_(schedule.ops.size(), false),
        completed_(schedule.ops.size(), false),
        missing_(static_cast<size_t>(matches.num_collectives())),
        missing_of_wait_(matches.wait_of.size(), 0),
        ends_(schedule.op_offsets.begin(), schedule.op_offsets.end() - 1),
        pending_(static_cast<size_t>(schedule.world_size), 0) {
    for (const int64_t wait : matches.wait_of) {
      if (wait >= 0) ++missing_of_wait_[static_cast<size_t>(wait)];
    }
    for (int64_t c = 0; c < matches.num_collectives(); ++c) {
      missing_[static_cast<size_t>(c)] = static_cast<int64_t>(matches.members_of(c).size());
    }
  }

  absl::Status Run() {
    for (int64_t rank = 0; rank < schedule_.world_size; ++rank) ready_.push_back(rank);
    while (!ready_.empty()) {
      const int64_t rank = ready_.back();
      ready_.pop_back();
      StartBatch(rank);
    }
    for (int64_t rank = 0; rank < schedule_.world_size; ++rank) {
      if (pending_[static_cast<size_t>(rank)] > 0) return Deadlock(rank);
    }
    return absl::OkStatus();
  }

 private:
  const Op& op(int64_t index) const { return schedule_.ops[static_cast<size_t>(index)]; }

  // ends_ is where the batch of a rank ends; before the first, where it starts.
  void StartBatch(int64_t rank) {
    const auto r = static_cast<size_t>(rank);
    const int64_t begin = ends_[r];
    const int64_t last = schedule_.op_offsets[r + 1];
    int64_t end = begin < last ? begin + 1 : last;
    while (end < last && op(end).with_previous) ++end;
    ends_[r] = end;
    for (int64_t i = begin; i < end; ++i) pending_[r] += op(i).detached ? 0 : 1;
    const bool goes_on = begin < end && pending_[r] == 0;
    for (int64_t i = begin; i < end; ++i) Start(i);
    if (goes_on) ready_.push_back(rank);
  }

  void Start(int64_t index) {
    started_[static_cast<size_t>(index)] = true;
    const int64_t partner = matches_.partner_of[static_cast<size_t>(index)];
    if (op(index).kind == OpKind::kWait) {
      if (IsMissingNothing(index)) Complete(index);
    } else if (op(index).kind == OpKind::kCollective) {
      if (--missing_[static_cast<size_t>(partner)] > 0) return;
      for (int64_t member : matches_.members_of(partner)) Complete(member);
    } else if (started_[static_cast<size_t>(partner)]) {
      Complete(index);
      Complete(partner);
    }
  }

  void Complete(int64_t index) {
    completed_[static_cast<size_t>(index)] = true;
    if (op(index).detached) {
      const int64_t wait = matches_.wait_of[static_cast<size_t>(index)];
      if (wait < 0) return;
      --missing_of_wait_[static_cast<size_t>(wait)];
      if (started_[static_cast<size_t>(wait)] && IsMissingNothing(wait)) Complete(wait);
      return;
    }
    const int32_t rank = matches_.rank_of[static_cast<size_t>(index)];
    if (--pending_[static_cast<size_t>(rank)] == 0) ready_.push_back(rank);
  }

  bool IsMissingNothing(int64_t wait) const {
    return missing_of_wait_.empty() || missing_of_wait_[static_cast<size_t>(wait)] == 0;
  }

  // The first operation that keeps a rank in its batch.
  int64_t WaitsAt(int64_t rank) const {
    int64_t index = ends_[static_cast<size_t>(rank)] - 1;
    while (op(index).with_previous) --index;
    while (completed_[static_cast<size_t>(index)] || op(index).detached) ++index;
    return index;
  }

  // A rank that has not started its part of the operation.
  int64_t WaitsFor(int64_t index) const {
    for (int64_t i = 0; op(index).kind == OpKind::kWait && i < index; ++i) {
      if (matches_.wait_of[static_cast<size_t>(i)] == index && !completed_[static_cast<size_t>(i)])
        return op(i).partner;
    }
    if (op(index).kind != OpKind::kCollective) return op(index).partner;
    for (int64_t member : matches_.members_of(matches_.partner_of[static_cast<size_t>(index)])) {
      if (!started_[static_cast<size_t>(member)]) {
        return matches_.rank_of[static_cast<size_t>(member)];
      }
    }
    return matches_.rank_of[static_cast<size_t>(index)];
  }

  absl::Status Deadlock(int64_t rank) const {
    std::vector<int64_t> path;
    std::vector<bool> seen(static_cast<size_t>(schedule_.world_size), false);
    while (!seen[static_cast<size_t>(rank)]) {
      seen[static_cast<size_t>(rank)] = true;
      path.push_back(rank);
      rank = WaitsFor(WaitsAt(rank));
    }
    path.erase(path.begin(), std::find(path.begin(), path.end(), rank));
    std::string message =
        absl::StrCat("mimo: the schedule never ends: ", path.size(),
                     path.size() == 1 ? " rank waits" : " ranks wait", " for each other:");
    for (size_t i = 0; i < path.size() && i < kMaxReported; ++i) {
      absl::StrAppend(&message, "\n  ", Describe(schedule_, path[i], op(WaitsAt(path[i]))),
                      "; waits for rank ", path[(i + 1) % path.size()]);
    }
    if (path.size() > kMaxReported) {
      absl::StrAppend(&message, "\n  and ", path.size() - kMaxReported, " more");
    }
    return absl::FailedPreconditionError(message);
  }

  const Schedule& schedule_;
  const Matches& matches_;
  std::vector<bool> started_;
  std::vector<bool> completed_;
  std::vector<int64_t> missing_;          // members of each collective that have not started it
  std::vector<int64_t> missing_of_wait_;  // of each kWait, what it asks for that is not complete
  std::vector<int64_t> ends_;             // of each rank's batch
  std::vector<int64_t> pending_;          // operations of each rank's batch that have not completed
  std::vector<int64_t> ready_;            // ranks whose batch is complete
};

}  // namespace

absl::StatusOr<Simulation> Simulate(const Schedule& schedule) {
  const absl::StatusOr<std::vector<absl::Span<const int32_t>>> groups = AllGroups(schedule);
  if (!groups.ok()) return groups.status();
  const absl::Status form = CheckForm(schedule, *groups);
  if (!form.ok()) return form;
  const absl::StatusOr<Matches> matches = Matcher(schedule, *groups).Match();
  if (!matches.ok()) return matches.status();
  const absl::Status ends = Runner(schedule, *matches).Run();
  if (!ends.ok()) return ends;
  return Simulation{static_cast<int64_t>(schedule.ops.size()), matches->transfers,
                    matches->num_collectives()};
}

}  // namespace lockstep::mimo
