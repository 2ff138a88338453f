#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/env.h"
#include "common/spec/attempt_spec.h"
#include "common/spec/field.h"
#include "common/spec/phase_search.h"
#include "common/status.h"

namespace weft::trainer {

/// A size that a phase may go on with, and what speaks for it.
struct SizeCandidate {
  int64_t layers = 0;
  double loss_nats = 0;
  double flops_per_sequence = 0;
  int64_t image_size = 0;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("layers", "Its blocks."), self.layers);
    visit(Field("loss_nats", "Loss of the part of the elastic network on training data.")
              .Unit("nats per token"),
          self.loss_nats);
    visit(Field("flops_per_sequence",
                "Of training it on a sequence or an image: what its time is taken to be.")
              .Unit("FLOP"),
          self.flops_per_sequence);
    visit(Field("image_size", "Side of its images; 0: it has none.").Unit("pixels"),
          self.image_size);
  }
};

/// What the search of a phase came to: `search.json` in the folder of the search.
struct SizeChoice {
  std::vector<SizeCandidate> candidates;
  double exponent = 0;
  int64_t layers = 0;
  int64_t image_size = 0;
  int64_t steps = 0;
  int64_t tokens = 0;
  double training_flops = 0;
  double seconds = 0;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("candidates", "All sizes."), self.candidates);
    visit(Field("exponent", "Of the time, as it weighs against the loss."), self.exponent);
    visit(Field("layers", "Of the candidate that was chosen."), self.layers);
    visit(Field("image_size", "Of its images; 0: it has none.").Unit("pixels"), self.image_size);
    visit(Field("steps", "Steps that trained the elastic network.").Unit("steps"), self.steps);
    visit(Field("tokens", "Tokens of these steps.").Unit("tokens"), self.tokens);
    visit(Field("training_flops",
                "Floating-point operations of these steps, and of what learned a growth operator.")
              .Unit("FLOP"),
          self.training_flops);
    visit(Field("seconds", "Duration of all attempts at them.").Unit("seconds"), self.seconds);
  }
};

/// Chooses among choice.candidates (AutoProg, Li et al. 2022, arXiv 2203.14509): a2 time^a1 is
/// fitted to their losses, by least squares of the logarithms, and loss x time^max(-a1, 0) is least
/// for the one that is chosen. Of those that differ by rounding alone it is the fastest. Losses are
/// positive, as times are.
void ChooseSize(SizeChoice& choice);

/// The attempt at the first steps of a phase, `phase`, that train its elastic network.
AttemptSpec AttemptOfSearch(const AttemptSpec& phase);

/// What is left of the phase after that.
AttemptSpec AttemptAfterSearch(const AttemptSpec& phase, const SizeChoice& choice);

Status SaveSizeChoice(Env& env, const std::string& run_dir, const SizeChoice& choice);
/// Without a file: none. kInvalid where it cannot be read.
Result<std::optional<SizeChoice>> ReadSizeChoice(Env& env, const std::string& run_dir);

/// A candidate of a network that has `model` except for this size, without its loss and FLOPs.
SizeCandidate CandidateOf(const PhaseSize& size, const ModelSpec& model);

/// kInvalid unless the choice is that of this search in a phase that has `model`.
Status CheckSameSearch(const SizeChoice& choice, const PhaseSearchSpec& search,
                       const ModelSpec& model, const std::string& run_dir);

}  // namespace weft::trainer
