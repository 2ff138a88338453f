#include "kernels/orthogonalize/orthogonalize.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "kernels/cpu/parallel.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/linear/matmul.h"
#include "kernels/norm_stat/norm_stat.h"
#include "kernels/orthogonalize/orthogonalize_check.h"

namespace weft::kernels {
namespace {

constexpr float kA = 3.4445f, kB = -4.7750f, kC = 2.0315f;
constexpr double kTiny = 1e-7;
constexpr int64_t kAlignment = 64;

int64_t Aligned(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

/// The memory of one run, on the matrix with the longer side down, [length, width].
struct Layout {
  int64_t length;
  int64_t width;
  DType compute;

  Layout(int64_t rows, int64_t columns, DType compute_type)
      : length(std::max(rows, columns)), width(std::min(rows, columns)), compute(compute_type) {}

  int64_t iterate_bytes() const {
    return Aligned(length * width * static_cast<int64_t>(DTypeSize(compute)));
  }
  int64_t square_bytes() const { return Aligned(width * width * 4); }
  int64_t operand_bytes() const { return compute == DType::kF32 ? 0 : Aligned(width * width * 2); }
  /// Two iterates, a scaled copy in f32 when they are not, two squares and one as an operand.
  int64_t Bytes() const {
    const int64_t copy = compute == DType::kF32 ? 0 : Aligned(length * width * 4);
    return 2 * iterate_bytes() + copy + 2 * square_bytes() + operand_bytes();
  }
};

}  // namespace

int64_t OrthogonalizeWorkspace(int64_t rows, int64_t columns, DType compute) {
  return Layout(rows, columns, compute).Bytes();
}

namespace cpu {
namespace {

// to[c, r] = factor * from[r, c], by tiles that fit a cache.
void Transpose(const float* from, int64_t rows, int64_t columns, float factor, float* to) {
  constexpr int64_t kTile = 32;
  ParallelFor((columns + kTile - 1) / kTile, 1, [&](int64_t begin, int64_t end) {
    for (int64_t c0 = begin * kTile; c0 < std::min(end * kTile, columns); c0 += kTile) {
      for (int64_t r0 = 0; r0 < rows; r0 += kTile) {
        for (int64_t c = c0; c < std::min(c0 + kTile, columns); ++c) {
          for (int64_t r = r0; r < std::min(r0 + kTile, rows); ++r) {
            to[c * rows + r] = factor * from[r * columns + c];
          }
        }
      }
    }
  });
}

void ScaledCopy(const float* from, int64_t count, float factor, float* to) {
  ParallelFor(count, 16384, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] = factor * from[i];
  });
}

/// The iteration on X [length, width], whose Gram matrix XᵀX is the smaller one:
/// X = X (a I + b XᵀX + c (XᵀX)²).
class Iteration {
 public:
  Iteration(const Stream& stream, const Layout& layout, char* memory)
      : stream_(stream), layout_(layout) {
    for (void*& iterate : iterates_) iterate = Take(memory, layout.iterate_bytes());
    if (layout.compute == DType::kF32) {
      start_ = static_cast<float*>(iterates_[0]);
    } else {
      start_ = static_cast<float*>(Take(memory, Aligned(layout.length * layout.width * 4)));
    }
    gram_ = static_cast<float*>(Take(memory, layout.square_bytes()));
    square_ = static_cast<float*>(Take(memory, layout.square_bytes()));
    operand_ = layout.compute == DType::kF32 ? gram_ : Take(memory, layout.operand_bytes());
  }

  /// Where the matrix is before Run and after it, f32 [length, width].
  float* start() const { return start_; }

