// The loops of the cross entropy, written once for all machines: see kernels/loops.h. A Machine has
// four more functions here:
//
//   SumsOf<T, kSums>(z, size)  the sums of a row, to all of its threads
//   Exp(pack)                  the exponential of each number
//   Bounded(pack)              the larger of each number and kLeastLogP; NaN stays NaN
//   Owns<T>(i)                 whether ForEachPack visits the row's number i on this thread
//   CheckLabel(label, size)    stops the program if the label is not below size
//
// The gradient exp(z - lse) needs more digits than lse has in float32. So lse is kept in float64.
// exp(z - rounded lse) has an error that is the same for the whole row, and is put right in its
// factor. Backward reads a row once more if float64 has too few digits for its lse.

#ifndef LOCKSTEP_KERNELS_CROSS_ENTROPY_LOSS_LOOPS_H_
#define LOCKSTEP_KERNELS_CROSS_ENTROPY_LOSS_LOOPS_H_

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/cross_entropy/loss_rows.h"
#include "kernels/loops.h"

namespace lockstep::kernels {
namespace {

// A lower bound of log_p in p * log_p. p is 0 there, and 0 times -infinity would be NaN.
template <typename Acc>
constexpr Acc kLeastLogP = std::is_same_v<Acc, double> ? -1e4 : -150;

// The sums that a loss needs. Each has those before it.
enum class Sums { kOfLoss, kOfSmoothedLoss, kOfEntropy };

// The sums of a row of logits z. `most` is the largest.
template <typename Acc>
struct LossSums {
  Acc most = -std::numeric_limits<Acc>::infinity();
  Acc sum = 0;  // of exp(z - most)
  // With kOfSmoothedLoss. A sum of z would lose the digits of the differences.
  Acc total = 0;  // of z - most
  Acc count = 0;  // of the numbers in `total`
  // With kOfEntropy.
  Acc weighted = 0;  // of exp(z - most) (z - most)

  // Makes `larger` the largest number.
  LOCKSTEP_DEVICE void RaiseTo(Acc larger) {
    const Acc factor = std::exp(most - larger);
    if (sum > 0) weighted = factor * (weighted + sum * (most - larger));
    if (count > 0) total += count * (most - larger);
    sum *= factor;
    most = larger;
  }
  // Returns the shift of z in exp(z - shift): the largest. Not -infinity: the difference would be
  // NaN.
  LOCKSTEP_DEVICE Acc Shift() const {
    return most == -std::numeric_limits<Acc>::infinity() ? Acc(0) : most;
  }
};

template <typename Machine, typename T>
struct LossLoops {
  using P = typename Machine::template Pack<T>;
  using Acc = typename P::Acc;

  // The gradients of a row's results.
  struct Incoming {
    Acc loss, lse, entropy;
  };

  // A row's lse in two parts.
  struct LogSum {
    Acc shift, rest;
  };

  // Returns lse as forward keeps it: the rest is what Acc's rounding leaves out.
  LOCKSTEP_DEVICE static LogSum LogSumOf(double lse) {
    const Acc shift = static_cast<Acc>(lse);
    return {shift, static_cast<Acc>(lse - shift)};
  }
  LOCKSTEP_DEVICE static LogSum LogSumOf(const LossSums<Acc>& sums) {
    return {sums.most, std::log(sums.sum)};
  }

  // Returns whether float64's rounding of lse would be seen in the gradient: exp(z - lse) has as
  // large a relative error.
  LOCKSTEP_DEVICE static bool IsLarge(double lse) {
    return std::abs(lse) > (std::is_same_v<Acc, double> ? 8192. : 1073741824.);
  }

  LOCKSTEP_DEVICE static Acc WeightOf(const LossRows& m, int64_t row) {
    return m.weight == nullptr ? Acc(1) : *In<Acc>(m.weight, row);
  }

  LOCKSTEP_DEVICE static void Fill(const Machine& machine, int64_t size, T* to) {
    machine.template ForEachPack<T>(
        size, [&](int64_t i, auto amount) { P(Acc(0)).Store(to + i, amount); });
  }

  // Writes the gradient of a row's logits. `to` may be z. `entropy` is read with kEntropy.
  template <bool kEntropy>
  LOCKSTEP_DEVICE static void Gradient(const Machine& machine, const LossRows& m, int64_t label,
                                       const LogSum& lse, Acc entropy, const Incoming& incoming,
                                       const T* z, T* to) {
    const Acc shift = lse.shift, rest = lse.rest, correction = std::exp(-rest);
    const Acc smoothing = static_cast<Acc>(m.label_smoothing);
    const Acc uniform = incoming.loss * smoothing / static_cast<Acc>(m.size);
    Acc factor = incoming.loss * (1 + 2 * static_cast<Acc>(m.z_loss) * shift) + incoming.lse;
    if constexpr (kEntropy) factor -= incoming.entropy * (entropy - rest);
    const Acc constant = factor * correction, slope = -incoming.entropy * correction;
    const bool owns = machine.template Owns<T>(label);
    const Acc at_label = owns ? static_cast<Acc>(z[label]) : Acc(0);  // before it is overwritten
    const P shifts(shift), constants(constant), slopes(slope), uniforms(uniform);
    machine.template ForEachPack<T>(m.size, [&](int64_t i, auto amount) {
      const P log_p = P::Load(z + i, amount) - shifts, p = machine.Exp(log_p);
      if constexpr (kEntropy) {
        (p * (slopes * machine.Bounded(log_p) + constants) - uniforms).Store(to + i, amount);
      } else {
        (p * constants - uniforms).Store(to + i, amount);
      }
    });
    if (!owns) return;
    const Acc log_p = at_label - shift;
    const Acc of_p = kEntropy ? slope * std::max(log_p, Acc(kLeastLogP<Acc>)) + constant : constant;
    to[label] = static_cast<T>(std::exp(log_p) * of_p - incoming.loss * (1 - smoothing) - uniform);
  }

