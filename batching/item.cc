#include "batching/item.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/nearest.h"
#include "batching/modality.h"
#include "batching/truncate.h"
#include "c10/util/Exception.h"

namespace lockstep::batching {
namespace {

// Returns the modality that a tensor belongs to, or null.
const Modality* ModalityOf(const std::string& name) {
  for (const Modality& modality : Modalities()) {
    if (name == modality.rows || (modality.grid != nullptr && name == modality.grid) ||
        std::count(modality.by_item.begin(), modality.by_item.end(), name) > 0)
      return &modality;
  }
  return nullptr;
}

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
    CheckRows();
    item.kept = whole_;
    std::vector<PlaceholderRanges> kept = ranges_;
    if (whole_.tokens > options_.seq_len) {
      CheckCanBeCut();
      const struct Cut cut = CutSample(ranges_, options_.seq_len);
      item.kept = ExtentOf(cut);
      for (size_t i = 0; i < kept.size(); ++i) kept[i].resize(static_cast<size_t>(cut.items[i]));
    }
    if (item.kept.tokens > 0) CheckKindIsKept(item.kept);
    // A tensor of the sample may describe its tokens, so a copy that runs with it is whole.
    const bool can_be_short = Unlocated() == nullptr && Unknown().empty() && !HasTensorOfSample();
    item.least = can_be_short && item.kept.tokens > 0 ? ExtentOf(ShortestCut(kept)) : item.kept;
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

  // Whether the tensor's row belongs to the sample, whatever of it is kept.
  bool IsOfSample(const std::string& name) const {
    return ModalityOf(name) == nullptr && options_.own_rows.count(name) == 0;
  }

  bool HasTensorOfSample() const {
    return std::any_of(whole_.rows.begin(), whole_.rows.end(),
                       [this](const auto& entry) { return IsOfSample(entry.first); });
  }

  // Returns the name of a tensor with rows that belongs to no modality found and not to the whole
  // sample, or "".
  std::string Unknown() const {
    for (const auto& [name, rows] : whole_.rows) {
      if (!IsOfSample(name) &&
          std::find(found_.begin(), found_.end(), ModalityOf(name)) == found_.end())
        return name;
    }
    return "";
  }

  // Returns what a sample has in place of a tensor that other trainers know.
  static const char* InPlaceOf(const std::string& name) {
    if (name == "labels")
      return "; in place of labels give loss_mask, which is true where a label is not -100";
    if (name == "attention_mask")
      return "; leave attention_mask out: samples have no padding, and seq_lens separates them";
    return "";
  }

  // Returns the name of own_rows that is probably a misspelling of a tensor's name.
  std::string MeantInOwnRows(const std::string& name) const {
    const std::vector<std::string> given(options_.own_rows.begin(), options_.own_rows.end());
    const std::string meant = base::Nearest(name, given);
    return meant.empty() ? "" : absl::StrCat("; own_rows has \"", meant, "\"");
  }

  void CheckRows() const {
    for (const auto& [name, rows] : whole_.rows) {
      TORCH_CHECK_VALUE(
          rows == 1 || !IsOfSample(name), "batching: sample ", index_, ": ", name, " has ", rows,
          " rows, which follow no declared count: a tensor has 1 row for the whole sample, and a ",
          "stream a row for each of its ", whole_.tokens,
          " tokens; declare values per token in streams, or name the tensor in own_rows",
          InPlaceOf(name), MeantInOwnRows(name));
    }
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
    for (const auto& [name, rows] : whole_.rows) {
      if (IsOfSample(name)) extent.rows[name] = rows;
    }
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
    item.may_mix = item.kind == names.back().modalities || item.kind == names.back().all;
    sets[item.kind].insert(names.back().all);
  }
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i].outline->kind.empty() && sets.at(items[i].kind).size() > 1) {
      items[i].kind = names[i].all;
    }
  }
}

namespace {

// Whether a micro-batch with samples of both would run the modules that samples like `host` run.
bool MayRide(const Item& rider, const Item& host) {
  if (!rider.may_mix || !host.may_mix || rider.kept.rows.size() >= host.kept.rows.size())
    return false;
  for (const auto& [name, rows] : rider.kept.rows) {
    if (host.kept.rows.count(name) == 0) return false;
    const TensorOutline& tensor = rider.outline->tensors.at(name);
    const TensorOutline& other = host.outline->tensors.at(name);
    if (tensor.dtype != other.dtype || tensor.device != other.device ||
        at::IntArrayRef(tensor.shape).slice(1) != at::IntArrayRef(other.shape).slice(1))
      return false;
  }
  for (const auto& [name, rows] : host.kept.rows) {
    if (rider.kept.rows.count(name) > 0) continue;
    const Modality* modality = ModalityOf(name);
    // Without a grid, a module may take the rows to be one for each sample.
    if (modality == nullptr || host.kept.rows.count(modality->counted()) == 0) return false;
    if (rider.kept.rows.count(modality->rows) > 0) return false;
  }
  return true;
}

}  // namespace

// The samples of a kind hold the same tensors, alike but for dimension 0: the first stands for all.
std::map<std::string, std::set<std::string>> HostsOf(const std::vector<Item>& items) {
  std::map<std::string, Item> kinds;
  for (const Item& item : items) {
    const auto [kind, is_first] = kinds.try_emplace(item.kind, item);
    kind->second.may_mix &= item.may_mix;
  }
  std::map<std::string, std::set<std::string>> hosts;
  for (const auto& [rider, of_rider] : kinds) {
    for (const auto& [host, of_host] : kinds) {
      if (MayRide(of_rider, of_host)) hosts[rider].insert(host);
    }
  }
  return hosts;
}

}  // namespace lockstep::batching
