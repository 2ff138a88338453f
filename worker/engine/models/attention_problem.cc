#include "worker/engine/models/attention_problem.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "common/rng.h"
#include "worker/engine/nn/rotary.h"
#include "worker/engine/nn/self_attention.h"
#include "worker/engine/nn/token_batch.h"

namespace weft::engine {
namespace {

/// Pairs (j, j + half) of each head turned by position * frequency_j.
Matrix Turned(const Matrix& x, int64_t head_dim, const std::vector<int32_t>& positions,
              const std::vector<double>& frequencies) {
  Matrix y = x;
  const int64_t half = head_dim / 2;
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t c = 0; c < x.columns; ++c) {
      const int64_t within = c % head_dim, j = within % half;
      const double angle = positions[r] * frequencies[j];
      y.at(r, c) = within < half
                       ? x.at(r, c) * std::cos(angle) - x.at(r, c + half) * std::sin(angle)
                       : x.at(r, c) * std::cos(angle) + x.at(r, c - half) * std::sin(angle);
    }
  }
  return y;
}

// Whether the weight stays of attention in a context of seed and step 0
// (kernels/attention/attention_dropout.h).
bool KeepsWeight(double dropout, const char* site, int64_t head, int64_t token, int64_t key) {
  const uint64_t block = static_cast<uint64_t>(head << 52 | key / 8 << 32 | token);
  const Philox4 words = Philox({.site = SiteHash(site)}, block);
  return (words.v[key % 8 / 2] >> (key % 2 * 16) & 0xffffu) >= std::lround(dropout * 65536);
}

}  // namespace

Problem AttentionProblem(Sides& sides, const AttentionKind& kind) {
  Problem p;
  constexpr int64_t kHeadDim = 8;
  const int64_t heads = 1 + sides.Below(2), groups = 1 + sides.Below(heads);
  const int64_t kv_heads = heads / groups, width = heads * kHeadDim;
  constexpr int64_t kFirstToken = 1000;
  TokenBatch shape;
  shape.first_token = kFirstToken;
  std::vector<int32_t> starts = {0}, positions;
  for (int64_t s = 0, runs = 1 + sides.Below(3); s < runs; ++s) {
    const int64_t length = std::min<int64_t>(sides.Draw(), 5);
    for (int64_t i = 0; i < length; ++i) positions.push_back(static_cast<int32_t>(i));
    starts.push_back(starts.back() + static_cast<int32_t>(length));
  }
  shape.count = starts.back();
  const std::vector<double> frequencies = {1.0, 0.3, 0.1, 0.03};
  const auto rotary =
      kind.rotary ? std::make_shared<RotaryTable>(64, frequencies) : std::shared_ptr<RotaryTable>();
  auto attention = std::make_shared<SelfAttention>(p.parameters.get(),
                                                   SelfAttentionOptions{.qkv = {"q", "k", "v"},
                                                                        .output = "o",
                                                                        .width = width,
                                                                        .heads = heads,
                                                                        .kv_heads = kv_heads,
                                                                        .head_dim = kHeadDim,
                                                                        .causal = kind.causal,
                                                                        .window = kind.window,
                                                                        .rotary = rotary,
                                                                        .qkv_bias = false,
                                                                        .output_bias = false,
                                                                        .dropout = kind.dropout,
                                                                        .dropout_site = "site"},
                                                   DType::kF32);
  p.inputs = {Map(sides.Normal(shape.count, width), [](double x) { return 0.5 * x; })};
  p.prepare = [attention, rotary](Context& c) {
    if (rotary) WEFT_RETURN_IF_ERROR(rotary->Prepare(c));
    return attention->Pack(c, Repack::kAll);
  };
  p.run = [=](Context& c, Tape& t, const std::vector<Value>& in) {
    TokenBatch batch = shape;
    batch.sequence_starts = Indices(c, starts);
    batch.positions = Indices(c, positions);
    return One(attention->Forward(c, t, in[0], batch));
  };
  p.reference = [=](const std::vector<Matrix>& in) {
    Matrix q = Product(in[0], in[1], nullptr), k = Product(in[0], in[2], nullptr);
    const Matrix v = Product(in[0], in[3], nullptr);
    if (kind.rotary) {
      q = Turned(q, kHeadDim, positions, frequencies);
      k = Turned(k, kHeadDim, positions, frequencies);
    }
    Matrix y(q.rows, width);
    for (size_t s = 0; s + 1 < starts.size(); ++s) {
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t own = h * kHeadDim, shared = h / groups * kHeadDim;
        for (int64_t i = starts[s]; i < starts[s + 1]; ++i) {
          double total = 0;
          Doubles mean(kHeadDim, 0.0);
          for (int64_t j = starts[s]; j < starts[s + 1]; ++j) {
            if (kind.causal && j > i) continue;
            if (kind.window > 0 && i - j >= kind.window) continue;
            double score = 0;
            for (int64_t c = 0; c < kHeadDim; ++c) score += q.at(i, own + c) * k.at(j, shared + c);
            const double weight = std::exp(score / std::sqrt(static_cast<double>(kHeadDim)));
            total += weight;
            if (!KeepsWeight(kind.dropout, "site", h, kFirstToken + i, j - starts[s])) continue;
            for (int64_t c = 0; c < kHeadDim; ++c) mean[c] += weight * v.at(j, shared + c);
          }
          for (int64_t c = 0; c < kHeadDim; ++c)
            y.at(i, own + c) = mean[c] / total / (1 - kind.dropout);
        }
      }
    }
    return std::vector<Matrix>{Product(y, in[4], nullptr)};
  };
  return p;
}

}  // namespace weft::engine
