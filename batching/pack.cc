#include "batching/pack.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <utility>

#include "ATen/ops/arange.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/full.h"
#include "ATen/ops/scalar_tensor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "c10/util/Exception.h"

namespace lockstep::batching {
namespace {

// Row after row of one output tensor.
class PackedRows {
 public:
  // Makes an output of the shape [length, row...].
  PackedRows(int64_t length, at::ScalarType dtype, std::vector<int64_t> row = {}) {
    row.insert(row.begin(), length);
    packed_ = at::empty(row, dtype);
  }

  void Append(const at::Tensor& tensor, const Piece& piece) {
    const int64_t rows = piece.end - piece.begin;
    packed_.narrow(0, next_, rows).copy_(tensor.narrow(0, piece.begin, rows));
    next_ += rows;
  }

  // True in the runs, as far as they lie in the piece; of a bool output.
  void AppendRuns(const std::vector<std::pair<int64_t, int64_t>>& runs, const Piece& piece) {
    bool* first = packed_.mutable_data_ptr<bool>() + next_;
    const int64_t rows = piece.end - piece.begin;
    const auto at = [&](int64_t t) {
      return first + std::clamp<int64_t>(t - piece.begin, 0, rows);
    };
    std::fill(first, first + rows, false);
    for (const auto& [begin, end] : runs) std::fill(at(begin), at(end), true);
    next_ += rows;
  }

  // The numbers of the piece, in each column; of an int64 output.
  void AppendPositions(const Piece& piece) {
    const int64_t rows = piece.end - piece.begin;
    if (packed_.dim() == 1) {
      int64_t* first = packed_.mutable_data_ptr<int64_t>() + next_;
      std::iota(first, first + rows, piece.begin);
    } else if (rows > 0) {
      packed_.narrow(0, next_, rows).copy_(at::arange(piece.begin, piece.end).unsqueeze(1));
    }
    next_ += rows;
  }

  void Fill(const c10::Scalar& value, int64_t rows) {
    if (rows > 0) packed_.narrow(0, next_, rows).fill_(value);
    next_ += rows;
  }

  const at::Tensor& packed() const { return packed_; }

