// The end of the steps that train an elastic network: one of its sizes is chosen.
#include <chrono>
#include <cmath>
#include <sstream>

#include "common/clock.h"
#include "common/model/step_extent.h"
#include "worker/trainer/attempt.h"

namespace weft::trainer {
namespace {

/// Batches whose loss is compared.
constexpr int64_t kBatches = 16;

}  // namespace

Result<AttemptOutcome> Attempt::FinishSearch() {
  WEFT_RETURN_IF_ERROR(FinishProfile());
  WEFT_RETURN_IF_ERROR(CheckState(1));
  Tell("saving");
  WEFT_RETURN_IF_ERROR(SaveAndWait());
  Tell("evaluating");
  const engine::TrainCounters& counters = trainer_->counters();
  const auto flops_of = [&](int64_t layers) {
    JobSpec job = spec_.job;
    job.model.layers = layers;
    return MeanFlopsPerToken(job, 1);
  };
  SizeChoice choice;
  for (const int64_t layers : elastic_->layers) {
    elastic_->evaluated = layers;
    WEFT_ASSIGN_OR_RETURN(const engine::EvaluationReport report,
                          trainer_->EvaluateTraining(kBatches));
    if (!std::isfinite(report.loss)) {
      return NumericsError("the loss with " + std::to_string(layers) + " layers is not finite");
    }
    choice.candidates.push_back({layers, report.loss, flops_of(layers)});
  }
  ChooseSize(choice);
  choice.steps = counters.step;
  choice.tokens = counters.tokens;
  double flops = 0;
  for (int64_t step = 0; step < counters.step; ++step) flops += flops_of(elastic_->OfStep(step));
  choice.training_flops =
      static_cast<double>(counters.tokens) * flops / static_cast<double>(counters.step) +
      fit_flops_;
  choice.seconds = SecondsSince(begin_);
  std::ostringstream text;
  text << "the search has chosen " << choice.layers << " layers: losses";
  for (const SizeCandidate& candidate : choice.candidates) {
    text << " " << candidate.loss_nats << " with " << candidate.layers;
  }
  text << ", time to the power of " << choice.exponent;
  Event("info", text.str());
  WEFT_RETURN_IF_ERROR(SaveSizeChoice(env_, spec_.run_dir, choice));
  return AttemptOutcome{counters.step, engine::CheckpointPath(spec_.run_dir, counters.step),
                        std::nullopt, choice};
}

}  // namespace weft::trainer
