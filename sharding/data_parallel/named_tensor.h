// A parameter or buffer, with the name that messages use.
#ifndef LOCKSTEP_SHARDING_DATA_PARALLEL_NAMED_TENSOR_H_
#define LOCKSTEP_SHARDING_DATA_PARALLEL_NAMED_TENSOR_H_

#include <string>

#include "ATen/core/TensorBody.h"

namespace lockstep::sharding {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

}  // namespace lockstep::sharding

#endif  // LOCKSTEP_SHARDING_DATA_PARALLEL_NAMED_TENSOR_H_
