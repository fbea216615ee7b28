// Multiplies float32 matrices by oneDNN on processors for which MKL has no AVX-512 code.
//
//    InstallProducts();           // once, at the program's start
//    at::mm(x, weight.t());       // oneDNN's, if IsForOneDnn(x, weight.t())
//
// at::mm calls MKL, which runs AVX2 code on processors of other makers than Intel. oneDNN runs
// AVX-512 code there, and takes about half the time. After InstallProducts the CPU kernels of
// aten::mm, aten::addmm and their in-place and out forms call oneDNN for products that are large
// enough, and the kernels of libtorch for all others. So linear layers, their gradients, tiled
// losses and graphs all get the same product. Nothing changes above the CPU's dispatch key:
// autograd, autocast, profilers and recordings see the same operators.
//
// Bits: both add up terms one after another where a sum has at most 128 terms, and are equal then.
// Longer sums round differently. A row's bits do not depend on the other rows, except in sums of
// more than 384 terms. There a product of few rows, such as 64, rounds differently from one of 100
// rows or more. Results are the same for any number of threads.
//
// Cost: the first product of each shape takes 0.2 to 0.5 ms longer, because oneDNN compiles code
// for it. It keeps the code of the last 1,024 shapes, which takes about 0.5 MiB each. So a
// process whose batches have a thousand different row counts grows by 0.5 GiB. The environment
// variable ONEDNN_PRIMITIVE_CACHE_CAPACITY=100 keeps fewer.
//
// The environment variable ATEN_CPU_CAPABILITY=avx2 turns it off, and so does
// at::globalContext().setUserEnabledMkldnn(false). The Python package does not install it.
// Thread-safe once installed.

#ifndef LOCKSTEP_DRIVER_PRODUCTS_PRODUCTS_H_
#define LOCKSTEP_DRIVER_PRODUCTS_PRODUCTS_H_

#include <cstdint>

#include "ATen/core/TensorBody.h"

namespace lockstep::driver {

// The fewest multiplications of a product for oneDNN. With half as many, MKL's product takes as
// long as oneDNN's call, which costs 9 microseconds.
inline constexpr int64_t kMinMultiplications = int64_t{1} << 21;
// The fewest rows, columns and terms. With fewer, oneDNN is slower than MKL.
inline constexpr int64_t kMinSize = 16;

// Replaces libtorch's kernels until the process ends, if oneDNN is faster on this processor
// (base/torch/one_dnn.h). Returns whether it did. Call it before other threads use libtorch. A
// second call changes nothing.
bool InstallProducts();

// Returns whether the installed kernels multiply a [m, k] and b [k, n] by oneDNN: dense float32
// matrices of the sizes above, with any strides. Does not check that the
// kernels are installed.
bool IsForOneDnn(const at::Tensor& a, const at::Tensor& b);

}  // namespace lockstep::driver

#endif  // LOCKSTEP_DRIVER_PRODUCTS_PRODUCTS_H_
