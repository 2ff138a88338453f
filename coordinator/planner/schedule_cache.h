#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/model/pipeline_shape.h"
#include "common/pipeline/schedule.h"
#include "coordinator/planner/cluster/on_threads.h"

namespace weft::planner {

/// What tells schedules of pipelines apart: the arguments of NamedSchedule.
struct ScheduleName {
  std::string kind;
  int64_t ranks = 1;
  int64_t chunks = 1;
  int64_t micro_batches = 1;

  bool operator<(const ScheduleName& other) const {
    return std::tie(kind, ranks, chunks, micro_batches) <
           std::tie(other.kind, other.ranks, other.chunks, other.micro_batches);
  }
};

/// A schedule, and what ranks hold by it.
struct CachedSchedule {
  explicit CachedSchedule(PipelineSchedule made) : schedule(std::move(made)), in_flight(schedule) {}

  PipelineSchedule schedule;
  InFlightActivations in_flight;
};

/// Schedules of pipelines, each made once: many plans of a search have the same ones.
class ScheduleCache {
 public:
  /// Makes those of `names` that are not here yet. They must exist.
  void Add(const std::vector<ScheduleName>& names, ThreadPool& pool);

  /// One that was added. From several threads, while none adds some.
  const CachedSchedule& At(const ScheduleName& name) const { return made_.at(name); }

 private:
  std::map<ScheduleName, CachedSchedule> made_;
};

}  // namespace weft::planner
