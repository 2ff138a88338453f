#include <iostream>
#include <memory>

#include "cli/budget.h"
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
  bool any_mesh = false;
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
    return options.any_mesh ? planner::PlanAnyMesh(job, cluster) : planner::PlanJob(job, cluster);
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
  auto spending = std::make_shared<BudgetOptions>();
  CLI::App* command = AddCommand(app, session, "plan", "Show how a job would run, and why so",
                                 [&session, options, spending] {
                                   spending->file = options->file;
                                   spending->cluster = options->cluster;
                                   return spending->budget.empty() ? ShowPlan(session, *options)
                                                                   : ShowBudget(session, *spending);
                                 });
  CLI::Option_group* what = command->add_option_group("what");
  what->add_option("file", options->file, "Job file, YAML or JSON");
  CLI::Option* budget =
      what->add_option("--budget", spending->budget,
                       "Instead: the best model and number of tokens for 1e20 FLOPs, or for "
                       "100gpu-hours; the job file says family, vocabulary, context and batch");
  what->require_option(1, 2);
  command
      ->add_option("--device-flops", spending->device_flops,
                   "Peak FLOP/s of a device (default: the fastest product a worker measured)")
      ->check(CLI::PositiveNumber)
      ->needs(budget);
  command
      ->add_option("--utilization", spending->utilization,
                   "Share of the peak that training reaches")
      ->check(CLI::Range(0.001, 1.0))
      ->capture_default_str()
      ->needs(budget);
  CLI::Option* cluster =
      command->add_option("--cluster", options->cluster,
                          "Plan for the machines in this file (ClusterProfile) instead of the "
                          "attached workers");
  command
      ->add_flag("--any-mesh", options->any_mesh,
                 "Choose tensor, pipeline, context and expert parallelism, ZeRO stage and "
                 "sequence parallelism too, where the job leaves them at their defaults")
      ->needs(cluster);
  command->add_option("--top", options->top, "Candidates to show")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
}

}  // namespace weft::cli
