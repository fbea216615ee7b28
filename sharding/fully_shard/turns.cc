#include "sharding/fully_shard/turns.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/raw_bytes.h"
#include "sharding/agreement/gather_texts.h"

namespace lockstep::sharding {
namespace {

// A turn as it travels.
struct Encoded {
  Turn turn;
  uint64_t used_hash = 0;   // of the units that the rank has used
  uint64_t terms_hash = 0;  // of what the ranks must have in common
  uint64_t flags_hash = 0;  // of what they may differ in
};
static_assert(sizeof(Encoded) == 40, "no padding, whose bytes would be compared");

bool IsSameTurn(const Encoded& one, const Encoded& other) {
  return one.turn == other.turn && one.used_hash == other.used_hash;
}

// Within a phase, the end comes after all gathers and reductions.
auto Key(const Turn& turn) {
  return std::make_tuple(turn.pass, turn.phase, turn.action >= Action::kFinish, turn.unit,
                         turn.action);
}

// Whether a rank that named another turn can take part.
bool IsJoinable(const Turn& turn) { return turn.action <= Action::kFinish; }

// Adds what to do to the message about ranks that differ. Another error stays as it is.
absl::Status WithAdvice(const absl::Status& status, bool are_joinable, bool joins) {
  if (status.code() != absl::StatusCode::kFailedPrecondition) return status;
  std::string advice =
      "Every rank calls the same functions of the model in the same order: its forward pass, "
      "backward, clip_grad_norm, and those that gather whole values, such as state_dict and full";
  if (are_joinable) {
    advice = absl::StrCat(
        "Every rank runs the same units in the same order. Give each rank a micro-batch of the "
        "same kind",
        joins ? "" : ", or pass skipped = \"join\"");
  }
  return absl::FailedPreconditionError(absl::StrCat(std::string(status.message()), "\n", advice));
}

}  // namespace

Turns::Turns(Collective* collective, std::vector<std::string> units, bool joins)
    : collective_(collective), units_(std::move(units)), joins_(joins) {}

void Turns::BeginPass() {
  used_.clear();
  used_hash_ = {};
}

void Turns::Use(int32_t unit) {
  if (joins_) return;
  used_.push_back(unit);
  used_hash_.Add(static_cast<uint64_t>(unit + 1));
}

absl::StatusOr<Turn> Turns::Agree(const Turn& next, const std::function<std::string()>& place) {
  const absl::StatusOr<AgreedTurn> agreed = Agree(next, {}, place);
  if (!agreed.ok()) return agreed.status();
  return agreed->turn;
}

// All turns of a model go the same way, since a rank does not know whether others give parts.
absl::StatusOr<std::vector<std::string>> Turns::GatherTurns(const std::string& own,
                                                            const Collective::Parts& parts) {
  return collective_->CanMoveParts() ? collective_->GatherWithParts(own, parts)
                                     : collective_->StartAllGather(own)->Wait();
}

absl::StatusOr<AgreedTurn> Turns::Agree(const Turn& next, const Collective::Parts& parts,
                                        const std::function<std::string()>& place,
                                        const Terms& terms) {
  if (!failed_.ok()) return failed_;
  const Encoded own = {next, used_hash_.value(), terms.hash, base::TextHash(terms.flags)};
  const absl::StatusOr<std::vector<std::string>> all = GatherTurns(base::BytesOf(own), parts);
  if (!all.ok()) {
    failed_ = absl::Status(
        all.status().code(),
        absl::StrCat("fully_shard: rank ", collective_->WorldRank(collective_->rank()), " ",
                     Describe(next), " in pass ", next.pass,
                     ", and not all ranks came: ", std::string(all.status().message())));
    return failed_;
  }
  bool is_same_turn = true, has_same_terms = true, has_same_flags = true;
  Turn earliest = next;
  bool are_joinable = true;  // all of them: a rank that does something else by mistake cannot join
  for (const std::string& bytes : *all) {
    const Encoded one = base::FromBytes<Encoded>(bytes.data());
    is_same_turn = is_same_turn && IsSameTurn(one, own);
    has_same_terms = has_same_terms && one.terms_hash == own.terms_hash;
    has_same_flags = has_same_flags && one.flags_hash == own.flags_hash;
    are_joinable = are_joinable && IsJoinable(one.turn);
    if (Key(one.turn) < Key(earliest)) earliest = one.turn;
  }
  if (is_same_turn && has_same_terms) return AgreedTurn{next, has_same_flags};
  if (is_same_turn) {
    failed_ = DifferentTerms(next, terms);
    return failed_;
  }
  if (joins_ && IsJoinable(earliest)) return AgreedTurn{earliest, /*is_unanimous=*/false};
  failed_ = WithAdvice(Disagreement(earliest.pass, next, place()), are_joinable, joins_);
  return failed_;
}

absl::StatusOr<std::string> Turns::AnyOf(const std::string& flags) {
  const absl::StatusOr<std::vector<std::string>> all = collective_->StartAllGather(flags)->Wait();
  if (!all.ok()) return all.status();
  std::string any(flags.size(), '\0');
  for (const std::string& one : *all) {
    for (size_t i = 0; i < any.size(); ++i) any[i] = any[i] != 0 || one[i] != 0 ? 1 : 0;
  }
  return any;
}

absl::Status Turns::Disagreement(int64_t pass, const Turn& next, const std::string& place) {
  std::string own = Describe(next);
  if (next.pass != pass) absl::StrAppend(&own, " in pass ", next.pass);
  if (!place.empty()) absl::StrAppend(&own, " (", place, ")");
  absl::StrAppend(&own, DescribeUsed());
  const absl::StatusOr<std::vector<std::string>> texts = GatherTexts(*collective_, own);
  if (!texts.ok()) return texts.status();
  std::string message = absl::StrCat("fully_shard: the ranks differ in pass ", pass, ":");
  for (size_t i = 0; i < texts->size(); ++i) {
    absl::StrAppend(&message, "\n  rank ", collective_->WorldRank(static_cast<int>(i)), ": ",
                    (*texts)[i]);
  }
  return absl::FailedPreconditionError(message);
}

absl::Status Turns::DifferentTerms(const Turn& next, const Terms& terms) {
  const absl::StatusOr<std::vector<std::string>> texts = GatherTexts(*collective_, terms.lines());
  if (!texts.ok()) return texts.status();
  int count = 0;
  const std::string differences = DifferentLines(*collective_, *texts, &count);
  return absl::FailedPreconditionError(absl::StrCat("fully_shard: the ranks differ in pass ",
                                                    next.pass, ", where each ", Describe(next),
                                                    ", in ", count, " places:", differences));
}

// The last units suffice: a comparison follows within as many units as are gathered ahead.
std::string Turns::DescribeUsed() const {
  constexpr size_t kShown = 4;
  if (used_.empty()) return "";
  std::string text = used_.size() > kShown ? ", after ..., " : ", after ";
  for (size_t i = used_.size() - std::min(used_.size(), kShown); i < used_.size(); ++i) {
    absl::StrAppend(&text, "\"", units_[static_cast<size_t>(used_[i])], "\"",
                    i + 1 < used_.size() ? ", " : "");
  }
  return text;
}

std::string Turns::Describe(const Turn& turn) const {
  static constexpr const char* kPhases[] = {"forward", "backward", "the update"};
  const std::string& name = units_[static_cast<size_t>(turn.unit)];
  const std::string unit = name.empty() ? "the root" : absl::StrCat("\"", name, "\"");
  const char* phase = kPhases[static_cast<size_t>(turn.phase)];
  switch (turn.action) {
    case Action::kScales: return "finds the scales of float8 weights";
    case Action::kGather: return absl::StrCat("gathers ", unit, " for ", phase);
    case Action::kReduce: return absl::StrCat("reduces the gradients of ", unit, " in ", phase);
    case Action::kFinish: return absl::StrCat("ends ", phase);
    case Action::kNorm: return "clips gradients";
    case Action::kExport: return absl::StrCat("gathers whole values of ", unit);
  }
  return "";
}

}  // namespace lockstep::sharding
