#include "kernels/pointwise/row_code.h"

#include <algorithm>
#include <map>
#include <utility>

#include "kernels/pointwise/code.h"

// A node of rows is computed as early as it can be, before the first phase that could use it. A
// reduction is a part of the earliest phase that has its operand, so that few phases remain. Any
// other node of elements is computed as late as it can be, so that little is kept.

namespace lockstep::kernels::pointwise {
namespace {

bool IsFull(Level level) { return level == Level::kFull; }

std::vector<bool> NeededNodes(const Program& program) {
  std::vector<bool> needed(program.nodes.size());
  for (const int32_t result : program.results) needed[result] = true;
  for (size_t i = program.nodes.size(); i-- > 0;) {
    const Node& node = program.nodes[i];
    for (int j = 0; needed[i] && j < NumOperands(node.op); ++j) needed[node.args[j]] = true;
  }
  return needed;
}

// Returns the phase of each node, from its first one.
std::vector<int32_t> Phases(const Program& program, const std::vector<Level>& levels,
                            const std::vector<bool>& needed) {
  constexpr int32_t kNever = INT32_MAX;
  const std::vector<int32_t> first = FirstPhases(program);
  std::vector<int32_t> phases(program.nodes.size(), kNever);
  for (size_t i = program.nodes.size(); i-- > 0;) {
    const Node& node = program.nodes[i];
    if (!needed[i]) continue;
    if (phases[i] == kNever || !IsFull(levels[i])) phases[i] = first[i];
    for (int j = 0; j < NumOperands(node.op); ++j) {
      const int32_t use = IsReduction(node.op) ? first[i] - 1 : phases[i];
      phases[node.args[j]] = std::min(phases[node.args[j]], use);
    }
  }
  return phases;
}

// Slots of one size. A slot that is free again may be taken again.
class Slots {
 public:
  int64_t Take() {
    if (free_.empty()) return count_++;
    const int64_t slot = free_.back();
    free_.pop_back();
    return slot;
  }
  void Free(int64_t slot) { free_.push_back(slot); }
  int64_t count() const { return count_; }

 private:
  int64_t count_ = 0;
  std::vector<int64_t> free_;
};

// Where a node's numbers are. Places in a pool become slots once all pools have their sizes.
enum class Pool : uint8_t { kFixed, kExpanded, kRows, kBlocks, kKept };
struct Place {
  Pool pool = Pool::kFixed;
  int64_t index = 0;
};

class Compiler {
 public:
  explicit Compiler(const Program& program)
      : program_(program),
        levels_(LevelsOf(program)),
        needed_(NeededNodes(program)),
        phases_(Phases(program, levels_, needed_)),
        places_(program.nodes.size()),
        last_uses_(program.nodes.size(), -1) {}

  RowCode Compile() {
    PlaceFixed();
    Order();
    int32_t num_phases = 0;
    for (size_t i = 0; i < program_.nodes.size(); ++i)
      if (needed_[i]) num_phases = std::max(num_phases, phases_[i] + 1);
    size_t at = 0;  // in order_
    for (int32_t phase = 0; phase < num_phases; ++phase) {
      for (size_t i = 0; i < program_.nodes.size(); ++i) {
        const Op op = program_.nodes[i].op;
        if (phases_[i] == phase && (op == Op::kRowInput || IsReduction(op))) Expand(i);
      }
      for (; at < order_.size() && PartOf(order_[at]) == 2 * phase; ++at) EmitRowStep(at);
      CopyResults(phase, /*is_row=*/true);
      const auto end_of_row_steps = static_cast<int32_t>(drafts_.size());
      CopyResults(phase, /*is_row=*/false);
      for (; at < order_.size() && PartOf(order_[at]) == 2 * phase + 1; ++at) EmitBlockStep(at);
      EmitStores();
      code_.phases.push_back({end_of_row_steps, static_cast<int32_t>(drafts_.size())});
    }
    return Finished();
  }

 private:
  struct Draft {
    Op op;
    Place to;
    std::vector<Place> args;
  };

  // Inputs, uniform numbers, and results that are computed where they are stored.
  void PlaceFixed() {
    std::vector<int64_t> slots(program_.nodes.size());
    for (size_t i = 0; i < program_.nodes.size(); ++i) {
      const Node& node = program_.nodes[i];
      if (levels_[i] == Level::kUniform) {
        slots[i] = program_.num_inputs + static_cast<int64_t>(code_.uniforms.size());
        code_.uniforms.push_back(UniformNode(node, slots, program_.num_inputs));
        places_[i].index = slots[i];
      } else if (node.op == Op::kInput || node.op == Op::kRowInput) {
        places_[i].index = node.args[0];
      }
    }
    first_result_ = program_.num_inputs + static_cast<int64_t>(code_.uniforms.size());
  }

