#include "cli/calibrate.h"

#include <algorithm>
#include <iostream>

#include "cli/terminal_text.h"
#include "common/spec/spec_json.h"
#include "common/yaml.h"
#include "coordinator/planner/calibration/calibration_report.h"

namespace weft::cli {
namespace {

/// Fits to many runs take longer than other calls.
constexpr double kLeastTimeout = 300;

Result<planner::CalibrationReport> Report(const Session& session, const CalibrateOptions& options) {
  Session patient = session;
  patient.timeout_seconds = std::max(session.timeout_seconds, kLeastTimeout);
  v1::CalibratePlansRequest request;
  request.set_dry_run(options.dry_run);
  request.set_reset(options.reset);
  WEFT_ASSIGN_OR_RETURN(v1::CalibratePlansResponse response,
                        patient.Connect().CalibratePlans(request));
  WEFT_ASSIGN_OR_RETURN(Json report, ParseJson(response.report_json()));
  return FromJson<planner::CalibrationReport>(report);
}

}  // namespace

ExitCode Calibrate(const Session& session, const CalibrateOptions& options) {
  if (session.output == OutputFormat::kHtml) {
    return Fail(session, InvalidError("--calibrate has no HTML form"));
  }
  const auto report = Report(session, options);
  if (!report.ok()) return Fail(session, report.status());
  if (session.output == OutputFormat::kJson) {
    std::cout << ToJson(*report).dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
  } else if (session.output == OutputFormat::kYaml) {
    std::cout << ToYaml(ToJson(*report));
  } else {
    std::cout << ForTerminal(planner::FormatCalibration(*report));
  }
  return ExitCode::kOk;
}

}  // namespace weft::cli
