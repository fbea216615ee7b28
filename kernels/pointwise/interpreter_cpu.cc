// Compiled three times, with other flags and another CPU_CAPABILITY each time: see BUILD, and
// kernels/rows_cpu.cc on why it includes as little as it can.

#include <algorithm>
#include <cstdint>

#include "kernels/pointwise/blocks.h"
#include "kernels/pointwise/interpreter.h"
#include "kernels/pointwise/reduction.h"

namespace lockstep::kernels::pointwise::CPU_CAPABILITY {
namespace {

template <typename Acc>
class Interpreter {
  using B = Blocks<Acc>;
  using Slot = typename B::Slot;
  using R = Blocks<double>;  // of numbers of rows
  static constexpr int64_t kLanes = B::kLanes;

 public:
  static void Range(const Execution& run, int64_t begin, int64_t end, void* memory) {
    Slot slots[kMostSlots];
    Acc* const scratch = static_cast<Acc*>(memory);
    const int64_t first_result = run.num_inputs + run.num_uniforms;
    SetUp<B>(run, scratch, slots);
    for (int64_t at = begin; at < end; at += kBlock) {
      const int64_t count = std::min(kBlock, end - at);
      for (int64_t i = 0; i < run.num_inputs; ++i)
        if (run.inputs[i].access != Access::kUniform)
          B::LoadSlot(run.inputs[i], at, count, scratch + i * kSlotNumbers, &slots[i]);
      PlaceResults(run, at, count, scratch, slots);
      for (int64_t i = 0; i < run.num_steps; ++i) B::Execute(run.steps[i], slots, count);
      for (int64_t i = 0; i < run.num_results; ++i)
        B::StoreSlot(slots[first_result + i], run.results[i], at, count);
    }
  }

  static void Rows(const RowExecution& rows, int64_t begin, int64_t end, void* memory) {
    Slots slots;
    slots.scratch =
        reinterpret_cast<Acc*>(static_cast<char*>(memory) + ScratchBytes(rows.run, sizeof(double)));
    SetUp<B>(rows.run, slots.scratch, slots.elements);
    SetUp<R>(rows.run, static_cast<double*>(memory), slots.rows);
    const int64_t most = RowsOfTile(rows.length);
    for (int64_t row = begin; row < end; row += most)
      Tile(rows, row, std::min(most, end - row), &slots);
  }

 private:
  // Gives each slot its memory, and loads what is the same for all elements.
  template <typename Of, typename Number>
  static void SetUp(const Execution& run, Number* scratch, typename Of::Slot* slots) {
    for (int64_t i = 0; i < NumSlots(run); ++i) slots[i] = {scratch + i * kSlotNumbers, 1};
    for (int64_t i = 0; i < run.num_uniforms; ++i)
      Of::Fill(static_cast<Number>(run.uniforms[i]), &slots[run.num_inputs + i]);
    for (int64_t i = 0; i < run.num_inputs; ++i) {
      if (run.inputs[i].access != Access::kUniform) continue;
      Of::Load(run.inputs[i], 0, 1, slots[i].data);
      Of::Fill(slots[i].data[0], &slots[i]);
    }
  }

  static void PlaceResults(const Execution& run, int64_t at, int64_t count, Acc* scratch,
                           Slot* slots) {
    const int64_t first = run.num_inputs + run.num_uniforms;
    for (int64_t i = 0; i < run.num_results; ++i)
      if (!run.results[i].is_row)
        B::PlaceResult(run.results[i], at, count, scratch + (first + i) * kSlotNumbers,
                       &slots[first + i]);
  }

  // --- Rows

  struct Slots {
    Slot elements[kMostSlots];
    R::Slot rows[kMostSlots];
    Acc* scratch;  // of the elements
  };

  // Short rows share a block, if possible one of whole vectors.
  static int64_t RowsOfTile(int64_t length) {
    if (length == 0) return kBlock;
    const int64_t rows = std::max<int64_t>(1, kBlock / length);
    for (int64_t fewer = rows; fewer > rows / 2; --fewer)
      if (fewer * length % kLanes == 0) return fewer;
    return rows;
  }

  static void Tile(const RowExecution& rows, int64_t row, int64_t num_rows, Slots* slots) {
    const Execution& run = rows.run;
    const int64_t first_result = run.num_inputs + run.num_uniforms;
    for (int64_t i = 0; i < run.num_inputs; ++i)
      if (run.inputs[i].is_row && run.inputs[i].access != Access::kUniform)
        R::Load(run.inputs[i], row, num_rows, slots->rows[i].data);
    const bool is_long = rows.length > kBlock;
    int64_t step = 0;
    for (int64_t i = 0; i < rows.num_phases; ++i) {
      const Phase& phase = rows.phases[i];
      for (; step < phase.end_of_row_steps; ++step) {
        if (run.steps[step].op == Op::kExpand)
          Expand(run.steps[step], num_rows, rows.length, slots);
        else
          R::Execute(run.steps[step], slots->rows, num_rows);
      }
      if (step == phase.end_of_block_steps) continue;
      if (is_long)
        LongRow(rows, phase, row, slots);
      else
        Block(rows, phase, {row * rows.length, 0, num_rows * rows.length, num_rows, nullptr},
              slots);
      step = phase.end_of_block_steps;
    }
    for (int64_t i = 0; i < run.num_results; ++i)
      if (run.results[i].is_row)
        R::Store(slots->rows[first_result + i].data, run.results[i], row, num_rows);
  }

