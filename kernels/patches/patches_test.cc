#include "kernels/patches/patches.h"

#include <array>

#include <gtest/gtest.h>

#include "kernels/testing/all_cases.h"

namespace weft::kernels {
namespace {

TEST(UnfoldPatches, MatchesTheReference) {
  EXPECT_EQ(testing::CheckCases(testing::PatchesCases()), "");
}

TEST(UnfoldPatches, RefusesSizesThatDoNotFit) {
  std::array<float, 16> memory{};
  UnfoldPatchesArgs args = {.pixels = TensorView(memory.data(), DType::kF32, {1, 16}),
                            .channels = 1,
                            .patch_size = 2,
                            .patches = TensorView(memory.data(), DType::kF32, {4, 4})};
  EXPECT_TRUE(UnfoldPatches({}, args).ok());
  args.patch_size = 3;
  EXPECT_EQ(UnfoldPatches({}, args).ToString(),
            "INVALID: UnfoldPatches: patch_size does not divide the side of the images");
  args.patch_size = 2;
  args.channels = 3;
  EXPECT_EQ(UnfoldPatches({}, args).ToString(),
            "INVALID: UnfoldPatches: pixels does not hold square images");
  args.channels = 1;
  args.patches.shape = {2, 8};
  EXPECT_EQ(UnfoldPatches({}, args).code(), StatusCode::kInvalid);
  EXPECT_EQ(UnfoldPatches({}, {}).code(), StatusCode::kInvalid);
}

}  // namespace
}  // namespace weft::kernels
