#include "kernels/pointwise/pointwise.h"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "ATen/ExpandUtils.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/empty.h"
#include "c10/util/Exception.h"
#include "kernels/pointwise/cuda/launch.h"
#include "kernels/pointwise/execute.h"
#include "kernels/pointwise/layout.h"
#include "torch/csrc/autograd/function.h"
#include "torch/csrc/autograd/functions/utils.h"
#include "torch/csrc/autograd/saved_variable.h"
#include "torch/library.h"

namespace lockstep::kernels::pointwise {
namespace {

using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
using Tensors = std::vector<at::Tensor>;

// --- Programs by their numbers

struct RegisteredGradient {
  Gradient gradient;
  int64_t program = -1;
};

struct Registered {
  Executable executable;
  int64_t num_numbers = 0;      // that the program reads
  uint64_t row_inputs = 0;      // inputs with one number for each row
  bool needs_elements = false;  // rows must not be empty
  std::mutex mutex;             // of what follows
  std::map<std::string, std::unique_ptr<RegisteredGradient>> gradients;
};

struct Registry {
  std::mutex mutex;
  std::map<std::string, int64_t> numbers;
  std::vector<std::unique_ptr<Registered>> programs;
};

Registry& AllPrograms() {
  static auto* const registry = new Registry;
  return *registry;
}

Registered& Find(int64_t program) {
  Registry& registry = AllPrograms();
  const std::lock_guard<std::mutex> lock(registry.mutex);
  TORCH_CHECK_VALUE(program >= 0 && program < static_cast<int64_t>(registry.programs.size()),
                    "pointwise: there is no program ", program);
  return *registry.programs[program];
}

// Returns the gradient of a program, derived when it is first needed.
const RegisteredGradient& FindGradient(Registered& of, uint64_t needed, uint64_t given,
                                       const std::vector<at::ScalarType>& dtypes,
                                       at::IntArrayRef shape) {
  const bool rows_are_empty = LengthOf(shape) == 0;
  std::string key =
      std::to_string(needed) + "/" + std::to_string(given) + (rows_are_empty ? "/empty/" : "/");
  for (const at::ScalarType dtype : dtypes) key += static_cast<char>(dtype);
  const std::lock_guard<std::mutex> lock(of.mutex);
  std::unique_ptr<RegisteredGradient>& found = of.gradients[key];
  if (found == nullptr) {
    auto made = std::make_unique<RegisteredGradient>();
    made->gradient = GradientOf(of.executable.program, needed, given, dtypes, rows_are_empty);
    try {
      if (!made->gradient.of.empty()) made->program = Register(made->gradient.program);
    } catch (c10::Error& error) {
      error.add_context("in its gradient");
      throw;
    }
    found = std::move(made);
  }
  return *found;
}

// --- The operator

Tensors Call(int64_t program, at::TensorList inputs, at::ArrayRef<double> numbers,
             at::IntArrayRef dtypes, at::IntArrayRef shape) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("lockstep::pointwise", "")
                             .typed<Tensors(int64_t, at::TensorList, at::ArrayRef<double>,
                                            at::IntArrayRef, at::IntArrayRef)>();
  return op.call(program, inputs, numbers, dtypes, shape);
}

at::DimVector BroadcastShape(at::TensorList inputs) {
  at::DimVector shape(inputs[0].sizes());
  for (size_t i = 1; i < inputs.size(); ++i) {
    if (inputs[i].sizes() != at::IntArrayRef(shape))
      shape = at::infer_size_dimvector(shape, inputs[i].sizes());
  }
  return shape;
}

// Gradients may all be smaller than the function's inputs. Their call has the shape of those.
at::DimVector WholeShape(at::TensorList inputs, at::IntArrayRef shape) {
  at::DimVector whole = BroadcastShape(inputs);
  return shape.empty() ? whole : at::infer_size_dimvector(whole, shape);
}

bool IsStored(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kDouble || dtype == at::kBFloat16 ||
         dtype == at::kHalf || dtype == at::kBool;
}

// Returns the shape that the program runs over.
at::DimVector Check(const Registered& registered, at::TensorList inputs,
                    at::ArrayRef<double> numbers, at::IntArrayRef dtypes, at::IntArrayRef shape) {
  const Program& program = registered.executable.program;
  const size_t num_results = program.results.size();
  TORCH_CHECK_VALUE(static_cast<int64_t>(inputs.size()) == program.num_inputs && !inputs.empty() &&
                        static_cast<int64_t>(numbers.size()) >= registered.num_numbers &&
                        (dtypes.empty() || dtypes.size() == num_results),
                    "pointwise: the program takes ", program.num_inputs, " tensors and ",
                    registered.num_numbers, " numbers, and has ", num_results, " results; got ",
                    inputs.size(), " tensors, ", numbers.size(), " numbers and ", dtypes.size(),
                    " dtypes");
  for (const int64_t dtype : dtypes)
    TORCH_CHECK_VALUE(IsStored(static_cast<at::ScalarType>(dtype)), "pointwise: ", dtype,
                      " is not the number of a floating-point dtype or bool");
  for (const at::Tensor& input : inputs) {
    TORCH_CHECK_VALUE(
        IsStored(input.scalar_type()),
        "pointwise: tensors must be float16, bfloat16, float32, float64 or bool, got ",
        input.scalar_type());
    TORCH_CHECK_VALUE(input.device() == inputs[0].device(), "pointwise: tensors are on ",
                      inputs[0].device(), " and ", input.device(), "; move one of them");
  }
  const at::DimVector whole = WholeShape(inputs, shape);
  const int64_t length = LengthOf(whole);
  TORCH_CHECK_INDEX(length > 0 || !registered.needs_elements,
                    "amax and amin of a last dimension of size 0");
  for (size_t i = 0; registered.executable.needs_rows && i < inputs.size(); ++i) {
    const int64_t expected = (registered.row_inputs >> i & 1) != 0 ? 1 : length;
    TORCH_CHECK_VALUE(LengthOf(inputs[i].sizes()) == expected, "pointwise: tensor ", i,
                      " must have ", expected, " numbers in a row, got ",
                      LengthOf(inputs[i].sizes()));
  }
  return whole;
}

Tensors EmptyResults(const Program& program, at::TensorList inputs, at::IntArrayRef shape,
                     at::IntArrayRef dtypes) {
  const at::DimVector of_rows = ShapeOfRows(shape);
  Tensors results;
  results.reserve(program.results.size());
  for (size_t i = 0; i < program.results.size(); ++i) {
    const at::ScalarType dtype =
        dtypes.empty() ? program.dtypes[i] : static_cast<at::ScalarType>(dtypes[i]);
    results.push_back(
        at::empty(program.row_results[i] ? at::IntArrayRef(of_rows) : shape,
                  inputs[0].options().dtype(dtype).memory_format(at::MemoryFormat::Contiguous)));
  }
  return results;
}

Tensors RunOnCpu(int64_t number, at::TensorList inputs, at::ArrayRef<double> numbers,
                 at::IntArrayRef dtypes, at::IntArrayRef shape) {
  const Registered& registered = Find(number);
  const at::DimVector whole = Check(registered, inputs, numbers, dtypes, shape);
  Tensors results = EmptyResults(registered.executable.program, inputs, whole, dtypes);
  Execute(registered.executable, inputs, numbers, whole, results);
  return results;
}

Tensors RunOnCuda(int64_t number, at::TensorList inputs, at::ArrayRef<double> numbers,
                  at::IntArrayRef dtypes, at::IntArrayRef shape) {
  const Registered& registered = Find(number);
  const at::DimVector whole = Check(registered, inputs, numbers, dtypes, shape);
  const Program& program = registered.executable.program;
  Tensors results = EmptyResults(program, inputs, whole, dtypes);
  cuda::Launch(number, program, inputs, numbers, whole, results);
  return results;
}

Tensors RunOnMeta(int64_t number, at::TensorList inputs, at::ArrayRef<double> numbers,
                  at::IntArrayRef dtypes, at::IntArrayRef shape) {
  const Registered& registered = Find(number);
  const at::DimVector whole = Check(registered, inputs, numbers, dtypes, shape);
  return EmptyResults(registered.executable.program, inputs, whole, dtypes);
}

// --- Gradients

class PointwiseBackward final : public Node {
 public:
  PointwiseBackward(Registered* registered, at::TensorList inputs, at::ArrayRef<double> numbers,
                    torch::autograd::edge_list&& edges)
      : Node(std::move(edges)),
        registered_(registered),
        numbers_(numbers.vec()),
        shape_(BroadcastShape(inputs)) {
    uint64_t given = 0;
    const Program& program = registered->executable.program;
    for (size_t i = 0; i < program.results.size(); ++i)
      if (program.dtypes[i] != at::kBool) given |= uint64_t{1} << i;
    for (size_t i = 0; i < inputs.size(); ++i) {
      sizes_.emplace_back(inputs[i].sizes());
      dtypes_.push_back(inputs[i].scalar_type());
      if (inputs[i].requires_grad()) needed_ |= uint64_t{1} << i;
    }
    // Fewer gradients read no more of the inputs.
    saved_.resize(inputs.size());
    for (const int32_t i :
         FindGradient(*registered, needed_, given, dtypes_, shape_).gradient.inputs)
      saved_[i] = SavedVariable(inputs[i], /*is_output=*/false);
  }

