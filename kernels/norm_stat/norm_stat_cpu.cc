#include <vector>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/parallel.h"
#include "kernels/elementwise/elementwise_simd.h"
#include "kernels/norm_stat/norm_stat.h"
#include "kernels/norm_stat/norm_stat_check.h"
#include "kernels/norm_stat/norm_stat_simd.h"

namespace weft::kernels::cpu {
namespace {

// Part of the result's definition: another size sums in another order.
constexpr int64_t kBlock = kNormStatBlock;

}  // namespace

Status NormStat(const Stream& stream, const NormStatArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckNormStat(stream, args));
  struct Partial {
    double sum = 0;
    int64_t non_finite = 0;
  };
  const NormStatKernels& kernels = PickNormStatKernels();
  std::vector<Block> blocks = SplitIntoBlocks(args.tensors, kBlock);
  std::vector<Partial> partials(blocks.size());
  ParallelFor(static_cast<int64_t>(blocks.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const Block& block = blocks[b];
      const NormTensor& tensor = args.tensors[block.tensor];
      const float* data = nullptr;
      if (tensor.bf16_data == nullptr) {
        data = tensor.data + block.begin;
      } else {
        static thread_local std::vector<float> wide(kBlock);
        PickElementwiseKernels().bf16.to_f32(tensor.bf16_data + block.begin, wide.data(),
                                             block.count);
        data = wide.data();
      }
      kernels.block(data, block.count, &partials[b].sum, &partials[b].non_finite);
    }
  });
  Partial total;
  for (const Partial& partial : partials) {
    total.sum += partial.sum;
    total.non_finite += partial.non_finite;
  }
  *args.sum_of_squares = total.sum;
  *args.non_finite = total.non_finite;
  return OkStatus();
}

}  // namespace weft::kernels::cpu
