// The kernels' loops, written once for all machines. A thread of a CPU takes whole rows
// (rows_cpu.cc). A block of threads of a GPU shares a row (cuda/rows_cuda.cu). Tests of the CPU's
// kernels therefore prove the arithmetic and the indices of both.
//
// A Machine has
//   Pack<T>                        some numbers to compute with: see pack.h
//   ForEachPack<T>(length, visit)  calls visit(offset, Whole or First) for this thread's packs of a
//                                  row; always the same ones for one length. An offset may be of
//                                  a type that converts to int64_t
//   Total(pack)                    the sum of all numbers in the packs of all threads
//   Once(make)                     make(), which one thread computes for all
//
// All is in an unnamed namespace, so that the linker never gives one instruction set's code to
// another.

#ifndef LOCKSTEP_KERNELS_LOOPS_H_
#define LOCKSTEP_KERNELS_LOOPS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "c10/util/BFloat16.h"
#include "c10/util/Half.h"
#include "kernels/arithmetic.h"
#include "kernels/rows.h"

namespace lockstep::kernels {

// The part of a pack to load or store: all of it, or its first `count` numbers.
struct Whole {};
struct First {
  int64_t count;
};

namespace {

template <typename T>
LOCKSTEP_DEVICE const T* In(const void* from, int64_t offset = 0) {
  return static_cast<const T*>(from) + offset;
}
template <typename T>
LOCKSTEP_DEVICE T* Out(void* to, int64_t offset = 0) {
  return static_cast<T*>(to) + offset;
}

// `Machine` is not used: it keeps the code of each instruction set apart.
template <typename Machine, typename Acc>
LOCKSTEP_DEVICE Acc ScaleOf(Acc squares, int64_t size, double eps) {
  return Acc(1) / std::sqrt(squares / static_cast<Acc>(size) + static_cast<Acc>(eps));
}

// --- RMSNorm

template <typename Machine, typename T>
struct RmsNorm {
  using P = typename Machine::template Pack<T>;

  LOCKSTEP_DEVICE static void Run(const Machine& machine, const RmsNormRows& m, int64_t begin,
                                  int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* x = In<T>(m.x, row * m.x_stride);
      P squares(0);
      if (m.residual == nullptr) {
        machine.template ForEachPack<T>(m.size, [&](int64_t i, auto amount) {
          const P value = P::Load(x + i, amount);
          squares = value * value + squares;
        });
      } else {
        const T* residual = In<T>(m.residual, row * m.residual_stride);
        T* sum = Out<T>(m.sum, row * m.size);
        machine.template ForEachPack<T>(m.size, [&](int64_t i, auto amount) {
          const P value = Rounded(P::Load(x + i, amount) + P::Load(residual + i, amount));
          value.Store(sum + i, amount);
          squares = value * value + squares;
        });
        x = sum;
      }
      const P scale(ScaleOf<Machine>(machine.Total(squares), m.size, m.eps));
      const T* weight = In<T>(m.weight);
      T* y = Out<T>(m.y, row * m.size);
      machine.template ForEachPack<T>(m.size, [&](int64_t i, auto amount) {
        Normalised(P::Load(x + i, amount), P::Load(weight + i, amount), scale).Store(y + i, amount);
      });
    }
  }
};

template <typename Machine, typename T>
struct RmsNormGradient {
  using P = typename Machine::template Pack<T>;
  using Acc = typename P::Acc;

  // Calls add(i, amount, pack) with the row's share of the weight's gradient, if it is wanted.
  template <typename Add>
  LOCKSTEP_DEVICE static void RunRow(const Machine& machine, const RmsNormGradientRows& m,
                                     int64_t row, const Add& add) {
    const T* x = In<T>(m.x, row * m.x_stride);
    const T* dy = In<T>(m.dy, row * m.dy_stride);
    const T* weight = In<T>(m.weight);
    P squares(0), products(0);
    machine.template ForEachPack<T>(m.size, [&](int64_t i, auto amount) {
      const P value = P::Load(x + i, amount);
      squares = value * value + squares;
      products = P::Load(dy + i, amount) * P::Load(weight + i, amount) * value + products;
    });
    const Acc scale = ScaleOf<Machine>(machine.Total(squares), m.size, m.eps);
    const P scales(scale),
        shift(scale * scale * machine.Total(products) / static_cast<Acc>(m.size));
    const T* more = m.more == nullptr ? nullptr : In<T>(m.more, row * m.more_stride);
    T* dx = Out<T>(m.dx, row * m.size);
    machine.template ForEachPack<T>(m.size, [&](auto i, auto amount) {
      const P value = P::Load(x + i, amount), gradient = P::Load(dy + i, amount);
      if (m.dweight != nullptr) add(i, amount, gradient * (value * scales));
      P result = NormalisedGradient(gradient * P::Load(weight + i, amount), value, scales, shift);
      if (more != nullptr) result = result + P::Load(more + i, amount);
      result.Store(dx + i, amount);
    });
  }

