#include <map>
#include <string>
#include <vector>

#include "common/text.h"
#include "coordinator/planner/calibration/calibration_report.h"
#include "coordinator/planner/plan_text.h"
#include "coordinator/planner/units.h"

namespace weft::planner {
namespace {

using Rows = std::vector<std::vector<std::string>>;

std::string Plain(double ratio) {
  return FormatNumber("%.1f %%", 100 * ratio);
}

std::string Signed(double ratio) {
  return FormatNumber("%+.1f %%", 100 * ratio);
}

std::string Value(const FittedConstant& constant, double value) {
  return constant.unit == "seconds" ? HumanSeconds(value) : FormatNumber("%.3g", value);
}

std::string Errors(const MachineReport& machine) {
  Rows rows = {{"step times", "median error", "mean", "9 of 10 below", "bias"}};
  const auto add = [&](const char* name, const ErrorSummary& summary) {
    rows.push_back({name, Plain(summary.median), Plain(summary.mean), Plain(summary.percentile_90),
                    Signed(summary.bias)});
  };
  add("defaults", machine.defaults);
  add("in use before", machine.before);
  add("after, these runs", machine.after);
  add("after, runs not seen", machine.held_out);
  add("and by runs near", machine.near);
  return AlignedRows(rows, {false, true, true, true, true});
}

std::string Constants(const MachineReport& machine) {
  Rows rows = {{"constant", "before", "after", "range"}};
  for (const FittedConstant& each : machine.constants) {
    rows.push_back({each.name, Value(each, each.before), Value(each, each.after),
                    Value(each, each.least) + " to " + Value(each, each.most)});
  }
  return AlignedRows(rows, {false, true, true, false});
}

std::string Runs(const MachineReport& machine) {
  Rows rows = {{"run", "measured", "before", "error", "after", "error", "not seen", "error", ""}};
  for (const RunError& run : machine.runs) {
    const auto error = [&](double seconds) { return Signed(seconds / run.measured_seconds - 1); };
    rows.push_back({run.run, HumanSeconds(run.measured_seconds), HumanSeconds(run.before_seconds),
                    error(run.before_seconds), HumanSeconds(run.after_seconds),
                    error(run.after_seconds), HumanSeconds(run.held_out_seconds),
                    error(run.held_out_seconds), run.what});
  }
  return AlignedRows(rows, {false, true, true, true, true, true, true, true, false});
}

}  // namespace

std::string FormatCalibration(const CalibrationReport& report) {
  if (report.reset) return "plans are made with the defaults again\n";
  std::string text;
  for (const MachineReport& machine : report.machines) {
    text += machine.machine + ": " + std::to_string(machine.runs.size()) +
            (machine.runs.size() == 1 ? " run" : " runs") + "\n" + machine.verdict + "\n\n" +
            Errors(machine) + "\n" + Constants(machine) + "\n" + Runs(machine) + "\n";
  }
  if (report.machines.empty()) {
    text +=
        "no run to learn from; a run counts when a job has ended on processors after at least "
        "five timed steps\n";
  }
  if (!report.left_out.empty()) {
    std::map<std::string, std::vector<std::string>> whys;
    for (const LeftOut& each : report.left_out) whys[each.why].push_back(each.run);
    for (const auto& [why, runs] : whys) {
      text += "left out " + runs.front() +
              (runs.size() > 1 ? " and " + std::to_string(runs.size() - 1) + " more" : "") + ": " +
              why + "\n";
    }
  }
  if (report.dry_run) text += "nothing was changed (--dry-run)\n";
  return text;
}

}  // namespace weft::planner
