#include <algorithm>
#include <cmath>

#include "common/text.h"
#include "coordinator/planner/report/svg_charts.h"

namespace weft::planner {

std::vector<double> RoundTicks(double most, double unit, int count) {
  const double raw = std::max(most, 1e-12) / unit / count;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  double step = 10 * power;
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= raw * (1 - 1e-9)) {
      step = factor * power;
      break;
    }
  }
  std::vector<double> ticks;
  const auto last = static_cast<int>(std::ceil(most / unit / step * (1 - 1e-9)));
  for (int i = 0; i <= std::max(last, 1); ++i) ticks.push_back(i * step * unit);
  return ticks;
}

void AddAxis(Markup& page, const HorizontalAxis& axis) {
  for (const double value : RoundTicks(axis.most, axis.unit)) {
    if (value > axis.most * (1 + 1e-9)) break;
    const double x = axis.At(value);
    page.Add("line", {{"class", "grid"},
                      {"x1", Coordinate(x)},
                      {"x2", Coordinate(x)},
                      {"y1", Coordinate(axis.top)},
                      {"y2", Coordinate(axis.bottom)}});
    AddLabel(page, x, axis.bottom + 15, value == 0 ? "0" : axis.text(value), "middle", 90, "soft");
  }
}

void AddLabel(Markup& page, double x, double y, const std::string& text, const char* anchor,
              double width, const char* style) {
  // Letters of the page's font are this wide on average.
  constexpr double kLetter = 6.6;
  const auto letters = static_cast<size_t>(std::max(width / kLetter, 4.0));
  page.Add("text",
           {{"x", Coordinate(x)}, {"y", Coordinate(y)}, {"text-anchor", anchor}, {"class", style}},
           ClipText(text, letters));
}

}  // namespace weft::planner