  // The elements of a step: one block of a long row, or short rows.
  struct Elements {
    int64_t at;      // the first element
    int64_t column;  // in its row
    int64_t count;
    int64_t num_rows;
    Reduction<Acc>* reductions;  // of a long row, by their slots
  };

  static void LongRow(const RowExecution& rows, const Phase& phase, int64_t row, Slots* slots) {
    Reduction<Acc> reductions[kMostSlots];
    for (int64_t i = phase.end_of_row_steps; i < phase.end_of_block_steps; ++i) {
      const Step& step = rows.run.steps[i];
      if (IsReduction(step.op)) reductions[step.to].Start(step.op);
    }
    for (int64_t column = 0; column < rows.length; column += kBlock) {
      const int64_t count = std::min(kBlock, rows.length - column);
      Block(rows, phase, {row * rows.length + column, column, count, 1, reductions}, slots);
    }
    for (int64_t i = phase.end_of_row_steps; i < phase.end_of_block_steps; ++i) {
      const Step& step = rows.run.steps[i];
      if (IsReduction(step.op))
        slots->rows[step.to].data[0] = reductions[step.to].Finish(rows.length);
    }
  }

  static void Block(const RowExecution& rows, const Phase& phase, const Elements& elements,
                    Slots* all) {
    const Execution& run = rows.run;
    Slot* const slots = all->elements;
    Acc* const scratch = all->scratch;
    const int64_t first_result = run.num_inputs + run.num_uniforms;
    const int64_t first_kept = NumSlots(run) - rows.num_kept;
    if (elements.count > 0) PlaceResults(run, elements.at, elements.count, scratch, slots);
    for (int64_t i = 0; i < rows.num_kept; ++i)
      slots[first_kept + i].data =
          scratch + first_kept * kSlotNumbers + i * KeptNumbers(rows.length) + elements.column;
    for (int64_t i = phase.end_of_row_steps; i < phase.end_of_block_steps; ++i) {
      const Step& step = run.steps[i];
      if (step.op == Op::kLoad) {
        LoadElements(run, step, elements, scratch, slots);
      } else if (step.op == Op::kStore) {
        const uint16_t result = step.args[0];
        if (elements.count > 0)
          B::StoreSlot(slots[first_result + result], run.results[result], elements.at,
                       elements.count);
      } else if (IsReduction(step.op)) {
        Reduce(rows, step, elements, all);
      } else {
        B::Execute(step, slots, elements.count);
      }
    }
  }

  static void LoadElements(const Execution& run, const Step& step, const Elements& elements,
                           Acc* scratch, Slot* slots) {
    const int64_t i = step.args[0];
    const bool is_there = step.args[1] == 0 && elements.reductions == nullptr;
    if (is_there || elements.count == 0 || run.inputs[i].access == Access::kUniform) return;
    B::LoadSlot(run.inputs[i], elements.at, elements.count, scratch + i * kSlotNumbers, &slots[i]);
  }

  static void Reduce(const RowExecution& rows, const Step& step, const Elements& elements,
                     Slots* slots) {
    const Slot from = slots->elements[step.args[0]];
    if (elements.reductions != nullptr) {
      elements.reductions[step.to].Add(from.data, from.stride, elements.count);
      return;
    }
    for (int64_t row = 0; row < elements.num_rows; ++row) {
      Reduction<Acc> reduction;
      reduction.Start(step.op);
      reduction.Add(from.data + row * rows.length * from.stride, from.stride, rows.length);
      slots->rows[step.to].data[row] = reduction.Finish(rows.length);
    }
  }

  static void Expand(const Step& step, int64_t num_rows, int64_t length, Slots* slots) {
    const R::Slot from = slots->rows[step.args[0]];
    Slot& to = slots->elements[step.to];
    if (num_rows == 1) return B::Fill(static_cast<Acc>(from.data[0]), &to);
    to.stride = 1;
    for (int64_t row = 0; row < num_rows; ++row) {
      const typename B::Vec number(static_cast<Acc>(from.data[row * from.stride]));
      for (int64_t i = 0; i < length; i += kLanes) number.store(to.data + row * length + i);
    }
  }
};

}  // namespace

extern const Interpreters kInterpreters[2];
const Interpreters kInterpreters[2] = {{Interpreter<float>::Range, Interpreter<float>::Rows},
                                       {Interpreter<double>::Range, Interpreter<double>::Rows}};

}  // namespace lockstep::kernels::pointwise::CPU_CAPABILITY
