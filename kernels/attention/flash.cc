#include "kernels/attention/flash.h"

#include <atomic>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

#include "ATen/Parallel.h"
#include "ATen/Version.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/empty_like.h"
#include "c10/util/Exception.h"
#include "kernels/aten/private_operators.h"
#include "kernels/attention/flash_loops.h"
#include "torch/library.h"

namespace lockstep::kernels {

// One of flash_cpu.cc's compilations each.
namespace DEFAULT {
extern const FlashLoops kFlashLoops;
}
#if defined(__x86_64__)
namespace AVX2 {
extern const FlashLoops kFlashLoops;
}
namespace AVX512 {
extern const FlashLoops kFlashLoops;
}
#endif

namespace {

using Mask = std::optional<at::Tensor>;
using Pair = std::tuple<at::Tensor, at::Tensor>;
using Triple = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

const FlashLoops& ChosenLoops() {
  static const FlashLoops& loops = []() -> const FlashLoops& {
#if defined(__x86_64__)
    const std::string capability = at::get_cpu_capability();
    if (capability == "AVX512") return AVX512::kFlashLoops;
    if (capability == "AVX2") return AVX2::kFlashLoops;
#endif
    return DEFAULT::kFlashLoops;
  }();
  return loops;
}

at::Tensor DenseRows(const at::Tensor& x) { return x.stride(3) == 1 ? x : x.contiguous(); }

FlashTensor InLoops(const at::Tensor& x) {
  return {const_cast<void*>(x.const_data_ptr()), x.stride(0), x.stride(1), x.stride(2)};
}

FlashProblem ProblemOf(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                       const at::Tensor& y, const at::Tensor& logsumexp, bool causal,
                       std::optional<double> scale) {
  return {
      .dtype = q.scalar_type(),
      .batch = q.size(0),
      .heads = q.size(1),
      .queries = q.size(2),
      .keys = k.size(2),
      .dim = q.size(3),
      .causal = causal,
      .scale = scale.value_or(1 / std::sqrt(static_cast<double>(q.size(3)))),
      .q = InLoops(q),
      .k = InLoops(k),
      .v = InLoops(v),
      .y = InLoops(y),
      .logsumexp = InLoops(logsumexp),
      .dy = {},
      .dq = {},
      .dk = {},
      .dv = {},
  };
}

// Shares `count` parts of the problem out over threads.
template <typename Loop>
void Run(const FlashProblem& problem, bool backward, int64_t count, const Loop& loop) {
  const int64_t scratch = ChosenLoops().scratch(problem, backward);
  at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
    const at::Tensor memory = at::empty({scratch}, problem.dtype);
    loop(problem, begin, end, memory.mutable_data_ptr());
  });
}

// --- ATen's operators, computed here

std::atomic<bool> replaces_aten = false;

bool IsOurs(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double dropout,
            const Mask& mask) {
  return replaces_aten && dropout == 0 && !(mask.has_value() && mask->defined()) &&
         HasFlashAttention(q, k, v) && q.stride(3) == 1 && k.stride(3) == 1 && v.stride(3) == 1;
}

Pair Forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double dropout,
             bool causal, const Mask& mask, std::optional<double> scale) {
  if (!IsOurs(q, k, v, dropout, mask))
    return AtenFlashAttention(q, k, v, dropout, causal, mask, scale);
  const at::Tensor y = at::empty_like(q);
  const at::Tensor logsumexp =
      at::empty({q.size(0), q.size(2), q.size(1)}, q.options()).transpose(1, 2);
  FlashAttention(q, k, v, causal, scale, y, logsumexp);
  return {y, logsumexp};
}

Triple Backward(const at::Tensor& dy, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                const at::Tensor& y, const at::Tensor& logsumexp, double dropout, bool causal,
                const Mask& mask, std::optional<double> scale) {
  if (!dy.defined() || !IsOurs(q, k, v, dropout, mask))
    return AtenFlashAttentionBackward(dy, q, k, v, y, logsumexp, dropout, causal, mask, scale);
  const auto fresh = [](const at::Tensor& x) {
    return at::empty({x.size(0), x.size(2), x.size(1), x.size(3)}, x.options()).transpose(1, 2);
  };
  const at::Tensor dq = fresh(q), dk = fresh(k), dv = fresh(v);
  FlashAttentionBackward(dy, q, k, v, y, logsumexp, causal, scale, dq, dk, dv);
  return {dq, dk, dv};
}

void Register() {
  // The dispatcher warns that another kernel was there before, which is the purpose.
  class : public c10::WarningHandler {
    void process(const c10::Warning& /*warning*/) override {}
  } silent;
  const c10::WarningUtils::WarningHandlerGuard guard(&silent);
  static torch::Library library(torch::Library::IMPL, "aten", at::DispatchKey::CPU, __FILE__,
                                __LINE__);
  library.impl("_scaled_dot_product_flash_attention_for_cpu", Forward);
  library.impl("_scaled_dot_product_flash_attention_for_cpu_backward", Backward);
}

TORCH_LIBRARY_FRAGMENT(lockstep, library) {
  library.def("replace_flash_attention(bool enabled) -> bool", ReplaceAtenFlashAttention);
}

}  // namespace

bool HasFlashAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const at::ScalarType dtype = q.scalar_type();
  return q.is_cpu() && k.is_cpu() && v.is_cpu() && (dtype == at::kFloat || dtype == at::kDouble) &&
         k.scalar_type() == dtype && v.scalar_type() == dtype && q.dim() == 4 && k.dim() == 4 &&
         k.sizes() == v.sizes() && q.size(0) == k.size(0) && q.size(1) == k.size(1) &&
         q.size(3) == k.size(3) && q.numel() > 0 && k.numel() > 0;
}

void FlashAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal,
                    std::optional<double> scale, const at::Tensor& y, const at::Tensor& logsumexp) {
  const at::Tensor rows[] = {DenseRows(q), DenseRows(k), DenseRows(v)};
  const FlashProblem problem = ProblemOf(rows[0], rows[1], rows[2], y, logsumexp, causal, scale);
  Run(problem, /*backward=*/false, problem.batch * problem.heads * FlashBlocks(problem.queries),
      ChosenLoops().forward);
}

void FlashAttentionBackward(const at::Tensor& dy, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const at::Tensor& y, const at::Tensor& logsumexp,
                            bool causal, std::optional<double> scale, const at::Tensor& dq,
                            const at::Tensor& dk, const at::Tensor& dv) {
  const at::Tensor rows[] = {DenseRows(dy), DenseRows(q), DenseRows(k), DenseRows(v), DenseRows(y)};
  FlashProblem problem = ProblemOf(rows[1], rows[2], rows[3], rows[4], logsumexp, causal, scale);
  problem.dy = InLoops(rows[0]);
  problem.dq = InLoops(dq);
  problem.dk = InLoops(dk);
  problem.dv = InLoops(dv);
  Run(problem, /*backward=*/true, problem.batch * problem.heads, ChosenLoops().backward);
}

bool ReplaceAtenFlashAttention(bool enabled) {
  static const bool registered = (Register(), true);
  static_cast<void>(registered);
  return replaces_aten.exchange(enabled);
}

}  // namespace lockstep::kernels
