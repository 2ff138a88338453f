#pragma once

#include <cmath>
#include <cstdint>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "common/rng.h"
#include "worker/engine/models/weights.h"
#include "worker/engine/nn/parameter_set.h"
#include "worker/engine/testing/tiny_run.h"

namespace weft::engine {

// Over-parameterised weights and their gradients, in float64 and written down again, for tests.

using Doubles = std::vector<double>;

inline Doubles AsDoubles(const TensorView& view) {
  const std::vector<float> values = ValuesOf(view);
  return {values.begin(), values.end()};
}

inline double Distance(const Doubles& a, const Doubles& b) {
  double difference = 0, norm = 1e-30;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(a[i] - b[i], 2);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / norm);
}

/// What mixtures are drawn by, written down again: gaps between sorted uniform numbers of 24 bits.
inline Doubles Mixture(uint64_t seed, int64_t step, const std::string& name, int64_t copies) {
  PhiloxStream stream({seed, static_cast<uint32_t>(step), SiteHash((name + "/mixture").c_str())});
  std::multiset<double> cuts = {0, 1};
  for (int64_t i = 1; i < copies; ++i) cuts.insert((stream.Next() >> 8) / 16777216.0);
  Doubles p;
  for (auto cut = std::next(cuts.begin()); cut != cuts.end(); ++cut) {
    p.push_back(*cut - *std::prev(cut));
  }
  return p;
}

/// The factors of a weight in float64: W = sum of left_i^T right_i over i for a product, the
/// mixture, or the branches with their scales.
struct Factors {
  std::string kind;
  int64_t out, in, inner;
  std::vector<Doubles> values;

  // For branches: how many are of a whole matrix, and where the last one is.
  size_t full() const { return (values.size() - 3) / 2; }
  size_t last() const { return values.size() - 3; }

  Doubles Weight(const Doubles& p) const {
    Doubles w(static_cast<size_t>(out * in), 0.0);
    for (int64_t o = 0; o < out; ++o) {
      for (int64_t i = 0; i < in; ++i) {
        double& sum = w[o * in + i];
        if (kind == "branches") {
          for (size_t k = 0; k < full(); ++k) {
            sum += values[2 * k + 1][o] * values[2 * k][o * in + i];
          }
          for (int64_t k = 0; k < inner; ++k) {
            sum += values[last() + 2][o] * values[last()][k * out + o] *
                   values[last() + 1][k * in + i];
          }
          continue;
        }
        const bool product = kind == "linear_expansion";
        for (int64_t k = 0; product && k < inner; ++k) {
          sum += values[0][k * out + o] * values[1][k * in + i];
        }
        for (size_t k = 0; !product && k < values.size(); ++k) {
          sum += p[k] * values[k][o * in + i];
        }
      }
    }
    return w;
  }

  std::vector<Doubles> Gradients(const Doubles& dw, const Doubles& p) const {
    std::vector<Doubles> gradients;
    for (const Doubles& value : values) gradients.emplace_back(value.size(), 0.0);
    for (int64_t o = 0; o < out; ++o) {
      for (int64_t i = 0; i < in; ++i) {
        const double d = dw[o * in + i];
        if (kind == "branches") {
          for (size_t k = 0; k < full(); ++k) {
            gradients[2 * k][o * in + i] = values[2 * k + 1][o] * d;
            gradients[2 * k + 1][o] += d * values[2 * k][o * in + i];
          }
          for (int64_t k = 0; k < inner; ++k) {
            const double a = values[last()][k * out + o], b = values[last() + 1][k * in + i];
            const double s = values[last() + 2][o];
            gradients[last()][k * out + o] += d * s * b;
            gradients[last() + 1][k * in + i] += d * s * a;
            gradients[last() + 2][o] += d * a * b;
          }
          continue;
        }
        const bool product = kind == "linear_expansion";
        for (int64_t k = 0; product && k < inner; ++k) {
          gradients[0][k * out + o] += d * values[1][k * in + i];
          gradients[1][k * in + i] += d * values[0][k * out + o];
        }
        for (size_t k = 0; !product && k < values.size(); ++k) {
          gradients[k][o * in + i] = p[k] * d;
        }
      }
    }
    return gradients;
  }
};

inline Factors FactorsFrom(const ParameterSet& parameters, int64_t index) {
  const Parameter& weight = parameters[index];
  const int64_t first = weight.first_source, last = first + weight.sources - 1;
  const bool branches = parameters[last].name.ends_with(".branch_low_rank_scale");
  const bool product = parameters[first].name.ends_with(".expansion_out");
  Factors factors{branches  ? "branches"
                  : product ? "linear_expansion"
                            : "majority_kernels",
                  weight.shape[0],
                  weight.shape[1],
                  parameters[branches ? last - 1 : first].shape[0],
                  {}};
  for (int64_t k = 0; k < weight.sources; ++k) {
    factors.values.push_back(AsDoubles(parameters.value(first + k)));
  }
  return factors;
}

inline Doubles MixtureIn(const ParameterSet& parameters, int64_t index, uint64_t seed,
                         int64_t step) {
  return Mixture(seed, step, parameters[index].name, parameters[index].sources);
}

}  // namespace weft::engine
