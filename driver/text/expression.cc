#include "driver/text/expression.h"

#include <oniguruma.h>

#include "absl/strings/str_cat.h"
#include "driver/text/unicode/unicode.h"

namespace lockstep::text {
namespace {

const OnigUChar* Bytes(const char* text) { return reinterpret_cast<const OnigUChar*>(text); }

std::string MessageOf(int code, OnigErrorInfo* info) {
  OnigUChar message[ONIG_MAX_ERROR_MESSAGE_LEN];
  const int size = onig_error_code_to_str(message, code, info);
  return std::string(reinterpret_cast<const char*>(message), static_cast<size_t>(size));
}

}  // namespace

Expression::Expression(std::string pattern) : pattern_(std::move(pattern)) {
  // Once for the process, before the first expression.
  static const int initialized = [] {
    OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
    return onig_initialize(encodings, 1);
  }();
  if (initialized != ONIG_NORMAL) throw std::invalid_argument(MessageOf(initialized, nullptr));
  regex_t* compiled = nullptr;
  OnigErrorInfo info;
  const int code =
      onig_new(&compiled, Bytes(pattern_.data()), Bytes(pattern_.data() + pattern_.size()),
               ONIG_OPTION_NONE, ONIG_ENCODING_UTF8, ONIG_SYNTAX_DEFAULT, &info);
  if (code != ONIG_NORMAL) throw std::invalid_argument(MessageOf(code, &info));
  compiled_.reset(compiled, onig_free);
}

std::vector<std::pair<size_t, size_t>> Expression::Matches(std::string_view text) const {
  std::vector<std::pair<size_t, size_t>> matches;
  const OnigUChar* const begin = Bytes(text.data());
  const OnigUChar* const end = begin + text.size();
  const std::unique_ptr<OnigRegion, void (*)(OnigRegion*)> region(
      onig_region_new(), [](OnigRegion* one) { onig_region_free(one, 1); });
  for (const OnigUChar* from = begin; from <= end;) {
    const int code =
        onig_search(compiled_.get(), begin, end, from, end, region.get(), ONIG_OPTION_NONE);
    if (code == ONIG_MISMATCH) break;
    if (code < 0) {
      throw SearchError(absl::StrCat("the expression \"", pattern_, "\" fails on a text of ",
                                     text.size(), " bytes: ", MessageOf(code, nullptr)));
    }
    const auto first = static_cast<size_t>(region->beg[0]);
    const auto last = static_cast<size_t>(region->end[0]);
    if (first == last && !matches.empty() && matches.back().second == last) {
      // An empty match behind the last one: look further, from the next character.
      from = begin + last + (last < text.size() ? CharAt(text.data() + last).size : 1);
      continue;
    }
    matches.emplace_back(first, last);
    from = begin + last;
  }
  return matches;
}

}  // namespace lockstep::text
