#include "common/model/parameter_name.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

TEST(LayerOf, TakesTheEndingOffWeightsAlone) {
  EXPECT_EQ(LayerOf("blocks.0.mlp.up.weight"), "blocks.0.mlp.up");
  EXPECT_EQ(LayerOf("blocks.0.mlp.up.bias"), "blocks.0.mlp.up.bias");
  EXPECT_EQ(LayerOf("a.weight.weight"), "a.weight");
  EXPECT_EQ(LayerOf("weight"), "weight");
}

TEST(ModuleOf, TakesTheLastPartOff) {
  EXPECT_EQ(ModuleOf("blocks.0.ln_1.weight"), "blocks.0.ln_1");
  EXPECT_EQ(ModuleOf("blocks.0.ln_1.bias"), "blocks.0.ln_1");
  EXPECT_EQ(ModuleOf("weight"), "weight");
}

}  // namespace
}  // namespace weft
