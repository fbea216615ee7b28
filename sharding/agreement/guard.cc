#include "sharding/agreement/guard.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/hash.h"
#include "base/raw_bytes.h"
#include "sharding/agreement/gather_texts.h"

namespace lockstep::sharding {
namespace {

// A rank's next check: its number, its label, its place.
struct Note {
  int64_t check = 0;  // from 1; 0: none yet
  std::string label;
  std::string place;
};

std::string Write(const Note& note) {
  return absl::StrCat(note.check, "\n", note.place, "\n", note.label);
}

Note ParseNote(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, absl::MaxSplits('\n', 2));
  Note note;
  if (parts.size() == 3 && absl::SimpleAtoi(parts[0], &note.check)) {
    note.place = parts[1];
    note.label = parts[2];  // which may hold newlines
  }
  return note;
}

std::string At(const std::string& place) {
  return place.empty() ? "" : absl::StrCat(" (", place, ")");
}

// Fingerprints may be long and differ far in: shows the stretch around the first difference.
std::vector<std::string> Excerpts(const std::vector<std::string>& values) {
  constexpr size_t kShown = 200;
  constexpr size_t kBefore = 40;
  size_t first = values[0].size();
  for (const std::string& value : values) {
    const auto [a, b] =
        std::mismatch(values[0].begin(), values[0].end(), value.begin(), value.end());
    if (a != values[0].end() || b != value.end())
      first = std::min(first, static_cast<size_t>(a - values[0].begin()));
  }
  const size_t begin = first > kShown - kBefore ? first - kBefore : 0;
  std::vector<std::string> excerpts;
  for (const std::string& value : values) {
    const size_t from = std::min(begin, value.size());
    excerpts.push_back(absl::StrCat(from > 0 ? "..." : "", value.substr(from, kShown),
                                    value.size() > from + kShown ? "..." : ""));
  }
  return excerpts;
}

}  // namespace

Guard::Guard(Collective* collective, Notes* notes, double timeout_s, std::vector<int> ranks)
    : collective_(collective), notes_(notes), timeout_s_(timeout_s), ranks_(std::move(ranks)) {
  if (!ranks_.empty()) return;
  ranks_.resize(static_cast<size_t>(collective_->size()));
  std::iota(ranks_.begin(), ranks_.end(), 0);
}

absl::Status Guard::Check(absl::string_view label, absl::string_view fingerprint,
                          absl::string_view place) {
  if (!lost_.ok()) return lost_;
  ++checks_;
  notes_->Write(Write({checks_, std::string(label), std::string(place)}));
  const absl::StatusOr<std::vector<std::string>> gathered =
      collective_
          ->StartAllGather(base::BytesOf(base::TextHash(label)) +
                           base::BytesOf(base::TextHash(fingerprint)))
          ->Wait();
  if (!gathered.ok()) return lost_ = Absence(label, gathered.status());
  const auto all_same = [&](size_t begin, size_t count) {
    return std::all_of(gathered->begin(), gathered->end(), [&](const std::string& bytes) {
      return bytes.compare(begin, count, gathered->front(), begin, count) == 0;
    });
  };
  const bool same_label = all_same(0, sizeof(uint64_t));
  if (same_label && all_same(sizeof(uint64_t), sizeof(uint64_t))) return absl::OkStatus();
  return Disagreement(std::string(label), std::string(fingerprint), std::string(place), same_label);
}

absl::Status Guard::Disagreement(const std::string& label, const std::string& fingerprint,
                                 const std::string& place, bool same_label) {
  std::vector<std::vector<std::string>> columns;
  for (const std::string* text : {&label, &fingerprint, &place}) {
    absl::StatusOr<std::vector<std::string>> gathered = GatherTexts(*collective_, *text);
    if (!gathered.ok()) return lost_ = Absence(label, gathered.status());
    columns.push_back(*std::move(gathered));
  }
  const std::vector<std::string> values = Excerpts(columns[1]);
  std::string message =
      same_label
          ? absl::StrCat("guard: the ranks disagree at \"", label, "\":")
          : absl::StrCat("guard: the ranks are at different checks, each at its check number ",
                         checks_, ":");
  for (size_t i = 0; i < ranks_.size(); ++i) {
    absl::StrAppend(&message, "\n  rank ", ranks_[i], ": ",
                    same_label ? "" : absl::StrCat("\"", columns[0][i], "\": "), values[i],
                    At(columns[2][i]));
  }
  return absl::FailedPreconditionError(message);
}

absl::Status Guard::Absence(absl::string_view label, const absl::Status& cause) {
  std::string absent;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const Note note = ParseNote(notes_->Read(static_cast<int>(i)));
    if (note.check >= checks_) continue;
    absl::StrAppend(&absent, "\n  rank ", ranks_[i],
                    note.check == 0
                        ? " has passed no check yet"
                        : absl::StrCat(" last passed \"", note.label, "\"", At(note.place),
                                       ", its check number ", note.check));
  }
  if (absent.empty()) {
    return absl::UnavailableError(
        absl::StrCat("guard: the check \"", label, "\" failed: ", cause.message()));
  }
  return absl::DeadlineExceededError(absl::StrCat("guard: not all ranks came to \"", label,
                                                  "\", check number ", checks_, ", within ",
                                                  timeout_s_, " s:", absent));
}

}  // namespace lockstep::sharding
