#include "driver/watching/flops.h"

#include <algorithm>
#include <memory>
#include <unordered_map>

#include "ATen/core/TensorBody.h"
#include "ATen/core/ivalue.h"
#include "ATen/record_function.h"
#include "c10/util/ArrayRef.h"

namespace lockstep::driver {
namespace {

using Inputs = c10::ArrayRef<const c10::IValue>;
using Formula = int64_t (*)(Inputs);

// Formulas see arguments before the kernel has checked them: they index with at(), which throws.
at::IntArrayRef SizesAt(Inputs inputs, size_t index) { return inputs.at(index).toTensor().sizes(); }

int64_t Product(at::IntArrayRef sizes) {
  int64_t product = 1;
  for (const int64_t size : sizes) product *= size;
  return product;
}

// --- Products of matrices

// [..., m, k] by [..., k, n], where the first is argument `first`.
template <size_t first>
int64_t Matmul(Inputs inputs) {
  return 2 * Product(SizesAt(inputs, first)) * SizesAt(inputs, first + 1).back();
}

// [..., k] by the transposed [n, k].
int64_t Linear(Inputs inputs) {
  return 2 * Product(SizesAt(inputs, 0)) * SizesAt(inputs, 1).front();
}

// --- Convolutions

// Each element of the weight [out, in / groups, filter...] meets each point of the grid that the
// filter is laid on: the output's, or the input's where the convolution is transposed.
int64_t Convolution(at::IntArrayRef input, at::IntArrayRef weight, at::IntArrayRef grid) {
  return 2 * input.at(0) * Product(weight) * Product(grid);
}

// (input, weight, bias, stride, padding, dilation, transposed, ...)
int64_t ConvolutionForward(Inputs inputs) {
  const at::IntArrayRef input = SizesAt(inputs, 0);
  const at::IntArrayRef weight = SizesAt(inputs, 1);
  if (inputs.at(6).toBool()) return Convolution(input, weight, input.slice(2));
  const std::vector<int64_t> stride = inputs.at(3).toIntVector();
  const std::vector<int64_t> padding = inputs.at(4).toIntVector();
  const std::vector<int64_t> dilation = inputs.at(5).toIntVector();
  // One number stands for all dimensions.
  const auto of = [](const std::vector<int64_t>& numbers, size_t i) {
    return numbers.at(numbers.size() == 1 ? 0 : i);
  };
  std::vector<int64_t> grid;
  for (size_t i = 0; i + 2 < input.size(); ++i) {
    const int64_t reach = of(dilation, i) * (weight.at(i + 2) - 1) + 1;
    grid.push_back(
        (input[i + 2] + 2 * of(padding, i) - reach) / std::max<int64_t>(of(stride, i), 1) + 1);
  }
  return Convolution(input, weight, grid);
}

// (grad_output, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding,
// groups, output_mask)
int64_t ConvolutionBackward(Inputs inputs) {
  const at::IntArrayRef grid = SizesAt(inputs, inputs.at(7).toBool() ? 1 : 0).slice(2);
  const int64_t forward = Convolution(SizesAt(inputs, 1), SizesAt(inputs, 2), grid);
  const c10::List<bool> mask = inputs.at(10).toBoolList();
  return forward * (static_cast<int64_t>(mask.get(0)) + static_cast<int64_t>(mask.get(1)));
}

// --- Attention

// The multiplications of forward for each pair of a query and a key: q k and p v. Backward computes
// q k again, and the gradients of p, v, q and k.
int64_t ForwardOfPair(int64_t query_dim, int64_t value_dim) { return 2 * (query_dim + value_dim); }
int64_t BackwardOfPair(int64_t query_dim, int64_t value_dim) {
  return 2 * (3 * query_dim + 2 * value_dim);
}
using OfPair = int64_t (*)(int64_t, int64_t);

// Query, key and value [batch, heads, tokens, dim] from argument `first` on.
template <size_t first, OfPair of_pair>
int64_t Attention(Inputs inputs) {
  const at::IntArrayRef query = SizesAt(inputs, first);
  const int64_t pairs = Product(query.slice(0, 3)) * SizesAt(inputs, first + 1).at(2);
  return pairs * of_pair(query.back(), SizesAt(inputs, first + 2).back());
}

// (q [sequences, heads, size], k, v, keys, values, column, first, mask): a query for each head.
int64_t CachedAttention(Inputs inputs) {
  const at::IntArrayRef query = SizesAt(inputs, 0);
  const int64_t columns = inputs.at(5).toInt() + 1 - inputs.at(6).toInt();
  return query.at(0) * query.at(1) * columns * ForwardOfPair(query.back(), query.back());
}

// A row of the first argument by each of the weights at `weights`.
template <size_t weights>
int64_t Linears(Inputs inputs) {
  int64_t numbers = 0;
  for (const at::Tensor& weight : inputs.at(weights).toTensorVector()) numbers += weight.numel();
  return 2 * SizesAt(inputs, 0).at(0) * numbers;
}

// (x, norm, weights, biases, head_norms, eps, cos, sin, keys, values, column, first, mask)
int64_t AttentionOfNewTokens(Inputs inputs) {
  const int64_t width = inputs.at(2).toTensorVector().at(0).size(0);  // of all queries of a token
  const int64_t columns = inputs.at(10).toInt() + 1 - inputs.at(11).toInt();
  return Linears<2>(inputs) + SizesAt(inputs, 0).at(0) * columns * ForwardOfPair(width, width);
}

std::vector<int64_t> Lengths(const at::Tensor& offsets) {
  const at::Tensor ends = offsets.cpu().to(at::kLong).contiguous();
  const int64_t* const end = ends.const_data_ptr<int64_t>();
  std::vector<int64_t> lengths;
  for (int64_t i = 1; i < ends.numel(); ++i) lengths.push_back(end[i] - end[i - 1]);
  return lengths;
}

// Query, key and value [batch, tokens, heads, dim] from argument `first` on; or all sequences after
// one another, whose ends the arguments `offsets` and the next give.
template <size_t first, size_t offsets, OfPair of_pair>
int64_t PackedAttention(Inputs inputs) {
  const at::IntArrayRef query = SizesAt(inputs, first);
  const int64_t heads = query.at(query.size() - 2);
  int64_t pairs = 0;
  if (inputs.at(offsets).isTensor() && inputs.at(offsets).toTensor().defined()) {
    const std::vector<int64_t> queries = Lengths(inputs.at(offsets).toTensor());
    const std::vector<int64_t> keys = Lengths(inputs.at(offsets + 1).toTensor());
    for (size_t i = 0; i < queries.size(); ++i) pairs += queries[i] * keys.at(i);
  } else {
    pairs = query.at(0) * query.at(1) * SizesAt(inputs, first + 1).at(1);
  }
  return pairs * heads * of_pair(query.back(), SizesAt(inputs, first + 2).back());
}

// lockstep::packed_attention: query, key and value [tokens, heads, dim] from argument `first` on,
// and the sequences' lengths.
template <size_t first, size_t lengths, OfPair of_pair>
int64_t AttentionOfSequences(Inputs inputs) {
  const at::IntArrayRef query = SizesAt(inputs, first);
  int64_t pairs = 0;
  for (const int64_t length : inputs.at(lengths).toIntVector()) pairs += length * length;
  return pairs * query.at(1) * of_pair(query.at(2), query.at(2));
}

// --- Counting

const std::unordered_map<std::string, Formula>& Formulas() {
  static const auto* const kFormulas = new std::unordered_map<std::string, Formula>{
      {"aten::mm", Matmul<0>},
      {"aten::bmm", Matmul<0>},
      {"aten::_scaled_mm", Matmul<0>},
      {"aten::addmm", Matmul<1>},
      {"aten::addmm_", Matmul<1>},
      {"lockstep::linear_of_few_rows", Linear},
      {"mkldnn::_linear_pointwise", Linear},
      {"lockstep::cached_attention", CachedAttention},
      {"lockstep::attention_of_new_tokens", AttentionOfNewTokens},
      {"lockstep::mlp_of_new_tokens", Linears<3>},
      {"lockstep::packed_attention", AttentionOfSequences<0, 3, ForwardOfPair>},
      {"lockstep::packed_attention_backward", AttentionOfSequences<1, 6, BackwardOfPair>},
      {"aten::baddbmm", Matmul<1>},
      {"aten::convolution", ConvolutionForward},
      {"aten::_convolution", ConvolutionForward},
      {"aten::convolution_backward", ConvolutionBackward},
      {"aten::_scaled_dot_product_efficient_attention", Attention<0, ForwardOfPair>},
      {"aten::_scaled_dot_product_flash_attention", Attention<0, ForwardOfPair>},
      {"aten::_scaled_dot_product_flash_attention_for_cpu", Attention<0, ForwardOfPair>},
      {"aten::_scaled_dot_product_cudnn_attention", Attention<0, ForwardOfPair>},
      {"aten::_scaled_dot_product_efficient_attention_backward", Attention<1, BackwardOfPair>},
      {"aten::_scaled_dot_product_flash_attention_backward", Attention<1, BackwardOfPair>},
      {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", Attention<1, BackwardOfPair>},
      {"aten::_scaled_dot_product_cudnn_attention_backward", Attention<1, BackwardOfPair>},
      // (query, key, value, cum_seq_q, cum_seq_k, ...)
      {"aten::_flash_attention_forward", PackedAttention<0, 3, ForwardOfPair>},
      // (query, key, value, bias, cu_seqlens_q, cu_seqlens_k, ...)
      {"aten::_efficient_attention_forward", PackedAttention<0, 4, ForwardOfPair>},
      // (query, key, value, attn_bias, cum_seq_q, cum_seq_k, ...)
      {"aten::_cudnn_attention_forward", PackedAttention<0, 4, ForwardOfPair>},
      // (grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k, ...)
      {"aten::_flash_attention_backward", PackedAttention<1, 6, BackwardOfPair>},
      // (grad_out, query, key, value, bias, out, cu_seqlens_q, cu_seqlens_k, ...)
      {"aten::_efficient_attention_backward", PackedAttention<1, 6, BackwardOfPair>},
      // (grad_out, query, key, value, out, logsumexp, philox_seed, philox_offset, attn_bias,
      // cum_seq_q, cum_seq_k, ...)
      {"aten::_cudnn_attention_backward", PackedAttention<1, 9, BackwardOfPair>},
  };
  return *kFormulas;
}

// One callback serves all counters of a thread.
struct Counting {
  std::vector<FlopCounter*> counters;
  at::CallbackHandle callback = 0;
  int depth = 0;  // of counted operators: what one calls to do its work is not counted again
};
thread_local Counting counting;

struct Counted : at::ObserverContext {
  Counted() { ++counting.depth; }
  ~Counted() override { --counting.depth; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
};

std::unique_ptr<at::ObserverContext> OnStart(const at::RecordFunction& function) {
  if (counting.depth > 0 || !HasFlops(function.name())) return nullptr;
  auto counted = std::make_unique<Counted>();
  const std::optional<int64_t> flops = FlopsOf(function.name(), function.inputs());
  if (flops.has_value()) {
    for (FlopCounter* counter : counting.counters) counter->Add(function.name(), *flops);
  }
  return counted;
}

}  // namespace

bool HasFlops(const std::string& name) { return Formulas().count(name) > 0; }

std::optional<int64_t> FlopsOf(const char* name, Inputs inputs) {
  const auto formula = Formulas().find(name);
  if (formula == Formulas().end()) return std::nullopt;
  try {
    return std::max<int64_t>(formula->second(inputs), 0);
  } catch (const std::exception&) {
    return std::nullopt;  // the kernel's own message is about to come
  }
}

FlopCounter::FlopCounter() {
  if (counting.counters.empty()) {
    counting.callback = at::addThreadLocalCallback(
        at::RecordFunctionCallback(OnStart).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  }
  counting.counters.push_back(this);
}

FlopCounter::~FlopCounter() {
  counting.counters.erase(std::find(counting.counters.begin(), counting.counters.end(), this));
  if (counting.counters.empty()) at::removeCallback(counting.callback);
}

std::vector<OperatorFlops> FlopCounter::ByOperator() const {
  std::vector<OperatorFlops> operators;
  for (const auto& [name, counted] : by_operator_) operators.push_back(counted);
  std::stable_sort(operators.begin(), operators.end(),
                   [](const auto& a, const auto& b) { return a.flops > b.flops; });
  return operators;
}

void FlopCounter::Add(const char* name, int64_t flops) {
  OperatorFlops& counted = by_operator_[name];
  counted.name = name;
  counted.flops += flops;
  ++counted.calls;
  total_ += flops;
}

}  // namespace lockstep::driver