  bool IsComputed(int32_t i) const {
    const Op op = program_.nodes[i].op;
    return levels_[i] != Level::kUniform && op != Op::kInput && op != Op::kRowInput;
  }

  // Returns 2 * phase for steps over rows, one more for steps over blocks.
  int32_t PartOf(int32_t i) const {
    const bool is_reduction = IsReduction(program_.nodes[i].op);
    if (is_reduction) return 2 * (phases_[i] - 1) + 1;
    return 2 * phases_[i] + (IsFull(levels_[i]) ? 1 : 0);
  }

  // Orders the nodes by their parts of phases, and finds the last use of each.
  void Order() {
    for (size_t i = 0; i < program_.nodes.size(); ++i)
      if (needed_[i] && IsComputed(static_cast<int32_t>(i)))
        order_.push_back(static_cast<int32_t>(i));
    std::stable_sort(order_.begin(), order_.end(),
                     [&](int32_t a, int32_t b) { return PartOf(a) < PartOf(b); });
    for (size_t at = 0; at < order_.size(); ++at) {
      const Node& node = program_.nodes[order_[at]];
      for (int j = 0; j < NumOperands(node.op); ++j)
        last_uses_[node.args[j]] = static_cast<int32_t>(at);
    }
  }

  // Returns the result that the node is, or -1.
  int64_t ResultOf(int32_t i) const {
    for (size_t k = 0; k < program_.results.size(); ++k)
      if (program_.results[k] == i && program_.row_results[k] != IsFull(levels_[i]))
        return static_cast<int64_t>(k);
    return -1;
  }

  // Returns the last part of a phase that uses the node, or -1.
  int32_t LastPart(int32_t i) const {
    return last_uses_[i] < 0 ? -1 : PartOf(order_[last_uses_[i]]);
  }

  Place TakePlace(int32_t i) {
    const int64_t result = ResultOf(i);
    const bool is_kept = IsFull(levels_[i]) && LastPart(i) > PartOf(i);
    if (result >= 0 && !is_kept) return {Pool::kFixed, first_result_ + result};
    if (!IsFull(levels_[i])) return {Pool::kRows, rows_.Take()};
    if (is_kept) return {Pool::kKept, kept_.Take()};
    return {Pool::kBlocks, blocks_.Take()};
  }

  void FreeOperands(size_t at) {
    const Node& node = program_.nodes[order_[at]];
    for (int j = 0; j < NumOperands(node.op); ++j) {
      const int32_t operand = node.args[j];
      const bool is_first =
          std::find(node.args.begin(), node.args.begin() + j, operand) == node.args.begin() + j;
      if (!is_first || last_uses_[operand] != static_cast<int32_t>(at)) continue;
      const Place& place = places_[operand];
      if (place.pool == Pool::kBlocks) blocks_.Free(place.index);
      if (place.pool == Pool::kKept) kept_.Free(place.index);
      // A number of rows is free where steps over rows have used it last. Results stay.
      if (place.pool == Pool::kRows && PartOf(order_[at]) % 2 == 0) rows_.Free(place.index);
    }
  }

  // --- Steps

  // Returns whether steps over blocks use the number of a row.
  bool IsExpanded(int32_t i) const {
    for (size_t user = 0; user < program_.nodes.size(); ++user) {
      const Node& node = program_.nodes[user];
      if (!needed_[user] || !IsFull(levels_[user])) continue;
      for (int j = 0; j < NumOperands(node.op); ++j)
        if (node.args[j] == i) return true;
    }
    for (size_t k = 0; k < program_.results.size(); ++k)
      if (program_.results[k] == i && !program_.row_results[k]) return true;
    return false;
  }

  // Expands a number of rows as soon as it is there: its slot may be taken again.
  void Expand(size_t i) {
    if (!needed_[i] || levels_[i] != Level::kRow || !IsExpanded(static_cast<int32_t>(i))) return;
    const Place to = {Pool::kExpanded, num_expanded_++};
    drafts_.push_back({Op::kExpand, to, {places_[i]}});
    expanded_[static_cast<int32_t>(i)] = to;
  }

