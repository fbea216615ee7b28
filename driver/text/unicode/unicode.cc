#include "driver/text/unicode/unicode.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <unordered_map>
#include <vector>

namespace lockstep::text {
namespace {

#include "driver/text/unicode/tables.inc"

constexpr char32_t kReplacement = 0xFFFD;
constexpr uint32_t kNeverComposed = 0x80000000;

// Hangul syllables are arithmetic (The Unicode Standard, section 3.12).
constexpr char32_t kSyllables = 0xAC00, kLeads = 0x1100, kVowels = 0x1161, kTails = 0x11A7;
constexpr char32_t kNumLeads = 19, kNumVowels = 21, kNumTails = 28;
constexpr char32_t kNumSyllables = kNumLeads * kNumVowels * kNumTails;

template <size_t kNumRuns>
std::vector<uint8_t> Expand(const uint32_t (&runs)[kNumRuns], int shift) {
  std::vector<uint8_t> values(kEndOfUnicode, 0);
  for (size_t i = 0; i < kNumRuns; ++i) {
    const uint32_t end = i + 1 < kNumRuns ? runs[i + 1] >> shift : kEndOfUnicode;
    std::fill(values.begin() + (runs[i] >> shift), values.begin() + end,
              static_cast<uint8_t>(runs[i] & ((1u << shift) - 1)));
  }
  return values;
}

const uint8_t* ExpandClasses() {
  static const auto* classes = new std::vector<uint8_t>(Expand(kClassRuns, 4));
  return classes->data();
}

// The tables of normal forms, expanded once.
struct Forms {
  std::vector<uint8_t> combining = Expand(kCombiningRuns, 8);
  std::unordered_map<char32_t, const uint32_t*> canonical;   // to code, first, second
  std::unordered_map<char32_t, const uint32_t*> compatible;  // to length, characters
  std::unordered_map<uint64_t, char32_t> composed;           // of first << 32 | second
  std::vector<uint8_t> may_change;                           // bit 1 << form: not surely normal

