#include "batching/item.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "batching/modality.h"
#include "batching/truncate.h"
#include "c10/util/Exception.h"

namespace lockstep::batching {
namespace {

// The names of a set of tensors.
struct Names {
  std::string all;         // "text", "image", "image+video", "text+reward"
  std::string modalities;  // "text", "image", "image+video", "text"
};

Names NamesOf(const std::map<std::string, int64_t>& rows) {
  std::string kind;
  std::set<std::string> named;
  for (const Modality& modality : Modalities()) {
    if (rows.count(modality.rows) == 0) continue;
    absl::StrAppend(&kind, kind.empty() ? "" : "+", modality.name);
    named.insert(modality.rows);
    if (modality.grid != nullptr) named.insert(modality.grid);
    named.insert(modality.by_item.begin(), modality.by_item.end());
  }
  if (kind.empty()) kind = "text";
  const std::string modalities = kind;
  for (const auto& [name, count] : rows) {
    if (named.count(name) == 0) absl::StrAppend(&kind, "+", name);
  }
  return {kind, modalities};
}

class Cutter {
 public:
  Cutter(const Outline& outline, int64_t index, const PrepareOptions& options)
      : outline_(outline), index_(index), options_(options) {
    for (const auto& [name, tensor] : outline.tensors) {
      if (tensor.shape[0] > 0) whole_.rows[name] = tensor.shape[0];
    }
    whole_.tokens = outline.tokens;
    for (const Modality& modality : Modalities()) {
      const auto items = outline.items.find(modality.name);
      if (items == outline.items.end()) continue;
      found_.push_back(&modality);
      located_.push_back(items->second.located);
      ranges_.push_back(items->second.located ? items->second.ranges : PlaceholderRanges());
      if (modality.grid == nullptr) continue;
      for (const PlaceholderRange& range : items->second.ranges)
        whole_.patches.push_back(range.rows);
    }
  }

  // Keeps no token of a sample that begins with an item that does not fit.
  Item Cut() const {
    Item item;
    item.outline = &outline_;
    item.kept = whole_;
    std::vector<PlaceholderRanges> kept = ranges_;
    if (whole_.tokens > options_.seq_len) {
      CheckCanBeCut();
      const struct Cut cut = CutSample(ranges_, options_.seq_len);
      item.kept = ExtentOf(cut);
      for (size_t i = 0; i < kept.size(); ++i) kept[i].resize(static_cast<size_t>(cut.items[i]));
    }
    if (item.kept.tokens > 0) CheckKindIsKept(item.kept);
    const bool can_be_cut = Unlocated() == nullptr && Unknown().empty();
    item.least = can_be_cut && item.kept.tokens > 0 ? ExtentOf(ShortestCut(kept)) : item.kept;
    return item;
  }

 private:
  // Returns a modality with rows whose placeholders are not known, or null.
  const Modality* Unlocated() const {
    for (size_t i = 0; i < found_.size(); ++i) {
      if (!located_[i] && whole_.rows.count(found_[i]->rows) > 0) return found_[i];
    }
    return nullptr;
  }

  // Returns the name of a tensor with rows that belongs to no modality found, or "".
  std::string Unknown() const {
    for (const auto& [name, rows] : whole_.rows) {
      const auto holds = [&name = name](const Modality* m) {
        return name == m->rows || (m->grid != nullptr && name == m->grid) ||
               std::count(m->by_item.begin(), m->by_item.end(), name) > 0;
      };
      if (std::none_of(found_.begin(), found_.end(), holds)) return name;
    }
    return "";
  }

  void CheckCanBeCut() const {
    const Modality* unlocated = Unlocated();
    TORCH_CHECK_VALUE(unlocated == nullptr, "batching: sample ", index_, " has ", whole_.tokens,
                      " tokens, more than seq_len = ", options_.seq_len, ", and ", unlocated->rows,
                      ", but its placeholder tokens are unknown; give the sample ",
                      options_.token_types.empty() ? "token types" : options_.token_types,
                      " or set ", unlocated->token_id_name);
    const std::string unknown = Unknown();
    TORCH_CHECK_VALUE(unknown.empty(), "batching: sample ", index_, " has ", whole_.tokens,
                      " tokens, more than seq_len = ", options_.seq_len,
                      ", but it is unknown which rows of ", unknown,
                      " belong to which tokens; shorten the sample first");
  }

  // A kind that the caller named stands for a set of tensors: the cut must not remove one of them.
  void CheckKindIsKept(const Extent& kept) const {
    if (outline_.kind.empty()) return;
    for (const auto& [name, rows] : whole_.rows) {
      TORCH_CHECK_VALUE(kept.rows.count(name) > 0, "batching: sample ", index_, " of kind \"",
                        outline_.kind, "\" loses all rows of ", name,
                        " when it is cut to seq_len = ", options_.seq_len, "; shorten it first");
    }
  }

  Extent ExtentOf(const struct Cut& cut) const {
    Extent extent;
    extent.tokens = cut.tokens;
    for (size_t i = 0; i < found_.size(); ++i) {
      const Modality& modality = *found_[i];
      const int64_t items = cut.items[i];
      if (items == 0) continue;
      int64_t rows = 0;
      for (int64_t k = 0; k < items; ++k) {
        const PlaceholderRange& range = ranges_[i][static_cast<size_t>(k)];
        rows += range.rows;
        if (modality.grid != nullptr) extent.patches.push_back(range.rows);
      }
      extent.rows[modality.rows] = rows;
      if (modality.grid != nullptr) extent.rows[modality.grid] = items;
      for (const char* name : modality.by_item) {
        if (outline_.tensors.count(name) > 0) extent.rows[name] = items;
      }
    }
    return extent;
  }

  const Outline& outline_;
  const int64_t index_;  // in messages
  const PrepareOptions& options_;
  Extent whole_;
  // One element for each modality of the sample.
  std::vector<const Modality*> found_;
  std::vector<bool> located_;              // whether `ranges_` is known
  std::vector<PlaceholderRanges> ranges_;  // empty if not located
};

}  // namespace

Item MakeItem(const Outline& outline, int64_t number, const PrepareOptions& options) {
  return Cutter(outline, number, options).Cut();
}

void NameKinds(std::vector<Item>& items) {
  std::map<std::string, std::set<std::string>> sets;  // of tensors, by the kind without additions
  std::vector<Names> names;
  names.reserve(items.size());
  for (Item& item : items) {
    names.push_back(NamesOf(item.kept.rows));
    const std::string& own = item.outline->kind;
    item.kind = own.empty() ? names.back().modalities : own;
    sets[item.kind].insert(names.back().all);
  }
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i].outline->kind.empty() && sets.at(items[i].kind).size() > 1) {
      items[i].kind = names[i].all;
    }
  }
}

}  // namespace lockstep::batching
