#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/spec/field.h"
#include "common/spec/job_spec.h"
#include "common/spec/plan.h"
#include "coordinator/planner/report/run_time.h"

namespace weft::planner {

/// What a candidate needs and costs besides its prediction.
struct PlanDetail {
  std::string binding;
  double binding_share = 0;
  int64_t memory_limit_bytes = 0;
  int64_t devices = 0;
  int64_t machines = 0;
  double finish_seconds = 0;
  double price_per_hour = 0;
  double price = 0;
  double watts = 0;
  double kilowatt_hours = 0;
  int64_t steps_between_saves = 0;
  double save_stall_seconds = 0;
  double between_failures_seconds = 0;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(
        Field("binding", "What limits it: compute, memory bandwidth, links, fixed costs, memory."),
        self.binding);
    visit(Field("binding_share",
                "Of the step that is spent on it; of memory, what is needed over "
                "what there is."),
          self.binding_share);
    visit(Field("memory_limit_bytes", "What its fullest rank may have.").Unit("bytes"),
          self.memory_limit_bytes);
    visit(Field("devices", "GPUs, or machines without, in use."), self.devices);
    visit(Field("machines", "Machines in use."), self.machines);
    visit(Field("finish_seconds", "All steps; without validation and checkpoints.").Unit("seconds"),
          self.finish_seconds);
    visit(Field("price_per_hour", "Of what is in use; 0: not known."), self.price_per_hour);
    visit(Field("price", "Of all steps; 0: not known."), self.price);
    visit(Field("watts", "Of what is in use; 0: not known.").Unit("watts"), self.watts);
    visit(Field("kilowatt_hours", "Of all steps; 0: not known.").Unit("kWh"), self.kilowatt_hours);
    visit(Field("steps_between_saves",
                "Expected with checkpoint.interval auto; 0: the job says it, or it is not known.")
              .Unit("steps"),
          self.steps_between_saves);
    visit(Field("save_stall_seconds", "Expected of each save.").Unit("seconds"),
          self.save_stall_seconds);
    visit(Field("between_failures_seconds", "Expected of what is in use.").Unit("seconds"),
          self.between_failures_seconds);
  }
};

/// A pass of a micro-batch through a stage.
struct TimelineStep {
  std::string op;  ///< As PipelineOpName says.
  int64_t stage = 0;
  int64_t micro_batch = 0;
  double start = 0;
  double end = 0;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("op", "F forward, B backward, I and W its two halves."), self.op);
    visit(Field("stage", "Of the model."), self.stage);
    visit(Field("micro_batch", "Of the step."), self.micro_batch);
    visit(Field("start", "From the beginning of the step.").Unit("seconds"), self.start);
    visit(Field("end", "From the beginning of the step.").Unit("seconds"), self.end);
  }
};

struct TimelineRank {
  std::vector<TimelineStep> steps;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("steps", "In order."), self.steps);
  }
};

/// One optimizer step as the ranks of a pipeline make it, or one rank without.
struct Timeline {
  std::string schedule;
  int64_t micro_batches = 0;
  int64_t micro_batches_shown = 0;
  double passes_seconds = 0;
  double step_seconds = 0;
  double idle_share = 0;
  std::vector<TimelineRank> ranks;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("schedule", "Order of the passes; empty: no pipeline."), self.schedule);
    visit(Field("micro_batches", "Of a step and rank."), self.micro_batches);
    visit(Field("micro_batches_shown", "The first ones, whose passes are listed."),
          self.micro_batches_shown);
    visit(Field("passes_seconds", "Until the last pass has ended.").Unit("seconds"),
          self.passes_seconds);
    visit(Field("step_seconds", "With exchange of gradients and update.").Unit("seconds"),
          self.step_seconds);
    visit(Field("idle_share", "Of passes_seconds of all ranks, what they wait."), self.idle_share);
    visit(Field("ranks", "Of one pipeline, by stage."), self.ranks);
  }
};

/// What the chosen plan would gain from more of something.
struct Sensitivity {
  std::string what;
  double gain = 0;
  double step_seconds = 0;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("what", "That there would be 10 % more of."), self.what);
    visit(Field("gain", "In throughput: 0.04 is 4 %."), self.gain);
    visit(Field("step_seconds", "With it.").Unit("seconds"), self.step_seconds);
  }
};

/// Another way to run the job, at its best, or the first reason why it does not go.
struct Alternative {
  std::string name;
  std::string lines;
  bool fits = false;
  double step_seconds = 0;
  int64_t memory_bytes = 0;
  std::string reason;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("name", "For people."), self.name);
    visit(Field("lines", "Of the job, that ask for it."), self.lines);
    visit(Field("fits", "It would run."), self.fits);
    visit(Field("step_seconds", "Of the best plan of its kind; 0: none fits.").Unit("seconds"),
          self.step_seconds);
    visit(Field("memory_bytes", "Per rank; 0: not known.").Unit("bytes"), self.memory_bytes);
    visit(Field("reason", "Why it lost, what it would gain, or why it does not go."), self.reason);
  }
};

