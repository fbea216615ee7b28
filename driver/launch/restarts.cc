#include "driver/launch/restarts.h"

#include <signal.h>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace lockstep::driver {
namespace {

bool IsFinal(int exit_code) {
  return exit_code == kUsageError || exit_code == 128 + SIGINT || exit_code == 128 + SIGTERM;
}

std::string Place(const std::optional<int64_t>& step) {
  return step.has_value() ? absl::StrCat("in step ", *step) : "before the first step";
}

}  // namespace

Restarts::Decision Restarts::After(const Attempt& attempt) {
  if (!attempt.has_failed || most_ == 0) return {};
  if (IsFinal(attempt.exit_code)) {
    return {false, absl::StrCat("lockstep: does not start again: exit code ", attempt.exit_code,
                                " says that it would not help")};
  }
  const bool is_same = failures_at_step_ > 0 && attempt.step == last_step_;
  failures_at_step_ = is_same ? failures_at_step_ + 1 : 1;
  last_step_ = attempt.step;
  if (failures_at_step_ == kFailuresAtAStep) {
    return {false, absl::StrCat("lockstep: gives up: the run failed three times in a row ",
                                Place(attempt.step))};
  }
  if (count_ == most_) {
    return {false, absl::StrCat("lockstep: gives up: the run has failed ", Place(attempt.step),
                                ", after all ", most_, " restarts of --restarts")};
  }
  ++count_;
  return {true, absl::StrCat("lockstep: the run failed ", Place(attempt.step), "; restart ", count_,
                             " of ", most_)};
}

std::string RestartRecord(int count, const Attempt& attempt) {
  nlohmann::ordered_json record = {
      {"event", "restart"}, {"restarts", count}, {"exit_code", attempt.exit_code}};
  if (attempt.step.has_value()) record["step"] = *attempt.step;
  record["cause"] = attempt.cause;
  // A script may raise an error whose text is not UTF-8.
  return record.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace lockstep::driver
