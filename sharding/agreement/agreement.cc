#include "sharding/agreement/agreement.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sharding/agreement/gather_texts.h"

namespace lockstep::sharding {
namespace {

bool Contains(const std::string& states, Has has) {
  return states.find(static_cast<char>(has)) != std::string::npos;
}

}  // namespace

Agreement::Agreement(Collective* collective, Policy policy)
    : collective_(collective), policy_(policy) {}

void Agreement::MakeOffer(const Offer& offer) {
  offer_ = offer;
  // The policy travels with each offer: it costs one byte, and no meeting when the loop is made.
  if (collective_ != nullptr) {
    pending_ =
        collective_->StartAllGather({static_cast<char>(offer.has), static_cast<char>(policy_)});
  }
}

absl::StatusOr<Decision> Agreement::Decide() {
  std::string states(1, static_cast<char>(offer_.has));
  if (pending_ != nullptr) {
    const absl::StatusOr<std::vector<std::string>> gathered =
        std::exchange(pending_, nullptr)->Wait();
    if (!gathered.ok()) return gathered.status();
    states.clear();
    std::string policies;
    for (const std::string& bytes : *gathered) {
      states += bytes[0];
      policies += bytes[1];
    }
    if (policies != std::string(policies.size(), static_cast<char>(policy_)))
      return DifferentPolicies(policies);
  }
  const int64_t step = step_++;
  if (Contains(states, Has::kError)) return GatherErrors(states);
  if (Contains(states, Has::kStop) || !Contains(states, Has::kBatch)) return Decision::kStop;
  if (policy_ == Policy::kUntilFirst) {
    return Contains(states, Has::kFiller) || Contains(states, Has::kNothing) ? Decision::kStop
                                                                             : Decision::kGo;
  }
  if (!Contains(states, Has::kNothing)) return Decision::kGo;
  return absl::FailedPreconditionError(absl::StrCat(
      "sharding: at step ", step, " ranks ", RanksWith(states, static_cast<char>(Has::kNothing)),
      " have no batch at all to repeat, while ranks ",
      RanksWith(states, static_cast<char>(Has::kBatch)),
      " have one; give a filler that makes one from nothing, or stop with until_first"));
}

int Agreement::WorldRank(size_t position) const {
  const int index = static_cast<int>(position);
  return collective_ == nullptr ? index : collective_->WorldRank(index);
}

std::string Agreement::RanksWith(const std::string& bytes, char byte) const {
  std::vector<int> ranks;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] == byte) ranks.push_back(WorldRank(i));
  }
  return absl::StrCat("{", absl::StrJoin(ranks, ", "), "}");
}

absl::Status Agreement::DifferentPolicies(const std::string& policies) const {
  return absl::FailedPreconditionError(absl::StrCat(
      "sharding: the ranks run this loop with different policies: until_first on ranks ",
      RanksWith(policies, static_cast<char>(Policy::kUntilFirst)), ", until_last on ranks ",
      RanksWith(policies, static_cast<char>(Policy::kUntilLast)),
      "; give every rank the same policy"));
}

absl::Status Agreement::GatherErrors(const std::string& states) {
  std::vector<std::string> errors = {offer_.error};
  if (collective_ != nullptr) {
    absl::StatusOr<std::vector<std::string>> gathered = GatherTexts(*collective_, offer_.error);
    if (!gathered.ok()) return gathered.status();
    errors = *std::move(gathered);
  }
  const size_t first = states.find(static_cast<char>(Has::kError));
  return absl::AbortedError(absl::StrCat("sharding: rank ", WorldRank(first), " failed at step ",
                                         step_ - 1, ": ", errors[first]));
}

}  // namespace lockstep::sharding
