#include "sharding/agreement.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sharding/gather_texts.h"

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
  if (collective_ != nullptr)
    pending_ = collective_->StartAllGather(std::string(1, static_cast<char>(offer.has)));
}

absl::StatusOr<Decision> Agreement::Decide() {
  std::string states(1, static_cast<char>(offer_.has));
  if (pending_ != nullptr) {
    const absl::StatusOr<std::vector<std::string>> gathered =
        std::exchange(pending_, nullptr)->Wait();
    if (!gathered.ok()) return gathered.status();
    states = absl::StrJoin(*gathered, "");
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
      "sharding: at step ", step, " ranks {",
      absl::StrJoin(RanksThatHave(states, Has::kNothing), ", "),
      "} have no batch at all to repeat, while ranks {",
      absl::StrJoin(RanksThatHave(states, Has::kBatch), ", "),
      "} have one; give a filler that makes one from nothing, or stop with until_first"));
}

std::vector<int> Agreement::RanksThatHave(const std::string& states, Has has) const {
  std::vector<int> ranks;
  for (size_t i = 0; i < states.size(); ++i) {
    if (states[i] != static_cast<char>(has)) continue;
    const int position = static_cast<int>(i);
    ranks.push_back(collective_ == nullptr ? position : collective_->WorldRank(position));
  }
  return ranks;
}

absl::Status Agreement::GatherErrors(const std::string& states) {
  std::vector<std::string> errors = {offer_.error};
  if (collective_ != nullptr) {
    absl::StatusOr<std::vector<std::string>> gathered = GatherTexts(*collective_, offer_.error);
    if (!gathered.ok()) return gathered.status();
    errors = *std::move(gathered);
  }
  return absl::AbortedError(absl::StrCat(
      "sharding: rank ", RanksThatHave(states, Has::kError).front(), " failed at step ", step_ - 1,
      ": ", errors[states.find(static_cast<char>(Has::kError))]));
}

}  // namespace lockstep::sharding
