#include "kernels/pointwise/execute.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include "c10/util/Exception.h"
#include "kernels/aten/parallel.h"
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

Execution RunOf(const CallMemory& memory, const std::vector<Step>& steps,
                const std::vector<double>& uniforms, int64_t num_temporaries) {
  return {
      .steps = steps.data(),
      .num_steps = static_cast<int64_t>(steps.size()),
      .inputs = memory.inputs().data(),
      .num_inputs = static_cast<int64_t>(memory.inputs().size()),
      .uniforms = uniforms.data(),
      .num_uniforms = static_cast<int64_t>(uniforms.size()),
      .results = memory.results().data(),
      .num_results = static_cast<int64_t>(memory.results().size()),
      .num_temporaries = num_temporaries,
  };
}

void ExecuteElements(const Executable& executable, const CallMemory& memory,
                     at::ArrayRef<double> numbers, at::IntArrayRef shape) {
  const Code& code = executable.code;
  const std::vector<double> uniforms = UniformsOf(code.uniforms, numbers, LengthOf(shape));
  const Execution run = RunOf(memory, code.steps, uniforms, code.num_temporaries);
  const bool wide = executable.program.wide;
  const auto elements = ChosenInterpreters(wide).elements;
  const size_t scratch = ScratchBytes(run, wide ? sizeof(double) : sizeof(float));
  ParallelFor(c10::multiply_integers(shape), GrainOf(code.steps.size()),
              [&](int64_t begin, int64_t end) { elements(run, begin, end, Scratch(scratch)); });
}

void ExecuteRows(const Executable& executable, const CallMemory& memory,
                 at::ArrayRef<double> numbers, at::IntArrayRef shape) {
  const RowCode& code = executable.row_code;
  const int64_t length = LengthOf(shape);
  const std::vector<double> uniforms = UniformsOf(code.uniforms, numbers, length);
  const RowExecution rows = {
      .run = RunOf(memory, code.steps, uniforms, code.num_temporaries),
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
  ParallelFor(c10::multiply_integers(ShapeOfRows(shape)), grain,
              [&](int64_t begin, int64_t end) { run(rows, begin, end, Scratch(scratch)); });
}

}  // namespace

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
  const CallMemory memory(executable.program, shape, inputs, results);
  if (executable.needs_rows)
    ExecuteRows(executable, memory, numbers, shape);
  else
    ExecuteElements(executable, memory, numbers, shape);
}

}  // namespace lockstep::kernels::pointwise
