#include "common/model/memory_text.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

TEST(MemoryText, IsReadable) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(1023), "1023 B");
  EXPECT_EQ(HumanBytes(1536), "1.5 KiB");
  EXPECT_EQ(HumanBytes(int64_t{200} << 20), "200 MiB");
  EXPECT_EQ(HumanBytes(int64_t{5} << 40), "5.0 TiB");
  EXPECT_EQ(MemoryText({}), "0 B");
  EXPECT_EQ(MemoryText({.parameters_bytes = 512, .activations_bytes = 2048}),
            "2.5 KiB (activations 2.0 KiB, parameters 512 B)");
}

TEST(MemoryText, PartsAddUpToTheTotal) {
  const MemoryBreakdown memory{1, 2, 4, 8, 16, 32, 64, 128};
  int64_t bytes = 0;
  for (const MemoryComponent& part : Components(memory)) bytes += part.bytes;
  EXPECT_EQ(bytes, TotalBytes(memory));
  EXPECT_EQ(LargestComponent(memory).name, "runtime");
}

}  // namespace
}  // namespace weft
