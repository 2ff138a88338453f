// The end of the steps that train an elastic network: one of its sizes is chosen.
#include <algorithm>
#include <cmath>
#include <sstream>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/json.h"
#include "common/model/step_extent.h"
#include "common/spec/batch_schedule.h"
#include "common/spec/phase_search.h"
#include "common/spec/spec_json.h"
#include "worker/trainer/attempt.h"

namespace weft::trainer {
namespace {

std::string SizeText(const SizeCandidate& candidate) {
  std::string layers = std::to_string(candidate.layers) + " layers";
  if (candidate.image_size == 0) return layers;
  return layers + " and images of " + std::to_string(candidate.image_size) + " pixels a side";
}

std::string ChoiceText(const SizeChoice& choice) {
  std::ostringstream text;
  SizeCandidate chosen;
  chosen.layers = choice.layers;
  chosen.image_size = choice.image_size;
  text << "the search has chosen " << SizeText(chosen) << ": losses";
  for (const SizeCandidate& candidate : choice.candidates) {
    text << " " << candidate.loss_nats << " with " << SizeText(candidate) << ",";
  }
  text << " time to the power of " << choice.exponent;
  return text.str();
}

}  // namespace

// The data of one size of images are read directly: those of training change from step to step.
Result<std::vector<SizeCandidate>> Attempt::CompareSizes() {
  std::vector<SizeCandidate> candidates;
  for (const PhaseSize& size : PhaseSizes(search_, spec_.job.model)) {
    SizeCandidate candidate = CandidateOf(size, spec_.job.model);
    const JobSpec job = WithSize(spec_.job, size);
    candidate.flops_per_sequence =
        MeanFlopsPerToken(job, 1) * static_cast<double>(SequenceLength(job));
    engine::BatchSource* train = data_.train.get();
    if (data_.image_sizes != nullptr) {
      const std::vector<int64_t>& sizes = search_.image_sizes;
      const auto index = std::find(sizes.begin(), sizes.end(), size.image_size) - sizes.begin();
      train = data_.image_sizes->OfSize(static_cast<size_t>(index));
    }
    elastic_->evaluated = size.layers;
    WEFT_ASSIGN_OR_RETURN(const engine::EvaluationReport report,
                          trainer_->EvaluateTraining(train, kComparedBatches));
    if (!std::isfinite(report.loss)) {
      return NumericsError("the loss with " + SizeText(candidate) + " is not finite");
    }
    candidate.loss_nats = report.loss;
    candidates.push_back(candidate);
  }
  return candidates;
}

// Steps before a rollback read other batches than the last offset says, so that with several sizes
// of images they count with the sizes of those.
double Attempt::FlopsOfSearch(const std::vector<SizeCandidate>& candidates) const {
  const engine::TrainCounters& counters = trainer_->counters();
  const BatchSchedule schedule(spec_.job.train);
  double flops = 0, tokens = 0;
  for (int64_t step = 0; step < counters.step; ++step) {
    const int64_t batch = step + counters.data_offset;
    PhaseSize size{elastic_->LayersOfStep(step), spec_.job.model.image_size};
    if (data_.image_sizes != nullptr) {
      size.image_size = search_.image_sizes[data_.image_sizes->SizeOf(batch)];
    }
    const SizeCandidate drawn = CandidateOf(size, spec_.job.model);
    const auto candidate =
        std::find_if(candidates.begin(), candidates.end(), [&](const SizeCandidate& other) {
          return other.layers == drawn.layers && other.image_size == drawn.image_size;
        });
    const auto sequences = static_cast<double>(schedule.At(batch));
    flops += sequences * candidate->flops_per_sequence;
    tokens += sequences * static_cast<double>(SequenceLength(WithSize(spec_.job, size)));
  }
  return static_cast<double>(counters.tokens) * flops / tokens;
}

Result<AttemptOutcome> Attempt::FinishSearch() {
  WEFT_RETURN_IF_ERROR(FinishProfile());
  ReportSaving();
  WEFT_RETURN_IF_ERROR(CheckState(1));
  WEFT_RETURN_IF_ERROR(SaveAndWait());
  ReportEvaluating(std::ssize(PhaseSizes(search_, spec_.job.model)) * kComparedBatches *
                   spec_.job.train.global_batch);
  const engine::TrainCounters& counters = trainer_->counters();
  SizeChoice choice;
  WEFT_ASSIGN_OR_RETURN(choice.candidates, CompareSizes());
  ChooseSize(choice);
  choice.steps = counters.step;
  choice.tokens = counters.tokens;
  choice.training_flops = FlopsOfSearch(choice.candidates) + fit_flops_;
  choice.seconds = RunSeconds();
  // Before the choice is there, which ends the search for those that start again: a later search
  // would find them.
  if (snapshots_) WEFT_RETURN_IF_ERROR(snapshots_->Forget());
  std::string text;
  if (first_rank()) {
    Event("info", ChoiceText(choice));
    WEFT_RETURN_IF_ERROR(SaveSizeChoice(env_, spec_.run_dir, choice));
    text = ToJson(choice).dump();
  }
  // No rank goes on before the choice is there for those that start again.
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> choices, group_->AllGather(text));
  WEFT_ASSIGN_OR_RETURN(const Json json, ParseJson(choices[0]));
  WEFT_ASSIGN_OR_RETURN(choice, FromJson<SizeChoice>(json));
  return AttemptOutcome{counters.step, engine::CheckpointPath(spec_.run_dir, counters.step),
                        std::nullopt, choice};
}

}  // namespace weft::trainer
