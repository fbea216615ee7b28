#include "sharding/data_parallel/replica_comparison.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/stack.h"
#include "ATen/ops/view_as_real.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/hash.h"
#include "c10/util/Exception.h"
#include "sharding/agreement/gather_texts.h"

namespace lockstep::sharding {
namespace {

// Returns a line for a tensor: "weight: Float [64, 32], trained".
std::string Describe(const NamedTensor& named, const char* role) {
  return absl::StrCat(named.name, ": ", c10::toString(named.tensor.scalar_type()), " [",
                      absl::StrJoin(named.tensor.sizes(), ", "), "], ", role, "\n");
}

std::vector<std::string> Gathered(Collective& collective, const std::string& own) {
  absl::StatusOr<std::vector<std::string>> texts = GatherTexts(collective, own);
  TORCH_CHECK(texts.ok(), std::string(texts.status().message()));
  return *std::move(texts);
}

template <typename T>
std::string BytesOf(const T* values, size_t count) {
  return std::string(reinterpret_cast<const char*>(values), count * sizeof(T));
}

// Returns the tensor's bits as integers. Sums of 64-bit integers run at the memory's speed; those
// of narrower ones, which are widened, take ten times as long on a CPU.
at::Tensor BitsOf(const at::Tensor& tensor) {
  const int64_t size = tensor.element_size();
  const int64_t per_word = 8 / std::min<int64_t>(size, 8);
  if (tensor.is_contiguous() && size <= 8 && tensor.numel() % per_word == 0 &&
      tensor.storage_offset() % per_word == 0)
    return tensor.view({-1}).view(at::kLong);
  if (tensor.is_complex()) return BitsOf(at::view_as_real(tensor.resolve_conj()));
  switch (size) {
    case 1: return tensor.view(at::kByte);
    case 2: return tensor.view(at::kShort);
    case 4: return tensor.view(at::kInt);
    default: return tensor.view(at::kLong);
  }
}

// Returns a number for each parameter: the sum of its bits, as integers modulo 2^64. A change of
// one element changes it. Elements that trade places do not. Waits for the device once.
std::vector<int64_t> ChecksumsOf(const std::vector<NamedTensor>& parameters) {
  if (parameters.empty()) return {};
  const at::NoGradGuard no_grad;
  const c10::Device device = parameters[0].tensor.device();
  std::vector<at::Tensor> sums;
  for (const NamedTensor& p : parameters)
    sums.push_back(BitsOf(p.tensor.detach()).sum(at::kLong).to(device));
  const at::Tensor all = at::stack(sums).cpu();
  const auto* const first = all.const_data_ptr<int64_t>();
  return {first, first + all.numel()};
}

// Returns the ranks in groups whose values are equal: "{0, 2}, {1}".
std::string GroupRanks(const Collective& collective, const std::vector<std::string>& values) {
  std::vector<std::string> groups;
  std::vector<bool> is_named(values.size(), false);
  for (size_t i = 0; i < values.size(); ++i) {
    if (is_named[i]) continue;
    std::vector<int> ranks;
    for (size_t j = i; j < values.size(); ++j) {
      if (values[j] != values[i]) continue;
      is_named[j] = true;
      ranks.push_back(collective.WorldRank(static_cast<int>(j)));
    }
    groups.push_back(absl::StrCat("{", absl::StrJoin(ranks, ", "), "}"));
  }
  return absl::StrJoin(groups, ", ");
}

}  // namespace

std::string DescribeBuffers(const std::vector<NamedTensor>& buffers) {
  std::string text;
  for (const NamedTensor& b : buffers) text += Describe(b, "buffer");
  return text;
}

std::string DescribeParameters(const std::vector<NamedTensor>& parameters) {
  std::string text;
  for (const NamedTensor& p : parameters)
    text += Describe(p, p.tensor.requires_grad() ? "trained" : "frozen");
  return text;
}

void CheckSameModule(Collective& collective, const std::string& description) {
  const std::vector<std::string> texts = Gathered(collective, description);
  int count = 0;
  const std::string differences = DifferentLines(collective, texts, &count);
  TORCH_CHECK_VALUE(count == 0, "data_parallel: the ranks hold different modules; ", count,
                    " tensors differ:", differences);
}

bool ReplicaComparison::ComparesWeightsIn(int64_t pass) const {
  const int64_t age = pass - first_pass_;
  return weights_every_ > 0 && age > 0 && ((age & (age - 1)) == 0 || age % weights_every_ == 0);
}

void ReplicaComparison::BeginAnew(int64_t pass, std::string description) {
  first_pass_ = pass;
  description_ = std::move(description);
  description_hash_ = base::TextHash(description_);
}

void ReplicaComparison::Compare(int64_t pass, const std::vector<NamedTensor>& parameters) {
  std::vector<int64_t> checksums;
  if (ComparesWeightsIn(pass)) checksums = ChecksumsOf(parameters);
  const std::string state =
      absl::StrCat(BytesOf(&description_hash_, 1), BytesOf(checksums.data(), checksums.size()));
  const uint64_t own[] = {static_cast<uint64_t>(pass), base::TextHash(state)};
  const std::string message = BytesOf(own, 2);
  const absl::StatusOr<std::vector<std::string>> all = control_->StartAllGather(message)->Wait();
  TORCH_CHECK(all.ok(), std::string(all.status().message()));
  if (std::all_of(all->begin(), all->end(), [&](const auto& one) { return one == message; })) {
    if (!checksums.empty()) last_compared_ = pass;
    return;
  }
  std::vector<std::string> passes;
  for (const std::string& one : *all) {
    uint64_t number = 0;
    std::memcpy(&number, one.data(), sizeof(number));
    passes.push_back(absl::StrCat(number));
  }
  for (size_t i = 1; i < passes.size(); ++i) {
    TORCH_CHECK_VALUE(passes[i] == passes[0], "data_parallel: the ranks begin different passes; ",
                      "by rank: ", absl::StrJoin(passes, ", "),
                      ". Every rank runs a forward and a backward in each step");
  }
  CheckSameModule(*control_, description_);
  CheckSameWeights(pass, parameters, checksums);
}

void ReplicaComparison::CheckSameWeights(int64_t pass, const std::vector<NamedTensor>& parameters,
                                         const std::vector<int64_t>& checksums) {
  const std::vector<std::string> texts =
      Gathered(*control_, BytesOf(checksums.data(), checksums.size()));
  std::string first;
  int count = 0;
  for (size_t i = 0; i < checksums.size(); ++i) {
    std::vector<std::string> values;
    for (const std::string& text : texts)
      values.push_back(text.substr(i * sizeof(int64_t), sizeof(int64_t)));
    if (std::count(values.begin(), values.end(), values[0]) == static_cast<int64_t>(values.size()))
      continue;
    if (++count == 1) {
      first = absl::StrCat("\"", parameters[i].name, "\" is equal only among the ranks of each of ",
                           GroupRanks(*control_, values));
    }
  }
  TORCH_CHECK_VALUE(
      false, "data_parallel: the replicas have drifted apart before pass ", pass, ": ", first, ", ",
      count == 1 ? "and no other parameter differs"
                 : absl::StrCat("and ", count - 1, " more parameters differ"),
      last_compared_ > 0 ? absl::StrCat(". They were equal before pass ", last_compared_) : "",
      ". Replicas get the same gradients, so something else differs between the ranks: the "
      "learning rate or another option of the optimizer, an update that one rank skips, or weights "
      "that one rank writes or loads. compare_every = 0 turns this comparison off");
}

}  // namespace lockstep::sharding
