// Products of small matrices, for flash_cpu.cc alone. Everything here is in a namespace of the
// instruction set's name, so that the linker never gives one set's code to another.
//
// The right factor lies in panels: kWidth columns each, row after row, and zeros behind the last
// column. A tile of the result is some rows of one panel, and stays in registers.

#ifndef LOCKSTEP_KERNELS_ATTENTION_PRODUCTS_H_
#define LOCKSTEP_KERNELS_ATTENTION_PRODUCTS_H_

#include <algorithm>
#include <cstdint>
#include <utility>

#include "ATen/cpu/vec/functional.h"

namespace lockstep::kernels::CPU_CAPABILITY {

// Numbers in memory: element [row, column] is at row * row_stride + column * column_stride.
template <typename T>
struct Strided {
  const T* data;
  int64_t row_stride, column_stride = 1;
};

// A range of numbers from begin on, without end.
struct Range {
  int64_t begin, end;
};

template <typename T>
struct Products {
  using Vec = at::vec::Vectorized<T>;
  static constexpr int64_t kLanes = Vec::size();
  static constexpr int64_t kWidth = 2 * kLanes;  // columns of a panel
  // AVX-512 has 32 registers, and a tile of 8 rows takes 18 of them. The others have 16.
#if defined(CPU_CAPABILITY_AVX512)
  static constexpr int64_t kRows = 8;
#else
  static constexpr int64_t kRows = 4;
#endif

  static constexpr int64_t Padded(int64_t columns) {
    return (columns + kWidth - 1) / kWidth * kWidth;
  }

  // Copies x [rows, columns] to panels. Its columns are dense.
  static void Pack(const T* x, int64_t row_stride, int64_t rows, int64_t columns, T* panels) {
    for (int64_t column = 0; column < columns; column += kWidth, panels += rows * kWidth) {
      const int64_t count = std::min(kWidth, columns - column);
      for (int64_t row = 0; row < rows; ++row) {
        const T* from = x + row * row_stride + column;
        T* to = panels + row * kWidth;
        LoadSome(from, count).store(to);
        LoadSome(from + kLanes, count - kLanes).store(to + kLanes);
      }
    }
  }

  // Copies the transpose of x [rows, columns] to panels: they have `columns` rows of `rows`
  // columns.
  static void PackTransposed(const T* x, int64_t row_stride, int64_t rows, int64_t columns,
                             T* panels) {
    for (int64_t row = 0; row < Padded(rows); row += kLanes) {
      T* panel = panels + row / kWidth * (columns * kWidth) + row % kWidth;
      for (int64_t column = 0; column < columns; column += kLanes) {
        const int64_t count = std::min(kLanes, columns - column);
        PackSquare(x + row * row_stride + column, row_stride, rows - row, count,
                   panel + column * kWidth, std::make_index_sequence<kLanes>());
      }
    }
  }

  // Computes y = a b, or y += a b. Both functions take a range of rows, as its first row and the
  // one after the last. terms_of returns which terms of their sums may not be zero, and columns_of
  // how many of their columns are wanted.
  //   a [rows, terms], b [terms, columns] in panels, y [rows, Padded(columns)], row after row
  template <typename TermsOf, typename ColumnsOf>
  static void Multiply(const Strided<T>& a, const T* b, int64_t b_rows, int64_t rows,
                       int64_t columns, bool add, T* y, const TermsOf& terms_of,
                       const ColumnsOf& columns_of) {
    const int64_t y_stride = Padded(columns);
    for (int64_t column = 0; column < columns; column += kWidth) {
      const T* panel = b + column * b_rows;
      for (int64_t row = 0; row < rows;) {
        const int64_t count = RowsOfTile(rows - row);
        if (column < columns_of(row, row + count)) {
          const Range terms = terms_of(row, row + count);
          const Strided<T> part = {a.data + row * a.row_stride + terms.begin * a.column_stride,
                                   a.row_stride, a.column_stride};
          RunTile(count, part, panel + terms.begin * kWidth, terms.end - terms.begin, add,
                  y + row * y_stride + column, y_stride);
        }
        row += count;
      }
    }
  }

