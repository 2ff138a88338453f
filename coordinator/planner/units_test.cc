#include "coordinator/planner/units.h"

#include <gtest/gtest.h>

namespace weft::planner {
namespace {

TEST(Units, AreReadable) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(1023), "1023 B");
  EXPECT_EQ(HumanBytes(1536), "1.5 KiB");
  EXPECT_EQ(HumanBytes(int64_t{200} << 20), "200 MiB");
  EXPECT_EQ(HumanBytes(int64_t{5} << 40), "5.0 TiB");
  EXPECT_EQ(HumanSeconds(0), "0 s");
  EXPECT_EQ(HumanSeconds(250e-6), "250 us");
  EXPECT_EQ(HumanSeconds(0.0351), "35.1 ms");
  EXPECT_EQ(HumanSeconds(1.254), "1.25 s");
  EXPECT_EQ(HumanSeconds(1234), "1234 s");
  EXPECT_EQ(HumanCount(999), "999");
  EXPECT_EQ(HumanCount(999.9), "1 K");
  EXPECT_EQ(HumanCount(124'439'808), "124 M");
  EXPECT_EQ(HumanCount(1.5576e9), "1.56 G");
}

TEST(Units, ComponentsAddUpToTheTotals) {
  const MemoryBreakdown memory{1, 2, 4, 8, 16, 32, 64};
  int64_t bytes = 0;
  for (const MemoryComponent& part : Components(memory)) bytes += part.bytes;
  EXPECT_EQ(bytes, TotalBytes(memory));
  EXPECT_EQ(LargestComponent(memory).name, "runtime");
  const TimeBreakdown time{1, 2, 4, 8, 16, 32};
  double seconds = 0;
  for (const TimeComponent& part : Components(time)) seconds += part.seconds;
  EXPECT_EQ(seconds, StepSeconds(time));
}

}  // namespace
}  // namespace weft::planner
