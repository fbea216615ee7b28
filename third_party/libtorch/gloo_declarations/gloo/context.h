// What torch/csrc/distributed/c10d/ProcessGroupGloo.hpp names of Gloo's Context. The code is in
// libtorch_cpu.so; these declarations only let the header compile. Nothing of ours constructs one.
#pragma once

#include <chrono>

namespace gloo {

class Context {
 public:
  virtual ~Context();
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo
