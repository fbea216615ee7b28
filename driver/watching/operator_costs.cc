#include "driver/watching/operator_costs.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "ATen/Parallel.h"
#include "ATen/core/Tensor.h"
#include "ATen/core/grad_mode.h"
#include "ATen/core/ivalue.h"
#include "ATen/ops/empty_like.h"
#include "ATen/ops/mm.h"
#include "ATen/ops/ones.h"
#include "ATen/record_function.h"
#include "c10/core/impl/VirtualGuardImpl.h"
#include "c10/util/Exception.h"
#include "driver/watching/flops.h"
#include "driver/watching/operator_groups.h"

namespace lockstep::driver {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void Synchronize(c10::Device device) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.synchronizeDevice(device.has_index() ? device.index() : guard.getDevice().index());
}

// --- Bytes ---------------------------------------------------------------------------------------

int64_t BytesOf(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided) return 0;
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) return 0;  // the 2 of x * 2
  int64_t elements = 1;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim)
    elements *= tensor.stride(dim) == 0 && tensor.size(dim) > 0 ? 1 : tensor.size(dim);
  return elements * static_cast<int64_t>(tensor.itemsize());
}

int64_t BytesOf(const c10::IValue& value) {
  if (value.isTensor()) return BytesOf(value.toTensor());
  if (!value.isList()) return 0;
  int64_t bytes = 0;
  for (const c10::IValue& element : value.toListRef()) bytes += BytesOf(element);
  return bytes;
}

// The dtype of a product of matrices, as the table of peaks has it.
c10::ScalarType DtypeOf(c10::ArrayRef<const c10::IValue> inputs) {
  for (const c10::IValue& input : inputs) {
    if (!input.isTensor() || !input.toTensor().defined()) continue;
    const c10::ScalarType dtype = input.toTensor().scalar_type();
    if (dtype == at::kDouble || dtype == at::kBFloat16 || dtype == at::kHalf) return dtype;
    break;
  }
  return at::kFloat;
}

// --- Peaks ---------------------------------------------------------------------------------------

constexpr int kRuns = 5;

// Returns the least time of some runs, after one that is not timed.
template <typename Run>
double BestSeconds(c10::Device device, int runs, const Run& run) {
  run();
  double best = 0;
  for (int i = 0; i < runs; ++i) {
    Synchronize(device);
    const Clock::time_point start = Clock::now();
    run();
    Synchronize(device);
    const double seconds = SecondsSince(start);
    best = i == 0 ? seconds : std::min(best, seconds);
  }
  return std::max(best, 1e-9);
}

double MeasureCopy(c10::Device device) {
  const int64_t bytes = int64_t{device.is_cpu() ? 128 : 512} << 20;
  const at::Tensor from = at::ones({bytes}, at::TensorOptions(device).dtype(at::kByte));
  at::Tensor to = at::empty_like(from);
  return 2.0 * static_cast<double>(bytes) / BestSeconds(device, kRuns, [&] { to.copy_(from); });
}

double MeasureProduct(c10::Device device, c10::ScalarType dtype, int64_t size, int runs) {
  const at::Tensor x = at::ones({size, size}, at::TensorOptions(device).dtype(dtype));
  at::Tensor y = at::empty_like(x);
  const double n = static_cast<double>(size);
  return 2 * n * n * n / BestSeconds(device, runs, [&] { at::mm_out(y, x, x); });
}

double MeasureProducts(c10::Device device, c10::ScalarType dtype) {
  constexpr int64_t kSmall = 256, kLarge = 1024, kOnGpu = 8192;
  constexpr double kSlow = 2e9;  // FLOP/s: a CPU without instructions for this dtype
  if (!device.is_cpu()) return MeasureProduct(device, dtype, kOnGpu, kRuns);
  const double small = MeasureProduct(device, dtype, kSmall, 1);
  return small < kSlow ? small : MeasureProduct(device, dtype, kLarge, kRuns);
}

}  // namespace

Peaks MeasurePeaks(c10::Device device, const std::set<c10::ScalarType>& dtypes) {
  static std::mutex mutex;
  static auto* const measured = new std::map<std::tuple<std::string, int>, Peaks>();
  const std::lock_guard<std::mutex> lock(mutex);
  const at::NoGradGuard no_grad;
  const at::RecordFunctionGuard unobserved(/*is_enabled=*/false);
  Peaks& peaks = (*measured)[{device.str(), at::get_num_threads()}];
  if (peaks.bytes_per_s == 0) peaks.bytes_per_s = MeasureCopy(device);
  for (const c10::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    if (dtype != at::kFloat && dtypes.count(dtype) == 0) continue;
    double& flops_per_s = peaks.flops_per_s[dtype];
    if (flops_per_s == 0) flops_per_s = MeasureProducts(device, dtype);
  }
  return peaks;
}

// --- Measuring -----------------------------------------------------------------------------------

struct OperatorCosts::State {
  // A call that has not ended.
  struct Frame : at::ObserverContext {
    const OperatorKind* kind = nullptr;
    Frame* caller = nullptr;
    bool has_parts = false;
    int64_t selected_from = 0;  // bytes of the first argument of index_select, gather
    int64_t bytes = 0;          // of the others
    int64_t flops = 0;
    c10::ScalarType dtype = at::kFloat;
    Clock::time_point start;
  };
  // Calls that cost the same: each has its own bound.
  using Key =
      std::tuple<const OperatorKind*, c10::ScalarType, int64_t /*bytes*/, int64_t /*flops*/>;
  struct Sum {
    int64_t calls = 0;
    Clock::duration time{0};
  };

  static std::unique_ptr<at::ObserverContext> OnStart(const at::RecordFunction& function);
  static void OnEnd(const at::RecordFunction& function, at::ObserverContext* context);

  const OperatorKind* FindKind(const c10::OperatorName& name);
  void CountInputs(Frame& frame, c10::ArrayRef<const c10::IValue> inputs) const;
  void Add(const Frame& frame, const std::vector<c10::IValue>& outputs, Clock::duration time);

  c10::Device device = c10::kCPU;
  at::CallbackHandle callback = 0;
  Clock::time_point start;
  std::unordered_map<c10::OperatorName, std::unique_ptr<OperatorKind>> kinds;
  std::map<Key, Sum> sums;
  Frame* innermost = nullptr;
  bool looks_away = false;  // within a kernel, and while this file itself calls operators

  static thread_local State* measuring;
};

thread_local OperatorCosts::State* OperatorCosts::State::measuring = nullptr;

const OperatorKind* OperatorCosts::State::FindKind(const c10::OperatorName& name) {
  std::unique_ptr<OperatorKind>& kind = kinds[name];
  if (kind == nullptr) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    kind = std::make_unique<OperatorKind>();
    kind->work = OperatorKind::Work::kNone;
    if (op.has_value()) *kind = KindOf(*op, device);
  }
  return kind.get();
}

void OperatorCosts::State::CountInputs(Frame& frame,
                                       c10::ArrayRef<const c10::IValue> inputs) const {
  const OperatorKind& kind = *frame.kind;
  for (size_t i = 0; i < std::min(inputs.size(), kind.arguments.size()); ++i) {
    const int64_t bytes = BytesOf(inputs[i]);
    if (i == 0 && kind.reads_a_selection) {
      frame.selected_from = bytes;
      continue;
    }
    frame.bytes += bytes * (int{kind.arguments[i].is_read} + int{kind.arguments[i].is_written});
  }
  if (!kind.has_flops) return;
  frame.flops = FlopsOf(kind.name.c_str(), inputs).value_or(0);
  frame.dtype = DtypeOf(inputs);
}