  LOCKSTEP_DEVICE static void Run(const Machine& machine, const RmsNormGradientRows& m,
                                  int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) {
      Acc* dweight = m.dweight == nullptr ? nullptr : Out<Acc>(m.dweight, part * m.size);
      if (dweight != nullptr) {
        machine.template ForEachPack<T>(
            m.size, [&](int64_t i, auto amount) { P(0).StoreAcc(dweight + i, amount); });
      }
      const int64_t last = std::min((part + 1) * m.rows_of_part, m.rows);
      for (int64_t row = part * m.rows_of_part; row < last; ++row) {
        RunRow(machine, m, row, [&](int64_t i, auto amount, const P& share) {
          (share + P::LoadAcc(dweight + i, amount)).StoreAcc(dweight + i, amount);
        });
      }
    }
  }
};

// --- SwiGLU

// Calls visit(row, column, length) for the stretches of rows in a range of numbers.
template <typename Visit>
LOCKSTEP_DEVICE void ForEachStretch(int64_t size, int64_t begin, int64_t end, const Visit& visit) {
  while (begin < end) {
    const int64_t row = begin / size, column = begin % size;
    const int64_t length = std::min(size - column, end - begin);
    visit(row, column, length);
    begin += length;
  }
}

template <typename Machine, typename T>
struct Swiglu {
  using P = typename Machine::template Pack<T>;

  LOCKSTEP_DEVICE static void Run(const Machine& machine, const SwigluRows& m, int64_t begin,
                                  int64_t end) {
    ForEachStretch(m.size, begin, end, [&](int64_t row, int64_t column, int64_t length) {
      const T* gate = In<T>(m.gate, row * m.gate_stride + column);
      const T* up = In<T>(m.up, row * m.up_stride + column);
      T* y = Out<T>(m.y, row * m.size + column);
      machine.template ForEachPack<T>(length, [&](int64_t i, auto amount) {
        Gated(P::Load(gate + i, amount), P::Load(up + i, amount)).Store(y + i, amount);
      });
    });
  }
};

template <typename Machine, typename T>
struct SwigluGradient {
  using P = typename Machine::template Pack<T>;

  LOCKSTEP_DEVICE static void Run(const Machine& machine, const SwigluRows& m, int64_t begin,
                                  int64_t end) {
    ForEachStretch(m.size, begin, end, [&](int64_t row, int64_t column, int64_t length) {
      const T* gate = In<T>(m.gate, row * m.gate_stride + column);
      const T* up = In<T>(m.up, row * m.up_stride + column);
      const T* dy = In<T>(m.dy, row * m.dy_stride + column);
      T* dgate = Out<T>(m.dgate, row * m.size + column);
      T* dup = Out<T>(m.dup, row * m.size + column);
      machine.template ForEachPack<T>(length, [&](int64_t i, auto amount) {
        const GatedGradients<P> gradient = GatedGradient(
            P::Load(dy + i, amount), P::Load(gate + i, amount), P::Load(up + i, amount));
        gradient.gate.Store(dgate + i, amount);
        gradient.up.Store(dup + i, amount);
      });
    });
  }
};

// --- Rotation

template <typename Machine, typename T>
struct Rotate {
  using P = typename Machine::template Pack<T>;
  using Acc = typename P::Acc;

