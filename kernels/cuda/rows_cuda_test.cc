// The kernels of rows_cuda.cu on the emulator: results against float64, and no fault in any access.
// Random shapes, strides and addresses; seeds are fixed.

#include "kernels/cuda/rows_cuda.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "c10/core/ScalarType.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/geometry.h"
#include "kernels/cuda/testing/dtypes.h"
#include "kernels/cuda/testing/emulator.h"

namespace lockstep::kernels {
namespace {

using emulator::Epsilon;
using emulator::Memory;
using ::testing::IsEmpty;

constexpr double kEps = 1e-5;

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  double Normal() { return normal_(engine_); }
  int64_t Of(std::vector<int64_t> choices) { return choices[engine_() % choices.size()]; }
  bool Flip() { return engine_() % 2 == 0; }

 private:
  std::mt19937 engine_;
  std::normal_distribution<double> normal_;
};

// A matrix in the emulator's memory. Kernels may not touch what lies between its rows.
template <typename T>
struct Rows {
  int64_t rows, size, stride;
  Memory<T> memory;

  // A new result: contiguous.
  Rows(std::string name, int64_t rows, int64_t size, int64_t offset)
      : rows(rows),
        size(size),
        stride(size),
        memory(std::move(name), {.numbers = rows * size, .offset = offset}) {}

  // An input.
  Rows(std::string name, int64_t rows, int64_t size, Random& random)
      : rows(rows),
        size(size),
        stride(size + random.Of({0, 0, 3, 8})),
        memory(std::move(name),
               {.numbers = (rows - 1) * stride + size, .offset = random.Of({0, 0, 0, 1, 8})}) {
    memory.Fill([&](int64_t) { return random.Normal(); });
    memory.ForbidGaps(size, stride);
  }

  const T* input() { return memory.input(); }
  double At(int64_t row, int64_t column) const {
    return static_cast<double>(memory[row * stride + column]);
  }
};

template <typename T>
void ExpectWritten(Rows<T>& result) {
  EXPECT_EQ(result.memory.bytes().num_unwritten(), 0);
}

struct Shape {
  int64_t rows, size;
};

// Sizes of heads and of hidden states, odd ones, and those next to each change of geometry.
std::vector<Shape> Shapes() {
  return {{1, 1},    {5, 7},     {70, 8},    {300, 31},  {33, 64},   {65, 96},  {21, 127},
          {40, 128}, {17, 130},  {19, 192},  {33, 256},  {9, 257},   {20, 512}, {5, 896},
          {3, 1000}, {17, 1024}, {17, 1025}, {2, 2048},  {3, 2050},  {1, 4096}, {2, 4099},
          {1, 5120}, {1, 8192},  {1, 8200},  {1, 16384}, {1, 16385}, {2, 16400}};
}

// Runs check(shape, random) for each shape.
template <typename Check>
void ForEachShape(const Check& check) {
  unsigned seed = 1;
  for (const Shape& shape : Shapes()) {
    SCOPED_TRACE(std::to_string(shape.rows) + " x " + std::to_string(shape.size) + ", seed " +
                 std::to_string(++seed));
    Random random(seed);
    check(shape, random);
    ASSERT_THAT(emulator::TakeFaults(), IsEmpty());
  }
}

// Results in bfloat16 and float16 are rounded twice.
#define EXPECT_CLOSE(T, actual, expected, magnitude) \
  ASSERT_NEAR(actual, expected,                      \
              4 * Epsilon<T>() * (magnitude) + (std::is_same_v<T, double> ? 1e-12 : 1e-6))

template <typename T>
using AccOf = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <typename Run>
void ForEachDtype(const Run& run) {
  emulator::ForEachDtype(run);
  run(double());
}

template <typename T>
void CheckNorm(const Shape& shape, Random& random) {
  const auto [rows, size] = shape;
  Rows<T> x("x", rows, size, random), residual("residual", rows, size, random);
  Rows<T> weight("weight", 1, size, random);
  const int64_t offset = random.Of({0, 0, 1});
  Rows<T> y("y", rows, size, offset), sum("sum", rows, size, offset);
  const bool adds = random.Flip();
  kRowKernelsOfCuda.rms_norm({.dtype = c10::CppTypeToScalarType<T>::value,
                              .size = size,
                              .eps = kEps,
                              .x = x.input(),
                              .x_stride = x.stride,
                              .residual = adds ? residual.input() : nullptr,
                              .residual_stride = residual.stride,
                              .weight = weight.input(),
                              .sum = adds ? sum.memory.output() : nullptr,
                              .y = y.memory.output()},
                             0, rows);

  ExpectWritten(y);
  if (adds) ExpectWritten(sum);
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<double> value(size);
    double squares = 0;
    for (int64_t i = 0; i < size; ++i) {
      value[i] = x.At(row, i);
      if (adds) {
        value[i] = static_cast<double>(static_cast<T>(value[i] + residual.At(row, i)));
        EXPECT_CLOSE(T, sum.At(row, i), value[i], 1);
        value[i] = sum.At(row, i);
      }
      squares += value[i] * value[i];
    }
    const double scale = 1 / std::sqrt(squares / size + kEps);
    for (int64_t i = 0; i < size; ++i) {
      const double expected = value[i] * scale * weight.At(0, i);
      EXPECT_CLOSE(T, y.At(row, i), expected, std::abs(expected));
    }
  }
}

