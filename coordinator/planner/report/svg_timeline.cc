#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "coordinator/planner/report/svg_charts.h"
#include "coordinator/planner/units.h"

namespace weft::planner {
namespace {

constexpr double kLeft = 70;
constexpr double kRight = kChartWidth - 20;

struct PassKind {
  std::string_view op;
  const char* name;
  const char* style;
};
constexpr std::array<PassKind, 4> kKinds = {{{"F", "forward", "forward"},
                                             {"B", "backward", "backward"},
                                             {"I", "gradient of inputs", "backward"},
                                             {"W", "gradient of weights", "weights"}}};

const PassKind& KindOf(std::string_view op) {
  const auto found = std::find_if(kKinds.begin(), kKinds.end(),
                                  [&](const PassKind& kind) { return kind.op == op; });
  return found != kKinds.end() ? *found : kKinds[0];
}

void AddLegend(Markup& page, const Timeline& timeline, bool shows_end) {
  page.Open("p", {{"class", "legend"}});
  const auto key = [&](const std::string& style, const std::string& text) {
    page.Open("span", {{"class", "key"}});
    page.Open("svg", {{"class", "swatch"}, {"viewBox", "0 0 12 12"}, {"aria-hidden", "true"}});
    page.Add("rect", {{"class", style}, {"width", "12"}, {"height", "12"}});
    page.Close().Text(text).Close().Raw(" ");
  };
  for (const PassKind& kind : kKinds) {
    const bool used =
        std::any_of(timeline.ranks.begin(), timeline.ranks.end(), [&](const TimelineRank& rank) {
          return std::any_of(rank.steps.begin(), rank.steps.end(),
                             [&](const TimelineStep& step) { return step.op == kind.op; });
        });
    if (used) key(kind.style, kind.name);
  }
  if (shows_end) key("after", "exchange of gradients and update");
  page.Close();
}

}  // namespace

void AddTimeline(Markup& page, const Timeline& timeline) {
  double end = 0;
  for (const TimelineRank& rank : timeline.ranks) {
    for (const TimelineStep& step : rank.steps) end = std::max(end, step.end);
  }
  if (end <= 0) return;
  const bool whole = timeline.micro_batches_shown == timeline.micro_batches;
  if (whole) end = std::max(end, timeline.step_seconds);
  AddLegend(page, timeline, whole);
  const double row = timeline.ranks.size() > 16 ? 12 : 22;
  const double bar = row - 4;
  const double height = row * static_cast<double>(timeline.ranks.size());
  page.Open("svg", {{"viewBox", "0 0 " + Coordinate(kChartWidth) + " " + Coordinate(height + 26)},
                    {"role", "img"},
                    {"aria-label", "When each rank makes the passes of a step"}});
  const HorizontalAxis axis{kLeft, kRight, 0, height, end, 1, HumanSeconds};
  AddAxis(page, axis);
  for (size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    const double top = row * static_cast<double>(rank) + 2;
    AddLabel(page, kLeft - 8, top + bar - (row > 12 ? 5 : 0), "rank " + std::to_string(rank), "end",
             kLeft, "soft");
    for (const TimelineStep& step : timeline.ranks[rank].steps) {
      const PassKind& kind = KindOf(step.op);
      const double width = axis.At(step.end) - axis.At(step.start);
      page.Open("g");
      page.Add("title", {},
               std::string(kind.name) + ", micro-batch " + std::to_string(step.micro_batch + 1) +
                   ", stage " + std::to_string(step.stage) + ": " +
                   HumanSeconds(step.end - step.start));
      page.Add("rect", {{"class", std::string("pass ") + kind.style},
                        {"x", Coordinate(axis.At(step.start))},
                        {"y", Coordinate(top)},
                        {"width", Coordinate(width)},
                        {"height", Coordinate(bar)}});
      const std::string number = std::to_string(step.micro_batch + 1);
      if (row > 12 && width > 8.0 * static_cast<double>(number.size()) + 2) {
        AddLabel(page, axis.At(step.start) + width / 2, top + bar - 5, number, "middle", 40,
                 (std::string("in-") + kind.style).c_str());
      }
      page.Close();
    }
    if (whole && timeline.step_seconds > timeline.passes_seconds) {
      page.Add(
          "rect",
          {{"class", "pass after"},
           {"x", Coordinate(axis.At(timeline.passes_seconds))},
           {"y", Coordinate(top)},
           {"width", Coordinate(axis.At(timeline.step_seconds) - axis.At(timeline.passes_seconds))},
           {"height", Coordinate(bar)}});
    }
  }
  page.Close();
}

}  // namespace weft::planner
