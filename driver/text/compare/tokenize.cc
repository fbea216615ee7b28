// Encodes and decodes texts for compare.py and for the benchmark, which compare with PyPI's
// tokenizers:
//
//    tokenize TOKENIZER <texts >results
//    tokenize --time PASSES TOKENIZER <texts
//
// A text is its length (uint32) and its bytes. A result is the number of ids (uint32), the ids
// (int32), and the decoded text as a text.
//
// --time prints the number of ids, and the processor seconds of each pass over all texts. Each pass
// has a new Encoder.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "driver/text/tokenizer.h"

namespace lockstep::text {
namespace {

using Shared = std::shared_ptr<const Tokenizer>;

[[noreturn]] void Fail(const absl::Status& status) {
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  std::exit(1);
}

std::vector<std::string_view> SplitTexts(std::string_view input) {
  std::vector<std::string_view> texts;
  while (input.size() >= 4) {
    uint32_t size;
    std::memcpy(&size, input.data(), 4);
    if (size > input.size() - 4) Fail(absl::InvalidArgumentError("tokenize: a text is cut short"));
    texts.push_back(input.substr(4, size));
    input.remove_prefix(4 + size);
  }
  return texts;
}

void Write(const void* data, size_t size) { std::fwrite(data, 1, size, stdout); }
void WriteSize(size_t size) {
  const auto number = static_cast<uint32_t>(size);
  Write(&number, 4);
}

void Compare(const Shared& tokenizer, const std::vector<std::string_view>& texts) {
  Encoder encoder(tokenizer);
  for (const std::string_view text : texts) {
    std::vector<int32_t> ids;
    const absl::Status status = encoder.Encode(text, {}, ids);
    if (!status.ok()) Fail(status);
    WriteSize(ids.size());
    Write(ids.data(), 4 * ids.size());
    const std::vector<int64_t> wide(ids.begin(), ids.end());
    const absl::StatusOr<std::string> decoded = Decode(tokenizer, wide, {});
    if (!decoded.ok()) Fail(decoded.status());
    WriteSize(decoded->size());
    Write(decoded->data(), decoded->size());
  }
}

void Time(const Shared& tokenizer, const std::vector<std::string_view>& texts, int passes) {
  for (int pass = 0; pass < passes; ++pass) {
    const std::clock_t begin = std::clock();
    Encoder encoder(tokenizer);
    size_t count = 0;
    std::vector<int32_t> ids;
    for (const std::string_view text : texts) {
      ids.clear();
      const absl::Status status = encoder.Encode(text, {}, ids);
      if (!status.ok()) Fail(status);
      count += ids.size();
    }
    const auto seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
    std::printf("%.6f %zu\n", seconds, count);
  }
}

}  // namespace
}  // namespace lockstep::text

int main(int argc, char** argv) {
  using namespace lockstep::text;  // NOLINT: main is part of this file alone
  const bool times = argc == 4 && std::string_view(argv[1]) == "--time";
  if (argc != 2 && !times) {
    std::fprintf(stderr, "usage: tokenize [--time PASSES] TOKENIZER <texts\n");
    return 2;
  }
  const absl::StatusOr<std::shared_ptr<const Tokenizer>> tokenizer =
      Tokenizer::Load(argv[argc - 1]);
  if (!tokenizer.ok()) Fail(tokenizer.status());
  const std::string input((std::istreambuf_iterator<char>(std::cin)), {});
  const std::vector<std::string_view> texts = SplitTexts(input);
  if (times) {
    Time(*tokenizer, texts, std::atoi(argv[2]));
  } else {
    Compare(*tokenizer, texts);
  }
}