  template <typename Angle>
  LOCKSTEP_DEVICE static void RunRow(const Machine& machine, const T* x, const Angle* cos,
                                     const Angle* sin, int64_t half, bool backward, T* y) {
    const auto load = [](const Angle* from, auto amount) {
      if constexpr (std::is_same_v<Angle, Acc>) {
        return P::LoadAcc(from, amount);
      } else {
        return P::Load(from, amount);
      }
    };
    // The transposed rotation uses the other half's sine.
    const Angle* first_sin = backward ? sin + half : sin;
    const Angle* second_sin = backward ? sin : sin + half;
    machine.template ForEachPack<T>(half, [&](int64_t i, auto amount) {
      const P first = P::Load(x + i, amount), second = P::Load(x + half + i, amount);
      Turned(first, second, load(cos + i, amount), load(first_sin + i, amount))
          .Store(y + i, amount);
      Turned(second, first, load(cos + half + i, amount), load(second_sin + i, amount))
          .Store(y + half + i, amount);
    });
  }

  LOCKSTEP_DEVICE static void Run(const Machine& machine, const RotateRows& m, int64_t begin,
                                  int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t token = row / m.heads, head = row % m.heads, angle = token * m.size;
      const T* x = In<T>(m.x, token * m.token_stride + head * m.head_stride);
      T* y = Out<T>(m.y, row * m.size);
      if (m.wide_angles) {
        RunRow(machine, x, In<Acc>(m.cos, angle), In<Acc>(m.sin, angle), m.size / 2, m.backward, y);
      } else {
        RunRow(machine, x, In<T>(m.cos, angle), In<T>(m.sin, angle), m.size / 2, m.backward, y);
      }
    }
  }
};

// --- AdamW

template <typename Machine, typename T, typename Grad, typename Moment>
struct AdamW {
  using Acc = typename Machine::template Pack<T>::Acc;
  using P = typename Machine::template Pack<Acc>;
  template <typename From>
  using Pack = typename Machine::template Pack<From>;

  template <typename From, typename Amount>
  LOCKSTEP_DEVICE static P LoadAs(const void* from, int64_t i, Amount amount) {
    return Pack<From>::Load(In<From>(from, i), amount).template As<Acc>();
  }

  template <typename To, typename Amount>
  LOCKSTEP_DEVICE static void StoreAs(const P& pack, void* to, int64_t i, Amount amount) {
    pack.template As<To>().Store(Out<To>(to, i), amount);
  }

  // As StoreAs. Rounds at random if To is bfloat16 and `salt` is at least 0.
  template <typename To, typename Amount>
  LOCKSTEP_DEVICE static void StoreRounded(const P& pack, void* to, int64_t i, Amount amount,
                                           double step, int64_t salt) {
    if constexpr (std::is_same_v<To, at::BFloat16>) {
      if (salt >= 0) {
        alignas(16) Acc numbers[P::kSize];
        struct alignas(16) {
          uint16_t x[P::kSize];
        } rounded;
        pack.StoreAcc(numbers, Whole{});
        const uint32_t key = RandomKey(step, salt), first = static_cast<uint32_t>(i);
        for (uint32_t j = 0; j < P::kSize; ++j)
          rounded.x[j] = RoundedAtRandom(numbers[j], key, first + j);
        To* const at = Out<To>(to, i);
        int64_t count = P::kSize;
        if constexpr (std::is_same_v<Amount, First>) {
          count = amount.count;
        } else if (reinterpret_cast<uintptr_t>(at) % alignof(decltype(rounded)) == 0) {
          static_assert(sizeof(rounded) == P::kSize * sizeof(uint16_t), "no padding is stored");
          *reinterpret_cast<decltype(rounded)*>(at) = rounded;
          return;
        }
        for (int64_t j = 0; j < count; ++j) memcpy(at + j, rounded.x + j, sizeof(To));
        return;
      }
    }
    StoreAs<To>(pack, to, i, amount);
  }

  LOCKSTEP_DEVICE static void Run(const Machine& machine, const AdamWTensor& m,
                                  const AdamWFactors& factors, int64_t begin, int64_t end) {
    const double step = *m.step;
    const int64_t salts[] = {m.salt, m.salt < 0 ? -1 : m.salt + 1, m.salt < 0 ? -1 : m.salt + 2};
    machine.template ForEachPack<Acc>(end - begin, [&](int64_t offset, auto amount) {
      const int64_t i = begin + offset;
      const P weight =
          m.master != nullptr ? LoadAs<Acc>(m.master, i, amount) : LoadAs<T>(m.param, i, amount);
      const AdamWNumbers<P> result =
          AdamWStep(AdamWNumbers<P>{weight, LoadAs<Moment>(m.exp_avg, i, amount),
                                    LoadAs<Moment>(m.exp_avg_sq, i, amount)},
                    LoadAs<Grad>(m.grad, i, amount), factors);
      StoreRounded<Moment>(result.first, m.exp_avg, i, amount, step, salts[1]);
      StoreRounded<Moment>(result.second, m.exp_avg_sq, i, amount, step, salts[2]);
      if (m.master != nullptr) {
        StoreAs<Acc>(result.weight, m.master, i, amount);
        StoreAs<T>(result.weight, m.param, i, amount);
      } else {
        StoreRounded<T>(result.weight, m.param, i, amount, step, salts[0]);
      }
    });
  }
};

