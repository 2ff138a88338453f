#include "worker/engine/techniques/structured_matrices/monarch_values.h"

#include "kernels/cpu/parallel.h"
#include "worker/engine/techniques/singular_vectors.h"

namespace weft::engine {
namespace {

/// Where the numbers of a block (l, k) of W are: that of output block l and input block k.
struct BlockPlaces {
  const MonarchSizes& size;
  int64_t l, k;

  size_t Weight(int64_t s, int64_t p) const {
    return static_cast<size_t>((l * size.out + s) * size.blocks * size.in + k * size.in + p);
  }
  size_t First(int64_t q, int64_t p) const {
    return static_cast<size_t>(((k * size.blocks + l) * size.rank + q) * size.in + p);
  }
  size_t Second(int64_t s, int64_t q) const {
    return static_cast<size_t>(((l * size.out + s) * size.blocks + k) * size.rank + q);
  }
};

/// Calls fn for each block of W, on several threads.
template <class Fn>
void ForEachBlock(const MonarchSizes& size, Fn&& fn) {
  kernels::cpu::ParallelForDynamic(size.blocks * size.blocks, [&](int64_t block) {
    fn(BlockPlaces{size, block / size.blocks, block % size.blocks});
  });
}

}  // namespace

std::vector<float> MonarchMatrix(const MonarchSizes& size, std::span<const float> first,
                                 std::span<const float> second) {
  std::vector<float> weight(static_cast<size_t>(size.blocks * size.blocks * size.out * size.in));
  ForEachBlock(size, [&](const BlockPlaces& at) {
    std::vector<double> row(static_cast<size_t>(size.in));
    for (int64_t s = 0; s < size.out; ++s) {
      std::fill(row.begin(), row.end(), 0.0);
      for (int64_t q = 0; q < size.rank; ++q) {
        const double factor = second[at.Second(s, q)];
        const float* const from = &first[at.First(q, 0)];
        for (int64_t p = 0; p < size.in; ++p) row[static_cast<size_t>(p)] += factor * from[p];
      }
      for (int64_t p = 0; p < size.in; ++p) {
        weight[at.Weight(s, p)] = static_cast<float>(row[static_cast<size_t>(p)]);
      }
    }
  });
  return weight;
}

std::vector<std::vector<float>> NearestMonarch(const MonarchSizes& size,
                                               std::span<const float> weight) {
  std::vector<std::vector<float>> factors = {
      std::vector<float>(static_cast<size_t>(size.Middle() * size.in)),
      std::vector<float>(static_cast<size_t>(size.blocks * size.out * size.blocks * size.rank))};
  ForEachBlock(size, [&](const BlockPlaces& at) {
    std::vector<double> block;
    for (int64_t s = 0; s < size.out; ++s) {
      for (int64_t p = 0; p < size.in; ++p) block.push_back(weight[at.Weight(s, p)]);
    }
    const SingularVectors nearest = NearestOfRank(block, size.out, size.in, size.rank);
    for (int64_t q = 0; q < size.rank; ++q) {
      for (int64_t p = 0; p < size.in; ++p) {
        factors[0][at.First(q, p)] = static_cast<float>(nearest.right[q * size.in + p]);
      }
      for (int64_t s = 0; s < size.out; ++s) {
        factors[1][at.Second(s, q)] = static_cast<float>(nearest.left[q * size.out + s]);
      }
    }
  });
  return factors;
}

}  // namespace weft::engine
