#include "coordinator/planner/report/alternatives.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "common/hint.h"
#include "common/model/memory_text.h"
#include "common/model/pipeline_shape.h"
#include "common/model/technique_cost.h"
#include "coordinator/planner/search.h"
#include "coordinator/planner/units.h"
#include "coordinator/planner/why_slower.h"

namespace weft::planner {
namespace {

/// A change of the job, and the lines that ask for it.
struct Variant {
  std::string lines;
  JobSpec job;
};

/// Variants of one change; the best one counts.
struct NamedVariants {
  std::string name;
  std::vector<Variant> variants;
};

class VariantList {
 public:
  VariantList(const JobSpec& job, int64_t most_ranks) : job_(job), most_ranks_(most_ranks) {}

  std::vector<NamedVariants> All() {
    const ResourceSpec& has = job_.resources;
    if (has.tensor_parallel == 1) {
      AddDegrees("tensor parallelism", {}, "tensor_parallel", &ResourceSpec::tensor_parallel);
      AddDegrees("tensor and sequence parallelism", "sequence_parallel: true", "tensor_parallel",
                 &ResourceSpec::tensor_parallel,
                 [](ResourceSpec& r) { r.sequence_parallel = true; });
    }
    if (has.pipeline_parallel == 1) {
      for (const char* schedule : {"1f1b", "zero_bubble", "gpipe"}) {
        AddDegrees(std::string("pipeline, ") + schedule,
                   std::string("pipeline_schedule: ") + schedule, "pipeline_parallel",
                   &ResourceSpec::pipeline_parallel,
                   [=](ResourceSpec& r) { r.pipeline_schedule = schedule; });
      }
      AddDegrees("pipeline, interleaved in 2", "pipeline_schedule: interleaved, pipeline_chunks: 2",
                 "pipeline_parallel", &ResourceSpec::pipeline_parallel, [](ResourceSpec& r) {
                   r.pipeline_schedule = "interleaved";
                   r.pipeline_chunks = 2;
                 });
    }
    if (has.context_parallel == 1) {
      for (const char* method : {"ring", "ulysses"}) {
        AddDegrees(std::string("context parallelism, ") + method,
                   std::string("context_method: ") + method, "context_parallel",
                   &ResourceSpec::context_parallel,
                   [=](ResourceSpec& r) { r.context_method = method; });
      }
    }
    if (job_.model.experts > 0 && has.expert_parallel == 1) {
      AddDegrees("expert parallelism", {}, "expert_parallel", &ResourceSpec::expert_parallel);
    }
    for (int64_t stage = has.zero_stage + 1; stage <= 3; ++stage) {
      Add("ZeRO " + std::to_string(stage), "zero_stage: " + std::to_string(stage),
          [=](ResourceSpec& r) { r.zero_stage = stage; });
    }
    if (has.recompute == "auto") {
      for (const char* what : {"none", "attention", "block", "optimal"}) {
        Add(std::string("recompute ") + what, std::string("recompute: ") + what,
            [=](ResourceSpec& r) { r.recompute = what; });
      }
    } else {
      Add("recompute as needed", "recompute: auto", [](ResourceSpec& r) { r.recompute = "auto"; });
    }
    if (has.offload_optimizer == "none") {
      Add("optimizer on the host", "offload_optimizer: host",
          [](ResourceSpec& r) { r.offload_optimizer = "host"; });
    }
    if (has.offload_activations == "none") {
      Add("activations on the host", "offload_activations: host",
          [](ResourceSpec& r) { r.offload_activations = "host"; });
    }
    if (has.offload_parameters == "none") {
      Add("weights block by block from the host",
          "offload_optimizer: host, offload_parameters: host", [](ResourceSpec& r) {
            r.offload_optimizer = "host";
            r.offload_parameters = "host";
          });
    }
    for (const TechniqueCost* technique : TechniqueCosts()) {
      std::optional<SmallerWeights> smaller = technique->WithSmallerWeights(job_.model);
      if (!smaller) continue;
      Variant variant{smaller->lines, job_};
      variant.job.model = std::move(smaller->model);
      all_.push_back({smaller->what, {std::move(variant)}});
    }
    if (has.ranks != 1) Add("one rank", "ranks: 1", [](ResourceSpec& r) { r.ranks = 1; });
    return std::move(all_);
  }

 private:
  using Change = std::function<void(ResourceSpec&)>;

  void Add(const std::string& name, const std::string& lines, const Change& change) {
    Variant variant{"resources: { " + lines + " }", job_};
    change(variant.job.resources);
    all_.push_back({name, {std::move(variant)}});
  }

  /// Adds 2, 4, ... ranks, as many as there is room for; 2 where there is none.
  void AddDegrees(const std::string& name, const std::string& lines, const std::string& field,
                  int64_t ResourceSpec::*degree, const Change& change = {}) {
    NamedVariants named{name, {}};
    for (int64_t ranks = 2; ranks <= std::max<int64_t>(most_ranks_, 2); ranks *= 2) {
      std::string text = field + ": " + std::to_string(ranks);
      if (!lines.empty()) text += ", " + lines;
      Variant variant{"resources: { " + text + " }", job_};
      variant.job.resources.*degree = ranks;
      if (change) change(variant.job.resources);
      named.variants.push_back(std::move(variant));
    }
    all_.push_back(std::move(named));
  }

