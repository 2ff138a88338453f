#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/spec/train_spec.h"
#include "worker/engine/techniques/sparse24/sparse24_cost.h"
#include "worker/engine/techniques/technique.h"
#include "worker/engine/techniques/weight_snapshot.h"
#include "worker/engine/tensor/named_tensor.h"

namespace weft::engine {

/// The decay of run `run` of a search, given the flip rates of those before it, and with
/// kDecaySearchRuns the decay that was found: with it masks flip 0.75 times as often as those of
/// the dense run, which is the first. The sparse runs halve a grid of decays.
double SearchedDecay(std::span<const float> rates, int64_t run);

/// Why the decay that all runs of a search have found may be a bad one, for its warning: it is an
/// end of the grid, or the runs tell too little. "": nothing speaks against it.
std::string DoubtsOfSearch(std::span<const float> rates);

/// Finds the decay of masked weights in short runs of the first steps (Hu et al. 2024, arXiv
/// 2404.01847, section 4.3): one that is dense, then sparse ones. Each begins with the weights,
/// the schedule and the data of the first step; so does the training after them. Not thread-safe.
class DecaySearch {
 public:
  /// Takes `spec`, whose decay_search_steps may be 0: then nothing is searched.
  explicit DecaySearch(const SparsitySpec& spec) : spec_(spec) {}

  /// Takes memory for the first weights.
  Status OnTraining(const TrainingParts& parts);

  /// The place of a step in the runs, or in the training after them.
  ScheduledStep Scheduled(ScheduledStep place) const;
  /// Whether `step` is of the dense run.
  bool IsDense(int64_t step) const { return step < spec_.decay_search_steps; }

  /// Keeps the first weights, or goes back to them: then returns true.
  Result<bool> BeforeStep(int64_t step);

  /// The decay in `step`; 0 in the dense run.
  double DecayOf(int64_t step) const;

  /// Masks have flipped at `rate` until the end of `step`.
  void Observe(int64_t step, double rate);

  std::vector<NamedTensor> StateTensors();

 private:
  /// The run of a step; kDecaySearchRuns: the training itself.
  int64_t RunOf(int64_t step) const;

  SparsitySpec spec_;
  TrainingParts parts_;
  WeightSnapshot first_;
  /// The sum of the flip rates of each run's second half. In checkpoints.
  std::array<float, kDecaySearchRuns> rates_ = {};
};

}  // namespace weft::engine