 private:
  static Vec LoadSome(const T* from, int64_t count) {
    if (count >= kLanes) return Vec::loadu(from);
    return count > 0 ? Vec::loadu(from, count) : Vec(T(0));
  }

  // Interleaves the first half with the second as often as the square has powers of two. Indices
  // are constants, so that the square stays in registers.
  template <size_t... i>
  static void Transpose(Vec* square, std::index_sequence<i...>) {
    for (size_t n = 1; n <= sizeof...(i); n *= 2) {
      const std::pair<Vec, Vec> pairs[] = {
          at::vec::interleave2(square[i], square[i + sizeof...(i)])...};
      ((square[2 * i] = pairs[i].first, square[2 * i + 1] = pairs[i].second), ...);
    }
  }

  // Copies the transpose of a square that has `rows` rows and `columns` columns, and zeros else.
  template <size_t... i>
  static void PackSquare(const T* x, int64_t row_stride, int64_t rows, int64_t columns, T* panel,
                         std::index_sequence<i...>) {
    const auto signed_i = [](size_t number) { return static_cast<int64_t>(number); };
    Vec square[] = {
        (signed_i(i) < rows ? LoadSome(x + signed_i(i) * row_stride, columns) : Vec(T(0)))...};
    Transpose(square, std::make_index_sequence<sizeof...(i) / 2>());
    ((signed_i(i) < columns ? square[i].store(panel + signed_i(i) * kWidth) : void()), ...);
  }

  static int64_t RowsOfTile(int64_t left) {
    for (int64_t count = kRows; count > 1; count /= 2)
      if (left >= count) return count;
    return 1;
  }

  static void RunTile(int64_t rows, const Strided<T>& a, const T* b, int64_t terms, bool add, T* y,
                      int64_t y_stride) {
    switch (rows) {
      case 8:
        return Tile(a, b, terms, add, y, y_stride,
                    std::make_index_sequence<std::min<int64_t>(kRows, 8)>());
      case 4: return Tile(a, b, terms, add, y, y_stride, std::make_index_sequence<4>());
      case 2: return Tile(a, b, terms, add, y, y_stride, std::make_index_sequence<2>());
      default: return Tile(a, b, terms, add, y, y_stride, std::make_index_sequence<1>());
    }
  }

  // Indices of rows are constants, so that the sums stay in registers.
  template <size_t... r>
  __attribute__((noinline)) static void Tile(const Strided<T>& a, const T* b, int64_t terms,
                                             bool add, T* y, int64_t y_stride,
                                             std::index_sequence<r...>) {
    Vec left[] = {(static_cast<void>(r), Vec(T(0)))...};
    Vec right[] = {(static_cast<void>(r), Vec(T(0)))...};
    const T* number = a.data;
    const int64_t row_stride = a.row_stride, column_stride = a.column_stride;
    for (int64_t term = 0; term < terms; ++term, b += kWidth, number += column_stride) {
      const Vec first = Vec::loadu(b), second = Vec::loadu(b + kLanes);
      const auto add_row = [&](const Vec& factor, Vec& x, Vec& z) {
        x = at::vec::fmadd(factor, first, x);
        z = at::vec::fmadd(factor, second, z);
      };
      (add_row(Vec(number[r * row_stride]), left[r], right[r]), ...);
    }
    // The old y is added at the end: one long chain of additions would round more.
    if (add) {
      ((left[r] = left[r] + Vec::loadu(y + r * y_stride)), ...);
      ((right[r] = right[r] + Vec::loadu(y + r * y_stride + kLanes)), ...);
    }
    (left[r].store(y + r * y_stride), ...);
    (right[r].store(y + r * y_stride + kLanes), ...);
  }
};

}  // namespace lockstep::kernels::CPU_CAPABILITY

#endif  // LOCKSTEP_KERNELS_ATTENTION_PRODUCTS_H_
