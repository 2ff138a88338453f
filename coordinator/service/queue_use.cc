#include "coordinator/service/queue_use.h"

#include <algorithm>
#include <map>

namespace weft::coordinator {

std::vector<QueueUse> QueueUses(const QueuesSpec& queues, const ComputeAmount& total,
                                const std::vector<QueuedUse>& jobs) {
  std::vector<QueueUse> uses;
  std::map<std::string, size_t> index_of;
  const auto add = [&](const QueueSpec& spec) {
    index_of[spec.name] = uses.size();
    uses.emplace_back().spec = spec;
  };
  for (const QueueSpec& spec : queues.queues) add(spec);
  if (!index_of.contains(kDefaultQueue)) {
    QueueSpec spec;
    spec.name = kDefaultQueue;
    add(spec);
  }
  for (const QueuedUse& job : jobs) {
    const auto found = index_of.find(job.queue);
    std::string queue = found == index_of.end() ? kDefaultQueue : job.queue;
    while (!queue.empty()) {
      QueueUse& use = uses[index_of.at(queue)];
      use.used += job.held;
      ++(job.waits ? use.waiting_jobs : use.running_jobs);
      queue = use.spec.parent;
    }
  }
  std::map<std::string, double> weights;  // of all queues below one, by its name
  for (const QueueUse& use : uses) weights[use.spec.parent] += use.spec.weight;
  for (QueueUse& use : uses) {
    double share = 1;
    for (const QueueSpec* at = &use.spec;; at = &uses[index_of.at(at->parent)].spec) {
      share *= at->weight / weights.at(at->parent);
      if (at->parent.empty()) break;
    }
    const auto ratio = [share](int64_t used, int64_t of) {
      return of > 0 ? static_cast<double>(used) / (share * static_cast<double>(of)) : 0;
    };
    use.fair_share_ratio =
        std::max(ratio(use.used.gpus, total.gpus), ratio(use.used.cores, total.cores));
  }
  return uses;
}

}  // namespace weft::coordinator
