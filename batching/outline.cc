#include "batching/outline.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "batching/modality.h"
#include "batching/prepare.h"
#include "c10/util/Exception.h"

namespace lockstep::batching {

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
       {"second_per_grid_ts"},
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

namespace {

// --- Checking ------------------------------------------------------------------------------------

// A value for each token: one number, or with `any_shape` a tensor.
void CheckPerToken(const at::Tensor& tensor, const std::string& name, int64_t sample,
                   int64_t tokens, bool any_shape = false) {
  TORCH_CHECK_VALUE(
      (tensor.dim() == 1 || (any_shape && tensor.dim() > 1)) && tensor.size(0) == tokens,
      "batching: sample ", sample, ": ", name, " has shape ", tensor.sizes(),
      ", but input_ids has ", tokens, " tokens");
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

void CheckIsDeclared(const std::string& stream, int64_t sample, const PrepareOptions& options) {
  TORCH_CHECK_VALUE(options.streams.count(stream) > 0 || stream == options.token_types,
                    "batching: sample ", sample, ": ", stream,
                    " is not declared in streams, so the value for padding is unknown");
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
  if (sample.position_ids.defined()) {
    const at::Tensor& ids = sample.position_ids;
    const bool has_axes = ids.dim() == 2 && ids.size(0) == kPositionAxes && ids.size(1) == tokens;
    TORCH_CHECK_VALUE(has_axes || (ids.dim() == 1 && ids.size(0) == tokens), "batching: sample ",
                      index, ": position_ids has shape ", ids.sizes(), "; for ", tokens,
                      " tokens it must have the shape [", tokens, "], or with pictures [",
                      kPositionAxes, ", ", tokens, "]");
    CheckPerToken(has_axes ? ids[0] : ids, "position_ids", index, tokens);
  }
  CheckIntegers(sample.position_ids, "position_ids", index);
  for (const auto& [name, stream] : sample.streams) {
    if (name == options.token_types) CheckIntegers(stream, name, index);
    CheckIsDeclared(name, index, options);
    CheckPerToken(stream, name, index, tokens, /*any_shape=*/name != options.token_types);
  }
  for (const auto& [name, tensor] : sample.tensors) {
    TORCH_CHECK_VALUE(tensor.dim() >= 1, "batching: sample ", index, ": ", name,
                      " has no dimension 0 to concatenate on");
  }
}

// --- Images, videos and audio clips --------------------------------------------------------------

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

const at::Tensor* Find(const std::map<std::string, at::Tensor>& tensors, const std::string& name) {
  const auto it = tensors.find(name);
  return it == tensors.end() ? nullptr : &it->second;
}

// Returns the rows of each item. Checks that the modality's tensors agree with each other.
std::vector<int64_t> RowsOfItems(const TensorSample& sample, int64_t index,
                                 const Modality& modality, const at::Tensor& items) {
  const at::Tensor* rows = Find(sample.tensors, modality.rows);
  std::vector<int64_t> counts(static_cast<size_t>(items.size(0)), 1);
  if (modality.grid != nullptr) {
    counts = Patches(items, index, modality.grid);
    const int64_t all = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    TORCH_CHECK_VALUE(rows != nullptr && rows->size(0) == all, "batching: sample ", index, ": ",
                      modality.rows, " has ", rows == nullptr ? 0 : rows->size(0), " rows, but ",
                      modality.grid, " counts ", all, " patches");
  }
  for (const char* name : modality.by_item) {
    const at::Tensor* tensor = Find(sample.tensors, name);
    TORCH_CHECK_VALUE(tensor == nullptr || tensor->size(0) == items.size(0), "batching: sample ",
                      index, ": ", name, " has ", tensor == nullptr ? 0 : tensor->size(0),
                      " rows and ", modality.counted(), " ", items.size(0),
                      "; each has one row for each item");
  }
  return counts;
}

ItemsOutline DescribeItems(const TensorSample& sample, int64_t index, const Modality& modality,
                           const at::Tensor& items, const PrepareOptions& options) {
  const std::vector<int64_t> counts = RowsOfItems(sample, index, modality, items);
  ItemsOutline outline;
  for (const int64_t rows : counts) outline.ranges.push_back({0, 0, rows});
  const std::optional<int64_t>& token_id = options.*modality.token_id;
  const at::Tensor* types = Find(sample.streams, options.token_types);
  if (types == nullptr && !token_id.has_value()) return outline;
  const at::Tensor tokens = (types ? *types : sample.input_ids).to(at::kLong).contiguous();
  const absl::Span<const int64_t> ids(tokens.const_data_ptr<int64_t>(),
                                      static_cast<size_t>(tokens.numel()));
  const int64_t placeholder = types != nullptr ? modality.type : *token_id;
  const absl::StatusOr<PlaceholderRanges> ranges =
      modality.grid != nullptr ? PlaceholdersByRows(ids, placeholder, counts)
                               : PlaceholdersByRuns(ids, placeholder, items.size(0));
  // Chunks of audio between a video's frames are not runs of clips: such a sample is packed whole.
  if (!ranges.ok() && modality.grid == nullptr && sample.input_ids.size(0) <= options.seq_len)
    return outline;
  TORCH_CHECK_VALUE(ranges.ok(), "batching: sample ", index, ": ", modality.counted(), ": ",
                    std::string(ranges.status().message()), " (placeholders are tokens with ",
                    types != nullptr ? options.token_types : "the id", " ", placeholder, ")");
  outline.located = true;
  outline.ranges = *ranges;
  return outline;
}

// Returns the tokens of the mask that a model predicts. The first token has no token before it.
std::vector<std::pair<int64_t, int64_t>> PredictedRuns(const at::Tensor& loss_mask) {
  const at::Tensor mask = loss_mask.to(at::kBool).contiguous();
  const bool* has_loss = mask.const_data_ptr<bool>();
  std::vector<std::pair<int64_t, int64_t>> runs;
  for (int64_t i = 1; i < mask.numel(); ++i) {
    if (!has_loss[i]) continue;
    if (runs.empty() || runs.back().second != i) runs.emplace_back(i, i);
    runs.back().second = i + 1;
  }
  return runs;
}

// --- Comparing -----------------------------------------------------------------------------------

std::string InWords(const std::vector<std::pair<int64_t, int64_t>>& runs) {
  return absl::StrCat("{", absl::StrJoin(runs, ", ", absl::PairFormatter("-")), "}");
}

std::string InWords(const ItemsOutline& items) {
  return absl::StrCat(
      items.located ? "" : "not located ",
      absl::StrJoin(items.ranges, ", ", [](std::string* out, const PlaceholderRange& range) {
        absl::StrAppend(out, range.rows, " rows at ", range.begin, "-", range.end);
      }));
}

std::string InWords(const TensorOutline& tensor) {
  return absl::StrCat(c10::toString(tensor.dtype), " [", absl::StrJoin(tensor.shape, ", "), "]");
}

template <typename Value>
std::string MapDifference(const std::map<std::string, Value>& a,
                          const std::map<std::string, Value>& b) {
  for (const auto& [one, two] : {std::pair(&a, &b), std::pair(&b, &a)}) {
    for (const auto& [name, value] : *one) {
      const auto other = two->find(name);
      const std::string mine = InWords(value);
      const std::string theirs = other == two->end() ? "none" : InWords(other->second);
      if (mine == theirs) continue;
      return one == &a ? absl::StrCat(name, ": ", mine, " and ", theirs)
                       : absl::StrCat(name, ": ", theirs, " and ", mine);
    }
  }
  return "";
}

}  // namespace

Outline Describe(const TensorSample& sample, int64_t number, const PrepareOptions& options) {
  CheckSample(sample, number, options);
  Outline outline;
  outline.tokens = sample.input_ids.size(0);
  outline.loss = PredictedRuns(sample.loss_mask);
  outline.kind = sample.kind;
  outline.may_wait = sample.may_wait;
  for (const auto& [name, stream] : sample.streams)
    outline.streams[name] = {stream.scalar_type(), stream.sizes().vec(), stream.device()};
  for (const auto& [name, tensor] : sample.tensors)
    outline.tensors[name] = {tensor.scalar_type(), tensor.sizes().vec(), tensor.device()};
  for (const Modality& modality : Modalities()) {
    const at::Tensor* items = Find(sample.tensors, modality.counted());
    if (items == nullptr) continue;
    outline.items[modality.name] = DescribeItems(sample, number, modality, *items, options);
  }
  return outline;
}

void CheckOutline(const Outline& outline, int64_t number, const PrepareOptions& options) {
  const auto check = [&](bool holds, const char* field, const char* expected) {
    TORCH_CHECK_VALUE(holds, "batching: sample ", number, " of the index: ", field, " must ",
                      expected, "; batching.describe makes an index");
  };
  check(outline.tokens >= 1, "tokens", "be at least 1");
  int64_t last = 0;
  for (const auto& [begin, end] : outline.loss) {
    check(begin > last && end > begin && end <= outline.tokens, "loss",
          "hold ascending runs {begin, end, ...} of the sample's tokens, without token 0, which no "
          "token predicts");
    last = end;
  }
  for (const auto& [name, stream] : outline.streams) {
    CheckIsDeclared(name, number, options);
    check(!stream.shape.empty() && stream.shape[0] == outline.tokens &&
              *std::min_element(stream.shape.begin(), stream.shape.end()) >= 0,
          name.c_str(), "have a shape that begins with the number of tokens");
  }
  for (const auto& [name, tensor] : outline.tensors) {
    check(!tensor.shape.empty() && *std::min_element(tensor.shape.begin(), tensor.shape.end()) >= 0,
          name.c_str(), "have a shape of one or more sizes from 0 on");
  }
  for (const Modality& modality : Modalities()) {
    const auto items = outline.items.find(modality.name);
    const auto counted = outline.tensors.find(modality.counted());
    const auto rows = outline.tensors.find(modality.rows);
    check((items != outline.items.end()) == (counted != outline.tensors.end()), modality.name,
          "be among the items if its tensors are among the tensors, and only then");
    if (items == outline.items.end()) continue;
    int64_t sum = 0, before = 0;
    for (const PlaceholderRange& range : items->second.ranges) {
      check(range.rows >= 1, modality.name, "have items of one or more rows");
      sum += range.rows;
      if (!items->second.located) continue;
      check(range.begin >= before && range.end > range.begin && range.end <= outline.tokens,
            modality.name, "have items one behind the other within the sample's tokens");
      before = range.end;
    }
    check(counted->second.shape[0] == static_cast<int64_t>(items->second.ranges.size()) &&
              rows != outline.tensors.end() && rows->second.shape[0] == sum,
          modality.name, "have as many items and rows as its tensors");
  }
}

std::string Difference(const Outline& a, const Outline& b) {
  if (a.tokens != b.tokens) return absl::StrCat("tokens: ", a.tokens, " and ", b.tokens);
  if (a.loss != b.loss)
    return absl::StrCat("tokens with a loss: ", InWords(a.loss), " and ", InWords(b.loss));
  if (a.kind != b.kind) return absl::StrCat("kind: \"", a.kind, "\" and \"", b.kind, "\"");
  std::string difference = MapDifference(a.tensors, b.tensors);
  if (difference.empty()) difference = MapDifference(a.streams, b.streams);
  if (difference.empty()) difference = MapDifference(a.items, b.items);
  return difference;
}

}  // namespace lockstep::batching
