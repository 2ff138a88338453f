#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

namespace weft::kernels::ref {

/// What a router makes of one token, in float64. Nothing of padding: chosen are -1, all else is 0.
struct Route {
  std::vector<double> probabilities;
  std::vector<int64_t> chosen;
  std::vector<double> weights;
};

inline Route RouteToken(const std::vector<double>& logits, int64_t k, bool normalize = true) {
  Route route;
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit - largest);
  for (const double logit : logits) {
    route.probabilities.push_back(std::exp(logit - largest) / sum);
  }
  std::vector<int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return logits[a] > logits[b]; });
  route.chosen.assign(order.begin(), order.begin() + k);
  double share = 0;
  for (const int64_t expert : route.chosen) share += route.probabilities[expert];
  for (const int64_t expert : route.chosen) {
    route.weights.push_back(route.probabilities[expert] / (normalize ? share : 1));
  }
  return route;
}

inline Route RoutePadding(int64_t experts, int64_t k) {
  Route route;
  route.probabilities.assign(static_cast<size_t>(experts), 0);
  route.chosen.assign(static_cast<size_t>(k), -1);
  route.weights.assign(static_cast<size_t>(k), 0);
  return route;
}

/// Gradient of the logits of that token, by the chain rule written out: of the softmax, and of each
/// weight in each probability.
inline std::vector<double> RouteTokenGradient(const Route& route,
                                              const std::vector<double>& dweights,
                                              const std::vector<double>& balance,
                                              bool normalize = true) {
  if (route.chosen.front() < 0) return std::vector<double>(balance.size(), 0);
  std::vector<double> dprobabilities = balance;
  double share = 0;
  for (const int64_t expert : route.chosen) share += route.probabilities[expert];
  for (size_t i = 0; i < route.chosen.size(); ++i) {
    for (size_t j = 0; j < route.chosen.size(); ++j) {
      const double same = i == j ? 1 : 0;
      const double dweight = normalize ? (same - route.weights[j]) / share : same;
      dprobabilities[route.chosen[i]] += dweights[j] * dweight;
    }
  }
  std::vector<double> dlogits(balance.size(), 0);
  for (size_t i = 0; i < dlogits.size(); ++i) {
    for (size_t j = 0; j < dlogits.size(); ++j) {
      const double dprobability =
          route.probabilities[j] * ((i == j ? 1 : 0) - route.probabilities[i]);
      dlogits[i] += dprobabilities[j] * dprobability;
    }
  }
  return dlogits;
}

/// Where choices go, written down expert by expert.
struct Dispatch {
  std::vector<double> rows;
  std::vector<double> places;
  std::vector<double> wanted;
  std::vector<double> taken;
};

/// `capacities`: by expert, or none.
inline Dispatch DispatchChoices(const std::vector<double>& chosen, int64_t experts, int64_t k,
                                const std::vector<double>& capacities) {
  Dispatch dispatch;
  dispatch.places.assign(chosen.size(), -1);
  for (int64_t e = 0; e < experts; ++e) {
    int64_t wanted = 0, taken = 0;
    for (size_t i = 0; i < chosen.size(); ++i) {
      if (chosen[i] != static_cast<double>(e)) continue;
      ++wanted;
      if (!capacities.empty() && static_cast<double>(taken) == capacities[e]) continue;
      ++taken;
      dispatch.places[i] = static_cast<double>(dispatch.rows.size());
      const size_t token = i / static_cast<size_t>(k);
      dispatch.rows.push_back(static_cast<double>(token));
    }
    dispatch.wanted.push_back(static_cast<double>(wanted));
    dispatch.taken.push_back(static_cast<double>(taken));
  }
  dispatch.rows.resize(chosen.size(), -1);
  return dispatch;
}

}  // namespace weft::kernels::ref
