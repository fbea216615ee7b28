#include "driver/ranks/activity.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace lockstep::driver {
namespace {

constexpr size_t kKept = 8;  // of the collectives that are done
// A GPU may be hundreds of collectives behind. To ask for one is to ask CUDA for an event.
constexpr size_t kAskedAtStart = 4;
constexpr size_t kDescribed = 12;  // of those under way and done

thread_local std::string subject;

// In one line of a report.
std::string InOneLine(const std::string& label) {
  constexpr size_t kShown = 200;
  std::string text = label.substr(0, kShown);
  if (text.size() < label.size()) {
    const auto is_inside_letter = [](char c) { return (static_cast<unsigned char>(c) >> 6) == 2; };
    while (!text.empty() && is_inside_letter(label[text.size()])) text.pop_back();
    text += "...";
  }
  return absl::Utf8SafeCEscape(text);
}

// Without the characters that FormatWait needs.
std::string AsField(const std::string& text) {
  return absl::StrReplaceAll(text, {{"\t", " "}, {"\n", " "}});
}

}  // namespace

void Activity::set_find_place(std::function<std::string()> find_place) {
  const std::lock_guard<std::mutex> lock(mutex_);
  find_place_ = std::move(find_place);
}

void Activity::set_ask_place(std::function<std::string()> ask_place) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ask_place_ = std::move(ask_place);
}

std::string Activity::FindPlace() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return find_place_ == nullptr ? "" : find_place_();
}

void Activity::SetStep(int64_t step) {
  const std::lock_guard<std::mutex> lock(mutex_);
  step_ = step;
}

void Activity::SetLabel(const std::string& label) {
  const std::string place = FindPlace();
  const std::lock_guard<std::mutex> lock(mutex_);
  label_ = InOneLine(label);
  if (!place.empty()) place_ = place;
}

int64_t Activity::Start(CollectiveCall call) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!call.place.empty()) place_ = call.place;
  NoteComeLocked(call.sequence, call.number);
  Record record;
  record.id = next_id_++;
  record.call = std::move(call);
  record.started = Clock::now();
  records_.push_back(std::move(record));
  if (records_.size() > kKept) Refresh(kAskedAtStart);
  return records_.back().id;
}

void Activity::SetWork(int64_t id, c10::intrusive_ptr<c10d::Work> work) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto record = records_.rbegin(); record != records_.rend() && record->id >= id; ++record) {
    if (record->id != id) continue;
    record->done = work == nullptr;
    record->work = std::move(work);
  }
}

int Activity::AddSequence(CallSequence sequence) {
  const std::lock_guard<std::mutex> lock(mutex_);
  sequences_.push_back(std::move(sequence));
  come_.push_back(-1);
  return static_cast<int>(come_.size()) - 1;
}

int Activity::AddGroupSequence(const std::string& key, std::vector<int> ranks) {
  const std::string field = AsField(key);
  return AddSequence({field, field, field, std::move(ranks)});
}

void Activity::NoteCome(int sequence, int64_t number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  NoteComeLocked(sequence, number);
}

void Activity::NoteComeLocked(int sequence, int64_t number) {
  if (sequence < 0) return;
  int64_t& come = come_[static_cast<size_t>(sequence)];
  come = std::max(come, number);
}

void Activity::NoteBlocked(int64_t id, bool is_blocked) {
  c10::intrusive_ptr<c10d::Work> ended;  // let go without the mutex
  const std::lock_guard<std::mutex> lock(mutex_);
  std::erase_if(blocked_, [id](const Blocked& blocked) { return blocked.id == id; });
  if (is_blocked) {
    blocked_.push_back({id, Clock::now()});
    return;
  }
  for (auto record = records_.rbegin(); record != records_.rend() && record->id >= id; ++record) {
    if (record->id != id || record->work == nullptr || !record->work->isCompleted()) continue;
    record->done = true;
    ended = std::move(record->work);
  }
}