std::unique_ptr<at::ObserverContext> OperatorCosts::State::OnStart(
    const at::RecordFunction& function) {
  State* const state = measuring;
  if (state == nullptr || state->looks_away) return nullptr;
  const std::optional<c10::OperatorName> name = function.operator_name();
  if (!name.has_value()) return nullptr;
  const OperatorKind* const kind = state->FindKind(*name);
  if (kind->work == OperatorKind::Work::kNone) return nullptr;
  auto frame = std::make_unique<Frame>();
  frame->kind = kind;
  state->looks_away = true;  // a formula may read the lengths of packed sequences
  state->CountInputs(*frame, function.inputs());
  state->looks_away = kind->work == OperatorKind::Work::kOwn;
  frame->caller = std::exchange(state->innermost, frame.get());
  frame->start = Clock::now();
  return frame;
}

void OperatorCosts::State::OnEnd(const at::RecordFunction& function, at::ObserverContext* context) {
  auto* const frame = static_cast<Frame*>(context);
  State* const state = measuring;
  if (frame == nullptr || state == nullptr) return;
  if (frame->kind->work == OperatorKind::Work::kOwn) Synchronize(state->device);
  const Clock::duration time = Clock::now() - frame->start;
  state->looks_away = false;
  state->innermost = frame->caller;
  if (frame->caller != nullptr) frame->caller->has_parts = true;
  if (!frame->has_parts) state->Add(*frame, function.outputs(), time);
}

void OperatorCosts::State::Add(const Frame& frame, const std::vector<c10::IValue>& outputs,
                               Clock::duration time) {
  const OperatorKind& kind = *frame.kind;
  int64_t written = 0;
  for (size_t i = 0; i < std::min(outputs.size(), kind.returns_new_memory.size()); ++i)
    written += kind.returns_new_memory[i] ? BytesOf(outputs[i]) : 0;
  const int64_t bytes = frame.bytes + written + std::min(frame.selected_from, written);
  Sum& sum = sums[{&kind, frame.dtype, bytes, frame.flops}];
  ++sum.calls;
  sum.time += time;
}

OperatorCosts::OperatorCosts(c10::Device device) : state_(std::make_unique<State>()) {
  TORCH_CHECK_VALUE(State::measuring == nullptr,
                    "another roofline is under way: there is one at a time");
  state_->device = device;
  State::measuring = state_.get();
  state_->callback =
      at::addThreadLocalCallback(at::RecordFunctionCallback(State::OnStart, State::OnEnd)
                                     .needsInputs(true)
                                     .needsOutputs(true)
                                     .scopes({at::RecordScope::FUNCTION}));
  state_->start = Clock::now();
}

OperatorCosts::~OperatorCosts() { Stop(); }

void OperatorCosts::Stop() {
  if (State::measuring != state_.get()) return;
  Synchronize(state_->device);
  seconds_ = SecondsSince(state_->start);
  at::removeCallback(state_->callback);
  State::measuring = nullptr;
}

std::set<c10::ScalarType> OperatorCosts::FlopDtypes() const {
  std::set<c10::ScalarType> dtypes;
  for (const auto& [key, sum] : state_->sums) {
    if (std::get<0>(key)->has_flops) dtypes.insert(std::get<1>(key));
  }
  return dtypes;
}

std::vector<OperatorCost> OperatorCosts::ByOperator(const Peaks& peaks) const {
  std::map<std::string, OperatorCost> by_name;
  for (const auto& [key, sum] : state_->sums) {
    const auto& [kind, dtype, bytes, flops] = key;
    OperatorCost& cost = by_name[kind->name];
    cost.name = kind->name;
    cost.group = kind->group;
    cost.calls += sum.calls;
    cost.bytes += sum.calls * bytes;
    cost.flops += sum.calls * flops;
    cost.seconds += std::chrono::duration<double>(sum.time).count();
    if (kind->group == "communication") continue;
    const double moving = static_cast<double>(bytes) / peaks.bytes_per_s;
    const double computing = static_cast<double>(flops) / peaks.flops_per_s.at(dtype);
    cost.bound_s += static_cast<double>(sum.calls) * std::max(moving, computing);
  }
  std::vector<OperatorCost> costs;
  for (auto& [name, cost] : by_name) costs.push_back(std::move(cost));
  std::stable_sort(costs.begin(), costs.end(),
                   [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  return costs;
}

}  // namespace lockstep::driver