  std::string name() const override { return "PointwiseBackward"; }

  variable_list apply(variable_list&& gradients) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    uint64_t needed = 0, given = 0;
    for (size_t i = 0; i < sizes_.size(); ++i)
      if ((needed_ >> i & 1) != 0 && task_should_compute_output(i)) needed |= uint64_t{1} << i;
    for (size_t i = 0; i < gradients.size(); ++i)
      if (gradients[i].defined()) given |= uint64_t{1} << i;
    variable_list results(sizes_.size());
    if (needed == 0 || given == 0) return results;
    const RegisteredGradient& found = FindGradient(*registered_, needed, given, dtypes_, shape_);
    const Gradient& gradient = found.gradient;
    if (gradient.of.empty()) return results;

    Tensors inputs;
    for (const int32_t i : gradient.inputs) inputs.push_back(saved_[i].unpack());
    for (const int32_t i : gradient.gradients) inputs.push_back(gradients[i]);
    // A gradient that is added up over broadcast dimensions is rounded after that. Sums of rows
    // may be large next to their total, and are few.
    std::vector<int64_t> dtypes;
    const at::DimVector of_rows = ShapeOfRows(shape_);
    for (size_t i = 0; i < gradient.of.size(); ++i) {
      const int32_t of = gradient.of[i];
      const bool is_row = gradient.program.row_results[i];
      const bool is_wide = is_row || gradient.program.wide;
      const bool is_whole = sizes_[of] == (is_row ? of_rows : shape_);
      dtypes.push_back(static_cast<int64_t>(is_whole  ? dtypes_[of]
                                            : is_wide ? at::kDouble
                                                      : at::kFloat));
    }
    Tensors outputs = at::GradMode::is_enabled()
                          ? Compose(gradient.program, inputs, numbers_, shape_)
                          : Call(found.program, inputs, numbers_, dtypes, shape_);
    for (size_t i = 0; i < outputs.size(); ++i) {
      const int32_t of = gradient.of[i];
      results[of] = at::sum_to(std::move(outputs[i]), at::IntArrayRef(sizes_[of])).to(dtypes_[of]);
    }
    return results;
  }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (SavedVariable& saved : saved_) saved.reset_data();
  }

 private:
  Registered* const registered_;
  const std::vector<double> numbers_;
  const at::DimVector shape_;  // that the program runs over
  uint64_t needed_ = 0;
  std::vector<at::DimVector> sizes_;
  std::vector<at::ScalarType> dtypes_;
  std::vector<SavedVariable> saved_;
};

