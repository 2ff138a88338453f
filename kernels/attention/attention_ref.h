#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "common/rng.h"

namespace weft::kernels::ref {

/// Float64 attention over packed sequences, written from the definition: a full row of scores, its
/// softmax, the weighted sum. Rows are dense: q [tokens, heads, head_dim], k and v [tokens,
/// kv_heads, head_dim]; the fields mean what they mean in attention.h.
struct Attention {
  std::vector<int32_t> sequence_starts;
  int64_t heads = 1;
  int64_t kv_heads = 1;
  int64_t head_dim = 1;
  double scale = 1;
  bool causal = true;
  int64_t window = 0;
  double dropout = 0;  ///< Probability; the three after it as in attention_dropout.h.
  PhiloxKey key = {};
  int64_t first_token = 0;
  int64_t first_head = 0;
  std::vector<double> q, k, v;

  struct Output {
    std::vector<double> out;          ///< like q
    std::vector<double> log_sum_exp;  ///< [heads, tokens]
  };
  struct Gradient {
    std::vector<double> dq, dk, dv;  ///< like q, k, v
  };

  int64_t Tokens() const { return sequence_starts.back(); }

  Output Forward() const {
    Output result;
    result.out.assign(q.size(), 0.0);
    result.log_sum_exp.assign(heads * Tokens(), 0.0);
    ForEachRow([&](int64_t h, int64_t t, int64_t first, const std::vector<double>& p, double lse) {
      result.log_sum_exp[h * Tokens() + t] = lse;
      const std::vector<double> kept = Kept(h, t, first, p.size());
      for (size_t j = 0; j < p.size(); ++j) {
        for (int64_t c = 0; c < head_dim; ++c) {
          result.out[QueryIndex(t, h, c)] += kept[j] * p[j] * v[KeyIndex(first + j, h, c)];
        }
      }
    });
    return result;
  }

  /// Gradients of sum(out * dout): with P = softmax(S), dS = P (dP - rowsum(P dP)), where
  /// rowsum(P dP) = rowsum(out * dout) is taken from the given result of the forward pass, which
  /// may have been rounded. dP is of the weights before dropout.
  Gradient Backward(const std::vector<double>& dout, const std::vector<double>& out) const {
    Gradient g;
    g.dq.assign(q.size(), 0.0);
    g.dk.assign(k.size(), 0.0);
    g.dv.assign(v.size(), 0.0);
    ForEachRow([&](int64_t h, int64_t t, int64_t first, const std::vector<double>& p, double) {
      std::vector<double> dp(p.size(), 0.0);
      const std::vector<double> kept = Kept(h, t, first, p.size());
      double mean = 0;
      for (int64_t c = 0; c < head_dim; ++c) {
        mean += out[QueryIndex(t, h, c)] * dout[QueryIndex(t, h, c)];
      }
      for (size_t j = 0; j < p.size(); ++j) {
        for (int64_t c = 0; c < head_dim; ++c) {
          double d = dout[QueryIndex(t, h, c)];
          dp[j] += kept[j] * d * v[KeyIndex(first + j, h, c)];
          g.dv[KeyIndex(first + j, h, c)] += kept[j] * p[j] * d;
        }
      }
      for (size_t j = 0; j < p.size(); ++j) {
        double ds = scale * p[j] * (dp[j] - mean);
        for (int64_t c = 0; c < head_dim; ++c) {
          g.dq[QueryIndex(t, h, c)] += ds * k[KeyIndex(first + j, h, c)];
          g.dk[KeyIndex(first + j, h, c)] += ds * q[QueryIndex(t, h, c)];
        }
      }
    });
    return g;
  }

  /// What dropout multiplies the weights of `count` keys from token `first` on by, for the query of
  /// head h and token t.
  std::vector<double> Kept(int64_t h, int64_t t, int64_t first, size_t count) const {
    std::vector<double> kept(count, 1.0);
    if (dropout == 0) return kept;
    const int64_t begin =
        *(std::upper_bound(sequence_starts.begin(), sequence_starts.end(), t) - 1);
    for (size_t j = 0; j < count; ++j) {
      const auto index = static_cast<uint64_t>(first - begin) + j;
      const uint64_t token = static_cast<uint64_t>(first_token + t) % (uint64_t{1} << 32);
      const auto head = static_cast<uint64_t>(first_head + h);
      const Philox4 words = Philox(key, token + (index / 8 << 32) + (head << 52));
      const uint32_t number = words.v[index % 8 / 2] >> (index % 2 * 16) & 0xffff;
      const bool dropped = number < static_cast<uint32_t>(std::lround(dropout * 65536));
      kept[j] = dropped ? 0.0 : 1.0 / (1.0 - dropout);
    }
    return kept;
  }

 private:
  int64_t QueryIndex(int64_t t, int64_t h, int64_t c) const {
    return (t * heads + h) * head_dim + c;
  }
  int64_t KeyIndex(int64_t t, int64_t h, int64_t c) const {
    return (t * kv_heads + h * kv_heads / heads) * head_dim + c;
  }

  /// Calls fn(head, token, first visible key, probabilities of the visible keys, log-sum-exp).
  template <class Fn>
  void ForEachRow(Fn&& fn) const {
    for (int64_t h = 0; h < heads; ++h) {
      for (size_t s = 0; s + 1 < sequence_starts.size(); ++s) {
        for (int64_t t = sequence_starts[s]; t < sequence_starts[s + 1]; ++t) {
          int64_t first = sequence_starts[s];
          if (window > 0) first = std::max(first, t + 1 - window);
          int64_t last = causal ? t + 1 : sequence_starts[s + 1];
          std::vector<double> p(last - first, 0.0);
          double max = -std::numeric_limits<double>::infinity();
          for (size_t j = 0; j < p.size(); ++j) {
            for (int64_t c = 0; c < head_dim; ++c) {
              p[j] += scale * q[QueryIndex(t, h, c)] * k[KeyIndex(first + j, h, c)];
            }
            max = std::fmax(max, p[j]);
          }
          double sum = 0;
          for (double& score : p) sum += score = std::exp(score - max);
          for (double& score : p) score /= sum;
          fn(h, t, first, p, max + std::log(sum));
        }
      }
    }
  }
};

}  // namespace weft::kernels::ref
