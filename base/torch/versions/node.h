// The owner of a node of autograd. Up to libtorch 2.12 a std::shared_ptr holds it, with a deleter
// of autograd's; from 2.13 on a c10::intrusive_ptr does.
//
//    const auto node = base::MakeNode<SquareBackward>(x);
//    torch::autograd::set_history(y, node);
//
// A node's own owner is node.getptr(), in all versions. SavedVariable::unpack takes it.

#ifndef LOCKSTEP_BASE_TORCH_VERSIONS_NODE_H_
#define LOCKSTEP_BASE_TORCH_VERSIONS_NODE_H_

#include <memory>
#include <utility>

#include "c10/util/intrusive_ptr.h"
#include "torch/csrc/autograd/function.h"
#include "torch/headeronly/version.h"

namespace lockstep::base {

#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13

template <typename T>
using NodePointer = std::shared_ptr<T>;

// Returns a new T, a class that derives from torch::autograd::Node. The deleter takes a long graph
// apart without recursion.
template <typename T, typename... Args>
NodePointer<T> MakeNode(Args&&... args) {
  return NodePointer<T>(new T(std::forward<Args>(args)...), torch::autograd::deleteNode);
}

#else

template <typename T>
using NodePointer = c10::intrusive_ptr<T>;

// Returns a new T, a class that derives from torch::autograd::Node.
template <typename T, typename... Args>
NodePointer<T> MakeNode(Args&&... args) {
  return c10::make_intrusive<T>(std::forward<Args>(args)...);
}

#endif

}  // namespace lockstep::base

#endif  // LOCKSTEP_BASE_TORCH_VERSIONS_NODE_H_