  Status Run(int64_t iterations) {
    const int64_t n = layout_.width;
    if (start_ != iterates_[0]) WEFT_RETURN_IF_ERROR(Convert(start_, iterates_[0]));
    for (int64_t i = 0; i < iterations; ++i) {
      MatmulShape gram = Product(n, layout_.length, n, DType::kF32);
      gram.a_stride = n;
      gram.a_transposed = true;
      WEFT_RETURN_IF_ERROR(Matmul(gram, iterates_[0], {.data = iterates_[0]}, nullptr, gram_));
      WEFT_RETURN_IF_ERROR(MakeOperand(gram_));
      WEFT_RETURN_IF_ERROR(
          Matmul(Product(n, n, n, DType::kF32), operand_, {.data = operand_}, nullptr, square_));
      Combine();
      WEFT_RETURN_IF_ERROR(MakeOperand(gram_));
      WEFT_RETURN_IF_ERROR(Matmul(Product(layout_.length, n, n, layout_.compute), iterates_[0],
                                  {.data = operand_}, nullptr, iterates_[1]));
      std::swap(iterates_[0], iterates_[1]);
    }
    if (layout_.compute == DType::kF32) {
      start_ = static_cast<float*>(iterates_[0]);
      return OkStatus();
    }
    return Convert(iterates_[0], start_);
  }

 private:
  static void* Take(char*& memory, int64_t bytes) { return std::exchange(memory, memory + bytes); }

  MatmulShape Product(int64_t m, int64_t k, int64_t n, DType output) const {
    return {.m = m,
            .k = k,
            .n = n,
            .input = layout_.compute,
            .output = output,
            .a_stride = k,
            .b_stride = n,
            .c_stride = n};
  }

  // Between f32 and the compute type, [length, width].
  Status Convert(void* from, void* to) const {
    const bool back = to == start_;
    const Shape shape = {layout_.length, layout_.width};
    return kernels::Cast(stream_, {{from, back ? layout_.compute : DType::kF32, shape, {}},
                                   {to, back ? DType::kF32 : layout_.compute, shape, {}}});
  }

  Status MakeOperand(float* square) const {
    if (operand_ == square) return OkStatus();
    const Shape shape = {layout_.width, layout_.width};
    return kernels::Cast(
        stream_, {{square, DType::kF32, shape, {}}, {operand_, layout_.compute, shape, {}}});
  }

  // gram = a I + b gram + c square
  void Combine() {
    const int64_t n = layout_.width;
    ParallelFor(n, 32, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin * n; i < end * n; ++i) gram_[i] = kB * gram_[i] + kC * square_[i];
      for (int64_t i = begin; i < end; ++i) gram_[i * n + i] += kA;
    });
  }

  const Stream& stream_;
  const Layout& layout_;
  void* iterates_[2];
  float* start_;
  float* gram_;
  float* square_;
  void* operand_;
};

}  // namespace

Status Orthogonalize(const Stream& stream, const OrthogonalizeArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckOrthogonalize(stream, args));
  const int64_t rows = args.matrix.shape[0], columns = args.matrix.shape[1];
  if (rows == 0 || columns == 0) return OkStatus();
  float* matrix = args.matrix.As<float>();
  const NormTensor all{matrix, rows * columns};
  double squares = 0;
  int64_t non_finite = 0;
  WEFT_RETURN_IF_ERROR(kernels::NormStat(stream, {std::span(&all, 1), &squares, &non_finite}));
  const auto factor = static_cast<float>(1 / (std::sqrt(squares) + kTiny));

  const Layout layout(rows, columns, MatmulHasBf16() ? args.compute : DType::kF32);
  Iteration iteration(stream, layout, static_cast<char*>(args.workspace.data));
  const bool wide = columns > rows;
  if (wide) {
    Transpose(matrix, rows, columns, factor, iteration.start());
  } else {
    ScaledCopy(matrix, rows * columns, factor, iteration.start());
  }
  WEFT_RETURN_IF_ERROR(iteration.Run(args.iterations));
  if (wide) {
    Transpose(iteration.start(), columns, rows, 1.0f, matrix);
  } else {
    ScaledCopy(iteration.start(), rows * columns, 1.0f, matrix);
  }
  return OkStatus();
}

}  // namespace cpu
}  // namespace weft::kernels
