// Notes the operators of this thread on a tape, while they run. See tape.h for an example.
//
// It stands below autograd in the dispatcher, so it sees the operators of forward, backward and
// optimizer alike. A composite operator is noted as the operators that it calls.
//
// An operator's call throws c10::Error if a tape could not repeat it:
//
//   - An operator returns a number or a truth value, as aten::item does.
//   - It is a collective (c10d).
//   - It takes a sparse or quantized tensor, or one on another device. Meta tensors are allowed.
//   - It resizes a tensor, or gives it other memory.
//   - It reads values that no operator computed.
//   - No operator drew the random numbers, or the state of a generator was set.
//
// Finish() throws too after an operator's error that the program caught: which way it went on may
// depend on values.
//
// While it runs, the recording keeps all memory that operators return. A dispatch key that tensors
// never have leads to it (DispatchKey::Fake): other threads, and all threads at other times, do not
// pass it.
//
// Thread: the one that made it. Backward must run on the calling thread, too.

#ifndef LOCKSTEP_DRIVER_GRAPH_RECORDING_H_
#define LOCKSTEP_DRIVER_GRAPH_RECORDING_H_

#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "ATen/core/Generator.h"
#include "ATen/core/TensorBody.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "c10/core/Storage.h"
#include "c10/core/impl/LocalDispatchKeySet.h"
#include "driver/graph/tape.h"

namespace lockstep::driver {

class Recording {
 public:
  // `tape` must be empty and outlive the recording. Throws c10::Error if this thread records.
  explicit Recording(Tape* tape);
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  ~Recording();

  // Completes the tape. Throws c10::Error if the step did what no tape can repeat.
  void Finish();

  // Notes that the program is about to read, or to replace, the gradient of a tensor. Does nothing
  // while this thread does not record. AccumulateGrad needs no such note.
  static void NoteGradRead(const at::Tensor& tensor);
  static void NoteGradReplaced(const at::Tensor& tensor);

  // Private to recording.cc: an operator on its way, and new memory.
  void Call(const c10::OperatorHandle& op, c10::DispatchKeySet below,
            std::vector<c10::IValue>* stack);
  void NoteAllocated(const void* data) { allocated_.insert(data); }

 private:
  // Where the values of a memory come from.
  enum class Origin { kBefore, kOperator, kConstant, kNothing };
  struct Memory {
    c10::Storage storage;  // keeps the address from being reused
    Origin origin;
  };
  struct Drawn {
    at::Generator generator;
    std::string state;  // after the last recorded draw
  };

  void CallWhole(const c10::OperatorHandle& op, c10::DispatchKeySet below,
                 std::vector<c10::IValue>* stack);
  void CheckArgument(const c10::OperatorHandle& op, const at::Tensor& tensor) const;
  void NoteRead(const c10::OperatorHandle& op, const at::Tensor& tensor, bool is_written);
  void NoteLeaf(const at::Tensor& tensor, bool needs_grad_before);
  void NoteResults(const c10::OperatorHandle& op, const std::vector<c10::IValue>& arguments,
                   const std::vector<c10::IValue>& stack, bool is_new_and_empty,
                   Tape::Operation* operation);
  void RestoreConstant(const at::Tensor& tensor);
  Memory& MemoryOf(const at::Tensor& tensor);
  void CheckGenerators(const std::string& when);
  void NoteDraws();

  Tape* const tape_;
  std::unordered_map<const c10::StorageImpl*, Memory> memories_;
  std::unordered_map<const c10::TensorImpl*, size_t> externals_;  // positions in the tape
  std::unordered_map<const c10::TensorImpl*, size_t> leaves_;
  std::unordered_set<const void*> allocated_;  // addresses, since the recording began
  std::vector<Drawn> generators_;
  std::string refusal_;  // the first error of an operator, which the program may have caught
  c10::impl::IncludeDispatchKeyGuard include_;
};

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_GRAPH_RECORDING_H_