template <typename T>
void CheckNormGradient(const Shape& shape, Random& random) {
  const auto [rows, size] = shape;
  Rows<T> dy("dy", rows, size, random), x("x", rows, size, random);
  Rows<T> weight("weight", 1, size, random), more("more", rows, size, random);
  Rows<T> dx("dx", rows, size, random.Of({0, 0, 1}));
  const bool has_more = random.Flip(), has_weight = random.Of({0, 1, 1}) == 1;
  const int64_t rows_of_part = kRowKernelsOfCuda.rows_of_part(size);
  const int64_t parts = (rows + rows_of_part - 1) / rows_of_part;
  Rows<AccOf<T>> dweight("dweight", parts, size, 0);
  kRowKernelsOfCuda.rms_norm_gradient({.dtype = c10::CppTypeToScalarType<T>::value,
                                       .rows = rows,
                                       .size = size,
                                       .rows_of_part = rows_of_part,
                                       .eps = kEps,
                                       .dy = dy.input(),
                                       .dy_stride = dy.stride,
                                       .x = x.input(),
                                       .x_stride = x.stride,
                                       .weight = weight.input(),
                                       .more = has_more ? more.input() : nullptr,
                                       .more_stride = more.stride,
                                       .dx = dx.memory.output(),
                                       .dweight = has_weight ? dweight.memory.output() : nullptr},
                                      0, parts);

  ExpectWritten(dx);
  if (has_weight) ExpectWritten(dweight);
  std::vector<double> expected_weight(size), magnitude(size);
  for (int64_t row = 0; row < rows; ++row) {
    double squares = 0, products = 0;
    for (int64_t i = 0; i < size; ++i) {
      squares += x.At(row, i) * x.At(row, i);
      products += dy.At(row, i) * weight.At(0, i) * x.At(row, i);
    }
    const double scale = 1 / std::sqrt(squares / size + kEps);
    const double shift = scale * scale * products / size;
    for (int64_t i = 0; i < size; ++i) {
      const double gradient = dy.At(row, i) * weight.At(0, i);
      const double added = has_more ? more.At(row, i) : 0;
      const double expected = scale * (gradient - x.At(row, i) * shift) + added;
      EXPECT_CLOSE(T, dx.At(row, i), expected,
                   scale * (std::abs(gradient) + std::abs(x.At(row, i) * shift)) + std::abs(added));
      const double share = dy.At(row, i) * x.At(row, i) * scale;
      expected_weight[i] += share;
      magnitude[i] += std::abs(share);
    }
  }
  if (!has_weight) return;
  for (int64_t i = 0; i < size; ++i) {
    double sum = 0;
    for (int64_t part = 0; part < parts; ++part) sum += dweight.At(part, i);
    EXPECT_CLOSE(AccOf<T>, sum, expected_weight[i], magnitude[i]);
  }
}

template <typename T>
void CheckSwiglu(const Shape& shape, Random& random) {
  const auto [rows, size] = shape;
  Rows<T> gate("gate", rows, size, random), up("up", rows, size, random);
  Rows<T> dy("dy", rows, size, random);
  Rows<T> y("y", rows, size, random.Of({0, 0, 1})), dgate("dgate", rows, size, 0);
  Rows<T> dup("dup", rows, size, random.Of({0, 0, 1}));
  const SwigluRows all = {.dtype = c10::CppTypeToScalarType<T>::value,
                          .size = size,
                          .gate = gate.input(),
                          .gate_stride = gate.stride,
                          .up = up.input(),
                          .up_stride = up.stride,
                          .dy = dy.input(),
                          .dy_stride = dy.stride,
                          .y = y.memory.output(),
                          .dgate = dgate.memory.output(),
                          .dup = dup.memory.output()};
  kRowKernelsOfCuda.swiglu(all, 0, rows * size);
  kRowKernelsOfCuda.swiglu_gradient(all, 0, rows * size);

  for (Rows<T>* result : {&y, &dgate, &dup}) ExpectWritten(*result);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < size; ++i) {
      const double g = gate.At(row, i), u = up.At(row, i), d = dy.At(row, i);
      const double sigmoid = 1 / (1 + std::exp(-g));
      EXPECT_CLOSE(T, y.At(row, i), g * sigmoid * u, std::abs(g * u));
      EXPECT_CLOSE(T, dup.At(row, i), d * g * sigmoid, std::abs(d * g));
      EXPECT_CLOSE(T, dgate.At(row, i), d * u * sigmoid * (1 + g * (1 - sigmoid)),
                   std::abs(d * u) * (1 + std::abs(g)));
    }
  }
}