  const JobSpec& job_;
  const int64_t most_ranks_;
  std::vector<NamedVariants> all_;
};

int64_t MostRanks(const JobSpec& job, const ClusterProfile& cluster) {
  const int64_t threads = std::max<int64_t>(job.resources.threads_per_rank, 1);
  const bool on_devices = WantsDevices(job, cluster);
  int64_t ranks = 0;
  for (const WorkerProfile& worker : cluster.workers) {
    ranks += on_devices ? std::ssize(worker.devices) : worker.cores / threads;
  }
  return job.resources.ranks > 0 ? std::min(ranks, job.resources.ranks) : ranks;
}

/// Without its hint: what one way would need is not what this job's user asked.
std::string FirstReason(const Status& status) {
  return SplitHint(status.message()).text;
}

/// How far an answer has come: what got furthest says why it stopped.
enum class Reached { kRefused, kTooLarge, kFits };

struct Tried {
  Reached reached = Reached::kRefused;
  Alternative answer;
  TimeBreakdown time;
};

bool Further(const Tried& a, const Tried& b) {
  if (a.reached != b.reached) return a.reached > b.reached;
  if (a.reached == Reached::kFits) return a.answer.step_seconds < b.answer.step_seconds;
  return a.reached == Reached::kTooLarge && a.answer.memory_bytes < b.answer.memory_bytes;
}

/// `tried` with what was found.
Tried With(Tried tried, const SearchResult& result) {
  if (!result.fitting.empty()) {
    const CostedPlan& best = result.fitting.front();
    tried.reached = Reached::kFits;
    tried.time = best.time;
    tried.answer.fits = true;
    tried.answer.step_seconds = StepSeconds(best.time);
    tried.answer.memory_bytes = TotalBytes(best.memory);
    tried.answer.reason.clear();
  } else if (!result.infeasible.empty()) {
    const CostedPlan& least = result.infeasible.front();
    tried.reached = Reached::kTooLarge;
    tried.answer.memory_bytes = TotalBytes(least.memory);
    tried.answer.reason = least.infeasible_reason;
  }
  return tried;
}

Tried Try(const Variant& variant, const ClusterProfile& cluster, const JobCheck& check,
          const std::stop_token& stop) {
  Tried tried;
  tried.answer.lines = variant.lines;
  Status runs = check(variant.job);
  if (runs.ok()) runs = CutModel(variant.job).status();
  if (!runs.ok()) {
    tried.answer.reason = FirstReason(runs);
    return tried;
  }
  const Result<JobSet> jobs = JobsOf(variant.job, cluster, false, check);
  if (!jobs.ok()) {
    tried.answer.reason = FirstReason(jobs.status());
    return tried;
  }
  tried.answer.reason = "no number of ranks that the cluster has room for divides the batch so";
  const Tried unanswered = tried;
  const SearchResults results = Search(*jobs, cluster, 0, 1, stop);
  for (const SearchResult& result : results.found) {
    Tried own = With(unanswered, result);
    if (Further(own, tried)) tried = std::move(own);
  }
  return tried;
}

std::string ComparedWithBest(const TimeBreakdown& own, const TimeBreakdown& best) {
  const double gain = StepSeconds(best) / StepSeconds(own);
  if (gain > 1.0005) return Factor(gain) + " as fast as the chosen plan: ask for it";
  if (gain > 0.9995) return "as fast as the chosen plan";
  return WhySlower(own, best);
}

}  // namespace

std::vector<Alternative> AlternativesOf(const JobSpec& job, const ClusterProfile& cluster,
                                        const Prediction* best, const JobCheck& check,
                                        const std::stop_token& stop) {
  std::vector<Tried> all;
  for (const NamedVariants& named : VariantList(job, MostRanks(job, cluster)).All()) {
    Tried furthest;
    for (size_t i = 0; i < named.variants.size(); ++i) {
      Tried tried = Try(named.variants[i], cluster, check, stop);
      if (i == 0 || Further(tried, furthest)) furthest = std::move(tried);
    }
    furthest.answer.name = named.name;
    if (furthest.answer.fits && best != nullptr) {
      furthest.answer.reason = ComparedWithBest(furthest.time, best->time);
    }
    all.push_back(std::move(furthest));
  }
  std::stable_sort(all.begin(), all.end(), Further);
  std::vector<Alternative> alternatives;
  for (Tried& tried : all) alternatives.push_back(std::move(tried.answer));
  return alternatives;
}

std::string WhatWouldFit(const std::vector<Alternative>& alternatives) {
  constexpr int kShown = 3;
  std::string text;
  int shown = 0;
  for (const Alternative& alternative : alternatives) {
    if (!alternative.fits || shown++ == kShown) break;
    text += (text.empty() ? "" : ", or ") + alternative.lines + " (" +
            HumanBytes(alternative.memory_bytes) + " per rank, " +
            HumanSeconds(alternative.step_seconds) + " a step)";
  }
  return text;
}

}  // namespace weft::planner
