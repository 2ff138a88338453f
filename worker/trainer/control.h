#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/spec/field.h"
#include "common/spec/group_norm.h"
#include "common/spec/plan.h"
#include "common/spec/resource_use.h"
#include "common/status.h"
#include "worker/trainer/profile_report.h"
#include "worker/trainer/run_summary.h"

namespace weft::trainer {

/// The control channel between the worker daemon and a rank (weft-trainer): a socket pair on which
/// each side writes one JSON object a line, `{"progress": {...}}`, whose only key names the
/// message. End of file means that the other side is gone: a rank then exits at once.

/// How a rank process ends; the message `finished`, `stopped` or `failed` before it says more.
enum ExitCode : int {
  kExitDone = 0,        ///< Finished, or stopped as asked.
  kExitUsage = 64,      ///< Wrong arguments, or an attempt spec that cannot be read.
  kExitUserError = 65,  ///< Job or data are wrong, or the training diverged: no retry helps.
  kExitInternal = 70,   ///< A defect of Weft.
  kExitOrphaned = 71,   ///< The daemon is gone.
  kExitRetry = 75,      ///< A peer, memory, disk or the like failed: a retry may help.
};

// Rank to daemon.

/// First message.
struct HelloMessage {
  static constexpr std::string_view kName = "hello";
  int64_t pid = 0;
  int64_t rank = 0;
  int64_t epoch = 0;
  std::string version;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("pid", "Process id."), self.pid);
    visit(Field("rank", "Which rank."), self.rank);
    visit(Field("epoch", "Attempt epoch."), self.epoch);
    visit(Field("version", "Release of the binary."), self.version);
  }
};

/// Data, model and peers are there; the first step begins.
struct StartedMessage {
  static constexpr std::string_view kName = "started";
  int64_t step = 0;
  std::string resumed_from;
  int64_t parameters = 0;
  double startup_seconds = 0;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("step", "Steps done already.").Unit("steps"), self.step);
    visit(Field("resumed_from", "Checkpoint folder; empty for a fresh start."), self.resumed_from);
    visit(Field("parameters", "Trainable numbers of the model."), self.parameters);
    visit(Field("startup_seconds", "Since the process began.").Unit("seconds"),
          self.startup_seconds);
  }
};

/// Where the time of a step went on this rank.
struct PhaseTimes {
  double data = 0;
  double forward = 0;
  double backward = 0;
  double communication_exposed = 0;
  double optimizer = 0;
  double checkpoint_stall = 0;
  double evaluation = 0;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("data", "Waiting for sequences.").Unit("seconds"), self.data);
    visit(Field("forward", "Forward passes.").Unit("seconds"), self.forward);
    visit(Field("backward", "Backward passes, recomputation included.").Unit("seconds"),
          self.backward);
    visit(Field("communication_exposed", "Waiting for collectives.").Unit("seconds"),
          self.communication_exposed);
    visit(Field("optimizer", "Norm, update, packing.").Unit("seconds"), self.optimizer);
    visit(Field("checkpoint_stall", "Waiting for a checkpoint.").Unit("seconds"),
          self.checkpoint_stall);
    visit(Field("evaluation", "Validation.").Unit("seconds"), self.evaluation);
  }
};

