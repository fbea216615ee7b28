// Declares the part of Gloo's Context that torch/csrc/distributed/c10d/ProcessGroupGloo.hpp uses.
// The code is in libtorch_cpu.so. These declarations only let the header compile; nothing of ours
// constructs one.
#pragma once

#include <chrono>

namespace gloo {

class Context {
 public:
  virtual ~Context();
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo
