// Selective checkpointing against plain autograd: random compositions of products, in-place
// operators and views, of float64. A fourth of them take a gradient within the region.
//
// LOCKSTEP_SELECTION_CASES sets how many, LOCKSTEP_SELECTION_SEED where to begin.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "ATen/Context.h"
#include "ATen/ops/allclose.h"
#include "ATen/ops/linear.h"
#include "ATen/ops/matmul.h"
#include "ATen/ops/relu.h"
#include "ATen/ops/sigmoid.h"
#include "ATen/ops/tanh.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "c10/util/Exception.h"
#include "checkpoint/region/checkpoint.h"
#include "checkpoint/region/selection.h"
#include "checkpoint/testing/fixture.h"
#include "gtest/gtest.h"
#include "torch/csrc/autograd/autograd.h"

namespace lockstep::checkpoint {
namespace {

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* const value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoll(value, nullptr, 10);
}

// A function of one tensor that is drawn from a seed as it runs. Each run draws the same operators,
// since the draws depend on shapes alone, and reads the same weights.
class Composition {
 public:
  explicit Composition(uint32_t seed) : seed_(seed) {}

  at::Tensor operator()(const at::Tensor& x) {
    random_.seed(seed_);
    num_used_ = 0;
    text_.clear();
    at::Tensor h = x;
    at::Tensor earlier;
    const int64_t num_steps = 2 + Draw(7);
    for (int64_t i = 0; i < num_steps; ++i) {
      if (Draw(4) == 0) earlier = h;
      // The inputs of a region must stay as they are.
      const bool may_write =
          h.storage().unsafeGetStorageImpl() != x.storage().unsafeGetStorageImpl();
      h = Step(h, may_write);
      if (h.numel() > 400) h = Note("slice", h.flatten().slice(0, 0, 60).view({3, 20}));
    }
    if (earlier.defined()) h = Note("earlier", h * earlier.sum());
    return Draw(3) == 0 ? h : Note("tanh", at::tanh(h));
  }

  const Tensors& weights() const { return weights_; }
  std::string ToString() const { return absl::StrJoin(text_, ", "); }

 private:
  int64_t Draw(int64_t below) { return static_cast<int64_t>(random_() % below); }

  at::Tensor Note(const char* name, const at::Tensor& result) {
    text_.push_back(absl::StrCat(name, " {", absl::StrJoin(result.sizes(), ", "), "}"));
    return result;
  }

  at::Tensor Weight(at::IntArrayRef sizes) {
    if (num_used_ == weights_.size()) weights_.push_back(Random(sizes));
    return weights_[num_used_++];
  }

  at::Tensor Step(const at::Tensor& h, bool may_write) {
    const int64_t last = h.dim() == 0 ? 1 : h.size(-1);
    const int64_t out = 1 + Draw(5);
    switch (Draw(h.dim() == 0 ? 4 : 21)) {
      case 0: return Note("scale", h * 0.5);
      case 1: return Note("tanh", at::tanh(h));
      case 2: return Note("unsqueeze", h.dim() < 4 ? h.unsqueeze(Draw(h.dim() + 1)) : h.sigmoid());
      case 3: return may_write ? Note("add_", h.add_(0.25)) : Note("relu", at::relu(h));
      case 4:
      case 5:
      case 6: return Note("linear", at::linear(h, Weight({out, last}), Weight({out})));
      case 7: return Note("linear without bias", at::linear(h, Weight({out, last})));
      case 8:
      case 9: return Note("matmul", at::matmul(h, Weight({last, out})));
      case 10:
        return h.dim() < 2 ? Note("matmul", at::matmul(h, h.exp()))
                           : Note("matmul", at::matmul(h, h.transpose(-1, -2)));
      case 11: return Note("bias", h + Weight({last}));
      case 12:
        return may_write ? Note("bias_", h.add_(Weight({last}))) : Note("sigmoid", at::sigmoid(h));
      case 13: return may_write ? Note("mul_", h.mul_(0.5)) : Note("exp", (h * 0.1).exp());
      case 14: return may_write ? Note("tanh_", h.tanh_()) : Note("tanh", h.tanh());
      case 15:
      case 16: return Note("transpose", h.transpose(Draw(h.dim()), Draw(h.dim())));
      case 17: {
        const int64_t dim = Draw(h.dim());
        return Note("slice",
                    h.slice(dim, h.size(dim) > 1 ? Draw(2) : 0, std::nullopt, 1 + Draw(2)));
      }
      case 18: return Note("select", h.select(Draw(h.dim()), 0));
      case 19: return Note("reshape", h.reshape({h.size(0), -1}));
      default: {
        const Tensors parts = Draw(2) == 0 ? h.unsafe_chunk(2, -1) : h.chunk(2, -1);
        if (may_write) Note("part tanh_", parts.front().tanh_());
        return Note("part", parts.back());
      }
    }
  }