  Forms();
};

void Decompose(const Forms& forms, char32_t code, bool compatibly, std::u32string& out) {
  if (code >= kSyllables && code < kSyllables + kNumSyllables) {
    const char32_t index = code - kSyllables;
    out += kLeads + index / (kNumVowels * kNumTails);
    out += kVowels + index % (kNumVowels * kNumTails) / kNumTails;
    if (index % kNumTails != 0) out += kTails + index % kNumTails;
    return;
  }
  if (compatibly) {
    if (const auto found = forms.compatible.find(code); found != forms.compatible.end()) {
      const uint32_t* row = found->second;
      out.append(row + 1, row + 1 + row[0]);
      return;
    }
  }
  const auto found = forms.canonical.find(code);
  if (found == forms.canonical.end()) {
    out += code;
    return;
  }
  Decompose(forms, found->second[1], compatibly, out);
  if (found->second[2] != 0) Decompose(forms, found->second[2], compatibly, out);
}

Forms::Forms() : may_change(kEndOfUnicode, 0) {
  const auto mark = [this](char32_t code, std::initializer_list<NormalForm> forms) {
    for (const NormalForm form : forms) may_change[code] |= 1 << static_cast<int>(form);
  };
  using enum NormalForm;
  for (char32_t code = 0; code < kEndOfUnicode; ++code) {
    if (combining[code] != 0) mark(code, {kC, kD, kKC, kKD});
  }
  for (const uint32_t* row = std::begin(kCanonical); row != std::end(kCanonical); row += 3) {
    const char32_t code = row[0] & ~kNeverComposed;
    canonical[code] = row;
    mark(code, {kD, kKD});
    if ((row[0] & kNeverComposed) != 0) {
      mark(code, {kC, kKC});
    } else {
      composed[uint64_t{row[1]} << 32 | row[2]] = code;
      mark(row[2], {kC, kKC});
    }
  }
  for (const uint32_t* row = std::begin(kCompatible); row != std::end(kCompatible);
       row += 2 + row[1]) {
    compatible[row[0]] = row + 1;
    mark(row[0], {kKC, kKD});
  }
  for (char32_t i = 0; i < kNumSyllables; ++i) mark(kSyllables + i, {kD, kKD});
  for (char32_t i = 0; i < kNumVowels; ++i) mark(kVowels + i, {kC, kKC});
  for (char32_t i = 1; i < kNumTails; ++i) mark(kTails + i, {kC, kKC});
  // A character may be made of others that are only compatible with something.
  for (const auto& [code, row] : canonical) {
    std::u32string parts, compatible_parts;
    Decompose(*this, code, false, parts);
    Decompose(*this, code, true, compatible_parts);
    if (parts != compatible_parts) mark(code, {kKC});
  }
}

const Forms& TheForms() {
  static const auto* forms = new Forms();
  return *forms;
}

// Sorts each run of characters with a combining class by that class.
void Reorder(const Forms& forms, std::u32string& text) {
  const auto starts = [&](char32_t code) { return forms.combining[code] == 0; };
  for (auto begin = text.begin(); begin != text.end();) {
    begin = std::find_if_not(begin, text.end(), starts);
    const auto end = std::find_if(begin, text.end(), starts);
    std::stable_sort(begin, end, [&](char32_t a, char32_t b) {
      return forms.combining[a] < forms.combining[b];
    });
    begin = end;
  }
}

// Returns what two characters compose to, or 0.
char32_t ComposePair(const Forms& forms, char32_t first, char32_t second) {
  if (first >= kLeads && first < kLeads + kNumLeads && second >= kVowels &&
      second < kVowels + kNumVowels) {
    return kSyllables + ((first - kLeads) * kNumVowels + (second - kVowels)) * kNumTails;
  }
  if (first >= kSyllables && first < kSyllables + kNumSyllables &&
      (first - kSyllables) % kNumTails == 0 && second > kTails && second < kTails + kNumTails) {
    return first + (second - kTails);
  }
  const auto found = forms.composed.find(uint64_t{first} << 32 | second);
  return found == forms.composed.end() ? 0 : found->second;
}

// Joins each character with the last starter, unless one between them blocks it.
void Compose(const Forms& forms, std::u32string& text) {
  constexpr size_t kNone = ~size_t{0};
  size_t starter = kNone, out = 0;
  for (const char32_t code : std::u32string(text)) {
    const uint8_t combining = forms.combining[code];
    if (starter != kNone) {
      const bool adjacent = out == starter + 1;
      const bool blocked = !adjacent && forms.combining[text[out - 1]] >= combining;
      const char32_t joined = blocked ? 0 : ComposePair(forms, text[starter], code);
      if (joined != 0) {
        text[starter] = joined;
        continue;
      }
    }
    if (combining == 0) starter = out;
    text[out++] = code;
  }
  text.resize(out);
}

// Returns the size of the valid character at `p`, or 0. `seen` is how many bytes of it are valid.
size_t ValidSize(const unsigned char* p, const unsigned char* end, size_t& seen) {
  seen = 1;
  const unsigned char first = *p;
  if (first < 0x80) return 1;
  const size_t size = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4) return 0;
  unsigned char low = 0x80, high = 0xBF;  // of the second byte
  if (first == 0xE0) low = 0xA0;
  if (first == 0xED) high = 0x9F;
  if (first == 0xF0) low = 0x90;
  if (first == 0xF4) high = 0x8F;
  while (seen < size) {
    if (p + seen == end || p[seen] < low || p[seen] > high) return 0;
    low = 0x80, high = 0xBF;
    ++seen;
  }
  return size;
}

}  // namespace

const uint8_t* const kCharClasses = ExpandClasses();

std::optional<size_t> FirstInvalidUtf8(std::string_view text) {
  const auto* begin = reinterpret_cast<const unsigned char*>(text.data());
  const unsigned char* end = begin + text.size();
  for (const unsigned char* p = begin; p < end;) {
    if (end - p >= 8) {
      uint64_t eight;
      std::memcpy(&eight, p, 8);
      if ((eight & 0x8080808080808080) == 0) {
        p += 8;
        continue;
      }
    }
    size_t seen = 0;
    const size_t size = ValidSize(p, end, seen);
    if (size == 0) return p - begin;
    p += size;
  }
  return std::nullopt;
}

