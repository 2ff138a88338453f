#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/spec/field.h"
#include "common/spec/plan.h"

namespace weft::trainer {

/// What one phase of a job came to.
struct PhaseSummary {
  std::string phase;
  std::optional<int64_t> chosen_layers;
  std::optional<int64_t> chosen_image_size;
  int64_t steps = 0;
  int64_t parameters = 0;
  int64_t tokens = 0;
  double training_flops = 0;
  double seconds = 0;
  double train_loss_nats = 0;
  std::optional<double> start_validation_loss_nats;
  std::optional<double> validation_loss_nats;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("phase", "Its number and name."), self.phase);
    visit(Field("chosen_layers", "Of the network that its search has chosen; absent without one."),
          self.chosen_layers);
    visit(Field("chosen_image_size", "Side of its images; absent without a search or images.")
              .Unit("pixels"),
          self.chosen_image_size);
    visit(Field("steps", "Optimizer steps.").Unit("steps"), self.steps);
    visit(Field("parameters", "Numbers of its model."), self.parameters);
    visit(Field("tokens", "Tokens trained on.").Unit("tokens"), self.tokens);
    visit(Field("training_flops", "Floating-point operations of the training; see RunSummary.")
              .Unit("FLOP"),
          self.training_flops);
    visit(Field("seconds", "Duration of all its attempts; see RunSummary.").Unit("seconds"),
          self.seconds);
    visit(Field("train_loss_nats", "Mean training loss of its last steps (at most 100).")
              .Unit("nats per token"),
          self.train_loss_nats);
    visit(Field("start_validation_loss_nats",
                "Of its grown weights, before the first step; absent in the first phase.")
              .Unit("nats per token"),
          self.start_validation_loss_nats);
    visit(Field("validation_loss_nats", "At its end.").Unit("nats per token"),
          self.validation_loss_nats);
  }
};

/// What came out of a job: `<run_dir>/summary.json`.
struct RunSummary {
  std::string job_id;
  int64_t epoch = 0;
  std::optional<int64_t> chosen_layers;
  std::optional<int64_t> chosen_image_size;
  int64_t steps = 0;
  int64_t skipped_steps = 0;
  int64_t parameters = 0;
  int64_t trained_parameters = 0;
  int64_t tokens = 0;
  double training_flops = 0;
  double train_loss_nats = 0;
  std::optional<double> start_validation_loss_nats;
  std::optional<double> validation_loss_nats;
  std::optional<double> train_accuracy;
  std::optional<double> validation_accuracy;
  double unigram_entropy_nats = 0;
  int64_t resumed_from_step = 0;
  double seconds = 0;
  double tokens_per_second = 0;
  double median_step_seconds = 0;
  int64_t timed_steps = 0;
  MemoryBreakdown memory_peak;
  std::string checkpoint_path;
  std::vector<PhaseSummary> phases;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("job_id", "The job."), self.job_id);
    visit(Field("epoch", "Attempt that finished it."), self.epoch);
    visit(Field("chosen_layers", "Of the network that the search of a phase has chosen."),
          self.chosen_layers);
    visit(Field("chosen_image_size", "Side of its images.").Unit("pixels"), self.chosen_image_size);
    visit(Field("steps", "Optimizer steps, over all attempts.").Unit("steps"), self.steps);
    visit(Field("skipped_steps", "Of them dropped because something was not finite.").Unit("steps"),
          self.skipped_steps);
    visit(Field("parameters", "Numbers of the model."), self.parameters);
    visit(Field("trained_parameters", "Of them those that are not frozen."),
          self.trained_parameters);
    visit(Field("tokens", "Tokens trained on, over all attempts and ranks.").Unit("tokens"),
          self.tokens);
    visit(
        Field("training_flops",
              "Floating-point operations of the training on these tokens, by the count of "
              "`weft plan`, of the search of a phase's size, and of what learned a growth "
              "operator: recomputation, evaluations and steps that were repeated after an attempt "
              "ended are left out, though seconds has them.")
            .Unit("FLOP"),
        self.training_flops);
    visit(Field("train_loss_nats", "Mean training loss of the last steps (at most 100).")
              .Unit("nats per token"),
          self.train_loss_nats);
    visit(Field("start_validation_loss_nats",
                "Of weights that are grown from a phase before, before the first step.")
              .Unit("nats per token"),
          self.start_validation_loss_nats);
    visit(Field("validation_loss_nats", "At the end; absent without validation data.")
              .Unit("nats per token"),
          self.validation_loss_nats);
    visit(Field("train_accuracy",
                "Share of the examples of the last steps (at most 100) whose class was recognised; "
                "absent except for classification."),
          self.train_accuracy);
    visit(Field("validation_accuracy", "The same of the validation examples, at the end."),
          self.validation_accuracy);
    visit(Field("unigram_entropy_nats",
                "Of the training tokens: the loss of a model that knows their frequencies only.")
              .Unit("nats per token"),
          self.unigram_entropy_nats);
    visit(Field("resumed_from_step", "Where the last attempt started.").Unit("steps"),
          self.resumed_from_step);
    visit(Field("seconds",
                "Duration of all attempts; of one that was killed up to its last checkpoint.")
              .Unit("seconds"),
          self.seconds);
    visit(Field("tokens_per_second", "Of the last attempt while it trained, over all ranks.")
              .Unit("tokens/s"),
          self.tokens_per_second);
    visit(Field("median_step_seconds",
                "Of the steps of the last attempt but its first; 0 where there was no other.")
              .Unit("seconds"),
          self.median_step_seconds);
    visit(Field("timed_steps", "That is their median; the last ones of very many.").Unit("steps"),
          self.timed_steps);
    visit(Field("memory_peak", "Of rank 0 in the last attempt."), self.memory_peak);
    visit(Field("checkpoint_path", "Final checkpoint."), self.checkpoint_path);
    visit(Field("phases", "Of a job with phases each of them; all else is of the last one."),
          self.phases);
  }
};

}  // namespace weft::trainer
