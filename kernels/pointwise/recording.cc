#include "kernels/pointwise/recording.h"

#include <cmath>
#include <exception>
#include <memory>
#include <optional>
#include <unordered_map>

#include "ATen/core/function_schema.h"
#include "ATen/core/grad_mode.h"
#include "ATen/native/TypeProperties.h"
#include "ATen/ops/full.h"
#include "ATen/record_function.h"
#include "c10/core/impl/LocalDispatchKeySet.h"
#include "c10/util/Exception.h"
#include "kernels/pointwise/pointwise.h"
#include "kernels/pointwise/translation.h"

// ATen runs the operators on the proxies, and so finds the dtype of each operation by its own
// rules. Meta tensors would not do: some of the operators have no kernel for them. The recording
// sees the operators as a profiler does. A callback of the profiler cannot throw, so the first
// mistake is noted, and the rest of the function runs for nothing.

namespace lockstep::kernels::pointwise {
namespace {

constexpr const char* kAllowed =
    "A fused function may use + - * / ^, exp, log, sqrt, rsqrt, square, pow, reciprocal, abs, neg, "
    "sin, cos, erf, tanh, sigmoid, silu, relu, gelu, maximum, minimum, clamp, where, masked_fill, "
    "comparisons as x:gt(y), logical_and, logical_or, logical_not, addcmul, addcdiv and casts, of "
    "its arguments and of numbers; and sum, mean, amax and amin over the last dimension";

class Recorder {
 public:
  explicit Recorder(const Whereabouts& where) : where_(where) {
    TORCH_INTERNAL_ASSERT(active == nullptr);
    active = this;
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(OnStart, OnEnd)
                                             .needsInputs(true)
                                             .needsOutputs(true)
                                             .scopes({at::RecordScope::FUNCTION}));
  }
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;
  ~Recorder() {
    at::removeCallback(handle_);
    active = nullptr;
  }

  // Returns a proxy of `num_dims` dimensions, each of this size, with this value everywhere.
  at::Tensor Proxy(const ArgumentKind& kind, int32_t index, int64_t num_dims, int64_t size,
                   double value) {
    const bool is_scalar = kind.is_number || !kind.has_dims;
    const at::Tensor proxy = at::full(at::DimVector(is_scalar ? 0 : num_dims, size), value,
                                      at::dtype(kind.is_number ? at::kDouble : kind.dtype));
    if (kind.is_number) proxy.unsafeGetTensorImpl()->set_wrapped_number(true);
    Keep(proxy, kind.is_number ? builder_.Number(index) : builder_.Input(index), kind.is_number,
         /*is_argument=*/true);
    return proxy;
  }

  static bool IsActive() { return active != nullptr; }

  // Throws the first mistake, if there was one.
  void Check() const { TORCH_CHECK_VALUE(mistake_.empty(), mistake_, ". ", kAllowed); }

  Recorded Finish(const std::vector<at::Tensor>& results, int32_t num_inputs) {
    TORCH_CHECK_VALUE(!results.empty(),
                      "the function returns nothing; it must return tensors that "
                      "it computed from its arguments");
    Recorded recorded;
    std::vector<Value> values;
    std::vector<at::ScalarType> dtypes;
    for (size_t i = 0; i < results.size(); ++i) {
      const Known* known = Find(results[i]);
      TORCH_CHECK_VALUE(known != nullptr && !known->is_number, "result ", i + 1,
                        " of the function is not computed from its tensors");
      values.push_back(known->value);
      recorded.lacks_dimension.push_back(known->lacks_dimension);
      dtypes.push_back(results[i].scalar_type());
      is_wide_ = is_wide_ || dtypes.back() == at::kDouble;
    }
    std::vector<int32_t> inputs;
    const uint64_t all = (uint64_t{1} << num_inputs) - 1;
    recorded.program = builder_.Finish(values, dtypes, is_wide_, &inputs, all);
    return recorded;
  }

 private:
  struct Known {
    Value value;
    bool is_number, is_argument;
    bool lacks_dimension;  // a reduction did not keep the last one
    at::Tensor tensor;     // alive, so that no other takes its address
  };

  // An operator that is under way.
  struct Observed : at::ObserverContext {
    std::string name;
    std::vector<Operand> operands;
    bool is_recorded = false;
    bool is_number = false;  // of numbers alone
    bool is_wide = false;    // its operands promote to float64
    bool is_in_place = false;
    bool lacks_dimension = false;
  };

  static std::unique_ptr<at::ObserverContext> OnStart(const at::RecordFunction& function) {
    return active == nullptr ? nullptr : active->Start(function);
  }
  static void OnEnd(const at::RecordFunction& function, at::ObserverContext* context) {
    if (active != nullptr && context != nullptr)
      active->End(function, static_cast<Observed*>(context));
  }