void AppendUtf8(char32_t code, std::string& text) {
  const auto add = [&text](char32_t byte) { text += static_cast<char>(byte); };
  const auto tail = [code](int shift) { return 0x80 | ((code >> shift) & 0x3F); };
  if (code < 0x80) {
    add(code);
  } else if (code < 0x800) {
    add(0xC0 | code >> 6), add(tail(0));
  } else if (code < 0x10000) {
    add(0xE0 | code >> 12), add(tail(6)), add(tail(0));
  } else {
    add(0xF0 | code >> 18), add(tail(12)), add(tail(6)), add(tail(0));
  }
}

size_t CompleteUtf8Prefix(std::string_view bytes) {
  const auto* begin = reinterpret_cast<const unsigned char*>(bytes.data());
  const unsigned char* end = begin + bytes.size();
  for (size_t back = std::min<size_t>(3, bytes.size()); back > 0; --back) {
    size_t seen = 0;
    const unsigned char* p = end - back;
    if (*p >= 0xC2 && *p <= 0xF4 && ValidSize(p, end, seen) == 0 && seen == back)
      return bytes.size() - back;
  }
  return bytes.size();
}

std::string ReplaceInvalidUtf8(std::string_view bytes) {
  std::string text;
  const auto* p = reinterpret_cast<const unsigned char*>(bytes.data());
  const unsigned char* end = p + bytes.size();
  while (p < end) {
    size_t seen = 0;
    const size_t size = ValidSize(p, end, seen);
    if (size == 0) {
      AppendUtf8(kReplacement, text);
      p += seen;
    } else {
      text.append(reinterpret_cast<const char*>(p), size);
      p += size;
    }
  }
  return text;
}

std::string Normalize(std::string_view text, NormalForm form) {
  const Forms& forms = TheForms();
  std::u32string codes;
  const char* end = text.data() + text.size();
  for (const char* p = text.data(); p < end;) {
    const Char c = CharAt(p);
    Decompose(forms, c.code, form == NormalForm::kKC || form == NormalForm::kKD, codes);
    p += c.size;
  }
  Reorder(forms, codes);
  if (form == NormalForm::kC || form == NormalForm::kKC) Compose(forms, codes);
  std::string normal;
  normal.reserve(text.size());
  for (const char32_t code : codes) AppendUtf8(code, normal);
  return normal;
}

bool IsSurelyNormal(std::string_view text, NormalForm form) {
  const char* p = text.data();
  const char* end = p + text.size();
  const Forms* forms = nullptr;
  while (p < end) {
    if (end - p >= 8) {
      uint64_t eight;
      std::memcpy(&eight, p, 8);
      if ((eight & 0x8080808080808080) == 0) {
        p += 8;
        continue;
      }
    }
    const Char c = CharAt(p);
    if (c.code >= 0x80) {
      if (forms == nullptr) forms = &TheForms();
      if (((forms->may_change[c.code] >> static_cast<int>(form)) & 1) != 0) return false;
    }
    p += c.size;
  }
  return true;
}

std::string LowerCase(std::string_view text) {
  static const auto* lower = [] {
    auto* pairs = new std::unordered_map<char32_t, char32_t>();
    for (const uint32_t* row = std::begin(kLowerRanges); row != std::end(kLowerRanges); row += 4) {
      for (uint32_t code = row[0]; code <= row[1]; code += row[2])
        (*pairs)[code] = row[3] + (code - row[0]);
    }
    return pairs;
  }();
  std::string result;
  result.reserve(text.size());
  const char* end = text.data() + text.size();
  for (const char* p = text.data(); p < end;) {
    const Char c = CharAt(p);
    p += c.size;
    if (c.code < 0x80) {
      result += static_cast<char>(c.code >= 'A' && c.code <= 'Z' ? c.code + 32 : c.code);
    } else if (c.code == 0x130) {  // the one character whose lower case is two
      result += "i\xCC\x87";
    } else {
      const auto found = lower->find(c.code);
      AppendUtf8(found == lower->end() ? c.code : found->second, result);
    }
  }
  return result;
}

}  // namespace lockstep::text
