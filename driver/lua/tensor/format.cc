#include "driver/lua/tensor/format.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <vector>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/cat.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "c10/core/DefaultDtype.h"
#include "driver/lua/tensor/tensor.h"
#include "torch/csrc/autograd/function.h"

namespace lockstep::lua {
namespace {

// PyTorch's default print options.
constexpr int64_t kSummaryThreshold = 1000;  // elements
constexpr int64_t kEdgeItems = 3;
constexpr size_t kLineWidth = 80;

constexpr char kPrefix[] = "tensor(";
constexpr size_t kIndent = sizeof(kPrefix) - 1;

// --- Elements ------------------------------------------------------------------------------------

// Elements as text. `width` is what columns are aligned and lines are broken by. As in PyTorch,
// zeros, infinities and nan do not count for it: an array of zeros is broken as if "0." had one
// column.
struct Column {
  std::vector<std::string> texts;
  size_t width = 1;
};

std::string Print(const char* format, double value) {
  char buffer[400];
  std::snprintf(buffer, sizeof(buffer), format, value);
  return buffer;
}

bool Counts(double value) { return std::isfinite(value) && value != 0; }

// One format for all, chosen from the values that count.
const char* FloatFormat(const std::vector<double>& values) {
  double least = std::numeric_limits<double>::infinity();
  double most = 0;
  bool whole = true;
  for (const double value : values) {
    if (!Counts(value)) continue;
    whole &= value == std::ceil(value);
    least = std::min(least, std::abs(value));
    most = std::max(most, std::abs(value));
  }
  const bool scientific = most > 0 && (most / least > 1000 || most > 1e8 || least < 1e-4);
  if (scientific) return "%.4e";
  return whole ? "%.0f." : "%.4f";
}

std::string FloatText(const char* format, double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return Print(format, value);
}

void Align(Column& column) {
  for (std::string& text : column.texts) {
    if (text.size() < column.width) text.insert(0, column.width - text.size(), ' ');
  }
}

Column FloatColumn(const std::vector<double>& values) {
  Column column;
  const char* format = FloatFormat(values);
  for (const double value : values) {
    column.texts.push_back(FloatText(format, value));
    if (Counts(value)) column.width = std::max(column.width, column.texts.back().size());
  }
  Align(column);
  return column;
}

template <typename T>
std::vector<T> Values(const at::Tensor& shown, at::ScalarType dtype) {
  const at::Tensor flat = shown.to(dtype).contiguous();
  return std::vector<T>(flat.const_data_ptr<T>(), flat.const_data_ptr<T>() + flat.numel());
}

template <typename T, typename Text>
Column ExactColumn(const std::vector<T>& values, const Text& text) {
  Column column;
  for (const T value : values) {
    column.texts.push_back(text(value));
    column.width = std::max(column.width, column.texts.back().size());
  }
  Align(column);
  return column;
}

// Real and imaginary parts have a format each: "1.0000+2.5000j".
Column ComplexColumn(const at::Tensor& shown) {
  std::vector<double> real;
  std::vector<double> imaginary;
  for (const auto value : Values<c10::complex<double>>(shown, at::kComplexDouble)) {
    real.push_back(value.real());
    imaginary.push_back(value.imag());
  }
  Column column = FloatColumn(real);
  Column second = FloatColumn(imaginary);
  for (size_t i = 0; i < column.texts.size(); ++i) {
    const std::string& text = second.texts[i];
    const std::string bare = text.substr(text.find_first_not_of(' '));
    absl::StrAppend(&column.texts[i], bare[0] == '-' ? "" : "+", bare, "j");
  }
  column.width += second.width + 1;
  return column;
}

Column Elements(const at::Tensor& shown) {
  const at::ScalarType dtype = shown.scalar_type();
  const auto digits = [](auto value) { return absl::StrCat(value); };
  if (dtype == at::kBool) {
    return ExactColumn(Values<int64_t>(shown, at::kLong),
                       [](int64_t value) { return std::string(value != 0 ? "True" : "False"); });
  }
  if (dtype == at::kUInt64) return ExactColumn(Values<uint64_t>(shown, dtype), digits);
  if (at::isIntegralType(dtype, /*includeBool=*/false)) {
    return ExactColumn(Values<int64_t>(shown, at::kLong), digits);
  }
  if (at::isComplexType(dtype)) return ComplexColumn(shown);
  return FloatColumn(Values<double>(shown, at::kDouble));
}

// --- Layout --------------------------------------------------------------------------------------

// The part of the tensor that is shown, on the CPU: the ends of each long dimension.
at::Tensor Shown(at::Tensor tensor, bool summarize) {
  for (int64_t dim = 0; summarize && dim < tensor.dim(); ++dim) {
    if (tensor.size(dim) <= 2 * kEdgeItems) continue;
    const int64_t last = tensor.size(dim) - kEdgeItems;
    tensor =
        at::cat({tensor.narrow(dim, 0, kEdgeItems), tensor.narrow(dim, last, kEdgeItems)}, dim);
  }
  return tensor.to(at::kCPU);
}

class Rows {
 public:
  Rows(const at::Tensor& tensor, bool summarize)
      : sizes_(tensor.sizes().vec()),
        summarize_(summarize),
        column_(Elements(Shown(tensor, summarize))) {}

  std::string Text() { return Block(0, kIndent); }

