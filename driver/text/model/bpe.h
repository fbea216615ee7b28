// Byte-pair encoding: joins the pair of neighbouring symbols that was learnt first, again and
// again.
//
//   Bpe bpe = Bpe::Read(root.At("model"), pre_tokenizer.is_byte_level());
//   Bpe::Scratch scratch;
//   bpe.Encode(word, scratch, ids);  // appends
//
// Reads both kinds. In byte-level BPE the first symbols are bytes. In SentencePiece's they are
// characters, and `byte_fallback` gives the bytes of those that the vocabulary lacks. A character
// without a token, without bytes and without `unk_token` gives no id, as in PyPI's tokenizers.
//
// Sennrich, Haddow, Birch: Neural Machine Translation of Rare Words with Subword Units (2016).
// Thread-safe; a Scratch belongs to one thread.

#ifndef LOCKSTEP_DRIVER_TEXT_MODEL_BPE_H_
#define LOCKSTEP_DRIVER_TEXT_MODEL_BPE_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "driver/text/json/json_node.h"
#include "driver/text/model/vocabulary.h"

namespace lockstep::text {

// Pairs of ids that can be joined: an open hash table, filled at most half.
class MergeTable {
 public:
  static constexpr uint64_t kNone = ~uint64_t{0};

  void Reserve(size_t merges);
  void Set(int32_t left, int32_t right, uint32_t rank, int32_t joined);

  // Returns rank << 32 | joined id, or kNone: smaller is joined earlier.
  uint64_t Find(int32_t left, int32_t right) const;

 private:
  struct Slot {
    uint64_t pair = kNone;
    uint64_t value = kNone;
  };
  size_t Home(uint64_t pair) const { return (pair * 0x9E3779B97F4A7C15) >> shift_; }

  std::vector<Slot> slots_ = std::vector<Slot>(2);
  int shift_ = 63;
};

class Bpe {
 public:
  // The memory of one thread's work.
  struct Scratch {
    struct Symbol {
      int32_t id;
      int32_t previous;  // -1: none
      int32_t next;      // -1: none
    };
    std::vector<int32_t> ids;
    std::vector<uint64_t> pairs;  // [i]: what joins symbol i and the next, as MergeTable::Find
    std::vector<Symbol> symbols;
    std::vector<std::pair<uint64_t, int32_t>> heap;
  };

  // Reads the object. Throws FormatError.
  static Bpe Read(const Node& node, bool is_byte_level);

  const Vocabulary& vocabulary() const { return vocabulary_; }

  // Returns the length of the first part of `word` that is encoded for itself: up to a "▁" that no
  // merge joins with what is before it, or all.
  size_t PartSize(std::string_view word) const;

  // Appends the ids of a word.
  void Encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const;

 private:
  void ReadMerges(const Node& node);
  void ReadUnknown(const Node& node);
  void MapBytes(const Node& node);
  void MapCharacters();
  void AppendSymbols(std::string_view word, std::vector<int32_t>& symbols) const;
  void AppendCharacters(std::string_view word, std::vector<int32_t>& symbols) const;
  void MergeFew(Scratch& scratch, std::vector<int32_t>& ids) const;
  void MergeMany(Scratch& scratch, std::vector<int32_t>& ids) const;

  Vocabulary vocabulary_;
  MergeTable merges_;
  bool is_byte_level_ = false;
  bool ignore_merges_ = false;
  bool byte_fallback_ = false;
  bool fuse_unknown_ = false;
  bool splits_at_space_mark_ = false;
  int32_t unknown_ = -1;                              // -1: none
  std::array<int32_t, 256> bytes_{};                  // byte-level: -1 where missing
  std::vector<int32_t> fallback_;                     // of each byte
  std::unordered_map<char32_t, int32_t> characters_;  // not byte-level
  std::unordered_map<std::string, int32_t> words_;    // ignore_merges: words as they come in
};

}  // namespace lockstep::text

#endif  // LOCKSTEP_DRIVER_TEXT_MODEL_BPE_H_
