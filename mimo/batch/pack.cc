#include "mimo/batch/pack.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "ATen/ops/flatten.h"
#include "ATen/ops/index_select.h"
#include "ATen/ops/tensor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "c10/util/Exception.h"
#include "mimo/batch/batch_names.h"
#include "mimo/batch/batch_rules.h"

namespace lockstep::mimo {
namespace {

// Where the tokens are in a batch of `samples` rows of `width` places.
struct Tokens {
  int64_t samples = 0;
  int64_t width = 0;
  std::vector<int64_t> places;   // of the tokens, among all samples * width
  std::vector<int64_t> lengths;  // tokens of each sample
  std::string mask;              // name and shape, for messages
};

Tokens FindTokens(const at::Tensor& mask, const std::string& key) {
  const std::string name = Name(key, mask);
  TORCH_CHECK_VALUE(mask.dim() == 2, "mimo: pack: ", name, " must be [samples, width]");
  TORCH_CHECK_VALUE(at::isIntegralType(mask.scalar_type(), /*includeBool=*/true),
                    "mimo: pack: ", name, " is ", mask.scalar_type(),
                    "; it must be bool or whole numbers, where 0 is padding");
  Tokens tokens;
  tokens.samples = mask.size(0);
  tokens.width = mask.size(1);
  tokens.mask = name;
  const at::Tensor is_token = mask.ne(0).to(at::kCPU).contiguous();
  const bool* values = is_token.const_data_ptr<bool>();
  for (int64_t sample = 0; sample < tokens.samples; ++sample) {
    const size_t before = tokens.places.size();
    for (int64_t i = sample * tokens.width; i < (sample + 1) * tokens.width; ++i) {
      if (values[i]) tokens.places.push_back(i);
    }
    tokens.lengths.push_back(static_cast<int64_t>(tokens.places.size() - before));
  }
  TORCH_CHECK_VALUE(tokens.samples == 0 || !tokens.places.empty(), "mimo: pack: ", name,
                    " has no token in any of its ", tokens.samples, " samples");
  return tokens;
}

// Returns the kind of a value for messages.
const char* KindOf(const Value& value) {
  if (std::holds_alternative<List>(value.of)) return "a list";
  if (std::holds_alternative<Dict>(value.of)) return "a table of names";
  return std::holds_alternative<Table>(value.of) ? "a table of ownership" : "a single value";
}

bool IsPositions(const std::string& key) { return absl::EndsWith(key, "position_ids"); }

bool MustHaveTokens(const std::string& key) {
  return key == "input_ids" || key == "labels" || key == "loss_mask" || key == "position_ids";
}

// Returns whether the names tell rows of images, videos or audio clips, whose sizes may be those of
// the mask by chance: a mel spectrogram [clips, 80, frames] beside 80 places.
bool HasMediaRows(const Dict& batch, const std::string& key) {
  return IsGrid(key) || IsPacked(batch, key) || absl::StartsWith(key, "pixel_values") ||
         absl::StartsWith(key, "input_features") || key == "feature_attention_mask";
}

// Returns whether the name tells a tensor whose rows may be as many as the samples by chance, such
// as image_sizes [images, 2].
bool HasMediaName(const std::string& key) {
  for (const char* part : {"image", "video", "audio", "vision", "visual", "spatial_shapes",
                           "tgt_sizes", "grid_hw", "aspect_ratio"}) {
    if (absl::StrContains(key, part)) return true;
  }
  return false;
}

// Throws if a tensor [samples, n] has another width than the tokens, and more than one column: one
// is a value for each sample.
void CheckWidth(const Tokens& tokens, const std::string& key, const at::Tensor& tensor) {
  const bool has_other_width = tensor.dim() == 2 && tensor.size(0) == tokens.samples &&
                               tokens.samples > 0 && tensor.size(1) > 1 &&
                               tensor.size(1) != tokens.width;
  TORCH_CHECK_VALUE(!has_other_width || HasMediaName(key), "mimo: pack: ", Name(key, tensor),
                    " has width ", tensor.size(1), ", but ", tokens.mask, " has width ",
                    tokens.width, ": the values of tokens need the same width; if ", Name(key),
                    " has no value for each token, name it in whole");
}

std::vector<int64_t> Offsets(const std::string& key, const Value& value) {
  std::vector<int64_t> offsets;
  if (const auto* tensor = std::get_if<at::Tensor>(&value.of)) {
    TORCH_CHECK_VALUE(tensor->dim() == 1 && at::isIntegralType(tensor->scalar_type(), false),
                      "mimo: pack: ", Name(key, *tensor), " is ", tensor->scalar_type(),
                      "; offsets are whole numbers in one dimension");
    const at::Tensor numbers = tensor->to(at::kCPU, at::kLong).contiguous();
    const int64_t* first = numbers.const_data_ptr<int64_t>();
    return {first, first + numbers.numel()};
  }
  const auto* list = std::get_if<List>(&value.of);
  TORCH_CHECK_VALUE(list != nullptr, "mimo: pack: ", Name(key),
                    " must be a tensor or a list of whole numbers");
  for (const Value& each : *list) {
    const auto* opaque = std::get_if<Opaque>(&each.of);
    TORCH_CHECK_VALUE(opaque != nullptr && opaque->number.has_value(), "mimo: pack: ", Name(key),
                      " must be a tensor or a list of whole numbers");
    offsets.push_back(*opaque->number);
  }
  return offsets;
}

// Throws unless the offsets are those of the packed samples. Offsets into the padded batch would
// let attention cross samples.
void CheckOffsets(const Tokens& tokens, const Field& field) {
  const std::vector<int64_t> offsets = Offsets(field.key, field.value);
  std::vector<int64_t> sums = {0};
  for (const int64_t length : tokens.lengths) sums.push_back(sums.back() + length);
  const size_t shared = std::min(offsets.size(), sums.size());
  size_t at = 0;
  while (at < shared && offsets[at] == sums[at]) ++at;
  if (offsets.size() == sums.size() && at == shared) return;
  const std::string difference =
      at == shared ? absl::StrCat("it has ", offsets.size(), " values, and they need ", sums.size())
                   : absl::StrCat("its value ", at, " is ", offsets[at], ", and theirs ", sums[at]);
  TORCH_CHECK_VALUE(false, "mimo: pack: ", Name(field.key),
                    " does not hold the running sums of the packed samples, from 0 to ",
                    sums.back(), ": ", difference,
                    "; leave it out, and make it from seq_lens after packing");
}

// Returns the first of the two dims that hold samples and width; nothing if the tensor has none.
std::optional<int64_t> TokenDims(const Tokens& tokens, const std::string& key,
                                 const at::Tensor& tensor) {
  const int64_t dim = IsPositions(key) ? tensor.dim() - 2 : 0;
  if (dim < 0 || tensor.dim() < 2 || tensor.size(dim) != tokens.samples ||
      tensor.size(dim + 1) != tokens.width)
    return std::nullopt;
  return dim;
}

at::Tensor PackTensor(const Tokens& tokens, const at::Tensor& tensor, int64_t dim) {
  const at::Tensor places = at::tensor(tokens.places, at::kLong).to(tensor.device());
  return at::index_select(at::flatten(tensor, dim, dim + 1), dim, places);
}

bool HasTokens(const Tokens& tokens, const List& list) {
  return static_cast<int64_t>(list.size()) == tokens.samples && tokens.samples > 0 &&
         std::all_of(list.begin(), list.end(), [&](const Value& row) {
           const auto* values = std::get_if<List>(&row.of);
           return values != nullptr && static_cast<int64_t>(values->size()) == tokens.width;
         });
}

List PackList(const Tokens& tokens, const List& list) {
  List packed;
  for (const int64_t place : tokens.places) {
    const List& row = std::get<List>(list[static_cast<size_t>(place / tokens.width)].of);
    packed.push_back(row[static_cast<size_t>(place % tokens.width)]);
  }
  return packed;
}

Value PackValue(const Tokens& tokens, const Field& field) {
  const auto& [key, value] = field;
  if (const auto* tensor = std::get_if<at::Tensor>(&value.of)) {
    const std::optional<int64_t> dim = TokenDims(tokens, key, *tensor);
    if (dim.has_value()) return PackTensor(tokens, *tensor, *dim);
    TORCH_CHECK_VALUE(!MustHaveTokens(key), "mimo: pack: ", Name(key, *tensor),
                      " does not have the shape of ", tokens.mask, "; it must be ",
                      key == "position_ids" ? "[..., " : "[", tokens.samples, ", ", tokens.width,
                      key == "position_ids" ? "]" : ", ...]");
    CheckWidth(tokens, key, *tensor);
    return value;
  }
  const auto* list = std::get_if<List>(&value.of);
  if (list != nullptr && HasTokens(tokens, *list)) {
    Value packed = PackList(tokens, *list);
    packed.tag = value.tag;
    return packed;
  }
  TORCH_CHECK_VALUE(!MustHaveTokens(key), "mimo: pack: ", Name(key),
                    " must be a tensor or lists in the shape of ", tokens.mask);
  return value;
}

}  // namespace

Value Pack(const Value& batch, const PackOptions& options) {
  const auto* dict = std::get_if<Dict>(&batch.of);
  TORCH_CHECK_VALUE(dict != nullptr, "mimo: pack: the batch must have named values");
  const Value* mask = nullptr;
  std::set<std::string> keys;
  for (const Field& field : *dict) {
    keys.insert(field.key);
    if (field.key == options.mask) mask = &field.value;
  }
  TORCH_CHECK_VALUE(keys.count("seq_lens") == 0,
                    "mimo: pack: the batch has \"seq_lens\", so it is packed already");
  TORCH_CHECK_VALUE(mask != nullptr, "mimo: pack: the batch has no tensor \"", options.mask,
                    "\", which tells tokens from padding", Hint(options.mask, keys));
  const auto* mask_tensor = std::get_if<at::Tensor>(&mask->of);
  TORCH_CHECK_VALUE(mask_tensor != nullptr, "mimo: pack: ", Name(options.mask),
                    " must be a tensor [samples, width], not ", KindOf(*mask));
  for (const std::string& key : options.whole) {
    TORCH_CHECK_VALUE(keys.count(key) != 0, "mimo: pack: whole names \"", key,
                      "\", which the batch does not have", Hint(key, keys));
  }
  const Tokens tokens = FindTokens(*mask_tensor, options.mask);
  Dict packed;
  for (const Field& field : *dict) {
    if (field.key == options.mask) continue;
    if (absl::StartsWith(field.key, "cu_seqlens") && !HasMediaName(field.key) &&
        options.whole.count(field.key) == 0)
      CheckOffsets(tokens, field);
    const bool is_whole = options.whole.count(field.key) != 0 || HasMediaRows(*dict, field.key);
    packed.push_back({field.key, is_whole ? field.value : PackValue(tokens, field)});
  }
  List lengths;
  for (const int64_t length : tokens.lengths) lengths.push_back(Opaque{.id = 0, .number = length});
  packed.push_back({"seq_lens", std::move(lengths)});
  Value result = std::move(packed);
  result.tag = batch.tag;
  return result;
}

}  // namespace lockstep::mimo
