#pragma once

#include <compare>
#include <cstdint>
#include <map>

#include "common/spec/job_spec.h"

namespace weft {

/// How much of the network, and of the data, a step of training computes. Techniques may change it
/// from step to step (TechniqueCost::SetExtent).
struct StepExtent {
  int64_t layers = 0;  ///< Of the network, which share its blocks where they are more.
  int64_t length = 0;  ///< Tokens of each sequence, its first ones.

  auto operator<=>(const StepExtent&) const = default;
};

/// Whether steps of the job differ in it.
bool ExtentChanges(const JobSpec& job);

/// The extent of a step of the job.
StepExtent ExtentOf(const JobSpec& job, int64_t step);

/// How many of the first `steps` steps of a job have each extent. Where steps differ, at most
/// `samples` evenly spaced ones are counted, and the counts add up to the number of these.
std::map<StepExtent, int64_t> ExtentsOf(const JobSpec& job, int64_t steps, int64_t samples);

/// FLOPs of training for each token (TrainingFlopsPerToken), with those of a network whose logits
/// are added, the mean over the tokens of the first `steps` steps of `job`, whose model.vocab_size
/// is resolved.
double MeanFlopsPerToken(const JobSpec& job, int64_t steps);

/// The mean step of a job over its largest one.
struct MeanStep {
  double tokens = 1;
  double flops = 1;
};
/// Where steps differ, of a sample of the steps of the whole training.
MeanStep MeanStepOf(const JobSpec& job);

}  // namespace weft
