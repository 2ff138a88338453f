// That the host execution does what Hopper's instructions do, and finds faults in their use.

#include <cmath>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/rng.h"
#include "kernels/cuda/device.h"
#include "kernels/testing/test_device.h"
#include "kernels/testing/test_tensor.h"
#include "tests/gpu/host/faults_hopper.h"

namespace weft::kernels::cuda {
namespace {

using ::testing::HasSubstr;

class HopperOnHost : public ::testing::Test {
 protected:
  void SetUp() override {
    auto state = StreamState::Create(0);
    ASSERT_TRUE(state.ok());
    state_ = *std::move(state);
  }

  // The message of the run, or, after one that was not stopped, how its result is wrong.
  std::string Run(HopperFault fault) {
    const testing::ScopedTestDevice device(state_->stream().device, true);
    PhiloxStream rng({.seed = 11});
    testing::TestTensor a(DType::kBF16, {64, 64}), out(DType::kF32, {64, 64});
    a.Random(rng).Reset();
    out.Reset();
    const Status status =
        RunHopperFault(state_->stream(), fault, a.view().data, out.view().As<float>());
    if (!status.ok()) return status.message();
    out.Fetch();
    const std::vector<double> x = a.Values(), got = out.Values();
    bool wrong = false, nan = false;
    for (int row = 0; row < 64; ++row) {
      for (int column = 0; column < 64; ++column) {
        double want = 0;
        for (int k = 0; k < 64; ++k) want += x[row * 64 + k] * x[column * 64 + k];
        nan = nan || std::isnan(got[row * 64 + column]);
        wrong = wrong || std::abs(got[row * 64 + column] - want) > 1e-4;
      }
    }
    return nan ? "NaN" : wrong ? "wrong" : "";
  }

  std::unique_ptr<StreamState> state_;
};

TEST_F(HopperOnHost, AWarpgroupMultipliesATileThatWasCopied) {
  EXPECT_EQ(Run(HopperFault::kNone), "");
}

TEST_F(HopperOnHost, CopiesArriveOnlyWhenAwaited) {
  EXPECT_EQ(Run(HopperFault::kCopyNotAwaited), "NaN");
  EXPECT_THAT(Run(HopperFault::kOtherParity), HasSubstr("a tile that nobody waited for"));
  EXPECT_THAT(Run(HopperFault::kBytesForgotten), HasSubstr("more bytes than a barrier expects"));
  EXPECT_THAT(Run(HopperFault::kNeverAwaited), HasSubstr("a tile that nobody waited for"));
}

TEST_F(HopperOnHost, ProductsAreDoneOnlyWhenAwaited) {
  EXPECT_EQ(Run(HopperFault::kProductNotAwaited), "NaN");
  EXPECT_THAT(Run(HopperFault::kProductNotFenced), HasSubstr("without FenceProducts"));
  EXPECT_THAT(Run(HopperFault::kTileOverwritten), HasSubstr("changes before the product"));
  EXPECT_THAT(Run(HopperFault::kStoreNotFenced), HasSubstr("thread 3 has stored without"));
  EXPECT_THAT(Run(HopperFault::kMetadataChanged), HasSubstr("changes the metadata of a product"));
}

TEST_F(HopperOnHost, DescriptorsSayWhereMatricesLie) {
  EXPECT_EQ(Run(HopperFault::kOtherStride), "wrong");
  EXPECT_EQ(Run(HopperFault::kOtherSwizzle), "wrong");
  EXPECT_THAT(Run(HopperFault::kUnalignedTile), HasSubstr("where its swizzle begins"));
}

TEST_F(HopperOnHost, RegistersThatNobodyGaveAreNotThere) {
  EXPECT_THAT(Run(HopperFault::kTooManyRegisters), HasSubstr("more than there are"));
}

TEST_F(HopperOnHost, TensorsThatCannotBeMappedAreRefused) {
  alignas(16) static char memory[4096];
  EXPECT_TRUE(TryTensorMap(memory, 8, 16, 64).ok());
  EXPECT_THAT(TryTensorMap(memory + 2, 8, 16, 64).message(),
              HasSubstr("Test: cuTensorMapEncodeTiled of 4 tokens of 2 heads of 8"));
  EXPECT_FALSE(TryTensorMap(memory, 8, 17, 64).ok());
  EXPECT_FALSE(TryTensorMap(memory, 8, 16, 257).ok());
}

}  // namespace
}  // namespace weft::kernels::cuda
