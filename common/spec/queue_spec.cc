#include "common/spec/queue_spec.h"

#include <algorithm>
#include <map>

#include "common/spec/spec_json.h"

namespace weft {
namespace {

bool IsName(const std::string& name) {
  const auto legal = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
  };
  return !name.empty() && name.front() != '-' && name.back() != '-' &&
         std::all_of(name.begin(), name.end(), legal);
}

std::string DidYouMean(const std::string& name, const std::vector<std::string>& known) {
  const std::string nearest = NearestName(name, known);
  return nearest.empty() ? "" : "; did you mean '" + nearest + "'?";
}

std::vector<std::string> Names(const QueuesSpec& spec) {
  std::vector<std::string> names;
  for (const QueueSpec& queue : spec.queues) names.push_back(queue.name);
  return names;
}

/// One of the two kinds of resources that quotas and limits count.
struct Resource {
  const char* name;
  int64_t QueueSpec::*quota;
  std::optional<int64_t> QueueSpec::*limit;
};
constexpr Resource kResources[] = {{"gpus", &QueueSpec::quota_gpus, &QueueSpec::limit_gpus},
                                   {"cores", &QueueSpec::quota_cores, &QueueSpec::limit_cores}};

}  // namespace

Status ValidateQueues(const QueuesSpec& spec) {
  std::map<std::string, const QueueSpec*> by_name;
  for (const QueueSpec& queue : spec.queues) {
    if (!IsName(queue.name)) {
      return InvalidError("queue '" + queue.name +
                          "': name must be lower-case letters, digits and dashes within");
    }
    if (!by_name.emplace(queue.name, &queue).second) {
      return InvalidError("queue '" + queue.name + "' is declared twice");
    }
  }
  std::map<std::string, std::pair<int64_t, int64_t>> quotas_below;
  for (const QueueSpec& queue : spec.queues) {
    for (const Resource& resource : kResources) {
      const std::optional<int64_t>& limit = queue.*resource.limit;
      if (limit && *limit < queue.*resource.quota) {
        return InvalidError("queue '" + queue.name + "': limit_" + resource.name + " (" +
                            std::to_string(*limit) + ") is below quota_" + resource.name + " (" +
                            std::to_string(queue.*resource.quota) + ")");
      }
    }
    if (queue.parent.empty()) continue;
    if (!by_name.contains(queue.parent)) {
      return InvalidError("queue '" + queue.name + "': there is no parent '" + queue.parent + "'" +
                          DidYouMean(queue.parent, Names(spec)));
    }
    size_t steps = 0;
    for (const QueueSpec* above = &queue; !above->parent.empty();) {
      auto next = by_name.find(above->parent);
      if (next == by_name.end()) break;  // reported at its own turn
      above = next->second;
      if (++steps > spec.queues.size()) {
        return InvalidError("queue '" + queue.name + "': its parents go round in a circle");
      }
    }
    quotas_below[queue.parent].first += queue.quota_gpus;
    quotas_below[queue.parent].second += queue.quota_cores;
  }
  for (const auto& [name, below] : quotas_below) {
    const QueueSpec& queue = *by_name.at(name);
    const int64_t sums[] = {below.first, below.second};
    for (size_t i = 0; i < 2; ++i) {
      const int64_t own = queue.*kResources[i].quota;
      if (sums[i] > own) {
        return InvalidError("queue '" + name + "': the queues below it have a quota_" +
                            kResources[i].name + " of " + std::to_string(sums[i]) +
                            " together, more than its own " + std::to_string(own));
      }
    }
  }
  return OkStatus();
}

Status CheckQueueOfJob(const QueuesSpec& spec, const std::string& name) {
  std::vector<std::string> leaves = {kDefaultQueue}, below;
  for (const QueueSpec& queue : spec.queues) {
    const bool inner = std::any_of(spec.queues.begin(), spec.queues.end(),
                                   [&](const QueueSpec& q) { return q.parent == queue.name; });
    if (!inner) leaves.push_back(queue.name);
    if (queue.parent == name) below.push_back(queue.name);
  }
  if (!below.empty()) {
    return InvalidError("scheduling.queue: '" + name +
                        "' has queues below it; hint: name one of those, such as '" +
                        below.front() + "'");
  }
  if (std::find(leaves.begin(), leaves.end(), name) != leaves.end()) return OkStatus();
  return InvalidError("scheduling.queue: there is no queue '" + name + "'" +
                      DidYouMean(name, leaves));
}

Status CheckPriorityOfJob(const QueuesSpec& spec, const std::string& name, int64_t priority) {
  const auto find = [&](const std::string& wanted) {
    return std::find_if(spec.queues.begin(), spec.queues.end(),
                        [&](const QueueSpec& queue) { return queue.name == wanted; });
  };
  auto queue = find(name);
  if (queue == spec.queues.end()) queue = find(kDefaultQueue);  // where its jobs count
  for (; queue != spec.queues.end(); queue = find(queue->parent)) {
    if (priority <= queue->max_priority.value_or(priority)) continue;
    return InvalidError("priority " + std::to_string(priority) + " is above the max_priority " +
                        std::to_string(*queue->max_priority) + " of queue '" + queue->name +
                        "'; hint: a lower priority, or an admin gives the job more");
  }
  return OkStatus();
}

}  // namespace weft
