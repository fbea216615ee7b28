// Products of small matrices, for flash_cpu.cc alone. Everything is in a namespace named after the
// instruction set, so that the linker never gives one set's code to another.
//
// In y = a b the right factor is packed in panels: kPanelColumns columns each, row after row, with
// zeros for missing columns. A tile is some rows of one panel of y. Its sums stay in registers, as
// in BLIS (Van Zee and van de Geijn 2015).

#ifndef LOCKSTEP_KERNELS_ATTENTION_PRODUCTS_H_
#define LOCKSTEP_KERNELS_ATTENTION_PRODUCTS_H_

#include <algorithm>
#include <cstdint>
#include <utility>

#include "ATen/cpu/vec/functional.h"

namespace lockstep::kernels::CPU_CAPABILITY {

// A matrix in memory: element [row, column] is at row * row_stride + column * column_stride.
template <typename T>
struct Strided {
  const T* data;
  int64_t row_stride, column_stride = 1;
};

// The part of a product that some rows need. Their sums have the terms [first_term, last_term).
// `columns`: they need the first ones.
struct Part {
  int64_t first_term, last_term, columns;
};

template <typename T>
struct Products {
  using Vec = at::vec::Vectorized<T>;
  static constexpr int64_t kLanes = Vec::size();
  static constexpr int64_t kPanelColumns = 2 * kLanes;
  // AVX-512 has 32 registers, and a tile of 8 rows takes 19 of them. AVX2 has 16.
#if defined(CPU_CAPABILITY_AVX512)
  static constexpr int64_t kTileRows = 8;
#else
  static constexpr int64_t kTileRows = 4;
#endif

  // Terms that are added up in one chain. One of 300 had 1.5 times ATen's error (docs/LOG.md).
  static constexpr int64_t kChain = 64;

  static constexpr int64_t Padded(int64_t columns) {
    return (columns + kPanelColumns - 1) / kPanelColumns * kPanelColumns;
  }

  // Copies x [rows, columns] to panels. Its columns are dense.
  static void Pack(const T* x, int64_t row_stride, int64_t rows, int64_t columns, T* panels) {
    for (int64_t column = 0; column < columns; column += kPanelColumns) {
      const int64_t count = std::min(kPanelColumns, columns - column);
      for (int64_t row = 0; row < rows; ++row, panels += kPanelColumns) {
        const T* from = x + row * row_stride + column;
        LoadSome(from, count).store(panels);
        LoadSome(from + kLanes, count - kLanes).store(panels + kLanes);
      }
    }
  }

  // Copies the transpose of x [rows, columns] to panels. They have `columns` rows of `rows`
  // columns.
  static void PackTransposed(const T* x, int64_t row_stride, int64_t rows, int64_t columns,
                             T* panels) {
    for (int64_t row = 0; row < Padded(rows); row += kLanes) {
      T* panel = panels + row / kPanelColumns * (columns * kPanelColumns) + row % kPanelColumns;
      for (int64_t column = 0; column < columns; column += kLanes) {
        const int64_t count = std::min(kLanes, columns - column);
        PackSquare(x + row * row_stride + column, row_stride, rows - row, count,
                   panel + column * kPanelColumns, Indices<kLanes>());
      }
    }
  }

  // Computes y = a b, or y += a b. part_of(begin, end) returns the Part that rows [begin, end)
  // need.
  //   a [rows, terms]; b [terms, columns] in panels; y [rows, columns], row stride Padded(columns)
  template <typename PartOf>
  static void Multiply(const Strided<T>& a, const T* b, int64_t rows, int64_t terms,
                       int64_t columns, bool add, T* y, const PartOf& part_of) {
    const int64_t y_stride = Padded(columns);
    for (int64_t column = 0; column < columns; column += kPanelColumns) {
      const T* panel = b + column * terms;
      for (int64_t row = 0, count = 0; row < rows; row += count) {
        count = RowsOfTile(rows - row);
        const Part part = part_of(row, row + count);
        if (column >= part.columns) continue;
        int64_t term = part.first_term;
        do {
          const int64_t end = std::min(term + kChain, part.last_term);
          RunTile(
              count,
              {a.data + row * a.row_stride + term * a.column_stride, a.row_stride, a.column_stride},
              panel + term * kPanelColumns, end - term, add || term > part.first_term,
              y + row * y_stride + column, y_stride);
          term = end;
        } while (term < part.last_term);
      }
    }
  }

