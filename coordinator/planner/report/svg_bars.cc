#include <algorithm>
#include <cstdio>
#include <numeric>

#include "coordinator/planner/plan_text.h"
#include "coordinator/planner/report/svg_charts.h"

namespace weft::planner {
namespace {

constexpr double kLeft = 225;
constexpr double kRight = kChartWidth - 110;
constexpr double kRow = 24;
constexpr double kBar = 15;
constexpr double kBelow = 26;

double Sum(const std::vector<double>& parts) {
  return std::accumulate(parts.begin(), parts.end(), 0.0);
}

/// The names of the parts next to their colours, and the letters that stand for them in print.
void AddLegend(Markup& page, const std::vector<std::string>& parts) {
  page.Open("p", {{"class", "legend"}});
  for (size_t i = 0; i < parts.size(); ++i) {
    page.Open("span", {{"class", "key"}});
    page.Open("svg", {{"class", "swatch"}, {"viewBox", "0 0 12 12"}, {"aria-hidden", "true"}});
    page.Add("rect", {{"class", "c" + std::to_string(i)}, {"width", "12"}, {"height", "12"}});
    page.Close();
    page.Text(std::string(1, static_cast<char>('a' + i)) + " " + parts[i]).Close().Raw(" ");
  }
  page.Close();
}

void AddBar(Markup& page, const StackedBar& bar, const std::vector<std::string>& parts, double top,
            const HorizontalAxis& axis, const UnitText& text) {
  AddLabel(page, kLeft - 8, top + kBar - 3, bar.label, "end", kLeft - 8,
           bar.chosen ? "strong" : "");
  double from = 0;
  for (size_t i = 0; i < bar.parts.size(); ++i) {
    const double width = axis.At(bar.parts[i]) - axis.At(0);
    if (width <= 0) continue;
    page.Open("g");
    page.Add("title", {}, parts[i] + ": " + text(bar.parts[i]));
    page.Add("rect", {{"class", "c" + std::to_string(i)},
                      {"x", Coordinate(axis.At(from))},
                      {"y", Coordinate(top)},
                      {"width", Coordinate(width)},
                      {"height", Coordinate(kBar)}});
    if (width > 14) {
      AddLabel(page, axis.At(from) + width / 2, top + kBar - 4,
               std::string(1, static_cast<char>('a' + i)), "middle", 30,
               ("on" + std::to_string(i)).c_str());
    }
    page.Close();
    from += bar.parts[i];
  }
  double end = axis.At(from);
  if (bar.limit > 0 && bar.limit <= axis.most) {
    const std::string x = Coordinate(axis.At(bar.limit));
    page.Open("g").Add("title", {}, "limit: " + text(bar.limit));
    page.Add("line", {{"class", "limit"},
                      {"x1", x},
                      {"x2", x},
                      {"y1", Coordinate(top - 3)},
                      {"y2", Coordinate(top + kBar + 3)}});
    page.Close();
    if (axis.At(bar.limit) < end + 100) end = std::max(end, axis.At(bar.limit));
  }
  AddLabel(page, end + 6, top + kBar - 3, bar.end_label, "start", kChartWidth - end - 6,
           bar.chosen ? "strong" : "");
}

}  // namespace

void AddStackedBars(Markup& page, const std::string& title, const std::vector<std::string>& parts,
                    const std::vector<StackedBar>& bars, double unit, const UnitText& text) {
  if (bars.empty()) return;
  AddLegend(page, parts);
  double most = 0, limit = 0;
  for (const StackedBar& bar : bars) {
    most = std::max(most, Sum(bar.parts));
    limit = std::max(limit, bar.limit);
  }
  // A limit far away would leave nothing to see of the bars.
  if (limit < 3 * most) most = std::max(most, limit);
  const double height = kRow * static_cast<double>(bars.size());
  page.Open("svg",
            {{"viewBox", "0 0 " + Coordinate(kChartWidth) + " " + Coordinate(height + kBelow)},
             {"role", "img"},
             {"aria-label", title}});
  const HorizontalAxis axis{kLeft, kRight, 0, height, most, unit, text};
  AddAxis(page, axis);
  for (size_t i = 0; i < bars.size(); ++i) {
    AddBar(page, bars[i], parts, kRow * static_cast<double>(i) + (kRow - kBar) / 2, axis, text);
  }
  page.Close();
}

void AddGains(Markup& page, const std::vector<Sensitivity>& sensitivity) {
  if (sensitivity.empty()) return;
  const auto percent = [](double value) {
    char text[32];
    std::snprintf(text, sizeof(text), "%.1f %%", 100 * value);
    return std::string(text);
  };
  // A tenth more of one thing gains a tenth at most.
  double most = 0.1;
  for (const Sensitivity& each : sensitivity) most = std::max(most, each.gain);
  const double height = kRow * static_cast<double>(sensitivity.size());
  page.Open("svg",
            {{"viewBox", "0 0 " + Coordinate(kChartWidth) + " " + Coordinate(height + kBelow)},
             {"role", "img"},
             {"aria-label", "Gain in throughput from 10 % more of each rate"}});
  const HorizontalAxis axis{kLeft, kRight, 0, height, most, 0.01, percent};
  AddAxis(page, axis);
  for (size_t i = 0; i < sensitivity.size(); ++i) {
    const double top = kRow * static_cast<double>(i) + (kRow - kBar) / 2;
    const double width = axis.At(std::max(sensitivity[i].gain, 0.0)) - axis.At(0);
    AddLabel(page, kLeft - 8, top + kBar - 3, sensitivity[i].what, "end", kLeft - 8);
    page.Add("rect", {{"class", "c0"},
                      {"x", Coordinate(kLeft)},
                      {"y", Coordinate(top)},
                      {"width", Coordinate(std::max(width, 1.0))},
                      {"height", Coordinate(kBar)}});
    AddLabel(page, kLeft + width + 6, top + kBar - 3, percent(sensitivity[i].gain), "start", 100);
  }
  page.Close();
}

}  // namespace weft::planner
