#include "kernels/attention/attention.h"

#include <gtest/gtest.h>

#include "kernels/testing/all_cases.h"

namespace weft::kernels {
namespace {

TEST(Attention, MatchesTheReference) {
  EXPECT_EQ(testing::CheckCases(testing::AttentionCases()), "");
}

}  // namespace
}  // namespace weft::kernels
