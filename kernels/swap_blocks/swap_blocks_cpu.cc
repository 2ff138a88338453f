#include "kernels/swap_blocks/swap_blocks.h"

#include <cstring>

#include "kernels/cpu/parallel.h"
#include "kernels/swap_blocks/swap_blocks_check.h"

namespace weft::kernels::cpu {

Status SwapBlocks(const Stream& stream, const SwapBlocksArgs& args) {
  // Bytes a thread must copy for a parallel region to pay.
  constexpr int64_t kGrainBytes = 65536;
  WEFT_RETURN_IF_ERROR(CheckSwapBlocks(stream, args));
  const int64_t blocks = args.outer * args.inner;
  const int64_t row = args.x.shape[1] * static_cast<int64_t>(DTypeSize(args.x.dtype));
  const int64_t block = row / blocks;
  ParallelFor(args.x.shape[0], kGrainBytes / (row + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const char* const from = static_cast<const char*>(args.x.data) + r * row;
      char* to = static_cast<char*>(args.y.data) + r * row;
      for (int64_t j = 0; j < args.inner; ++j) {
        for (int64_t i = 0; i < args.outer; ++i, to += block) {
          std::memcpy(to, from + (i * args.inner + j) * block, static_cast<size_t>(block));
        }
      }
    }
  });
  return OkStatus();
}

}  // namespace weft::kernels::cpu
