#include "cli/budget.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <vector>

#include "cli/cluster_file.h"
#include "cli/job_file.h"
#include "common/model/chinchilla.h"
#include "common/spec/cluster_spec.h"
#include "common/spec/model_family.h"
#include "common/yaml.h"
#include "proto/convert.h"

namespace weft::cli {
namespace {

/// What is spent on what.
struct Assumptions {
  JobSpec job;
  double flops = 0;
  double device_flops = 0;  ///< Peak; 0 when the budget is in FLOPs and no one asked.
  double utilization = 0;
};

/// A law's optimum and the model that comes near it, which spends the same budget.
struct Proposal {
  ScalingLaw law;
  ComputeOptimum optimum;
  SizedModel model;
  double tokens = 0;
  double loss = 0;
  int64_t steps = 0;
};

Result<JobSpec> JobOf(const BudgetOptions& options) {
  if (!options.file.empty()) return LoadJobFile(options.file);
  JobSpec job;  // the sizes of GPT-2, where nobody says others
  job.model.vocab_size = 50304;
  job.model.context = 1024;
  return job;
}

Result<ClusterProfile> Workers(const Session& session, const std::string& file) {
  if (!file.empty()) {
    WEFT_ASSIGN_OR_RETURN(ClusterFile given, LoadClusterFile(file));
    return std::move(given.cluster);
  }
  ClusterProfile cluster;
  WEFT_ASSIGN_OR_RETURN(std::vector<v1::Worker> workers, session.Connect().ListWorkers());
  for (const v1::Worker& worker : workers) {
    WEFT_ASSIGN_OR_RETURN(WorkerProfile profile, FromProto<WorkerProfile>(worker.profile()));
    cluster.workers.push_back(std::move(profile));
  }
  return cluster;
}

/// The fastest product that a worker measured in the job's precision.
Result<double> MeasuredPeak(const Session& session, const BudgetOptions& options,
                            const JobSpec& job) {
  Result<ClusterProfile> cluster = Workers(session, options.cluster);
  double peak = 0;
  if (cluster.ok()) {
    for (const WorkerProfile& worker : cluster->workers) {
      std::vector<GemmRate> rates = worker.gemm;
      for (const DeviceSpec& device : worker.devices) {
        rates.insert(rates.end(), device.gemm.begin(), device.gemm.end());
      }
      for (const GemmRate& rate : rates) {
        const bool fits = job.train.precision == "auto" ||
                          (rate.precision == "fp32") == (job.train.precision == "fp32");
        if (fits) peak = std::max(peak, rate.flops_per_second);
      }
    }
  }
  if (peak > 0) return peak;
  return InvalidError(
      "a budget in device hours needs the device's peak FLOP/s, and no worker that could be asked "
      "has measured any; hint: --device-flops 989e12, or --cluster FILE");
}

Result<Assumptions> Resolve(const Session& session, const BudgetOptions& options) {
  WEFT_ASSIGN_OR_RETURN(ComputeBudget budget, ParseBudget(options.budget));
  Assumptions a;
  WEFT_ASSIGN_OR_RETURN(a.job, JobOf(options));
  if (HeadOf(a.job.model) != "causal_lm") {
    return InvalidError(
        "the laws of compute budgets are those of causal language models, not of "
        "model.head " +
        HeadOf(a.job.model));
  }
  a.flops = budget.flops;
  if (budget.device_hours == 0) return a;
  a.utilization = options.utilization;
  a.device_flops = options.device_flops;
  if (a.device_flops == 0) {
    WEFT_ASSIGN_OR_RETURN(a.device_flops, MeasuredPeak(session, options, a.job));
  }
  a.flops = budget.device_hours * 3600.0 * a.device_flops * a.utilization;
  return a;
}

Proposal Propose(const ScalingLaw& law, const Assumptions& a) {
  Proposal p;
  p.law = law;
  p.optimum = OptimumOf(law, a.flops);
  p.model = ModelOfSize(a.job, p.optimum.parameters);
  p.tokens = a.flops / p.model.flops_per_token;
  p.loss = law.Loss(static_cast<double>(p.model.parameters), p.tokens);
  const double step = static_cast<double>(a.job.train.global_batch * SequenceLength(a.job));
  p.steps = static_cast<int64_t>(std::max(1.0, std::round(p.tokens / step)));
  return p;
}

std::string Scientific(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

Json ToJson(const Assumptions& a, const std::vector<Proposal>& proposals) {
  Json json = {{"flops", a.flops},
               {"family", a.job.model.family},
               {"global_batch", a.job.train.global_batch},
               {"sequence_length", SequenceLength(a.job)},
               {"proposals", Json::array()}};
  if (a.device_flops > 0) {
    json["device_flops_per_second"] = a.device_flops;
    json["utilization"] = a.utilization;
  }
  for (const Proposal& p : proposals) {
    json["proposals"].push_back({{"law", p.law.name},
                                 {"parameters", p.optimum.parameters},
                                 {"tokens", p.optimum.tokens},
                                 {"loss_nats", p.optimum.loss},
                                 {"model",
                                  {{"layers", p.model.layers},
                                   {"width", p.model.width},
                                   {"heads", p.model.heads},
                                   {"parameters", p.model.parameters},
                                   {"tokens", p.tokens},
                                   {"steps", p.steps},
                                   {"loss_nats", p.loss}}}});
  }
  return json;
}

void PrintTable(const Assumptions& a, const std::vector<Proposal>& proposals) {
  std::cout << Scientific(a.flops) << " FLOPs";
  if (a.device_flops > 0) {
    std::cout << ", at " << Scientific(a.device_flops) << " FLOP/s a device and "
              << std::lround(100 * a.utilization) << " % of it used";
  }
  std::cout << "; " << a.job.model.family << ", " << a.job.train.global_batch << " sequences of "
            << SequenceLength(a.job) << " tokens a step\n\n";
  Table table(
      {"LAW", "BEST SIZE", "TOKENS", "LOSS", "MODEL", "PARAMETERS", "TOKENS", "STEPS", "LOSS"});
  for (const Proposal& p : proposals) {
    table.Add({std::string(p.law.name), HumanCount(p.optimum.parameters),
               HumanCount(p.optimum.tokens), FixedText(p.optimum.loss, 3),
               std::to_string(p.model.layers) + " x " + std::to_string(p.model.width) + ", " +
                   std::to_string(p.model.heads) + " heads",
               HumanCount(static_cast<double>(p.model.parameters)), HumanCount(p.tokens),
               std::to_string(p.steps), FixedText(p.loss, 3)});
  }
  table.Print(std::cout);
}

}  // namespace

ExitCode ShowBudget(const Session& session, const BudgetOptions& options) {
  Result<Assumptions> assumptions = Resolve(session, options);
  if (!assumptions.ok()) return Fail(session, assumptions.status());
  std::vector<Proposal> proposals;
  for (const ScalingLaw& law : {kHoffmann, kEpoch}) {
    proposals.push_back(Propose(law, *assumptions));
  }
  switch (session.output) {
    case OutputFormat::kJson:
      std::cout << ToJson(*assumptions, proposals).dump(2) << '\n';
      break;
    case OutputFormat::kYaml:
      std::cout << ToYaml(ToJson(*assumptions, proposals));
      break;
    default:
      PrintTable(*assumptions, proposals);
      break;
  }
  return ExitCode::kOk;
}

}  // namespace weft::cli