 private:
  at::Tensor packed_;
  int64_t next_ = 0;
};

void PackTensors(const std::vector<const TensorSample*>& samples,
                 const std::vector<const Extent*>& extents, TensorMicroBatch& batch) {
  std::map<std::string, std::vector<at::Tensor>> parts;
  for (size_t i = 0; i < samples.size(); ++i) {
    for (const auto& [name, rows] : extents[i]->rows) {
      parts[name].push_back(samples[i]->tensors.at(name).narrow(0, 0, rows));
    }
  }
  for (const auto& [name, tensors] : parts) batch.tensors[name] = at::cat(tensors, 0);
}

constexpr int64_t kNoLabel = -100;

// Returns for each of the first `tokens` tokens the next one's id if it has a loss, else kNoLabel.
at::Tensor LabelsOf(const TensorSample& sample, const Item& item, int64_t tokens) {
  at::Tensor labels = at::full({tokens}, kNoLabel, at::kLong);
  for (const auto& [begin, end] : item.outline->loss) {
    const int64_t first = std::max<int64_t>(begin, 1), last = std::min(end, tokens);
    if (first < last)
      labels.narrow(0, first - 1, last - first)
          .copy_(sample.input_ids.narrow(0, first, last - first));
  }
  return labels;
}

// Returns the tokens that a micro-batch holds of its i-th sample, which has `tokens`.
std::vector<Piece> PiecesHeld(const TensorMicroBatch& batch, size_t i, int64_t tokens) {
  if (i >= batch.shares.size()) return {{0, tokens}};
  return PiecesOf(tokens, batch.shares[i].ranks, batch.shares[i].place);
}

// --- Fills ---------------------------------------------------------------------------------------

// Whole numbers up to these must be exact: they may be counts or ids. Beyond 2^53 a double lacks
// some. In 16 bits the limit is 2^12: a fill such as -10,000 is a mask there, not a count.
constexpr double kLargestExact = 9007199254740992;
constexpr double kLargestExactOf16Bits = 4096;

// Returns the shortest decimal that is this number.
std::string InWords(double value) {
  std::string text;
  for (int digits = 6; digits <= 17; ++digits) {
    text = absl::StrFormat("%.*g", digits, value);
    if (std::strtod(text.c_str(), nullptr) == value) break;
  }
  return text;
}

double RoundedTo(at::ScalarType dtype, double value) {
  return at::scalar_tensor(value, at::kDouble).to(dtype).to(at::kDouble).item<double>();
}

// Returns why a tensor of the dtype cannot hold the value; empty if it can. A number that is not
// whole may be rounded to the nearest one of a floating-point dtype.
std::string WhyNot(at::ScalarType dtype, double value) {
  if (dtype == at::kBool) {
    if (value == 0 || value == 1) return "";
    return "would become true; a bool is false (0) or true (1)";
  }
  if (at::isIntegralType(dtype, /*includeBool=*/false)) {
    const bool has_sign = at::isSignedType(dtype);
    const int bits = 8 * static_cast<int>(c10::elementSize(dtype)) - (has_sign ? 1 : 0);
    const double end = std::ldexp(1.0, bits);
    if (!std::isfinite(value)) return "is not a whole number";
    if (value < (has_sign ? -end : 0) || value >= end) {
      return absl::StrCat("does not fit; the dtype holds whole numbers from ",
                          has_sign ? absl::StrCat("-2^", bits) : "0", " to 2^", bits, " - 1");
    }
    if (value == std::floor(value)) return "";
    return absl::StrCat("would become ", InWords(std::trunc(value)));
  }
  if (!std::isfinite(value)) return "";
  const double rounded = RoundedTo(c10::toRealValueType(dtype), value);
  const double largest = c10::elementSize(dtype) == 2 ? kLargestExactOf16Bits : kLargestExact;
  const bool must_be_exact = value == std::floor(value) && std::abs(value) <= largest;
  if (std::isfinite(rounded) && (!must_be_exact || rounded == value)) return "";
  return absl::StrCat("would become ", InWords(rounded));
}

}  // namespace

Packer::Packer(const PrepareOptions& options, const std::vector<Outline>& index)
    : options_(options) {
  for (const auto& [name, fill] : options.streams)
    streams_[name] = {fill, fill.absent.isBoolean() ? at::kBool : at::kFloat};
  std::map<std::string, size_t> first;
  for (size_t i = 0; i < index.size(); ++i) {
    for (const auto& [name, outline] : index[i].streams) {
      const auto [it, is_first] = first.emplace(name, i);
      const std::vector<int64_t> row(outline.shape.begin() + 1, outline.shape.end());
      Stream& stream = streams_[name];
      if (is_first) stream.dtype = outline.dtype;
      if (is_first) stream.row = row;
      TORCH_CHECK_VALUE(stream.dtype == outline.dtype && stream.row == row, "batching: ", name,
                        " is ", outline.dtype, " ", at::IntArrayRef(row), " per token in sample ",
                        options.first_number + static_cast<int64_t>(i), " and ", stream.dtype, " ",
                        at::IntArrayRef(stream.row), " per token in sample ",
                        options.first_number + static_cast<int64_t>(it->second),
                        "; it must be of one dtype and shape");
    }
  }
  std::set<std::string> given;
  for (const auto& [name, sample] : first) given.insert(name);
  CheckFills(given);
}

void Packer::CheckFills(const std::set<std::string>& given) const {
  for (const auto& [name, stream] : streams_) {
    for (const auto& [of, fill] :
         {std::pair("absent", stream.fill.absent), std::pair("padding", stream.fill.padding)}) {
      // An int64 need not be a double.
      if (stream.dtype == at::kLong && fill.isIntegral(/*includeBool=*/true)) continue;
      const std::string problem = WhyNot(stream.dtype, fill.toDouble());
      TORCH_CHECK_VALUE(problem.empty(), "batching: streams.", name, ".", of, " = ",
                        InWords(fill.toDouble()), " ", problem, "; ", name, " is ", stream.dtype,
                        given.count(name) > 0 ? "" : ", as no sample has it",
                        "; give another value, or samples whose ", name, " is of another dtype");
    }
  }
}

TensorMicroBatch Packer::Pack(const std::string& kind, const std::vector<const Item*>& items,
                              const std::vector<const TensorSample*>& samples,
                              std::vector<SampleShare> shares, int largest_group, bool padding,
                              bool shorten) const {
  std::vector<const Extent*> extents;
  extents.reserve(items.size());
  for (const Item* item : items) extents.push_back(shorten ? &item->least : &item->kept);
  TensorMicroBatch batch;
  batch.kind = kind;
  batch.padding = padding;
  batch.shares = std::move(shares);
  batch.largest_group = largest_group;
  int64_t tokens = 0;
  for (size_t i = 0; i < extents.size(); ++i) {
    int64_t held = 0;
    for (const Piece& piece : PiecesHeld(batch, i, extents[i]->tokens))
      held += piece.end - piece.begin;
    batch.seq_lens.push_back(held);
    tokens += held;
  }
  const int64_t multiple = options_.pad_to_multiple_of;
  const int64_t length = (tokens + multiple - 1) / multiple * multiple;
  if (length > tokens && items.size() == batch.shares.size()) {
    batch.seq_lens.push_back(length - tokens);  // a share's tokens are the group's, too
  } else {
    batch.seq_lens.back() += length - tokens;
  }
  batch.padding_tokens = padding ? length : length - tokens;
  PackTokens(items, samples, extents, length - tokens, length, batch);
  PackTensors(samples, extents, batch);
  if (padding) batch.loss_mask.fill_(false);
  if (padding && batch.labels.defined()) batch.labels.fill_(kNoLabel);
  return batch;
}

void Packer::PackTokens(const std::vector<const Item*>& items,
                        const std::vector<const TensorSample*>& samples,
                        const std::vector<const Extent*>& extents, int64_t num_padding,
                        int64_t length, TensorMicroBatch& batch) const {
  PackedRows input_ids(length, at::kLong);
  PackedRows loss_mask(length, at::kBool);
  const bool has_axes = std::any_of(samples.begin(), samples.end(), [](const auto* sample) {
    return sample->position_ids.defined() && sample->position_ids.dim() == 2;
  });
  PackedRows position_ids(length, at::kLong,
                          has_axes ? std::vector<int64_t>{kPositionAxes} : std::vector<int64_t>());
  PackedRows labels(batch.largest_group > 1 ? length : 0, at::kLong);
  std::map<std::string, PackedRows> streams;
  for (const auto& [name, stream] : streams_)
    streams.emplace(name, PackedRows(length, stream.dtype, stream.row));
  for (size_t i = 0; i < samples.size(); ++i) {
    const TensorSample& sample = *samples[i];
    const int64_t tokens = extents[i]->tokens;
    at::Tensor labels_of_sample;
    if (batch.largest_group > 1) labels_of_sample = LabelsOf(sample, *items[i], tokens);
    for (const Piece& piece : PiecesHeld(batch, i, tokens)) {
      input_ids.Append(sample.input_ids, piece);
      loss_mask.AppendRuns(items[i]->outline->loss, piece);
      if (labels_of_sample.defined()) labels.Append(labels_of_sample, piece);
      if (sample.position_ids.defined()) {
        const at::Tensor& ids = sample.position_ids;
        position_ids.Append(ids.dim() == 2 ? ids.t() : has_axes ? ids.unsqueeze(1) : ids, piece);
      } else {
        position_ids.AppendPositions(piece);
      }
      for (auto& [name, packer] : streams) {
        const auto it = sample.streams.find(name);
        const StreamFill& fill = streams_.at(name).fill;
        // A copy's pixels still belong to its placeholders.
        if (batch.padding && name != options_.token_types) {
          packer.Fill(fill.padding, piece.end - piece.begin);
        } else if (it != sample.streams.end()) {
          packer.Append(it->second, piece);
        } else {
          packer.Fill(fill.absent, piece.end - piece.begin);
        }
      }
    }
  }
  input_ids.Fill(options_.pad_token_id, num_padding);
  loss_mask.Fill(false, num_padding);
  position_ids.AppendPositions({0, num_padding});
  if (batch.largest_group > 1) {
    labels.Fill(kNoLabel, num_padding);
    batch.labels = labels.packed();
  }
  batch.input_ids = input_ids.packed();
  batch.loss_mask = loss_mask.packed();
  batch.position_ids = has_axes ? position_ids.packed().t().contiguous() : position_ids.packed();
  for (auto& [name, packer] : streams) {
    packer.Fill(streams_.at(name).fill.padding, num_padding);
    batch.streams[name] = packer.packed();
  }
  batch.cu_seqlens = at::empty({static_cast<int64_t>(batch.seq_lens.size()) + 1}, at::kInt);
  int32_t* sums = batch.cu_seqlens.mutable_data_ptr<int32_t>();
  sums[0] = 0;
  for (size_t i = 0; i < batch.seq_lens.size(); ++i)
    sums[i + 1] = sums[i] + static_cast<int32_t>(batch.seq_lens[i]);
}

}  // namespace lockstep::batching
