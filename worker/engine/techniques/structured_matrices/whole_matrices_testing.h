#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "worker/engine/models/weights.h"
#include "worker/engine/techniques/structured_matrices/structured_matrices_cost.h"
#include "worker/engine/testing/float64_matrices.h"

namespace weft::engine {

/// A block-diagonal matrix as a whole one, of blocks [rows, columns] one under the other.
inline Doubles WholeOf(const Doubles& blocks, int64_t count, int64_t columns) {
  const int64_t rows = static_cast<int64_t>(blocks.size()) / columns / count;
  Doubles whole(static_cast<size_t>(count * rows * count * columns), 0.0);
  for (int64_t b = 0; b < count; ++b) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        whole[(b * rows + i) * count * columns + b * columns + j] =
            blocks[(b * rows + i) * columns + j];
      }
    }
  }
  return whole;
}

/// The gradient of such blocks from that of the whole matrix.
inline Doubles BlocksOf(const Doubles& whole, int64_t count, int64_t columns) {
  const int64_t rows = static_cast<int64_t>(whole.size()) / (count * count * columns);
  Doubles blocks;
  for (int64_t b = 0; b < count; ++b) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        blocks.push_back(whole[(b * rows + i) * count * columns + b * columns + j]);
      }
    }
  }
  return blocks;
}

/// W = second P first with whole matrices in float64, as the definition says it.
struct WholeMonarch {
  MonarchSizes size;
  Doubles first;        ///< [Middle(), in]
  Doubles permutation;  ///< [Middle(), Middle()]
  Doubles second;       ///< [out, Middle()]

  WholeMonarch(const MonarchSizes& sizes, const Doubles& first_blocks, const Doubles& second_blocks)
      : size(sizes),
        first(WholeOf(first_blocks, size.blocks, size.in)),
        permutation(static_cast<size_t>(size.Middle() * size.Middle()), 0.0),
        second(WholeOf(second_blocks, size.blocks, size.blocks * size.rank)) {
    for (int64_t k = 0; k < size.blocks; ++k) {
      for (int64_t l = 0; l < size.blocks; ++l) {
        for (int64_t q = 0; q < size.rank; ++q) {
          const int64_t from = (k * size.blocks + l) * size.rank + q;
          const int64_t to = (l * size.blocks + k) * size.rank + q;
          permutation[to * size.Middle() + from] = 1;
        }
      }
    }
  }

  int64_t in() const { return size.blocks * size.in; }
  int64_t out() const { return size.blocks * size.out; }
  Doubles Permuted() const { return Times(permutation, first, size.Middle(), size.Middle(), in()); }
  Doubles Weight() const { return Times(second, Permuted(), out(), size.Middle(), in()); }
  /// The gradients of the blocks from that of W.
  std::vector<Doubles> Gradients(const Doubles& dw) const {
    const int64_t m = size.Middle();
    const Doubles dpermuted = Times(Transposed(second, out(), m), dw, m, out(), in());
    const Doubles dfirst = Times(Transposed(permutation, m, m), dpermuted, m, m, in());
    const Doubles dsecond = Times(dw, Transposed(Permuted(), m, in()), out(), in(), m);
    return {BlocksOf(dfirst, size.blocks, size.in),
            BlocksOf(dsecond, size.blocks, size.blocks * size.rank)};
  }
};

/// W = B + U V likewise.
struct WholePixelfly {
  PixelflySizes size;
  std::vector<Doubles> tensors;  ///< Blocks, V, U.

  int64_t in() const { return size.columns * size.size; }
  int64_t out() const { return size.rows * size.size; }
  /// Calls fn(element of the blocks, element of W).
  template <class Fn>
  void ForEachInBlocks(Fn&& fn) const {
    const int64_t area = size.size * size.size;
    const std::vector<PixelflySizes::Place> places = size.Places();
    for (int64_t i = 0; i < std::ssize(places) * area; ++i) {
      const PixelflySizes::Place& place = places[i / area];
      const int64_t row = place.row * size.size + i % area / size.size;
      fn(i, row * in() + place.column * size.size + i % size.size);
    }
  }
  Doubles Weight() const {
    Doubles weight(static_cast<size_t>(out() * in()), 0.0);
    if (size.rank > 0) weight = Times(tensors[2], tensors[1], out(), size.rank, in());
    ForEachInBlocks([&](int64_t i, int64_t w) { weight[w] += tensors[0][i]; });
    return weight;
  }
  std::vector<Doubles> Gradients(const Doubles& dw) const {
    std::vector<Doubles> gradients = {Doubles(tensors[0].size())};
    ForEachInBlocks([&](int64_t i, int64_t w) { gradients[0][i] = dw[w]; });
    if (size.rank == 0) return gradients;
    gradients.push_back(
        Times(Transposed(tensors[2], out(), size.rank), dw, size.rank, out(), in()));
    gradients.push_back(Times(dw, Transposed(tensors[1], size.rank, in()), out(), in(), size.rank));
    return gradients;
  }
};

/// The tensors of a weight [out, in], from parameter `first` on, as a whole matrix.
struct WholeWeight {
  std::vector<Doubles> tensors;
  std::function<Doubles()> weight;
  std::function<std::vector<Doubles>(const Doubles&)> gradients;

  WholeWeight(const StructuredMatricesSpec& spec, const ParameterSet& parameters, int64_t first) {
    for (int64_t i = first;
         i < parameters.size() && parameters[i].in_place_of == parameters[first].in_place_of; ++i) {
      tensors.push_back(AsDoubles(parameters.value(i)));
    }
    const Shape& shape = parameters[first].weight_shape;
    if (spec.kind == "pixelfly") {
      const WholePixelfly whole{PixelflyOf(spec, {shape[0], shape[1]}), tensors};
      weight = [whole] { return whole.Weight(); };
      gradients = [whole](const Doubles& dw) { return whole.Gradients(dw); };
    } else {
      const WholeMonarch whole(MonarchOf(spec, {shape[0], shape[1]}), tensors[0], tensors[1]);
      weight = [whole] { return whole.Weight(); };
      gradients = [whole](const Doubles& dw) { return whole.Gradients(dw); };
    }
  }
  int64_t count() const { return std::ssize(tensors); }
};

inline StructuredMatricesSpec Spec(const std::string& kind, std::vector<std::string> layers = {}) {
  StructuredMatricesSpec spec;
  spec.kind = kind;
  spec.layers = std::move(layers);
  if (kind == "pixelfly") {
    spec.block_size = 16;
    spec.density = 1;
    spec.low_rank_share = 0.5;
  }
  return spec;
}

}  // namespace weft::engine