// Updates a range of one parameter, by its dtypes.
template <typename Machine>
struct AdamWRange {
  const Machine& machine;
  const AdamWTensor& m;
  const AdamWFactors& factors;
  int64_t begin, end;

  template <typename T, typename Grad>
  LOCKSTEP_DEVICE void ByMoment() const {
    if (m.moment_dtype == at::kBFloat16)
      AdamW<Machine, T, Grad, at::BFloat16>::Run(machine, m, factors, begin, end);
    else
      AdamW<Machine, T, Grad, float>::Run(machine, m, factors, begin, end);
  }

  template <typename T>
  LOCKSTEP_DEVICE void ByGrad() const {
    if (m.grad_dtype == m.dtype)
      ByMoment<T, T>();
    else
      ByMoment<T, float>();
  }

  LOCKSTEP_DEVICE void Run() const {
    if (m.dtype == at::kDouble)
      AdamW<Machine, double, double, double>::Run(machine, m, factors, begin, end);
    else if (m.dtype == at::kBFloat16)
      ByGrad<at::BFloat16>();
    else if (m.dtype == at::kHalf)
      ByGrad<at::Half>();
    else
      ByMoment<float, float>();
  }
};

template <typename Machine>
LOCKSTEP_DEVICE void RunAdamW(const Machine& machine, const AdamWTensors& all, int64_t begin,
                              int64_t end) {
  const double lr = all.lr_factor == nullptr ? all.lr : all.lr * *all.lr_factor;
  const double grad_scale = all.grad_scale == nullptr ? 1 : *all.grad_scale;
  for (int64_t i = 0; i < all.count; ++i) {
    const AdamWTensor& m = all.tensors[i];
    const int64_t first = std::max<int64_t>(0, (begin - m.first_part) * kNumbersOfPart);
    const int64_t last = std::min(m.numel, (end - m.first_part) * kNumbersOfPart);
    if (first >= last) continue;
    const AdamWFactors factors = machine.Once([&] {
      return FactorsOfStep(*m.step, lr, all.beta1, all.beta2, all.eps, all.weight_decay,
                           grad_scale);
    });
    AdamWRange<Machine>{machine, m, factors, first, last}.Run();
  }
}

// Runs a kernel on the CPU, by dtype. The operators have refused all others.
template <typename Machine, template <typename, typename> typename Kernel, typename Rows>
void RunByDtype(const Rows& rows, int64_t begin, int64_t end) {
  switch (rows.dtype) {
    case at::kFloat: return Kernel<Machine, float>::Run({}, rows, begin, end);
    case at::kDouble: return Kernel<Machine, double>::Run({}, rows, begin, end);
    case at::kBFloat16: return Kernel<Machine, at::BFloat16>::Run({}, rows, begin, end);
    default: return Kernel<Machine, at::Half>::Run({}, rows, begin, end);
  }
}

template <typename Machine>
constexpr RowKernels KernelsOfOneThread() {
  return {
      .rms_norm = RunByDtype<Machine, RmsNorm, RmsNormRows>,
      .rms_norm_gradient = RunByDtype<Machine, RmsNormGradient, RmsNormGradientRows>,
      .rows_of_part = [](int64_t /*size*/) { return kRowsOfPart; },
      .swiglu = RunByDtype<Machine, Swiglu, SwigluRows>,
      .swiglu_gradient = RunByDtype<Machine, SwigluGradient, SwigluRows>,
      .rotate = RunByDtype<Machine, Rotate, RotateRows>,
      .adamw = [](const AdamWTensors& all, int64_t begin,
                  int64_t end) { RunAdamW(Machine{}, all, begin, end); },
  };
}

}  // namespace
}  // namespace lockstep::kernels

#endif  // LOCKSTEP_KERNELS_LOOPS_H_
