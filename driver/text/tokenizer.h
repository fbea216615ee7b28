// A tokenizer as tokenizer.json describes it: text to ids and back, without Python.
//
//   absl::StatusOr<std::shared_ptr<const Tokenizer>> tokenizer = Tokenizer::Load("Qwen3-0.6B");
//   Encoder encoder(*tokenizer);
//   std::vector<int32_t> ids;
//   absl::Status status = encoder.Encode("Hello", {.add_special_tokens = true}, ids);
//   std::vector<int64_t> answer(ids.begin(), ids.end());
//   absl::StatusOr<std::string> text = Decode(*tokenizer, answer, {});
//
// The failure this prevents: a model that trains on other ids than those it was made for. The ids
// are those of PyPI's tokenizers 0.23, which transformers uses. A key or a type in the file that is
// not known here is an error that names its path. "truncation" and "padding" are accepted and have
// no effect, as in transformers unless the caller asks for them.
//
// Reads byte-level BPE (GPT-2, Llama 3, Qwen, o200k), the BPE of SentencePiece (Llama 2, Gemma) and
// Unigram. A text that is not UTF-8 is an error.
//
// A Tokenizer is thread-safe. An Encoder and a DecodeStream belong to one thread each.

#ifndef LOCKSTEP_DRIVER_TEXT_TOKENIZER_H_
#define LOCKSTEP_DRIVER_TEXT_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace lockstep::text {

struct TokenizerParts;  // private to driver/text: tokenizer_parts.h

class Tokenizer {
 public:
  // Reads the file, or tokenizer.json in the folder, at `path`. The error names the file.
  static absl::StatusOr<std::shared_ptr<const Tokenizer>> Load(const std::string& path);

  // The same of the file's text; `name` stands in messages.
  static absl::StatusOr<std::shared_ptr<const Tokenizer>> Parse(std::string_view json,
                                                                const std::string& name);

  ~Tokenizer();

  // Returns the number of tokens, added ones included. Ids may have gaps, so an embedding may need
  // more rows.
  int64_t size() const;
  std::optional<int32_t> Id(std::string_view token) const;  // of a token as the file spells it
  std::optional<std::string_view> Token(int32_t id) const;  // the reverse
  bool IsSpecial(int32_t id) const;                         // an added token marked special

  explicit Tokenizer(std::unique_ptr<const TokenizerParts> parts);
  const TokenizerParts& parts() const { return *parts_; }

 private:
  std::unique_ptr<const TokenizerParts> parts_;
};

struct EncodeOptions {
  bool add_special_tokens = true;  // those of the post-processor: a beginning of text, say
};

// Encodes texts one after the other, and remembers the ids of words.
class Encoder {
 public:
  explicit Encoder(std::shared_ptr<const Tokenizer> tokenizer);
  Encoder(Encoder&&) noexcept;
  Encoder& operator=(Encoder&&) noexcept;
  ~Encoder();

  // Appends the ids of `text`; on an error, nothing. InvalidArgument where the text is not UTF-8,
  // or has a character that a Unigram model without `unk_id` lacks.
  absl::Status Encode(std::string_view text, const EncodeOptions& options,
                      std::vector<int32_t>& ids);

 private:
  struct Work;
  std::unique_ptr<Work> work_;
};

struct DecodeOptions {
  bool skip_special_tokens = false;
};

// Decodes ids as they come, those of a model that generates. Ids are int64, as tensors hold them.
class DecodeStream {
 public:
  DecodeStream(std::shared_ptr<const Tokenizer> tokenizer, const DecodeOptions& options);
  DecodeStream(DecodeStream&&) noexcept;
  DecodeStream& operator=(DecodeStream&&) noexcept;
  ~DecodeStream();

  // Returns the text that is complete and was not returned before. An id that no token has adds
  // nothing, as in transformers: a model may have more rows than there are tokens. InvalidArgument
  // where the id is negative or beyond 2^32 - 1.
  absl::StatusOr<std::string> Push(int64_t id);

  // Returns what waited for more: U+FFFD for bytes that are no whole character. The stream is then
  // as new.
  std::string Finish();

 private:
  struct Work;
  std::unique_ptr<Work> work_;
};

// Decodes all ids at once: the same text as a stream's.
absl::StatusOr<std::string> Decode(std::shared_ptr<const Tokenizer> tokenizer,
                                   absl::Span<const int64_t> ids, const DecodeOptions& options);

}  // namespace lockstep::text

#endif  // LOCKSTEP_DRIVER_TEXT_TOKENIZER_H_
