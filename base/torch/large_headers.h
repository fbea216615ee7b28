// libtorch's headers that are large and that many sources need. precompiled.bzl compiles them once.

#ifndef LOCKSTEP_BASE_TORCH_LARGE_HEADERS_H_
#define LOCKSTEP_BASE_TORCH_LARGE_HEADERS_H_

// clang cannot read headers that gcc has compiled. To find sources that lack an include of their
// own, leave these out: bazel build --copt=-DLOCKSTEP_PLAIN_HEADERS //...
#if !defined(__clang__) && !defined(LOCKSTEP_PLAIN_HEADERS)

#include "ATen/Parallel.h"
#include "ATen/TensorOperators.h"
#include "ATen/core/TensorBody.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "c10/util/Exception.h"
#include "torch/csrc/autograd/autograd.h"
#include "torch/csrc/autograd/custom_function.h"
#include "torch/csrc/autograd/engine.h"
#include "torch/csrc/autograd/saved_variable.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"
#include "torch/csrc/distributed/c10d/Store.hpp"

#endif

#endif  // LOCKSTEP_BASE_TORCH_LARGE_HEADERS_H_
