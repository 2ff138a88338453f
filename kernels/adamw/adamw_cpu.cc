#include <cmath>
#include <string>
#include <vector>

#include "kernels/adamw/adamw.h"
#include "kernels/adamw/adamw_simd.h"
#include "kernels/argument_check.h"
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/parallel.h"

namespace weft::kernels::cpu {
namespace {

// Elements of a unit of work: 448 KiB of traffic.
constexpr int64_t kBlock = 16384;

}  // namespace

Status AdamW(const Stream& stream, const AdamWArgs& args) {
  ArgumentCheck check(stream, "AdamW");
  check.That(args.step >= 1, "step " + std::to_string(args.step) + " is before the first, 1");
  check.That(args.beta1 >= 0 && args.beta1 < 1 && args.beta2 >= 0 && args.beta2 < 1,
             "beta1 and beta2 must be in [0, 1)");
  for (const AdamWTensor& tensor : args.tensors) {
    check.That(tensor.count >= 0, "a tensor has a negative count");
    check.That(
        tensor.count == 0 || (tensor.parameter != nullptr && tensor.gradient != nullptr &&
                              tensor.first_moment != nullptr && tensor.second_moment != nullptr),
        "a tensor has no memory");
  }
  WEFT_RETURN_IF_ERROR(check.status());

  auto step = static_cast<double>(args.step);
  double correction1 = 1 - std::pow(static_cast<double>(args.beta1), step);
  double correction2 = 1 - std::pow(static_cast<double>(args.beta2), step);
  AdamWFactors shared = {.gradient_scale = args.gradient_scale,
                         .beta1 = args.beta1,
                         .beta2 = args.beta2,
                         .decay = 1,
                         .step_size = static_cast<float>(args.learning_rate / correction1),
                         .variance_scale = static_cast<float>(1 / std::sqrt(correction2)),
                         .epsilon = args.epsilon};
  const AdamWKernels& kernels = PickAdamWKernels();
  std::vector<Block> blocks = SplitIntoBlocks(args.tensors, kBlock);
  ParallelFor(static_cast<int64_t>(blocks.size()), 1, [&](int64_t begin, int64_t end) {
    AdamWFactors factors = shared;
    for (int64_t b = begin; b < end; ++b) {
      const Block& block = blocks[b];
      const AdamWTensor& tensor = args.tensors[block.tensor];
      factors.decay = 1 - args.learning_rate * tensor.weight_decay;
      kernels.update(factors, tensor.parameter + block.begin, tensor.gradient + block.begin,
                     tensor.first_moment + block.begin, tensor.second_moment + block.begin,
                     block.count);
    }
  });
  return OkStatus();
}

}  // namespace weft::kernels::cpu
