#include "worker/engine/techniques/structured_matrices/pixelfly_values.h"

#include "kernels/cpu/parallel.h"
#include "worker/engine/techniques/singular_vectors.h"

namespace weft::engine {
namespace {

/// Calls fn(element of the blocks, element of W) for all elements of blocks.
template <class Fn>
void ForEachInBlocks(const PixelflySizes& size, Fn&& fn) {
  const int64_t in = size.columns * size.size;
  size_t element = 0;
  for (const PixelflySizes::Place& place : size.Places()) {
    for (int64_t s = 0; s < size.size; ++s) {
      for (int64_t p = 0; p < size.size; ++p) {
        fn(element++,
           static_cast<size_t>((place.row * size.size + s) * in + place.column * size.size + p));
      }
    }
  }
}

/// U V in float64.
std::vector<double> LowRank(const PixelflySizes& size, std::span<const float> in_factor,
                            std::span<const float> out_factor) {
  const int64_t out = size.rows * size.size, in = size.columns * size.size;
  std::vector<double> weight(static_cast<size_t>(out * in), 0.0);
  kernels::cpu::ParallelFor(out, 1, [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) {
      double* const row = &weight[static_cast<size_t>(s * in)];
      for (int64_t r = 0; r < size.rank; ++r) {
        const double factor = out_factor[static_cast<size_t>(s * size.rank + r)];
        const float* const from = &in_factor[static_cast<size_t>(r * in)];
        for (int64_t p = 0; p < in; ++p) row[p] += factor * from[p];
      }
    }
  });
  return weight;
}

}  // namespace

std::vector<float> PixelflyMatrix(const PixelflySizes& size,
                                  const std::vector<std::vector<float>>& tensors) {
  const auto elements = static_cast<size_t>(size.rows * size.columns * size.size * size.size);
  std::vector<double> weight =
      size.rank > 0 ? LowRank(size, tensors[1], tensors[2]) : std::vector<double>(elements, 0.0);
  ForEachInBlocks(size, [&](size_t of_blocks, size_t of_weight) {
    weight[of_weight] += tensors[0][of_blocks];
  });
  return {weight.begin(), weight.end()};
}

std::vector<std::vector<float>> NearPixelfly(const PixelflySizes& size,
                                             std::span<const float> weight) {
  const int64_t out = size.rows * size.size, in = size.columns * size.size;
  std::vector<std::vector<float>> tensors(size.rank > 0 ? 3 : 1);
  tensors[0].resize(static_cast<size_t>(size.blocks * size.size * size.size));
  std::vector<double> low_rank(weight.size(), 0.0);
  if (size.rank > 0) {
    std::vector<double> outside(weight.begin(), weight.end());
    ForEachInBlocks(size, [&](size_t, size_t of_weight) { outside[of_weight] = 0; });
    const SingularVectors nearest = NearestOfRank(outside, out, in, size.rank);
    tensors[1].assign(nearest.right.begin(), nearest.right.end());
    tensors[2].resize(static_cast<size_t>(out * size.rank));
    for (int64_t s = 0; s < out; ++s) {
      for (int64_t r = 0; r < size.rank; ++r) {
        tensors[2][static_cast<size_t>(s * size.rank + r)] =
            static_cast<float>(nearest.left[static_cast<size_t>(r * out + s)]);
      }
    }
    low_rank = LowRank(size, tensors[1], tensors[2]);
  }
  ForEachInBlocks(size, [&](size_t of_blocks, size_t of_weight) {
    tensors[0][of_blocks] = static_cast<float>(weight[of_weight] - low_rank[of_weight]);
  });
  return tensors;
}

}  // namespace weft::engine
