#include "kernels/norm_part/norm_part.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/norm_part/norm_part_problem.h"

namespace weft::kernels {
namespace {

using testing::TestTensor;

TEST(NormPart, PartsMakeTheNormOfTheWhole) {
  testing::norm_part::CheckManyParts();
}

TEST(NormPart, RefusesArgumentsThatDoNotFit) {
  TestTensor x(DType::kF32, {2, 4}), found(DType::kF32, {2, 2}), few(DType::kF32, {1, 2});
  EXPECT_TRUE(MeasureNormPart({}, {.residual = x.view(), .found = found.view()}).ok());
  EXPECT_THAT(MeasureNormPart({}, {.residual = x.view(), .found = few.view()}).message(),
              ::testing::HasSubstr("numbers of whole parts"));
  EXPECT_FALSE(
      MeasureNormPart({}, {.residual = x.view(), .delta = found.view(), .found = found.view()})
          .ok());
}

}  // namespace
}  // namespace weft::kernels
