// Translates operators of ATen to the formulas that they compute for each element. Private to
// recording.cc.

#ifndef LOCKSTEP_KERNELS_POINTWISE_TRANSLATION_H_
#define LOCKSTEP_KERNELS_POINTWISE_TRANSLATION_H_

#include <optional>
#include <string>
#include <vector>

#include "ATen/core/ivalue.h"
#include "kernels/pointwise/program.h"

namespace lockstep::kernels::pointwise {

// An argument of an operator.
struct Operand {
  Value value;                          // of a tensor or a number
  std::optional<at::ScalarType> dtype;  // of a tensor
  c10::IValue other;                    // of a number or anything else; None is absent
};

// Returns whether the operator, "aten::mul", can be translated. Overloads have one name.
bool IsTranslated(const std::string& name);

// Returns whether the operator reduces dimensions.
bool IsReduction(const std::string& name);

// Returns whether the result of a reduction has the last dimension too, with size 1.
bool KeepsDimension(const std::vector<Operand>& operands);

// Returns what is wrong with the dimensions of a reduction, or "": only the last one, as -1, can be
// reduced.
std::string ProblemOfReduction(const std::vector<Operand>& operands);

// Returns the operator's name as Lua and Python have it: "torch.mul".
std::string ShownName(const std::string& name);

// Returns the operator's result, which has this dtype. For arguments that cannot be translated sets
// `*problem`: "with a rounding mode cannot be fused".
Value Translate(Builder* builder, const std::string& name, const std::vector<Operand>& operands,
                at::ScalarType dtype, std::string* problem);

}  // namespace lockstep::kernels::pointwise

#endif  // LOCKSTEP_KERNELS_POINTWISE_TRANSLATION_H_