// A head has twice as many numbers as `half`.
template <typename T, typename Angle>
void CheckRotate(int64_t tokens, int64_t heads, int64_t half, Random& random) {
  const int64_t size = 2 * half;
  Rows<Angle> cos("cos", tokens, size, 0), sin("sin", tokens, size, random.Of({0, 1}));
  cos.memory.Fill([&](int64_t) { return random.Normal(); });
  sin.memory.Fill([&](int64_t) { return random.Normal(); });
  // Heads of a wider row: those of q, k and v together.
  const int64_t head_stride = size + random.Of({0, 0, 8, 3});
  const int64_t token_stride = heads * head_stride + random.Of({0, 16, 5});
  Memory<T> x("x", {.numbers = tokens * token_stride, .offset = random.Of({0, 0, 2})});
  x.Fill([&](int64_t) { return random.Normal(); });
  for (const bool backward : {false, true}) {
    Rows<T> y("y", tokens * heads, size, random.Of({0, 0, 1}));
    kRowKernelsOfCuda.rotate({.dtype = c10::CppTypeToScalarType<T>::value,
                              .wide_angles = !std::is_same_v<T, Angle>,
                              .heads = heads,
                              .size = size,
                              .x = x.input(),
                              .token_stride = token_stride,
                              .head_stride = head_stride,
                              .cos = cos.input(),
                              .sin = sin.input(),
                              .backward = backward,
                              .y = y.memory.output()},
                             0, tokens * heads);

    ExpectWritten(y);
    for (int64_t row = 0; row < tokens * heads; ++row) {
      const int64_t token = row / heads, head = row % heads;
      for (int64_t i = 0; i < size; ++i) {
        const auto at = [&](int64_t j) {
          return static_cast<double>(x[token * token_stride + head * head_stride + j]);
        };
        const int64_t other = (i + half) % size;
        const double c = cos.At(token, i), s = sin.At(token, backward ? other : i);
        EXPECT_CLOSE(T, y.At(row, i), at(i) * c + at(other) * s,
                     std::abs(at(i) * c) + std::abs(at(other) * s));
      }
    }
  }
}

TEST(RowsOfCuda, NormsAgreeWithFloat64) {
  ForEachShape([](const Shape& shape, Random& random) {
    ForEachDtype([&](auto number) { CheckNorm<decltype(number)>(shape, random); });
  });
}

TEST(RowsOfCuda, GradientsOfNormsAgreeWithFloat64) {
  ForEachShape([](const Shape& shape, Random& random) {
    ForEachDtype([&](auto number) { CheckNormGradient<decltype(number)>(shape, random); });
  });
}

TEST(RowsOfCuda, SwigluAgreesWithFloat64) {
  for (const Shape& shape : {Shape{3, 1}, Shape{40, 130}, Shape{3, 3000}, Shape{2, 4096}}) {
    for (unsigned seed = 1; seed < 4; ++seed) {
      Random random(seed);
      ForEachDtype([&](auto number) { CheckSwiglu<decltype(number)>(shape, random); });
      ASSERT_THAT(emulator::TakeFaults(), IsEmpty());
    }
  }
}

TEST(RowsOfCuda, RotationAgreesWithFloat64) {
  for (const int64_t half : {1, 5, 32, 40, 48, 64, 96, 128, 256}) {
    for (unsigned seed = 1; seed < 4; ++seed) {
      SCOPED_TRACE(half);
      Random random(seed);
      ForEachDtype([&](auto number) {
        using T = decltype(number);
        CheckRotate<T, T>(3, 5, half, random);
        CheckRotate<T, AccOf<T>>(7, 2, half, random);
      });
      ASSERT_THAT(emulator::TakeFaults(), IsEmpty());
    }
  }
}

