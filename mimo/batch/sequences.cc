#include "mimo/batch/sequences.h"

#include <algorithm>
#include <memory>
#include <variant>

#include "ATen/ops/equal.h"
#include "ATen/ops/tensor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "c10/util/Exception.h"
#include "mimo/batch/batch_names.h"

namespace lockstep::mimo {
namespace {

constexpr char kSeqLens[] = "seq_lens";

std::vector<int64_t> LengthsOf(const Value& value, const std::string& path) {
  std::vector<int64_t> lengths;
  if (const auto* tensor = std::get_if<at::Tensor>(&value.of)) {
    TORCH_CHECK_VALUE(tensor->dim() == 1 && at::isIntegralType(tensor->scalar_type(), false),
                      "mimo: ", Name(path, *tensor), " must hold whole numbers [samples]");
    const at::Tensor values = tensor->to(at::kCPU, at::kLong).contiguous();
    const auto* first = values.const_data_ptr<int64_t>();
    lengths.assign(first, first + values.numel());
  } else if (const auto* list = std::get_if<List>(&value.of)) {
    for (const Value& each : *list) {
      const auto* opaque = std::get_if<Opaque>(&each.of);
      TORCH_CHECK_VALUE(opaque != nullptr && opaque->number.has_value(),
                        "mimo: ", Name(absl::StrCat(path, "[", lengths.size(), "]")),
                        " must be a whole number, the length of a sequence");
      lengths.push_back(*opaque->number);
    }
  }
  for (size_t i = 0; i < lengths.size(); ++i) {
    TORCH_CHECK_VALUE(lengths[i] >= 0, "mimo: ", Name(absl::StrCat(path, "[", i, "]")), " is ",
                      lengths[i], "; a sequence has 0 tokens or more");
  }
  return lengths;
}

// Throws if as many tokens as samples do not tell which of them `count` rows are.
void CheckIsClear(const Sequences& sequences, const std::string& name) {
  const std::vector<int64_t> lengths = RowsPerSample(*sequences.tokens.table, RowsOf::kTokens);
  const bool is_clear =
      sequences.num_samples() != sequences.num_tokens() ||
      std::all_of(lengths.begin(), lengths.end(), [](int64_t n) { return n == 1; });
  TORCH_CHECK_VALUE(is_clear, "mimo: ", name, " has as many rows as the batch has samples and as ",
                    Name(sequences.path), " has tokens; declare which: batch_dims for samples, ",
                    "rows_per_sample for tokens");
}

}  // namespace

std::optional<Sequences> SequencesOf(const Dict& dict, const std::string& path,
                                     const SliceOptions& options, const Declarations& declared) {
  const auto field = std::find_if(dict.begin(), dict.end(),
                                  [](const Field& each) { return each.key == kSeqLens; });
  if (field == dict.end()) return std::nullopt;
  const Value& value = field->value;
  const std::string own = Join(path, kSeqLens);
  const auto* dim = Find(options.batch_dims, own, kSeqLens);
  if (dim != nullptr && !dim->has_value()) return std::nullopt;
  if (!std::holds_alternative<at::Tensor>(value.of) && !std::holds_alternative<List>(value.of))
    return std::nullopt;
  const std::vector<int64_t> lengths = LengthsOf(value, own);
  const Declared* rows = Find(declared, own, kSeqLens);
  const std::vector<int64_t> per_sample = rows == nullptr
                                              ? std::vector<int64_t>(lengths.size(), 1)
                                              : RowsPerSample(*rows->table, rows->rows_of);
  return Sequences{
      own, {std::make_shared<Ownership>(ValueOf(MakeOwnership(per_sample, lengths), Name(own)))}};
}

std::optional<int64_t> TokenDim(const Sequences& sequences, const std::string& path,
                                const std::string& key, const at::Tensor& tensor) {
  const int64_t tokens = sequences.num_tokens();
  int64_t dim = 0;
  if (absl::EndsWith(key, "position_ids")) {
    dim = tensor.dim() - 1;
  } else if (tensor.dim() > 1 && tensor.size(0) == 1 && tensor.size(1) == tokens) {
    dim = 1;
  }
  if (tensor.size(dim) != tokens) return std::nullopt;
  if (dim == 0) CheckIsClear(sequences, Name(path, tensor));
  return dim;
}

bool HasTokens(const Sequences& sequences, const std::string& path, int64_t count) {
  if (count != sequences.num_tokens()) return false;
  CheckIsClear(sequences, Name(path));
  return true;
}

at::Tensor RunningSums(const Sequences& sequences, const std::string& path,
                       const at::Tensor& offsets, const std::vector<int64_t>& samples) {
  const Ownership& tokens = *sequences.tokens.table;
  const auto as_offsets = [&](const std::vector<int64_t>& sums) {
    return at::tensor(sums, at::kLong).to(offsets.options());
  };
  TORCH_CHECK_VALUE(at::equal(offsets, as_offsets(tokens.token_offsets)),
                    "mimo: ", Name(path, offsets), " does not hold the running sums of ",
                    Name(sequences.path), ", from 0 to ", tokens.num_tokens(),
                    ", and a cut would leave it pointing elsewhere; leave it out, or pass it on "
                    "whole (batch_dims)");
  std::vector<int64_t> sums = {0};
  for (const int64_t sample : samples) {
    const Range items = RowsOfSamples(tokens, RowsOf::kItems, {sample, sample + 1});
    for (int64_t i = items.begin; i < items.end; ++i) {
      const auto item = static_cast<size_t>(i);
      sums.push_back(sums.back() + tokens.token_offsets[item + 1] - tokens.token_offsets[item]);
    }
  }
  return as_offsets(sums);
}

}  // namespace lockstep::mimo
