// Compiled three times, with other flags and another CPU_CAPABILITY each time: see BUILD, and
// kernels/rows_cpu.cc on why it includes as little as it can.
//
// FlashAttention-2 (arXiv 2307.08691). A block of queries meets one block of keys after another, so
// that the scores stay in the cache. Tiles of scores that no query of the tile sees are skipped. k
// and v are packed again for each block of queries, which costs 1 part in 256. Exponentials are
// exp_u20, as in ATen's kernel: 20 units in the last place in float32 (exact in float64).
// flash_test.cc compares errors with ATen's.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "ATen/cpu/vec/functional.h"
#include "kernels/attention/flash_loops.h"
#include "kernels/attention/products.h"

namespace lockstep::kernels::CPU_CAPABILITY {
namespace {

template <typename T>
T* At(const FlashTensor& x, int64_t batch, int64_t head, int64_t token) {
  return static_cast<T*>(x.data) + batch * x.batch_stride + head * x.head_stride +
         token * x.token_stride;
}

// A block of queries and one of keys. Below, `query` and `key` are indices within these.
struct Block {
  int64_t queries, keys;  // how many
  int64_t shift;  // index of the first query minus that of the first key; at least 0 if causal
  bool causal;

  // Returns how many keys a query sees: the first ones.
  int64_t KeysOf(int64_t query) const { return causal ? std::min(query + shift + 1, keys) : keys; }
  // Returns the first query that sees a key. The others after it see it, too.
  int64_t FirstQueryOf(int64_t key) const {
    return causal ? std::clamp<int64_t>(key - shift, 0, queries) : 0;
  }
};

// Gives out parts of one piece of memory, or counts how much that would be.
template <typename T>
struct Arena {
  T* memory;  // or nullptr
  int64_t used = 0;

  T* Take(int64_t count) {
    T* const part = memory == nullptr ? nullptr : memory + used;
    used += count;
    return part;
  }
};

template <typename T>
class Flash {
 public:
  static int64_t Scratch(const FlashProblem& p, bool backward) {
    Arena<T> arena{nullptr};
    if (backward) {
      BackwardMemory(p, arena);
    } else {
      ForwardMemory(p, arena);
    }
    return arena.used;
  }

  static void Forward(const FlashProblem& p, int64_t begin, int64_t end, void* scratch) {
    Arena<T> arena{static_cast<T*>(scratch)};
    const ForwardMemory memory(p, arena);
    const int64_t blocks = QueryBlocks(p);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t head = i / blocks, block = i % blocks;
      // A thread has consecutive numbers. Late blocks see the most keys, so early and late ones
      // take turns.
      const int64_t chosen = block % 2 == 0 ? block / 2 : blocks - 1 - block / 2;
      ForwardOfBlock(p, head / p.heads, head % p.heads, chosen * p.query_block, memory);
    }
  }

  static void Backward(const FlashProblem& p, int64_t begin, int64_t end, void* scratch) {
    Arena<T> arena{static_cast<T*>(scratch)};
    const BackwardMemory memory(p, arena);
    for (int64_t i = begin; i < end; ++i) BackwardOfHead(p, i / p.heads, i % p.heads, memory);
  }

 private:
  using P = Products<T>;
  using Vec = typename P::Vec;
  static constexpr int64_t kLanes = P::kLanes;
  static constexpr T kLowest = -std::numeric_limits<T>::infinity();

  // Elements for the largest block.
  struct Sizes {
    explicit Sizes(const FlashProblem& p)
        : queries(std::min(p.queries, kFlashBlock)),
          keys(std::min(p.keys, kFlashBlock)),
          scores(queries * P::Padded(keys)),
          transposed(p.dim * P::Padded(keys)),
          query_rows(queries * P::Padded(p.dim)),
          key_rows(keys * P::Padded(p.dim)) {}
    int64_t queries, keys, scores, transposed, query_rows, key_rows;
  };

  struct ForwardMemory {
    ForwardMemory(const FlashProblem& p, Arena<T>& arena) : ForwardMemory(Sizes(p), arena) {}
    ForwardMemory(const Sizes& n, Arena<T>& arena)
        : scores(arena.Take(n.scores)),
          packed_keys(arena.Take(n.transposed)),
          packed_values(arena.Take(n.key_rows)),
          y_sums(arena.Take(n.query_rows)),
          row_max(arena.Take(n.queries)),
          row_sum(arena.Take(n.queries)) {}
    T* scores;  // then their exponentials
    T* packed_keys;
    T* packed_values;
    T* y_sums;   // exponentials times values
    T* row_max;  // of scaled scores: m in the paper
    T* row_sum;  // of exponentials: l in the paper
  };

