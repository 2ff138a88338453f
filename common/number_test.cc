#include "common/number.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

TEST(RoundUp, GoesToTheNextMultiple) {
  EXPECT_EQ(RoundUp(0, 16), 0);
  EXPECT_EQ(RoundUp(1, 16), 16);
  EXPECT_EQ(RoundUp(16, 16), 16);
  EXPECT_EQ(RoundUp(17, 16), 32);
  EXPECT_EQ(RoundUp((int64_t{1} << 40) + 1, 3), (int64_t{1} << 40) + 2);
}

}  // namespace
}  // namespace weft
