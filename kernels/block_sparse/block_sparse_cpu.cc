#include "kernels/block_sparse/block_sparse.h"

#include <algorithm>
#include <memory>
#include <type_traits>
#include <vector>

#include "kernels/block_sparse/block_sparse_check.h"
#include "kernels/block_sparse/block_sparse_simd.h"
#include "kernels/cpu/aligned_memory.h"
#include "kernels/cpu/float_types.h"
#include "kernels/cpu/parallel.h"

namespace weft::kernels::cpu {
namespace {

// Rows of x that are multiplied at a time: a multiple of what registers hold, and few enough that
// they stay in the second-level cache.
constexpr int64_t kBlockTileRows = 120;
// Rows that a gradient sums at a time: those of two blocks stay in the first-level cache.
constexpr int64_t kBlockSumRows = 96;

/// Uninitialized numbers, or null where there is no memory for them.
class Floats {
 public:
  explicit Floats(int64_t count)
      : memory_(AllocateAligned(static_cast<size_t>(std::max<int64_t>(count, 1)) * sizeof(float))) {
  }
  float* data() const { return static_cast<float*>(memory_.get()); }

 private:
  AlignedMemory memory_;
};

Status NoMemory() {
  return ExhaustedError("BlockSparse: no memory for blocks in f32");
}

/// The blocks as f32 of values rounded to T, each transposed where rows of B are what is made.
template <class T>
void WidenBlocks(const TensorView& blocks, int64_t size, bool transposed, float* panels) {
  const int64_t elements = size * size;
  WithFloatType(blocks.dtype, [&]<class Stored>() {
    const Stored* stored = blocks.As<Stored>();
    ParallelFor(blocks.shape[0] / size, 1, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const Stored* from = stored + block * elements;
        float* to = panels + block * elements;
        const int64_t down = transposed ? 1 : size, across = transposed ? size : 1;
        for (int64_t i = 0; i < size; ++i) {
          for (int64_t j = 0; j < size; ++j) {
            to[i * size + j] = ToFloat(FromFloat<T>(ToFloat(from[i * down + j * across])));
          }
        }
      }
    });
  });
}

/// out = in times blocks + bias, or out += in times blocks. `forward`: out has the rows of the
/// grid, else its columns.
template <class T>
Status MultiplyBlocks(const BlockPattern& pattern, const TensorView& in, const TensorView& blocks,
                      const TensorView& out, bool forward, const TensorView& bias,
                      bool accumulate) {
  const int64_t size = pattern.size(), elements = size * size;
  const bool as_stored = !forward && blocks.dtype == DType::kF32 && std::is_same_v<T, float>;
  const Floats widened(as_stored ? 0 : blocks.shape.Elements());
  if (widened.data() == nullptr) return NoMemory();
  if (!as_stored) WidenBlocks<T>(blocks, size, forward, widened.data());
  const float* const panels = as_stored ? blocks.As<float>() : widened.data();
  const BlockList list =
      forward ? pattern.ByRow(DeviceType::kCpu) : pattern.ByColumn(DeviceType::kCpu);
  const int64_t lines = forward ? pattern.rows() : pattern.columns();
  const BlockSparseLoops<T>& loops = PickBlockSparseKernels().template Of<T>();
  const int64_t rows = in.shape[0];
  const int64_t tiles = (rows + kBlockTileRows - 1) / kBlockTileRows;
  ParallelFor(tiles * lines, 1, [&](int64_t begin, int64_t end) {
    std::vector<BlockTerm> terms;
    std::vector<float> tile;  // What terms read, as f32.
    for (int64_t item = begin; item < end; ++item) {
      const int64_t first = item / lines * kBlockTileRows, line = item % lines;
      const int64_t count = std::min(kBlockTileRows, rows - first);
      terms.clear();
      const int64_t of_line = list.begin[line + 1] - list.begin[line];
      if (of_line == 0 && accumulate) continue;
      if (!std::is_same_v<T, float>) tile.resize(static_cast<size_t>(of_line * count * size));
      for (int32_t i = list.begin[line]; i < list.begin[line + 1]; ++i) {
        const BlockPlace& place = list.places[i];
        const T* x =
            in.As<T>() + first * in.row_stride + (forward ? place.column : place.row) * size;
        const float* panel = panels + place.block * elements;
        if constexpr (std::is_same_v<T, float>) {
          terms.push_back({x, panel});
        } else {
          float* const wide = tile.data() + static_cast<int64_t>(terms.size()) * count * size;
          loops.widen(x, in.row_stride, count, size, wide);
          terms.push_back({wide, panel});
        }
      }
      const float* own_bias = bias ? bias.As<float>() + line * size : nullptr;
      loops.multiply(terms.data(), of_line, std::is_same_v<T, float> ? in.row_stride : size,
                     out.As<T>() + first * out.row_stride + line * size, out.row_stride, count,
                     size, own_bias, accumulate);
    }
  });
  return OkStatus();
}

}  // namespace

Status BlockSparseForward(const Stream& stream, const BlockSparseForwardArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckBlockSparseForward(stream, args));
  return WithFloatType(args.x.dtype, [&]<class T>() {
    return MultiplyBlocks<T>(*args.pattern, args.x, args.blocks, args.y, true, args.bias,
                             args.accumulate);
  });
}

Status BlockSparseBackwardInput(const Stream& stream, const BlockSparseBackwardInputArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckBlockSparseBackwardInput(stream, args));
  return WithFloatType(args.dy.dtype, [&]<class T>() {
    return MultiplyBlocks<T>(*args.pattern, args.dy, args.blocks, args.dx, false, {},
                             args.accumulate);
  });
}

Status BlockSparseBackwardWeight(const Stream& stream, const BlockSparseBackwardWeightArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckBlockSparseBackwardWeight(stream, args));
  const BlockPattern& pattern = *args.pattern;
  const int64_t size = pattern.size(), rows = args.x.shape[0];
  const BlockPlace* const places = pattern.ByRow(DeviceType::kCpu).places;
  WithFloatType(args.x.dtype, [&]<class T>() {
    const BlockSparseLoops<T>& loops = PickBlockSparseKernels().template Of<T>();
    ParallelFor(pattern.count(), 1, [&](int64_t begin, int64_t end) {
      std::vector<float> left(static_cast<size_t>(kBlockSumRows * size)), right(left.size());
      for (int64_t block = begin; block < end; ++block) {
        const T* dy = args.dy.As<T>() + places[block].row * size;
        const T* x = args.x.As<T>() + places[block].column * size;
        float* const to = args.dblocks.As<float>() + block * size * size;
        for (int64_t row = 0; row < std::max<int64_t>(rows, 1); row += kBlockSumRows) {
          const int64_t count = std::min(kBlockSumRows, rows - row);
          loops.widen(dy + row * args.dy.row_stride, args.dy.row_stride, count, size, left.data());
          loops.widen(x + row * args.x.row_stride, args.x.row_stride, count, size, right.data());
          loops.outer(left.data(), right.data(), count, size, to, args.accumulate || row > 0);
        }
      }
    });
  });
  return OkStatus();
}

}  // namespace weft::kernels::cpu
