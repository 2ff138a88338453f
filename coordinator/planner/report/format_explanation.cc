#include <algorithm>
#include <string>
#include <vector>

#include "common/duration_text.h"
#include "common/model/memory_text.h"
#include "common/text.h"
#include "coordinator/planner/plan_text.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planner/report/explain.h"
#include "coordinator/planner/report/money.h"
#include "coordinator/planner/units.h"

namespace weft::planner {
namespace {

using Rows = std::vector<std::vector<std::string>>;

std::string Known(double value, const std::string& text) {
  return value > 0 ? text : "-";
}

std::string Summary(const PlanExplanation& e) {
  const PlanDetail& detail = e.details.front();
  const Prediction& prediction = e.report.candidates.front().plan.prediction;
  Rows rows = {
      {"limited by", detail.binding + ", " + Percent(detail.binding_share, 1) +
                         " of the step; memory " +
                         Percent(static_cast<double>(TotalBytes(prediction.memory_per_rank)),
                                 static_cast<double>(detail.memory_limit_bytes)) +
                         " of " + HumanBytes(detail.memory_limit_bytes)},
      {"all steps", std::to_string(e.steps) + " in " + HumanDuration(detail.finish_seconds) +
                        ", without validation and checkpoints"},
      {"the whole run", RunTimeText(e.run)},
      {e.device + "s", std::to_string(detail.devices) + " of " + std::to_string(e.devices) +
                           " in use; " + std::to_string(e.fewest_devices) +
                           (e.fewest_devices == 1 ? " is" : " are") + " the fewest that fit"}};
  if (detail.price > 0) {
    rows.push_back({"price", Money(detail.price, e.currency) + ", " +
                                 Money(detail.price_per_hour, e.currency) + " an hour"});
  }
  if (detail.watts > 0) {
    rows.push_back({"energy", FormatNumber("%.3g kWh", detail.kilowatt_hours) + ", " +
                                  FormatNumber("%.0f W", detail.watts)});
  }
  if (detail.steps_between_saves > 0) {
    const auto steps = static_cast<double>(detail.steps_between_saves);
    rows.push_back({"checkpoints", "every " + std::to_string(detail.steps_between_saves) +
                                       " steps (" + HumanDuration(steps * prediction.step_seconds) +
                                       "), by " + HumanDuration(detail.save_stall_seconds) +
                                       " a save and a failure in " +
                                       HumanDuration(detail.between_failures_seconds) +
                                       "; the run goes by what it measures"});
  }
  std::string gains;
  for (const Sensitivity& each : e.sensitivity) {
    gains += (gains.empty() ? "" : ", ") + each.what + FormatNumber(" %.1f %%", 100 * each.gain);
  }
  if (!gains.empty()) rows.push_back({"10 % more of", gains});
  std::string lines;
  for (const std::string& line : e.lines) lines += (lines.empty() ? "" : "; ") + line;
  if (!lines.empty()) rows.push_back({"as lines", lines});
  for (const std::string& note : e.notes) rows.push_back({"note", note});
  return AlignedRows(rows, {false, false});
}

std::string AlternativesTable(const PlanExplanation& e) {
  Rows rows = {{"", "way", "lines of the job", "memory/rank", "step", "why not"}};
  for (const Alternative& way : e.alternatives) {
    rows.push_back({way.fits ? "" : "x", way.name, way.lines,
                    Known(static_cast<double>(way.memory_bytes), HumanBytes(way.memory_bytes)),
                    Known(way.step_seconds, HumanSeconds(way.step_seconds)), way.reason});
  }
  return "Other ways (each by itself added to the job; x does not go)\n" +
         AlignedRows(rows, {false, false, false, true, true, false});
}

}  // namespace

std::string FormatFrontier(const PlanExplanation& e) {
  Rows rows = {{"", "machines", e.device + "s", "in use", "ranks", "of them", "tokens/s",
                "all steps", "price", "energy", ""}};
  for (const FrontierPoint& point : e.frontier) {
    const bool fits = point.reason.empty();
    rows.push_back(
        {!fits               ? "x"
         : point.on_frontier ? "*"
                             : "",
         point.machines, std::to_string(point.devices),
         Known(static_cast<double>(point.devices_used), std::to_string(point.devices_used)),
         Known(static_cast<double>(point.ranks), std::to_string(point.ranks)), point.mesh,
         Known(point.tokens_per_second, HumanCount(point.tokens_per_second)),
         Known(point.finish_seconds, HumanDuration(point.finish_seconds)),
         Known(point.price, Money(point.price, e.currency)),
         Known(point.kilowatt_hours, FormatNumber("%.3g kWh", point.kilowatt_hours)),
         fits ? (point.cheapest ? "cheapest" : "") : point.reason});
  }
  return "By number of " + e.device + "s (* none is faster with as few, x does not fit)\n" +
         AlignedRows(rows, {false, false, true, true, true, false, true, true, true, true, false});
}

std::string FormatExplanation(const PlanExplanation& e) {
  std::string text = FormatPlanReport(e.report) + "\n" + Summary(e);
  if (!e.alternatives.empty()) text += "\n" + AlternativesTable(e);
  if (!e.frontier.empty()) text += "\n" + FormatFrontier(e);
  return text;
}

}  // namespace weft::planner