 private:
  template <int64_t count>
  using Indices = std::make_integer_sequence<int64_t, count>;

  static Vec LoadSome(const T* from, int64_t count) {
    if (count >= kLanes) return Vec::loadu(from);
    return count > 0 ? Vec::loadu(from, count) : Vec(T(0));
  }

  // Transposes in log2(size) passes. Each interleaves the first half of the rows with the second.
  // Indices are constants, so that the square stays in registers.
  template <int64_t... i>
  static void Transpose(Vec* square, std::integer_sequence<int64_t, i...>) {
    constexpr int64_t kHalf = sizeof...(i);
    for (int64_t n = 1; n <= kHalf; n *= 2) {
      const std::pair<Vec, Vec> pairs[] = {at::vec::interleave2(square[i], square[i + kHalf])...};
      ((square[2 * i] = pairs[i].first, square[2 * i + 1] = pairs[i].second), ...);
    }
  }

  // Copies the transpose of the first rows and columns of a square, and zeros for missing rows.
  template <int64_t... i>
  static void PackSquare(const T* x, int64_t row_stride, int64_t rows, int64_t columns, T* panel,
                         std::integer_sequence<int64_t, i...>) {
    Vec square[] = {(i < rows ? LoadSome(x + i * row_stride, columns) : Vec(T(0)))...};
    Transpose(square, Indices<kLanes / 2>());
    ((i < columns ? square[i].store(panel + i * kPanelColumns) : void()), ...);
  }

  static int64_t RowsOfTile(int64_t left) {
    for (int64_t count = kTileRows; count > 1; count /= 2)
      if (left >= count) return count;
    return 1;
  }

  static void RunTile(int64_t rows, const Strided<T>& a, const T* b, int64_t terms, bool add, T* y,
                      int64_t y_stride) {
    switch (rows) {
      case kTileRows: return Tile(a, b, terms, add, y, y_stride, Indices<kTileRows>());
      case kTileRows / 2: return Tile(a, b, terms, add, y, y_stride, Indices<kTileRows / 2>());
      case 1: return Tile(a, b, terms, add, y, y_stride, Indices<1>());
      default: return Tile(a, b, terms, add, y, y_stride, Indices<2>());
    }
  }

  // Computes a tile of y. Indices of rows are constants, so that the sums stay in registers. Not
  // inline: the code would be there once for each product of flash_cpu.cc.
  template <int64_t... r>
  __attribute__((noinline)) static void Tile(const Strided<T>& a, const T* b, int64_t terms,
                                             bool add, T* y, int64_t y_stride,
                                             std::integer_sequence<int64_t, r...>) {
    Vec sums0[] = {(static_cast<void>(r), Vec(T(0)))...};
    Vec sums1[] = {(static_cast<void>(r), Vec(T(0)))...};
    const T* factor = a.data;
    const int64_t row_stride = a.row_stride, column_stride = a.column_stride;
    for (int64_t term = 0; term < terms; ++term, b += kPanelColumns, factor += column_stride) {
      const Vec b0 = Vec::loadu(b), b1 = Vec::loadu(b + kLanes);
      const auto add_term = [&](const Vec& x, Vec& sum0, Vec& sum1) {
        sum0 = at::vec::fmadd(x, b0, sum0);
        sum1 = at::vec::fmadd(x, b1, sum1);
      };
      (add_term(Vec(factor[r * row_stride]), sums0[r], sums1[r]), ...);
    }
    // Adds the old value last: one long chain of additions had 1.5 times ATen's error
    // (docs/LOG.md).
    if (add) {
      ((sums0[r] = sums0[r] + Vec::loadu(y + r * y_stride)), ...);
      ((sums1[r] = sums1[r] + Vec::loadu(y + r * y_stride + kLanes)), ...);
    }
    (sums0[r].store(y + r * y_stride), ...);
    (sums1[r].store(y + r * y_stride + kLanes), ...);
  }
};

}  // namespace lockstep::kernels::CPU_CAPABILITY

#endif  // LOCKSTEP_KERNELS_ATTENTION_PRODUCTS_H_
