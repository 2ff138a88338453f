#include <iostream>
#include <memory>

#include "cli/command.h"
#include "cli/job_file.h"
#include "common/env.h"
#include "common/spec/cluster_spec.h"
#include "common/yaml.h"
#include "coordinator/planner/planner.h"
#include "proto/convert.h"

namespace weft::cli {
namespace {

struct PlanOptions {
  std::string file;
  std::string cluster;
  int top = 10;
};

Result<ClusterProfile> LoadCluster(const std::string& path) {
  WEFT_ASSIGN_OR_RETURN(std::string text, ReadFile(Env::Posix(), path, 4 << 20));
  WEFT_ASSIGN_OR_RETURN(Document document, ParseYaml(text, path));
  return FromJson<ClusterProfile>(document);
}

/// With --cluster this needs no coordinator at all; otherwise the attached workers count.
Result<PlanReport> MakePlan(const Session& session, const PlanOptions& options) {
  WEFT_ASSIGN_OR_RETURN(JobSpec job, LoadJobFile(options.file));
  if (!options.cluster.empty()) {
    WEFT_ASSIGN_OR_RETURN(ClusterProfile cluster, LoadCluster(options.cluster));
    return planner::PlanJob(job, cluster);
  }
  v1::PlanJobRequest request;
  *request.mutable_spec() = ToProto<v1::JobSpec>(job);
  request.set_top(options.top);
  WEFT_ASSIGN_OR_RETURN(v1::PlanReport report, session.Connect().PlanJob(request));
  return FromProto<PlanReport>(report);
}

ExitCode ShowPlan(const Session& session, const PlanOptions& options) {
  auto report = MakePlan(session, options);
  if (!report.ok()) return Fail(session, report.status());
  if (static_cast<int>(report->candidates.size()) > options.top) {
    report->candidates.resize(options.top);
  }
  switch (session.output) {
    case OutputFormat::kJson:
      std::cout << ToJson(*report).dump(2) << '\n';
      break;
    case OutputFormat::kYaml:
      std::cout << ToYaml(ToJson(*report));
      break;
    default:
      std::cout << planner::FormatPlanReport(*report);
      break;
  }
  return ExitCode::kOk;
}

}  // namespace

void AddPlanCommand(CLI::App& app, Session& session) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* command = AddCommand(app, session, "plan", "Show how a job would run, and why so",
                                 [&session, options] { return ShowPlan(session, *options); });
  command->add_option("file", options->file, "Job file, YAML or JSON")->required();
  command->add_option("--cluster", options->cluster,
                      "Plan for the machines in this file (ClusterProfile) instead of the "
                      "attached workers");
  command->add_option("--top", options->top, "Candidates to show")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
}

}  // namespace weft::cli
