#include "driver/text/normalizer.h"

#include <type_traits>

#include "absl/strings/str_cat.h"

namespace lockstep::text {
namespace {

constexpr int kMaxDepth = 16;

void ReplaceRuns(const Replace& replace, std::string& text) {
  std::string result;
  size_t at = 0;
  while (at < text.size()) {
    size_t end = at;
    while (text.compare(end, replace.pattern.size(), replace.pattern) == 0)
      end += replace.pattern.size();
    if (end - at >= 2 * replace.pattern.size()) {
      result += replace.content;
      at = end;
    } else {
      result += text[at++];
    }
  }
  text = std::move(result);
}

void StripSpaces(const Strip& strip, std::string& text) {
  const char* begin = text.data();
  const char* end = begin + text.size();
  const auto is_space = [](Char c) { return ClassOf(c.code) == CharClass::kSpace; };
  while (strip.left && begin < end && is_space(CharAt(begin))) begin += CharAt(begin).size;
  while (strip.right && begin < end && is_space(CharBefore(begin, end)))
    end -= CharBefore(begin, end).size;
  text = std::string(begin, end);
}

void ReplaceMatches(const ReplaceExpression& replace, std::string& text) {
  std::string result;
  size_t done = 0;
  for (const auto& [begin, end] : replace.expression.Matches(text)) {
    result.append(text, done, begin - done);
    result += replace.content;
    done = end;
  }
  result.append(text, done, std::string::npos);
  text = std::move(result);
}

}  // namespace

SplitPattern ReadPattern(const Node& node) {
  node.AllowKeys({"String", "Regex"});
  if (node.json().size() != 1) node.Fail("expected one key, String or Regex");
  const std::optional<Node> regex = node.Find("Regex");
  const Node text = regex ? *regex : node.At("String");
  if (text.String().empty()) text.Fail("an empty pattern matches everywhere");
  return {text.String(), regex.has_value()};
}

void ReplaceAll(std::string_view pattern, std::string_view content, std::string& text) {
  size_t found = text.find(pattern);
  if (found == std::string::npos) return;
  std::string result;
  result.reserve(text.size() + text.size() / 4);
  size_t at = 0;
  for (; found != std::string::npos; found = text.find(pattern, at)) {
    result.append(text, at, found - at);
    result += content;
    at = found + pattern.size();
  }
  result.append(text, at, std::string::npos);
  text = std::move(result);
}

Expression ReadExpression(const Node& node, const std::string& pattern) {
  try {
    return Expression(pattern);
  } catch (const std::invalid_argument& error) {
    node.Fail(absl::StrCat("the expression \"", pattern, "\": ", error.what()));
  }
}

Normalizer Normalizer::Read(const Node& node) {
  Normalizer normalizer;
  if (!node.IsNull()) normalizer.ReadStep(node, 0);
  return normalizer;
}

void Normalizer::ReadStep(const Node& node, int depth) {
  if (depth > kMaxDepth) node.Fail("normalizers are nested too deeply");
  const std::string& type = node.At("type").String();
  if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    node.AllowKeys({"type"});
    using enum NormalForm;
    steps_.push_back(type == "NFC" ? kC : type == "NFD" ? kD : type == "NFKC" ? kKC : kKD);
  } else if (type == "Lowercase") {
    node.AllowKeys({"type"});
    steps_.push_back(Lowercase{});
  } else if (type == "Prepend") {
    node.AllowKeys({"type", "prepend"});
    steps_.push_back(Prepend{node.At("prepend").String()});
  } else if (type == "Replace") {
    node.AllowKeys({"type", "pattern", "content"});
    SplitPattern pattern = ReadPattern(node.At("pattern"));
    const std::string& content = node.At("content").String();
    // The usual expression needs no engine.
    const bool runs = pattern.is_regex && pattern.text == " {2,}";
    if (pattern.is_regex && !runs) {
      steps_.push_back(
          ReplaceExpression{ReadExpression(node.At("pattern"), pattern.text), content});
    } else {
      steps_.push_back(Replace{runs ? " " : pattern.text, content, runs});
    }
  } else if (type == "Strip") {
    node.AllowKeys({"type", "strip_left", "strip_right"});
    steps_.push_back(Strip{node.At("strip_left").Boolean(), node.At("strip_right").Boolean()});
  } else if (type == "Sequence") {
    node.AllowKeys({"type", "normalizers"});
    for (const Node& one : node.At("normalizers").Elements()) ReadStep(one, depth + 1);
  } else {
    node.Fail(absl::StrCat("the normalizer \"", type,
                           "\" is not known; known are NFC, NFD, NFKC, NFKD, Lowercase, Prepend, "
                           "Replace, Strip and Sequence"));
  }
}

bool Normalizer::IsSurelyUnchanged(std::string_view text) const {
  for (const NormalizerStep& step : steps_) {
    const NormalForm* form = std::get_if<NormalForm>(&step);
    if (form == nullptr || !IsSurelyNormal(text, *form)) return false;
  }
  return true;
}

void Normalizer::Apply(std::string& text) const {
  for (const NormalizerStep& step : steps_) {
    std::visit(
        [&text](const auto& one) {
          using Step = std::decay_t<decltype(one)>;
          if constexpr (std::is_same_v<Step, NormalForm>) {
            if (!IsSurelyNormal(text, one)) text = Normalize(text, one);
          } else if constexpr (std::is_same_v<Step, Lowercase>) {
            text = LowerCase(text);
          } else if constexpr (std::is_same_v<Step, Prepend>) {
            if (!text.empty()) text.insert(0, one.text);
          } else if constexpr (std::is_same_v<Step, Replace>) {
            if (one.runs) {
              ReplaceRuns(one, text);
            } else {
              ReplaceAll(one.pattern, one.content, text);
            }
          } else if constexpr (std::is_same_v<Step, ReplaceExpression>) {
            ReplaceMatches(one, text);
          } else {
            StripSpaces(one, text);
          }
        },
        step);
  }
}

}  // namespace lockstep::text
