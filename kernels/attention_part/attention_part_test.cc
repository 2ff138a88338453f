#include "kernels/attention_part/attention_part.h"

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_ref.h"
#include "kernels/cpu/parallel.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/testing/compare.h"
#include "kernels/testing/test_tensor.h"

namespace weft::kernels {
namespace {

using testing::TestTensor;
using Values = std::vector<double>;

/// Sequences whose tokens several owners have, two chunks each.
struct Problem {
  DType dtype = DType::kF32;
  int64_t owners = 2;
  int64_t chunk = 5;
  int64_t sequences = 2;
  int64_t heads = 4;
  int64_t kv_heads = 2;
  int64_t head_dim = 24;

  int64_t whole_length() const { return 2 * owners * chunk; }
  int64_t tokens() const { return sequences * 2 * chunk; }
  int64_t width() const { return heads * head_dim; }
  int64_t kv_width() const { return kv_heads * head_dim; }

  /// Rows of the whole that `owner` has, in its order.
  std::vector<int64_t> RowsOf(int64_t owner) const {
    std::vector<int64_t> rows;
    for (int64_t s = 0; s < sequences; ++s) {
      for (int64_t number : {owner, 2 * owners - 1 - owner}) {
        for (int64_t i = 0; i < chunk; ++i) rows.push_back(s * whole_length() + number * chunk + i);
      }
    }
    return rows;
  }
  Values Pick(const Values& whole, int64_t width, int64_t owner) const {
    Values part;
    for (int64_t row : RowsOf(owner)) {
      part.insert(part.end(), whole.begin() + row * width, whole.begin() + (row + 1) * width);
    }
    return part;
  }
};

/// What an owner has and computes.
struct Owner {
  TestTensor q, k, v, dout, out, wide_out, lse, dq, dk, dv, wide_dq;
  Values dk_sums, dv_sums;