  void Keep(const at::Tensor& tensor, Value value, bool is_number, bool is_argument,
            bool lacks_dimension = false) {
    known_.insert_or_assign(tensor.unsafeGetTensorImpl(),
                            Known{value, is_number, is_argument, lacks_dimension, tensor});
  }

  const Known* Find(const at::Tensor& tensor) const {
    const auto found = known_.find(tensor.unsafeGetTensorImpl());
    return found == known_.end() ? nullptr : &found->second;
  }

  void Note(const std::string& mistake) {
    if (!mistake_.empty()) return;
    const std::string line = where_ ? where_() : "";
    mistake_ = (line.empty() ? "" : "at " + line + ": ") + mistake;
  }

  std::unique_ptr<at::ObserverContext> Start(const at::RecordFunction& function) {
    auto observed = std::make_unique<Observed>();
    ++depth_;
    if (depth_ > 1 || !mistake_.empty()) return observed;  // a part of an operator
    const auto schema = function.operator_schema();
    if (!schema.has_value()) return observed;
    observed->name = schema->name();
    bool has_proxy = false, is_number = true, has_dimension = false;
    at::native::ResultTypeState promoted;
    for (const c10::IValue& input : function.inputs())
      ForEachTensor(input, [&](const at::Tensor& tensor) {
        const Known* known = Find(tensor);
        has_proxy |= known != nullptr;
        is_number &= known == nullptr || known->is_number;
        const bool lacks_dimension = known != nullptr && known->lacks_dimension;
        has_dimension |= !lacks_dimension && tensor.dim() > 0;
        observed->lacks_dimension |= lacks_dimension;
        promoted = at::native::update_result_type_state(tensor, promoted);
      });
    if (!has_proxy) return observed;  // makes a tensor of its own
    observed->is_recorded = true;
    observed->is_number = is_number;
    observed->is_wide = at::native::result_type(promoted) == at::kDouble;
    const std::string shown = ShownName(observed->name);
    observed->is_in_place = schema->is_mutable();
    if (observed->is_in_place && ChangesOwn(function, observed->name)) {
      observed->name.pop_back();  // mul_ of a tensor that the function made is mul
    } else if (observed->is_in_place) {
      Note(shown + " changes an argument or a tensor from outside in place");
      return observed;
    }
    if (!IsTranslated(observed->name)) {
      Note(shown + " is not pointwise, or not among the operators that can be fused");
    } else {
      for (const c10::IValue& input : function.inputs())
        observed->operands.push_back(ToOperand(input, shown));
      NoteDimensions(observed.get(), shown, has_dimension);
    }
    return observed;
  }

  // An operator does not see that a dimension is gone: it would pair rows with elements.
  void NoteDimensions(Observed* observed, const std::string& shown, bool has_dimension) {
    const char* const advice = "; let the reduction keep it: torch.sum(x, -1, true)";
    if (IsReduction(observed->name)) {
      const std::string problem = ProblemOfReduction(observed->operands);
      if (!problem.empty()) return Note(shown + " " + problem);
      if (!has_dimension) return Note(shown + " of a tensor without a last dimension" + advice);
      observed->lacks_dimension = !KeepsDimension(observed->operands);
    } else if (observed->lacks_dimension && has_dimension) {
      Note(shown + " of a tensor without its last dimension and of one that has it" + advice);
    }
  }

  bool ChangesOwn(const at::RecordFunction& function, const std::string& name) const {
    const c10::ArrayRef<const c10::IValue> inputs = function.inputs();
    if (name.back() != '_' || inputs.empty() || !inputs[0].isTensor()) return false;
    const Known* known = Find(inputs[0].toTensor());
    return known != nullptr && !known->is_argument;
  }

  template <typename Visit>
  static void ForEachTensor(const c10::IValue& value, const Visit& visit) {
    if (value.isTensor()) {
      if (value.toTensor().defined()) visit(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) visit(tensor);
    }
  }

  Operand ToOperand(const c10::IValue& input, const std::string& shown) {
    if (input.isTensor() && input.toTensor().defined()) {
      const at::Tensor& tensor = input.toTensor();
      if (const Known* known = Find(tensor)) return {known->value, tensor.scalar_type(), {}};
      const std::optional<double> number = NumberOf(tensor);
      if (number.has_value()) return {builder_.Constant(*number), tensor.scalar_type(), {}};
      Note(shown + " reads a tensor that is not an argument of the fused function; pass it as one");
      return {builder_.Constant(0), tensor.scalar_type(), {}};
    }
    if (input.isScalar() && !input.toScalar().isComplex())
      return {builder_.Constant(input.toScalar().toDouble()), {}, input};
    return {{}, {}, input};
  }

