#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/spec/job_spec.h"
#include "common/spec/plan.h"

namespace weft {

/// What the weights of a phase are made of, before its first step.
struct GrowthStart {
  std::string run_dir;
  std::string larger_run_dir;
  GrowthSpec growth;
  int64_t search_steps = 0;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("run_dir", "Folder of the phase before this one; empty: there is none."),
          self.run_dir);
    visit(Field("larger_run_dir",
                "Folder of the phase whose weights decoalesce mixes in; empty: none are."),
          self.larger_run_dir);
    visit(Field("growth", "How they are made."), self.growth);
    visit(Field("search_steps",
                "Where run_dir is that of the search of this phase, the steps of the search; 0: it "
                "is that of another phase, all of whose steps count.")
              .Unit("steps")
              .Range(0, 1e12),
          self.search_steps);
  }
};

/// What one rank process (weft-trainer) receives: its part of one attempt at a job.
struct AttemptSpec {
  std::string job_id;
  int64_t epoch = 0;
  int64_t rank = 0;
  int64_t world_size = 1;
  std::string host;
  std::string run_dir;
  std::string cache_dir;
  JobSpec job;
  Plan plan;
  int64_t device_index = 0;
  GrowthStart start;
  double mean_seconds_between_failures = 0;
  std::string memory_dir;
  std::vector<std::string> data_roots;
  int64_t membership = 0;
  bool joins = false;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("job_id", "The job.").Required(), self.job_id);
    visit(Field("epoch",
                "Attempt epoch: grows with every attempt at the job; whoever holds an older one "
                "is refused."),
          self.epoch);
    visit(Field("rank", "This process, from 0.").Range(0, 1 << 20), self.rank);
    visit(Field("world_size", "Ranks of the attempt.").Range(1, 1 << 20), self.world_size);
    visit(Field("host", "Address this rank listens on for collectives."), self.host);
    visit(Field("run_dir", "Folder of the job: checkpoints, export, loss curve.").Required(),
          self.run_dir);
    visit(Field("cache_dir", "Folder for token shards, shared by jobs on this machine.").Required(),
          self.cache_dir);
    visit(Field("job", "What to train.").Required(), self.job);
    visit(Field("plan", "How to train it.").Required(), self.plan);
    visit(Field("device_index",
                "GPU of this rank among those that its process sees; nothing with plan.device cpu. "
                "A worker lets each process see one.")
              .Range(0, 1023),
          self.device_index);
    visit(Field("start",
                "What the weights of a phase are made of; without a phase before it they "
                "are random or imported."),
          self.start);
    visit(Field("mean_seconds_between_failures",
                "Of as many machines as the attempt runs on; 0: not known.")
              .Unit("seconds")
              .Range(0, 1e18),
          self.mean_seconds_between_failures);
    visit(Field("memory_dir",
                "Folder in the memory of the worker's machine, for snapshots; empty: there is "
                "none."),
          self.memory_dir);
    visit(Field("data_roots",
                "Folders that files of the job lie below, wherever links lead; none: anywhere.")
              .Range(0, 10000),
          self.data_roots);
    visit(Field("membership",
                "Of an attempt whose ranks come and go between outer steps: number of the newest "
                "one when this rank started; 0: its ranks stay.")
              .Range(0, 1e12),
          self.membership);
    visit(Field("joins",
                "The attempt runs already. `rank` is then the number of this rank, which may be "
                "more than world_size."),
          self.joins);
  }
};

}  // namespace weft
