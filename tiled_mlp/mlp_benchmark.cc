// bazel build -c opt //tiled_mlp:mlp_benchmark
// bazel-bin/tiled_mlp/mlp_benchmark [tokens hidden intermediate tiles rounds]
// bazel-bin/tiled_mlp/mlp_benchmark --loss [tokens hidden vocabulary rounds]
//
// Measures a SwiGLU MLP's forward and backward: tiled as a function (RunTiled) and built in
// (RunTiledMlp) against untiled; or the tiled cross entropy against the plain one. The contenders
// take turns, so that noise of the machine affects all. Time is CPU time of the one thread. The
// output is the median over rounds of the ratio to the first. Memory is the peak of allocated bytes
// during a pass beyond those before it, weight gradients included.
//
// mlp_benchmark_peer.py compares it with DeepSpeed's and Liger's TiledMLP in Python.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "tests/support/cpu_memory.h"
#include "tiled_mlp/cross_entropy.h"
#include "tiled_mlp/mlp.h"
#include "tiled_mlp/tiled.h"
#include "torch/csrc/autograd/autograd.h"

namespace lockstep::tiled_mlp {
namespace {

struct Contender {
  std::string name;
  std::function<std::vector<at::Tensor>()> run;  // forward and backward; the gradients
  std::vector<double> seconds = {};
  int64_t bytes = 0;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void Compare(std::vector<Contender>& contenders, int rounds, double tolerance) {
  std::vector<at::Tensor> expected;
  for (int round = -1; round < rounds; ++round) {
    for (Contender& contender : contenders) {
      std::vector<at::Tensor> gradients;
      const std::clock_t start = std::clock();
      contender.bytes = tests::MemoryOf([&] { gradients = contender.run(); }).peak;
      const double time = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
      if (round >= 0) {
        contender.seconds.push_back(time);
        continue;
      }
      if (expected.empty()) expected = gradients;  // the first turn warms up, and checks
      for (size_t i = 0; i < expected.size(); ++i) {
        const double error =
            ((gradients[i] - expected[i]).norm() / expected[i].norm()).item<double>();
        if (error > tolerance) {
          std::printf("%s: gradient %zu differs by %g\n", contender.name.c_str(), i, error);
          std::exit(1);
        }
      }
    }
  }
  for (const Contender& contender : contenders) {
    std::vector<double> ratios;
    for (size_t i = 0; i < contender.seconds.size(); ++i)
      ratios.push_back(contender.seconds[i] / contenders[0].seconds[i]);
    std::printf("%-22s %8.3f s  time %5.3f of the first  %8.1f MiB, %5.3f of the first\n",
                contender.name.c_str(), Median(contender.seconds), Median(ratios),
                static_cast<double>(contender.bytes) / (1 << 20),
                static_cast<double>(contender.bytes) / static_cast<double>(contenders[0].bytes));
  }
}

at::Tensor Weight(int64_t out, int64_t in) {
  return at::randn({out, in}).div_(std::sqrt(static_cast<float>(in))).requires_grad_();
}

void CompareMlps(int64_t tokens, int64_t hidden, int64_t wide, int64_t tiles, int rounds) {
  at::manual_seed(1);
  const at::Tensor x = at::randn({tokens, hidden}).requires_grad_();
  const std::vector<at::Tensor> w = {Weight(wide, hidden), Weight(wide, hidden),
                                     Weight(hidden, wide)};
  const at::Tensor dy = at::randn({tokens, hidden});
  const TileBody body = [](const at::Tensor& tile, at::TensorList w) {
    return std::vector{at::linear(at::silu(at::linear(tile, w[0])) * at::linear(tile, w[1]), w[2])};
  };
  const auto backward = [&](const at::Tensor& y) {
    return torch::autograd::grad({y}, {x, w[0], w[1], w[2]}, {dy});
  };
  const TileOptions options = {.size = {.num_tiles = tiles}};
  const MlpWeights weights = {.gate = w[0], .up = w[1], .down = w[2]};
  std::printf("%ld tokens, hidden %ld, intermediate %ld, %ld tiles, float32\n", tokens, hidden,
              wide, tiles);
  std::vector<Contender> contenders = {
      {"untiled", [&] { return backward(body(x, w)[0]); }},
      {"RunTiled", [&] { return backward(RunTiled(body, x, w, options)[0]); }},
      {"RunTiledMlp",
       [&] { return backward(RunTiledMlp(x, weights, Activation::kSilu, options)); }}};
  Compare(contenders, rounds, 1e-4);
}

void CompareLosses(int64_t tokens, int64_t hidden, int64_t vocabulary, int rounds) {
  at::manual_seed(1);
  const at::Tensor x = at::randn({tokens, hidden}).requires_grad_();
  const at::Tensor weight = Weight(vocabulary, hidden);
  const at::Tensor labels = at::randint(vocabulary, {tokens}, at::kLong);
  const auto backward = [&](const at::Tensor& loss) {
    return torch::autograd::grad({loss}, {x, weight});
  };
  std::printf("%ld tokens, hidden %ld, vocabulary %ld, float32\n", tokens, hidden, vocabulary);
  std::vector<Contender> contenders = {
      {"plain", [&] { return backward(at::cross_entropy_loss(at::linear(x, weight), labels)); }},
      {"TiledCrossEntropy",
       [&] { return backward(TiledCrossEntropy(x, weight, labels, {}).loss); }}};
  Compare(contenders, rounds, 1e-4);
}

}  // namespace
}  // namespace lockstep::tiled_mlp

int main(int argc, char** argv) {
  at::set_num_threads(1);
  const bool loss = argc > 1 && std::strcmp(argv[1], "--loss") == 0;
  std::vector<int64_t> n = loss ? std::vector<int64_t>{2048, 512, 32768, 5}
                                : std::vector<int64_t>{4096, 1024, 2816, 4, 5};
  for (int i = loss ? 2 : 1, k = 0; i < argc && k < static_cast<int>(n.size()); ++i, ++k)
    n[static_cast<size_t>(k)] = std::max(1LL, std::atoll(argv[i]));
  if (loss) {
    lockstep::tiled_mlp::CompareLosses(n[0], n[1], n[2], static_cast<int>(n[3]));
  } else {
    lockstep::tiled_mlp::CompareMlps(n[0], n[1], n[2], n[3], static_cast<int>(n[4]));
  }
  return 0;
}
