#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "kernels/cpu/aligned_memory.h"
#include "kernels/sparse24/row_activation.h"
#include "kernels/sparse24/sparse24.h"
#include "kernels/sparse24/sparse24_check.h"
#include "kernels/sparse24/sparse24_operand.h"

namespace weft::kernels::cpu {
namespace {

// Rows and elements of a weight gradient's dy that are listed at a time. The lists stay in the
// last-level cache, and the gradient is added to once for all these rows.
constexpr int64_t kListedRows = 8192;
constexpr int64_t kListedElements = int64_t{2} << 20;

// W for y = x Wᵀ, and its transpose for dx = dy W.
class CpuSparseWeight : public SparseWeight {
 public:
  CpuSparseWeight(int64_t out_features, int64_t in_features, DType compute)
      : SparseWeight(out_features, in_features, compute),
        forward_(out_features, in_features),
        backward_(in_features, out_features) {}

  Status SetMask(const Stream& stream, const TensorView& mask) override {
    WEFT_RETURN_IF_ERROR(CheckSparseMask(stream, *this, mask));
    const auto* blocks = mask.As<uint16_t>();
    const int64_t width = mask.shape[1];
    listed_ = packed_ = false;
    WEFT_RETURN_IF_ERROR(forward_.List([=](int64_t group, int64_t first, int64_t count,
                                           uint8_t* codes) {
      const uint16_t* row = blocks + group * width;
      for (int64_t i = 0; i < count; ++i) {
        const int64_t c = first + i;
        const int bits = row[c / 4] >> (c % 4);
        codes[i] =
            static_cast<uint8_t>((bits & 1) | (bits >> 3 & 2) | (bits >> 6 & 4) | (bits >> 9 & 8));
      }
    }));
    WEFT_RETURN_IF_ERROR(backward_.List([=](int64_t group, int64_t first, int64_t count,
                                            uint8_t* codes) {
      for (int64_t i = 0; i < count; ++i) {
        const int64_t row = first + i;
        codes[i] = static_cast<uint8_t>(blocks[row / 4 * width + group] >> (4 * (row % 4)) & 15);
      }
    }));
    listed_ = true;
    return OkStatus();
  }
  Status SetMask(const Stream& stream, const TensorView& mask, MaskSides /*known*/) override {
    return SetMask(stream, mask);
  }
  MaskSides mask_sides() const override { return {}; }

  Status Pack(const Stream& stream, const TensorView& weight) override {
    WEFT_RETURN_IF_ERROR(CheckSparsePack(stream, *this, weight));
    if (!listed_) return InvalidError("SparseWeight: Pack before SetMask");
    forward_.Take(weight);
    backward_.TakeTransposed(weight);
    packed_ = true;
    return OkStatus();
  }

  int64_t Bytes() const override { return forward_.Bytes() + backward_.Bytes(); }

  bool packed() const { return packed_; }
  const SparseOperand& forward() const { return forward_; }
  const SparseOperand& backward() const { return backward_; }

 private:
  SparseOperand forward_, backward_;
  bool listed_ = false, packed_ = false;
};

// Rows [row, row + rows) and columns likewise of a matrix.
TensorView Part(const TensorView& matrix, int64_t row, int64_t rows, int64_t column,
                int64_t columns) {
  TensorView part = matrix;
  part.data = static_cast<char*>(matrix.data) +
              (row * matrix.row_stride + column) * static_cast<int64_t>(DTypeSize(matrix.dtype));
  part.shape = {rows, columns};
  return part;
}

// For one call. It keeps its memory, since fresh pages cost more than the lists in them.
SparseOperand& OperandOfThread(int64_t rows, int64_t columns) {
  thread_local SparseOperand operand(0, 0);
  operand.Resize(rows, columns);
  return operand;
}

Result<const CpuSparseWeight*> Packed(const SparseWeight& weight) {
  const auto* own = dynamic_cast<const CpuSparseWeight*>(&weight);
  if (own == nullptr) return InvalidError("the sparse weight is one of another device");
  if (!own->packed()) return InvalidError("the sparse weight is not packed");
  return own;
}

}  // namespace

Result<std::unique_ptr<SparseWeight>> NewSparseWeight(Device /*device*/, int64_t out_features,
                                                      int64_t in_features, DType compute) {
  WEFT_RETURN_IF_ERROR(CheckSparseWeight(out_features, in_features, compute));
  return std::unique_ptr<SparseWeight>(
      std::make_unique<CpuSparseWeight>(out_features, in_features, compute));
}

Status SparseForward(const Stream& stream, const SparseForwardArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckSparseForward(stream, args));
  WEFT_ASSIGN_OR_RETURN(const CpuSparseWeight* weight, Packed(*args.weight));
  const auto* bias = static_cast<const float*>(args.bias.data);
  const TensorView &y = args.y, &active = args.active;
  if (!active) {
    weight->forward().Multiply(args.x, bias, y);
    return OkStatus();
  }
  const bool gated = IsGated(args.activation);
  WithFloatType(y.dtype, [&]<class T>() {
    const RowActivation<T> activation(args.activation);
    const auto activate = [&](int64_t line, int64_t lines, int64_t column, int64_t columns) {
      for (int64_t row = line; row < line + lines; ++row) {
        const T* const from = y.As<T>() + row * y.row_stride + column;
        activation.Forward(from, gated ? from + active.shape[1] : nullptr,
                           active.As<T>() + row * active.row_stride + column, columns);
      }
    };
    weight->forward().Multiply(args.x, bias, y, activate, gated);
  });
  return OkStatus();
}

