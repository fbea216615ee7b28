#include "kernels/pointwise/fuse.h"

#include "ATen/ExpandUtils.h"
#include "ATen/ScalarOps.h"
#include "c10/util/Exception.h"
#include "kernels/pointwise/cuda/launch.h"
#include "kernels/pointwise/pointwise.h"
#include "kernels/pointwise/program.h"
#include "kernels/pointwise/recording.h"

namespace lockstep::kernels {

using pointwise::ArgumentKind;
using pointwise::Program;
using Tensors = std::vector<at::Tensor>;

// A program for results that are computed over one shape.
struct Part {
  int64_t program;
  std::vector<int32_t> inputs;  // of the recorded program
  std::vector<int32_t> results;
};

struct PointwiseRecordings::Recording {
  Program program;
  std::vector<bool> lacks_dimension;  // for each result
  bool has_reductions = false;
  std::vector<uint64_t> inputs_of_results;
  std::map<std::pair<uint64_t, uint64_t>, Part> parts;  // by their results and row inputs, as bits

  const Part& Find(uint64_t results, uint64_t row_inputs) {
    const auto found = parts.find({results, row_inputs});
    if (found != parts.end()) return found->second;
    Part part;
    Program selected = pointwise::Select(program, results, 0, &part.inputs);
    if (pointwise::HasReductions(selected))
      selected = pointwise::Select(program, results, row_inputs, &part.inputs);
    part.program = pointwise::Register(selected);
    for (size_t i = 0; i < program.results.size(); ++i)
      if ((results >> i & 1) != 0) part.results.push_back(static_cast<int32_t>(i));
    return parts.emplace(std::make_pair(results, row_inputs), std::move(part)).first->second;
  }

  void Run(uint64_t results, const Tensors& inputs, at::ArrayRef<double> numbers, Tensors* to) {
    const Part& part = Find(results, has_reductions ? RowInputs(inputs) : 0);
    Tensors chosen;
    chosen.reserve(part.inputs.size());
    for (const int32_t i : part.inputs) chosen.push_back(inputs[i]);
    Tensors computed = pointwise::Run(part.program, chosen, numbers);
    for (size_t i = 0; i < computed.size(); ++i) {
      const int32_t to_result = part.results[i];
      (*to)[to_result] =
          lacks_dimension[to_result] ? computed[i].squeeze(-1) : std::move(computed[i]);
    }
  }

  // Returns the inputs whose rows have one element. A reduction takes it for the only one of its
  // row, where others are broadcast.
  static uint64_t RowInputs(const Tensors& inputs) {
    uint64_t set = 0;
    for (size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i].dim() == 0 || inputs[i].size(-1) == 1) set |= uint64_t{1} << i;
    return set;
  }
};

namespace {

std::vector<ArgumentKind> KindsOf(const std::vector<PointwiseArgument>& arguments) {
  std::vector<ArgumentKind> kinds;
  for (const PointwiseArgument& argument : arguments) {
    if (const at::Tensor* tensor = std::get_if<at::Tensor>(&argument))
      kinds.push_back({false, tensor->scalar_type(), tensor->dim() > 0});
    else
      kinds.push_back({.is_number = true});
  }
  return kinds;
}

Tensors AsTensors(const std::vector<PointwiseArgument>& arguments) {
  Tensors tensors;
  for (const PointwiseArgument& argument : arguments)
    tensors.push_back(std::holds_alternative<double>(argument)
                          ? at::native::wrapped_scalar_tensor(std::get<double>(argument))
                          : std::get<at::Tensor>(argument));
  return tensors;
}

// One byte for each argument.
std::string KeyOf(const std::vector<PointwiseArgument>& arguments) {
  std::string key;
  for (const PointwiseArgument& argument : arguments) {
    const at::Tensor* tensor = std::get_if<at::Tensor>(&argument);
    key += tensor == nullptr ? '\xff'
                             : static_cast<char>(2 * static_cast<int>(tensor->scalar_type()) +
                                                 (tensor->dim() > 0 ? 1 : 0));
  }
  return key;
}

// Returns the shape over which a result is computed that depends on these inputs.
at::DimVector ShapeOf(const Tensors& inputs, uint64_t set) {
  at::DimVector shape;
  for (size_t i = 0; i < inputs.size(); ++i)
    if ((set >> i & 1) != 0) shape = at::infer_size_dimvector(shape, inputs[i].sizes());
  return shape;
}

// Returns whether there is a kernel for tensors like this one.
bool HasKernel(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided) return false;
  if (tensor.is_cuda()) return pointwise::cuda::CanLaunch(tensor.device());
  return tensor.is_cpu() || tensor.is_meta();
}

