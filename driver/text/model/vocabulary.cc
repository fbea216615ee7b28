#include "driver/text/model/vocabulary.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "driver/text/unicode/unicode.h"

namespace lockstep::text {
namespace {

bool IsVisible(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

const std::array<char32_t, 256>& Alphabet() {
  static const std::array<char32_t, 256> alphabet = [] {
    std::array<char32_t, 256> codes{};
    char32_t next = 0x100;
    for (unsigned byte = 0; byte < 256; ++byte) codes[byte] = IsVisible(byte) ? byte : next++;
    return codes;
  }();
  return alphabet;
}

}  // namespace

Vocabulary Vocabulary::Read(const Node& node) {
  if (!node.json().is_object()) node.Fail("expected an object of tokens and their ids");
  Vocabulary vocabulary;
  for (const auto& [token, id] : node.json().items()) {
    const Node entry(id, absl::StrCat(node.path(), "[\"", token, "\"]"));
    if (!vocabulary.Add(token, static_cast<int32_t>(entry.Integer(0, kMaxId))))
      entry.Fail(absl::StrCat("another token has the id ", id.dump()));
  }
  return vocabulary;
}

bool Vocabulary::Add(std::string token, int32_t id) {
  if (ids_.count(token) != 0) return false;
  const auto [entry, is_new] = tokens_.emplace(id, std::move(token));
  if (!is_new) return false;
  ids_.emplace(entry->second, id);
  return true;
}

std::optional<int32_t> Vocabulary::Id(std::string_view token) const {
  const auto found = ids_.find(token);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

const std::string* Vocabulary::Token(int32_t id) const {
  const auto found = tokens_.find(id);
  return found == tokens_.end() ? nullptr : &found->second;
}

std::vector<int32_t> ByteTokens(const Vocabulary& vocabulary, const Node& node) {
  std::vector<int32_t> ids;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string token = absl::StrFormat("<0x%02X>", byte);
    const std::optional<int32_t> id = vocabulary.Id(token);
    if (!id)
      node.Fail(absl::StrCat("needs <0x00> to <0xFF> in the vocabulary; ", token, " is missing"));
    ids.push_back(*id);
  }
  return ids;
}

char32_t ByteCharacter(uint8_t byte) { return Alphabet()[byte]; }

std::optional<uint8_t> CharacterByte(char32_t code) {
  static const std::array<int16_t, 0x200> bytes = [] {
    std::array<int16_t, 0x200> table;
    table.fill(-1);
    for (int byte = 0; byte < 256; ++byte) table[Alphabet()[byte]] = static_cast<int16_t>(byte);
    return table;
  }();
  if (code >= bytes.size() || bytes[code] < 0) return std::nullopt;
  return static_cast<uint8_t>(bytes[code]);
}

std::optional<std::string> BytesOf(std::string_view token) {
  std::string bytes;
  const char* end = token.data() + token.size();
  for (const char* p = token.data(); p < end;) {
    const Char c = CharAt(p);
    const std::optional<uint8_t> byte = CharacterByte(c.code);
    if (!byte) return std::nullopt;
    bytes += static_cast<char>(*byte);
    p += c.size;
  }
  return bytes;
}

}  // namespace lockstep::text