  struct BackwardMemory {
    BackwardMemory(const FlashProblem& p, Arena<T>& arena)
        : BackwardMemory(Sizes(p), p.queries, arena) {}
    BackwardMemory(const Sizes& n, int64_t queries, Arena<T>& arena)
        : probabilities(arena.Take(n.scores)),
          d_scores(arena.Take(n.scores)),
          transposed_keys(arena.Take(n.transposed)),
          transposed_values(arena.Take(n.transposed)),
          packed_keys(arena.Take(n.key_rows)),
          packed_queries(arena.Take(n.query_rows)),
          packed_dy(arena.Take(n.query_rows)),
          dq(arena.Take(n.query_rows)),
          dk(arena.Take(n.key_rows)),
          dv(arena.Take(n.key_rows)),
          delta(arena.Take(queries)) {}
    T* probabilities;  // P in the paper
    T* d_scores;       // dP in the paper, then dS times the scale
    T* transposed_keys;
    T* transposed_values;
    T* packed_keys;
    T* packed_queries;
    T* packed_dy;
    T* dq;
    T* dk;
    T* dv;
    T* delta;  // of all queries: the dot product of y and dy (D in the paper)
  };

  static Block BlockAt(const FlashProblem& p, int64_t query, int64_t queries, int64_t key) {
    return {std::min(queries, p.queries - query), std::min(kFlashBlock, p.keys - key), query - key,
            p.causal};
  }

  // Computes y [queries, keys] = rows times transposed keys (the scores), or values (dP).
  static void MultiplyByTransposed(const FlashProblem& p, const Block& block, const T* rows,
                                   int64_t row_stride, const T* transposed, T* y) {
    P::Multiply({rows, row_stride}, transposed, block.queries, p.dim, block.keys, /*add=*/false, y,
                [&](int64_t, int64_t end) {
                  return Part{0, p.dim, block.KeysOf(end - 1)};
                });
  }

  // Computes y [queries, dim] = scores times rows of keys or values, or adds it to y.
  static void MultiplyScores(const FlashProblem& p, const Block& block, const T* scores,
                             const T* packed, bool add, T* y) {
    P::Multiply({scores, P::Padded(block.keys)}, packed, block.queries, block.keys, p.dim, add, y,
                [&](int64_t, int64_t end) {
                  return Part{0, block.KeysOf(end - 1), p.dim};
                });
  }

  // Adds transposed scores times rows of queries to y [keys, dim].
  static void MultiplyTransposedScores(const FlashProblem& p, const Block& block, const T* scores,
                                       const T* packed, T* y) {
    P::Multiply({scores, 1, P::Padded(block.keys)}, packed, block.keys, block.queries, p.dim,
                /*add=*/true, y, [&](int64_t begin, int64_t) {
                  return Part{block.FirstQueryOf(begin), block.queries, p.dim};
                });
  }

  // Replaces the first `seen` elements of a row by function(element, offset), and the others by
  // zero. Calls it for whole vectors, whose last lanes may hold anything. Returns the sum of each
  // lane.
  template <typename Function>
  static Vec MapRow(T* row, int64_t seen, int64_t padded, const Function& function) {
    Vec sum(T(0));
    int64_t i = 0;
    for (; i + kLanes <= seen; i += kLanes) {
      const Vec result = function(Vec::loadu(row + i), i);
      result.store(row + i);
      sum = sum + result;
    }
    if (i < seen) {
      const Vec result = Vec::blendv(Vec(T(0)), function(Vec::loadu(row + i), i), First(seen - i));
      result.store(row + i);
      sum = sum + result;
      i += kLanes;
    }
    for (; i < padded; i += kLanes) Vec(T(0)).store(row + i);
    return sum;
  }

  // Returns a mask of the first lanes.
  static Vec First(int64_t count) { return Vec::arange(T(0), T(1)) < Vec(static_cast<T>(count)); }

  // Returns exp(x), and NaN for NaN: exp_u20 loses it. Below `least` it is zero anyway.
  static Vec Exp(const Vec& x) {
    constexpr T least = sizeof(T) == 4 ? -200 : -2000;
    const Vec bounded = at::vec::clamp_min(x, Vec(least));
    return at::vec::fmadd(bounded, Vec(T(0)), bounded.exp_u20());
  }

