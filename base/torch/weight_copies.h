// Keeps copies of weights in another form, such as float8, until the weights change.
//
// The failure this prevents: a layer that casts its weight in each call. With gradient accumulation
// and recomputed regions the same numbers are cast again and again between two steps of the
// optimizer.
//
//    if (const auto kept = FindCopy(weight, kForm)) return *kept;
//    std::vector<at::Tensor> copy = Cast(weight);
//    KeepCopy(weight, kForm, copy);
//
// A copy is found only while the weight has the same memory, shape and version. A write in place
// raises the version, as autograd sees it. Aliases that share the version find the same copy.
// libtorch's fused optimizers do not raise it; programs with this library make them.
//
// KeepCopy frees the copies that are out of date when it finds that its weight has changed. Those
// of weights that are gone are freed within the next calls of KeepCopy. ForgetCopiesOf frees those
// of one storage: fully_shard calls it when it takes the weights' memory away.
//
// A weight may have no memory of its own for a while, and be known by a copy alone: see GiveCopy.
//
// Tensors can share memory without sharing a version, as x and x.data() do: see CountWritesThrough.
//
// Code that writes to a weight past its version must call ForgetAllCopies: through a raw pointer,
// or by the replay of a CUDA graph. While a graph is recorded, no copy from before may be read:
// see WithoutCopiesFromBefore.
//
// Thread-safe. A copy on a GPU is found on the stream that made it.

#ifndef LOCKSTEP_BASE_TORCH_WEIGHT_COPIES_H_
#define LOCKSTEP_BASE_TORCH_WEIGHT_COPIES_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "ATen/core/TensorBody.h"
#include "c10/core/Storage.h"

namespace lockstep::base {

using WeightCopy = std::vector<at::Tensor>;

// Returns the copy of that form. Returns nothing if it does not exist, or if the weight has changed
// since.
std::optional<WeightCopy> FindCopy(const at::Tensor& weight, int64_t form);

// Returns a copy of that form which GiveCopy has kept, and nothing else.
std::optional<WeightCopy> FindGivenCopy(const at::Tensor& weight, int64_t form);

// Keeps a copy of a weight, in place of an older one of that form. Does nothing for results
// of other operators, which are not weights, and for tensors of inference mode, which have no
// version.
void KeepCopy(const at::Tensor& weight, int64_t form, WeightCopy copy);

// Keeps a copy that takes the place of the weight's values, which are not there: bytes that
// fully_shard has gathered. FindCopy returns it on every stream, until ForgetCopiesOf.
// ForgetAllCopies leaves it, and BytesOfCopies does not count it. `copy` may be memory that the
// caller frees after ForgetCopiesOf.
void GiveCopy(const at::Tensor& weight, int64_t form, WeightCopy copy);

// Makes writes that raise the version of `alias` count as changes of all weights in `storage`. For
// tensors with a version of their own that share the storage's memory.
void CountWritesThrough(const at::Tensor& alias, const c10::Storage& storage);

// Frees the copies of all weights in a storage, given ones too.
void ForgetCopiesOf(const c10::Storage& storage);
void ForgetAllCopies();

// Returns the bytes of all copies, out of date or not.
int64_t BytesOfCopies();

// Lives while a graph is recorded. The graph then makes its own copies, and each replay makes them
// again. No call finds these copies after the recording.
class WithoutCopiesFromBefore {
 public:
  WithoutCopiesFromBefore() { ForgetAllCopies(); }
  WithoutCopiesFromBefore(const WithoutCopiesFromBefore&) = delete;
  WithoutCopiesFromBefore& operator=(const WithoutCopiesFromBefore&) = delete;
  ~WithoutCopiesFromBefore() { ForgetAllCopies(); }
};

}  // namespace lockstep::base

#endif  // LOCKSTEP_BASE_TORCH_WEIGHT_COPIES_H_