  Owner(const Problem& p, int64_t padding)
      : q(p.dtype, {p.tokens(), p.width()}, padding),
        k(p.dtype, {p.tokens(), p.kv_width()}, padding),
        v(p.dtype, {p.tokens(), p.kv_width()}, padding),
        dout(p.dtype, {p.tokens(), p.width()}),
        out(p.dtype, {p.tokens(), p.width()}),
        wide_out(DType::kF32, {p.tokens(), p.width()}),
        lse(DType::kF32, {p.heads, p.tokens()}),
        dq(p.dtype, {p.tokens(), p.width()}),
        dk(p.dtype, {p.tokens(), p.kv_width()}),
        dv(p.dtype, {p.tokens(), p.kv_width()}),
        wide_dq(DType::kF32, {p.tokens(), p.width()}) {}
};

void Require(const Status& status) {
  ASSERT_TRUE(status.ok()) << status.ToString();
}

AttendPartArgs PartOf(const Problem& p, const Owner& here, const Owner& there, int64_t rank,
                      int64_t owner) {
  AttendPartArgs part{.q = here.q.view(),
                      .k = there.k.view(),
                      .v = there.v.view(),
                      .length = 2 * p.chunk,
                      .query_end = 2 * p.chunk,
                      .key_end = 2 * p.chunk,
                      .heads = p.heads,
                      .kv_heads = p.kv_heads,
                      .scale = 1 / std::sqrt(static_cast<float>(p.head_dim)),
                      .out = here.wide_out.view(),
                      .log_sum_exp = here.lse.view()};
  if (owner < rank) {
    part.key_end = p.chunk;
  } else {
    part.query_begin = p.chunk;
  }
  return part;
}

void ExpectTheWhole(const Problem& p) {
  PhiloxStream rng({.seed = 11, .step = 0, .site = 0});
  const int64_t rows = p.sequences * p.whole_length();
  TestTensor q(p.dtype, {rows, p.width()}), k(p.dtype, {rows, p.kv_width()});
  TestTensor v(p.dtype, {rows, p.kv_width()}), dout(p.dtype, {rows, p.width()});
  for (TestTensor* tensor : {&q, &k, &v, &dout}) tensor->Random(rng);
  std::vector<int32_t> whole_starts, starts;
  for (int64_t s = 0; s <= p.sequences; ++s) {
    whole_starts.push_back(static_cast<int32_t>(s * p.whole_length()));
    starts.push_back(static_cast<int32_t>(s * 2 * p.chunk));
  }
  ref::Attention truth = {.sequence_starts = whole_starts,
                          .heads = p.heads,
                          .kv_heads = p.kv_heads,
                          .head_dim = p.head_dim,
                          .scale = 1 / std::sqrt(static_cast<double>(p.head_dim)),
                          .q = q.Values(),
                          .k = k.Values(),
                          .v = v.Values()};
  const auto result = truth.Forward();
  const auto gradient = truth.Backward(dout.Values(), result.out);
  const auto tolerance =
      testing::ToleranceFor(p.dtype, p.whole_length() + p.head_dim, 2 + static_cast<int>(p.owners));

  std::vector<std::unique_ptr<Owner>> owners;
  for (int64_t i = 0; i < p.owners; ++i) {
    owners.push_back(std::make_unique<Owner>(p, 8));
    Owner& own = *owners.back();
    own.q.Assign(p.Pick(q.Values(), p.width(), i));
    own.k.Assign(p.Pick(k.Values(), p.kv_width(), i));
    own.v.Assign(p.Pick(v.Values(), p.kv_width(), i));
    own.dout.Assign(p.Pick(dout.Values(), p.width(), i));
    own.dk_sums.assign(static_cast<size_t>(p.tokens() * p.kv_width()), 0);
    own.dv_sums = own.dk_sums;
  }
  const auto own_args = [&](const Owner& own) {
    return AttentionForwardArgs{
        .q = own.q.view(),
        .k = own.k.view(),
        .v = own.v.view(),
        .sequence_starts =
            TensorView(starts.data(), DType::kI32, {static_cast<int64_t>(starts.size())}),
        .heads = p.heads,
        .kv_heads = p.kv_heads,
        .scale = 1 / std::sqrt(static_cast<float>(p.head_dim)),
        .out = own.out.view(),
        .log_sum_exp = own.lse.view()};
  };
  const auto widen = [](const TestTensor& narrow, const TestTensor& wide) {
    return AddScaled({}, {.x = narrow.view(), .y = wide.view(), .keep = 0});
  };
  for (int64_t i = 0; i < p.owners; ++i) {
    Owner& own = *owners[static_cast<size_t>(i)];
    Require(AttentionForward({}, own_args(own)));
    Require(widen(own.out, own.wide_out));
    for (int64_t step = 1; step < p.owners; ++step) {
      const int64_t owner = (i + step) % p.owners;
      Require(AttendPart({}, PartOf(p, own, *owners[static_cast<size_t>(owner)], i, owner)));
    }
    EXPECT_EQ(testing::Mismatch(own.wide_out.Values(), p.Pick(result.out, p.width(), i), tolerance),
              "");
    const Values lse = own.lse.Values();
    const std::vector<int64_t> places = p.RowsOf(i);
    for (int64_t h = 0; h < p.heads; ++h) {
      for (size_t t = 0; t < places.size(); ++t) {
        EXPECT_NEAR(lse[static_cast<size_t>(h * p.tokens()) + t],
                    result.log_sum_exp[static_cast<size_t>(h * rows + places[t])],
                    p.dtype == DType::kF32 ? 1e-5 : 2e-2);
      }
    }
    if (p.dtype == DType::kF32) {
      own.out.Assign(own.wide_out.Values());
    } else {
      own.out.Assign(p.Pick(result.out, p.width(), i));
    }
  }

  const auto add = [](Values& sums, const TestTensor& part) {
    const Values values = part.Values();
    for (size_t c = 0; c < sums.size(); ++c) sums[c] += values[c];
  };
  for (int64_t i = 0; i < p.owners; ++i) {
    Owner& own = *owners[static_cast<size_t>(i)];
    Require(AttentionBackward({}, {.forward = own_args(own),
                                   .dout = own.dout.view(),
                                   .dq = own.dq.view(),
                                   .dk = own.dk.view(),
                                   .dv = own.dv.view()}));
    Require(widen(own.dq, own.wide_dq));
    add(own.dk_sums, own.dk);
    add(own.dv_sums, own.dv);
    for (int64_t step = 1; step < p.owners; ++step) {
      const int64_t owner = (i + step) % p.owners;
      Owner& other = *owners[static_cast<size_t>(owner)];
      TestTensor dk(DType::kF32, {p.tokens(), p.kv_width()}, 8);
      TestTensor dv(DType::kF32, {p.tokens(), p.kv_width()}, 8);
      // Added to what is there.
      const Values ones(static_cast<size_t>(p.tokens() * p.kv_width()), 1);
      dk.Assign(ones);
      dv.Assign(ones);
      Require(AttendPartBackward({}, {.part = PartOf(p, own, other, i, owner),
                                      .out = own.out.view(),
                                      .dout = own.dout.view(),
                                      .dq = own.wide_dq.view(),
                                      .dk = dk.view(),
                                      .dv = dv.view()}));
      EXPECT_TRUE(dk.GuardsIntact() && dv.GuardsIntact());
      add(other.dk_sums, dk);
      add(other.dv_sums, dv);
      for (double& sum : other.dk_sums) sum -= 1;
      for (double& sum : other.dv_sums) sum -= 1;
    }
  }
  for (int64_t i = 0; i < p.owners; ++i) {
    const Owner& own = *owners[static_cast<size_t>(i)];
    const auto pick = [&](const Values& whole) { return p.Pick(whole, p.kv_width(), i); };
    EXPECT_EQ(testing::Mismatch(own.wide_dq.Values(), p.Pick(gradient.dq, p.width(), i), tolerance),
              "");
    EXPECT_EQ(testing::Mismatch(own.dk_sums, pick(gradient.dk), tolerance), "");
    EXPECT_EQ(testing::Mismatch(own.dv_sums, pick(gradient.dv), tolerance), "");
  }
}

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
