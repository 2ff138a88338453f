#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/spec/field.h"
#include "common/status.h"

namespace weft {

/// The queue of jobs that name none. It is there even where it is not declared.
inline constexpr const char* kDefaultQueue = "default";

/// A queue of jobs, and what of the cluster belongs to it. Queues form trees; jobs wait in queues
/// that have no queues below them.
struct QueueSpec {
  std::string name;
  std::string parent;
  double weight = 1;
  int64_t quota_gpus = 0;
  int64_t quota_cores = 0;
  std::optional<int64_t> limit_gpus;
  std::optional<int64_t> limit_cores;
  std::optional<int64_t> max_priority;

  bool operator==(const QueueSpec&) const = default;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("name", "Name that jobs give: lower-case letters, digits and dashes.")
              .Required()
              .Range(1, 63),
          self.name);
    visit(Field("parent", "Queue above it; empty: none.").Range(0, 63), self.parent);
    visit(Field("weight", "Share of what it and its siblings have in common.").Range(1e-3, 1e6),
          self.weight);
    visit(Field("quota_gpus",
                "GPUs that belong to it: others borrow those that it leaves free, and give them "
                "back.")
              .Range(0, 1e9),
          self.quota_gpus);
    visit(Field("quota_cores", "The same of cores, of jobs that run on CPUs.").Range(0, 1e9),
          self.quota_cores);
    visit(Field("limit_gpus", "Most GPUs that its jobs hold, with borrowed ones; none: no limit.")
              .Range(0, 1e9),
          self.limit_gpus);
    visit(Field("limit_cores", "The same of cores, of jobs that run on CPUs.").Range(0, 1e9),
          self.limit_cores);
    visit(Field("max_priority",
                "Highest priority that people may give its jobs, and those of queues below it; "
                "admins may give more. None: no limit.")
              .Range(-1000, 1000),
          self.max_priority);
  }
};

/// The file of queues.
struct QueuesSpec {
  std::vector<QueueSpec> queues;

  bool operator==(const QueuesSpec&) const = default;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("queues", "All queues.").Range(0, 10000), self.queues);
  }
};

/// Checks what single fields cannot say: names, parents that exist and do not go round, quotas
/// within those of the parent and within the limit. kInvalid names the queue and the field.
Status ValidateQueues(const QueuesSpec& spec);

/// Whether jobs may name the queue: it is the default one, or declared and has none below it.
/// kInvalid says which queue was meant, or which ones are below.
Status CheckQueueOfJob(const QueuesSpec& spec, const std::string& name);

/// Whether people may give jobs of the queue this priority: max_priority of no queue from it
/// upwards is less. kInvalid says which one is.
Status CheckPriorityOfJob(const QueuesSpec& spec, const std::string& name, int64_t priority);

}  // namespace weft
