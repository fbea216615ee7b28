#include "kernels/pointwise/code.h"

#include <algorithm>

#include "c10/util/Exception.h"

namespace lockstep::kernels::pointwise {

Program WithMulAdds(const Program& program) {
  const std::vector<Level> levels = LevelsOf(program);
  std::vector<int> uses(program.nodes.size());
  for (const Node& node : program.nodes)
    for (int j = 0; j < NumOperands(node.op); ++j) ++uses[node.args[j]];
  for (const int32_t result : program.results) ++uses[result];
  Program fused = program;
  for (size_t i = 0; i < program.nodes.size(); ++i) {
    if (program.nodes[i].op != Op::kAdd || levels[i] == Level::kUniform) continue;
    for (const int j : {0, 1}) {
      const int32_t product = program.nodes[i].args[j];
      const Node& factors = program.nodes[product];
      if (factors.op != Op::kMul || uses[product] != 1 || levels[product] != levels[i]) continue;
      fused.nodes[i] = {Op::kMulAdd,
                        {factors.args[0], factors.args[1], program.nodes[i].args[1 - j]}};
      break;
    }
  }
  return fused;
}

Node UniformNode(const Node& node, const std::vector<int64_t>& slots, int64_t first) {
  Node uniform = node;
  for (int j = 0; j < NumOperands(node.op); ++j)
    uniform.args[j] = static_cast<int32_t>(slots[node.args[j]] - first);
  return uniform;
}

void CheckSlots(const Program& program, size_t num_uniforms, int64_t num_temporaries) {
  const auto num_fixed =
      static_cast<int64_t>(program.num_inputs + num_uniforms + program.results.size());
  TORCH_CHECK_VALUE(num_fixed + num_temporaries <= kMostSlots,
                    "a fused function needs a slot for each tensor, number, constant and result, "
                    "and for each other value as long as it is in use; it may have ",
                    kMostSlots, " slots, and needs ", num_fixed + num_temporaries,
                    " (tensors: ", program.num_inputs, ", numbers and constants: ", num_uniforms,
                    ", results: ", program.results.size(), ", other values: ", num_temporaries,
                    "); make it two functions");
}

namespace {

// Returns, for each node, the last node that uses it, or -1.
std::vector<int32_t> LastUses(const Program& program) {
  std::vector<int32_t> last(program.nodes.size(), -1);
  std::vector<bool> is_needed(program.nodes.size());
  for (const int32_t result : program.results) is_needed[result] = true;
  for (size_t i = program.nodes.size(); i-- > 0;) {
    const Node& node = program.nodes[i];
    for (int j = 0; is_needed[i] && j < NumOperands(node.op); ++j) {
      is_needed[node.args[j]] = true;
      last[node.args[j]] = std::max(last[node.args[j]], static_cast<int32_t>(i));
    }
  }
  return last;
}

}  // namespace

Code Compile(const Program& original) {
  Code code;
  const Program program = WithMulAdds(original);
  const std::vector<Level> levels = LevelsOf(program);
  const std::vector<int32_t> last_uses = LastUses(program);
  const int64_t num_uniforms = std::count(levels.begin(), levels.end(), Level::kUniform);
  const int64_t first_result = program.num_inputs + num_uniforms;
  const int64_t first_temporary = first_result + static_cast<int64_t>(program.results.size());

  std::vector<int64_t> slots(program.nodes.size(), -1);
  std::vector<int64_t> free;  // temporaries
  for (size_t i = 0; i < program.nodes.size(); ++i) {
    const Node& node = program.nodes[i];
    const int count = NumOperands(node.op);
    if (levels[i] == Level::kUniform) {
      slots[i] = program.num_inputs + static_cast<int64_t>(code.uniforms.size());
      code.uniforms.push_back(UniformNode(node, slots, program.num_inputs));
      continue;
    }
    if (node.op == Op::kInput) {
      slots[i] = node.args[0];
      continue;
    }
    const auto result =
        std::find(program.results.begin(), program.results.end(), static_cast<int32_t>(i));
    if (result == program.results.end() && last_uses[i] < 0) continue;
    Step step{node.op};
    for (int j = 0; j < count; ++j) step.args[j] = static_cast<uint16_t>(slots[node.args[j]]);
    // A step may write where it reads. An operand may come twice.
    for (int j = 0; j < count; ++j) {
      const int32_t operand = node.args[j];
      const bool is_first =
          std::find(node.args.begin(), node.args.begin() + j, operand) == node.args.begin() + j;
      if (is_first && slots[operand] >= first_temporary &&
          last_uses[operand] == static_cast<int32_t>(i))
        free.push_back(slots[operand]);
    }
    if (result != program.results.end()) {
      slots[i] = first_result + (result - program.results.begin());
    } else if (free.empty()) {
      slots[i] = first_temporary + code.num_temporaries++;
    } else {
      slots[i] = free.back();
      free.pop_back();
    }
    step.to = static_cast<uint16_t>(slots[i]);
    code.steps.push_back(step);
  }
  CheckSlots(program, code.uniforms.size(), code.num_temporaries);
  // Inputs and uniform numbers that are results, and results that come twice.
  for (size_t i = 0; i < program.results.size(); ++i) {
    const auto slot = static_cast<uint16_t>(slots[program.results[i]]);
    const auto to = static_cast<uint16_t>(first_result + static_cast<int64_t>(i));
    if (slot != to) code.steps.push_back({Op::kCopy, to, {slot, 0, 0}});
  }
  return code;
}

std::vector<double> UniformsOf(const std::vector<Node>& uniforms, c10::ArrayRef<double> numbers,
                               int64_t length) {
  std::vector<double> values;
  values.reserve(uniforms.size());
  for (const Node& node : uniforms) {
    if (node.op == Op::kConstant) {
      values.push_back(node.value);
    } else if (node.op == Op::kNumber) {
      values.push_back(numbers[node.args[0]]);
    } else if (node.op == Op::kLength) {
      values.push_back(static_cast<double>(length));
    } else {
      const int count = NumOperands(node.op);
      const auto operand = [&](int i) { return i < count ? values[node.args[i]] : 0; };
      values.push_back(Evaluate(node.op, operand(0), operand(1), operand(2)));
    }
  }
  return values;
}

}  // namespace lockstep::kernels::pointwise
