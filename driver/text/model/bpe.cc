#include "driver/text/model/bpe.h"

#include <algorithm>
#include <functional>

#include "absl/strings/str_cat.h"
#include "driver/text/unicode/unicode.h"

namespace lockstep::text {
namespace {

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // "▁"
constexpr size_t kFewSymbols = 48;

uint64_t PairOf(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

// Reads one merge, ["a", "b"] or "a b".
std::pair<std::string, std::string> ReadMerge(const nlohmann::json& merge, const Node& merges,
                                              size_t index) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string())
    return {merge[0].get<std::string>(), merge[1].get<std::string>()};
  if (merge.is_string()) {
    const auto& text = merge.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space != std::string::npos && space > 0 && space + 1 < text.size() &&
        text.find(' ', space + 1) == std::string::npos)
      return {text.substr(0, space), text.substr(space + 1)};
  }
  Node(merge, absl::StrCat(merges.path(), "[", index, "]"))
      .Fail("expected two tokens, as [\"a\", \"b\"] or \"a b\"");
}

}  // namespace

// --- MergeTable ----------------------------------------------------------------------------------

void MergeTable::Reserve(size_t merges) {
  size_t size = 2;
  shift_ = 63;
  while (size < 2 * merges) size *= 2, --shift_;
  slots_.assign(size, Slot{});
}

void MergeTable::Set(int32_t left, int32_t right, uint32_t rank, int32_t joined) {
  const uint64_t pair = PairOf(left, right);
  size_t at = Home(pair);
  while (slots_[at].pair != kNone && slots_[at].pair != pair) at = (at + 1) & (slots_.size() - 1);
  slots_[at] = {pair, uint64_t{rank} << 32 | static_cast<uint32_t>(joined)};
}

inline uint64_t MergeTable::Find(int32_t left, int32_t right) const {
  const uint64_t pair = PairOf(left, right);
  size_t at = Home(pair);
  while (slots_[at].pair != pair) {
    if (slots_[at].pair == kNone) return kNone;
    at = (at + 1) & (slots_.size() - 1);
  }
  return slots_[at].value;
}

// --- Reading -------------------------------------------------------------------------------------

