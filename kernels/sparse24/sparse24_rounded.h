#pragma once

// Results of sparse products that leave as the transpose, rounded, and what is made of them on the
// way out: tokens of the column-major result become rows.

#include <cstdint>

#include "kernels/activation/gelu_device.h"
#include "kernels/activation/product_activation.h"
#include "kernels/activation/silu_device.h"
#include "kernels/activation/squared_relu.h"
#include "kernels/cuda/row_map.h"
#include "kernels/sparse24/sparse24_product.h"

namespace weft::kernels::cuda {

/// Calls fn.operator()<Function>() with the struct of an activation of one number. All threads have
/// the same one, so that which it is costs no more than a branch.
template <class Fn>
__device__ __forceinline__ void WithUnitActivation(ProductActivation activation, Fn&& fn) {
  if (activation == ProductActivation::kErfGelu) {
    fn.template operator()<ErfGelu>();
  } else if (activation == ProductActivation::kSquaredRelu) {
    fn.template operator()<SquaredReluAt>();
  } else {
    fn.template operator()<TanhGelu>();
  }
}

/// Likewise with that of the gate of a gated one.
template <class Fn>
__device__ __forceinline__ void WithGateActivation(ProductActivation activation, Fn&& fn) {
  if (activation == ProductActivation::kErfGeglu) {
    fn.template operator()<ErfGelu>();
  } else if (activation == ProductActivation::kGeglu) {
    fn.template operator()<TanhGelu>();
  } else {
    fn.template operator()<Silu>();
  }
}

// What becomes of eight rounded elements of RoundedTranspose: Store() reads them from shared memory
// and writes them to `to`, (line, row) of the matrices, 16 bytes at a time.

/// They are the result.
struct WithoutActivation {
  template <class T>
  __device__ __forceinline__ void Store(int64_t /*line*/, int64_t /*row*/, const T* eight,
                                        T* to) const {
    ptx::Store16(to, ptx::Load16(eight));
  }
};

/// The activation of each goes to a second matrix.
template <class T>
struct AndTheirActivation {
  StridedRows<T> active;         ///< [lines, rows]
  ProductActivation activation;  ///< Not a gated one.

  __device__ __forceinline__ void Store(int64_t line, int64_t row, const T* eight, T* to) const {
    const Packed<T, 8> own = LoadPacked<8>(eight);
    float values[8];
    WithUnitActivation(activation, [&]<class Function>() {
#pragma unroll
      for (int k = 0; k < 8; ++k) values[k] = Function(own[k]).Value();
    });
    ptx::Store16(to, ptx::Load16(eight));
    StoreFloats(active.At(line, row), values);
  }
};

/// They are multiplied by the derivative of the activation at `before`.
template <class T>
struct TimesDerivative {
  StridedRows<const T> before;   ///< [lines, rows]
  StridedRows<T> active;         ///< Becomes the activation of `before`, or none.
  ProductActivation activation;  ///< Not a gated one.

  __device__ __forceinline__ void Store(int64_t line, int64_t row, const T* eight, T* to) const {
    const Packed<T, 8> own = LoadPacked<8>(eight), x = LoadPacked<8>(before.At(line, row));
    float gradient[8], again[8];
    WithUnitActivation(activation, [&]<class Function>() {
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const Function at(x[k]);
        gradient[k] = own[k] * at.Derivative();
        again[k] = at.Value();
      }
    });
    StoreFloats(to, gradient);
    if (active.data != nullptr) StoreFloats(active.At(line, row), again);
  }
};

/// They are the gradient of a gated activation's result, and those of gate and up are written.
template <class T>
struct IntoGateAndUp {
  StridedRows<const T> before;  ///< [lines, 2 width]: gate and up.
  StridedRows<T> active;        ///< Becomes the activation of `before`, [lines, width], or none.
  int64_t width;                ///< A multiple of 8; RoundedTranspose::to has rows of twice this.
  ProductActivation activation;

  __device__ __forceinline__ void Store(int64_t line, int64_t row, const T* eight, T* to) const {
    const Packed<T, 8> own = LoadPacked<8>(eight), gate = LoadPacked<8>(before.At(line, row));
    const Packed<T, 8> up = LoadPacked<8>(before.At(line, row + width));
    float of_gate[8], of_up[8], again[8];
    WithGateActivation(activation, [&]<class Function>() {
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const Function at(gate[k]);
        of_gate[k] = own[k] * up[k] * at.Derivative();
        of_up[k] = own[k] * at.Value();
        again[k] = at.Value() * up[k];
      }
    });
    StoreFloats(to, of_gate);
    StoreFloats(to + width, of_up);
    if (active.data != nullptr) StoreFloats(active.At(line, row), again);
  }
};

/// The sums of a block, rounded to T, in shared memory: rows of the tile are lines.
template <class T>
struct RoundedTile {
  using Tile = SwizzledTile<SparseBlock::kRows>;
  Tile tile;

  /// plus_of(r) is added to the sums of row r of the block. By the threads of Take().
  template <int kM, int kN, class PlusOf>
  __device__ __forceinline__ void Put(const Accumulators<kM, kN>& sums, int warp_row, int warp_line,
                                      const PlusOf& plus_of) const {
    if constexpr (ptx::kHopper && kM == 1) {
      StoreMatrices(sums, warp_row, warp_line, plus_of);
    } else {
      StoreElements(sums, warp_row, warp_line, plus_of);
    }
    ptx::SyncNamed(1, SparseBlock::kThreads);
  }

