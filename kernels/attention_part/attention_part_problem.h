#pragma once

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_ref.h"
#include "kernels/attention_part/attention_part.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/testing/compare.h"
#include "kernels/testing/test_tensor.h"

namespace weft::kernels::testing::attention_part {

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
        wide_dq(DType::kF32, {p.tokens(), p.width()}) {
    for (TestTensor* result : {&out, &wide_out, &lse, &dq, &dk, &dv, &wide_dq}) result->Reset();
  }
};

inline void Require(const Status& status) {
  ASSERT_TRUE(status.ok()) << status.ToString();
}

inline AttendPartArgs PartOf(const Problem& p, const Owner& here, const Owner& there, int64_t rank,
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

/// What a device wants besides the tensors.
struct Workspace {
  TestTensor memory;

  explicit Workspace(const AttendPartArgs& part)
      : memory(DType::kF32,
               {AttendPartWorkspaceBytes(part) / static_cast<int64_t>(sizeof(float))}) {
    memory.Reset();
  }
  AttendPartArgs With(AttendPartArgs part) const {
    part.workspace = {
        memory.view().data, DType::kU8, {AttendPartWorkspaceBytes(part)}, memory.view().device};
    return part;
  }
};

/// Runs it on `stream`, where tensors are made too, against attention to the whole.
inline void ExpectTheWhole(const Problem& p, const Stream& stream = {}) {
  PhiloxStream rng({.seed = 11, .step = 0, .site = 0});
  const int64_t rows = p.sequences * p.whole_length();
  TestTensor q(p.dtype, {rows, p.width()}), k(p.dtype, {rows, p.kv_width()});
  TestTensor v(p.dtype, {rows, p.kv_width()}), dout(p.dtype, {rows, p.width()});
  for (TestTensor* tensor : {&q, &k, &v, &dout}) tensor->Random(rng);
  std::vector<int32_t> whole_starts;
  Values own_starts;
  for (int64_t s = 0; s <= p.sequences; ++s) {
    whole_starts.push_back(static_cast<int32_t>(s * p.whole_length()));
    own_starts.push_back(static_cast<double>(s * 2 * p.chunk));
  }
  TestTensor starts(DType::kI32, {p.sequences + 1});
  starts.Assign(own_starts).Reset();
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
  // Products of bf16 round weights, and the gradients of scores, before they sum them.
  const auto tolerance =
      testing::ToleranceFor(p.dtype, p.whole_length() + p.head_dim, 3 + static_cast<int>(p.owners));

  std::vector<std::unique_ptr<Owner>> owners;
  for (int64_t i = 0; i < p.owners; ++i) {
    owners.push_back(std::make_unique<Owner>(p, 8));
    Owner& own = *owners.back();
    own.q.Assign(p.Pick(q.Values(), p.width(), i)).Reset();
    own.k.Assign(p.Pick(k.Values(), p.kv_width(), i)).Reset();
    own.v.Assign(p.Pick(v.Values(), p.kv_width(), i)).Reset();
    own.dout.Assign(p.Pick(dout.Values(), p.width(), i)).Reset();
    own.dk_sums.assign(static_cast<size_t>(p.tokens() * p.kv_width()), 0);
    own.dv_sums = own.dk_sums;
  }
  const auto own_args = [&](const Owner& own) {
    return AttentionForwardArgs{.q = own.q.view(),
                                .k = own.k.view(),
                                .v = own.v.view(),
                                .sequence_starts = starts.view(),
                                .heads = p.heads,
                                .kv_heads = p.kv_heads,
                                .scale = 1 / std::sqrt(static_cast<float>(p.head_dim)),
                                .out = own.out.view(),
                                .log_sum_exp = own.lse.view()};
  };
  const auto widen = [&](const TestTensor& narrow, const TestTensor& wide) {
    return AddScaled(stream, {.x = narrow.view(), .y = wide.view(), .keep = 0});
  };
  for (int64_t i = 0; i < p.owners; ++i) {
    Owner& own = *owners[static_cast<size_t>(i)];
    Require(AttentionForward(stream, own_args(own)));
    Require(widen(own.out, own.wide_out));
    for (int64_t step = 1; step < p.owners; ++step) {
      const int64_t owner = (i + step) % p.owners;
      const AttendPartArgs part = PartOf(p, own, *owners[static_cast<size_t>(owner)], i, owner);
      const Workspace workspace(part);
      Require(AttendPart(stream, workspace.With(part)));
    }
    own.wide_out.Fetch();
    own.lse.Fetch();
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
      own.out.Assign(own.wide_out.Values()).Reset();
    } else {
      own.out.Assign(p.Pick(result.out, p.width(), i)).Reset();
    }
  }

  const auto add = [](Values& sums, const TestTensor& part) {
    const Values values = part.Values();
    for (size_t c = 0; c < sums.size(); ++c) sums[c] += values[c];
  };
  for (int64_t i = 0; i < p.owners; ++i) {
    Owner& own = *owners[static_cast<size_t>(i)];
    Require(AttentionBackward(stream, {.forward = own_args(own),
                                       .dout = own.dout.view(),
                                       .dq = own.dq.view(),
                                       .dk = own.dk.view(),
                                       .dv = own.dv.view()}));
    Require(widen(own.dq, own.wide_dq));
    own.dk.Fetch();
    own.dv.Fetch();
    add(own.dk_sums, own.dk);
    add(own.dv_sums, own.dv);
    for (int64_t step = 1; step < p.owners; ++step) {
      const int64_t owner = (i + step) % p.owners;
      Owner& other = *owners[static_cast<size_t>(owner)];
      TestTensor dk(DType::kF32, {p.tokens(), p.kv_width()}, 8);
      TestTensor dv(DType::kF32, {p.tokens(), p.kv_width()}, 8);
      // Added to what is there.
      const Values ones(static_cast<size_t>(p.tokens() * p.kv_width()), 1);
      dk.Assign(ones).Reset();
      dv.Assign(ones).Reset();
      const AttendPartArgs part = PartOf(p, own, other, i, owner);
      const Workspace workspace(part);
      Require(AttendPartBackward(stream, {.part = workspace.With(part),
                                          .out = own.out.view(),
                                          .dout = own.dout.view(),
                                          .dq = own.wide_dq.view(),
                                          .dk = dk.view(),
                                          .dv = dv.view()}));
      dk.Fetch();
      dv.Fetch();
      EXPECT_TRUE(dk.GuardsIntact() && dv.GuardsIntact());
      add(other.dk_sums, dk);
      add(other.dv_sums, dv);
      for (double& sum : other.dk_sums) sum -= 1;
      for (double& sum : other.dv_sums) sum -= 1;
    }
  }
  for (int64_t i = 0; i < p.owners; ++i) {
    Owner& own = *owners[static_cast<size_t>(i)];
    own.wide_dq.Fetch();
    const auto pick = [&](const Values& whole) { return p.Pick(whole, p.kv_width(), i); };
    EXPECT_EQ(testing::Mismatch(own.wide_dq.Values(), p.Pick(gradient.dq, p.width(), i), tolerance),
              "");
    EXPECT_EQ(testing::Mismatch(own.dk_sums, pick(gradient.dk), tolerance), "");
    EXPECT_EQ(testing::Mismatch(own.dv_sums, pick(gradient.dv), tolerance), "");
  }
}

}  // namespace weft::kernels::testing::attention_part
