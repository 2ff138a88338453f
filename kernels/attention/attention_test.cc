#include "kernels/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/attention/attention_ref.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/parallel.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels {
namespace {

using Values = std::vector<double>;

TEST(Attention, MatchesTheReference) {
  EXPECT_EQ(testing::CheckCases(testing::AttentionCases()), "");
}

Values Draw(PhiloxStream& rng, size_t count) {
  Values values(count);
  for (double& value : values) value = rng.Normal();
  return values;
}

TEST(Attention, ReferenceGradientsAreThoseOfFiniteDifferences) {
  for (auto [causal, dropout] : {std::pair{true, 0.0}, {false, 0.0}, {true, 0.3}, {false, 0.6}}) {
    PhiloxStream rng({.seed = 3, .step = 0, .site = 0});
    ref::Attention a = {.sequence_starts = {0, 1, 5, 8},
                        .heads = 4,
                        .kv_heads = 2,
                        .head_dim = 3,
                        .scale = 0.7,
                        .causal = causal,
                        .dropout = dropout,
                        .key = {.seed = 8, .step = 1, .site = 2},
                        .q = Draw(rng, 8 * 4 * 3),
                        .k = Draw(rng, 8 * 2 * 3),
                        .v = Draw(rng, 8 * 2 * 3)};
    Values dout = Draw(rng, a.q.size());
    auto gradient = a.Backward(dout, a.Forward().out);
    auto loss_of = [&](Values ref::Attention::*input) {
      return [&a, &dout, input](const Values& at) {
        ref::Attention moved = a;
        moved.*input = at;
        Values out = moved.Forward().out;
        return std::inner_product(out.begin(), out.end(), dout.begin(), 0.0);
      };
    };
    EXPECT_EQ(testing::GradientMismatch(loss_of(&ref::Attention::q), a.q, gradient.dq), "");
    EXPECT_EQ(testing::GradientMismatch(loss_of(&ref::Attention::k), a.k, gradient.dk), "");
    EXPECT_EQ(testing::GradientMismatch(loss_of(&ref::Attention::v), a.v, gradient.dv), "");
  }
}

// Tensors of one problem with as many key heads as heads, and calls on any range of its tokens.
struct Problem {
  DType dtype;
  int64_t tokens, heads, head_dim;
  testing::TestTensor q, k, v, dout;

  Problem(DType type, int64_t token_count, int64_t head_count, int64_t dim, double scale = 1.0)
      : dtype(type),
        tokens(token_count),
        heads(head_count),
        head_dim(dim),
        q(type, RowsShape(token_count)),
        k(type, RowsShape(token_count)),
        v(type, RowsShape(token_count)),
        dout(type, RowsShape(token_count)) {
    PhiloxStream rng({.seed = 5, .step = 0, .site = 0});
    q.Random(rng, scale);
    k.Random(rng, scale);
    v.Random(rng);
    dout.Random(rng);
  }

  struct Results {
    Values out, log_sum_exp, dq, dk, dv;
    bool operator==(const Results&) const = default;
  };

  float dropout = 0;

  // Forward and backward over tokens [begin, begin + starts.back()), of all heads or one of them.
  Results Run(std::vector<int32_t> starts, int64_t begin = 0, bool causal = true,
              int64_t only_head = -1) const {
    const int64_t count = starts.back(), run_heads = only_head < 0 ? heads : 1;
    const int64_t first_head = std::max<int64_t>(only_head, 0);
    const Shape rows = {count, run_heads * head_dim};
    testing::TestTensor out(dtype, rows), dq(dtype, rows), dk(dtype, rows), dv(dtype, rows);
    testing::TestTensor lse(DType::kF32, {run_heads, count});
    auto part = [&](const testing::TestTensor& whole) {
      TensorView view = whole.view();
      view.data = static_cast<char*>(view.data) +
                  (begin * view.row_stride + first_head * head_dim) * DTypeSize(dtype);
      view.shape = rows;
      return view;
    };
    AttentionBackwardArgs args;
    args.forward.q = part(q);
    args.forward.k = part(k);
    args.forward.v = part(v);
    args.forward.sequence_starts =
        TensorView(starts.data(), DType::kI32, {static_cast<int64_t>(starts.size())});
    args.forward.heads = args.forward.kv_heads = run_heads;
    args.forward.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
    args.forward.causal = causal;
    args.forward.out = out.view();
    args.forward.log_sum_exp = lse.view();
    args.forward.dropout = {.probability = dropout,
                            .key = {.seed = 4, .step = 3, .site = 2},
                            .first_token = begin,
                            .first_head = first_head};
    args.dout = part(dout);
    args.dq = dq.view();
    args.dk = dk.view();
    args.dv = dv.view();
    Status status = AttentionForward({}, args.forward);
    EXPECT_TRUE(status.ok()) << status.ToString();
    status = AttentionBackward({}, args);
    EXPECT_TRUE(status.ok()) << status.ToString();
    return {out.Values(), lse.Values(), dq.Values(), dk.Values(), dv.Values()};
  }

