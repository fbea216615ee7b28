// Compiled three times, with other flags and another CPU_CAPABILITY each time: see BUILD, and
// kernels/rows_cpu.cc on why it includes as little as it can.
//
// FlashAttention-2 (arXiv 2307.08691): a block of queries meets one block of keys after another, so
// that the scores stay in the cache. Tiles of scores that no query may see are not computed.

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

// The part of the scores of one block of queries and one of keys.
struct Block {
  int64_t queries, keys;  // how many
  int64_t shift;          // number of the first query, less that of the first key
  bool causal;

  // Returns how many keys a query sees.
  int64_t KeysOf(int64_t query) const {
    return causal ? std::clamp<int64_t>(query + shift + 1, 0, keys) : keys;
  }
  // Returns the first query that sees a key.
  int64_t FirstQueryOf(int64_t key) const {
    return causal ? std::clamp<int64_t>(key - shift, 0, queries) : 0;
  }
};

template <typename T>
class Flash {
 public:
  static int64_t Scratch(const FlashProblem& p, bool backward) {
    const Sizes n(p);
    const int64_t of_dim = p.dim * n.padded_keys;
    return backward ? 2 * n.scores + 2 * of_dim + 3 * n.key_rows + 3 * n.query_rows + p.queries
                    : n.scores + of_dim + n.key_rows + n.query_rows + 2 * kFlashBlock;
  }

