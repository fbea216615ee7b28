#include "sharding/testing/fixture.h"

#include <numeric>
#include <utility>

#include "ATen/Functions.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "sharding/agreement/c10d_collective.h"
#include "sharding/agreement/gather_texts.h"
#include "sharding/agreement/socket_collective.h"

namespace lockstep::sharding {

World::World(const tests::Rank& rank) : rank_(rank), gloo_(tests::MeetOverGloo(rank)) {}

c10::intrusive_ptr<c10d::ProcessGroup> World::MakeGroup(const std::vector<int>& ranks,
                                                        bool strict) {
  return NewGlooGroup(gloo_, absl::StrCat("group ", made_++, " of ", ranks[0]), ranks, strict);
}

World::Groups World::Make(int replicas, bool strict) {
  Groups groups;
  std::vector<int> all(static_cast<size_t>(size()));
  std::iota(all.begin(), all.end(), 0);
  groups.shard.all = MakeGroup(all, strict);
  const int copies = size() / replicas;  // ranks that share one copy
  for (int first = 0; first < size(); first += copies) {
    const std::vector<int> ranks(all.begin() + first, all.begin() + first + copies);
    auto gather = MakeGroup(ranks, strict), reduce = MakeGroup(ranks, strict);
    if (rank() < first || rank() >= first + copies) continue;
    groups.shard.gather = gather;
    groups.shard.reduce = reduce;
  }
  for (int offset = 0; offset < copies && replicas > 1; ++offset) {
    std::vector<int> ranks;
    for (int r = offset; r < size(); r += copies) ranks.push_back(r);
    auto group = MakeGroup(ranks, strict);
    if (group != nullptr) groups.shard.replicas = group;
  }
  auto control = MakeGroup(all, /*strict=*/false);
  if (control == nullptr) return groups;
  groups.control = std::make_shared<C10dCollective>(control);
  if (!strict) groups.control = Connect(*groups.control);
  return groups;
}

std::shared_ptr<Collective> Connect(Collective& others) {
  absl::StatusOr<std::unique_ptr<SocketCollective>> sockets = SocketCollective::Connect(
      others.rank(), others.size(), "127.0.0.1",
      [&](const std::string& own,
          const std::vector<int>& positions) -> absl::StatusOr<std::vector<std::string>> {
        const auto all = GatherTexts(others, own);
        if (!all.ok()) return all.status();
        std::vector<std::string> asked;
        for (const int position : positions) asked.push_back((*all)[static_cast<size_t>(position)]);
        return asked;
      },
      absl::Seconds(60));
  TORCH_CHECK(sockets.ok(), std::string(sockets.status().message()));
  return *std::move(sockets);
}

Net::Net(int64_t num_layers, uint64_t seed, int64_t hidden) {
  at::manual_seed(seed);
  const auto random = [](std::vector<int64_t> sizes) {
    return (at::rand(sizes, at::kDouble) - 0.5).set_requires_grad(true);
  };
  embedding = random({11, hidden});
  head = random({3, hidden});
  for (int64_t i = 0; i < num_layers; ++i)
    layers.push_back({random({hidden, hidden}), random({hidden}), random({})});
}

std::vector<UnitParameters> Net::Units(bool root_only) const {
  std::vector<UnitParameters> units = {{"", {{"embedding", embedding}, {"head", head}}}};
  for (size_t i = 0; i < layers.size(); ++i) {
    const std::string name = absl::StrCat("layers.", i);
    if (!root_only) units.push_back({name, {}});
    auto& parameters = units.back().parameters;
    parameters.push_back({name + ".weight", layers[i].weight});
    parameters.push_back({name + ".bias", layers[i].bias});
    parameters.push_back({name + ".scale", layers[i].scale});
  }
  return units;
}

std::vector<NamedTensor> Net::Parameters() const { return Units(/*root_only=*/true)[0].parameters; }

at::Tensor Net::Compute(size_t layer, const at::Tensor& x) const {
  const Layer& l = layers[layer];
  return x + at::tanh(at::linear(x, l.weight, l.bias)) * l.scale;
}

at::Tensor Net::Call(FullyShard* model, size_t layer, const at::Tensor& x) const {
  if (model == nullptr) return Compute(layer, x);
  model->BeginForward(layer + 1, {x});
  const at::Tensor y = Compute(layer, x);
  model->EndForward(layer + 1, {y});
  return y;
}

at::Tensor Net::Loss(FullyShard* model, const at::Tensor& tokens,
                     const std::vector<size_t>& calls) const {
  if (model != nullptr) model->BeginForward(0, {});
  at::Tensor x = at::embedding(embedding, tokens);
  for (const size_t layer : calls) x = Call(model, layer, x);
  const at::Tensor loss = at::linear(x, head).pow(2).mean();
  if (model != nullptr) model->EndForward(0, {loss});
  return loss;
}

at::Tensor Tokens(int rank, int step) {
  return (at::arange(5, at::kLong) * (rank + 2) + step).remainder(11);
}

std::string Message(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

}  // namespace lockstep::sharding