/// After every step.
struct ProgressMessage {
  static constexpr std::string_view kName = "progress";
  int64_t step = 0;
  int64_t steps = 1;
  int64_t steps_total = 0;
  std::optional<double> loss;
  std::optional<double> accuracy;
  std::optional<double> gradient_norm;
  double learning_rate = 0;
  bool skipped = false;
  bool overflow = false;
  bool spike = false;
  bool rolled_back = false;
  int64_t damaged_checkpoints = 0;
  int64_t skipped_steps = 0;
  int64_t loss_spikes = 0;
  int64_t rollbacks = 0;
  int64_t non_finite_gradients = 0;
  std::map<std::string, double> technique_metrics;
  double loss_scale = 1;
  double padding_ratio = 0;
  int64_t tokens = 0;
  double tokens_per_second = 0;
  double step_seconds = 0;
  PhaseTimes phases;
  MemoryBreakdown memory_peak;
  MemoryBreakdown memory_step;
  std::vector<CollectiveUse> collectives;
  TierUse tiers;
  std::vector<GroupNorm> norms;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("step", "Steps done, this one included.").Unit("steps"), self.step);
    visit(Field("steps",
                "Steps that this tells of: of a round by time several, whose times are means.")
              .Unit("steps"),
          self.steps);
    visit(Field("steps_total", "Steps of the job.").Unit("steps"), self.steps_total);
    visit(Field("loss", "Training loss; absent when not finite.").Unit("nats per token"),
          self.loss);
    visit(Field("accuracy",
                "Share of the step's examples whose class was recognised; absent "
                "except for classification."),
          self.accuracy);
    visit(Field("gradient_norm", "Global, before clipping; absent when not finite."),
          self.gradient_norm);
    visit(Field("learning_rate", "Of this step."), self.learning_rate);
    visit(Field("skipped", "The update was dropped: a spike, or loss or gradient not finite."),
          self.skipped);
    visit(Field("spike", "And it was because the loss jumped."), self.spike);
    visit(Field("rolled_back", "The training went back before this step."), self.rolled_back);
    visit(Field("damaged_checkpoints",
                "Newer ones that did not verify when it was loaded before this step."),
          self.damaged_checkpoints);
    visit(Field("skipped_steps", "Updates dropped so far."), self.skipped_steps);
    visit(Field("loss_spikes", "Of them because the loss jumped."), self.loss_spikes);
    visit(Field("rollbacks", "Times the training went back so far."), self.rollbacks);
    visit(Field("overflow", "And the loss scale was lowered for it."), self.overflow);
    visit(Field("non_finite_gradients", "Elements of the gradient that were not finite."),
          self.non_finite_gradients);
    visit(Field("technique_metrics", "What techniques measured, by name; absent without a value."),
          self.technique_metrics);
    visit(Field("loss_scale", "Of this step; 1 without loss scaling."), self.loss_scale);
    visit(Field("padding_ratio", "Share of the step's tokens that only fill up rows."),
          self.padding_ratio);
    visit(Field("tokens", "Trained on so far, over all ranks and attempts.").Unit("tokens"),
          self.tokens);
    visit(Field("tokens_per_second", "Over the last steps, all ranks.").Unit("tokens/s"),
          self.tokens_per_second);
    visit(Field("step_seconds", "Since the previous step ended.").Unit("seconds"),
          self.step_seconds);
    visit(Field("phases", "Parts of step_seconds."), self.phases);
    visit(Field("memory_peak", "Of this rank so far."), self.memory_peak);
    visit(Field("memory_step", "Of this rank since the step before."), self.memory_step);
    visit(Field("collectives", "Of this rank since the step before, by axis and kind."),
          self.collectives);
    visit(Field("tiers", "Of this rank since the step before."), self.tiers);
    visit(Field("norms", "By group of parameters; empty when they were not measured."), self.norms);
  }
};

/// From rank 0.
struct EvaluationMessage {
  static constexpr std::string_view kName = "evaluation";
  int64_t step = 0;
  double loss = 0;
  std::optional<double> accuracy = {};
  std::map<std::string, double> technique_metrics = {};

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("step", "Steps done.").Unit("steps"), self.step);
    visit(Field("loss", "Validation loss.").Unit("nats per token"), self.loss);
    visit(Field("accuracy", "Of the validation examples; absent except for classification."),
          self.accuracy);
    visit(Field("technique_metrics", "What techniques measured, by name; absent without a value."),
          self.technique_metrics);
  }
};

