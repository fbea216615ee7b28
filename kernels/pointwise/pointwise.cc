#include "kernels/pointwise/pointwise.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "ATen/ExpandUtils.h"
#include "ATen/Parallel.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/empty.h"
#include "c10/util/Exception.h"
#include "c10/util/SmallVector.h"
#include "kernels/pointwise/code.h"
#include "kernels/pointwise/interpreter.h"
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
  Program program;
  Code code;
  int64_t num_numbers = 0;  // that the program reads
  std::mutex mutex;         // of what follows
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
                                       const std::vector<at::ScalarType>& dtypes) {
  std::string key = std::to_string(needed) + "/" + std::to_string(given) + "/";
  for (const at::ScalarType dtype : dtypes) key += static_cast<char>(dtype);
  const std::lock_guard<std::mutex> lock(of.mutex);
  std::unique_ptr<RegisteredGradient>& found = of.gradients[key];
  if (found == nullptr) {
    auto made = std::make_unique<RegisteredGradient>();
    made->gradient = GradientOf(of.program, needed, given, dtypes);
    if (!made->gradient.of.empty()) made->program = Register(made->gradient.program);
    found = std::move(made);
  }
  return *found;
}

// --- The operator

Tensors Call(int64_t program, at::TensorList inputs, at::ArrayRef<double> numbers,
             at::IntArrayRef dtypes) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("lockstep::pointwise", "")
          .typed<Tensors(int64_t, at::TensorList, at::ArrayRef<double>, at::IntArrayRef)>();
  return op.call(program, inputs, numbers, dtypes);
}

at::DimVector BroadcastShape(at::TensorList inputs) {
  at::DimVector shape(inputs[0].sizes());
  for (size_t i = 1; i < inputs.size(); ++i) {
    if (inputs[i].sizes() != at::IntArrayRef(shape))
      shape = at::infer_size_dimvector(shape, inputs[i].sizes());
  }
  return shape;
}

bool IsStored(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kDouble || dtype == at::kBFloat16 ||
         dtype == at::kHalf || dtype == at::kBool;
}

void Check(const Registered& registered, at::TensorList inputs, at::ArrayRef<double> numbers,
           at::IntArrayRef dtypes) {
  const Program& program = registered.program;
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
}

Tensors EmptyResults(const Program& program, at::TensorList inputs, at::IntArrayRef shape,
                     at::IntArrayRef dtypes) {
  Tensors results;
  results.reserve(program.results.size());
  for (size_t i = 0; i < program.results.size(); ++i) {
    const at::ScalarType dtype =
        dtypes.empty() ? program.dtypes[i] : static_cast<at::ScalarType>(dtypes[i]);
    results.push_back(at::empty(
        shape, inputs[0].options().dtype(dtype).memory_format(at::MemoryFormat::Contiguous)));
  }
  return results;
}

// --- On the CPU

// Dimensions that all inputs cross with one stride are one. strides[i] are those of input i.
struct Layout {
  at::DimVector sizes;
  c10::SmallVector<at::DimVector, 8> strides;
};

int64_t StrideOf(const at::Tensor& input, int64_t dim, int64_t num_dims) {
  const int64_t own = dim - (num_dims - input.dim());
  return own < 0 || input.size(own) == 1 ? 0 : input.stride(own);
}

Layout LayoutOf(at::IntArrayRef shape, at::TensorList inputs) {
  Layout layout;
  layout.strides.resize(inputs.size());
  const auto num_dims = static_cast<int64_t>(shape.size());
  for (int64_t dim = 0; dim < num_dims; ++dim) {
    if (shape[dim] == 1) continue;
    bool joins = !layout.sizes.empty();
    for (size_t i = 0; i < inputs.size() && joins; ++i)
      joins = layout.strides[i].back() == StrideOf(inputs[i], dim, num_dims) * shape[dim];
    if (joins)
      layout.sizes.back() *= shape[dim];
    else
      layout.sizes.push_back(shape[dim]);
    for (size_t i = 0; i < inputs.size(); ++i) {
      const int64_t stride = StrideOf(inputs[i], dim, num_dims);
      if (joins)
        layout.strides[i].back() = stride;
      else
        layout.strides[i].push_back(stride);
    }
  }
  return layout;
}

