#include "driver/text/model/unigram.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "driver/text/unicode/unicode.h"

namespace lockstep::text {
namespace {

// An unknown character scores this much less than the least likely token.
constexpr double kUnknownPenalty = 10;

// Returns a score as PyPI's tokenizers reads it. If two ways have the same tokens in another order,
// the last bit of each score decides between them.
//
// The reader takes the digits as a whole number, rounds it to a double and divides by a power of
// ten. With 17 digits the result may be one bit off the nearest double, and ours must be the same.
double ReadScore(const Node& node) {
  const double score = node.Number();
  char digits[64];
  const auto end = std::to_chars(digits, digits + sizeof(digits), std::abs(score),
                                 std::chars_format::scientific);
  uint64_t whole = 0;
  int exponent = 0, decimals = 0;
  bool after_point = false;
  for (const char* p = digits; p < end.ptr; ++p) {
    if (*p == 'e') {
      const char* number = p + 1 + (p[1] == '+' ? 1 : 0);
      std::from_chars(number, end.ptr, exponent);
      break;
    }
    if (*p == '.') {
      after_point = true;
    } else {
      whole = whole * 10 + static_cast<uint64_t>(*p - '0');
      decimals += after_point ? 1 : 0;
    }
  }
  exponent -= decimals;
  if (exponent > 0 || exponent < -22) return score;  // not a score that a trainer writes
  double power = 1;                                  // exact up to 1e22
  for (int i = 0; i < -exponent; ++i) power *= 10;
  return std::copysign(static_cast<double>(whole) / power, score);
}

}  // namespace

Unigram Unigram::Read(const Node& node) {
  node.AllowKeys({"type", "unk_id", "vocab", "byte_fallback"});
  Unigram unigram;
  const Node list = node.At("vocab");
  const std::vector<Node> entries = list.Elements();
  if (entries.empty()) list.Fail("the vocabulary is empty");
  for (const Node& entry : entries) {
    if (!entry.IsArray() || entry.json().size() != 2) entry.Fail("expected [token, score]");
    const std::vector<Node> pair = entry.Elements();
    const auto id = static_cast<int32_t>(unigram.scores_.size());
    if (!unigram.vocabulary_.Add(pair[0].String(), id))
      entry.Fail(absl::StrCat("\"", pair[0].String(), "\" is listed twice"));
    unigram.scores_.push_back(ReadScore(pair[1]));
  }
  unigram.unknown_score_ =
      *std::min_element(unigram.scores_.begin(), unigram.scores_.end()) - kUnknownPenalty;
  if (const std::optional<Node> unknown = node.Find("unk_id")) {
    unigram.unknown_ =
        static_cast<int32_t>(unknown->Integer(0, static_cast<int64_t>(unigram.scores_.size()) - 1));
  }
  if (node.Boolean("byte_fallback", false))
    unigram.fallback_ = ByteTokens(unigram.vocabulary_, node.At("byte_fallback"));
  unigram.BuildTrie();
  return unigram;
}

// Level by level over the sorted tokens: a node is the range of tokens that share its prefix.
void Unigram::BuildTrie() {
  std::vector<std::pair<std::string_view, int32_t>> tokens;
  for (const auto& [id, token] : vocabulary_.tokens()) {
    if (!token.empty()) tokens.emplace_back(token, id);
  }
  std::sort(tokens.begin(), tokens.end());
  struct Range {
    size_t begin, end, depth;
  };
  std::vector<Range> ranges = {{0, tokens.size(), 0}};
  nodes_.emplace_back();
  for (size_t i = 0; i < ranges.size(); ++i) {
    auto [begin, end, depth] = ranges[i];
    if (begin < end && tokens[begin].first.size() == depth) nodes_[i].id = tokens[begin++].second;
    nodes_[i].children = static_cast<uint32_t>(edges_.size());
    while (begin < end) {
      const char byte = tokens[begin].first[depth];
      size_t next = begin;
      while (next < end && tokens[next].first[depth] == byte) ++next;
      edges_.push_back({static_cast<unsigned char>(byte), static_cast<uint32_t>(nodes_.size())});
      ++nodes_[i].num_children;
      nodes_.emplace_back();
      ranges.push_back({begin, next, depth + 1});
      begin = next;
    }
  }
}

const Unigram::TrieNode* Unigram::Child(const TrieNode& node, unsigned char byte) const {
  const Edge* begin = edges_.data() + node.children;
  const Edge* end = begin + node.num_children;
  const Edge* found = std::lower_bound(
      begin, end, byte, [](const Edge& edge, unsigned char b) { return edge.byte < b; });
  return found == end || found->byte != byte ? nullptr : &nodes_[found->node];
}

void Unigram::AppendPiece(std::string_view piece, std::vector<int32_t>& ids) const {
  if (const std::optional<int32_t> id = vocabulary_.Id(piece)) {
    ids.push_back(*id);
  } else if (!fallback_.empty()) {
    for (const char c : piece) ids.push_back(fallback_[static_cast<unsigned char>(c)]);
  } else {
    ids.push_back(unknown_);
  }
}

bool Unigram::Encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const {
  std::vector<Step>& steps = scratch.steps;
  steps.assign(word.size() + 1, Step{});
  for (size_t at = 0; at < word.size();) {
    const double here = steps[at].score;
    const size_t size = CharAt(word.data() + at).size;
    const auto offer = [&](size_t end, double score, int32_t id) {
      if (steps[end].begin < 0 || score > steps[end].score)
        steps[end] = {score, static_cast<int64_t>(at), id};
    };
    bool covered = false;
    const TrieNode* node = nodes_.data();
    for (size_t end = at; end < word.size();) {
      node = Child(*node, static_cast<unsigned char>(word[end++]));
      if (node == nullptr) break;
      if (node->id < 0) continue;
      offer(end, scores_[node->id] + here, node->id);
      covered = covered || end - at == size;
    }
    if (!covered) {
      if (unknown_ < 0) return false;
      offer(at + size, unknown_score_ + here, unknown_);
    }
    at += size;
  }

  // Back from the end; neighbours that are unknown are one.
  auto& pieces = scratch.pieces;
  pieces.clear();
  bool after_unknown = false;
  for (int64_t end = static_cast<int64_t>(word.size()); end > 0;) {
    const Step& step = steps[end];
    const bool is_unknown = step.id == unknown_ && unknown_ >= 0;
    const std::string_view piece = word.substr(step.begin, end - step.begin);
    if (is_unknown && after_unknown) {
      pieces.back() = std::string_view(piece.data(), piece.size() + pieces.back().size());
    } else {
      pieces.push_back(piece);
    }
    after_unknown = is_unknown;
    end = step.begin;
  }
  for (size_t i = pieces.size(); i-- > 0;) AppendPiece(pieces[i], ids);
  return true;
}

}  // namespace lockstep::text
