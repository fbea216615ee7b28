#include "driver/text/decoder.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "driver/text/model/vocabulary.h"
#include "driver/text/normalizer.h"
#include "driver/text/unicode/unicode.h"

namespace lockstep::text {
namespace {

using Kind = DecoderStep::Kind;

constexpr int kMaxDepth = 16;
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// Returns the byte of "<0x41>".
std::optional<char> FallbackByte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  uint8_t byte = 0;
  const char* const end = token.data() + 5;
  const auto read = std::from_chars(token.data() + 3, end, byte, 16);
  if (read.ec != std::errc() || read.ptr != end) return std::nullopt;
  return static_cast<char>(byte);
}

// Fuse and ByteLevel make one token of all; these need tokens.
void NeedsTokens(const Node& node, const std::string& type,
                 const std::vector<DecoderStep>& before) {
  for (const DecoderStep& step : before) {
    if (step.kind == Kind::kFuse || step.kind == Kind::kByteLevel)
      node.Fail(absl::StrCat(type, " must come before Fuse and ByteLevel"));
  }
}

int64_t Count(const Node& node) { return node.Integer(0, 1000); }

void ReadStep(const Node& node, int depth, std::vector<DecoderStep>& steps) {
  if (depth > kMaxDepth) node.Fail("decoders are nested too deeply");
  const std::string& type = node.At("type").String();
  if (type == "ByteLevel") {
    node.AllowKeys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    NeedsTokens(node, type, steps);
    steps.push_back({.kind = Kind::kByteLevel});
  } else if (type == "ByteFallback") {
    node.AllowKeys({"type"});
    NeedsTokens(node, type, steps);
    steps.push_back({.kind = Kind::kByteFallback});
  } else if (type == "Metaspace") {
    node.AllowKeys(
        {"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
    NeedsTokens(node, type, steps);
    DecoderStep step{.kind = Kind::kMetaspace};
    AppendUtf8(node.At("replacement").Character(), step.pattern);
    const std::optional<Node> scheme = node.Find("prepend_scheme");
    step.drop_first = scheme ? scheme->String() != "never" : node.Boolean("add_prefix_space", true);
    steps.push_back(std::move(step));
  } else if (type == "Fuse") {
    node.AllowKeys({"type"});
    steps.push_back({.kind = Kind::kFuse});
  } else if (type == "Strip") {
    node.AllowKeys({"type", "content", "start", "stop"});
    DecoderStep step{.kind = Kind::kStrip};
    AppendUtf8(node.At("content").Character(), step.pattern);
    step.start = Count(node.At("start"));
    step.stop = Count(node.At("stop"));
    steps.push_back(std::move(step));
  } else if (type == "Replace") {
    node.AllowKeys({"type", "pattern", "content"});
    const SplitPattern pattern = ReadPattern(node.At("pattern"));
    if (pattern.is_regex) node.At("pattern").Fail("a decoder replaces a string, not an expression");
    const std::string& content = node.At("content").String();
    steps.push_back({.kind = Kind::kReplace, .pattern = pattern.text, .content = content});
  } else if (type == "Sequence") {
    node.AllowKeys({"type", "decoders"});
    for (const Node& one : node.At("decoders").Elements()) ReadStep(one, depth + 1, steps);
  } else {
    node.Fail(absl::StrCat("the decoder \"", type,
                           "\" is not known; known are ByteLevel, ByteFallback, Metaspace, Fuse, "
                           "Strip, Replace and Sequence"));
  }
}

}  // namespace

DecoderPlan DecoderPlan::Read(const Node& node) {
  DecoderPlan plan;
  if (node.IsNull()) {
    plan.steps.push_back({.kind = Kind::kJoin});
  } else {
    ReadStep(node, 0, plan.steps);
  }
  return plan;
}

std::string Decoder::Push(std::string_view token) {
  std::string out;
  Feed(0, token, true, out);
  return out;
}

std::string Decoder::Finish() {
  std::string out;
  End(0, out);
  states_.assign(states_.size(), State{});
  return out;
}

// Hands a chunk of a token to a step; `ends_token` says that no more of the token follows.
void Decoder::Feed(size_t step, std::string_view chunk, bool ends_token, std::string& out) {
  if (step == plan_->steps.size()) {
    out += chunk;
    return;
  }
  const DecoderStep& plan = plan_->steps[step];
  State& state = states_[step];
  switch (plan.kind) {
    case Kind::kByteLevel: {
      const std::optional<std::string> bytes = BytesOf(chunk);
      state.held += bytes ? *bytes : std::string(chunk);
      const size_t size = CompleteUtf8Prefix(state.held);
      Feed(step + 1, ReplaceInvalidUtf8(std::string_view(state.held).substr(0, size)), false, out);
      state.held.erase(0, size);
      return;
    }
    case Kind::kFuse: return Feed(step + 1, chunk, false, out);
    case Kind::kByteFallback: return FeedFallback(step, chunk, out);
    case Kind::kMetaspace: {
      std::string text(chunk);
      ReplaceAll(plan.pattern, state.is_first && plan.drop_first ? "" : " ", text);
      state.is_first = false;
      return Feed(step + 1, text, true, out);
    }
    case Kind::kJoin: {
      const char* space = state.is_first ? "" : " ";
      state.is_first = false;
      return Feed(step + 1, absl::StrCat(space, std::string(chunk)), true, out);
    }
    case Kind::kReplace: return FeedReplace(step, chunk, ends_token, out);
    case Kind::kStrip: return FeedStrip(step, chunk, ends_token, out);
  }
}

// No token follows.
void Decoder::End(size_t step, std::string& out) {
  if (step == plan_->steps.size()) return;
  const Kind kind = plan_->steps[step].kind;
  if (kind == Kind::kByteLevel) {
    Feed(step + 1, ReplaceInvalidUtf8(states_[step].held), true, out);
  } else if (kind == Kind::kFuse) {
    Feed(step + 1, "", true, out);
  } else if (kind == Kind::kByteFallback) {
    FlushBytes(step, out);
  }
  End(step + 1, out);
}

// A run of bytes is text where all of it is UTF-8; else each byte of it is U+FFFD.
void Decoder::FlushBytes(size_t step, std::string& out) {
  const std::string bytes = std::exchange(states_[step].held, {});
  if (bytes.empty()) return;
  if (!FirstInvalidUtf8(bytes)) return Feed(step + 1, bytes, true, out);
  for (size_t i = 0; i < bytes.size(); ++i) Feed(step + 1, kReplacement, true, out);
}

void Decoder::FeedFallback(size_t step, std::string_view token, std::string& out) {
  if (const std::optional<char> byte = FallbackByte(token)) {
    states_[step].held += *byte;
    return;
  }
  FlushBytes(step, out);
  Feed(step + 1, token, true, out);
}

void Decoder::FeedReplace(size_t step, std::string_view chunk, bool ends_token, std::string& out) {
  const DecoderStep& plan = plan_->steps[step];
  std::string& held = states_[step].held;
  held += chunk;
  std::string text;
  size_t done = 0;
  for (size_t at = held.find(plan.pattern); at != std::string::npos;
       at = held.find(plan.pattern, done)) {
    text.append(held, done, at - done);
    text += plan.content;
    done = at + plan.pattern.size();
  }
  // The longest end that may yet become the pattern waits.
  size_t keep = 0;
  if (!ends_token) {
    keep = std::min(held.size() - done, plan.pattern.size() - 1);
    while (held.compare(held.size() - keep, keep, plan.pattern, 0, keep) != 0) --keep;
  }
  text.append(held, done, held.size() - keep - done);
  held.erase(0, held.size() - keep);
  Feed(step + 1, text, ends_token, out);
}

void Decoder::FeedStrip(size_t step, std::string_view chunk, bool ends_token, std::string& out) {
  const DecoderStep& plan = plan_->steps[step];
  State& state = states_[step];
  std::string text = std::exchange(state.held, {});
  text += chunk;
  while (state.stripped < plan.start && text.starts_with(plan.pattern)) {
    text.erase(0, plan.pattern.size());
    ++state.stripped;
  }
  if (!text.empty()) state.stripped = plan.start;
  // Up to `stop` characters at the end go with the token, or wait for it to end.
  size_t end = text.size();
  for (int64_t i = 0; i < plan.stop && end >= plan.pattern.size(); ++i) {
    if (text.compare(end - plan.pattern.size(), plan.pattern.size(), plan.pattern) != 0) break;
    end -= plan.pattern.size();
  }
  if (ends_token) {
    state.stripped = 0;
  } else {
    state.held = text.substr(end);
  }
  Feed(step + 1, std::string_view(text).substr(0, end), ends_token, out);
}

}  // namespace lockstep::text
