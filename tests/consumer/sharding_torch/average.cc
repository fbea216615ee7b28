// Another project's program: an all-reduce that a gradient passes through, with
// @lockstep//sharding:torch, in a group of one rank.

#include <chrono>
#include <cstdio>

#include "ATen/core/TensorBody.h"
#include "ATen/ops/ones.h"
#include "c10/util/intrusive_ptr.h"
#include "lockstep/sharding/functional/functional.h"
#include "torch/csrc/distributed/c10d/HashStore.hpp"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"
#include "torch/csrc/distributed/c10d/ProcessGroupGloo.hpp"

int main() {
  namespace functional = lockstep::sharding::functional;
  const auto store = c10::make_intrusive<c10d::HashStore>();
  auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(45));
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  const auto group = c10::make_intrusive<c10d::ProcessGroup>(store, 0, 1);
  group->setBackend(c10::kCPU, c10d::ProcessGroup::BackendType::GLOO,
                    c10::make_intrusive<c10d::ProcessGroupGloo>(store, 0, 1, options));
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
  const at::Tensor x = at::ones({3}).requires_grad_();

  const at::Tensor y = functional::AllReduce(x * 2, group, functional::Reduction::kMean);
  y.sum().backward();

  std::printf("mean %g, gradient %g\n", y[0].item<double>(), x.grad()[0].item<double>());
  return 0;
}
