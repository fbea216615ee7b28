#include "kernels/attention/flash.h"

#include <cmath>
#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>

#include "ATen/Parallel.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/empty_like.h"
#include "c10/util/Exception.h"
#include "kernels/aten/instruction_set.h"
#include "kernels/aten/parallel.h"
#include "kernels/aten/private_operators.h"
#include "kernels/attention/flash_loops.h"
#include "torch/library.h"

namespace lockstep::kernels {

// One of flash_cpu.cc's compilations each: the loops in float32, and in float64.
LOCKSTEP_DECLARE_COMPILATIONS(FlashLoops kFlashLoops[2])

namespace {

using Mask = std::optional<at::Tensor>;
using Pair = std::tuple<at::Tensor, at::Tensor>;
using Triple = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

const FlashLoops& LoopsOf(at::ScalarType dtype) {
  static const FlashLoops* const loops = LOCKSTEP_CHOSEN_COMPILATION(kFlashLoops);
  return loops[dtype == at::kDouble ? 1 : 0];
}

at::Tensor DenseRows(const at::Tensor& x) { return x.stride(3) == 1 ? x : x.contiguous(); }

FlashTensor FlashTensorOf(const at::Tensor& x) {
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
      .q = FlashTensorOf(q),
      .k = FlashTensorOf(k),
      .v = FlashTensorOf(v),
      .y = FlashTensorOf(y),
      .logsumexp = FlashTensorOf(logsumexp),
  };
}

constexpr int64_t kSmallestBlock = 32;

// Shares `count` parts of the problem out over threads.
void Run(const FlashProblem& problem, bool backward, int64_t count) {
  const FlashLoops& loops = LoopsOf(problem.dtype);
  const auto loop = backward ? loops.backward : loops.forward;
  const int64_t scratch = loops.scratch(problem, backward);
  ParallelFor(count, 1, [&](int64_t begin, int64_t end) {
    const at::Tensor memory = at::empty({scratch}, problem.dtype);
    loop(problem, begin, end, memory.mutable_data_ptr());
  });
}

void CheckInputs(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  TORCH_CHECK_VALUE(CanUseFlashAttention(q, k, v),
                    "FlashAttention: expected q [batch, heads, queries, dim] and k, v [batch, "
                    "heads, keys, dim] on the CPU, float32 or float64 and not empty; got ",
                    q.sizes(), " ", q.scalar_type(), ", ", k.sizes(), " ", k.scalar_type(), " and ",
                    v.sizes(), " ", v.scalar_type());
}

void CheckIsLike(const at::Tensor& x, const char* name, const at::Tensor& like) {
  TORCH_CHECK_VALUE(x.sizes() == like.sizes() && x.scalar_type() == like.scalar_type(),
                    "FlashAttention: ", name, " must be ", like.sizes(), " ", like.scalar_type(),
                    ", got ", x.sizes(), " ", x.scalar_type());
}

void CheckResult(const at::Tensor& x, const char* name, const at::Tensor& like) {
  CheckIsLike(x, name, like);
  TORCH_CHECK_VALUE(x.stride(3) == 1, "FlashAttention: ", name,
                    " must be dense along dim, got strides ", x.strides());
}

// --- ATen's operators, computed here

// Set for each thread, because each state of Lua runs on a thread of its own.
thread_local bool replaces_aten = false;

// Below this the kernel takes longer than ATen's: it packs keys and values, for few products.
constexpr int64_t kFewQueries = 8, kManyKeys = 32;

bool IsOurs(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double dropout,
            const Mask& mask) {
  return replaces_aten && dropout == 0 && !(mask.has_value() && mask->defined()) &&
         CanUseFlashAttention(q, k, v) && q.stride(3) == 1 && k.stride(3) == 1 &&
         v.stride(3) == 1 && (q.size(2) >= kFewQueries || k.size(2) <= kManyKeys);
}

Pair Forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double dropout,
             bool causal, const Mask& mask, std::optional<double> scale) {
  const auto empty_logsumexp = [&] {
    return at::empty({q.size(0), q.size(2), q.size(1)}, q.options()).transpose(1, 2);
  };
  // ATen's kernel divides by the number of heads.
  if (q.dim() == 4 && q.size(1) == 0) return {at::empty_like(q), empty_logsumexp()};
  if (!IsOurs(q, k, v, dropout, mask))
    return AtenFlashAttention(q, k, v, dropout, causal, mask, scale);
  at::Tensor y = at::empty_like(q);  // q's order of strides
  if (y.stride(3) != 1) y = at::empty(q.sizes(), q.options());
  const at::Tensor logsumexp = empty_logsumexp();
  FlashAttention(q, k, v, causal, scale, y, logsumexp);
  return {y, logsumexp};
}

