#include <cstdint>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "driver/text/tokenizer.h"
#include "driver/text/tokenizer_parts.h"

namespace lockstep::text {

struct DecodeStream::Work {
  std::shared_ptr<const Tokenizer> tokenizer;
  DecodeOptions options;
  Decoder decoder;
};

DecodeStream::DecodeStream(std::shared_ptr<const Tokenizer> tokenizer, const DecodeOptions& options)
    : work_(new Work{tokenizer, options, Decoder(tokenizer->parts().decoder)}) {}
DecodeStream::DecodeStream(DecodeStream&&) noexcept = default;
DecodeStream& DecodeStream::operator=(DecodeStream&&) noexcept = default;
DecodeStream::~DecodeStream() = default;

absl::StatusOr<std::string> DecodeStream::Push(int64_t id) {
  if (id < 0 || id > std::numeric_limits<uint32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("text: expected an id from 0 to 2^32 - 1, got ", id,
                     " (labels of -100 are no tokens: leave them out)"));
  }
  const std::string* token = id <= std::numeric_limits<int32_t>::max()
                                 ? work_->tokenizer->parts().DecodedToken(static_cast<int32_t>(id))
                                 : nullptr;
  if (token == nullptr) return std::string();
  if (work_->options.skip_special_tokens && work_->tokenizer->IsSpecial(static_cast<int32_t>(id)))
    return std::string();
  return work_->decoder.Push(*token);
}

std::string DecodeStream::Finish() { return work_->decoder.Finish(); }

absl::StatusOr<std::string> Decode(std::shared_ptr<const Tokenizer> tokenizer,
                                   absl::Span<const int64_t> ids, const DecodeOptions& options) {
  DecodeStream stream(std::move(tokenizer), options);
  std::string text;
  for (const int64_t id : ids) {
    absl::StatusOr<std::string> more = stream.Push(id);
    if (!more.ok()) return more.status();
    text += *more;
  }
  return text + stream.Finish();
}

}  // namespace lockstep::text
