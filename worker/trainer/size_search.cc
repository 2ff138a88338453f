#include "worker/trainer/size_search.h"

#include <algorithm>
#include <cmath>

#include "common/json.h"
#include "common/model/technique_cost.h"
#include "common/spec/spec_json.h"

namespace weft::trainer {
namespace {

std::string ChoicePath(const std::string& run_dir) {
  return JoinPath(run_dir, "search.json");
}

/// The exponent of the power of the time that fits best; 0 where all times are the same.
double FittedExponent(std::span<const SizeCandidate> candidates) {
  double mean_time = 0, mean_loss = 0;
  for (const SizeCandidate& candidate : candidates) {
    mean_time += std::log(candidate.flops_per_sequence);
    mean_loss += std::log(candidate.loss_nats);
  }
  mean_time /= static_cast<double>(candidates.size());
  mean_loss /= static_cast<double>(candidates.size());
  double together = 0, of_time = 0;
  for (const SizeCandidate& candidate : candidates) {
    const double time = std::log(candidate.flops_per_sequence) - mean_time;
    together += time * (std::log(candidate.loss_nats) - mean_loss);
    of_time += time * time;
  }
  return of_time > 0 ? together / of_time : 0;
}

}  // namespace

void ChooseSize(SizeChoice& choice) {
  constexpr double kRounding = 1e-9;
  std::vector<SizeCandidate> by_time = choice.candidates;
  std::stable_sort(by_time.begin(), by_time.end(), [](const auto& a, const auto& b) {
    return a.flops_per_sequence < b.flops_per_sequence;
  });
  choice.exponent = std::max(-FittedExponent(by_time), 0.0);
  double least = 0;
  for (const SizeCandidate& candidate : by_time) {
    const double price =
        std::log(candidate.loss_nats) + choice.exponent * std::log(candidate.flops_per_sequence);
    if (&candidate != &by_time.front() && price >= least - kRounding) continue;
    least = price;
    choice.layers = candidate.layers;
    choice.image_size = candidate.image_size;
  }
}

AttemptSpec AttemptOfSearch(const AttemptSpec& phase) {
  AttemptSpec search = phase;
  search.run_dir = JoinPath(phase.run_dir, "search");
  return search;
}

AttemptSpec AttemptAfterSearch(const AttemptSpec& phase, const SizeChoice& choice) {
  AttemptSpec after = phase;
  after.job.model.layers = choice.layers;
  if (choice.image_size > 0) after.job.model.image_size = choice.image_size;
  std::vector<std::string>& policies = after.plan.block_memory_policy;
  if (std::ssize(policies) > choice.layers) policies.resize(static_cast<size_t>(choice.layers));
  after.start = {};
  after.start.run_dir = AttemptOfSearch(phase).run_dir;
  after.start.search_steps = choice.steps;
  // Averages begin anew, and so the state of the optimizer does; other state is of no parameter.
  const std::string& optimizer = phase.job.optimizer.name;
  const bool moments = optimizer != "adafactor" && optimizer != "schedule_free_adamw";
  after.start.growth.optimizer_state =
      moments && ExportedAverages(phase.job, phase.job.train.steps).empty() ? "kept" : "new";
  return after;
}

Status SaveSizeChoice(Env& env, const std::string& run_dir, const SizeChoice& choice) {
  return WriteFileAtomic(env, ChoicePath(run_dir), ToJson(choice).dump(2) + "\n");
}

Result<std::optional<SizeChoice>> ReadSizeChoice(Env& env, const std::string& run_dir) {
  const std::string path = ChoicePath(run_dir);
  if (!env.FileExists(path)) return std::optional<SizeChoice>();
  WEFT_ASSIGN_OR_RETURN(const std::string text, ReadFile(env, path));
  const auto parse = [&]() -> Result<SizeChoice> {
    WEFT_ASSIGN_OR_RETURN(const Json json, ParseJson(text));
    return FromJson<SizeChoice>(json);
  };
  Result<SizeChoice> choice = parse();
  if (!choice.ok()) {
    return InvalidError(path + ": " + choice.status().message() +
                        "; hint: delete the file, and its phase chooses again");
  }
  return std::optional(*std::move(choice));
}

SizeCandidate CandidateOf(const PhaseSize& size, const ModelSpec& model) {
  SizeCandidate candidate;
  candidate.layers = size.layers;
  if (model.family == "vit") candidate.image_size = size.image_size;
  return candidate;
}

Status CheckSameSearch(const SizeChoice& choice, const PhaseSearchSpec& search,
                       const ModelSpec& model, const std::string& run_dir) {
  const std::vector<PhaseSize> sizes = PhaseSizes(search, model);
  const auto chosen_from = [&](const PhaseSize& size) {
    const SizeCandidate wanted = CandidateOf(size, model);
    return std::any_of(
        choice.candidates.begin(), choice.candidates.end(), [&](const SizeCandidate& candidate) {
          return candidate.layers == wanted.layers && candidate.image_size == wanted.image_size;
        });
  };
  if (choice.steps == search.steps && choice.candidates.size() == sizes.size() &&
      std::all_of(sizes.begin(), sizes.end(), chosen_from)) {
    return OkStatus();
  }
  return InvalidError("the search in " + run_dir +
                      " had other steps or sizes than the job has now; hint: another --run-dir, "
                      "or delete the folder of its phase and those of later phases");
}

}  // namespace weft::trainer