  // Returns the operand of a step over blocks. Loads it if this phase has not.
  Place BlockOperand(int32_t i) {
    const auto expanded = expanded_.find(i);
    if (expanded != expanded_.end()) return expanded->second;
    if (program_.nodes[i].op == Op::kInput && !std::exchange(loaded_[i], true)) {
      const bool is_first = !std::exchange(loaded_before_[i], true);
      drafts_.push_back({Op::kLoad, {}, {places_[i], {Pool::kFixed, is_first ? 1 : 0}}});
    }
    return places_[i];
  }

  void EmitRowStep(size_t at) {
    const int32_t i = order_[at];
    const Node& node = program_.nodes[i];
    Draft draft{node.op, {}, {}};
    for (int j = 0; j < NumOperands(node.op); ++j) draft.args.push_back(places_[node.args[j]]);
    Emit(at, std::move(draft));
    Expand(i);
  }

  void EmitBlockStep(size_t at) {
    const int32_t i = order_[at];
    const Node& node = program_.nodes[i];
    Draft draft{node.op, {}, {}};
    for (int j = 0; j < NumOperands(node.op); ++j) draft.args.push_back(BlockOperand(node.args[j]));
    Emit(at, std::move(draft));
    if (!IsFull(levels_[i])) return;  // a reduction, which the next phase has
    for (size_t k = 0; k < program_.results.size(); ++k)
      if (program_.results[k] == i && !program_.row_results[k]) CopyResult(k);
  }

  // A step may write where it reads.
  void Emit(size_t at, Draft draft) {
    FreeOperands(at);
    draft.to = places_[order_[at]] = TakePlace(order_[at]);
    drafts_.push_back(std::move(draft));
  }

  // Copies results that no step writes: inputs, numbers, results that come twice.
  void CopyResults(int32_t phase, bool is_row) {
    for (size_t k = 0; k < program_.results.size(); ++k) {
      const int32_t i = program_.results[k];
      const bool is_written = !is_row && IsFull(levels_[i]) && IsComputed(i);
      if (program_.row_results[k] == is_row && phases_[i] == phase && !is_written) CopyResult(k);
    }
  }

  void CopyResult(size_t k) {
    const int32_t i = program_.results[k];
    const Place to = {Pool::kFixed, first_result_ + static_cast<int64_t>(k)};
    const bool is_row = program_.row_results[k];
    const Place from = is_row ? places_[i] : BlockOperand(i);
    if (from.pool != to.pool || from.index != to.index) drafts_.push_back({Op::kCopy, to, {from}});
    if (!is_row) to_store_.push_back(static_cast<int64_t>(k));
  }

  void EmitStores() {
    for (const int64_t result : to_store_)
      drafts_.push_back({Op::kStore, {}, {{Pool::kFixed, result}}});
    to_store_.clear();
    loaded_.clear();
  }

  RowCode Finished() {
    const int64_t first = first_result_ + static_cast<int64_t>(program_.results.size());
    const int64_t starts[] = {0, first, first + num_expanded_,
                              first + num_expanded_ + rows_.count(),
                              first + num_expanded_ + rows_.count() + blocks_.count()};
    code_.num_temporaries = num_expanded_ + rows_.count() + blocks_.count() + kept_.count();
    code_.num_kept = kept_.count();
    CheckSlots(program_, code_.uniforms.size(), code_.num_temporaries);
    const auto slot = [&](const Place& place) {
      return static_cast<uint16_t>(starts[static_cast<int>(place.pool)] + place.index);
    };
    for (const Draft& draft : drafts_) {
      Step step{draft.op, slot(draft.to)};
      for (size_t j = 0; j < draft.args.size(); ++j) step.args[j] = slot(draft.args[j]);
      code_.steps.push_back(step);
    }
    return std::move(code_);
  }

  const Program& program_;
  const std::vector<Level> levels_;
  const std::vector<bool> needed_;
  const std::vector<int32_t> phases_;
  std::vector<Place> places_;
  std::vector<int32_t> last_uses_;  // places in order_
  std::vector<int32_t> order_;
  std::map<int32_t, Place> expanded_;
  std::map<int32_t, bool> loaded_, loaded_before_;  // inputs, in this phase and in any
  std::vector<int64_t> to_store_;
  Slots rows_, blocks_, kept_;
  int64_t num_expanded_ = 0, first_result_ = 0;
  std::vector<Draft> drafts_;
  RowCode code_;
};

}  // namespace

RowCode CompileRows(const Program& program) { return Compiler(WithMulAdds(program)).Compile(); }

}  // namespace lockstep::kernels::pointwise