 private:
  Shape RowsShape(int64_t rows) const { return {rows, heads * head_dim}; }
};

TEST(Attention, DocumentGivesTheSameBitsPackedWithOthersAndAlone) {
  for (DType dtype : kFloatTypes) {
    Problem problem(dtype, 400, 1, 16);
    Problem::Results packed = problem.Run({0, 37, 337, 338, 400});
    for (auto [begin, end] : {std::pair{0, 37}, {37, 337}, {337, 338}, {338, 400}}) {
      Problem::Results alone = problem.Run({0, end - begin}, begin);
      auto part = [&](const Values& whole, int64_t width) {
        return Values(whole.begin() + begin * width, whole.begin() + end * width);
      };
      EXPECT_EQ(part(packed.out, 16), alone.out) << begin;
      EXPECT_EQ(part(packed.log_sum_exp, 1), alone.log_sum_exp) << begin;
      EXPECT_EQ(part(packed.dq, 16), alone.dq) << begin;
      EXPECT_EQ(part(packed.dk, 16), alone.dk) << begin;
      EXPECT_EQ(part(packed.dv, 16), alone.dv) << begin;
    }
  }
}

TEST(Attention, ThreadsAndTheWayWorkIsSplitChangeNoBit) {
  int before = cpu::Threads();
  for (DType dtype : kFloatTypes) {
    // One long sequence and one head: a single thread computes both gradients at once, more
    // threads compute them apart.
    Problem problem(dtype, 600, 1, 40);
    for (float dropout : {0.0f, 0.3f}) {
      problem.dropout = dropout;
      cpu::SetThreads(1);
      Problem::Results one = problem.Run({0, 600});
      for (int threads : {2, 3, 5}) {
        cpu::SetThreads(threads);
        EXPECT_EQ(problem.Run({0, 600}), one) << threads;
      }
    }
  }
  cpu::SetThreads(before);
}

TEST(Attention, PartsOfABatchAndSingleHeadsDropWhatTheWholeDrops) {
  for (DType dtype : kFloatTypes) {
    Problem problem(dtype, 250, 3, 16);
    problem.dropout = 0.4f;
    const Problem::Results whole = problem.Run({0, 37, 250});
    for (int64_t head = 0; head < 3; ++head) {
      for (auto [begin, end] : {std::pair{0, 37}, {37, 250}}) {
        const Problem::Results alone = problem.Run({0, end - begin}, begin, true, head);
        for (auto [all, some] : {std::pair{&whole.out, &alone.out},
                                 {&whole.dq, &alone.dq},
                                 {&whole.dk, &alone.dk},
                                 {&whole.dv, &alone.dv}}) {
          Values part;
          for (int64_t t = begin; t < end; ++t) {
            const auto row = all->begin() + (t * 3 + head) * 16;
            part.insert(part.end(), row, row + 16);
          }
          EXPECT_EQ(part, *some) << head << " " << begin;
        }
      }
    }
  }
}

TEST(Attention, DropsTheAskedShareAndKeepsTheMean) {
  // Queries of zeros weigh all keys alike, so that values of 1 sum to the share that is kept.
  constexpr int64_t kTokens = 512, kWidth = 2 * 8;
  testing::TestTensor qk(DType::kF32, {kTokens, kWidth}), v(DType::kF32, {kTokens, kWidth});
  testing::TestTensor out(DType::kF32, {kTokens, kWidth}), lse(DType::kF32, {2, kTokens});
  qk.Assign(Values(kTokens * kWidth, 0.0));
  v.Assign(Values(kTokens * kWidth, 1.0));
  std::vector<int32_t> starts = {0, kTokens};
  for (float probability : {0.1f, 0.5f, 0.75f}) {
    ASSERT_TRUE(
        AttentionForward({}, {.q = qk.view(),
                              .k = qk.view(),
                              .v = v.view(),
                              .sequence_starts = TensorView(starts.data(), DType::kI32, {2}),
                              .heads = 2,
                              .kv_heads = 2,
                              .causal = false,
                              .out = out.view(),
                              .log_sum_exp = lse.view(),
                              .dropout = {.probability = probability, .key = {}}})
            .ok());
    const Values sums = out.Values();
    const double count = 2 * kTokens * kTokens;
    const double mean = std::accumulate(sums.begin(), sums.end(), 0.0) / (kTokens * kWidth);
    // Four standard deviations of the binomial distribution, of all weights and of a row's.
    const double spread = 4 * std::sqrt(probability / (1 - probability));
    EXPECT_NEAR(mean, 1.0, spread / std::sqrt(count));
    double squares = 0;
    for (double sum : sums) squares += (sum - 1) * (sum - 1);
    const double variance = probability / (1 - probability) / kTokens;
    EXPECT_NEAR(squares / (kTokens * kWidth) / variance, 1.0, 4 * std::sqrt(2.0 / (2 * kTokens)));
    for (double log_sum : lse.Values()) EXPECT_NEAR(log_sum, std::log(kTokens), 1e-5);
  }
}

TEST(Attention, LaterTokensAndOtherDocumentsAreNotSeen) {
  Problem problem(DType::kBF16, 200, 2, 32);
  Values before = problem.Run({0, 80, 200}).out;
  Values full = problem.Run({0, 80, 200}, 0, false).out;
  auto change = [](testing::TestTensor& tensor, int64_t begin, int64_t end) {
    Values values = tensor.Values();
    for (int64_t i = begin * 64; i < end * 64; ++i) values[i] = 3 - values[i];
    tensor.Assign(values);
  };
  for (testing::TestTensor* tensor : {&problem.k, &problem.v}) {
    change(*tensor, 0, 10);
    change(*tensor, 150, 200);
  }
  Values after = problem.Run({0, 80, 200}).out;
  EXPECT_TRUE(
      std::equal(before.begin() + 80 * 64, before.begin() + 150 * 64, after.begin() + 80 * 64));
  EXPECT_FALSE(std::equal(before.begin(), before.begin() + 80 * 64, after.begin()));
  // Without the mask the same change is seen: the check above can fail.
  Values full_after = problem.Run({0, 80, 200}, 0, false).out;
  EXPECT_FALSE(
      std::equal(full.begin() + 80 * 64, full.begin() + 150 * 64, full_after.begin() + 80 * 64));
}

TEST(Attention, HugeScoresStayFinite) {
  for (DType dtype : kFloatTypes) {
    for (int level = 0; level <= static_cast<int>(cpu::DetectedIsa()); ++level) {
      cpu::ScopedIsa use_isa(static_cast<cpu::Isa>(level));
      Problem problem(dtype, 150, 1, 64, 300.0);
      Problem::Results results = problem.Run({0, 150});
      for (const Values* values : {&results.out, &results.dq, &results.dk, &results.dv}) {
        EXPECT_TRUE(std::all_of(values->begin(), values->end(), [](double value) {
          return std::isfinite(value);
        })) << level;
      }
    }
  }
}

TEST(Attention, RefusesArgumentsThatDoNotFit) {
  std::vector<float> memory(4 * 16);
  std::vector<int32_t> starts = {0, 3, 4};
  TensorView matrix(memory.data(), DType::kF32, {4, 16});
  AttentionForwardArgs good;
  good.q = good.k = good.v = good.out = matrix;
  good.sequence_starts = TensorView(starts.data(), DType::kI32, {3});
  good.heads = good.kv_heads = 2;
  good.log_sum_exp = TensorView(memory.data(), DType::kF32, {2, 4});
  auto message = [&](auto change) {
    AttentionForwardArgs bad = good;
    change(bad);
    return AttentionForward({}, bad).ToString();
  };
  EXPECT_EQ(
      message([&](auto&) {
        starts = {0, 3, 5};
      }),
      "INVALID: AttentionForward: sequence_starts does not go from 0 to the number of tokens");
  EXPECT_EQ(message([&](auto&) {
              starts = {0, 5, 4};
            }),
            "INVALID: AttentionForward: sequence_starts falls from 5 to 4 at sequence 1");
  starts = {0, 3, 4};
  const std::string prefix = "INVALID: AttentionForward: ";
  for (int64_t length : {1, 2, -4}) {
    EXPECT_EQ(message([&](auto& a) { a.length = length; }),
              prefix + "length is not that of every sequence");
  }
  EXPECT_EQ(message([](auto& a) { a.kv_heads = 0; }),
            prefix + "heads is not a multiple of kv_heads");
  EXPECT_EQ(message([](auto& a) { a.kv_heads = 1; }),
            prefix + "k has shape [4, 16] instead of [4, 8]");
  EXPECT_EQ(message([](auto& a) { a.scale = -1; }), prefix + "scale is not a positive number");
  EXPECT_EQ(message([](auto& a) { a.heads = a.kv_heads = 4; }),
            prefix +
                "q does not have heads * head_dim columns with head_dim a multiple of 8 up to "
                "256");
  EXPECT_EQ(message([](auto& a) { a = {}; }), prefix + "q is not a matrix");
  for (float probability : {-0.1f, 1.0f, std::nanf("")}) {
    EXPECT_EQ(message([&](auto& a) { a.dropout.probability = probability; }),
              prefix + "dropout probability is not in [0, 1)");
  }
  EXPECT_EQ(message([](auto& a) { a.dropout.first_head = -1; }),
            prefix + "dropout first_head is negative");
  AttentionBackwardArgs backward;
  backward.forward = good;
  EXPECT_EQ(AttentionBackward({}, backward).code(), StatusCode::kInvalid) << "no dout";
}

}  // namespace
}  // namespace weft::kernels