  static T Total(const Vec& lanes) {
    return at::vec::vec_reduce_all<T>([](const Vec& x, const Vec& y) { return x + y; }, lanes);
  }

  // Returns the maximum of scale * row[0 ... seen). A NaN may get lost, but not its
  // exponential.
  static T MaxOf(const T* row, int64_t seen, T scale) {
    const Vec factor(scale), lowest(kLowest);
    Vec max = lowest;
    int64_t i = 0;
    for (; i + kLanes <= seen; i += kLanes)
      max = at::vec::clamp_min(Vec::loadu(row + i) * factor, max);
    if (i < seen) {
      const Vec last = Vec::blendv(lowest, Vec::loadu(row + i) * factor, First(seen - i));
      max = at::vec::clamp_min(last, max);
    }
    return at::vec::vec_reduce_all<T>(
        [](const Vec& x, const Vec& y) { return at::vec::clamp_min(x, y); }, max);
  }

  static T Dot(const T* x, const T* y, int64_t count) {
    Vec sum(T(0));
    for (int64_t i = 0; i < count; i += kLanes) {
      const int64_t some = std::min(kLanes, count - i);
      sum = at::vec::fmadd(Vec::loadu(x + i, some), Vec::loadu(y + i, some), sum);
    }
    return Total(sum);
  }

  static void Scale(T* row, int64_t count, T factor) {
    for (int64_t i = 0; i < count; i += kLanes) (Vec::loadu(row + i) * Vec(factor)).store(row + i);
  }

  // Writes rows of a product to a tensor, or adds them to it.
  static void StoreRows(const T* from, int64_t rows, int64_t dim, bool add, T* to,
                        int64_t to_stride) {
    for (int64_t row = 0; row < rows; ++row, from += P::Padded(dim), to += to_stride) {
      for (int64_t i = 0; i < dim; i += kLanes) {
        const int64_t count = std::min(kLanes, dim - i);
        const Vec x = Vec::loadu(from + i);
        (add ? Vec::loadu(to + i, count) + x : x).store(to + i, static_cast<int>(count));
      }
    }
  }

  static void ForwardOfBlock(const FlashProblem& p, int64_t batch, int64_t head, int64_t query,
                             const ForwardMemory& m) {
    const int64_t padded_dim = P::Padded(p.dim),
                  queries = std::min(p.query_block, p.queries - query);
    const T scale = static_cast<T>(p.scale);
    std::fill_n(m.row_max, queries, kLowest);
    std::fill_n(m.row_sum, queries, T(0));
    const int64_t last = p.causal ? std::min(p.keys, query + queries) : p.keys;
    for (int64_t key = 0; key < last; key += kFlashBlock) {
      const Block block = BlockAt(p, query, p.query_block, key);
      const int64_t padded_keys = P::Padded(block.keys);
      P::PackTransposed(At<T>(p.k, batch, head, key), p.k.token_stride, block.keys, p.dim,
                        m.packed_keys);
      P::Pack(At<T>(p.v, batch, head, key), p.v.token_stride, block.keys, p.dim, m.packed_values);
      MultiplyByTransposed(p, block, At<T>(p.q, batch, head, query), p.q.token_stride,
                           m.packed_keys, m.scores);
      for (int64_t i = 0; i < block.queries; ++i) {
        T* const row = m.scores + i * padded_keys;
        const int64_t seen = block.KeysOf(i);
        const T old_max = m.row_max[i];
        const T new_max = std::max(old_max, MaxOf(row, seen, scale));
        const T base = new_max == kLowest ? 0 : new_max;  // all scores so far may be -inf
        const T sum = Total(MapRow(row, seen, padded_keys, [&](const Vec& x, int64_t) {
          return Exp(x * Vec(scale) - Vec(base));
        }));
        if (key > 0) {
          const T rescale = std::exp(old_max - base);
          m.row_sum[i] *= rescale;
          Scale(m.y_sums + i * padded_dim, padded_dim, rescale);
        }
        m.row_sum[i] += sum;
        m.row_max[i] = new_max;
      }
      MultiplyScores(p, block, m.scores, m.packed_values, /*add=*/key > 0, m.y_sums);
    }
    for (int64_t i = 0; i < queries; ++i) {
      // A query whose scores are all -inf has the result 0, as ATen's.
      Scale(m.y_sums + i * padded_dim, padded_dim, m.row_sum[i] == 0 ? 0 : 1 / m.row_sum[i]);
      *At<T>(p.logsumexp, batch, head, query + i) = m.row_max[i] + std::log(m.row_sum[i]);
    }
    StoreRows(m.y_sums, queries, p.dim, /*add=*/false, At<T>(p.y, batch, head, query),
              p.y.token_stride);
  }