Triple Backward(const at::Tensor& dy, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                const at::Tensor& y, const at::Tensor& logsumexp, double dropout, bool causal,
                const Mask& mask, std::optional<double> scale) {
  if (q.dim() == 4 && q.size(1) == 0)
    return {at::empty_like(q), at::empty_like(k), at::empty_like(v)};
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
  // Silences the dispatcher's warning about an overridden kernel: overriding is the purpose.
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

bool CanUseFlashAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const at::ScalarType dtype = q.scalar_type();
  return q.is_cpu() && k.is_cpu() && v.is_cpu() && (dtype == at::kFloat || dtype == at::kDouble) &&
         k.scalar_type() == dtype && v.scalar_type() == dtype && q.dim() == 4 && k.dim() == 4 &&
         k.sizes() == v.sizes() && q.size(0) == k.size(0) && q.size(1) == k.size(1) &&
         q.size(3) == k.size(3) && q.numel() > 0 && k.numel() > 0;
}

void FlashAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, bool causal,
                    std::optional<double> scale, const at::Tensor& y, const at::Tensor& logsumexp) {
  CheckInputs(q, k, v);
  CheckResult(y, "y", q);
  CheckIsLike(logsumexp, "logsumexp", q.select(3, 0));
  const at::Tensor rows[] = {DenseRows(q), DenseRows(k), DenseRows(v)};
  FlashProblem problem = ProblemOf(rows[0], rows[1], rows[2], y, logsumexp, causal, scale);
  // Few heads have smaller blocks, so that all threads have one. The bits stay the same.
  const int64_t threads = at::in_parallel_region() ? 1 : at::get_num_threads();
  const auto tasks = [&] { return problem.batch * problem.heads * QueryBlocks(problem); };
  while (tasks() < threads && problem.query_block > kSmallestBlock) problem.query_block /= 2;
  Run(problem, /*backward=*/false, tasks());
}

void FlashAttentionBackward(const at::Tensor& dy, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const at::Tensor& y, const at::Tensor& logsumexp,
                            bool causal, std::optional<double> scale, const at::Tensor& dq,
                            const at::Tensor& dk, const at::Tensor& dv) {
  CheckInputs(q, k, v);
  CheckIsLike(dy, "dy", q);
  CheckIsLike(y, "y", q);
  CheckIsLike(logsumexp, "logsumexp", q.select(3, 0));
  CheckResult(dq, "dq", q);
  CheckResult(dk, "dk", k);
  CheckResult(dv, "dv", v);
  const at::Tensor rows[] = {DenseRows(dy), DenseRows(q), DenseRows(k), DenseRows(v), DenseRows(y)};
  FlashProblem problem = ProblemOf(rows[1], rows[2], rows[3], rows[4], logsumexp, causal, scale);
  problem.dy = FlashTensorOf(rows[0]);
  problem.dq = FlashTensorOf(dq);
  problem.dk = FlashTensorOf(dk);
  problem.dv = FlashTensorOf(dv);
  Run(problem, /*backward=*/true, problem.batch * problem.heads);
}

bool ReplaceAtenFlashAttention(bool enabled) {
  static const bool registered = (Register(), true);
  static_cast<void>(registered);
  return std::exchange(replaces_aten, enabled);
}

}  // namespace lockstep::kernels
