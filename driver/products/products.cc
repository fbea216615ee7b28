#include "driver/products/products.h"

#include <optional>
#include <string_view>

#include "ATen/Context.h"
#include "ATen/EmptyTensor.h"
#include "ATen/ExpandUtils.h"
#include "ATen/core/Scalar.h"
#include "ATen/ops/addmm_cpu_dispatch.h"
#include "ATen/ops/mm_cpu_dispatch.h"
#include "base/torch/one_dnn.h"
#include "c10/util/Exception.h"
#include "torch/library.h"

// libtorch exports this function without a header: ATen's own mm calls it for bfloat16. It computes
// result = alpha a b + beta result. Unlike the operator mkldnn::_linear_pointwise it reads
// transposed matrices as they are, and writes into an existing one. Null in a libtorch without it.
namespace at::native {
__attribute__((weak)) void mkldnn_matmul(const Tensor& a, const Tensor& b, const Tensor& result,
                                         float beta, float alpha);
}  // namespace at::native

namespace lockstep::driver {
namespace {

bool IsDenseFloat(const at::Tensor& x) {
  return x.scalar_type() == at::kFloat && x.layout() == at::kStrided && x.is_cpu();
}

at::Tensor EmptyProduct(const at::Tensor& a, const at::Tensor& b) {
  return at::Tensor(at::detail::empty_cpu({a.size(0), b.size(1)}, a.options()));
}

// Returns whether oneDNN may write the product into `out` as it is. libtorch's kernels resize, copy
// and report errors.
bool IsResult(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  return IsDenseFloat(out) && out.dim() == 2 && out.size(0) == a.size(0) &&
         out.size(1) == b.size(1) && out.is_contiguous() && !out.is_alias_of(a) &&
         !out.is_alias_of(b);
}

// Returns whether `c` can be added to the product, with these factors. mkldnn_matmul forgets beta
// where alpha is 0, also where it is a number that float32 rounds to 0.
bool IsForSum(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, const at::Scalar& beta,
              const at::Scalar& alpha) {
  return IsForOneDnn(a, b) && IsDenseFloat(c) &&
         at::is_expandable_to(c.sizes(), {a.size(0), b.size(1)}) && !beta.isComplex() &&
         !alpha.isComplex() && static_cast<float>(alpha.toDouble()) != 0;
}

at::Tensor Mm(const at::Tensor& a, const at::Tensor& b) {
  if (!IsForOneDnn(a, b)) return at::cpu::mm(a, b);
  at::Tensor result = EmptyProduct(a, b);
  at::native::mkldnn_matmul(a, b, result, 0, 1);
  return result;
}

at::Tensor& MmOut(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  if (!IsForOneDnn(a, b) || !IsResult(out, a, b)) return at::cpu::mm_outf(a, b, out);
  at::native::mkldnn_matmul(a, b, out, 0, 1);
  return out;
}

at::Tensor Addmm(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b,
                 const at::Scalar& beta, const at::Scalar& alpha) {
  if (!IsForSum(c, a, b, beta, alpha)) return at::cpu::addmm(c, a, b, beta, alpha);
  at::Tensor result = EmptyProduct(a, b);
  if (beta.toDouble() != 0) result.copy_(c);
  at::native::mkldnn_matmul(a, b, result, beta.to<float>(), alpha.to<float>());
  return result;
}

at::Tensor& AddmmOut(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b,
                     const at::Scalar& beta, const at::Scalar& alpha, at::Tensor& out) {
  if (!IsForSum(c, a, b, beta, alpha) || !IsResult(out, a, b) ||
      (out.is_alias_of(c) && !out.is_same(c)))
    return at::cpu::addmm_outf(c, a, b, beta, alpha, out);
  if (beta.toDouble() != 0 && !out.is_same(c)) out.copy_(c);
  at::native::mkldnn_matmul(a, b, out, beta.to<float>(), alpha.to<float>());
  return out;
}

at::Tensor& AddmmInPlace(at::Tensor& c, const at::Tensor& a, const at::Tensor& b,
                         const at::Scalar& beta, const at::Scalar& alpha) {
  if (!IsForSum(c, a, b, beta, alpha) || !IsResult(c, a, b))
    return at::cpu::addmm_(c, a, b, beta, alpha);
  at::native::mkldnn_matmul(a, b, c, beta.to<float>(), alpha.to<float>());
  return c;
}

// Drops libtorch's warning that a kernel is replaced, which is the purpose here.
class NoWarningOfReplacement : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    if (std::string_view(warning.msg()).find("Overriding a previously registered kernel") ==
        std::string_view::npos)
      c10::WarningHandler::process(warning);
  }
};

void Replace() {
  NoWarningOfReplacement handler;
  const c10::WarningUtils::WarningHandlerGuard guard(&handler);
  // Never destroyed: threads may multiply until the process ends.
  static auto* const library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  library->impl("mm", TORCH_FN(Mm));
  library->impl("mm.out", TORCH_FN(MmOut));
  library->impl("addmm", TORCH_FN(Addmm));
  library->impl("addmm.out", TORCH_FN(AddmmOut));
  library->impl("addmm_", TORCH_FN(AddmmInPlace));
}

}  // namespace

bool IsForOneDnn(const at::Tensor& a, const at::Tensor& b) {
  // The sizes come first. They send most small products to MKL, which take a microsecond.
  if (a.dim() != 2 || b.dim() != 2) return false;
  const int64_t m = a.size(0), k = a.size(1), n = b.size(1);
  return m >= kMinSize && k >= kMinSize && n >= kMinSize && m * k >= kMinMultiplications / n &&
         b.size(0) == k && IsDenseFloat(a) && IsDenseFloat(b) &&
         at::globalContext().userEnabledMkldnn();
}

bool InstallProducts() {
  static const bool is_installed = [] {
    if (!base::IsOneDnnFaster() || at::native::mkldnn_matmul == nullptr) return false;
    Replace();
    return true;
  }();
  return is_installed;
}

}  // namespace lockstep::driver