  static void Forward(const FlashProblem& p, int64_t begin, int64_t end, void* scratch) {
    const int64_t blocks = FlashBlocks(p.queries);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t head = i / blocks, block = i % blocks;
      // The last blocks of queries see the most keys, so few and many take turns.
      const int64_t chosen = block % 2 == 0 ? block / 2 : blocks - 1 - block / 2;
      ForwardOfBlock(p, head / p.heads, head % p.heads, chosen * kFlashBlock,
                     static_cast<T*>(scratch));
    }
  }

  static void Backward(const FlashProblem& p, int64_t begin, int64_t end, void* scratch) {
    for (int64_t i = begin; i < end; ++i)
      BackwardOfHead(p, i / p.heads, i % p.heads, static_cast<T*>(scratch));
  }

 private:
  using P = Products<T>;
  using Vec = typename P::Vec;
  static constexpr int64_t kLanes = P::kLanes;

  // Numbers of the largest block.
  struct Sizes {
    explicit Sizes(const FlashProblem& p)
        : padded_keys(P::Padded(std::min(p.keys, kFlashBlock))),
          scores(std::min(p.queries, kFlashBlock) * padded_keys),
          key_rows(std::min(p.keys, kFlashBlock) * P::Padded(p.dim)),
          query_rows(std::min(p.queries, kFlashBlock) * P::Padded(p.dim)) {}
    int64_t padded_keys, scores, key_rows, query_rows;
  };

  static Block BlockAt(const FlashProblem& p, int64_t query, int64_t key) {
    return {std::min(kFlashBlock, p.queries - query), std::min(kFlashBlock, p.keys - key),
            query - key, p.causal};
  }

  // Queries times keys, or gradients times values: y [queries, keys].
  static void MultiplyByKeys(const FlashProblem& p, const Block& block, const T* rows,
                             int64_t row_stride, const T* keys, T* y) {
    P::Multiply(
        {rows, row_stride}, keys, p.dim, block.queries, block.keys, /*add=*/false, y,
        [&](int64_t, int64_t) {
          return Range{0, p.dim};
        },
        [&](int64_t, int64_t end) { return block.KeysOf(end - 1); });
  }

  // Scores [queries, keys] times rows of keys in panels: y [queries, dim].
  static void MultiplyScores(const FlashProblem& p, const Block& block, const T* scores,
                             const T* rows, bool add, T* y) {
    P::Multiply(
        {scores, P::Padded(block.keys)}, rows, block.keys, block.queries, p.dim, add, y,
        [&](int64_t, int64_t end) {
          return Range{0, block.KeysOf(end - 1)};
        },
        [&](int64_t, int64_t) { return p.dim; });
  }

  // The transpose of scores times rows of queries in panels, added to y [keys, dim].
  static void MultiplyTransposedScores(const FlashProblem& p, const Block& block, const T* scores,
                                       const T* rows, T* y) {
    P::Multiply(
        {scores, 1, P::Padded(block.keys)}, rows, block.queries, block.keys, p.dim,
        /*add=*/true, y,
        [&](int64_t begin, int64_t) {
          return Range{block.FirstQueryOf(begin), block.queries};
        },
        [&](int64_t, int64_t) { return p.dim; });
  }

  // Replaces the first `seen` numbers of a row by function(number, offset), and the others by zero.
  // Calls it for whole vectors, whose last lanes may hold anything. Returns the sum, lane by lane.
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
      const Vec is_seen = Vec::arange(T(0), T(1)) < Vec(static_cast<T>(seen - i));
      const Vec result = Vec::blendv(Vec(T(0)), function(Vec::loadu(row + i), i), is_seen);
      result.store(row + i);
      sum = sum + result;
      i += kLanes;
    }
    for (; i < padded; i += kLanes) Vec(T(0)).store(row + i);
    return sum;
  }

  static T Total(const Vec& numbers) {
    return at::vec::vec_reduce_all<T>([](const Vec& x, const Vec& y) { return x + y; }, numbers);
  }

  static T LargestOf(const T* row, int64_t seen, T scale) {
    const Vec factor(scale), least(-std::numeric_limits<T>::infinity());
    Vec largest = least;
    int64_t i = 0;
    for (; i + kLanes <= seen; i += kLanes)
      largest = at::vec::clamp_min(Vec::loadu(row + i) * factor, largest);
    if (i < seen) {
      const Vec is_seen = Vec::arange(T(0), T(1)) < Vec(static_cast<T>(seen - i));
      largest =
          at::vec::clamp_min(Vec::blendv(least, Vec::loadu(row + i) * factor, is_seen), largest);
    }
    return at::vec::vec_reduce_all<T>(
        [](const Vec& x, const Vec& y) { return at::vec::clamp_min(x, y); }, largest);
  }

  static void Scale(T* row, int64_t count, T factor) {
    for (int64_t i = 0; i < count; i += kLanes) (Vec::loadu(row + i) * Vec(factor)).store(row + i);
  }

  static void Copy(const T* from, int64_t rows, int64_t dim, T* to, int64_t to_stride, bool add) {
    for (int64_t row = 0; row < rows; ++row, from += P::Padded(dim), to += to_stride) {
      for (int64_t i = 0; i < dim; i += kLanes) {
        const int64_t count = std::min(kLanes, dim - i);
        const Vec x = Vec::loadu(from + i);
        (add ? Vec::loadu(to + i, count) + x : x).store(to + i, static_cast<int>(count));
      }
    }
  }

  static void ForwardOfBlock(const FlashProblem& p, int64_t batch, int64_t head, int64_t query,
                             T* scratch) {
    const Sizes n(p);
    T* const scores = scratch;
    T* const keys = scores + n.scores;
    T* const values = keys + p.dim * n.padded_keys;
    T* const sums = values + n.key_rows;  // of values times exponentials
    T* const largest = sums + n.query_rows;
    T* const totals = largest + kFlashBlock;
    const int64_t padded_dim = P::Padded(p.dim), queries = std::min(kFlashBlock, p.queries - query);
    const T scale = static_cast<T>(p.scale);
    const T* const q = At<T>(p.q, batch, head, query);
    std::fill_n(largest, queries, -std::numeric_limits<T>::infinity());
    std::fill_n(totals, queries, T(0));
    const int64_t last = p.causal ? std::min(p.keys, query + queries) : p.keys;
    for (int64_t key = 0; key < last; key += kFlashBlock) {
      const Block block = BlockAt(p, query, key);
      const int64_t padded_keys = P::Padded(block.keys);
      P::PackTransposed(At<T>(p.k, batch, head, key), p.k.token_stride, block.keys, p.dim, keys);
      P::Pack(At<T>(p.v, batch, head, key), p.v.token_stride, block.keys, p.dim, values);
      MultiplyByKeys(p, block, q, p.q.token_stride, keys, scores);
      for (int64_t i = 0; i < block.queries; ++i) {
        T* const row = scores + i * padded_keys;
        const int64_t seen = block.KeysOf(i);
        const T before = largest[i];
        const T now = std::max(before, LargestOf(row, seen, scale));
        const T total = Total(MapRow(row, seen, padded_keys, [&](const Vec& x, int64_t) {
          return (x * Vec(scale) - Vec(now)).exp_u20();
        }));
        if (key > 0) {
          const T factor = std::exp(before - now);
          totals[i] *= factor;
          Scale(sums + i * padded_dim, padded_dim, factor);
        }
        totals[i] += total;
        largest[i] = now;
      }
      MultiplyScores(p, block, scores, values, /*add=*/key > 0, sums);
    }
    for (int64_t i = 0; i < queries; ++i) {
      Scale(sums + i * padded_dim, padded_dim, 1 / totals[i]);
      *At<T>(p.logsumexp, batch, head, query + i) = largest[i] + std::log(totals[i]);
    }
    Copy(sums, queries, p.dim, At<T>(p.y, batch, head, query), p.y.token_stride, /*add=*/false);
  }

  static T Dot(const T* x, const T* y, int64_t count) {
    Vec sum(T(0));
    for (int64_t i = 0; i < count; i += kLanes) {
      const int64_t some = std::min(kLanes, count - i);
      sum = at::vec::fmadd(Vec::loadu(x + i, some), Vec::loadu(y + i, some), sum);
    }
    return Total(sum);
  }

  static void BackwardOfHead(const FlashProblem& p, int64_t batch, int64_t head, T* scratch) {
    const Sizes n(p);
    T* const scores = scratch;
    T* const d_scores = scores + n.scores;
    T* const keys_transposed = d_scores + n.scores;
    T* const values_transposed = keys_transposed + p.dim * n.padded_keys;
    T* const keys = values_transposed + p.dim * n.padded_keys;
    T* const dk = keys + n.key_rows;
    T* const dv = dk + n.key_rows;
    T* const queries = dv + n.key_rows;
    T* const gradients = queries + n.query_rows;
    T* const dq = gradients + n.query_rows;
    T* const dots = dq + n.query_rows;  // of each query's result and its gradient
    const T scale = static_cast<T>(p.scale);
    for (int64_t i = 0; i < p.queries; ++i)
      dots[i] = Dot(At<T>(p.y, batch, head, i), At<T>(p.dy, batch, head, i), p.dim);
    for (int64_t key = 0; key < p.keys; key += kFlashBlock) {
      const int64_t count = std::min(kFlashBlock, p.keys - key);
      const T* const k = At<T>(p.k, batch, head, key);
      P::PackTransposed(k, p.k.token_stride, count, p.dim, keys_transposed);
      P::PackTransposed(At<T>(p.v, batch, head, key), p.v.token_stride, count, p.dim,
                        values_transposed);
      P::Pack(k, p.k.token_stride, count, p.dim, keys);
      std::fill_n(dk, 2 * n.key_rows, T(0));  // and dv
      for (int64_t query = p.causal ? key : 0; query < p.queries; query += kFlashBlock) {
        const Block block = BlockAt(p, query, key);
        const T* const q = At<T>(p.q, batch, head, query);
        const T* const dy = At<T>(p.dy, batch, head, query);
        MultiplyByKeys(p, block, q, p.q.token_stride, keys_transposed, scores);
        MultiplyByKeys(p, block, dy, p.dy.token_stride, values_transposed, d_scores);
        const int64_t padded_keys = P::Padded(block.keys);
        for (int64_t i = 0; i < block.queries; ++i) {
          const Vec logsumexp(*At<T>(p.logsumexp, batch, head, query + i)), dot(dots[query + i]);
          T* const row = scores + i * padded_keys;
          const int64_t seen = block.KeysOf(i);
          MapRow(row, seen, padded_keys,
                 [&](const Vec& x, int64_t) { return (x * Vec(scale) - logsumexp).exp_u20(); });
          MapRow(d_scores + i * padded_keys, seen, padded_keys, [&](const Vec& x, int64_t offset) {
            return Vec::loadu(row + offset) * (x - dot) * Vec(scale);
          });
        }
        P::Pack(dy, p.dy.token_stride, block.queries, p.dim, gradients);
        MultiplyTransposedScores(p, block, scores, gradients, dv);
        P::Pack(q, p.q.token_stride, block.queries, p.dim, queries);
        MultiplyTransposedScores(p, block, d_scores, queries, dk);
        MultiplyScores(p, block, d_scores, keys, /*add=*/false, dq);
        Copy(dq, block.queries, p.dim, At<T>(p.dq, batch, head, query), p.dq.token_stride,
             /*add=*/key > 0);
      }
      Copy(dk, count, p.dim, At<T>(p.dk, batch, head, key), p.dk.token_stride, /*add=*/false);
      Copy(dv, count, p.dim, At<T>(p.dv, batch, head, key), p.dv.token_stride, /*add=*/false);
    }
  }
};

}  // namespace

extern const FlashLoops kFlashLoops;
const FlashLoops kFlashLoops = {
    .scratch =
        [](const FlashProblem& p, bool backward) {
          return p.dtype == at::kDouble ? Flash<double>::Scratch(p, backward)
                                        : Flash<float>::Scratch(p, backward);
        },
    .forward =
        [](const FlashProblem& p, int64_t begin, int64_t end, void* scratch) {
          return p.dtype == at::kDouble ? Flash<double>::Forward(p, begin, end, scratch)
                                        : Flash<float>::Forward(p, begin, end, scratch);
        },
    .backward =
        [](const FlashProblem& p, int64_t begin, int64_t end, void* scratch) {
          return p.dtype == at::kDouble ? Flash<double>::Backward(p, begin, end, scratch)
                                        : Flash<float>::Backward(p, begin, end, scratch);
        },
};

}  // namespace lockstep::kernels::CPU_CAPABILITY
