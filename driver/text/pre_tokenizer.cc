#include "driver/text/pre_tokenizer.h"

#include <type_traits>

#include "absl/strings/str_cat.h"
#include "driver/text/normalizer.h"

namespace lockstep::text {
namespace {

constexpr int kMaxDepth = 16;

// A part of a text that a pattern matches, or that lies between matches.
struct Part {
  size_t begin;
  size_t end;
  bool is_match;
};

std::vector<Part> PartsOf(const SplitString& split, std::string_view text) {
  std::vector<Part> parts;
  size_t done = 0;
  for (size_t at = text.find(split.pattern); at != std::string_view::npos;
       at = text.find(split.pattern, done)) {
    if (done < at) parts.push_back({done, at, split.invert});
    done = at + split.pattern.size();
    parts.push_back({at, done, !split.invert});
  }
  if (done < text.size()) parts.push_back({done, text.size(), split.invert});
  return parts;
}

std::vector<Part> PartsOf(const SplitExpression& split, std::string_view text) {
  std::vector<Part> parts;
  size_t done = 0;
  for (const auto& [begin, end] : split.expression.Matches(text)) {
    if (done < begin) parts.push_back({done, begin, split.invert});
    parts.push_back({begin, end, !split.invert});
    done = end;
  }
  if (done < text.size()) parts.push_back({done, text.size(), split.invert});
  return parts;
}

std::vector<Part> PartsOf(const SplitClass& split, std::string_view text) {
  std::vector<Part> parts;
  for (size_t at = 0; at < text.size();) {
    const Char c = CharAt(text.data() + at);
    const bool is_match = IsIn(split.set, ClassOf(c.code));
    if (!is_match && !parts.empty() && !parts.back().is_match) {
      parts.back().end += c.size;
    } else {
      parts.push_back({at, at + c.size, is_match});
    }
    at += c.size;
  }
  return parts;
}

// "\w+|[^\w\s]+": words and runs of signs are matches, spaces lie between.
std::vector<Part> WordsAndSigns(std::string_view text) {
  std::vector<Part> parts;
  int last = -1;
  for (size_t at = 0; at < text.size();) {
    const Char c = CharAt(text.data() + at);
    const CharClass one = ClassOf(c.code);
    const int kind = IsIn(kWords, one) ? 0 : IsIn(kSpaces, one) ? 1 : 2;
    if (kind == last) {
      parts.back().end += c.size;
    } else {
      parts.push_back({at, at + c.size, kind == 1});
    }
    last = kind;
    at += c.size;
  }
  return parts;
}

// Keeps and joins parts as `behavior` says; every part that is left is a word.
void ApplyBehavior(SplitBehavior behavior, std::vector<Part>& parts) {
  const auto join = [&parts](auto joins) {
    size_t out = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (i > 0 && joins(parts[i - 1], parts[i])) {
        parts[out - 1].end = parts[i].end;
      } else {
        parts[out++] = {parts[i].begin, parts[i].end, parts[i].is_match};
      }
    }
    parts.resize(out);
  };
  switch (behavior) {
    case SplitBehavior::kRemoved: std::erase_if(parts, [](Part p) { return p.is_match; }); return;
    case SplitBehavior::kIsolated: return;
    case SplitBehavior::kMergedWithPrevious:
      return join([](Part before, Part part) { return part.is_match && !before.is_match; });
    case SplitBehavior::kMergedWithNext:
      return join([](Part before, Part part) { return before.is_match && !part.is_match; });
    case SplitBehavior::kContiguous:
      return join([](Part before, Part part) { return before.is_match == part.is_match; });
  }
}

SplitBehavior ReadBehavior(const Node& node) {
  const std::string& name = node.String();
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  node.Fail(absl::StrCat("the behavior \"", name,
                         "\" is not known; known are Removed, Isolated, MergedWithPrevious, "
                         "MergedWithNext and Contiguous"));
}

}  // namespace

PreTokenizer PreTokenizer::Read(const Node& node) {
  PreTokenizer pre;
  if (!node.IsNull()) pre.ReadStep(node, 0);
  return pre;
}

void PreTokenizer::ReadStep(const Node& node, int depth) {
  if (depth > kMaxDepth) node.Fail("pre-tokenizers are nested too deeply");
  if (is_byte_level_) node.Fail("ByteLevel must be the last pre-tokenizer");
  const std::string& type = node.At("type").String();
  if (type == "ByteLevel") {
    node.AllowKeys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    node.Boolean("trim_offsets", true);  // offsets are not ours to give; its type is checked
    if (node.At("add_prefix_space").Boolean()) steps_.push_back(PrefixSpace{});
    if (node.Boolean("use_regex", true)) steps_.push_back(ScanWords{FindWordScanner(kGpt2Pattern)});
    is_byte_level_ = true;
  } else if (type == "Split") {
    ReadSplit(node);
  } else if (type == "Metaspace") {
    ReadMetaspace(node);
  } else if (type == "Digits") {
    node.AllowKeys({"type", "individual_digits"});
    const bool alone = node.At("individual_digits").Boolean();
    steps_.push_back(
        SplitClass{kNumbers, alone ? SplitBehavior::kIsolated : SplitBehavior::kContiguous});
  } else if (type == "Whitespace") {
    node.AllowKeys({"type"});
    steps_.push_back(SplitWordsAndSigns{});
  } else if (type == "WhitespaceSplit") {
    node.AllowKeys({"type"});
    steps_.push_back(SplitClass{kSpaces, SplitBehavior::kRemoved});
  } else if (type == "Sequence") {
    node.AllowKeys({"type", "pretokenizers"});
    for (const Node& one : node.At("pretokenizers").Elements()) ReadStep(one, depth + 1);
  } else {
    node.Fail(absl::StrCat("the pre-tokenizer \"", type,
                           "\" is not known; known are ByteLevel, Split, Metaspace, Digits, "
                           "Whitespace, WhitespaceSplit and Sequence"));
  }
}