Access AccessOf(const at::DimVector& sizes, const at::DimVector& strides) {
  if (std::all_of(strides.begin(), strides.end(), [](int64_t stride) { return stride == 0; }))
    return Access::kUniform;
  int64_t expected = 1;
  for (size_t dim = sizes.size(); dim-- > 0; expected *= sizes[dim])
    if (strides[dim] != expected) return Access::kStrided;
  return Access::kFlat;
}

// Returns memory that a thread's calls share. It does not shrink.
template <typename Acc>
Acc* Scratch(int64_t numbers) {
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  static thread_local std::unique_ptr<void, Free> memory;
  static thread_local size_t size = 0;
  const size_t bytes = (static_cast<size_t>(numbers) * sizeof(Acc) + 63) / 64 * 64;
  if (bytes > size) {
    memory.reset(std::aligned_alloc(64, bytes));
    size = memory == nullptr ? 0 : bytes;
    TORCH_CHECK(memory != nullptr, "pointwise: out of memory for ", bytes, " bytes");
  }
  return static_cast<Acc*>(memory.get());
}

// Elements of a thread's smallest share: more steps take a smaller one.
int64_t GrainOf(const Code& code) {
  return std::max<int64_t>(4096, 32768 / (1 + static_cast<int64_t>(code.steps.size()) / 4));
}

Tensors RunOnCpu(int64_t number, at::TensorList inputs, at::ArrayRef<double> numbers,
                 at::IntArrayRef dtypes) {
  const Registered& registered = Find(number);
  const Program& program = registered.program;
  Check(registered, inputs, numbers, dtypes);
  const at::DimVector shape = BroadcastShape(inputs);
  Tensors results = EmptyResults(program, inputs, shape, dtypes);
  const int64_t numel = c10::multiply_integers(shape);
  if (results.empty() || numel == 0) return results;

  const Layout layout = LayoutOf(shape, inputs);
  c10::SmallVector<InputMemory, 8> input_memory;
  for (size_t i = 0; i < inputs.size(); ++i)
    input_memory.push_back({inputs[i].const_data_ptr(), inputs[i].scalar_type(),
                            AccessOf(layout.sizes, layout.strides[i]), layout.strides[i].data()});
  c10::SmallVector<ResultMemory, 4> result_memory;
  for (const at::Tensor& result : results)
    result_memory.push_back({result.mutable_data_ptr(), result.scalar_type()});
  const std::vector<double> uniforms = UniformsOf(registered.code, numbers);
  const Execution run = {
      .steps = registered.code.steps.data(),
      .num_steps = static_cast<int64_t>(registered.code.steps.size()),
      .inputs = input_memory.data(),
      .num_inputs = static_cast<int64_t>(inputs.size()),
      .uniforms = uniforms.data(),
      .num_uniforms = static_cast<int64_t>(uniforms.size()),
      .results = result_memory.data(),
      .num_results = static_cast<int64_t>(results.size()),
      .num_temporaries = registered.code.num_temporaries,
      .sizes = layout.sizes.data(),
      .num_dims = static_cast<int64_t>(layout.sizes.size()),
  };
  const Interpreters& interpreters = ChosenInterpreters();
  at::parallel_for(0, numel, GrainOf(registered.code), [&](int64_t begin, int64_t end) {
    const int64_t scratch = NumSlots(run) * kSlotNumbers;
    if (program.wide)
      interpreters.wide(run, begin, end, Scratch<double>(scratch));
    else
      interpreters.narrow(run, begin, end, Scratch<float>(scratch));
  });
  return results;
}

Tensors RunOnMeta(int64_t number, at::TensorList inputs, at::ArrayRef<double> numbers,
                  at::IntArrayRef dtypes) {
  const Registered& registered = Find(number);
  Check(registered, inputs, numbers, dtypes);
  return EmptyResults(registered.program, inputs, BroadcastShape(inputs), dtypes);
}

// --- Gradients

