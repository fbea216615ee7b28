#include "kernels/pointwise/execute.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include "ATen/Parallel.h"
#include "c10/util/Exception.h"
#include "c10/util/SmallVector.h"
#include "kernels/pointwise/interpreter.h"
#include "kernels/pointwise/layout.h"

namespace lockstep::kernels::pointwise {
namespace {

// Returns memory that a thread's calls share. It does not shrink.
void* Scratch(size_t needed) {
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  static thread_local std::unique_ptr<void, Free> memory;
  static thread_local size_t size = 0;
  const size_t bytes = (needed + 63) / 64 * 64;
  if (bytes > size) {
    memory.reset(std::aligned_alloc(64, bytes));
    size = memory == nullptr ? 0 : bytes;
    TORCH_CHECK(memory != nullptr, "pointwise: out of memory for ", bytes, " bytes");
  }
  return memory.get();
}

// Elements of a thread's smallest share: more steps take a smaller one.
int64_t GrainOf(size_t num_steps) {
  return std::max<int64_t>(4096, 32768 / (1 + static_cast<int64_t>(num_steps) / 4));
}

// The memory of a call's tensors.
class Memory {
 public:
  Memory(const Executable& executable, at::TensorList inputs, at::IntArrayRef shape,
         at::TensorList results) {
    std::vector<bool> is_row(inputs.size());
    for (const Node& node : executable.program.nodes)
      if (node.op == Op::kRowInput) is_row[node.args[0]] = true;
    std::vector<const at::Tensor*> of_elements, of_rows;
    for (size_t i = 0; i < inputs.size(); ++i)
      (is_row[i] ? of_rows : of_elements).push_back(&inputs[i]);
    elements_ = LayoutOf(shape, of_elements);
    rows_ = LayoutOf(ShapeOfRows(shape), of_rows);
    size_t num_elements = 0, num_rows = 0;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const Layout& layout = is_row[i] ? rows_ : elements_;
      const at::DimVector& strides = layout.strides[is_row[i] ? num_rows++ : num_elements++];
      inputs_.push_back({inputs[i].const_data_ptr(), inputs[i].scalar_type(),
                         AccessOf(layout.sizes, strides), layout.sizes.data(), strides.data(),
                         static_cast<int64_t>(layout.sizes.size()), is_row[i]});
    }
    for (size_t i = 0; i < results.size(); ++i)
      results_.push_back({results[i].mutable_data_ptr(), results[i].scalar_type(),
                          executable.program.row_results[i]});
  }

  Execution Run(const std::vector<Step>& steps, const std::vector<double>& uniforms,
                int64_t num_temporaries) const {
    return {
        .steps = steps.data(),
        .num_steps = static_cast<int64_t>(steps.size()),
        .inputs = inputs_.data(),
        .num_inputs = static_cast<int64_t>(inputs_.size()),
        .uniforms = uniforms.data(),
        .num_uniforms = static_cast<int64_t>(uniforms.size()),
        .results = results_.data(),
        .num_results = static_cast<int64_t>(results_.size()),
        .num_temporaries = num_temporaries,
    };
  }

 private:
  Layout elements_, rows_;
  c10::SmallVector<InputMemory, 8> inputs_;
  c10::SmallVector<ResultMemory, 4> results_;
};

void ExecuteElements(const Executable& executable, const Memory& memory,
                     at::ArrayRef<double> numbers, at::IntArrayRef shape) {
  const Code& code = executable.code;
  const std::vector<double> uniforms = UniformsOf(code.uniforms, numbers, LengthOf(shape));
  const Execution run = memory.Run(code.steps, uniforms, code.num_temporaries);
  const bool wide = executable.program.wide;
  const auto elements = ChosenInterpreters(wide).elements;
  const size_t scratch = ScratchBytes(run, wide ? sizeof(double) : sizeof(float));
  at::parallel_for(
      0, c10::multiply_integers(shape), GrainOf(code.steps.size()),
      [&](int64_t begin, int64_t end) { elements(run, begin, end, Scratch(scratch)); });
}

void ExecuteRows(const Executable& executable, const Memory& memory, at::ArrayRef<double> numbers,
                 at::IntArrayRef shape) {
  const RowCode& code = executable.row_code;
  const int64_t length = LengthOf(shape);
  const std::vector<double> uniforms = UniformsOf(code.uniforms, numbers, length);
  const RowExecution rows = {
      .run = memory.Run(code.steps, uniforms, code.num_temporaries),
      .phases = code.phases.data(),
      .num_phases = static_cast<int64_t>(code.phases.size()),
      .length = length,
      .num_kept = code.num_kept,
  };
  const bool wide = executable.program.wide;
  const auto run = ChosenInterpreters(wide).rows;
  const size_t scratch = ScratchBytes(rows, wide ? sizeof(double) : sizeof(float));
  const int64_t grain =
      std::max<int64_t>(1, GrainOf(code.steps.size()) / std::max<int64_t>(1, length));
  at::parallel_for(0, c10::multiply_integers(ShapeOfRows(shape)), grain,
                   [&](int64_t begin, int64_t end) { run(rows, begin, end, Scratch(scratch)); });
}

}  // namespace

int64_t LengthOf(at::IntArrayRef shape) { return shape.empty() ? 1 : shape.back(); }

at::DimVector ShapeOfRows(at::IntArrayRef shape) {
  at::DimVector rows(shape);
  if (!rows.empty()) rows.back() = 1;
  return rows;
}

Executable Prepare(const Program& program) {
  Executable executable;
  executable.program = program;
  executable.needs_rows = NeedsRows(program);
  if (executable.needs_rows)
    executable.row_code = CompileRows(program);
  else
    executable.code = Compile(program);
  return executable;
}

void Execute(const Executable& executable, at::TensorList inputs, at::ArrayRef<double> numbers,
             at::IntArrayRef shape, at::TensorList results) {
  if (std::all_of(results.begin(), results.end(),
                  [](const at::Tensor& result) { return result.numel() == 0; }))
    return;
  const Memory memory(executable, inputs, shape, results);
  if (executable.needs_rows)
    ExecuteRows(executable, memory, numbers, shape);
  else
    ExecuteElements(executable, memory, numbers, shape);
}

}  // namespace lockstep::kernels::pointwise
