#include "driver/lua/format.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <vector>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/cat.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "driver/lua/tensor.h"
#include "torch/csrc/autograd/function.h"

namespace lockstep::lua {
namespace {

constexpr int64_t kSummaryThreshold = 1000;  // elements
constexpr int64_t kEdgeItems = 3;
constexpr int64_t kLineWidth = 80;

std::string Print(const char* format, double value) {
  char buffer[400];
  std::snprintf(buffer, sizeof(buffer), format, value);
  return buffer;
}

// The format of floating-point values: chosen from all that are shown, so that columns align.
const char* FloatFormat(const std::vector<double>& shown) {
  double least = std::numeric_limits<double>::infinity();
  double most = 0;
  bool whole = true;
  for (const double value : shown) {
    if (!std::isfinite(value)) continue;
    whole &= value == std::floor(value);
    if (value == 0) continue;
    least = std::min(least, std::abs(value));
    most = std::max(most, std::abs(value));
  }
  const bool wide = most > 0 && (most / least > 1000 || most > 1e8 || (!whole && least < 1e-4));
  if (wide) return "%.4e";
  return whole ? "%.0f." : "%.4f";
}

std::string FloatText(const char* format, double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return Print(format, value);
}

template <typename T>
std::vector<T> Values(const at::Tensor& shown, at::ScalarType dtype) {
  const at::Tensor flat = shown.to(dtype).contiguous();
  return std::vector<T>(flat.const_data_ptr<T>(), flat.const_data_ptr<T>() + flat.numel());
}

// Each shown element, all of one width.
std::vector<std::string> Texts(const at::Tensor& shown) {
  std::vector<std::string> texts;
  const at::ScalarType dtype = shown.scalar_type();
  if (dtype == at::kBool) {
    for (const int64_t value : Values<int64_t>(shown, at::kLong)) texts.push_back(value != 0 ? "True" : "False");
  } else if (dtype == at::kUInt64) {
    for (const uint64_t value : Values<uint64_t>(shown, dtype)) texts.push_back(absl::StrCat(value));
  } else if (at::isIntegralType(dtype, /*includeBool=*/false)) {
    for (const int64_t value : Values<int64_t>(shown, at::kLong)) texts.push_back(absl::StrCat(value));
  } else {
    const std::vector<double> values = Values<double>(shown, at::kDouble);
    const char* format = FloatFormat(values);
    for (const double value : values) texts.push_back(FloatText(format, value));
  }
  size_t width = 0;
  for (const std::string& text : texts) width = std::max(width, text.size());
  for (std::string& text : texts) text.insert(0, width - text.size(), ' ');
  return texts;
}

// The part of the tensor that is shown, on the CPU: the ends of each long dimension.
at::Tensor Shown(at::Tensor tensor, bool summarize) {
  for (int64_t dim = 0; summarize && dim < tensor.dim(); ++dim) {
    if (tensor.size(dim) <= 2 * kEdgeItems) continue;
    tensor = at::cat({tensor.narrow(dim, 0, kEdgeItems), tensor.narrow(dim, tensor.size(dim) - kEdgeItems, kEdgeItems)}, dim);
  }
  return tensor.to(at::kCPU);
}

class Layout {
 public:
  Layout(const at::Tensor& tensor, bool summarize)
      : sizes_(tensor.sizes().vec()), summarize_(summarize), texts_(Texts(Shown(tensor, summarize))) {}

  std::string Text() { return Block(0, 7); }

 private:
  // Dimension `dim` and those inside it; `indent` columns stand before it on its line.
  std::string Block(size_t dim, int64_t indent) {
    if (dim == sizes_.size()) return texts_[next_++];
    const bool cut = summarize_ && sizes_[dim] > 2 * kEdgeItems;
    std::vector<std::string> items;
    for (int64_t i = 0; i < (cut ? 2 * kEdgeItems : sizes_[dim]); ++i) {
      if (cut && i == kEdgeItems) items.emplace_back(dim + 1 == sizes_.size() ? " ..." : "...");
      items.push_back(Block(dim + 1, indent + 1));
    }
    if (dim + 1 == sizes_.size()) return absl::StrCat("[", Line(items, indent + 1), "]");
    const std::string separator =
        absl::StrCat(",", std::string(sizes_.size() - dim - 1, '\n'), std::string(indent + 1, ' '));
    return absl::StrCat("[", absl::StrJoin(items, separator), "]");
  }

  // Numbers in rows of at most kLineWidth columns.
  std::string Line(const std::vector<std::string>& numbers, int64_t indent) {
    const int64_t width = static_cast<int64_t>(texts_[0].size()) + 2;
    const size_t per_line = static_cast<size_t>(std::max<int64_t>(1, (kLineWidth - indent) / width));
    std::string text;
    for (size_t i = 0; i < numbers.size(); ++i) {
      const char* gap = i % per_line == 0 ? ",\n" : ", ";
      absl::StrAppend(&text, i == 0 ? "" : gap, i > 0 && i % per_line == 0 ? std::string(indent, ' ') : "", numbers[i]);
    }
    return text;
  }

  std::vector<int64_t> sizes_;
  bool summarize_;
  std::vector<std::string> texts_;  // in row-major order
  size_t next_ = 0;
};

std::string Suffix(const at::Tensor& tensor) {
  std::string text;
  if (tensor.numel() == 0 && tensor.dim() != 1) {
    absl::StrAppend(&text, ", size={", absl::StrJoin(tensor.sizes().vec(), ", "), "}");
  }
  if (tensor.is_meta()) absl::StrAppend(&text, "..., size={", absl::StrJoin(tensor.sizes().vec(), ", "), "}");
  const at::ScalarType dtype = tensor.scalar_type();
  const bool dtype_shows = dtype == at::kFloat || dtype == at::kBool || dtype == at::kLong;
  if (!dtype_shows || (tensor.numel() == 0 && dtype != at::kFloat)) {
    absl::StrAppend(&text, ", dtype=torch.", DtypeName(dtype));
  }
  if (!tensor.is_cpu()) absl::StrAppend(&text, ", device=", tensor.device().str());
  if (tensor.grad_fn() != nullptr) {
    absl::StrAppend(&text, ", grad_fn=<", tensor.grad_fn()->name(), ">");
  } else if (tensor.requires_grad()) {
    absl::StrAppend(&text, ", requires_grad=true");
  }
  return text;
}

}  // namespace

std::string FormatTensor(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  if (tensor.is_meta() || tensor.is_complex() || tensor.layout() != at::kStrided) {
    return absl::StrCat("tensor(", Describe(tensor), Suffix(tensor), ")");
  }
  const std::string values =
      tensor.numel() == 0 ? "[]" : Layout(tensor.detach(), tensor.numel() > kSummaryThreshold).Text();
  return absl::StrCat("tensor(", values, Suffix(tensor), ")");
}

}  // namespace lockstep::lua
