#include "mimo/testing/random_topology.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"

namespace lockstep::mimo {
namespace {

int64_t SizeOf(const Module& module) { return module.dp * module.tp * module.cp * module.pp; }

std::string RandomOrder(std::mt19937& random) {
  std::vector<std::string> axes = {"tp", "cp", "dp", "pp"};
  std::shuffle(axes.begin(), axes.end(), random);
  return absl::StrJoin(axes, "-");
}

// Returns a module on as many ranks as `other`, with random sizes of its axes.
Module OnTheRanksOf(std::mt19937& random, const Module& other) {
  std::vector<int64_t> sizes = {other.dp, other.tp, other.cp, other.pp};
  std::shuffle(sizes.begin(), sizes.end(), random);
  return {.name = "", .dp = sizes[0], .tp = sizes[1], .cp = sizes[2], .pp = sizes[3]};
}

std::vector<Edge> RandomEdges(std::mt19937& random, const std::vector<Module>& modules) {
  std::vector<size_t> order(modules.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::shuffle(order.begin(), order.end(), random);
  std::vector<Edge> edges;
  for (size_t i = 0; i < order.size(); ++i) {
    for (size_t j = i + 1; j < order.size(); ++j) {
      if (Draw(random, 0, 1) == 0) continue;
      edges.push_back({modules[order[i]].name, modules[order[j]].name});
    }
  }
  return edges;
}

}  // namespace

int64_t Draw(std::mt19937& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

Topology RandomTopology(std::mt19937& random) {
  std::vector<Module> modules;
  const int64_t count = Draw(random, 1, 4);
  int64_t world_size = 0;
  for (int64_t m = 0; m < count; ++m) {
    Module module;
    if (m > 0 && Draw(random, 0, 3) == 0) {
      const Module& other = modules[static_cast<size_t>(Draw(random, 0, m - 1))];
      module = OnTheRanksOf(random, other);
      module.first_rank = other.first_rank;
    } else {
      module.dp = Draw(random, 1, 4);
      module.tp = Draw(random, 1, 3);
      module.cp = Draw(random, 1, 2);
      module.pp = Draw(random, 1, 3);
      module.first_rank = world_size;
      world_size += SizeOf(module);
    }
    if (Draw(random, 0, 1) == 0) module.order = RandomOrder(random);
    module.name = absl::StrCat("encoder", m);
    modules.push_back(module);
  }
  modules[static_cast<size_t>(Draw(random, 0, count - 1))].name = kLanguage;

  if (Draw(random, 0, 1) == 0) {
    std::vector<int32_t> shuffled(static_cast<size_t>(world_size));
    std::iota(shuffled.begin(), shuffled.end(), 0);
    std::shuffle(shuffled.begin(), shuffled.end(), random);
    for (Module& module : modules) {
      const auto first = shuffled.begin() + module.first_rank;
      module.ranks.assign(first, first + SizeOf(module));
      std::shuffle(module.ranks.begin(), module.ranks.end(), random);
      module.first_rank = 0;
    }
  }
  const bool has_edges = Draw(random, 0, 1) == 0;
  absl::StatusOr<Topology> topology =
      has_edges ? Topology::Make(world_size, modules, RandomEdges(random, modules))
                : Topology::Make(world_size, modules);
  EXPECT_TRUE(topology.ok()) << topology.status();
  return *topology;
}

Ownership RandomOwnership(std::mt19937& random, int64_t num_samples) {
  std::vector<int64_t> items;
  std::vector<int64_t> tokens;
  for (int64_t s = 0; s < num_samples; ++s) {
    items.push_back(Draw(random, 0, 3));
    for (int64_t i = 0; i < items.back(); ++i) tokens.push_back(Draw(random, 0, 5));
  }
  absl::StatusOr<Ownership> ownership = MakeOwnership(items, tokens);
  EXPECT_TRUE(ownership.ok()) << ownership.status();
  return *ownership;
}

}  // namespace lockstep::mimo