Tensors WithGradients(int64_t number, at::TensorList inputs, at::ArrayRef<double> numbers,
                      at::IntArrayRef dtypes, at::IntArrayRef shape) {
  std::shared_ptr<PointwiseBackward> node;
  if (at::GradMode::is_enabled() &&
      std::any_of(inputs.begin(), inputs.end(),
                  [](const at::Tensor& x) { return x.requires_grad(); })) {
    Registered& registered = Find(number);
    Check(registered, inputs, numbers, dtypes, shape);
    node = std::shared_ptr<PointwiseBackward>(
        new PointwiseBackward(&registered, inputs, numbers,
                              torch::autograd::collect_next_edges(inputs)),
        torch::autograd::deleteNode);
  }
  Tensors results = [&] {
    const at::AutoDispatchBelowADInplaceOrView below;
    return Call(number, inputs, numbers, dtypes, shape);
  }();
  if (node != nullptr) {
    for (const at::Tensor& result : results)
      torch::autograd::set_history(result.scalar_type() == at::kBool ? at::Tensor() : result, node);
  }
  return results;
}

TORCH_LIBRARY_FRAGMENT(lockstep, library) {
  library.def(
      "pointwise(int program, Tensor[] inputs, float[] numbers, int[] dtypes, int[] shape) "
      "-> Tensor[]");
}
TORCH_LIBRARY_IMPL(lockstep, CPU, library) { library.impl("pointwise", RunOnCpu); }
TORCH_LIBRARY_IMPL(lockstep, CUDA, library) { library.impl("pointwise", RunOnCuda); }
TORCH_LIBRARY_IMPL(lockstep, Meta, library) { library.impl("pointwise", RunOnMeta); }
TORCH_LIBRARY_IMPL(lockstep, Autograd, library) { library.impl("pointwise", WithGradients); }

}  // namespace

int64_t Register(const Program& program) {
  Registry& registry = AllPrograms();
  std::string key = KeyOf(program);
  {
    const std::lock_guard<std::mutex> lock(registry.mutex);
    const auto found = registry.numbers.find(key);
    if (found != registry.numbers.end()) return found->second;
  }
  auto registered = std::make_unique<Registered>();
  registered->executable = Prepare(program);
  for (const pointwise::Node& node : program.nodes) {
    if (node.op == Op::kNumber)
      registered->num_numbers = std::max<int64_t>(registered->num_numbers, node.args[0] + 1);
    if (node.op == Op::kRowInput) registered->row_inputs |= uint64_t{1} << node.args[0];
    if (node.op == Op::kAmax || node.op == Op::kAmin) registered->needs_elements = true;
  }
  const std::lock_guard<std::mutex> lock(registry.mutex);
  const auto number = static_cast<int64_t>(registry.programs.size());
  const auto [place, is_new] = registry.numbers.emplace(std::move(key), number);
  if (is_new) registry.programs.push_back(std::move(registered));
  return place->second;
}

Tensors Run(int64_t program, at::TensorList inputs, at::ArrayRef<double> numbers) {
  return Call(program, inputs, numbers, {}, {});
}

}  // namespace lockstep::kernels::pointwise
