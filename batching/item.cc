#include "batching/item.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "batching/truncate.h"
#include "c10/util/Exception.h"

namespace lockstep::batching {
namespace {

// The tensors of one modality, which are cut together.
struct Modality {
  const char* name;  // in kinds and messages
  const char* rows;  // the tensor that the modality's module runs on
  // The tensor with a row {time, height, width} for each item, whose product is the item's number
  // of `rows`. Null: `rows` has one row for each item.
  const char* grid;
  std::vector<const char*> by_item;  // further tensors with one row for each item, if present
  int64_t type;                      // in token_types
  std::optional<int64_t> PrepareOptions::*token_id;
  const char* token_id_name;
};

const std::vector<Modality>& Modalities() {
  static const auto* const kModalities = new std::vector<Modality>{
      {"image",
       "pixel_values",
       "image_grid_thw",
       {},
       1,
       &PrepareOptions::image_token_id,
       "image_token_id"},
      {"video",
       "pixel_values_videos",
       "video_grid_thw",
       {},
       2,
       &PrepareOptions::video_token_id,
       "video_token_id"},
      {"audio",
       "input_features",
       nullptr,
       {"feature_attention_mask", "input_features_mask"},
       3,
       &PrepareOptions::audio_token_id,
       "audio_token_id"},
  };
  return *kModalities;
}

// --- Checking ------------------------------------------------------------------------------------

void CheckPerToken(const at::Tensor& tensor, const std::string& name, int64_t sample,
                   int64_t tokens) {
  TORCH_CHECK_VALUE(tensor.dim() == 1 && tensor.size(0) == tokens, "batching: sample ", sample,
                    ": ", name, " has shape ", tensor.sizes(), ", but input_ids has ", tokens,
                    " tokens");
  TORCH_CHECK_VALUE(tensor.is_cpu(), "batching: sample ", sample, ": ", name,
                    " must be on the CPU, not on ", tensor.device());
}

void CheckIntegers(const at::Tensor& tensor, const std::string& name, int64_t sample) {
  if (!tensor.defined()) return;
  TORCH_CHECK_VALUE(at::isIntegralType(tensor.scalar_type(), /*includeBool=*/false),
                    "batching: sample ", sample, ": ", name, " must be of an integer dtype, not ",
                    tensor.scalar_type());
}

void CheckLossMask(const at::Tensor& mask, int64_t sample) {
  if (mask.scalar_type() == at::kBool) return;
  const at::Tensor wrong = mask.masked_select(mask.ne(0).logical_and(mask.ne(1)));
  TORCH_CHECK_VALUE(wrong.numel() == 0, "batching: sample ", sample, ": loss_mask holds ",
                    absl::StrCat(wrong[0].item<double>()),
                    "; each element must be 0, 1, true or false");
}

void CheckSample(const TensorSample& sample, int64_t index, const PrepareOptions& options) {
  TORCH_CHECK_VALUE(sample.input_ids.defined() && sample.input_ids.dim() == 1, "batching: sample ",
                    index, ": input_ids must be a tensor of one dimension");
  const int64_t tokens = sample.input_ids.size(0);
  TORCH_CHECK_VALUE(tokens > 0, "batching: sample ", index, " has no tokens");
  CheckIntegers(sample.input_ids, "input_ids", index);
  TORCH_CHECK_VALUE(sample.loss_mask.defined(), "batching: sample ", index, " has no loss_mask");
  CheckPerToken(sample.input_ids, "input_ids", index, tokens);
  CheckPerToken(sample.loss_mask, "loss_mask", index, tokens);
  CheckLossMask(sample.loss_mask, index);
  if (sample.position_ids.defined())
    CheckPerToken(sample.position_ids, "position_ids", index, tokens);
  CheckIntegers(sample.position_ids, "position_ids", index);
  for (const auto& [name, stream] : sample.streams) {
    if (name == options.token_types) CheckIntegers(stream, name, index);
    TORCH_CHECK_VALUE(options.streams.count(name) > 0 || name == options.token_types,
                      "batching: sample ", index, ": ", name,
                      " is not declared in streams, so the value for padding is unknown");
    CheckPerToken(stream, name, index, tokens);
  }
  for (const auto& [name, tensor] : sample.tensors) {
    TORCH_CHECK_VALUE(tensor.dim() >= 1, "batching: sample ", index, ": ", name,
                      " has no dimension 0 to concatenate on");
  }
}

// --- Cutting -------------------------------------------------------------------------------------

std::vector<int64_t> Patches(const at::Tensor& grid, int64_t sample, const char* name) {
  TORCH_CHECK_VALUE(
      grid.dim() == 2 && at::isIntegralType(grid.scalar_type(), /*includeBool=*/false),
      "batching: sample ", sample, ": ", name, " must hold integers in a row for each image, not ",
      grid.scalar_type(), " of shape ", grid.sizes());
  TORCH_CHECK_VALUE(grid.numel() == 0 || grid.min().item<int64_t>() > 0, "batching: sample ",
                    sample, ": ", name, " holds ", grid.min().item<int64_t>(),
                    "; times, heights and widths are above 0");
  const at::Tensor counts = grid.to(at::kLong).prod(1).contiguous();
  return std::vector<int64_t>(counts.const_data_ptr<int64_t>(),
                              counts.const_data_ptr<int64_t>() + counts.numel());
}

// Names the set of tensors in `rows`: "text", "image", "image+video", "text+reward".
std::string KindOf(const std::map<std::string, int64_t>& rows) {
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
  for (const auto& [name, count] : rows) {
    if (named.count(name) == 0) absl::StrAppend(&kind, "+", name);
  }
  return kind;
}

class Cutter {
 public:
  Cutter(const TensorSample& sample, int64_t index, const PrepareOptions& options)
      : sample_(sample), index_(index), options_(options) {
    for (const auto& [name, tensor] : sample.tensors) {
      if (tensor.size(0) > 0) whole_.rows[name] = tensor.size(0);
    }
    whole_.tokens = sample.input_ids.size(0);
    for (const Modality& modality : Modalities()) FindItems(modality);
  }

