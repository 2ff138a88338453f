#include <iostream>
#include <map>
#include <memory>
#include <stop_token>
#include <string>
#include <utility>

#include "cli/budget.h"
#include "cli/calibrate.h"
#include "cli/cluster_file.h"
#include "cli/command.h"
#include "cli/job_file.h"
#include "cli/terminal_text.h"
#include "common/env.h"
#include "common/spec/phases.h"
#include "common/spec/spec_json.h"
#include "common/yaml.h"
#include "coordinator/planner/report/explain.h"
#include "coordinator/planner/report/measure.h"
#include "coordinator/planner/report/phase_plans.h"
#include "coordinator/planner/report/propose_phases.h"
#include "proto/convert.h"

namespace weft::cli {
namespace {

struct PlanOptions {
  std::string file;
  std::string cluster;
  std::string costs;
  std::string jobs;  ///< Folder for what is to be measured.
  bool propose_phases = false;
  PlanQuery query;
};

/// Finds a report by `find` on the machines that --cluster names, which needs no coordinator at
/// all, or asks for that of the attached workers.
template <class Report, class Find>
Result<Report> Ask(const Session& session, const PlanOptions& options, const JobSpec& job,
                   const Find& find) {
  PlanQuery query = options.query;
  ClusterFile given;
  if (!options.cluster.empty()) {
    WEFT_ASSIGN_OR_RETURN(given, LoadClusterFile(options.cluster));
    query.costs = std::move(given.costs);
  }
  if (!options.costs.empty()) {
    WEFT_ASSIGN_OR_RETURN(query.costs, LoadCostsFile(options.costs));
  }
  if (!options.cluster.empty()) return find(job, given.cluster, query, std::stop_token());
  v1::ExplainPlanRequest request;
  *request.mutable_spec() = ToProto<v1::JobSpec>(job);
  *request.mutable_query() = ToProto<v1::PlanQuery>(query);
  WEFT_ASSIGN_OR_RETURN(v1::ExplainPlanResponse response, session.Connect().ExplainPlan(request));
  WEFT_ASSIGN_OR_RETURN(Json report, ParseJson(response.report_json()));
  return FromJson<Report>(report);
}

/// Whether the output is one for programs, which then is printed.
template <class Report>
bool PrintForPrograms(const Session& session, const Report& report) {
  if (session.output == OutputFormat::kJson) {
    std::cout << ToJson(report).dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
  } else if (session.output == OutputFormat::kYaml) {
    std::cout << ToYaml(ToJson(report));
  } else {
    return false;
  }
  return true;
}

ExitCode ShowPhases(const Session& session, const PlanOptions& options, const JobSpec& job) {
  if (session.output == OutputFormat::kHtml) {
    return Fail(session,
                InvalidError("the plans of all phases have no HTML form; hint: --phase 1"));
  }
  const auto plans = Ask<planner::PhasePlans>(session, options, job, planner::PlanPhases);
  if (!plans.ok()) return Fail(session, plans.status());
  if (!PrintForPrograms(session, *plans)) {
    std::cout << ForTerminal(planner::FormatPhasePlans(*plans));
  }
  return ExitCode::kOk;
}

Status WriteJobs(const std::string& folder, const planner::MeasureAdvice& advice) {
  WEFT_RETURN_IF_ERROR(Env::Posix().CreateDirs(folder));
  for (const planner::RunToMeasure& run : advice.runs) {
    WEFT_RETURN_IF_ERROR(WriteFileAtomic(Env::Posix(), JoinPath(folder, run.spec.name + ".yaml"),
                                         ToYaml(ToJson(run.spec))));
  }
  return OkStatus();
}

/// With --finish-within the phases take that time; it is of all of them, so no plan is asked for
/// it.
ExitCode ProposePhases(const Session& session, PlanOptions options, const JobSpec& job) {
  if (session.output == OutputFormat::kHtml) {
    return Fail(session, InvalidError("--propose-phases has no HTML form"));
  }
  const double budget = std::exchange(options.query.finish_within_seconds, 0);
  const auto proposal = planner::ProposePhases(job, budget, [&](const JobSpec& phased) {
    return Ask<planner::PhasePlans>(session, options, phased, planner::PlanPhases);
  });
  if (!proposal.ok()) return Fail(session, proposal.status());
  if (!PrintForPrograms(session, *proposal)) {
    std::cout << ForTerminal(planner::FormatProposal(*proposal));
  }
  return ExitCode::kOk;
}

ExitCode ShowPlan(const Session& session, const PlanOptions& options) {
  if (options.query.measure > 0 && session.output == OutputFormat::kHtml) {
    return Fail(session, InvalidError("--measure has no HTML form"));
  }
  const Result<JobSpec> job = LoadJobFile(options.file);
  if (!job.ok()) return Fail(session, job.status());
  if (options.propose_phases) return ProposePhases(session, options, *job);
  if (options.query.phase == 0 && !CheckOnePhase(*job).ok())
    return ShowPhases(session, options, *job);
  const auto explanation =
      Ask<planner::PlanExplanation>(session, options, *job, planner::ExplainPlan);
  if (!explanation.ok()) return Fail(session, explanation.status());
  if (!options.jobs.empty()) {
    const Status written = WriteJobs(options.jobs, explanation->measure);
    if (!written.ok()) return Fail(session, written);
  }
  if (PrintForPrograms(session, *explanation)) return ExitCode::kOk;
  if (session.output == OutputFormat::kHtml) {
    std::cout << planner::HtmlReport(*explanation);
  } else {
    std::cout << ForTerminal(options.query.measure > 0 ? planner::FormatMeasure(*explanation)
                             : options.query.frontier  ? planner::FormatFrontier(*explanation)
                                                       : planner::FormatExplanation(*explanation));
  }
  return ExitCode::kOk;
}

/// Options that say which of the plans is wanted.
void AddQueryOptions(CLI::App& command, PlanOptions& options) {
  PlanQuery& query = options.query;
  command.add_option("--cluster", options.cluster,
                     "Plan for the machines in this file (ClusterProfile, and costs) instead of "
                     "the attached workers");
  command.add_flag("--any-mesh", query.any_mesh,
                   "Choose tensor, pipeline, context and expert parallelism, ZeRO stage and "
                   "sequence parallelism too, where the job leaves them at their defaults");
  CLI::Option* phase =
      command
          .add_option("--phase", query.phase,
                      "Of a job with phases the one to plan, from 1 (default: all in one table)")
          ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  command
      .add_flag("--propose-phases", options.propose_phases,
                "Instead: phases of a V-cycle with the steps that saved most in Weft's own "
                "trainings, or with those that --finish-within leaves time for, and what each is "
                "predicted to take")
      ->excludes(phase);
  command.add_option("--top", query.top, "Candidates to show")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command.add_flag("--frontier", query.frontier,
                   "The best plan for each number of GPUs, or of machines without: throughput, "
                   "time, price");
  CLI::Option* measure =
      command
          .add_option("--measure", query.measure,
                      "The plans whose steps, if they are measured, tell most of all others")
          ->check(CLI::Range(1, 100));
  command.add_option("--jobs", options.jobs, "Write these as short jobs into this folder")
      ->needs(measure);
  command
      .add_option("--most-devices", query.most_devices,
                  "Use at most this many GPUs, or machines where there are none")
      ->check(CLI::Range(1, 1 << 20));
  command
      .add_option("--finish-within", query.finish_within_seconds,
                  "All steps within 90m, 12h or 3d; else say by how much not")
      ->transform(CLI::AsNumberWithUnit(
          std::map<std::string, double>{{"s", 1}, {"m", 60}, {"h", 3600}, {"d", 86400}},
          CLI::AsNumberWithUnit::CASE_SENSITIVE))
      ->check(CLI::PositiveNumber);
  command.add_option("--goal", query.goal, "fastest, or cheapest by the price of the whole run")
      ->check(CLI::IsMember({"fastest", "cheapest"}))
      ->capture_default_str();
  command.add_option("--costs", options.costs,
                     "Prices and powers of the machines (the costs of a cluster file)");
}

}  // namespace

void AddPlanCommand(CLI::App& app, Session& session) {
  auto options = std::make_shared<PlanOptions>();
  auto spending = std::make_shared<BudgetOptions>();
  auto calibrating = std::make_shared<CalibrateOptions>();
  CLI::App* command =
      AddCommand(app, session, "plan", "Show how a job would run, and why so",
                 [&session, options, spending, calibrating] {
                   if (calibrating->asked) return Calibrate(session, *calibrating);
                   spending->file = options->file;
                   spending->cluster = options->cluster;
                   if (spending->budget.empty()) return ShowPlan(session, *options);
                   if (session.output == OutputFormat::kHtml) {
                     return Fail(session, InvalidError("--budget has no HTML form"));
                   }
                   return ShowBudget(session, *spending);
                 });
  CLI::Option_group* what = command->add_option_group("what");
  CLI::Option* file = what->add_option("file", options->file, "Job file, YAML or JSON");
  CLI::Option* budget =
      what->add_option("--budget", spending->budget,
                       "Instead: the best model and number of tokens for 1e20 FLOPs, or for "
                       "100gpu-hours; the job file says family, vocabulary, context and batch");
  CLI::Option* calibrate =
      what->add_flag("--calibrate", calibrating->asked,
                     "Instead: fit what the planner assumes of machines to the runs that ended on "
                     "them, for the plans to come, and report the errors before and after")
          ->excludes(budget)
          ->excludes(file);
  what->require_option(1, 2);
  command
      ->add_flag("--dry-run", calibrating->dry_run, "Report what --calibrate would do, and do not")
      ->needs(calibrate);
  command->add_flag("--reset", calibrating->reset, "Forget what --calibrate has fitted")
      ->needs(calibrate);
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
  AddQueryOptions(*command, *options);
}

}  // namespace weft::cli
