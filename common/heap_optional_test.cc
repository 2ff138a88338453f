#include "common/heap_optional.h"

#include <gtest/gtest.h>

#include <string>

namespace weft {
namespace {

TEST(HeapOptional, HoldsAValueOrNone) {
  HeapOptional<std::string> text;
  EXPECT_FALSE(text.has_value());
  text = "warp";
  ASSERT_TRUE(text);
  EXPECT_EQ(*text, "warp");
  EXPECT_EQ(text->size(), 4u);
  text.reset();
  EXPECT_FALSE(text);
}

TEST(HeapOptional, CopiesItsValueAndMovesIt) {
  HeapOptional<std::string> text;
  text = "warp";
  HeapOptional<std::string> copy = text;
  *copy = "weft";
  EXPECT_EQ(*text, "warp");
  HeapOptional<std::string> moved = std::move(text);
  EXPECT_EQ(*moved, "warp");
  moved = copy;
  EXPECT_EQ(*moved, "weft");
  EXPECT_EQ(*copy, "weft");
}

TEST(HeapOptional, TakesTheRoomOfAPointer) {
  struct Large {
    char bytes[1000];
  };
  EXPECT_EQ(sizeof(HeapOptional<Large>), sizeof(void*));
}

}  // namespace
}  // namespace weft
