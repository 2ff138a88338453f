#pragma once

#include <functional>
#include <string>
#include <vector>

#include "coordinator/planner/report/explanation.h"
#include "coordinator/planner/report/markup.h"

namespace weft::planner {

/// Width of every chart, in its own units; the page scales it.
inline constexpr double kChartWidth = 900;

/// Text of a value with its unit.
using UnitText = std::function<std::string(double)>;

/// Round values from 0 to at least `most`, `count` or a few more: 1, 2 or 5 times a power of ten,
/// times `unit`.
std::vector<double> RoundTicks(double most, double unit = 1, int count = 5);

/// A scale at the bottom of a chart: lines up to `top`, values below `bottom`.
struct HorizontalAxis {
  double left = 0, right = 0, top = 0, bottom = 0;
  double most = 1;  ///< Value at `right`.
  double unit = 1;  ///< Ticks are round multiples.
  UnitText text;

  double At(double value) const { return left + (right - left) * value / most; }
};
void AddAxis(Markup& page, const HorizontalAxis& axis);

/// A text at a point; `anchor` is start, middle or end. What has no room in `width` is cut.
void AddLabel(Markup& page, double x, double y, const std::string& text, const char* anchor,
              double width, const char* style = "");

/// A bar of several parts, and where it should end at most.
struct StackedBar {
  std::string label;
  std::string end_label;
  std::vector<double> parts;
  double limit = 0;  ///< 0: none.
  bool chosen = false;
};

/// Bars below each other on one scale, with the names of their parts above.
void AddStackedBars(Markup& page, const std::string& title, const std::vector<std::string>& parts,
                    const std::vector<StackedBar>& bars, double unit, const UnitText& text);

/// A bar for each gain, in per cent.
void AddGains(Markup& page, const std::vector<Sensitivity>& sensitivity);

/// The passes of each rank on the time of one step.
void AddTimeline(Markup& page, const Timeline& timeline);

/// Throughput against the number of devices.
void AddThroughputPlot(Markup& page, const PlanExplanation& explanation);
/// Price of the whole run against the time that it takes; nothing where no price is known.
void AddPricePlot(Markup& page, const PlanExplanation& explanation);

}  // namespace weft::planner
