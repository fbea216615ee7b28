#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "driver/text/model/word_cache.h"
#include "driver/text/tokenizer.h"
#include "driver/text/tokenizer_parts.h"
#include "driver/text/unicode/unicode.h"

namespace lockstep::text {

// A text takes four steps. Added tokens are cut out of it. The text between them is normalized, and
// normalized added tokens are cut out. The rest is split into words. The model encodes each word.
struct Encoder::Work {
  std::shared_ptr<const Tokenizer> tokenizer;
  const TokenizerParts& parts;
  WordCache cache;
  Bpe::Scratch bpe_scratch;
  Unigram::Scratch unigram_scratch;
  std::vector<int32_t> word_ids;
  std::vector<Segment> segments, normalized_segments;
  std::string normalized;
  std::string unknown;  // the first word that the model cannot encode

  explicit Work(std::shared_ptr<const Tokenizer> of)
      : tokenizer(std::move(of)), parts(tokenizer->parts()) {}

  void EncodeWord(std::string_view word, std::vector<int32_t>& ids);
  void EncodeWords(std::string_view text, bool is_first, std::vector<int32_t>& ids);
  void EncodeText(std::string_view text, bool is_first, std::vector<int32_t>& ids);
};

void Encoder::Work::EncodeWord(std::string_view word, std::vector<int32_t>& ids) {
  if (const auto found = cache.Find(word)) {
    ids.insert(ids.end(), found->begin(), found->end());
    return;
  }
  word_ids.clear();
  if (const Bpe* bpe = std::get_if<Bpe>(&parts.model)) {
    bpe->Encode(word, bpe_scratch, word_ids);
  } else if (!std::get<Unigram>(parts.model).Encode(word, unigram_scratch, word_ids)) {
    if (unknown.empty()) unknown = word;
    return;
  }
  cache.Insert(word, word_ids);
  ids.insert(ids.end(), word_ids.begin(), word_ids.end());
}

void Encoder::Work::EncodeWords(std::string_view text, bool is_first, std::vector<int32_t>& ids) {
  const Bpe* bpe = std::get_if<Bpe>(&parts.model);
  if (bpe == nullptr || parts.pre_tokenizer.is_byte_level()) {
    parts.pre_tokenizer.Split(text, is_first,
                              [&](std::string_view word) { EncodeWord(word, ids); });
    return;
  }
  parts.pre_tokenizer.Split(text, is_first, [&](std::string_view word) {
    while (!word.empty()) {
      const size_t size = bpe->PartSize(word);
      EncodeWord(word.substr(0, size), ids);
      word.remove_prefix(size);
    }
  });
}

void Encoder::Work::EncodeText(std::string_view text, bool is_first, std::vector<int32_t>& ids) {
  if (!parts.normalizer.IsSurelyUnchanged(text)) {
    normalized = text;
    parts.normalizer.Apply(normalized);
    text = normalized;
  }
  if (parts.normalized_tokens.empty()) return EncodeWords(text, is_first, ids);
  normalized_segments.clear();
  parts.normalized_tokens.Split(text, normalized_segments);
  for (const Segment& segment : normalized_segments) {
    if (segment.id != Segment::kText) {
      ids.push_back(segment.id);
    } else {
      EncodeWords(segment.text, is_first && segment.text.data() == text.data(), ids);
    }
  }
}

Encoder::Encoder(std::shared_ptr<const Tokenizer> tokenizer)
    : work_(std::make_unique<Work>(std::move(tokenizer))) {}
Encoder::Encoder(Encoder&&) noexcept = default;
Encoder& Encoder::operator=(Encoder&&) noexcept = default;
Encoder::~Encoder() = default;

absl::Status Encoder::Encode(std::string_view text, const EncodeOptions& options,
                             std::vector<int32_t>& ids) {
  if (const std::optional<size_t> bad = FirstInvalidUtf8(text)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "text: expected UTF-8, got another byte at offset ", *bad, " of ", text.size()));
  }
  const size_t before = ids.size();
  const PostProcessor& post = work_->parts.post_processor;
  if (options.add_special_tokens) ids.insert(ids.end(), post.prefix.begin(), post.prefix.end());
  work_->unknown.clear();
  work_->segments.clear();
  work_->parts.raw_tokens.Split(text, work_->segments);
  try {
    for (const Segment& segment : work_->segments) {
      if (segment.id != Segment::kText) {
        ids.push_back(segment.id);
      } else {
        work_->EncodeText(segment.text, segment.text.data() == text.data(), ids);
      }
    }
  } catch (const SearchError& error) {
    ids.resize(before);
    return absl::InvalidArgumentError(absl::StrCat("text: ", error.what()));
  }
  if (options.add_special_tokens) ids.insert(ids.end(), post.suffix.begin(), post.suffix.end());
  if (work_->unknown.empty()) return absl::OkStatus();
  ids.resize(before);
  return absl::InvalidArgumentError(
      absl::StrCat("text: a character of \"", work_->unknown,
                   "\" has no token, and the model has neither unk_id nor byte_fallback"));
}

}  // namespace lockstep::text