// One parameter, and its results in float64.
template <typename T, typename Grad, typename Moment>
struct Parameter {
  Rows<T> param;
  Rows<Grad> grad;
  Rows<Moment> first, second;
  Rows<AccOf<T>> master;
  Rows<float> step;
  std::vector<double> expected[3];

  Parameter(int64_t numbers, int64_t offset, bool has_master, Random& random)
      : param("param", 1, numbers, offset),
        grad("grad", 1, numbers, offset),
        first("exp_avg", 1, numbers, offset),
        second("exp_avg_sq", 1, numbers, 0),
        master("master", 1, numbers, offset),
        step("step", 1, 1, 0) {
    param.memory.Fill([&](int64_t) { return random.Normal(); });
    grad.memory.Fill([&](int64_t) { return random.Normal(); });
    first.memory.Fill([&](int64_t) { return random.Normal(); });
    second.memory.Fill([&](int64_t) { return 0.1 + std::abs(random.Normal()); });
    master.memory.Fill([&](int64_t) { return random.Normal(); });
    step.memory.Fill([&](int64_t) { return 3; });
    for (int64_t i = 0; i < numbers; ++i) {
      const double g = grad.At(0, i) * 0.5, w = has_master ? master.At(0, i) : param.At(0, i);
      const double m = 0.9 * first.At(0, i) + 0.1 * g, v = 0.99 * second.At(0, i) + 0.01 * g * g;
      const double rate = 0.1 / (1 - std::pow(0.9, 3));
      expected[0].push_back(w * (1 - 0.1 * 0.2) -
                            rate * m / (std::sqrt(v / (1 - std::pow(0.99, 3))) + 1e-8));
      expected[1].push_back(m);
      expected[2].push_back(v);
    }
  }

  AdamWTensor Pointers(bool has_master, int64_t salt, int64_t first_part) {
    return {.dtype = c10::CppTypeToScalarType<T>::value,
            .grad_dtype = c10::CppTypeToScalarType<Grad>::value,
            .moment_dtype = c10::CppTypeToScalarType<Moment>::value,
            .param = has_master ? param.memory.output() : param.memory.in_out(),
            .grad = grad.input(),
            .exp_avg = first.memory.in_out(),
            .exp_avg_sq = second.memory.in_out(),
            .master = has_master ? master.memory.in_out() : nullptr,
            .step = step.input(),
            .salt = salt,
            .numel = param.size,
            .first_part = first_part};
  }

  void Check(bool has_master) {
    ExpectWritten(param);
    for (int64_t i = 0; i < param.size; ++i) {
      EXPECT_CLOSE(T, param.At(0, i), expected[0][i], std::abs(expected[0][i]) + 0.1);
      EXPECT_CLOSE(Moment, first.At(0, i), expected[1][i], std::abs(expected[1][i]) + 0.1);
      EXPECT_CLOSE(Moment, second.At(0, i), expected[2][i], std::abs(expected[2][i]));
      if (has_master) {
        EXPECT_CLOSE(AccOf<T>, master.At(0, i), expected[0][i], std::abs(expected[0][i]) + 0.1);
      }
    }
  }
};

template <typename T, typename Grad, typename Moment>
void CheckAdamW(bool has_master, bool is_random) {
  Random random(1);
  Memory<double> scale("grad_scale", {.numbers = 1});
  scale.Fill([](int64_t) { return 0.5; });
  std::vector<std::unique_ptr<Parameter<T, Grad, Moment>>> parameters;
  std::vector<AdamWTensor> tensors;
  int64_t parts = 0;
  for (int i = 0; i < 43; ++i) {  // more than one launch takes
    const int64_t numbers = i == 1 ? 2 * kNumbersOfPart + 77 : 1 + random.Of({0, 7, 40, 299});
    parameters.push_back(std::make_unique<Parameter<T, Grad, Moment>>(
        numbers, random.Of({0, 0, 1, 8}), has_master, random));
    tensors.push_back(parameters.back()->Pointers(has_master, is_random ? i : -1, parts));
    parts += (numbers + kNumbersOfPart - 1) / kNumbersOfPart;
  }
  kRowKernelsOfCuda.adamw({.tensors = tensors.data(),
                           .count = static_cast<int64_t>(tensors.size()),
                           .lr = 0.1,
                           .beta1 = 0.9,
                           .beta2 = 0.99,
                           .eps = 1e-8,
                           .weight_decay = 0.2,
                           .lr_factor = nullptr,
                           .grad_scale = scale.input()},
                          0, parts);

  ASSERT_THAT(emulator::TakeFaults(), IsEmpty());
  for (const auto& parameter : parameters) parameter->Check(has_master);
}

