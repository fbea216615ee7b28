#include "driver/text/added_tokens.h"

#include <algorithm>
#include <limits>
#include <set>

#include "absl/strings/str_cat.h"
#include "driver/text/unicode/unicode.h"

namespace lockstep::text {
namespace {

bool IsWordCharacter(Char c) { return IsIn(kWords, ClassOf(c.code)); }
bool IsSpace(Char c) { return ClassOf(c.code) == CharClass::kSpace; }

bool StandsAlone(std::string_view text, size_t begin, size_t end) {
  const char* data = text.data();
  if (begin > 0 && IsWordCharacter(CharBefore(data, data + begin))) return false;
  return end == text.size() || !IsWordCharacter(CharAt(data + end));
}

}  // namespace

std::vector<AddedToken> ReadAddedTokens(const Node& node) {
  std::vector<AddedToken> tokens;
  std::set<int32_t> ids;
  std::set<std::string> contents;
  for (const Node& one : node.Elements()) {
    one.AllowKeys({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken token;
    token.id =
        static_cast<int32_t>(one.At("id").Integer(0, std::numeric_limits<int32_t>::max() - 1));
    token.content = one.At("content").String();
    token.single_word = one.At("single_word").Boolean();
    token.lstrip = one.At("lstrip").Boolean();
    token.rstrip = one.At("rstrip").Boolean();
    token.normalized = one.At("normalized").Boolean();
    token.special = one.At("special").Boolean();
    if (token.content.empty()) one.At("content").Fail("an added token must not be empty");
    if (!ids.insert(token.id).second)
      one.At("id").Fail(absl::StrCat("another added token has the id ", token.id));
    if (!contents.insert(token.content).second)
      one.At("content").Fail(absl::StrCat("\"", token.content, "\" is added twice"));
    tokens.push_back(std::move(token));
  }
  return tokens;
}

TokenMatcher::TokenMatcher(const std::vector<std::pair<std::string, AddedToken>>& contents) {
  trie_.emplace_back();
  for (const auto& [content, token] : contents) {
    if (content.empty()) continue;  // what normalization left of it
    int32_t node = 0;
    for (const char byte : content) {
      int32_t child = Child(node, byte);
      if (child < 0) {
        child = static_cast<int32_t>(trie_.size());
        auto& children = trie_[node].children;
        const std::pair<char, int32_t> edge(byte, child);
        children.insert(std::upper_bound(children.begin(), children.end(), edge), edge);
        trie_.emplace_back();
      }
      node = child;
    }
    trie_[node].token = static_cast<int32_t>(tokens_.size());
    tokens_.push_back(token);
    is_first_[static_cast<unsigned char>(content[0])] = true;
  }
  if (std::count(is_first_.begin(), is_first_.end(), true) == 1)
    only_first_ =
        static_cast<int>(std::find(is_first_.begin(), is_first_.end(), true) - is_first_.begin());
}

int32_t TokenMatcher::Child(int32_t node, char byte) const {
  const auto& children = trie_[node].children;
  const auto found = std::lower_bound(children.begin(), children.end(), std::make_pair(byte, 0));
  return found == children.end() || found->first != byte ? -1 : found->second;
}

size_t TokenMatcher::NextCandidate(std::string_view text, size_t from) const {
  if (only_first_ >= 0) return text.find(static_cast<char>(only_first_), from);
  while (from < text.size() && !is_first_[static_cast<unsigned char>(text[from])]) ++from;
  return from < text.size() ? from : std::string_view::npos;
}

void TokenMatcher::Split(std::string_view text, std::vector<Segment>& segments) const {
  size_t done = 0;  // everything before belongs to a segment
  size_t at = tokens_.empty() ? std::string_view::npos : NextCandidate(text, 0);
  while (at != std::string_view::npos) {
    int32_t longest = -1;
    size_t end = at;
    for (int32_t node = 0, i = static_cast<int32_t>(0); at + i < text.size(); ++i) {
      node = Child(node, text[at + i]);
      if (node < 0) break;
      if (trie_[node].token >= 0) {
        longest = trie_[node].token;
        end = at + i + 1;
      }
    }
    if (longest < 0) {
      at = NextCandidate(text, at + 1);
      continue;
    }
    const AddedToken& token = tokens_[longest];
    const size_t match_end = end;
    if (!token.single_word || StandsAlone(text, at, end)) {
      const char* data = text.data();
      size_t begin = at;
      while (token.lstrip && begin > done && IsSpace(CharBefore(data, data + begin)))
        begin -= CharBefore(data, data + begin).size;
      while (token.rstrip && end < text.size() && IsSpace(CharAt(data + end)))
        end += CharAt(data + end).size;
      if (done < begin) segments.push_back({text.substr(done, begin - done)});
      segments.push_back({text.substr(begin, end - begin), token.id});
      done = std::max(done, end);
    }
    at = NextCandidate(text, match_end);
  }
  if (done < text.size()) segments.push_back({text.substr(done)});
}

}  // namespace lockstep::text