/// From rank 0, for each state a checkpoint reaches.
struct CheckpointMessage {
  static constexpr std::string_view kName = "checkpoint";
  std::string state = "written";
  int64_t step = 0;
  std::string path;
  int64_t bytes = 0;
  double snapshot_seconds = 0;
  double write_seconds = 0;
  double verify_seconds = 0;
  std::string error;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("state", "How far it got.").OneOf({"written", "verified", "failed"}), self.state);
    visit(Field("step", "Steps done.").Unit("steps"), self.step);
    visit(Field("path", "Its folder."), self.path);
    visit(Field("bytes", "Size of its state files.").Unit("bytes"), self.bytes);
    visit(Field("snapshot_seconds", "Training waited for it.").Unit("seconds"),
          self.snapshot_seconds);
    visit(Field("write_seconds", "Writing and publishing, during the training.").Unit("seconds"),
          self.write_seconds);
    visit(Field("verify_seconds", "Reading back.").Unit("seconds"), self.verify_seconds);
    visit(Field("error", "With failed: why."), self.error);
  }
};

/// Something people should know about the job.
struct EventMessage {
  static constexpr std::string_view kName = "event";
  std::string level = "info";
  std::string text;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("level", "How bad.").OneOf({"info", "warning", "error"}), self.level);
    visit(Field("text", "For people."), self.text);
  }
};

/// What the rank does from now on, where that is no step: the time it takes says nothing about
/// hangs.
struct ActivityMessage {
  static constexpr std::string_view kName = "activity";
  std::string activity = "training";
  int64_t saved_bytes = 0;
  int64_t sequences = 0;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("activity",
                "A rank begins with starting; started and every progress message mean training.")
              .OneOf({"training", "evaluating", "saving", "loading", "exchanging", "joining"}),
          self.activity);
    visit(Field("saved_bytes", "With saving: what this rank writes; 0: nothing, or not known.")
              .Unit("bytes"),
          self.saved_bytes);
    visit(Field("sequences", "With evaluating: of all ranks together.").Unit("sequences"),
          self.sequences);
  }
};

/// Part of something long is done: a layer of a pass, the masks of a matrix. Once a second at most;
/// a rank that waits for others sends none.
struct AliveMessage {
  static constexpr std::string_view kName = "alive";

  template <class Self, class Visitor>
  static void Fields(Self&, Visitor&&) {}
};

/// From rank 0: the answer to a ProfileRequest.
struct ProfiledMessage {
  static constexpr std::string_view kName = "profiled";
  std::string error;
  ProfileReport report;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("error", "Why there is no report; empty on success."), self.error);
    visit(Field("report", "What was recorded."), self.report);
  }
};

/// Rendezvous of the ranks, asked of the attempt's key-value store. Values are hexadecimal.
struct StoreSetMessage {
  static constexpr std::string_view kName = "store_set";
  int64_t request_id = 0;
  std::string key;
  std::string value_hex;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("request_id", "Echoed in the reply."), self.request_id);
    visit(Field("key", "Name."), self.key);
    visit(Field("value_hex", "Bytes, two hex digits each."), self.value_hex);
  }
};

struct StoreGetMessage {
  static constexpr std::string_view kName = "store_get";
  int64_t request_id = 0;
  std::string key;
  double timeout_seconds = 0;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("request_id", "Echoed in the reply."), self.request_id);
    visit(Field("key", "Name."), self.key);
    visit(Field("timeout_seconds", "Wait so long for it to be set.").Unit("seconds"),
          self.timeout_seconds);
  }
};

/// Last message of a rank that trained to the end.
struct FinishedMessage {
  static constexpr std::string_view kName = "finished";
  RunSummary summary;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("summary", "What came out; also in summary.json."), self.summary);
  }
};

/// Last message of a rank that was asked to stop.
struct StoppedMessage {
  static constexpr std::string_view kName = "stopped";
  int64_t step = 0;
  std::string checkpoint_path;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("step", "Steps done.").Unit("steps"), self.step);
    visit(Field("checkpoint_path", "Where they are saved; empty when they could not be."),
          self.checkpoint_path);
  }
};