  static void BackwardOfHead(const FlashProblem& p, int64_t batch, int64_t head,
                             const BackwardMemory& m) {
    for (int64_t i = 0; i < p.queries; ++i)
      m.delta[i] = Dot(At<T>(p.y, batch, head, i), At<T>(p.dy, batch, head, i), p.dim);
    for (int64_t key = 0; key < p.keys; key += kFlashBlock) {
      const int64_t keys = std::min(kFlashBlock, p.keys - key);
      const T* const k = At<T>(p.k, batch, head, key);
      P::PackTransposed(k, p.k.token_stride, keys, p.dim, m.transposed_keys);
      P::PackTransposed(At<T>(p.v, batch, head, key), p.v.token_stride, keys, p.dim,
                        m.transposed_values);
      P::Pack(k, p.k.token_stride, keys, p.dim, m.packed_keys);
      std::fill_n(m.dk, keys * P::Padded(p.dim), T(0));
      std::fill_n(m.dv, keys * P::Padded(p.dim), T(0));
      for (int64_t query = p.causal ? key : 0; query < p.queries; query += kFlashBlock)
        BackwardOfBlock(p, batch, head, query, key, m);
      StoreRows(m.dk, keys, p.dim, /*add=*/false, At<T>(p.dk, batch, head, key), p.dk.token_stride);
      StoreRows(m.dv, keys, p.dim, /*add=*/false, At<T>(p.dv, batch, head, key), p.dv.token_stride);
    }
  }

  // Adds what a block of queries contributes to m.dk and m.dv, and what the keys contribute to dq.
  static void BackwardOfBlock(const FlashProblem& p, int64_t batch, int64_t head, int64_t query,
                              int64_t key, const BackwardMemory& m) {
    const Block block = BlockAt(p, query, kFlashBlock, key);
    const int64_t padded_keys = P::Padded(block.keys);
    const T* const q = At<T>(p.q, batch, head, query);
    const T* const dy = At<T>(p.dy, batch, head, query);
    const Vec scale(static_cast<T>(p.scale));
    MultiplyByTransposed(p, block, q, p.q.token_stride, m.transposed_keys, m.probabilities);
    MultiplyByTransposed(p, block, dy, p.dy.token_stride, m.transposed_values, m.d_scores);
    for (int64_t i = 0; i < block.queries; ++i) {
      const T sum = *At<T>(p.logsumexp, batch, head, query + i);
      const Vec logsumexp(sum == kLowest ? -kLowest : sum), delta(m.delta[query + i]);
      const int64_t seen = block.KeysOf(i);
      T* const row = m.probabilities + i * padded_keys;
      MapRow(row, seen, padded_keys,
             [&](const Vec& x, int64_t) { return Exp(x * scale - logsumexp); });
      MapRow(m.d_scores + i * padded_keys, seen, padded_keys, [&](const Vec& x, int64_t offset) {
        return Vec::loadu(row + offset) * (x - delta) * scale;
      });
    }
    P::Pack(dy, p.dy.token_stride, block.queries, p.dim, m.packed_dy);
    MultiplyTransposedScores(p, block, m.probabilities, m.packed_dy, m.dv);
    P::Pack(q, p.q.token_stride, block.queries, p.dim, m.packed_queries);
    MultiplyTransposedScores(p, block, m.d_scores, m.packed_queries, m.dk);
    MultiplyScores(p, block, m.d_scores, m.packed_keys, /*add=*/false, m.dq);
    StoreRows(m.dq, block.queries, p.dim, /*add=*/key > 0, At<T>(p.dq, batch, head, query),
              p.dq.token_stride);
  }
};

template <typename T>
constexpr FlashLoops LoopsOf() {
  return {
      .scratch = Flash<T>::Scratch, .forward = Flash<T>::Forward, .backward = Flash<T>::Backward};
}

}  // namespace

extern const FlashLoops kFlashLoops[2];
const FlashLoops kFlashLoops[2] = {LoopsOf<float>(), LoopsOf<double>()};

}  // namespace lockstep::kernels::CPU_CAPABILITY
