#include "coordinator/planner/planner.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/model/added_network_cost.h"
#include "common/model/device_order.h"
#include "common/model/frozen_savings.h"
#include "common/model/memory_text.h"
#include "common/model/model_counts.h"
#include "common/model/parameter_list.h"
#include "common/model/pipeline_shape.h"
#include "common/model/precision.h"
#include "common/model/step_extent.h"
#include "common/model/technique_cost.h"
#include "common/model/tensor_traffic.h"
#include "common/spec/phases.h"
#include "common/spec/spec_json.h"
#include "coordinator/planner/measured_range.h"
#include "coordinator/planner/meshes.h"
#include "coordinator/planner/pass_cost.h"
#include "coordinator/planner/plan_text.h"
#include "coordinator/planner/processor_rates.h"
#include "coordinator/planner/rank_share.h"
#include "coordinator/planner/search.h"
#include "coordinator/planner/step_rates.h"
#include "coordinator/planner/units.h"
#include "coordinator/planner/why_slower.h"

namespace weft::planner {
namespace {

constexpr size_t kFittingShown = 20;
constexpr size_t kInfeasibleShown = 10;

/// What a rank of the job's grid sends, and what one of the grid that sends least would.
std::string GridText(const JobSpec& job, const CostedPlan& costed) {
  const ModelShape shape = ShapeOfRank(job);
  const std::vector<TensorParallel2d> grids = RankTensorParallel2d(
      {.shape = shape,
       .tokens = costed.micro_batch * SequenceLength(job),
       .element_bytes = ElementBytes(PrecisionOf(job.train.precision).activations),
       .recomputed_blocks = costed.recomputed_blocks,
       .recomputed_attentions = costed.attention_blocks});
  const auto own = std::find_if(grids.begin(), grids.end(), [&](const TensorParallel2d& grid) {
    return grid.rows == job.resources.tensor_rows;
  });
  if (own == grids.end()) return "";
  const auto name = [&](const TensorParallel2d& grid) {
    return std::to_string(grid.rows) + " x " + std::to_string(costed.tensor / grid.rows);
  };
  const std::string text = "; a rank of the grid of " + name(*own) + " sends " +
                           HumanBytes(own->sent) + " a micro-batch, ";
  if (own == grids.begin()) return text + "the least of all grids";
  return text + "of " + name(grids.front()) + " it would send " + HumanBytes(grids.front().sent);
}

std::string WhyChosen(const CostedPlan& costed, const SearchResult& result,
                      const SearchResults& counts) {
  const JobSpec& job = result.job;
  std::string text = "shortest predicted step of " + std::to_string(counts.fit) + " plans that fit";
  if (counts.too_slow > 0) {
    text += ", besides " + std::to_string(counts.too_slow) + " that are slower than " +
            std::to_string(kSorted) + " of these";
  }
  if (counts.without_room > 0) {
    text += "; " + std::to_string(counts.without_room) +
            " have no room for what they keep from step to step";
  }
  if (costed.recomputed_blocks > 0) {
    text += "; recomputes " + std::to_string(costed.recomputed_blocks) + " blocks to fit in memory";
  }
  if (costed.attention_blocks > 0) {
    text += "; recomputes the attention of " + std::to_string(costed.attention_blocks) + " blocks";
  }
  if (Transfers(costed.schedule)) {
    text +=
        "; what " + std::to_string(SentBlocks(costed.schedule)) + " blocks keep waits on the host";
  }
  if (costed.context > 1) {
    text += "; " + std::to_string(costed.context) + " context-parallel ranks";
  }
  if (costed.experts > 1) {
    text += "; " + std::to_string(costed.experts) + " expert-parallel ranks";
  }
  if (job.resources.tensor_rows > 1) text += GridText(job, costed);
  if (costed.pipeline > 1 && costed.cut != CutModel(job).value()) {
    text += "; stages of ";
    for (size_t stage = 0; stage < costed.cut.size(); ++stage) {
      text += (stage > 0 ? ", " : "") + std::to_string(costed.cut[stage]);
    }
    text += " blocks, by what their machines do";
  }
  if (!result.times_from.empty()) text += "; times by " + result.times_from;
  std::string outside;
  for (const Extrapolation& each : OutsideMeasured(job, result, costed)) {
    outside += (outside.empty() ? "" : ", ") + each.text;
  }
  if (!outside.empty()) text += "; beyond what was measured: " + outside;
  return text;
}

/// What was chosen of what the job leaves open.
std::string WhatWasOpen(const JobSpec& asked, const Plan& plan, const SearchResult& result) {
  std::string text;
  if (asked.train.precision != plan.precision) text += "; in " + plan.precision;
  const bool open = asked.resources.offload_optimizer != plan.offload_optimizer ||
                    asked.resources.offload_parameters != plan.offload_parameters ||
                    asked.resources.offload_activations != plan.offload_activations;
  if (!open) return text;
  const std::string outside = OutsideText(plan);
  text += outside.empty() ? "; all on the device" : "; outside the device: " + outside;
  if (plan.offload_optimizer != "nvme" && plan.offload_parameters != "nvme") return text;
  const double measured = result.workers->workers().front()->disk_write_bytes_per_second;
  return text + "; its file is read and written " +
         (measured > 0 ? "as fast as the worker's disk was measured to write"
                       : "at a rate that is assumed, as no disk was measured");
}

/// That of the mean step, where the largest one takes `largest`: what is exchanged and updated is
/// as much in all of them.
TimeBreakdown TimeOf(const MeanStep& mean, TimeBreakdown largest) {
  largest.gemm_seconds *= mean.flops;
  largest.memory_bound_seconds *= mean.flops;
  largest.recompute_seconds *= mean.flops;
  return largest;
}

PlanCandidate MakeCandidate(const SearchResult& result, const CostedPlan& costed) {
  const JobSpec& job = result.job;
  const ModelShape shape = ShapeOf(job);
  PlanCandidate candidate;
  Plan& plan = candidate.plan;
  plan.mesh.data = costed.data_ranks() / costed.experts;
  plan.mesh.expert = costed.experts;
  plan.mesh.tensor = costed.tensor;
  plan.mesh.context = costed.context;
  plan.context_method = job.resources.context_method;
  plan.mesh.pipeline = costed.pipeline;
  if (costed.pipeline > 1) {
    plan.pipeline_schedule = job.resources.pipeline_schedule;
    plan.pipeline_chunks = job.resources.pipeline_chunks;
    plan.stage_blocks = costed.cut;
  }
  plan.sequence_parallel = job.resources.sequence_parallel;
  plan.tensor_rows = job.resources.tensor_rows;
  if (costed.gradient_ranks() > 1) {
    plan.zero_stage = job.resources.zero_stage;
    plan.zero_shard_ranks = job.resources.zero_shard_ranks;
  }
  plan.micro_batch = costed.micro_batch;
  plan.accumulation_steps = costed.accumulation_steps;
  plan.threads_per_rank = costed.threads;
  plan.bucket_bytes = BucketBytes(job, shape.spec);
  plan.precision = job.train.precision;
  plan.device = costed.on_devices ? "cuda" : "cpu";
  plan.offload_optimizer = job.resources.offload_optimizer;
  plan.offload_directory = job.resources.offload_directory;
  plan.offload_activations = job.resources.offload_activations;
  plan.offload_parameters = job.resources.offload_parameters;
  plan.device_updated_units = job.resources.device_updated_units;
  plan.resident_units = job.resources.resident_units;
  plan.delayed_update = job.resources.delayed_update;
  plan.device_memory_bytes = job.resources.device_memory_bytes;
  plan.host_link_bytes_per_second = job.resources.host_link_bytes_per_second;
  plan.recompute_segment = job.resources.recompute_segment;
  plan.activation_bits = job.resources.activation_bits;
  plan.gradient_reduction = job.resources.gradient_reduction;
  if (costed.schedule.empty()) {
    plan.block_memory_policy =
        BlockPolicies(shape.spec.layers, costed.recomputed_blocks, costed.attention_blocks);
  } else {
    plan.block_memory_policy = PoliciesOf(costed.schedule);
    plan.recompute_schedule = RematOperations(costed.schedule);
  }
  candidate.feasible = costed.infeasible_reason.empty();
  candidate.lacks_cores = costed.lacks_cores;
  candidate.reason = costed.infeasible_reason;
  plan.prediction.memory_per_rank = costed.memory;
  plan.prediction.stage_bytes = costed.stage_bytes;
  // What the rank has besides is on its worker.
  if (costed.HostBytes() > 0) plan.prediction.stage_bytes = {costed.PlacedBytes()};
  const MeanStep mean = MeanStepOf(job);
  const auto tokens = static_cast<double>(job.train.global_batch * SequenceLength(job));
  const int64_t replicas = RankCount(plan.mesh) / (plan.mesh.tensor * plan.mesh.pipeline);
  plan.prediction.model_flops_per_step =
      mean.flops * tokens *
          (TrainingFlopsPerToken(shape, SequenceLength(job)) +
           AddedNetworkFlopsPerToken(job.train, SequenceLength(job))) +
      static_cast<double>(replicas) *
          (StepWorkOf(shape, job.train).Flops() + MergeWorkOf(shape.spec).Flops());
  if (!candidate.feasible) return candidate;
  const std::vector<int64_t> ranks_on = PlaceRanks(costed, result.workers->workers());
  std::vector<int64_t> devices;
  int64_t devices_bytes = 0;
  for (size_t w = 0; w < result.workers->workers().size(); ++w) {
    const WorkerProfile& worker = *result.workers->workers()[w];
    const auto first = std::ssize(plan.rank_workers);
    int64_t bytes = 0;
    for (int64_t rank = first; rank < first + ranks_on[w]; ++rank) {
      bytes = std::max(bytes, BytesOfRank(plan, rank));
    }
    plan.rank_workers.insert(plan.rank_workers.end(), static_cast<size_t>(ranks_on[w]),
                             worker.worker_id);
    if (!costed.on_devices) continue;
    if (w == 0 || result.workers->kinds()[w] != result.workers->kinds()[w - 1] ||
        ranks_on[w] != ranks_on[w - 1] || bytes != devices_bytes) {
      devices = NearestDevices(worker.devices, ranks_on[w], bytes);
      devices_bytes = bytes;
    }
    plan.rank_devices.insert(plan.rank_devices.end(), devices.begin(), devices.end());
  }
  plan.prediction.time = TimeOf(mean, costed.time);
  plan.prediction.step_seconds = StepSeconds(plan.prediction.time);
  plan.prediction.tokens_per_second = mean.tokens * tokens / plan.prediction.step_seconds;
  return candidate;
}

/// `closest`: the plan that needs least; null where there is none. What hints ask for passes
/// `check`.
Status NothingFits(const JobSpec& job, const JobCheck& check, const CostedPlan* closest) {
  if (closest == nullptr && (job.resources.min_ranks > 0 || job.resources.max_ranks > 0)) {
    return ExhaustedError(
        "no number of ranks within resources.min_ranks and resources.max_ranks "
        "has the cores or GPUs that it needs and divides train.global_batch; "
        "hint: lower resources.min_ranks, or offer more workers");
  }
  if (closest == nullptr) {
    return ExhaustedError("no worker has the cores for a rank of " +
                          std::to_string(std::max<int64_t>(job.resources.threads_per_rank, 1)) +
                          " threads, or the micro-batch is past any memory; hint: lower "
                          "resources.threads_per_rank or resources.micro_batch");
  }
  const CostedPlan& least = *closest;
  std::string text = "no plan fits; the one that needs least (" + std::to_string(least.ranks) +
                     " ranks of " + std::to_string(least.threads) + " threads, micro-batch " +
                     std::to_string(least.micro_batch) + ", " +
                     std::to_string(least.recomputed_blocks) + " blocks recomputed) " +
                     least.infeasible_reason + "; hint: ";
  if (least.lacks_cores) {
    return ExhaustedError(text + "ask for fewer resources.ranks or resources.threads_per_rank");
  }
  text += "offer more memory per rank";
  if (job.resources.memory_per_rank_bytes > 0) text += " (resources.memory_per_rank_bytes)";
  if (least.learns_growth) {
    return ExhaustedError(text + ", or grow by another method (growth.method fpi or stack)");
  }
  if (job.resources.ranks != 1) text += ", or ask for fewer resources.ranks";
  // A device that a CPU stands for has a limit of its own; of GPUs those that may be asked for.
  const auto goes_with = [&](std::string ResourceSpec::*what) {
    JobSpec changed = job;
    changed.resources.*what = "host";
    return job.resources.*what == "none" &&
           (job.resources.device_memory_bytes > 0 || (least.on_devices && least.ranks == 1)) &&
           check(changed).ok();
  };
  if (goes_with(&ResourceSpec::offload_optimizer)) {
    text += ", or keep the optimizer off the device (resources.offload_optimizer host)";
  } else if (goes_with(&ResourceSpec::offload_parameters)) {
    text += ", or have weights come block by block (resources.offload_parameters host)";
  }
  if (goes_with(&ResourceSpec::offload_activations)) {
    text += ", or have activations wait on the host (resources.offload_activations host)";
  }
  for (const TechniqueCost* technique : TechniqueCosts()) {
    const std::optional<SmallerWeights> smaller = technique->WithSmallerWeights(job.model);
    if (!smaller) continue;
    JobSpec changed = job;
    changed.model = smaller->model;
    if (check(changed).ok()) text += ", or have " + smaller->what + " (" + smaller->setting + ")";
  }
  if (least.micro_batch > 1) text += ", or a smaller resources.micro_batch";
  if (job.resources.recompute == "none") {
    text += ", or allow resources.recompute";
  } else if (job.resources.recompute != "optimal") {
    text += ", or let blocks be recomputed more than once (resources.recompute optimal)";
  }
  JobSpec sharded = job;
  sharded.resources.zero_stage = 1;
  if (least.gradient_ranks() > 1 && job.resources.zero_stage == 0 && check(sharded).ok()) {
    text += ", or shard the optimizer's state (resources.zero_stage 1)";
  }
  return ExhaustedError(text + ", or make model.width or train.sequence_length smaller");
}

/// No GPU can take a rank: what speaks against those that are there.
Status NoDevices(const ClusterProfile& cluster) {
  std::string reasons;
  for (const WorkerProfile& worker : cluster.workers) {
    for (const DeviceSpec& device : worker.devices) {
      reasons += (reasons.empty() ? ": " : "; ") + std::string("GPU ") +
                 std::to_string(device.index) + " of " + worker.worker_id + ": " + device.unusable;
    }
  }
  return ExhaustedError("no worker offers a GPU" + reasons +
                        "; hint: see docs/operations.md, or ask for resources.device: cpu");
}

/// A fitting plan of one of several searches.
struct Found {
  const SearchResult* search;
  const CostedPlan* costed;
};

/// In order. What was asked for comes first among equals.
std::vector<Found> FastestOf(const SearchResults& results, size_t of_each) {
  std::vector<Found> fitting;
  for (const SearchResult& result : results.found) {
    for (size_t i = 0; i < std::min(result.fitting.size(), of_each); ++i) {
      fitting.push_back({&result, &result.fitting[i]});
    }
  }
  std::stable_sort(fitting.begin(), fitting.end(), [](const Found& a, const Found& b) {
    return StepSeconds(a.costed->time) < StepSeconds(b.costed->time);
  });
  return fitting;
}

/// What the prediction of a step owes to runs with blocks of nearly the same shape.
std::string NearRunsText(const SearchResult& result, const CostedPlan& costed) {
  const StepRates& rates = result.workers->rates(0);
  if (!rates.has_near_shapes()) return "";
  const NearShapes near = rates.Near(
      BlockOfPass(ShapeOfRank(result.job), costed.micro_batch, SequenceLength(result.job),
                  PrecisionOf(result.job.train.precision).products, costed.context));
  if (near.runs == 0) return "";
  char text[96];
  std::snprintf(text, sizeof(text), "; its products as %lld %s near measured them: x %.2f",
                static_cast<long long>(near.runs), near.runs == 1 ? "run" : "runs",
                std::exp(near.deviation));
  return text;
}

/// Plans among `jobs`, which are those of `asked` that pass `check`.
Result<PlanReport> PlanAmong(const JobSpec& asked, const JobSet& jobs, const JobCheck& check,
                             const ClusterProfile& cluster, int threads,
                             const std::stop_token& stop) {
  const SearchResults results = Search(jobs, cluster, threads, kSorted, stop);
  if (stop.stop_requested()) return AbortedError("planning was stopped");
  if (!results.has_workers) return NoDevices(WithoutUnfit(jobs.At(0), cluster));
  const std::vector<Found> fitting = FastestOf(results, kFittingShown);
  std::vector<Found> infeasible;
  PlanReport report;
  const ModelShape shape = ShapeOf(jobs.At(0));
  report.parameters = shape.counts.Total();
  report.trained_parameters = shape.trained;
  report.candidates_considered = results.considered;
  for (const SearchResult& result : results.found) {
    for (size_t i = 0; i < std::min(result.infeasible.size(), kInfeasibleShown); ++i) {
      infeasible.push_back({&result, &result.infeasible[i]});
    }
  }
  std::stable_sort(infeasible.begin(), infeasible.end(), [](const Found& a, const Found& b) {
    return TotalBytes(a.costed->memory) < TotalBytes(b.costed->memory);
  });
  if (fitting.empty()) {
    return NothingFits(asked, check, infeasible.empty() ? nullptr : infeasible.front().costed);
  }
  for (size_t i = 0; i < std::min(fitting.size(), kFittingShown); ++i) {
    const auto& [result, costed] = fitting[i];
    PlanCandidate candidate = MakeCandidate(*result, *costed);
    candidate.chosen = i == 0;
    candidate.reason =
        i == 0 ? WhyChosen(*costed, *result, results) + WhatWasOpen(asked, candidate.plan, *result)
               : WhySlower(costed->time, fitting.front().costed->time);
    candidate.reason += NearRunsText(*result, *costed);
    report.candidates.push_back(std::move(candidate));
  }
  const FrozenSavings savings =
      SavingsOfFrozen(fitting.front().search->job, report.candidates.front().plan);
  report.skipped_weight_gradient_flops = savings.weight_gradient_flops;
  report.unkept_activation_bytes = savings.activation_bytes;
  for (size_t i = 0; i < std::min(infeasible.size(), kInfeasibleShown); ++i) {
    const auto& [result, costed] = infeasible[i];
    report.candidates.push_back(MakeCandidate(*result, *costed));
  }
  return report;
}

Status CheckAsked(const JobSpec& job, const ClusterProfile& cluster) {
  WEFT_RETURN_IF_ERROR(CheckOnePhase(job));
  WEFT_RETURN_IF_ERROR(ValidateJob(job));
  if (cluster.workers.empty()) {
    return UnavailableError("there are no workers to plan for; hint: start weft-worker");
  }
  return CutModel(job).status();
}

/// The rates behind that, where the plan's first machine has measured them: ", at 200 against 300
/// measured GFLOP/s". Those of the forward pass through the first layer of an MLP.
std::string MeasuredRatesText(const JobSpec& job, const Plan& plan, const ClusterProfile& cluster) {
  const auto worker =
      std::find_if(cluster.workers.begin(), cluster.workers.end(), [&](const WorkerProfile& each) {
        return !plan.rank_workers.empty() && each.worker_id == plan.rank_workers.front();
      });
  if (worker == cluster.workers.end()) return "";
  TrainSpec train = job.train;
  train.precision = plan.precision;
  const TechniqueProducts products = TechniqueProductsOf(train, UnitsOf(plan, *worker));
  if (products.rate_name.empty()) return "";
  const auto rates =
      MakeStepRates(*worker, PrecisionOf(plan.precision).products, plan.device != "cpu");
  const int64_t m = plan.micro_batch * SequenceLength(job) / plan.mesh.context;
  const int64_t n = MlpWidth(job.model) / plan.mesh.tensor, k = job.model.width;
  const int64_t threads = plan.threads_per_rank;
  const double own =
      rates->TechniqueFlopsPerSecond(products.rate_name, GemmPass::kForward, m, n, k, threads);
  if (own <= 0) return "";
  char text[80];
  std::snprintf(text, sizeof(text), ", at %.0f against %.0f measured GFLOP/s",
                own / products.measured_share / 1e9,
                rates->GemmFlopsPerSecond(m, n, k, threads) / 1e9);
  return text;
}

/// Says of products that a technique made for speed what they bring: compares with the job without
/// them, planned by `plan`. kInvalid where they are slower, the job does not insist, and the
/// technique does not keep them.
template <class PlanFn>
Result<PlanReport> WithWorthOfProducts(const JobSpec& job, PlanReport report,
                                       const ClusterProfile& cluster, const PlanFn& plan) {
  for (const TechniqueCost* technique : TechniqueCosts()) {
    const std::optional<JobSpec> without = technique->WithoutProducts(job);
    if (!without) continue;
    const Result<PlanReport> dense = plan(*without);
    if (dense.status().code() == StatusCode::kAborted) return dense.status();
    if (!dense.ok()) continue;  // Only the products let the job fit.
    PlanCandidate& chosen = report.candidates.front();
    const double own = chosen.plan.prediction.step_seconds;
    const double other = dense->candidates.front().plan.prediction.step_seconds;
    const std::string name(technique->feature().name);
    const std::string measured = MeasuredRatesText(job, chosen.plan, cluster);
    // Within what predictions can tell.
    constexpr double kAlike = 0.005;
    char text[160];
    if (own > (1 + kAlike) * other) {
      std::snprintf(
          text, sizeof(text),
          "makes steps %.2f times as long as dense products do (%.3g s instead of %.3g s)",
          own / other, own, other);
      const std::string slower = name + " " + text + measured;
      const std::string hint = "; hint: " + std::string(technique->InsteadOfSlowProducts());
      if (!technique->KeepsSlowProducts()) {
        return InvalidError(slower + " on these machines" + hint);
      }
      chosen.reason += "; " + slower + hint;
    }
    if (other > (1 + kAlike) * own) {
      std::snprintf(text, sizeof(text), " makes steps %.2f times as fast as dense products do",
                    other / own);
      chosen.reason += "; " + name + text + measured;
    }
  }
  return report;
}

}  // namespace

Result<PlanReport> PlanJob(const JobSpec& job, const ClusterProfile& cluster,
                           const std::stop_token& stop) {
  return PlanJobPassing(job, cluster, ValidateJob, stop);
}

Result<PlanReport> PlanJobPassing(const JobSpec& job, const ClusterProfile& cluster,
                                  const JobCheck& check, const std::stop_token& stop) {
  WEFT_RETURN_IF_ERROR(CheckAsked(job, cluster));
  const auto plan = [&](const JobSpec& asked) -> Result<PlanReport> {
    WEFT_ASSIGN_OR_RETURN(const JobSet jobs, JobsOf(asked, cluster, false, check));
    return PlanAmong(asked, jobs, check, cluster, 0, stop);
  };
  WEFT_ASSIGN_OR_RETURN(PlanReport report, plan(job));
  return WithWorthOfProducts(job, std::move(report), cluster, plan);
}

Result<std::vector<Plan>> FastestPlans(const JobSpec& job, const ClusterProfile& cluster,
                                       bool any_mesh, size_t count, const JobCheck& check) {
  WEFT_RETURN_IF_ERROR(CheckAsked(job, cluster));
  WEFT_ASSIGN_OR_RETURN(const JobSet jobs, JobsOf(job, cluster, any_mesh, check));
  const SearchResults results = Search(jobs, cluster, 0, count);
  if (!results.has_workers) return NoDevices(WithoutUnfit(jobs.At(0), cluster));
  std::vector<Plan> plans;
  std::set<std::string> known;
  for (const Found& each : FastestOf(results, count)) {
    Plan plan = MakeCandidate(*each.search, *each.costed).plan;
    Plan nowhere = plan;
    nowhere.rank_workers.clear();
    nowhere.rank_devices.clear();
    nowhere.prediction = {};
    if (plans.size() < count && known.insert(ToJson(nowhere).dump()).second) {
      plans.push_back(std::move(plan));
    }
  }
  return plans;
}

Result<PlanReport> PlanAnyMesh(const JobSpec& job, const ClusterProfile& cluster, int threads,
                               const std::stop_token& stop, const JobCheck& check) {
  WEFT_RETURN_IF_ERROR(CheckAsked(job, cluster));
  WEFT_ASSIGN_OR_RETURN(const JobSet jobs, JobsOf(job, cluster, true, check));
  const auto plan = [&](const JobSpec& asked) -> Result<PlanReport> {
    WEFT_ASSIGN_OR_RETURN(const JobSet own, JobsOf(asked, cluster, true, check));
    return PlanAmong(asked, own, check, cluster, threads, stop);
  };
  Result<PlanReport> report = PlanAmong(job, jobs, check, cluster, threads, stop);
  if (report.ok()) report = WithWorthOfProducts(job, *std::move(report), cluster, plan);
  if (report.ok() && !TriesPipelines(jobs.At(0), cluster)) {
    const bool on_devices = WantsDevices(jobs.At(0), cluster);
    report->candidates.front().reason +=
        "; pipelines were not tried: there are too many on this many " +
        std::string(on_devices ? "GPUs of several kinds" : "machines") +
        ": resources.pipeline_parallel asks for some";
  }
  return report;
}

}  // namespace weft::planner