  // Returns the value of a number that libtorch or the caller wrapped as a tensor.
  static std::optional<double> NumberOf(const at::Tensor& tensor) {
    if (!tensor.unsafeGetTensorImpl()->is_wrapped_number() || !tensor.is_cpu()) return std::nullopt;
    switch (tensor.scalar_type()) {
      case at::kDouble: return *tensor.const_data_ptr<double>();
      case at::kFloat: return *tensor.const_data_ptr<float>();
      case at::kLong: return static_cast<double>(*tensor.const_data_ptr<int64_t>());
      case at::kBool: return *tensor.const_data_ptr<bool>() ? 1 : 0;
      default: return std::nullopt;
    }
  }

  void End(const at::RecordFunction& function, Observed* observed) {
    --depth_;
    if (!observed->is_recorded || !mistake_.empty()) return;
    const std::vector<c10::IValue>& outputs = function.outputs();
    if (outputs.empty()) return;  // it threw, and says why itself
    if (outputs.size() > 1 || !outputs[0].isTensor())
      return Note(ShownName(observed->name) +
                  " over dimensions is not pointwise; torch.amax(x, -1, true) and torch.amin "
                  "reduce rows");
    const at::Tensor& result = outputs[0].toTensor();
    const at::ScalarType dtype = result.scalar_type();
    if (!at::isFloatingType(dtype) && dtype != at::kBool) {
      Note(ShownName(observed->name) + " gives " + c10::toString(dtype) +
           ", but a fused function computes with floating-point tensors and booleans");
      return;
    }
    std::string problem;
    const Value value = Translate(&builder_, observed->name, observed->operands, dtype, &problem);
    if (!problem.empty()) return Note(ShownName(observed->name) + " " + problem);
    if (observed->is_number)
      result.unsafeGetTensorImpl()->set_wrapped_number(true);
    else
      is_wide_ = is_wide_ || observed->is_wide || dtype == at::kDouble;
    // A cast that changes nothing returns its argument.
    if (observed->is_in_place || Find(result) == nullptr)
      Keep(result, value, observed->is_number, /*is_argument=*/false, observed->lacks_dimension);
  }

  static thread_local Recorder* active;

  const Whereabouts& where_;
  Builder builder_;
  std::unordered_map<const c10::TensorImpl*, Known> known_;
  std::string mistake_;
  int depth_ = 0;
  bool is_wide_ = false;
  at::CallbackHandle handle_;
};
thread_local Recorder* Recorder::active = nullptr;

Recorded RecordOnce(const TensorFunction& function, const std::vector<ArgumentKind>& arguments,
                    const Whereabouts& where, int64_t num_dims, int64_t size, double value) {
  Recorder recorder(where);
  std::vector<at::Tensor> proxies;
  int32_t num_inputs = 0, num_numbers = 0;
  for (const ArgumentKind& argument : arguments)
    proxies.push_back(recorder.Proxy(argument, argument.is_number ? num_numbers++ : num_inputs++,
                                     num_dims, size, value));
  TORCH_CHECK_VALUE(num_inputs > 0, "at least one argument must be a tensor");
  TORCH_CHECK_VALUE(num_inputs <= kMostInputs, "at most ", kMostInputs,
                    " arguments may be tensors, got ", num_inputs);
  std::vector<at::Tensor> results;
  try {
    results = function(proxies);
  } catch (const std::exception&) {
    recorder.Check();  // says more, if it has something to say
    throw;
  }
  recorder.Check();
  TORCH_CHECK_VALUE(static_cast<int64_t>(results.size()) <= kMostResults, "at most ", kMostResults,
                    " results, got ", results.size());
  Recorded recorded = recorder.Finish(results, num_inputs);
  const std::vector<uint64_t> inputs = InputsOfNodes(recorded.program);
  for (size_t i = 0; i < results.size(); ++i)
    TORCH_CHECK_VALUE(inputs[recorded.program.results[i]] != 0, "result ", i + 1,
                      " of the function is not computed from its tensors");
  return recorded;
}

}  // namespace

bool IsRecording() { return Recorder::IsActive(); }

Recorded Record(const TensorFunction& function, const std::vector<ArgumentKind>& arguments,
                const Whereabouts& where) {
  const at::NoGradGuard no_grad;
  const c10::impl::ExcludeDispatchKeyGuard no_modes(c10::autocast_dispatch_keyset |
                                                    c10::DispatchKeySet(c10::DispatchKey::Fake));
  Recorded recorded = RecordOnce(function, arguments, where, 1, 2, 0.7);
  const Recorded again = RecordOnce(function, arguments, where, 2, 3, 0);
  TORCH_CHECK_VALUE(
      KeyOf(recorded.program) == KeyOf(again.program) &&
          recorded.lacks_dimension == again.lacks_dimension,
      "the function computes something else for another shape or other values, or at random. It is "
      "recorded once for all: pass what it reads of a shape as a number, and choose by "
      "torch.where");
  return recorded;
}

}  // namespace lockstep::kernels::pointwise
