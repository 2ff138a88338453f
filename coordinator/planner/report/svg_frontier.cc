#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <vector>

#include "common/duration_text.h"
#include "coordinator/planner/report/money.h"
#include "coordinator/planner/report/svg_charts.h"
#include "coordinator/planner/units.h"

namespace weft::planner {
namespace {

constexpr double kLeft = 90;
constexpr double kRight = kChartWidth - 30;
constexpr double kTop = 14;
constexpr double kBottom = 300;

/// A point of a plot, and the group that it belongs to.
struct Dot {
  double x, y;
  std::string group;
  std::string label;
  std::string title;
  bool marked = false;
};

struct Plot {
  std::string title;
  std::string x_name;
  UnitText x_text;
  UnitText y_text;
  double x_unit = 1;
  bool joined = false;  ///< Points of a group by a line.
  std::vector<Dot> dots = {};
};

void AddVerticalAxis(Markup& page, double most, const UnitText& text) {
  for (const double value : RoundTicks(most)) {
    if (value > most * (1 + 1e-9)) break;
    const double y = kBottom - (kBottom - kTop) * value / most;
    page.Add("line", {{"class", "grid"},
                      {"x1", Coordinate(kLeft)},
                      {"x2", Coordinate(kRight)},
                      {"y1", Coordinate(y)},
                      {"y2", Coordinate(y)}});
    AddLabel(page, kLeft - 8, y + 4, value == 0 ? "0" : text(value), "end", kLeft, "soft");
  }
}

void AddPlot(Markup& page, const Plot& plot) {
  if (plot.dots.empty()) return;
  double most_x = 0, most_y = 0;
  for (const Dot& dot : plot.dots) {
    most_x = std::max(most_x, dot.x);
    most_y = std::max(most_y, dot.y);
  }
  most_x = RoundTicks(most_x, plot.x_unit).back();
  most_y = RoundTicks(most_y).back();
  page.Open("svg", {{"viewBox", "0 0 " + Coordinate(kChartWidth) + " " + Coordinate(kBottom + 44)},
                    {"role", "img"},
                    {"aria-label", plot.title}});
  const HorizontalAxis axis{kLeft, kRight, kTop, kBottom, most_x, plot.x_unit, plot.x_text};
  AddAxis(page, axis);
  AddVerticalAxis(page, most_y, plot.y_text);
  AddLabel(page, (kLeft + kRight) / 2, kBottom + 36, plot.x_name, "middle", 500, "soft");
  const auto y_of = [&](double value) { return kBottom - (kBottom - kTop) * value / most_y; };
  std::map<std::string, std::vector<const Dot*>> groups;
  for (const Dot& dot : plot.dots) groups[dot.group].push_back(&dot);
  size_t color = 0;
  for (const auto& [name, dots] : groups) {
    const std::string style = "k" + std::to_string(color++ % 4);
    std::string points;
    for (const Dot* dot : dots) {
      points += (points.empty() ? "" : " ") + Coordinate(axis.At(dot->x)) + "," +
                Coordinate(y_of(dot->y));
    }
    if (plot.joined) page.Add("polyline", {{"class", "line " + style}, {"points", points}});
    for (const Dot* dot : dots) {
      page.Open("g").Add("title", {}, dot->title);
      page.Add("circle", {{"class", "dot " + style},
                          {"cx", Coordinate(axis.At(dot->x))},
                          {"cy", Coordinate(y_of(dot->y))},
                          {"r", dot->marked ? "6" : "4"}});
      page.Close();
    }
    // The last one has the group's name, where it hides nothing.
    const Dot& last = *dots.back();
    if (groups.size() > 1) {
      const bool right = axis.At(last.x) > (kLeft + kRight) / 2;
      AddLabel(page, axis.At(last.x) + (right ? -10 : 10), y_of(last.y) - 8, name,
               right ? "end" : "start", 200);
    }
  }
  // Above and below in turn, where there is room.
  double used[2] = {-1e9, -1e9};
  size_t below = 0;
  for (const Dot& dot : plot.dots) {
    if (!dot.marked || groups.size() > 1 || dot.label.empty()) continue;
    const double x = axis.At(dot.x), half = 3.5 * static_cast<double>(dot.label.size());
    if (x - half < used[below]) below = 1 - below;
    if (x - half < used[below]) continue;
    AddLabel(page, x, y_of(dot.y) + (below == 1 ? 22 : -12), dot.label, "middle", 300);
    used[below] = x + half + 6;
  }
  page.Close();
}

std::string TitleOf(const FrontierPoint& point, const PlanExplanation& explanation) {
  std::string text = std::to_string(point.devices_used) + " " + explanation.device +
                     (point.devices_used == 1 ? "" : "s") + ", " + point.mesh + ": " +
                     HumanCount(point.tokens_per_second) + " tokens/s, " +
                     HumanDuration(point.finish_seconds);
  if (point.price > 0) text += ", " + Money(point.price, explanation.currency);
  return text;
}

}  // namespace

void AddThroughputPlot(Markup& page, const PlanExplanation& explanation) {
  Plot plot{.title = "Throughput against the number of devices",
            .x_name = explanation.device + "s in use",
            .x_text = [](double value) { return Coordinate(value); },
            .y_text = [](double value) { return HumanCount(value) + " tok/s"; },
            .joined = true};
  for (const FrontierPoint& point : explanation.frontier) {
    if (!point.reason.empty()) continue;
    plot.dots.push_back({static_cast<double>(point.devices_used),
                         point.tokens_per_second,
                         point.machines,
                         {},
                         TitleOf(point, explanation),
                         point.on_frontier});
  }
  std::stable_sort(plot.dots.begin(), plot.dots.end(),
                   [](const Dot& a, const Dot& b) { return a.x < b.x; });
  AddPlot(page, plot);
}

void AddPricePlot(Markup& page, const PlanExplanation& explanation) {
  Plot plot{.title = "Price of the run against its time",
            .x_name = "time to finish",
            .x_text = HumanDuration,
            .y_text = [&](double value) { return Money(value, explanation.currency); }};
  double longest = 0;
  for (const FrontierPoint& point : explanation.frontier) {
    if (point.price == 0) continue;
    longest = std::max(longest, point.finish_seconds);
    plot.dots.push_back({point.finish_seconds, point.price, point.machines,
                         std::to_string(point.devices_used) + " " + explanation.device +
                             (point.devices_used == 1 ? "" : "s"),
                         TitleOf(point, explanation), point.cheapest || point.on_frontier});
  }
  // Ticks are round in the unit that people would take.
  for (const double unit : {60.0, 3600.0, 86400.0}) {
    if (longest > 2 * unit) plot.x_unit = unit;
  }
  std::stable_sort(plot.dots.begin(), plot.dots.end(),
                   [](const Dot& a, const Dot& b) { return a.x < b.x; });
  AddPlot(page, plot);
}

}  // namespace weft::planner
