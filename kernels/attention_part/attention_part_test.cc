#include "kernels/attention_part/attention_part.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/attention_part/attention_part_problem.h"
#include "kernels/cpu/parallel.h"

namespace weft::kernels {
namespace {

using testing::TestTensor;
using testing::attention_part::ExpectTheWhole;
using testing::attention_part::Require;
using testing::attention_part::Values;

TEST(AttentionPart, PartsOfChunksMakeTheWhole) {
  for (DType dtype : kFloatTypes) {
    for (int64_t owners : {2, 3, 4}) {
      for (int64_t chunk : {1, 5, 37}) {
        SCOPED_TRACE(std::string(DTypeName(dtype)) + ", " + std::to_string(owners) +
                     " owners of chunks of " + std::to_string(chunk));
        ExpectTheWhole({.dtype = dtype, .owners = owners, .chunk = chunk});
      }
    }
  }
  // More than a span of queries and of keys, and as many heads of keys as of queries.
  ExpectTheWhole({.chunk = 301, .sequences = 1, .heads = 2, .kv_heads = 2, .head_dim = 8});
}

TEST(AttentionPart, BitsDoNotDependOnThreads) {
  const auto run = [](int threads) {
    const int before = cpu::Threads();
    cpu::SetThreads(threads);
    PhiloxStream rng({.seed = 2, .step = 0, .site = 0});
    constexpr int64_t kTokens = 2 * 300;
    TestTensor q(DType::kF32, {kTokens, 32}), k(DType::kF32, {kTokens, 16});
    TestTensor v(DType::kF32, {kTokens, 16}), out(DType::kF32, {kTokens, 32});
    TestTensor dout(DType::kF32, {kTokens, 32}), lse(DType::kF32, {4, kTokens});
    TestTensor dq(DType::kF32, {kTokens, 32}), dk(DType::kF32, {kTokens, 16});
    TestTensor dv(DType::kF32, {kTokens, 16});
    for (TestTensor* tensor : {&q, &k, &v, &out, &dout, &lse, &dq, &dk, &dv}) tensor->Random(rng);
    const AttendPartArgs part{.q = q.view(),
                              .k = k.view(),
                              .v = v.view(),
                              .length = 300,
                              .query_begin = 3,
                              .query_end = 290,
                              .key_end = 300,
                              .heads = 4,
                              .kv_heads = 2,
                              .scale = 0.3f,
                              .out = out.view(),
                              .log_sum_exp = lse.view()};
    Require(AttendPart({}, part));
    Require(
        AttendPartBackward({}, {part, out.view(), dout.view(), dq.view(), dk.view(), dv.view()}));
    cpu::SetThreads(before);
    return std::vector<Values>{out.Values(), lse.Values(), dq.Values(), dk.Values(), dv.Values()};
  };
  // One item a key head and sequence, or queries and keys apart.
  EXPECT_EQ(run(1), run(7));
}

TEST(AttentionPart, RefusesWhatDoesNotFit) {
  TestTensor q(DType::kF32, {6, 16}), k(DType::kF32, {6, 8}), lse(DType::kF32, {2, 6});
  AttendPartArgs part{.q = q.view(),
                      .k = k.view(),
                      .v = k.view(),
                      .length = 3,
                      .query_end = 3,
                      .key_end = 4,
                      .heads = 2,
                      .out = q.view(),
                      .log_sum_exp = lse.view()};
  const auto message = [&] { return AttendPart({}, part).message(); };
  EXPECT_NE(message().find("keys are not a range within the length"), std::string::npos);
  part.key_end = 3;
  part.length = 4;
  EXPECT_NE(message().find("length is not that of every sequence"), std::string::npos);
  part.length = 3;
  part.kv_heads = 2;
  EXPECT_NE(message().find("k "), std::string::npos) << message();
}

}  // namespace
}  // namespace weft::kernels