void PreTokenizer::ReadSplit(const Node& node) {
  node.AllowKeys({"type", "pattern", "behavior", "invert"});
  const Node pattern_node = node.At("pattern");
  const SplitPattern pattern = ReadPattern(pattern_node);
  const SplitBehavior behavior = ReadBehavior(node.At("behavior"));
  const bool invert = node.At("invert").Boolean();
  if (!pattern.is_regex) {
    steps_.push_back(SplitString{pattern.text, behavior, invert});
    return;
  }
  const WordScanner scanner = FindWordScanner(pattern.text);
  if (scanner == nullptr) {
    steps_.push_back(SplitExpression{ReadExpression(pattern_node, pattern.text), behavior, invert});
    return;
  }
  // The matches cover the text: there is nothing between them to remove or to merge.
  const bool every_match =
      behavior == SplitBehavior::kIsolated || (behavior == SplitBehavior::kRemoved && invert);
  if (!every_match) {
    node.Fail(
        "this expression is split by the behavior Isolated, or Removed with \"invert\": true; "
        "any other would make no words of its matches");
  }
  steps_.push_back(ScanWords{scanner});
}

void PreTokenizer::ReadMetaspace(const Node& node) {
  node.AllowKeys({"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
  Metaspace step;
  AppendUtf8(node.At("replacement").Character(), step.replacement);
  if (const std::optional<Node> shown = node.Find("str_rep");
      shown && shown->String() != step.replacement) {
    shown->Fail(absl::StrCat("expected \"", step.replacement, "\", as \"replacement\" says, got \"",
                             shown->String(), "\""));
  }
  step.prepend = Metaspace::Prepend::kAlways;
  step.split = node.Boolean("split", true);
  const bool adds_space = node.Boolean("add_prefix_space", true);
  if (const std::optional<Node> scheme = node.Find("prepend_scheme")) {
    const std::string& name = scheme->String();
    if (name != "always" && name != "first" && name != "never")
      scheme->Fail(absl::StrCat("expected always, first or never, got \"", name, "\""));
    step.prepend = name == "always"  ? Metaspace::Prepend::kAlways
                   : name == "first" ? Metaspace::Prepend::kFirst
                                     : Metaspace::Prepend::kNever;
    if (!adds_space && step.prepend != Metaspace::Prepend::kNever)
      scheme->Fail(absl::StrCat("\"", name, "\" contradicts \"add_prefix_space\": false"));
  } else if (!adds_space) {
    step.prepend = Metaspace::Prepend::kNever;
  }
  steps_.push_back(step);
}

void PreTokenizer::Run(size_t step, std::string_view text, bool is_first, Word word) const {
  if (step == steps_.size()) return word(text);
  const auto run_parts = [&](SplitBehavior behavior, std::vector<Part> parts) {
    ApplyBehavior(behavior, parts);
    for (const Part& part : parts) {
      if (part.begin == part.end) continue;  // an expression may match nothing
      Run(step + 1, text.substr(part.begin, part.end - part.begin), is_first && part.begin == 0,
          word);
    }
  };
  const auto run = [&](const auto& one) {
    using Step = std::decay_t<decltype(one)>;
    if constexpr (std::is_same_v<Step, ScanWords>) {
      const char* end = text.data() + text.size();
      for (const char* p = text.data(); p < end;) {
        const char* next = one.scanner(p, end);
        const std::string_view found(p, next - p);
        if (step + 1 == steps_.size()) {
          word(found);
        } else {
          Run(step + 1, found, is_first && p == text.data(), word);
        }
        p = next;
      }
    } else if constexpr (std::is_same_v<Step, PrefixSpace>) {
      if (text[0] == ' ') return Run(step + 1, text, is_first, word);
      Run(step + 1, absl::StrCat(" ", std::string(text)), is_first, word);
    } else if constexpr (std::is_same_v<Step, SplitString> || std::is_same_v<Step, SplitClass> ||
                         std::is_same_v<Step, SplitExpression>) {
      run_parts(one.behavior, PartsOf(one, text));
    } else if constexpr (std::is_same_v<Step, SplitWordsAndSigns>) {
      run_parts(SplitBehavior::kRemoved, WordsAndSigns(text));
    } else {
      std::string replaced(text);
      ReplaceAll(" ", one.replacement, replaced);
      const bool wants_prefix = one.prepend == Metaspace::Prepend::kAlways ||
                                (one.prepend == Metaspace::Prepend::kFirst && is_first);
      if (wants_prefix && replaced.compare(0, one.replacement.size(), one.replacement) != 0)
        replaced.insert(0, one.replacement);
      if (!one.split) return Run(step + 1, replaced, is_first, word);
      text = replaced;
      run_parts(SplitBehavior::kMergedWithNext,
                PartsOf(SplitString{one.replacement, SplitBehavior::kMergedWithNext, false}, text));
    }
  };
  std::visit(run, steps_[step]);
}

}  // namespace lockstep::text