bool AllAlike(const Tensors& inputs) {
  for (size_t i = 1; i < inputs.size(); ++i)
    if (inputs[i].sizes() != inputs[0].sizes()) return false;
  return true;
}

void CheckArguments(const std::vector<PointwiseArgument>& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const at::Tensor* tensor = std::get_if<at::Tensor>(&arguments[i]);
    if (tensor == nullptr) continue;
    TORCH_CHECK_VALUE(tensor->defined(), "argument ", i + 1, " is an undefined tensor");
    const at::ScalarType dtype = tensor->scalar_type();
    TORCH_CHECK_VALUE(at::isFloatingType(dtype) || dtype == at::kBool, "argument ", i + 1,
                      " has dtype ", dtype,
                      "; a fused function takes floating-point tensors and booleans");
  }
}

}  // namespace

PointwiseRecordings::PointwiseRecordings() = default;
PointwiseRecordings::~PointwiseRecordings() = default;
PointwiseRecordings::PointwiseRecordings(PointwiseRecordings&&) noexcept = default;
PointwiseRecordings& PointwiseRecordings::operator=(PointwiseRecordings&&) noexcept = default;

bool IsRecordingPointwise() { return pointwise::IsRecording(); }

int64_t PointwiseRecordings::size() const { return static_cast<int64_t>(recordings_.size()); }

Tensors PointwiseRecordings::Call(const PointwiseFunction& function,
                                  const std::vector<PointwiseArgument>& arguments,
                                  const std::function<std::string()>& where) {
  CheckArguments(arguments);
  if (pointwise::IsRecording()) return function(AsTensors(arguments));
  const std::string key = KeyOf(arguments);
  auto found = recordings_.find(key);
  if (found == recordings_.end()) {
    Recording recording;
    pointwise::Recorded recorded = pointwise::Record(function, KindsOf(arguments), where);
    recording.program = std::move(recorded.program);
    recording.lacks_dimension = std::move(recorded.lacks_dimension);
    recording.has_reductions = pointwise::HasReductions(recording.program);
    const std::vector<uint64_t> sets = pointwise::InputsOfNodes(recording.program);
    for (const int32_t result : recording.program.results)
      recording.inputs_of_results.push_back(sets[result]);
    found = recordings_.emplace(key, std::move(recording)).first;
  }
  Recording& recording = found->second;

  Tensors inputs;
  std::vector<double> numbers;
  bool has_kernel = true;
  for (const PointwiseArgument& argument : arguments) {
    if (const at::Tensor* tensor = std::get_if<at::Tensor>(&argument)) {
      inputs.push_back(*tensor);
      has_kernel = has_kernel && tensor->device() == inputs[0].device() && HasKernel(*tensor);
    } else {
      numbers.push_back(std::get<double>(argument));
    }
  }
  if (!has_kernel) return function(AsTensors(arguments));

  const size_t num_results = recording.program.results.size();
  Tensors results(num_results);
  if (num_results == 1 || AllAlike(inputs)) {
    recording.Run((uint64_t{1} << num_results) - 1, inputs, numbers, &results);
    return results;
  }
  // Results that depend on other inputs may have other shapes: each shape is a program of its own.
  // A result of rows is computed by the program of its elements.
  std::vector<at::DimVector> shapes;
  for (const uint64_t set : recording.inputs_of_results) shapes.push_back(ShapeOf(inputs, set));
  uint64_t done = 0;
  for (size_t i = 0; i < num_results; ++i) {
    if ((done >> i & 1) != 0) continue;
    uint64_t alike = 0;
    for (size_t j = i; j < num_results; ++j)
      if (shapes[j] == shapes[i]) alike |= uint64_t{1} << j;
    recording.Run(alike, inputs, numbers, &results);
    done |= alike;
  }
  return results;
}

}  // namespace lockstep::kernels