/// Last message of a rank that failed.
struct FailedMessage {
  static constexpr std::string_view kName = "failed";
  std::string code;
  std::string message;
  bool numerics = false;
  bool silent_corruption = false;
  bool disk_full = false;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("code",
                "Status code: INVALID and NOT_FOUND are errors of the user, which a retry cannot "
                "help; all others may be retried.")
              .OneOf({"INVALID", "NOT_FOUND", "CONFLICT", "UNAVAILABLE", "EXHAUSTED", "ABORTED",
                      "CORRUPT", "INTERNAL"}),
          self.code);
    visit(Field("message", "For people."), self.message);
    visit(Field("numerics", "Loss, gradients or weights are not finite: a retry cannot help."),
          self.numerics);
    visit(Field("silent_corruption", "What this rank computed twice has other bits."),
          self.silent_corruption);
    visit(Field("disk_full", "With EXHAUSTED: a disk, and not memory."), self.disk_full);
  }
};

// Daemon to rank.

struct StoreReplyMessage {
  static constexpr std::string_view kName = "store_reply";
  int64_t request_id = 0;
  std::string error;
  std::string value_hex;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("request_id", "Of the request."), self.request_id);
    visit(Field("error", "Why there is no value; empty on success."), self.error);
    visit(Field("value_hex", "With get: bytes, two hex digits each."), self.value_hex);
  }
};

/// Finish the step, save a checkpoint, exit. SIGTERM means the same.
struct StopMessage {
  static constexpr std::string_view kName = "stop";

  template <class Self, class Visitor>
  static void Fields(Self&, Visitor&&) {}
};

/// To rank 0, while no other is being answered: record steps, on all ranks.
struct ProfileMessage {
  static constexpr std::string_view kName = "profile";
  int64_t steps = 1;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("steps", "How many.").Unit("steps").Range(1, kMaxProfileSteps), self.steps);
  }
};

/// The ranks of an attempt whose ranks come and go, from the next outer step on. Each one that is
/// told of has a greater number than those before.
struct MembershipMessage {
  static constexpr std::string_view kName = "membership";
  int64_t number = 0;
  std::vector<int64_t> members;
  std::vector<int64_t> gone;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("number", "Of this membership.").Range(1, 1e12), self.number);
    visit(Field("members", "Numbers of the ranks, ascending.").Range(0, 1 << 20), self.members);
    visit(Field("gone", "Numbers of ranks that are no more.").Range(0, 1 << 20), self.gone);
  }
};

/// Exit at once.
struct AbortMessage {
  static constexpr std::string_view kName = "abort";

  template <class Self, class Visitor>
  static void Fields(Self&, Visitor&&) {}
};

using RankMessage =
    std::variant<HelloMessage, StartedMessage, ProgressMessage, EvaluationMessage,
                 CheckpointMessage, EventMessage, ActivityMessage, AliveMessage, ProfiledMessage,
                 StoreSetMessage, StoreGetMessage, FinishedMessage, StoppedMessage, FailedMessage>;
using DaemonMessage =
    std::variant<StoreReplyMessage, StopMessage, ProfileMessage, MembershipMessage, AbortMessage>;

/// The line of a message, without its line end. Text that is not UTF-8 gets replacement characters.
std::string ToLine(const RankMessage& message);
std::string ToLine(const DaemonMessage& message);

/// The inverse; kInvalid for anything that ToLine cannot have made.
Result<RankMessage> ParseRankMessage(std::string_view line);
Result<DaemonMessage> ParseDaemonMessage(std::string_view line);

/// What `failed` says, and how to say it.
Status ToStatus(const FailedMessage& message);
FailedMessage ToFailed(const Status& status);

std::string ToHex(std::string_view bytes);
/// kInvalid when `hex` is not pairs of hexadecimal digits.
Result<std::string> FromHex(std::string_view hex);

}  // namespace weft::trainer
