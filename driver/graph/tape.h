// Operators that were recorded once and run again, on the same memory, on a CPU.
//
//    Tape tape;
//    {
//      Recording recording(&tape);  // this thread's operators run as ever, and are noted
//      Step();                      // for example forward, backward and optimizer
//      recording.Finish();
//    }
//    if (tape.Mismatch().empty()) tape.Replay();  // the step again: no autograd, no Lua
//
// If Mismatch() is not empty, run the step itself, or record it again on a new tape. If Finish()
// throws, the step has run, and its tape must not be replayed.
//
// A tape keeps addresses, not values, as a CUDA graph does. Copy new inputs into the tensors that
// the step read, and read its results where they were. Replay() computes the same bits as the step
// would, because it calls the same kernels with the same arguments in the same order. It draws the
// random numbers that the step would draw, and counts the writes (Tensor::_version) into what it
// changes. Leaves get their gradients: each replay writes into the same gradient tensors.
//
// Every byte that a recorded operator reads is from before the recording, or was written by a
// recorded operator, or is one constant number. A step that breaks this rule cannot be recorded:
// see recording.h.
//
// Thread: one at a time.

#ifndef LOCKSTEP_DRIVER_GRAPH_TAPE_H_
#define LOCKSTEP_DRIVER_GRAPH_TAPE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/ivalue.h"

namespace lockstep::driver {

class Tape {
 public:
  struct Stats {
    int64_t operators = 0;   // that a replay calls
    int64_t in_place = 0;    // of these, operators that allocate no result
    int64_t allocating = 0;  // the others; their results' new memory takes the old one's place
    int64_t bytes = 0;       // of memory that the recording made and the tape keeps
  };

  Tape() = default;
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  // Returns why the tape no longer does what the step would do, or "". Gradients must be absent or
  // present as they were when the step began, and tensors must lie where they lay, in one shape.
  std::string Mismatch() const;

  // Runs the recorded operators. Throws c10::Error if one of them fails or returns another shape;
  // what ran before it stays done, as in a step that fails.
  void Replay();

  const Stats& stats() const { return stats_; }

 private:
  friend class Recording;

  // A result that is a tensor of its own: its position among the results' tensors, and the tensor
  // that other operators of the tape read.
  struct Result {
    size_t index;
    at::Tensor tensor;
  };
  struct Operation {
    c10::OperatorHandle op;
    std::vector<c10::IValue> arguments;  // tensors are aliases without history
    std::vector<Result> results;
    bool grad_mode;
  };
  // A tensor with gradients from before the recording.
  struct Leaf {
    at::Tensor tensor;
    at::Tensor grad_before, grad_after;
    bool needs_grad_before = true;  // false: the step replaced the gradient before reading it
  };
  // A tensor from before the recording.
  struct External {
    at::Tensor tensor;
    const c10::StorageImpl* storage;
    const void* data;
    bool requires_grad;
    at::Tensor layout;  // its alias, with the shape, strides and offset that were recorded
    bool is_written = false;
  };

  void Run(const Operation& operation);

  std::vector<Operation> operations_;
  std::vector<Leaf> leaves_;
  std::vector<External> externals_;
  std::vector<c10::IValue> stack_;  // of Run, kept for its memory
  Stats stats_;
};

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_GRAPH_TAPE_H_
