#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/env.h"
#include "common/spec/field.h"
#include "common/spec/job_spec.h"
#include "common/spec/plan.h"
#include "common/status.h"
#include "worker/engine/data/round_state.h"
#include "worker/engine/techniques/precision/loss_scale.h"

namespace weft::engine {

/// Newest layout of the checkpoint folder that this code writes and the only one it reads.
inline constexpr int64_t kCheckpointFormatVersion = 1;

/// Name of the manifest in a checkpoint folder.
inline constexpr char kManifestName[] = "manifest.json";

/// One file of a checkpoint.
struct CheckpointFile {
  std::string name;
  int64_t rank = 0;
  int64_t bytes = 0;
  std::string xxh3_128;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("name", "File name in the folder.").Required().Range(1, 255), self.name);
    visit(Field("rank", "Rank whose state it holds; 0 when all ranks hold the same."), self.rank);
    visit(Field("bytes", "Size.").Unit("bytes").Required().Range(0, 9e18), self.bytes);
    visit(Field("xxh3_128", "Content hash, 32 hex digits.").Required().Range(32, 32),
          self.xxh3_128);
  }
};

/// Everything about a checkpoint but its tensors. Written last: a folder with a manifest is whole.
/// Bytes on disk: docs/checkpoint_format.md.
struct CheckpointManifest {
  int64_t format_version = kCheckpointFormatVersion;
  std::string weft_version;
  std::string job_id;
  int64_t epoch = 0;
  int64_t step = 0;
  int64_t updates = 0;
  int64_t skipped_steps = 0;
  int64_t tokens = 0;
  int64_t overflows = 0;
  LossScale loss_scale;
  int64_t data_offset = 0;
  int64_t loss_spikes = 0;
  int64_t rollbacks = 0;
  std::vector<double> recent_losses;
  RoundState rounds;
  std::string data_fingerprint;
  std::string base_fingerprint;
  std::vector<std::string> base_tensors;
  int64_t seed = 0;
  int64_t world_size = 1;
  double created_at = 0;
  std::vector<CheckpointFile> files;
  JobSpec job;
  Plan plan;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("format_version", "Layout of the folder.").Required(), self.format_version);
    visit(Field("weft_version", "Release that wrote it."), self.weft_version);
    visit(Field("job_id", "The job."), self.job_id);
    visit(Field("epoch", "Attempt that wrote it.").Range(0, 9e15), self.epoch);
    visit(Field("step", "Optimizer steps done.").Unit("steps").Required().Range(0, 1e12),
          self.step);
    visit(Field("updates", "Steps that changed the parameters.").Unit("steps").Range(0, 1e12),
          self.updates);
    visit(Field("skipped_steps", "Steps whose update was dropped.").Unit("steps").Range(0, 1e12),
          self.skipped_steps);
    visit(Field("tokens", "Tokens trained on, over all ranks.").Unit("tokens").Range(0, 9e18),
          self.tokens);
    visit(Field("overflows", "Of skipped_steps those that lowered the loss scale.")
              .Unit("steps")
              .Range(0, 1e12),
          self.overflows);
    visit(Field("loss_scale", "Of the next step; 1 without loss scaling."), self.loss_scale);
    visit(Field("data_offset", "The next step reads the data of this many steps later.")
              .Unit("steps")
              .Range(0, 1e12),
          self.data_offset);
    visit(Field("loss_spikes", "Of skipped_steps those because the loss jumped.")
              .Unit("steps")
              .Range(0, 1e12),
          self.loss_spikes);
    visit(Field("rollbacks", "Times the training went back and left out data.").Range(0, 1e6),
          self.rollbacks);
    visit(Field("recent_losses", "Window of train.guard, oldest first; empty without one.")
              .Unit("nats per token")
              .Range(0, 1e6),
          self.recent_losses);
    visit(Field("rounds", "State of rounds by time (train.local_round_seconds)."), self.rounds);
    visit(Field("data_fingerprint", "Hash over the training tokens and how they are cut."),
          self.data_fingerprint);
    visit(Field("base_fingerprint",
                "Hash over the weight files of the frozen network: the one whose logits are added, "
                "or that of model.import_path, where parts of it are frozen; empty: none is, or it "
                "is not known."),
          self.base_fingerprint);
    visit(Field("base_tensors",
                "Frozen parameters that the files leave out: their values are those in the folder "
                "job.model.import_path, whose hash is base_fingerprint."),
          self.base_tensors);
    visit(Field("seed", "Seed of all random numbers: they depend on it and the step alone."),
          self.seed);
    visit(Field("world_size", "Ranks of the attempt.").Range(1, 1 << 20), self.world_size);
    visit(Field("created_at", "When.").Unit("seconds since 1970 UTC"), self.created_at);
    visit(Field("files", "All other files that belong to the checkpoint.").Required(), self.files);
    visit(Field("job", "What was trained.").Required(), self.job);
    visit(Field("plan", "How.").Required(), self.plan);
  }
};

/// The text of manifest.json: one line of canonical JSON that holds its own hash.
std::string ManifestText(const CheckpointManifest& manifest);

/// The inverse. kCorrupt when a single byte differs from what ManifestText wrote, kInvalid when it
/// is of another format version. `source` names it in errors.
Result<CheckpointManifest> ParseManifest(const std::string& text, const std::string& source);

/// Reads `folder`/manifest.json.
Result<CheckpointManifest> ReadManifest(Env& env, const std::string& folder);

}  // namespace weft::engine
