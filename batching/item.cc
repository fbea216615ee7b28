#include "batching/item.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "batching/truncate.h"
#include "c10/util/Exception.h"

namespace lockstep::batching {
namespace {

// Tensors that are cut together: rows of patches, and a grid with a row for each image.
struct ImageFields {
  const char* pixels;
  const char* grid;
  int64_t type;  // in token_types
};
constexpr ImageFields kImageFields[] = {{"pixel_values", "image_grid_thw", 1},
                                        {"pixel_values_videos", "video_grid_thw", 2}};

template <typename T>
T OkOrThrow(const absl::StatusOr<T>& value, int64_t sample) {
  TORCH_CHECK_VALUE(value.ok(), "batching: sample ", sample, ": ",
                    std::string(value.status().message()));
  return *value;
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

void CheckSample(const TensorSample& sample, int64_t index, const PrepareOptions& options) {
  TORCH_CHECK_VALUE(sample.input_ids.defined() && sample.input_ids.dim() == 1, "batching: sample ",
                    index, ": input_ids must be a tensor of one dimension");
  const int64_t tokens = sample.input_ids.size(0);
  TORCH_CHECK_VALUE(tokens > 0, "batching: sample ", index, " has no tokens");
  CheckIntegers(sample.input_ids, "input_ids", index);
  TORCH_CHECK_VALUE(sample.loss_mask.defined(), "batching: sample ", index, " has no loss_mask");
  TORCH_CHECK_VALUE(at::isIntegralType(sample.loss_mask.scalar_type(), /*includeBool=*/true),
                    "batching: sample ", index,
                    ": loss_mask must be of dtype bool or an integer one, not ",
                    sample.loss_mask.scalar_type());
  CheckPerToken(sample.input_ids, "input_ids", index, tokens);
  CheckPerToken(sample.loss_mask, "loss_mask", index, tokens);
  if (sample.position_ids.defined())
    CheckPerToken(sample.position_ids, "position_ids", index, tokens);
  CheckIntegers(sample.position_ids, "position_ids", index);
  for (const auto& [name, stream] : sample.streams) {
    if (name == options.token_types) CheckIntegers(stream, name, index);
    TORCH_CHECK_VALUE(options.streams.count(name) > 0 || name == options.token_types,
                      "batching: sample ", index, ": ", name,
                      " is not declared in streams, so that nothing says what padding gets");
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

// Cuts one sample; of one that begins with an image that does not fit, no token is left.
class Cutter {
 public:
  Cutter(const TensorSample& sample, int64_t index, const PrepareOptions& options)
      : sample_(sample), index_(index), options_(options) {}

  Item Cut() {
    Item item;
    item.sample = &sample_;
    const int64_t tokens = sample_.input_ids.size(0);
    item.kept.tokens = std::min(tokens, options_.seq_len);
    for (const auto& [name, tensor] : sample_.tensors) item.kept.rows[name] = tensor.size(0);
    for (const ImageFields& fields : kImageFields) CutImages(fields, item);
    if (item.kept.tokens < tokens) CheckAllCut();
    item.kind = KindOf(sample_);
    if (LostAllImages(item)) {
      // Without images the vision tower has nothing to run on: this is text now.
      TORCH_CHECK_VALUE(sample_.kind.empty() || item.kept.tokens == 0, "batching: sample ", index_,
                        " of kind \"", sample_.kind,
                        "\" loses all its images when it is cut to seq_len = ", options_.seq_len,
                        "; shorten it first");
      item.kind = "text";
      item.kept.rows.clear();
    }
    item.least = item.kept;
    ShortenCopy(item);
    return item;
  }

 private:
  const at::Tensor* Find(const std::map<std::string, at::Tensor>& tensors,
                         const std::string& name) const {
    const auto it = tensors.find(name);
    return it == tensors.end() ? nullptr : &it->second;
  }

  void CutImages(const ImageFields& fields, Item& item) {
    const at::Tensor* grid = Find(sample_.tensors, fields.grid);
    if (grid == nullptr) return;
    const std::vector<int64_t> patches = Patches(*grid, index_, fields.grid);
    const at::Tensor* types = Find(sample_.streams, options_.token_types);
    TORCH_CHECK_VALUE(types != nullptr, "batching: sample ", index_, " has ", fields.grid,
                      " but no ", options_.token_types,
                      ", which says where its images' tokens are");
    const int64_t all_patches = std::accumulate(patches.begin(), patches.end(), int64_t{0});
    const at::Tensor* pixels = Find(sample_.tensors, fields.pixels);
    TORCH_CHECK_VALUE(pixels != nullptr && pixels->size(0) == all_patches, "batching: sample ",
                      index_, ": ", fields.pixels, " has ", pixels == nullptr ? 0 : pixels->size(0),
                      " rows, but ", fields.grid, " counts ", all_patches, " patches");
    const at::Tensor ids = types->to(at::kLong).contiguous();
    const MultimodalSample images{
        absl::MakeConstSpan(ids.const_data_ptr<int64_t>(), static_cast<size_t>(ids.numel())),
        patches, fields.type};
    const struct Cut cut = OkOrThrow(CutSample(images, item.kept.tokens), index_);
    cut_fields_.push_back(fields.grid);
    cut_fields_.push_back(fields.pixels);
    item.kept.tokens = cut.tokens;
    item.kept.rows[fields.grid] = cut.images;
    item.kept.rows[fields.pixels] = cut.patches;
    item.patches.insert(item.patches.end(), patches.begin(), patches.begin() + cut.images);
    const struct Cut least = OkOrThrow(CutToImages(images, 1), index_);
    least_tokens_ = std::max(least_tokens_, least.tokens);
    least_rows_[fields.grid] = least.images;
    least_rows_[fields.pixels] = least.patches;
  }

  bool LostAllImages(const Item& item) const {
    if (cut_fields_.empty() || !item.patches.empty()) return false;
    return sample_.tensors.size() == cut_fields_.size();
  }

  // What is cut in its tokens must not keep all of another tensor.
  void CheckAllCut() const {
    for (const auto& [name, tensor] : sample_.tensors) {
      const bool is_cut =
          std::find(cut_fields_.begin(), cut_fields_.end(), name) != cut_fields_.end();
      TORCH_CHECK_VALUE(is_cut, "batching: sample ", index_, " has ", sample_.input_ids.size(0),
                        " tokens, more than seq_len = ", options_.seq_len, ", and how ", name,
                        " is cut with them is not known; shorten the sample first");
    }
  }

  // One image where all tensors are images', one token where there are none; else the sample as it
  // is.
  void ShortenCopy(Item& item) const {
    for (const auto& [name, rows] : item.kept.rows) {
      if (least_rows_.count(name) == 0) return;
    }
    for (auto& [name, rows] : item.least.rows) rows = std::min(rows, least_rows_.at(name));
    item.least.tokens = std::min(item.kept.tokens, least_tokens_);
  }

  const TensorSample& sample_;
  const int64_t index_;  // in messages
  const PrepareOptions& options_;
  std::vector<std::string> cut_fields_;
  int64_t least_tokens_ = 1;
  std::map<std::string, int64_t> least_rows_;
};

}  // namespace

std::string KindOf(const TensorSample& sample) {
  if (!sample.kind.empty()) return sample.kind;
  return sample.tensors.count("pixel_values") > 0 ? "image" : "text";
}

Item MakeItem(const TensorSample& sample, int64_t number, const PrepareOptions& options) {
  CheckSample(sample, number, options);
  return Cutter(sample, number, options).Cut();
}

}  // namespace lockstep::batching