  // Keeps no token of a sample that begins with an item that does not fit.
  Item Cut() const {
    Item item;
    item.sample = &sample_;
    item.kept = whole_;
    std::vector<Blocks> kept = blocks_;
    if (whole_.tokens > options_.seq_len) {
      CheckCanBeCut();
      const struct Cut cut = CutSample(blocks_, options_.seq_len);
      item.kept = ExtentOf(cut);
      for (size_t i = 0; i < kept.size(); ++i) kept[i].resize(static_cast<size_t>(cut.items[i]));
    }
    item.kind = sample_.kind.empty() ? KindOf(item.kept.rows) : sample_.kind;
    if (item.kept.tokens > 0) CheckKindIsKept(item.kept);
    const bool can_be_cut = Unlocated() == nullptr && Unknown().empty();
    item.least = can_be_cut && item.kept.tokens > 0 ? ExtentOf(ShortestCut(kept)) : item.kept;
    return item;
  }

 private:
  const at::Tensor* Find(const std::map<std::string, at::Tensor>& tensors,
                         const std::string& name) const {
    const auto it = tensors.find(name);
    return it == tensors.end() ? nullptr : &it->second;
  }

  // Adds the modality if the sample has its tensors, with its blocks if the sample says where its
  // placeholders are.
  void FindItems(const Modality& modality) {
    const at::Tensor* rows = Find(sample_.tensors, modality.rows);
    const char* counted = modality.grid != nullptr ? modality.grid : modality.rows;
    const at::Tensor* items = Find(sample_.tensors, counted);
    if (items == nullptr) return;
    std::vector<int64_t> patches;
    if (modality.grid != nullptr) {
      patches = Patches(*items, index_, modality.grid);
      const int64_t all = std::accumulate(patches.begin(), patches.end(), int64_t{0});
      TORCH_CHECK_VALUE(rows != nullptr && rows->size(0) == all, "batching: sample ", index_, ": ",
                        modality.rows, " has ", rows == nullptr ? 0 : rows->size(0), " rows, but ",
                        modality.grid, " counts ", all, " patches");
      whole_.patches.insert(whole_.patches.end(), patches.begin(), patches.end());
    }
    for (const char* name : modality.by_item) {
      const at::Tensor* tensor = Find(sample_.tensors, name);
      TORCH_CHECK_VALUE(tensor == nullptr || tensor->size(0) == items->size(0), "batching: sample ",
                        index_, ": ", name, " has ", tensor == nullptr ? 0 : tensor->size(0),
                        " rows and ", counted, " ", items->size(0),
                        "; each has one row for each item");
    }
    found_.push_back(&modality);
    blocks_.emplace_back();
    const std::optional<int64_t>& token_id = options_.*modality.token_id;
    const at::Tensor* types = Find(sample_.streams, options_.token_types);
    located_.push_back(types != nullptr || token_id.has_value());
    if (!located_.back()) return;
    const at::Tensor tokens = (types ? *types : sample_.input_ids).to(at::kLong).contiguous();
    const absl::Span<const int64_t> ids(tokens.const_data_ptr<int64_t>(),
                                        static_cast<size_t>(tokens.numel()));
    const int64_t placeholder = types != nullptr ? modality.type : *token_id;
    const absl::StatusOr<Blocks> blocks = modality.grid != nullptr
                                              ? BlocksByRows(ids, placeholder, patches)
                                              : BlocksByRuns(ids, placeholder, items->size(0));
    // Chunks of audio between a video's frames are not runs of clips: such a sample is packed
    // whole.
    located_.back() = blocks.ok();
    if (!blocks.ok() && modality.grid == nullptr && whole_.tokens <= options_.seq_len) return;
    TORCH_CHECK_VALUE(blocks.ok(), "batching: sample ", index_, ": ", counted, ": ",
                      std::string(blocks.status().message()), " (placeholders are tokens with ",
                      types != nullptr ? options_.token_types : "the id", " ", placeholder, ")");
    blocks_.back() = *blocks;
  }

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
    if (sample_.kind.empty()) return;
    for (const auto& [name, rows] : whole_.rows) {
      TORCH_CHECK_VALUE(kept.rows.count(name) > 0, "batching: sample ", index_, " of kind \"",
                        sample_.kind, "\" loses all rows of ", name,
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
        const Block& block = blocks_[i][static_cast<size_t>(k)];
        rows += block.rows;
        if (modality.grid != nullptr) extent.patches.push_back(block.rows);
      }
      extent.rows[modality.rows] = rows;
      if (modality.grid != nullptr) extent.rows[modality.grid] = items;
      for (const char* name : modality.by_item) {
        if (sample_.tensors.count(name) > 0) extent.rows[name] = items;
      }
    }
    return extent;
  }

  const TensorSample& sample_;
  const int64_t index_;  // in messages
  const PrepareOptions& options_;
  Extent whole_;
  // One element for each modality of the sample.
  std::vector<const Modality*> found_;
  std::vector<bool> located_;   // whether `blocks_` is known
  std::vector<Blocks> blocks_;  // empty if not located
};

}  // namespace

Item MakeItem(const TensorSample& sample, int64_t number, const PrepareOptions& options) {
  CheckSample(sample, number, options);
  return Cutter(sample, number, options).Cut();
}

}  // namespace lockstep::batching