  /// Eight elements of a line.
  __device__ __forceinline__ const T* Eight(int line, int piece) const {
    return reinterpret_cast<const T*>(tile.Piece(line, piece));
  }

 private:
  template <int kM, int kN, class PlusOf>
  __device__ __forceinline__ void StoreElements(const Accumulators<kM, kN>& sums, int warp_row,
                                                int warp_line, const PlusOf& plus_of) const {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int r = warp_row + 16 * m + AccumulatorRow(2 * half);
        const float plus = plus_of(r);
#pragma unroll
        for (int n = 0; n < kN; ++n) {
#pragma unroll
          for (int i = 2 * half; i < 2 * half + 2; ++i) {
            auto* piece = tile.Piece(warp_line + 8 * n + AccumulatorColumn(i), r / 8);
            reinterpret_cast<T*>(piece)[r % 8] = Narrow<T>(sums[m][n][i] + plus);
          }
        }
      }
    }
  }

  template <int kN, class PlusOf>
  __device__ __forceinline__ void StoreMatrices(const Accumulators<1, kN>& sums, int warp_row,
                                                int warp_line, const PlusOf& plus_of) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const float plus[2] = {plus_of(warp_row + AccumulatorRow(0)),
                           plus_of(warp_row + AccumulatorRow(2))};
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float(&four)[4] = sums[0][n + i / 2];
        const int half = i % 2;
        words[i] = Pack<T>(four[2 * half] + plus[half], four[2 * half + 1] + plus[half]);
      }
      ptx::StoreMatricesTransposed(
          tile.Piece(warp_line + 8 * (n + lane / 16) + lane % 8, warp_row / 8 + lane / 8 % 2),
          words);
    }
  }
};

/// Writes the transpose of the product, plus a bias for each of its rows, rounded to T. `then`
/// takes what is written with kWide.
template <class T, bool kWide, class Then = WithoutActivation>
struct RoundedTranspose : RowsTogether {
  StridedRows<T> to;  ///< [lines, rows]
  const float* bias;  ///< [rows], or none
  int64_t lines, rows;
  Then then = {};

  __device__ __forceinline__ float BiasOf(int64_t row) const {
    return bias != nullptr && row < rows ? bias[row] : 0.0f;
  }

  template <int kLines, int kM, int kN>
  __device__ __forceinline__ void Take(const Accumulators<kM, kN>& sums, unsigned char* shared,
                                       int64_t row, int64_t line, int warp_row,
                                       int warp_line) const {
    const RoundedTile<T> tile{{shared}};
    tile.Put(sums, warp_row, warp_line, [&](int r) { return BiasOf(row + r); });
    constexpr int kPieces = RoundedTile<T>::Tile::kPieces;
    for (int i = static_cast<int>(threadIdx.x); i < kLines * kPieces; i += SparseBlock::kThreads) {
      const int l = i / kPieces, piece = i % kPieces;
      const int64_t first = row + 8 * piece;
      if (line + l >= lines || first >= rows) continue;
      T* const at = to.At(line + l, first);
      const T* const from = tile.Eight(l, piece);
      if constexpr (kWide) {
        then.Store(line + l, first, from, at);
      } else {
        for (int k = 0; k < 8 && first + k < rows; ++k) at[k] = from[k];
      }
    }
  }
};

/// The same of a gate and its up, whose rows follow those of the gate, and of the gated activation
/// of both. A block has rows of the gate, and behind them the same ones of up.
template <class T>
struct GatedTranspose {
  static constexpr int kParts = 2;
  static constexpr int kPartRows = SparseBlock::kRows / kParts;

  StridedRows<T> to;      ///< [lines, 2 width]
  const float* bias;      ///< [2 width], or none
  StridedRows<T> active;  ///< [lines, width]
  int64_t lines;
  int64_t width;  ///< A multiple of kPartRows.
  ProductActivation activation;

  __device__ __forceinline__ int64_t RowOf(int64_t row, int part) const {
    return row + part * width;
  }

  template <int kLines, int kM, int kN>
  __device__ __forceinline__ void Take(const Accumulators<kM, kN>& sums, unsigned char* shared,
                                       int64_t row, int64_t line, int warp_row,
                                       int warp_line) const {
    const RoundedTile<T> tile{{shared}};
    tile.Put(sums, warp_row, warp_line, [&](int r) {
      return bias != nullptr ? bias[RowOf(row + r % kPartRows, r / kPartRows)] : 0.0f;
    });
    constexpr int kPieces = kPartRows / 8;
    for (int i = static_cast<int>(threadIdx.x); i < kLines * kPieces; i += SparseBlock::kThreads) {
      const int l = i / kPieces, piece = i % kPieces;
      if (line + l >= lines) continue;
      const T* const of_gate = tile.Eight(l, piece);
      const T* const of_up = tile.Eight(l, piece + kPieces);
      const Packed<T, 8> gate = LoadPacked<8>(of_gate), up = LoadPacked<8>(of_up);
      float values[8];
      WithGateActivation(activation, [&]<class Function>() {
#pragma unroll
        for (int k = 0; k < 8; ++k) values[k] = Function(gate[k]).Value() * up[k];
      });
      T* const at = to.At(line + l, row + 8 * piece);
      ptx::Store16(at, ptx::Load16(of_gate));
      ptx::Store16(at + width, ptx::Load16(of_up));
      StoreFloats(active.At(line + l, row + 8 * piece), values);
    }
  }
};

}  // namespace weft::kernels::cuda