 private:
  // Dimension `dim` and those inside it; `indent` columns stand before it on its line.
  std::string Block(size_t dim, size_t indent) {
    if (dim == sizes_.size()) return column_.texts[next_++];
    const bool innermost = dim + 1 == sizes_.size();
    const bool cut = summarize_ && sizes_[dim] > 2 * kEdgeItems;
    std::vector<std::string> items;
    for (int64_t i = 0; i < (cut ? 2 * kEdgeItems : sizes_[dim]); ++i) {
      if (cut && i == kEdgeItems) items.emplace_back(innermost ? " ..." : "...");
      items.push_back(Block(dim + 1, indent + 1));
    }
    if (innermost) return absl::StrCat("[", Lines(items, indent), "]");
    const std::string gap(sizes_.size() - dim - 1, '\n');
    return absl::StrCat(
        "[", absl::StrJoin(items, absl::StrCat(",", gap, std::string(indent + 1, ' '))), "]");
  }

  // Elements in lines of at most kLineWidth columns, as far as `width` tells.
  std::string Lines(const std::vector<std::string>& items, size_t indent) {
    const size_t room = kLineWidth > indent ? kLineWidth - indent : 0;
    const size_t per_line = std::max<size_t>(1, room / (column_.width + 2));
    std::string text;
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0)
        absl::StrAppend(
            &text, i % per_line == 0 ? absl::StrCat(",\n", std::string(indent + 1, ' ')) : ", ");
      text += items[i];
    }
    return text;
  }

  std::vector<int64_t> sizes_;
  bool summarize_;
  Column column_;  // in row-major order
  size_t next_ = 0;
};

// --- What follows the elements -------------------------------------------------------------------

std::string SizeText(const at::Tensor& tensor) {
  return absl::StrCat("size=(", absl::StrJoin(tensor.sizes().vec(), ", "),
                      tensor.dim() == 1 ? ",)" : ")");
}

bool DtypeShows(const at::Tensor& tensor, bool elements_tell) {
  const at::ScalarType dtype = tensor.scalar_type();
  const at::ScalarType floating = c10::get_default_dtype_as_scalartype();
  if (dtype == floating) return false;
  const at::ScalarType complex = floating == at::kDouble ? at::kComplexDouble : at::kComplexFloat;
  return !elements_tell || (dtype != complex && dtype != at::kLong && dtype != at::kBool);
}

std::string LayoutName(at::Layout layout) {
  switch (layout) {
    case at::kSparse: return "sparse_coo";
    case at::kSparseCsr: return "sparse_csr";
    case at::kSparseCsc: return "sparse_csc";
    case at::kSparseBsr: return "sparse_bsr";
    case at::kSparseBsc: return "sparse_bsc";
    default: return "_mkldnn";
  }
}

std::vector<std::string> Suffixes(const at::Tensor& tensor) {
  const bool listed = !tensor.is_meta() && tensor.layout() == at::kStrided;
  const bool empty = listed && tensor.numel() == 0;
  std::vector<std::string> suffixes;
  if (!tensor.is_cpu()) suffixes.push_back(absl::StrCat("device='", tensor.device().str(), "'"));
  if (!listed || (empty && tensor.dim() != 1)) suffixes.push_back(SizeText(tensor));
  if (DtypeShows(tensor, !tensor.is_meta() && !empty)) {
    suffixes.push_back(absl::StrCat("dtype=torch.", DtypeName(tensor.scalar_type())));
  }
  if (tensor.layout() != at::kStrided) {
    suffixes.push_back(absl::StrCat("layout=torch.", LayoutName(tensor.layout())));
  }
  if (tensor.grad_fn() != nullptr) {
    const std::string name = tensor.grad_fn()->name();
    const size_t scope = name.rfind("::");  // nodes that are not ATen's: "lockstep::Recompute"
    suffixes.push_back(
        absl::StrCat("grad_fn=<", scope == std::string::npos ? name : name.substr(scope + 2), ">"));
  } else if (tensor.requires_grad()) {
    suffixes.emplace_back("requires_grad=True");
  }
  return suffixes;
}

// A suffix that does not fit on the last line begins another.
std::string Join(std::string text, const std::vector<std::string>& suffixes) {
  const size_t newline = text.rfind('\n');
  size_t line = (newline == std::string::npos ? text.size() + 1 : text.size() - newline) + 1;
  for (const std::string& suffix : suffixes) {
    const bool fits = line + suffix.size() + 2 <= kLineWidth;
    absl::StrAppend(&text, fits ? ", " : absl::StrCat(",\n", std::string(kIndent, ' ')), suffix);
    line = fits ? line + suffix.size() + 2 : kIndent + suffix.size();
  }
  return text;
}

std::string ContentText(const at::Tensor& tensor) {
  if (tensor.is_meta() || tensor.layout() != at::kStrided) return "...";
  if (tensor.numel() == 0) return "[]";
  const at::Tensor values = tensor.is_quantized() ? tensor.dequantize() : tensor.detach();
  return Rows(values, tensor.numel() > kSummaryThreshold).Text();
}

}  // namespace

std::string FormatTensor(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  return absl::StrCat(Join(absl::StrCat(kPrefix, ContentText(tensor)), Suffixes(tensor)), ")");
}

}  // namespace lockstep::lua
