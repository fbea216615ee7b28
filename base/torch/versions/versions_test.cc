#include <cstdint>
#include <utility>
#include <vector>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/equal.h"
#include "ATen/ops/full.h"
#include "ATen/ops/zeros.h"
#include "base/torch/versions/collectives.h"
#include "base/torch/versions/found.h"
#include "base/torch/versions/node.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/csrc/autograd/functions/utils.h"
#include "torch/csrc/autograd/saved_variable.h"
#include "torch/csrc/autograd/variable.h"
#include "torch/csrc/distributed/c10d/HashStore.hpp"
#include "torch/csrc/distributed/c10d/ProcessGroupGloo.hpp"
#include "torch/headeronly/version.h"

namespace lockstep::base {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::autograd::variable_list;

// The gradient of x * x, which saves its own output: only an owner of the node can read it again.
struct SquareBackward : public torch::autograd::Node {
  explicit SquareBackward(bool* gone) : gone(gone) {}
  ~SquareBackward() override { *gone = true; }
  variable_list apply(variable_list&& gradients) override {
    return {gradients[0].mul(2).mul(y.unpack(getptr()).sqrt())};
  }

  bool* gone;
  torch::autograd::SavedVariable y;
};

TEST(Node, ReadsItsOwnOutputAndGoesWithTheGraph) {
  bool gone = false;
  const at::Tensor x = at::full({2}, 3.0).requires_grad_();
  {
    const at::Tensor y = [&x] {
      const at::NoGradGuard no_grad;
      return x.mul(x);
    }();
    NodePointer<SquareBackward> node = MakeNode<SquareBackward>(&gone);
    node->set_next_edges(torch::autograd::collect_next_edges(x));
    torch::autograd::set_history(y, node);
    node->y = torch::autograd::SavedVariable(y, /*is_output=*/true);
    node = nullptr;

    torch::autograd::backward({y.sum()});

    EXPECT_FALSE(gone);
  }
  EXPECT_TRUE(gone);
  EXPECT_TRUE(at::equal(x.grad(), at::full({2}, 6.0)));
}

// Destructors that call each other would need more stack than there is.
TEST(Node, ALongGraphIsTakenApart) {
  bool gone = false;
  NodePointer<torch::autograd::Node> last = MakeNode<SquareBackward>(&gone);
  for (int i = 0; i < 300'000; ++i) {
    NodePointer<torch::autograd::Node> next = MakeNode<SquareBackward>(&gone);
    next->add_next_edge({std::move(last), 0});
    last = std::move(next);
  }

  last = nullptr;

  EXPECT_TRUE(gone);
}

// One rank: functional_test.cc compares what several receive.
TEST(Collectives, FillTheirFirstTensor) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto options = c10d::ProcessGroupGloo::Options::create();
  options->devices = {c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")};
  const auto group = c10::make_intrusive<c10d::ProcessGroup>(store, 0, 1);
  group->setBackend(c10::kCPU, c10d::ProcessGroup::BackendType::GLOO,
                    c10::make_intrusive<c10d::ProcessGroupGloo>(store, 0, 1, options));
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
  at::Tensor given = at::full({2}, 3.0);
  at::Tensor gathered = at::zeros({2}), scattered = at::zeros({2}), taken = at::zeros({2});
  std::vector<int64_t> equal;

  AllGatherSingle(*group, gathered, given)->wait();
  ReduceScatterSingle(*group, scattered, given)->wait();
  AllToAllSingle(*group, taken, given, equal, equal)->wait();

  EXPECT_TRUE(at::equal(gathered, given));
  EXPECT_TRUE(at::equal(scattered, given));
  EXPECT_TRUE(at::equal(taken, given));
}

TEST(Found, IsTheTorchThatWasBuiltFor) {
  EXPECT_EQ(TorchBuiltFor().Text(), TORCH_VERSION);
  EXPECT_EQ(TorchFound().Text(), TORCH_VERSION);
}

TEST(Mismatch, IsBetweenMinorVersions) {
  EXPECT_EQ(TorchMismatch({2, 11, 0}, {2, 11, 0}), "");
  EXPECT_EQ(TorchMismatch({2, 12, 0}, {2, 12, 1}), "");
  const auto names_both =
      AllOf(HasSubstr("built for torch 2.11.0, and found torch 2.15.0"),
            HasSubstr("the Lockstep that was built for torch 2.15, or give this one torch 2.11.0"));
  EXPECT_THAT(TorchMismatch({2, 11, 0}, {2, 15, 0}), names_both);
  EXPECT_NE(TorchMismatch({2, 11, 0}, {3, 11, 0}), "");
}

}  // namespace
}  // namespace lockstep::base