Bpe Bpe::Read(const Node& node, bool is_byte_level) {
  node.AllowKeys({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                  "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
  if (const std::optional<Node> dropout = node.Find("dropout"); dropout && dropout->Number() != 0)
    dropout->Fail("dropout is not known; expected null or 0");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const std::optional<Node> part = node.Find(key);
    if (part && !part->String().empty()) part->Fail("is not known; expected null or \"\"");
  }
  Bpe bpe;
  bpe.is_byte_level_ = is_byte_level;
  bpe.ignore_merges_ = node.Boolean("ignore_merges", false);
  bpe.byte_fallback_ = node.Boolean("byte_fallback", false);
  bpe.fuse_unknown_ = node.Boolean("fuse_unk", false);
  bpe.vocabulary_ = Vocabulary::Read(node.At("vocab"));
  bpe.ReadUnknown(node);
  if (is_byte_level) {
    bpe.MapBytes(node);
  } else {
    if (bpe.byte_fallback_) bpe.fallback_ = ByteTokens(bpe.vocabulary_, node.At("byte_fallback"));
    bpe.MapCharacters();
  }
  bpe.ReadMerges(node.At("merges"));
  return bpe;
}

void Bpe::ReadUnknown(const Node& node) {
  const std::optional<Node> unknown = node.Find("unk_token");
  if (!unknown) return;
  const std::optional<int32_t> id = vocabulary_.Id(unknown->String());
  if (!id) unknown->Fail(absl::StrCat("\"", unknown->String(), "\" is not in the vocabulary"));
  unknown_ = *id;
}

void Bpe::MapBytes(const Node& node) {
  for (int byte = 0; byte < 256; ++byte) {
    std::string character;
    AppendUtf8(ByteCharacter(static_cast<uint8_t>(byte)), character);
    bytes_[byte] = vocabulary_.Id(character).value_or(-1);
    if (byte_fallback_ && bytes_[byte] < 0)
      node.At("byte_fallback")
          .Fail(absl::StrCat("a byte-level vocabulary with byte_fallback needs all "
                             "bytes; \"",
                             character, "\" is missing"));
  }
  if (!ignore_merges_) return;
  for (const auto& [id, token] : vocabulary_.tokens()) {
    if (std::optional<std::string> bytes = BytesOf(token)) words_.emplace(*bytes, id);
  }
}

void Bpe::MapCharacters() {
  for (const auto& [id, token] : vocabulary_.tokens()) {
    if (!token.empty() && CharAt(token.data()).size == token.size())
      characters_.emplace(CharAt(token.data()).code, id);
    if (ignore_merges_) words_.emplace(token, id);
  }
}

void Bpe::ReadMerges(const Node& node) {
  if (!node.IsArray()) node.Fail("expected an array of pairs of tokens");
  merges_.Reserve(node.json().size());
  bool joins_space_mark = !vocabulary_.Id(kSpaceMark).has_value();
  uint32_t rank = 0;
  for (const nlohmann::json& merge : node.json()) {
    const auto [left, right] = ReadMerge(merge, node, rank);
    const std::optional<int32_t> ids[] = {vocabulary_.Id(left), vocabulary_.Id(right),
                                          vocabulary_.Id(left + right)};
    const std::string tokens[] = {left, right, left + right};
    for (int i = 0; i < 3; ++i) {
      if (!ids[i]) {
        Node(merge, absl::StrCat(node.path(), "[", rank, "]"))
            .Fail(absl::StrCat("the token \"", tokens[i], "\" is not in the vocabulary"));
      }
    }
    // A pair that is listed twice has the rank of the last place, as in PyPI's tokenizers.
    merges_.Set(*ids[0], *ids[1], rank++, *ids[2]);
    if (right.starts_with(kSpaceMark) && !left.ends_with(kSpaceMark)) joins_space_mark = true;
  }
  splits_at_space_mark_ = !is_byte_level_ && !ignore_merges_ && !joins_space_mark;
}

// --- Encoding ------------------------------------------------------------------------------------

size_t Bpe::PartSize(std::string_view word) const {
  if (!splits_at_space_mark_) return word.size();
  size_t at = 0;
  while (word.substr(at).starts_with(kSpaceMark)) at += kSpaceMark.size();
  return std::min(word.find(kSpaceMark, at), word.size());
}

void Bpe::Encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const {
  if (ignore_merges_) {
    const auto found = words_.find(std::string(word));
    if (found != words_.end()) {
      ids.push_back(found->second);
      return;
    }
  }
  scratch.ids.clear();
  AppendSymbols(word, scratch.ids);
  if (scratch.ids.size() <= kFewSymbols) {
    MergeFew(scratch, ids);
  } else {
    MergeMany(scratch, ids);
  }
}

void Bpe::AppendSymbols(std::string_view word, std::vector<int32_t>& symbols) const {
  if (!is_byte_level_) return AppendCharacters(word, symbols);
  bool after_unknown = false;
  for (const char c : word) {
    const int32_t id = bytes_[static_cast<unsigned char>(c)];
    const bool is_unknown = id < 0;
    if (!is_unknown) symbols.push_back(id);
    if (is_unknown && unknown_ >= 0 && !(after_unknown && fuse_unknown_))
      symbols.push_back(unknown_);
    after_unknown = is_unknown;
  }
}

void Bpe::AppendCharacters(std::string_view word, std::vector<int32_t>& symbols) const {
  bool after_unknown = false;
  const char* end = word.data() + word.size();
  for (const char* p = word.data(); p < end;) {
    const Char c = CharAt(p);
    const auto found = characters_.find(c.code);
    const bool is_unknown = found == characters_.end() && !byte_fallback_;
    if (found != characters_.end()) {
      symbols.push_back(found->second);
    } else if (byte_fallback_) {
      for (uint32_t i = 0; i < c.size; ++i)
        symbols.push_back(fallback_[static_cast<unsigned char>(p[i])]);
    } else if (unknown_ >= 0 && !(after_unknown && fuse_unknown_)) {
      symbols.push_back(unknown_);
    }
    after_unknown = is_unknown;
    p += c.size;
  }
}

// A few symbols lie in an array that closes up after each merge: no links, and the smallest pair is
// found by looking at all.
void Bpe::MergeFew(Scratch& scratch, std::vector<int32_t>& ids) const {
  std::vector<int32_t>& symbols = scratch.ids;
  size_t count = symbols.size();
  uint64_t pairs[kFewSymbols];
  for (size_t i = 0; i + 1 < count; ++i) pairs[i] = merges_.Find(symbols[i], symbols[i + 1]);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) best = pairs[i] < pairs[best] ? i : best;
    if (pairs[best] == MergeTable::kNone) break;
    symbols[best] = static_cast<int32_t>(pairs[best] & 0xFFFFFFFF);
    --count;
    for (size_t i = best + 1; i < count; ++i) symbols[i] = symbols[i + 1];
    for (size_t i = best + 1; i + 1 < count; ++i) pairs[i] = pairs[i + 1];
    if (best > 0) pairs[best - 1] = merges_.Find(symbols[best - 1], symbols[best]);
    if (best + 1 < count) pairs[best] = merges_.Find(symbols[best], symbols[best + 1]);
  }
  ids.insert(ids.end(), symbols.begin(), symbols.begin() + count);
}

// Many symbols are linked, and a heap holds their pairs. A pair in the heap that is no longer the
// one at its place is passed over.
void Bpe::MergeMany(Scratch& scratch, std::vector<int32_t>& ids) const {
  const auto count = static_cast<int32_t>(scratch.ids.size());
  auto& symbols = scratch.symbols;
  auto& pairs = scratch.pairs;
  auto& heap = scratch.heap;
  const auto later = std::greater<std::pair<uint64_t, int32_t>>();
  symbols.clear(), heap.clear();
  for (int32_t i = 0; i < count; ++i)
    symbols.push_back({scratch.ids[i], i - 1, i + 1 < count ? i + 1 : -1});
  pairs.assign(count, MergeTable::kNone);
  const auto look = [&](int32_t i) {
    const int32_t next = symbols[i].next;
    pairs[i] = next < 0 ? MergeTable::kNone : merges_.Find(symbols[i].id, symbols[next].id);
    return pairs[i] != MergeTable::kNone;
  };
  for (int32_t i = 0; i < count; ++i) {
    if (look(i)) heap.emplace_back(pairs[i], i);
  }
  std::make_heap(heap.begin(), heap.end(), later);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const auto [pair, at] = heap.back();
    heap.pop_back();
    if (pairs[at] != pair) continue;
    Scratch::Symbol& symbol = symbols[at];
    const int32_t gone = symbol.next;
    symbol.id = static_cast<int32_t>(pair & 0xFFFFFFFF);
    symbol.next = symbols[gone].next;
    if (symbol.next >= 0) symbols[symbol.next].previous = at;
    pairs[gone] = MergeTable::kNone;
    for (const int32_t i : {symbol.previous, at}) {
      if (i >= 0 && look(i)) {
        heap.emplace_back(pairs[i], i);
        std::push_heap(heap.begin(), heap.end(), later);
      }
    }
  }
  for (int32_t i = count > 0 ? 0 : -1; i >= 0; i = symbols[i].next) ids.push_back(symbols[i].id);
}

}  // namespace lockstep::text