  const uint32_t seed_;
  std::mt19937 random_;
  Tensors weights_;
  size_t num_used_ = 0;
  std::vector<std::string> text_;
};

// Where plain autograd refuses a composition, as it does where it modifies what backward needs,
// there is nothing to compare.
TEST(SelectionRandom, AgreesWithPlainAutograd) {
  const int64_t cases = FromEnvironment("LOCKSTEP_SELECTION_CASES", 300);
  const auto first = static_cast<uint32_t>(FromEnvironment("LOCKSTEP_SELECTION_SEED", 1));
  const std::vector<std::vector<std::string>> selections = {
      {"aten::mm", "aten::bmm"},
      {"aten::mm", "aten::bmm", "aten::addmm"},
      {"aten::mm", "aten::bmm", "aten::addmm", "aten::tanh", "aten::mul.Tensor",
       "aten::add.Tensor"}};
  const std::vector<std::vector<int64_t>> shapes = {{4}, {3, 4}, {2, 3, 4}, {2, 1, 3, 4}};
  int64_t compared = 0, modified = 0;
  for (uint32_t seed = first; compared < cases; ++seed) {
    at::manual_seed(seed);
    Composition composition(seed);
    const auto f = [&](const at::Tensor& in) {
      const at::Tensor y = composition(in);
      if (seed % 4 != 0) return y;
      const at::Tensor slope = torch::autograd::grad({(y * y).sum()}, {in}, {}, true,
                                                     /*create_graph=*/seed % 8 == 0)[0];
      return y.sum() * at::tanh(slope);
    };
    const at::Tensor base = Random(shapes[seed % shapes.size()]);
    // A slice with gaps, or a transposed tensor, is an input too.
    const at::Tensor x = (seed % 3 == 0   ? base.slice(-1, 0, std::nullopt, 2)
                          : seed % 3 == 1 ? base.transpose(0, -1)
                                          : base);
    Tensors expected;
    Tensors leaves;
    try {
      const at::Tensor y = f(x);
      leaves = composition.weights();
      leaves.push_back(base);
      expected = GradientsOf(y, leaves);
    } catch (const c10::Error&) {
      continue;
    }
    ++compared;
    const Checkpoint checkpoint({.early_stop = seed % 5 < 3,
                                 .save = Selection::Of(selections[seed / 7 % selections.size()])});

    std::string message = MessageOf([&] {
      const at::Tensor y = Call(checkpoint, f, x);
      for (const bool retain_graph : {true, false}) {
        const Tensors gradients = GradientsOf(y, leaves, retain_graph);
        for (size_t i = 0; i < leaves.size(); ++i) {
          TORCH_CHECK(gradients[i].defined() == expected[i].defined(), "gradient ", i,
                      " is not there");
          TORCH_CHECK(!expected[i].defined() ||
                          at::allclose(gradients[i], expected[i], 1e-10, 1e-12, /*equal_nan=*/true),
                      "gradient ", i, " differs");
        }
      }
    });
    modified += checkpoint.stats().modified_results;
    EXPECT_EQ(message, "no error") << "seed " << seed << ": " << composition.ToString();
  }
  std::printf("%lld compositions; %lld kept results were modified and computed again\n",
              static_cast<long long>(compared), static_cast<long long>(modified));
  EXPECT_GT(modified, cases / 20);
}

}  // namespace
}  // namespace lockstep::checkpoint
