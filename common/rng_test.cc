#include "common/rng.h"

#include <map>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace weft {
namespace {

// Known-answer vectors of Random123 (kat_vectors, philox4x32 with 10 rounds).
TEST(Philox, MatchesTheKnownAnswersOfItsAuthors) {
  struct Case {
    uint32_t counter[4], key[2], expected[4];
  };
  const Case cases[] = {
      {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
       {0xffffffff, 0xffffffff},
       {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
       {0xa4093822, 0x299f31d0},
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (const Case& c : cases) {
    PhiloxKey key{uint64_t{c.key[1]} << 32 | c.key[0], c.counter[2], c.counter[3]};
    Philox4 out = Philox(key, uint64_t{c.counter[1]} << 32 | c.counter[0]);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(out.v[i], c.expected[i]);
  }
}

TEST(Philox, StreamReadsTheBlocksInOrder) {
  PhiloxKey key{42, 7, SiteHash("wte")};
  PhiloxStream stream(key);
  for (uint64_t block = 0; block < 3; ++block) {
    Philox4 words = Philox(key, block);
    for (uint32_t word : words.v) EXPECT_EQ(stream.Next(), word);
  }
}

TEST(Philox, KeysThatDifferInOnePartGiveUnrelatedStreams) {
  std::set<uint32_t> seen;
  for (PhiloxKey key : {PhiloxKey{1, 2, 3}, PhiloxKey{2, 2, 3}, PhiloxKey{1, 3, 3},
                        PhiloxKey{1, 2, 4}, PhiloxKey{uint64_t{1} << 32 | 1, 2, 3}}) {
    for (uint32_t word : Philox(key, 0).v) seen.insert(word);
  }
  EXPECT_EQ(seen.size(), 20u);
}

TEST(PhiloxStream, BelowIsUniformAlsoWhereModuloWouldNotBe) {
  // Modulo would make the lower half twice as likely as the upper one.
  const uint64_t bound = uint64_t{3} << 62;
  PhiloxStream stream({1, 2, 3});
  int thirds[3] = {};
  for (int i = 0; i < 30000; ++i) {
    uint64_t value = stream.Below(bound);
    ASSERT_LT(value, bound);
    ++thirds[value / (bound / 3 + 1)];
  }
  for (int count : thirds) EXPECT_NEAR(count, 10000, 400);  // 5 standard deviations
  EXPECT_EQ(stream.Below(1), 0u);
  std::map<uint64_t, int> dice;
  for (int i = 0; i < 6000; ++i) ++dice[stream.Below(6)];
  ASSERT_EQ(dice.size(), 6u);
  for (auto [face, count] : dice) EXPECT_NEAR(count, 1000, 150) << face;
}

TEST(PhiloxStream, UniformAndNormalHaveTheirMoments) {
  PhiloxStream stream({9, 0, 1});
  const int n = 40000;
  double sum = 0, squares = 0, normal_sum = 0, normal_squares = 0, normal_fourth = 0;
  for (int i = 0; i < n; ++i) {
    double u = stream.Uniform();
    ASSERT_GT(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
    squares += u * u;
    double z = stream.Normal();
    ASSERT_TRUE(std::isfinite(z));
    normal_sum += z;
    normal_squares += z * z;
    normal_fourth += z * z * z * z;
  }
  EXPECT_NEAR(sum / n, 0.5, 0.01);
  EXPECT_NEAR(squares / n, 1.0 / 3, 0.01);
  EXPECT_NEAR(normal_sum / n, 0, 0.025);
  EXPECT_NEAR(normal_squares / n, 1, 0.04);
  EXPECT_NEAR(normal_fourth / n, 3, 0.3);
}

TEST(UniformFloat, CoversTheHalfOpenUnitInterval) {
  EXPECT_EQ(UniformFloat(0), 0.0f);
  EXPECT_EQ(UniformFloat(0x80000000u), 0.5f);
  EXPECT_LT(UniformFloat(0xffffffffu), 1.0f);
}

// FNV-1a test values of its authors (Fowler, Noll, Vo).
TEST(SiteHash, IsFnv1a) {
  EXPECT_EQ(SiteHash(""), 0x811c9dc5u);
  EXPECT_EQ(SiteHash("a"), 0xe40c292cu);
  EXPECT_EQ(SiteHash("foobar"), 0xbf9cf968u);
}

}  // namespace
}  // namespace weft
