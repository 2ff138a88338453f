#include "common/hash.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

std::string HashOf(std::string_view text) {
  return HashHex(std::as_bytes(std::span(text)));
}

// Known answers from `xxhsum -H2` of the reference implementation.
TEST(ContentHash, MatchesKnownAnswersOfXxh3) {
  EXPECT_EQ(HashOf(""), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(HashOf("a"), "a96faf705af16834e6c632b61e964e1f");
  EXPECT_EQ(HashOf("abc"), "06b05ab6733a618578af5f94892f3950");
}

TEST(ContentHash, DoesNotDependOnHowTheBytesArrive) {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += static_cast<char>(i * 31 + i / 7);
  ContentHash pieces;
  for (size_t begin = 0, size = 0; begin < text.size(); begin += size++) {
    pieces.Update(std::string_view(text).substr(begin, size));
  }
  EXPECT_EQ(pieces.Hex(), HashOf(text));
  EXPECT_EQ(pieces.Hex(), pieces.Hex());
}

TEST(ContentHash, SeesEveryBitAndTheLength) {
  std::string text(1000, 'x');
  std::string whole = HashOf(text);
  for (size_t position : {size_t{0}, size_t{499}, size_t{999}}) {
    std::string changed = text;
    changed[position] ^= 1;
    EXPECT_NE(HashOf(changed), whole);
  }
  EXPECT_NE(HashOf(text + std::string(1, '\0')), whole);
}

}  // namespace
}  // namespace weft
