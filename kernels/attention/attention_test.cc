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
  for (bool causal : {true, false}) {
    PhiloxStream rng({.seed = 3, .step = 0, .site = 0});
    ref::Attention a = {.sequence_starts = {0, 1, 5, 8},
                        .heads = 4,
                        .kv_heads = 2,
                        .head_dim = 3,
                        .scale = 0.7,
                        .causal = causal,
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

  // Forward and backward over tokens [begin, begin + starts.back()).
  Results Run(std::vector<int32_t> starts, int64_t begin = 0, bool causal = true) const {
    int64_t count = starts.back();
    testing::TestTensor out(dtype, RowsShape(count)), dq(dtype, RowsShape(count));
    testing::TestTensor dk(dtype, RowsShape(count)), dv(dtype, RowsShape(count));
    testing::TestTensor lse(DType::kF32, {heads, count});
    auto part = [&](const testing::TestTensor& whole) {
      TensorView view = whole.view();
      view.data = static_cast<char*>(view.data) + begin * view.row_stride * DTypeSize(dtype);
      view.shape = {count, heads * head_dim};
      return view;
    };
    AttentionBackwardArgs args;
    args.forward.q = part(q);
    args.forward.k = part(k);
    args.forward.v = part(v);
    args.forward.sequence_starts =
        TensorView(starts.data(), DType::kI32, {static_cast<int64_t>(starts.size())});
    args.forward.heads = args.forward.kv_heads = heads;
    args.forward.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
    args.forward.causal = causal;
    args.forward.out = out.view();
    args.forward.log_sum_exp = lse.view();
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
    cpu::SetThreads(1);
    Problem::Results one = problem.Run({0, 600});
    for (int threads : {2, 3, 5}) {
      cpu::SetThreads(threads);
      EXPECT_EQ(problem.Run({0, 600}), one) << threads;
    }
  }
  cpu::SetThreads(before);
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
  AttentionBackwardArgs backward;
  backward.forward = good;
  EXPECT_EQ(AttentionBackward({}, backward).code(), StatusCode::kInvalid) << "no dout";
}

}  // namespace
}  // namespace weft::kernels
