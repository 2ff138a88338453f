#include "common/model/remat_memory.h"

#include <gtest/gtest.h>

#include "common/model/memory_model.h"
#include "common/rng.h"

namespace weft {
namespace {

TEST(PeakOfFirstBlocks, IsThatOfThePlanStepByStep) {
  PhiloxStream random({3, 0, 0});
  const auto below = [&](int64_t end) { return static_cast<int64_t>(random.Next()) % end; };
  for (int trial = 0; trial < 20000; ++trial) {
    BlockBytes bytes{.row = 1 + below(50),
                     .attended = below(80),
                     .qkv = below(200),
                     .mlp_hidden = below(300),
                     .log_sum_exp = below(20),
                     .post_norm = below(4) == 0,
                     .compressed = below(4) == 0,
                     .shifted = below(4) == 0};
    // A block keeps its input at least.
    const auto kept = [&](int64_t input) {
      BlockBytes::Kept some{.before_qkv = input + below(60), .attention = below(200)};
      some.saved = some.before_qkv + some.attention + below(300);
      return some;
    };
    bytes.plain = kept(bytes.row);
    bytes.input = bytes.compressed ? below(bytes.row) : bytes.row;
    bytes.kept = bytes.compressed ? kept(bytes.input) : bytes.plain;
    const int64_t layers = 1 + below(12);
    const int64_t recomputed = below(layers + 1), attention = below(layers - recomputed + 1);
    const int64_t segment = 1 + below(4);
    bytes.untrained = below(2) == 0 ? 0 : below(layers + 1);
    const StreamBytes start{.saved = below(100), .stream = bytes.row};
    const int64_t at_end = below(500);
    const RematPlan plan =
        RematOfPolicies(BlockPolicies(layers, recomputed, attention), layers, segment);
    ASSERT_EQ(PeakOfFirstBlocks(layers, recomputed, attention, segment, bytes, start, at_end),
              PeakOfBlocks(plan, bytes, start, at_end).device)
        << trial << ": " << layers << " blocks, " << recomputed << " in segments of " << segment
        << ", attention of " << attention << ", untrained " << bytes.untrained;
  }
}

}  // namespace
}  // namespace weft