class PointwiseBackward final : public Node {
 public:
  PointwiseBackward(Registered* registered, at::TensorList inputs, at::ArrayRef<double> numbers,
                    torch::autograd::edge_list&& edges)
      : Node(std::move(edges)), registered_(registered), numbers_(numbers.vec()) {
    uint64_t given = 0;
    const Program& program = registered->program;
    for (size_t i = 0; i < program.results.size(); ++i)
      if (program.dtypes[i] != at::kBool) given |= uint64_t{1} << i;
    for (size_t i = 0; i < inputs.size(); ++i) {
      sizes_.emplace_back(inputs[i].sizes());
      dtypes_.push_back(inputs[i].scalar_type());
      if (inputs[i].requires_grad()) needed_ |= uint64_t{1} << i;
    }
    // Fewer gradients read no more of the inputs.
    saved_.resize(inputs.size());
    for (const int32_t i : FindGradient(*registered, needed_, given, dtypes_).gradient.inputs)
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
    const RegisteredGradient& found = FindGradient(*registered_, needed, given, dtypes_);
    const Gradient& gradient = found.gradient;
    if (gradient.of.empty()) return results;

    Tensors inputs;
    for (const int32_t i : gradient.inputs) inputs.push_back(saved_[i].unpack());
    at::IntArrayRef shape;  // of the function's results
    for (const int32_t i : gradient.gradients) {
      inputs.push_back(gradients[i]);
      shape = gradients[i].sizes();
    }
    // A gradient that is added up over broadcast dimensions is rounded after that.
    std::vector<int64_t> dtypes;
    const at::ScalarType wide = gradient.program.wide ? at::kDouble : at::kFloat;
    for (const int32_t i : gradient.of)
      dtypes.push_back(
          static_cast<int64_t>(at::IntArrayRef(sizes_[i]) == shape ? dtypes_[i] : wide));
    Tensors outputs = at::GradMode::is_enabled() ? Compose(gradient.program, inputs, numbers_)
                                                 : Call(found.program, inputs, numbers_, dtypes);
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
  uint64_t needed_ = 0;
  std::vector<at::DimVector> sizes_;
  std::vector<at::ScalarType> dtypes_;
  std::vector<SavedVariable> saved_;
};

Tensors WithGradients(int64_t number, at::TensorList inputs, at::ArrayRef<double> numbers,
                      at::IntArrayRef dtypes) {
  std::shared_ptr<PointwiseBackward> node;
  if (at::GradMode::is_enabled() &&
      std::any_of(inputs.begin(), inputs.end(),
                  [](const at::Tensor& x) { return x.requires_grad(); })) {
    Registered& registered = Find(number);
    Check(registered, inputs, numbers, dtypes);
    node = std::shared_ptr<PointwiseBackward>(
        new PointwiseBackward(&registered, inputs, numbers,
                              torch::autograd::collect_next_edges(inputs)),
        torch::autograd::deleteNode);
  }
  Tensors results = [&] {
    const at::AutoDispatchBelowADInplaceOrView below;
    return Call(number, inputs, numbers, dtypes);
  }();
  if (node != nullptr) {
    for (const at::Tensor& result : results)
      torch::autograd::set_history(result.scalar_type() == at::kBool ? at::Tensor() : result, node);
  }
  return results;
}

TORCH_LIBRARY_FRAGMENT(lockstep, library) {
  library.def("pointwise(int program, Tensor[] inputs, float[] numbers, int[] dtypes) -> Tensor[]");
}
TORCH_LIBRARY_IMPL(lockstep, CPU, library) { library.impl("pointwise", RunOnCpu); }
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
  registered->program = program;
  registered->code = Compile(program);
  for (const pointwise::Node& node : program.nodes)
    if (node.op == Op::kNumber)
      registered->num_numbers = std::max<int64_t>(registered->num_numbers, node.args[0] + 1);
  const std::lock_guard<std::mutex> lock(registry.mutex);
  const auto number = static_cast<int64_t>(registry.programs.size());
  const auto [place, is_new] = registry.numbers.emplace(std::move(key), number);
  if (is_new) registry.programs.push_back(std::move(registered));
  return place->second;
}

Tensors Run(int64_t program, at::TensorList inputs, at::ArrayRef<double> numbers) {
  return Call(program, inputs, numbers, {});
}

}  // namespace lockstep::kernels::pointwise
