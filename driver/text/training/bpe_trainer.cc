#include "driver/text/training/bpe_trainer.h"

#include <algorithm>
#include <array>
#include <optional>
#include <queue>
#include <set>

#include "absl/strings/str_cat.h"
#include "driver/text/model/vocabulary.h"
#include "driver/text/tokenizer_parts.h"
#include "driver/text/unicode/unicode.h"

namespace lockstep::text {
namespace {

constexpr int64_t kBytes = 256;

using Pair = uint64_t;  // left id << 32 | right id: smaller pairs win ties
Pair MakePair(int32_t left, int32_t right) {
  return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
}

struct Word {
  std::vector<int32_t> ids;
  int64_t count;
};

struct PairState {
  int64_t count = 0;
  std::vector<int32_t> words;  // that hold it, or held it; perhaps more than once
};

struct Candidate {
  int64_t count;
  Pair pair;
  bool operator<(const Candidate& other) const {
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

// Chooses the pair with the largest count from a heap. Counts in the heap may be out of date. Then
// they are too large, because a pair gains occurrences only next to the token of the present merge,
// and such pairs enter the heap again. A candidate whose count is out of date goes back with the
// present one.
class Learner {
 public:
  explicit Learner(const std::unordered_map<std::string, int64_t>& word_counts);

  LearnedBpe Learn(const LearnOptions& options);

 private:
  std::optional<Candidate> Next(int64_t min_frequency);
  void Count(int32_t index, int sign);
  void Join(Pair pair, int32_t joined);

  std::vector<std::string> tokens_;
  std::unordered_map<std::string, int32_t> ids_;
  std::vector<Word> words_;
  std::unordered_map<Pair, PairState> pairs_;
  std::priority_queue<Candidate> heap_;
};

Learner::Learner(const std::unordered_map<std::string, int64_t>& word_counts) {
  std::array<std::pair<char32_t, uint8_t>, kBytes> alphabet;
  for (int byte = 0; byte < kBytes; ++byte)
    alphabet[byte] = {ByteCharacter(static_cast<uint8_t>(byte)), static_cast<uint8_t>(byte)};
  std::sort(alphabet.begin(), alphabet.end());
  std::array<int32_t, kBytes> id_of_byte{};
  for (const auto& [character, byte] : alphabet) {
    id_of_byte[byte] = static_cast<int32_t>(tokens_.size());
    std::string token;
    AppendUtf8(character, token);
    ids_.emplace(token, id_of_byte[byte]);
    tokens_.push_back(std::move(token));
  }
  for (const auto& [bytes, count] : word_counts) {
    Word word{.ids = {}, .count = count};
    for (const char byte : bytes) word.ids.push_back(id_of_byte[static_cast<uint8_t>(byte)]);
    words_.push_back(std::move(word));
    Count(static_cast<int32_t>(words_.size()) - 1, +1);
  }
  for (const auto& [pair, state] : pairs_) heap_.push({state.count, pair});
}

// Adds a word to the counts of its pairs (sign = 1), or takes it away (-1).
void Learner::Count(int32_t index, int sign) {
  const Word& word = words_[index];
  for (size_t i = 0; i + 1 < word.ids.size(); ++i) {
    PairState& state = pairs_[MakePair(word.ids[i], word.ids[i + 1])];
    state.count += sign * word.count;
    if (sign > 0 && (state.words.empty() || state.words.back() != index))
      state.words.push_back(index);
  }
}

std::optional<Candidate> Learner::Next(int64_t min_frequency) {
  while (!heap_.empty()) {
    Candidate top = heap_.top();
    heap_.pop();
    const int64_t count = pairs_[top.pair].count;
    if (top.count != count) {
      if (count >= min_frequency) heap_.push({count, top.pair});
    } else if (count >= min_frequency) {
      return top;
    }
  }
  return std::nullopt;
}

// Joins a pair in all words, from left to right.
void Learner::Join(Pair pair, int32_t joined) {
  const auto left = static_cast<int32_t>(pair >> 32), right = static_cast<int32_t>(pair);
  std::vector<int32_t> holders = std::move(pairs_[pair].words);
  pairs_[pair].words.clear();
  std::sort(holders.begin(), holders.end());
  holders.erase(std::unique(holders.begin(), holders.end()), holders.end());
  std::set<Pair> changed;
  for (const int32_t index : holders) {
    Word& word = words_[index];
    Count(index, -1);
    size_t size = 0;
    for (size_t i = 0; i < word.ids.size(); ++i) {
      const bool is_pair =
          i + 1 < word.ids.size() && word.ids[i] == left && word.ids[i + 1] == right;
      word.ids[size++] = is_pair ? joined : word.ids[i];
      if (is_pair) ++i;
    }
    word.ids.resize(size);
    Count(index, +1);
    for (size_t i = 0; i + 1 < size; ++i) {
      if (word.ids[i] == joined || word.ids[i + 1] == joined)
        changed.insert(MakePair(word.ids[i], word.ids[i + 1]));
    }
  }
  for (const Pair other : changed) heap_.push({pairs_[other].count, other});
}

LearnedBpe Learner::Learn(const LearnOptions& options) {
  LearnedBpe learned;
  std::set<Pair> known;
  while (static_cast<int64_t>(tokens_.size()) < options.num_tokens) {
    const std::optional<Candidate> best = Next(options.min_frequency);
    if (!best) break;
    const std::string& left = tokens_[best->pair >> 32];
    const std::string& right = tokens_[static_cast<uint32_t>(best->pair)];
    // Two pairs may join to the same token, as "t" + "he" and "th" + "e". It keeps its id. A pair
    // may then come again after its merge, which is recorded once.
    const auto [it, is_new] =
        ids_.emplace(absl::StrCat(left, right), static_cast<int32_t>(tokens_.size()));
    if (known.insert(best->pair).second) learned.merges.emplace_back(left, right);
    const int32_t joined = it->second;
    if (is_new) tokens_.push_back(it->first);
    Join(best->pair, joined);
  }
  learned.tokens = std::move(tokens_);
  return learned;
}

}  // namespace

BpeTrainer::BpeTrainer(std::shared_ptr<const Tokenizer> tokenizer)
    : tokenizer_(std::move(tokenizer)) {}

absl::Status BpeTrainer::Add(std::string_view text) {
  if (const std::optional<size_t> bad = FirstInvalidUtf8(text)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "text: expected UTF-8, got another byte at offset ", *bad, " of ", text.size()));
  }
  const TokenizerParts& parts = tokenizer_->parts();
  std::string normalized;
  if (!parts.normalizer.IsSurelyUnchanged(text)) {
    normalized = text;
    parts.normalizer.Apply(normalized);
    text = normalized;
  }
  parts.pre_tokenizer.Split(text, /*is_first=*/true,
                            [this](std::string_view word) { ++word_counts_[std::string(word)]; });
  return absl::OkStatus();
}

absl::StatusOr<LearnedBpe> BpeTrainer::Learn(const LearnOptions& options) const {
  if (!tokenizer_->parts().pre_tokenizer.is_byte_level())
    return absl::InvalidArgumentError(
        "text: a tokenizer is learnt byte-level, and this one is not");
  if (options.num_tokens < kBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "text: a byte-level tokenizer has at least 256 tokens, not ", options.num_tokens));
  }
  if (options.min_frequency < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("text: min_frequency must be at least 1, not ", options.min_frequency));
  }
  return Learner(word_counts_).Learn(options);
}

}  // namespace lockstep::text
