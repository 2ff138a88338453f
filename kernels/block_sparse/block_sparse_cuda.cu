#include <string_view>

#include "kernels/block_sparse/block_sparse.h"
#include "kernels/block_sparse/block_sparse_check.h"
#include "kernels/block_sparse/block_sparse_plain.h"
#include "kernels/block_sparse/block_sparse_tensor_cores.h"

namespace weft::kernels::cuda {
namespace {

template <class Fn>
Status WithStoredType(DType dtype, Fn&& fn) {
  return dtype == DType::kF32 ? fn.template operator()<float>()
                              : fn.template operator()<BFloat16>();
}

template <bool kForward>
Status MultiplyLines(const Stream& stream, std::string_view op, const BlockPattern& pattern,
                     const TensorView& in, const TensorView& blocks, const TensorView& out,
                     const TensorView& bias, bool accumulate) {
  const int64_t lines = kForward ? pattern.rows() : pattern.columns();
  const auto size = static_cast<int>(pattern.size());
  const int64_t rows = in.shape[0];
  if (rows == 0) return OkStatus();
  const unsigned units = static_cast<unsigned>(lines) * CeilDiv(size, kUnit);
  const bool aligned = RowsAligned16(in, out) && Aligned16(blocks.data);
  return WithFloatType(in.dtype, [&]<class T>() {
    return WithStoredType(blocks.dtype, [&]<class Stored>() {
      const BlockProduct<kForward, T, Stored> product = {
          RowsOf<const T>(in),
          blocks.As<Stored>(),
          RowsOf<T>(out),
          bias ? bias.As<float>() : nullptr,
          kForward ? pattern.ByRow(DeviceType::kCuda) : pattern.ByColumn(DeviceType::kCuda),
          rows,
          size,
          accumulate};
      if constexpr (sizeof(T) == 2) {
        using B = BlockProductTile;
        if (aligned) {
          return Launch(stream, op,
                        {.grid = {units, CeilDiv(rows, B::kRows)},
                         .block = {kBlockSparseThreads},
                         .shared_bytes = B::kStages * B::kStageBytes},
                        MultiplyBlocks<kForward, T, Stored>, product);
        }
      }
      return Launch(
          stream, op,
          {.grid = {units, CeilDiv(rows, kPlainTileRows)}, .block = {kBlockSparseThreads}},
          MultiplyBlocksPlain<kForward, T, Stored>, product);
    });
  });
}

}  // namespace

Status BlockSparseForward(const Stream& stream, const BlockSparseForwardArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckBlockSparseForward(stream, args));
  return MultiplyLines<true>(stream, "BlockSparseForward", *args.pattern, args.x, args.blocks,
                             args.y, args.bias, args.accumulate);
}

Status BlockSparseBackwardInput(const Stream& stream, const BlockSparseBackwardInputArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckBlockSparseBackwardInput(stream, args));
  return MultiplyLines<false>(stream, "BlockSparseBackwardInput", *args.pattern, args.dy,
                              args.blocks, args.dx, {}, args.accumulate);
}

Status BlockSparseBackwardWeight(const Stream& stream, const BlockSparseBackwardWeightArgs& args) {
  constexpr const char* kOp = "BlockSparseBackwardWeight";
  WEFT_RETURN_IF_ERROR(CheckBlockSparseBackwardWeight(stream, args));
  const BlockPattern& pattern = *args.pattern;
  const unsigned across = CeilDiv(pattern.size(), kUnit);
  const unsigned units = static_cast<unsigned>(pattern.count()) * across * across;
  const bool aligned = RowsAligned16(args.x, args.dy, args.dblocks);
  return WithFloatType(args.x.dtype, [&]<class T>() {
    const BlockGradient<T> gradient = {
        RowsOf<const T>(args.x),  RowsOf<const T>(args.dy),
        args.dblocks.As<float>(), pattern.ByRow(DeviceType::kCuda).places,
        args.x.shape[0],          static_cast<int>(pattern.size()),
        args.accumulate};
    if constexpr (sizeof(T) == 2) {
      if (aligned) {
        return Launch(stream, kOp,
                      {.grid = {units},
                       .block = {kBlockSparseThreads},
                       .shared_bytes = BlockGradientTile::kSharedBytes},
                      SumBlockGradient<T>, gradient);
      }
    }
    return Launch(stream, kOp, {.grid = {units}, .block = {kBlockSparseThreads}},
                  BlockGradientPlain<T>, gradient);
  });
}

}  // namespace weft::kernels::cuda
