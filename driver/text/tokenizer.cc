#include "driver/text/tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "driver/files/regular_file.h"
#include "driver/text/tokenizer_parts.h"

namespace lockstep::text {

// --- TokenizerParts ------------------------------------------------------------------------------

TokenizerParts TokenizerParts::Read(const Node& root) {
  root.AllowKeys({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                  "post_processor", "decoder", "model"});
  const nlohmann::json null;
  const auto part = [&](const char* key) { return root.Find(key).value_or(Node(null, key)); };
  if (const Node version = part("version"); !version.IsNull() && version.String() != "1.0")
    version.Fail(absl::StrCat("expected \"1.0\", got \"", version.String(), "\""));
  TokenizerParts parts;
  parts.normalizer = Normalizer::Read(part("normalizer"));
  parts.pre_tokenizer = PreTokenizer::Read(part("pre_tokenizer"));
  parts.ReadModel(root.At("model"));
  parts.post_processor = PostProcessor::Read(part("post_processor"));
  parts.decoder = DecoderPlan::Read(part("decoder"));
  parts.ReadAdded(part("added_tokens"));
  for (const std::vector<int32_t>* ids :
       {&parts.post_processor.prefix, &parts.post_processor.suffix}) {
    for (const int32_t id : *ids) {
      if (parts.Token(id) == nullptr)
        root.At("post_processor").Fail(absl::StrCat("adds the id ", id, ", which no token has"));
    }
  }
  return parts;
}

void TokenizerParts::ReadModel(const Node& node) {
  // Files from before 2020 leave the type of BPE out.
  const bool is_old_bpe = !node.Find("type") && node.Find("merges");
  const std::string type = is_old_bpe ? "BPE" : node.At("type").String();
  if (type == "BPE") {
    model = Bpe::Read(node, pre_tokenizer.is_byte_level());
  } else if (type != "Unigram") {
    node.Fail(absl::StrCat("the model \"", type, "\" is not known; known are BPE and Unigram"));
  } else if (pre_tokenizer.is_byte_level()) {
    node.Fail("Unigram behind the pre-tokenizer ByteLevel is not known");
  } else {
    model = Unigram::Read(node);
  }
}

void TokenizerParts::ReadAdded(const Node& node) {
  std::vector<std::pair<std::string, AddedToken>> raw, normalized;
  std::vector<AddedToken> tokens;
  if (!node.IsNull()) tokens = ReadAddedTokens(node);
  size = static_cast<int64_t>(vocabulary().size());
  int32_t next_id = static_cast<int32_t>(size);
  for (size_t i = 0; i < tokens.size(); ++i) {
    AddedToken& token = tokens[i];
    const auto fail = [&](const std::string& problem) {
      throw FormatError(absl::StrCat(node.path(), "[", i, "]: ", problem));
    };
    const std::optional<int32_t> own = vocabulary().Id(token.content);
    if (own && *own != token.id) {
      fail(absl::StrCat("\"", token.content, "\" has the id ", token.id, " here and ", *own,
                        " in the model's vocabulary"));
    }
    const std::string* other = vocabulary().Token(token.id);
    if (other != nullptr && *other != token.content) {
      fail(absl::StrCat("\"", token.content, "\" has the id ", token.id, ", which \"", *other,
                        "\" has in the model's vocabulary"));
    }
    // Hugging Face's tokenizers ignores the ids of a file: it counts on from the vocabulary.
    const int32_t counted = own.value_or(next_id);
    if (counted != token.id) {
      fail(absl::StrCat("\"", token.content, "\" has the id ", token.id,
                        " here, but Hugging Face's tokenizers would give it ", counted,
                        ", the next one behind the vocabulary and the added tokens before it"));
    }
    next_id = std::max(next_id, counted + 1);
    if (other == nullptr) ++size;
    token.decoded = token.content;
    if (token.normalized) {
      normalizer.Apply(token.decoded);
      normalized.emplace_back(token.decoded, token);
    } else {
      raw.emplace_back(token.content, token);
    }
    added.emplace(token.id, token);
    added_ids.emplace(token.content, token.id);
  }
  raw_tokens = TokenMatcher(raw);
  normalized_tokens = TokenMatcher(normalized);
}

const std::string* TokenizerParts::Token(int32_t id) const {
  const auto found = added.find(id);
  return found != added.end() ? &found->second.content : vocabulary().Token(id);
}

const std::string* TokenizerParts::DecodedToken(int32_t id) const {
  const auto found = added.find(id);
  return found != added.end() ? &found->second.decoded : vocabulary().Token(id);
}

// --- Tokenizer -----------------------------------------------------------------------------------

Tokenizer::Tokenizer(std::unique_ptr<const TokenizerParts> parts) : parts_(std::move(parts)) {}
Tokenizer::~Tokenizer() = default;

absl::StatusOr<std::shared_ptr<const Tokenizer>> Tokenizer::Load(const std::string& path) {
  std::error_code ignored;
  std::string file = path;
  if (std::filesystem::is_directory(path, ignored)) file += "/tokenizer.json";
  const absl::StatusOr<std::string> json = driver::ReadRegularFile(file);
  if (!json.ok()) {
    return absl::NotFoundError(
        absl::StrCat("text: ", file, ": cannot be read: ", json.status().message()));
  }
  return Parse(*json, file);
}

absl::StatusOr<std::shared_ptr<const Tokenizer>> Tokenizer::Parse(std::string_view json,
                                                                  const std::string& name) {
  if (json.find_first_not_of(" \t\r\n") == json.npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("text: ", name, " is empty; expected a tokenizer.json of Hugging Face"));
  }
  try {
    const nlohmann::json root = nlohmann::json::parse(json.begin(), json.end());
    auto parts = std::make_unique<TokenizerParts>(TokenizerParts::Read(Node(root, "")));
    return std::make_shared<const Tokenizer>(std::move(parts));
  } catch (const FormatError& error) {
    return absl::InvalidArgumentError(absl::StrCat("text: ", name, ": ", error.what()));
  } catch (const SearchError& error) {
    return absl::InvalidArgumentError(absl::StrCat("text: ", name, ": ", error.what()));
  } catch (const nlohmann::json::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("text: ", name, ": not valid JSON: ", error.what()));
  }
}

int64_t Tokenizer::size() const { return parts_->size; }

std::optional<int32_t> Tokenizer::Id(std::string_view token) const {
  const auto found = parts_->added_ids.find(std::string(token));
  if (found != parts_->added_ids.end()) return found->second;
  return parts_->vocabulary().Id(token);
}

std::optional<std::string_view> Tokenizer::Token(int32_t id) const {
  const std::string* token = parts_->Token(id);
  if (token == nullptr) return std::nullopt;
  return *token;
}

bool Tokenizer::IsSpecial(int32_t id) const {
  const auto found = parts_->added.find(id);
  return found != parts_->added.end() && found->second.special;
}

}  // namespace lockstep::text