Status SparseBackwardInput(const Stream& stream, const SparseBackwardInputArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckSparseBackwardInput(stream, args));
  WEFT_ASSIGN_OR_RETURN(const CpuSparseWeight* weight, Packed(*args.weight));
  const TensorView &dx = args.dx, &before = args.before, &active = args.active;
  if (!before) {
    weight->backward().Multiply(args.dy, nullptr, dx);
    return OkStatus();
  }
  const bool gated = IsGated(args.activation);
  const int64_t width = weight->in_features();
  WithFloatType(dx.dtype, [&]<class T>() {
    const RowActivation<T> activation(args.activation);
    const auto differentiate = [&](int64_t line, int64_t lines, int64_t column, int64_t columns) {
      for (int64_t row = line; row < line + lines; ++row) {
        const T* const x = before.As<T>() + row * before.row_stride + column;
        T* const to = dx.As<T>() + row * dx.row_stride + column;
        T* const again = active ? active.As<T>() + row * active.row_stride + column : nullptr;
        activation.Backward(x, gated ? x + width : nullptr, to, gated ? to + width : nullptr, again,
                            columns);
      }
    };
    // The gradient of a gated activation's result lies where that of the gate goes.
    weight->backward().Multiply(args.dy, nullptr, gated ? GatedColumnsOf(dx).gate : dx,
                                differentiate);
  });
  return OkStatus();
}

Status SparseBackwardWeight(const Stream& stream, const SparseBackwardWeightArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckSparseBackwardWeight(stream, args));
  const int64_t rows = args.dy.shape[0], out = args.dy.shape[1];
  if (out == 0) return OkStatus();
  const int64_t most_rows = std::clamp<int64_t>(rows, 1, kListedRows);
  const int64_t tile = PickSparseKernels().tile;
  const int64_t fit = kListedElements / most_rows / tile * tile;
  const int64_t most = std::min(std::max(fit, tile), out);
  AlignedMemory estimates;
  if (args.estimate != nullptr) {
    const int64_t bytes = most_rows * most * static_cast<int64_t>(DTypeSize(args.dy.dtype));
    estimates = AllocateAligned(static_cast<size_t>(std::max<int64_t>(bytes, 1)));
    if (estimates == nullptr) {
      return ExhaustedError("SparseBackwardWeight: no memory for an estimate of " +
                            std::to_string(bytes) + " bytes");
    }
  }
  for (int64_t row = 0; row < std::max<int64_t>(rows, 1); row += most_rows) {
    const int64_t count = std::min(most_rows, rows - row);
    const TensorView x = Part(args.x, row, count, 0, args.x.shape[1]);
    for (int64_t column = 0; column < out; column += most) {
      const int64_t columns = std::min(most, out - column);
      TensorView dy = Part(args.dy, row, count, column, columns);
      if (args.estimate != nullptr) {
        MvueArgs estimate = *args.estimate;
        if (estimate.all_columns == 0) estimate.all_columns = out;
        estimate.first_row += row;
        estimate.first_column += column;
        estimate.x = std::exchange(dy, TensorView(estimates.get(), dy.dtype, dy.shape));
        estimate.y = dy;
        WEFT_RETURN_IF_ERROR(cpu::Mvue(stream, estimate));
      }
      SparseOperand& operand = OperandOfThread(columns, count);
      WEFT_RETURN_IF_ERROR(operand.ListTransposed(dy));
      operand.MultiplyRows(x, args.accumulate || row > 0,
                           Part(args.dweight, column, columns, 0, args.dweight.shape[1]));
    }
  }
  return OkStatus();
}

Status SampledBackwardWeight(const Stream& stream, const SampledBackwardWeightArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckSampledBackwardWeight(stream, args));
  WEFT_ASSIGN_OR_RETURN(const CpuSparseWeight* weight, Packed(*args.weight));
  return weight->forward().SampleProduct(args.x, args.dy, args.first_row, args.accumulate,
                                         args.dweight);
}

}  // namespace weft::kernels::cpu