std::optional<RankWait> Activity::FindWait(std::chrono::milliseconds at_least) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (blocked_.empty() || Clock::now() - blocked_.front().since < at_least) return std::nullopt;
  Refresh();
  for (auto blocked = blocked_.rbegin(); blocked != blocked_.rend(); ++blocked) {
    const auto record =
        std::find_if(records_.begin(), records_.end(),
                     [&](const Record& candidate) { return candidate.id == blocked->id; });
    if (record == records_.end() || record->done || record->call.sequence < 0) continue;
    if (Clock::now() - blocked->since < at_least) return std::nullopt;
    const CollectiveCall& call = record->call;
    const CallSequence& sequence = sequences_[static_cast<size_t>(call.sequence)];
    RankWait wait = {sequence.awaited,
                     call.number,
                     sequence.known,
                     sequence.ranks,
                     absl::StrCat(AsField(call.what), " of ", AsField(call.group),
                                  call.place.empty() ? "" : absl::StrCat(" (", call.place, ")")),
                     {}};
    for (size_t i = 0; i < come_.size(); ++i) wait.come[sequences_[i].key] = come_[i];
    return wait;
  }
  return std::nullopt;
}

bool Activity::IsWaiting() {
  const std::lock_guard<std::mutex> lock(mutex_);
  Refresh();
  return IsWaitingNow();
}

std::optional<OverdueCall> Activity::FindOverdue() {
  const std::lock_guard<std::mutex> lock(mutex_);
  Refresh();
  const Clock::time_point now = Clock::now();
  for (const Record& record : records_) {
    const std::optional<Clock::time_point> since = WaitsSince(record);
    if (!since.has_value() || record.call.limit.count() <= 0) continue;
    const auto waited = now - *since;
    if (waited > record.call.limit)
      return OverdueCall{record.call,
                         std::chrono::duration_cast<std::chrono::milliseconds>(waited)};
  }
  return std::nullopt;
}

std::string Activity::Describe() {
  std::function<std::string()> ask_place;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ask_place = ask_place_;
  }
  // Not under the mutex, which the script's thread takes.
  const std::string now = ask_place == nullptr ? "" : ask_place();
  const std::lock_guard<std::mutex> lock(mutex_);
  Refresh();
  std::string text = step_.has_value() ? absl::StrCat("step ", *step_, ", ") : "";
  if (!label_.empty()) absl::StrAppend(&text, "label \"", label_, "\", ");
  const bool waits = IsWaitingNow();
  absl::StrAppend(&text, waits ? "in a collective" : "in no collective");
  if (!waits && !now.empty()) absl::StrAppend(&text, ", now at ", now);
  if (!place_.empty()) absl::StrAppend(&text, waits ? " at " : "; the last was at ", place_);
  // Collectives in progress explain the hang, so they come first.
  size_t described = 0;
  for (const bool done : {false, true}) {
    for (auto record = records_.rbegin(); record != records_.rend(); ++record) {
      if (record->done != done || described++ >= kDescribed) continue;
      const std::chrono::duration<double> age = Clock::now() - record->started;
      const char* const verb = WaitsSince(*record).has_value() ? "waits" : "started";
      const std::string state = done ? "done" : absl::StrFormat("%s %.1f s", verb, age.count());
      const CollectiveCall& call = record->call;
      absl::StrAppend(&text, absl::StrFormat("\n  %-13s  %s #%d  %s", state, call.group,
                                             call.number, call.what));
      if (!call.place.empty()) absl::StrAppend(&text, "  (", call.place, ")");
    }
  }
  return text;
}

std::optional<Activity::Clock::time_point> Activity::WaitsSince(const Record& record) const {
  if (record.done) return std::nullopt;
  if (!record.call.ends_in_wait) return record.started;
  for (const Blocked& blocked : blocked_) {
    if (blocked.id == record.id) return blocked.since;
  }
  return std::nullopt;
}

bool Activity::IsWaitingNow() const {
  return std::any_of(records_.begin(), records_.end(),
                     [this](const Record& record) { return WaitsSince(record).has_value(); });
}

void Activity::Refresh(size_t most) {
  size_t num_done = 0;
  for (Record& record : records_) {
    if (!record.done && record.work != nullptr && most > 0) {
      --most;
      record.done = record.work->isCompleted();
      if (record.done) record.work.reset();  // and with it the tensors that it holds
    }
    num_done += record.done ? 1 : 0;
  }
  for (auto record = records_.begin(); record != records_.end() && num_done > kKept;) {
    if (record->done) --num_done;
    record = record->done ? records_.erase(record) : record + 1;
  }
}

CollectiveSubject::CollectiveSubject(std::string text) { subject = std::move(text); }

CollectiveSubject::~CollectiveSubject() { subject.clear(); }

const std::string& CollectiveSubject::Current() { return subject; }

}  // namespace lockstep::driver
