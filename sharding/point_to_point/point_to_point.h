// Sends a tensor from one rank to another, and checks that it fits.
//
// The failure this prevents: send and recv of c10d move bytes. If the receiving tensor is smaller
// than the message, Gloo ends the process. If it is larger, its last elements keep their old values
// and there is no error. Here a header with dtype, shape and device travels ahead of the bytes:
//
//    // rank 0
//    SendTensor(x, {.group = group, .position = 1, .rank = 1}, "train.cc:9");
//    // rank 1: y has the dtype, the shape and the kind of device of x
//    ReceiveTensor(y, {.group = group, .position = 0, .rank = 0});
//
// When to use it: for tensors that a program sends now and then. A header is a message of 512
// bytes. No gradient passes; collectives with gradients are in sharding/functional/functional.h. A
// function that backward runs again may not call them (base/torch/runs_again.h).
//
// Thread: the thread that runs the group's collectives.

#ifndef LOCKSTEP_SHARDING_POINT_TO_POINT_POINT_TO_POINT_H_
#define LOCKSTEP_SHARDING_POINT_TO_POINT_POINT_TO_POINT_H_

#include <string>

#include "ATen/core/TensorBody.h"
#include "c10/util/intrusive_ptr.h"
#include "torch/csrc/distributed/c10d/ProcessGroup.hpp"

namespace lockstep::sharding {

// The rank at the other end.
struct Peer {
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  int position = 0;  // in the group
  int rank = 0;      // in the world, as errors name it
  int tag = 0;       // of the message; the same on both ranks
};

// Sends the values of x, of any dtype and strides. `place` is the program's line of this call:
// errors of the other rank show it. Blocks until the peer has received, so two ranks that both send
// first wait for each other until the group's timeout.
void SendTensor(const at::Tensor& x, const Peer& to, const std::string& place);

// Fills the contiguous tensor x with the values that SendTensor sends on the other rank. Blocks
// until they have arrived.
//
// Throws c10::ValueError if the sent tensor has another dtype, shape or kind of device than x,
// which then keeps its values. If dtype or shape differ, the message has been received all the
// same, so the next one is in order. If the kind of device differs, the values cannot be received:
// the sender waits until the group's timeout.
void ReceiveTensor(const at::Tensor& x, const Peer& from);

}  // namespace lockstep::sharding

#endif  // LOCKSTEP_SHARDING_POINT_TO_POINT_POINT_TO_POINT_H_