/// The best plan with this many devices.
struct FrontierPoint {
  std::string machines;
  int64_t devices = 0;
  int64_t devices_used = 0;
  int64_t ranks = 0;
  std::string mesh;
  double tokens_per_second = 0;
  double finish_seconds = 0;
  double price_per_hour = 0;
  double price = 0;
  double kilowatt_hours = 0;
  bool on_frontier = false;
  bool cheapest = false;
  std::string reason;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("machines", "Kind of the machines, by its first one; all: of every kind."),
          self.machines);
    visit(Field("devices", "That it may use."), self.devices);
    visit(Field("devices_used", "That it uses."), self.devices_used);
    visit(Field("ranks", "Of the plan."), self.ranks);
    visit(Field("mesh", "How they share the model."), self.mesh);
    visit(Field("tokens_per_second", "Over all ranks; 0: nothing fits.").Unit("tokens/s"),
          self.tokens_per_second);
    visit(Field("finish_seconds", "All steps.").Unit("seconds"), self.finish_seconds);
    visit(Field("price_per_hour", "Of what is in use; 0: not known."), self.price_per_hour);
    visit(Field("price", "Of all steps; 0: not known."), self.price);
    visit(Field("kilowatt_hours", "Of all steps; 0: not known.").Unit("kWh"), self.kilowatt_hours);
    visit(Field("on_frontier", "No other is as fast with as few devices."), self.on_frontier);
    visit(Field("cheapest", "No other run costs less."), self.cheapest);
    visit(Field("reason", "Why nothing fits; empty: something does."), self.reason);
  }
};

/// A plan that is worth measuring.
struct RunToMeasure {
  Plan plan;
  std::vector<std::string> lines;
  double deviation = 0;
  JobSpec spec;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("plan", "With its prediction."), self.plan);
    visit(Field("lines", "Of the job, that ask for it."), self.lines);
    visit(Field("deviation",
                "How far predictions of all plans may be off once it is measured, and those before "
                "it: 0.1 is 10 %."),
          self.deviation);
    visit(Field("spec", "A short job that runs so."), self.spec);
  }
};

/// Which runs would say most about all plans of a job.
struct MeasureAdvice {
  int64_t plans = 0;
  int64_t runs_known = 0;
  double deviation = 0;
  std::vector<RunToMeasure> runs;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("plans", "The fastest ones, whose predictions count."), self.plans);
    visit(Field("runs_known", "That the planner has learned from."), self.runs_known);
    visit(Field("deviation", "How far their predictions may be off until then."), self.deviation);
    visit(Field("runs", "What tells most first."), self.runs);
  }
};

/// A PlanReport and all that speaks for and against its plans. Its JSON is what users and programs
/// see.
struct PlanExplanation {
  PlanReport report;
  std::string job;
  std::string device;
  int64_t devices = 0;
  int64_t steps = 0;
  int64_t tokens_per_step = 0;
  std::string currency;
  std::vector<std::string> notes;
  std::vector<std::string> lines;
  std::vector<PlanDetail> details;
  std::vector<Sensitivity> sensitivity;
  std::vector<Alternative> alternatives;
  int64_t fewest_devices = 0;
  Timeline timeline;
  RunTime run;
  std::vector<FrontierPoint> frontier;
  MeasureAdvice measure;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    PlanReport::Fields(self.report, visit);
    visit(Field("job", "Its name."), self.job);
    visit(Field("device", "What is counted as one: GPU or machine."), self.device);
    visit(Field("devices", "There are."), self.devices);
    visit(Field("steps", "Of the job."), self.steps);
    visit(Field("tokens_per_step", "Over all ranks."), self.tokens_per_step);
    visit(Field("currency", "Of all prices."), self.currency);
    visit(Field("notes", "What is not known, and what wishes have changed."), self.notes);
    visit(Field("lines", "Of the job, that ask for the chosen plan."), self.lines);
    visit(Field("details", "By candidate."), self.details);
    visit(Field("sensitivity", "Of the chosen plan, most first."), self.sensitivity);
    visit(Field("alternatives", "Other ways to run the job."), self.alternatives);
    visit(Field("fewest_devices", "On which some plan fits."), self.fewest_devices);
    visit(Field("timeline", "Of the chosen plan."), self.timeline);
    visit(Field("run", "Time of the whole run by the chosen plan, part by part."), self.run);
    visit(Field("frontier", "By number of devices."), self.frontier);
    visit(Field("measure", "What to measure."), self.measure);
  }
};

}  // namespace weft::planner
