#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace weft::kernels {

struct AdafactorRefState {
  std::vector<double> parameter, row_moment, column_moment;
};

/// Algorithm 4 and section 8 of Shazeer and Stern 2018, by the whole matrix V. The gradient is
/// already scaled and limited.
inline AdafactorRefState AdafactorRef(AdafactorRefState s, const std::vector<double>& gradient,
                                      int64_t rows, int64_t columns, double rate,
                                      double weight_decay, double decay_exponent, double clip,
                                      int64_t step) {
  const auto t = static_cast<double>(step);
  const double fresh = std::pow(t, -decay_exponent);
  const auto at = [columns](int64_t r, int64_t c) { return static_cast<size_t>(r * columns + c); };
  double parameter_squares = 0;
  for (double p : s.parameter) parameter_squares += p * p;
  const auto elements = static_cast<double>(gradient.size());
  double mean_row = 0;
  for (int64_t r = 0; r < rows; ++r) {
    double mean = 0;
    for (int64_t c = 0; c < columns; ++c) mean += std::pow(gradient[at(r, c)], 2);
    s.row_moment[r] += fresh * (mean / static_cast<double>(columns) - s.row_moment[r]);
    mean_row += s.row_moment[r] / static_cast<double>(rows);
  }
  for (int64_t c = 0; c < columns; ++c) {
    double mean = 0;
    for (int64_t r = 0; r < rows; ++r) mean += std::pow(gradient[at(r, c)], 2);
    s.column_moment[c] += fresh * (mean / static_cast<double>(rows) - s.column_moment[c]);
  }
  std::vector<double> update(gradient.size());
  double update_squares = 0;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      // A vector is one row, whose own mean square says nothing.
      const double v =
          rows == 1 ? s.column_moment[c] : s.row_moment[r] * s.column_moment[c] / mean_row;
      update[at(r, c)] = gradient[at(r, c)] / std::sqrt(v);
      update_squares += std::pow(update[at(r, c)], 2);
    }
  }
  const double size = std::max(1e-3, std::sqrt(parameter_squares / elements)) *
                      std::min(rate, 1 / std::sqrt(t)) /
                      std::max(1.0, std::sqrt(update_squares / elements) / clip);
  for (size_t i = 0; i < update.size(); ++i) {
    s.parameter[i] += -rate * weight_decay * s.parameter[i] - size * update[i];
  }
  return s;
}

}  // namespace weft::kernels