TEST(RowsOfCuda, AdamWAgreesWithFloat64) {
  CheckAdamW<double, double, double>(false, false);
  CheckAdamW<float, float, float>(false, false);
  CheckAdamW<at::BFloat16, float, float>(true, false);
  CheckAdamW<at::Half, at::Half, float>(true, false);
  CheckAdamW<at::BFloat16, at::BFloat16, at::BFloat16>(false, true);
}

// Counts what a kernel does.
template <typename Run>
emulator::Counts CountsOf(const Run& run) {
  emulator::ResetCounts();
  run();
  EXPECT_THAT(emulator::TakeFaults(), IsEmpty());
  return emulator::CountsSoFar();
}

// Aligned rows, and what a kernel writes of them.
template <typename T>
struct Aligned {
  Rows<T> x, y;

  Aligned(int64_t rows, int64_t size) : x("x", rows, size, 0), y("y", rows, size, 0) {
    x.memory.Fill([](int64_t i) { return i % 7 - 3; });
  }

  // The weight is the first row.
  emulator::Counts Norm() {
    RmsNormRows all = {};
    all.dtype = c10::CppTypeToScalarType<T>::value;
    all.size = all.x_stride = x.size;
    all.x = all.weight = x.input();
    all.y = y.memory.output();
    return CountsOf([&] { kRowKernelsOfCuda.rms_norm(all, 0, x.rows); });
  }

  // A token has all heads.
  emulator::Counts Rotate() {
    RotateRows all = {};
    all.dtype = c10::CppTypeToScalarType<T>::value;
    all.heads = x.rows;
    all.size = all.head_stride = x.size;
    all.x = all.cos = all.sin = x.input();
    all.y = y.memory.output();
    return CountsOf([&] { kRowKernelsOfCuda.rotate(all, 0, x.rows); });
  }

  emulator::Counts Swiglu() {
    SwigluRows all = {};
    all.dtype = c10::CppTypeToScalarType<T>::value;
    all.size = all.gate_stride = all.up_stride = x.size;
    all.gate = all.up = x.input();
    all.y = y.memory.output();
    return CountsOf([&] { kRowKernelsOfCuda.swiglu(all, 0, x.rows * x.size); });
  }

  emulator::Counts Gradient(Rows<float>& dweight) {
    RmsNormGradientRows all = {};
    all.dtype = c10::CppTypeToScalarType<T>::value;
    all.rows = x.rows;
    all.size = all.dy_stride = all.x_stride = x.size;
    all.rows_of_part = kRowKernelsOfCuda.rows_of_part(x.size);
    all.dy = all.x = all.weight = x.input();
    all.dx = y.memory.output();
    all.dweight = dweight.memory.output();
    return CountsOf([&] { kRowKernelsOfCuda.rms_norm_gradient(all, 0, dweight.rows); });
  }
};

TEST(RowsOfCuda, AlignedRowsMove16BytesAtATime) {
  for (const int64_t size : {64, 128, 1024, 4096, 16384}) {
    Aligned<at::BFloat16> rows(4, size);
    const int64_t bytes = 4 * size * 2;
    const emulator::Counts norm = rows.Norm(), rotate = rows.Rotate(), swiglu = rows.Swiglu();

    EXPECT_EQ(norm.loaded_bytes, 3 * bytes);
    EXPECT_EQ(rotate.loaded_bytes, 3 * bytes);
    EXPECT_EQ(swiglu.loaded_bytes, 2 * bytes);
    for (const emulator::Counts& counts : {norm, rotate, swiglu}) {
      EXPECT_EQ(counts.loaded_bytes, 16 * counts.loads);
      EXPECT_EQ(counts.stored_bytes, 16 * counts.stores);
      EXPECT_EQ(counts.stored_bytes, bytes);
    }
  }
}

TEST(RowsOfCuda, ShortRowsNeedNoBarrier) {
  for (const int64_t size : {64, 128, 256, 1024, 2048}) {
    EXPECT_EQ(Aligned<float>(64, size).Norm().barriers, size <= 1024 ? 0 : 64);
  }
}

// The rows of a block add up in registers: memory sees each share once.
TEST(RowsOfCuda, GradientsOfWeightsAreStoredOnce) {
  for (const int64_t size : {64, 128, 1024, 4096, 16384}) {
    const int64_t rows = size > 1024 ? 20 : 140;
    Aligned<float> all(rows, size);
    Rows<float> dweight("dweight", CeilDiv(rows, kRowKernelsOfCuda.rows_of_part(size)), size, 0);

    EXPECT_EQ(all.Gradient(dweight).stored_bytes, (rows + dweight.rows) * size * 4);
  }
}

}  // namespace
}  // namespace lockstep::kernels