  template <Sums kSums>
  LOCKSTEP_DEVICE static void LossOfRow(const Machine& machine, const LossRows& m, int64_t row) {
    const int64_t label = m.target[row];
    T* const gradient = m.gradient == nullptr ? nullptr : Out<T>(m.gradient, row * m.stride);
    if (label == m.ignore_index) {
      if (machine.template Owns<T>(0)) {
        *Out<Acc>(m.loss, row) = 0;
        m.lse[row] = 0;
        if (m.entropy != nullptr) *Out<Acc>(m.entropy, row) = 0;
      }
      if (gradient != nullptr) Fill(machine, m.size, gradient);
      return;
    }
    machine.CheckLabel(label, m.size);
    const T* const z = In<T>(m.logits, row * m.stride);
    const LossSums<Acc> sums = machine.template SumsOf<T, kSums>(z, m.size);
    const Acc log_sum = std::log(sums.sum), weight = WeightOf(m, row);
    const double lse = static_cast<double>(sums.most) + static_cast<double>(log_sum);
    if (machine.template Owns<T>(label)) {
      // The two differences are exact where lse itself is not.
      Acc loss = log_sum + (sums.most - static_cast<Acc>(z[label]));
      if constexpr (kSums != Sums::kOfLoss) {
        if (m.label_smoothing > 0) {
          const Acc smoothing = static_cast<Acc>(m.label_smoothing);
          const Acc mean = sums.total / static_cast<Acc>(m.size);
          // 0 times the infinite loss of a label at -infinity would be NaN.
          loss = smoothing < 1 ? (1 - smoothing) * loss : Acc(0);
          loss += smoothing * (log_sum - mean);
        }
      }
      if constexpr (kSums == Sums::kOfEntropy)
        *Out<Acc>(m.entropy, row) = log_sum - sums.weighted / sums.sum;
      if (m.z_loss > 0) loss += static_cast<Acc>(m.z_loss * lse * lse);
      *Out<Acc>(m.loss, row) = weight * loss;
      m.lse[row] = lse;
    }
    if (gradient != nullptr) {
      const Incoming incoming = {.loss = weight, .lse = 0, .entropy = 0};
      const LogSum parts = IsLarge(lse) ? LogSumOf(sums) : LogSumOf(lse);
      Gradient<false>(machine, m, label, parts, 0, incoming, z, gradient);
    }
  }

  LOCKSTEP_DEVICE static void Run(const Machine& machine, const LossRows& m, int64_t begin,
                                  int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      if (m.entropy != nullptr) {
        LossOfRow<Sums::kOfEntropy>(machine, m, row);
      } else if (m.label_smoothing > 0) {
        LossOfRow<Sums::kOfSmoothedLoss>(machine, m, row);
      } else {
        LossOfRow<Sums::kOfLoss>(machine, m, row);
      }
    }
  }

  LOCKSTEP_DEVICE static Acc At(const void* x, int64_t stride, int64_t row) {
    return x == nullptr ? Acc(0) : *In<Acc>(x, row * stride);
  }

  LOCKSTEP_DEVICE static void Run(const Machine& machine, const LossGradientRows& m, int64_t begin,
                                  int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t label = m.rows.target[row];
      T* const to = Out<T>(m.dlogits, row * m.rows.size);
      if (label == m.rows.ignore_index) {
        Fill(machine, m.rows.size, to);
        continue;
      }
      const T* const z = In<T>(m.rows.logits, row * m.rows.stride);
      const LogSum lse = IsLarge(m.rows.lse[row])
                             ? LogSumOf(machine.template SumsOf<T, Sums::kOfLoss>(z, m.rows.size))
                             : LogSumOf(m.rows.lse[row]);
      const Incoming incoming = {.loss = At(m.dloss, m.dloss_stride, row) * WeightOf(m.rows, row),
                                 .lse = At(m.dlse, m.dlse_stride, row),
                                 .entropy = At(m.dentropy, m.dentropy_stride, row)};
      if (m.dentropy == nullptr) {
        Gradient<false>(machine, m.rows, label, lse, 0, incoming, z, to);
      } else {
        const Acc entropy = *In<Acc>(m.rows.entropy, row);
        Gradient<true>(machine, m.rows, label, lse, entropy, incoming, z, to);
      }
    }
  }
};

}  // namespace
}  // namespace lockstep::kernels

#endif  // LOCKSTEP_KERNELS_CROSS_ENTROPY_LOSS_LOOPS_H_
