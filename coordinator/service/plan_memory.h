#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/spec/cluster_spec.h"
#include "common/spec/job_spec.h"
#include "common/spec/plan.h"
#include "coordinator/scheduler/best_plan.h"
#include "coordinator/service/planning_pool.h"

namespace weft::coordinator {

/// How long the service plans for a job.
struct PlanningRules {
  /// Most time for one plan of a job in the queue; one that takes longer is given up.
  std::chrono::nanoseconds budget = std::chrono::seconds(8);
  /// Most time for one that a user asked for.
  std::chrono::nanoseconds call_budget = std::chrono::seconds(60);
  /// Jobs hold back others for this long while their plans are under way; all that wait meanwhile
  /// use up the same time.
  std::chrono::nanoseconds patience = std::chrono::seconds(2);
  /// The pause until a plan that was given up is looked for again; each time twice as long, up to
  /// the longest.
  std::chrono::nanoseconds first_pause = std::chrono::minutes(1);
  std::chrono::nanoseconds longest_pause = std::chrono::hours(1);
};

/// The planner's answers, by what of the job plans depend on and the cluster, until either changes.
/// What is not known is asked for on a pool, once for all jobs that are alike. On one thread, the
/// event loop.
class PlanMemory {
 public:
  /// Runs a task on the thread of this object, then, or after a while.
  using Post = std::function<void(std::function<void()>)>;
  using PostAfter = std::function<void(std::chrono::nanoseconds, std::function<void()>)>;
  /// There is an answer that was asked for by this owner, or one may be asked for again.
  using Changed = std::function<void(const std::string& owner)>;

  /// All outlive it, and `pool` is stopped before it goes.
  PlanMemory(const Clock& clock, PlanningPool& pool, StoppablePlanFunction plan,
             PlanningRules rules, Post post, PostAfter post_after, Changed changed);

  /// The answer, or why there is none yet: kUnavailable, it is being looked for, now at the latest;
  /// kAborted, that took too long and is tried again after a pause. Of what is asked for in a pass,
  /// the first and the last are looked for first. `owner`: a job that runs; empty: the queue.
  Result<PlanReport> Find(const JobSpec& spec, const ClusterProfile& cluster,
                          const std::string& owner);

  /// The answer where it is known; nothing is asked for.
  Result<PlanReport> Recall(const JobSpec& spec, const ClusterProfile& cluster) const;

  /// A pass over the queue begins; EndPass gives up all that is looked for for the queue and was
  /// not asked for since.
  void BeginPass();
  void EndPass();
  /// Gives up what is looked for for that job.
  void Forget(const std::string& owner);

 private:
  struct Key {
    int64_t cluster = 0;
    std::string shape;
    auto operator<=>(const Key&) const = default;
  };
  struct Entry {
    Key key;
    std::string owner;
    int64_t pass = 0;                         ///< When it was asked for last.
    int64_t number = 0;                       ///< Of the request.
    std::shared_ptr<PlanTicket> ticket = {};  ///< While it is looked for.
    Result<PlanReport> report = UnavailableError("its plan is being looked for");
  };
  using Entries = std::list<Entry>;  ///< Those asked for last first.
  /// Counts how often the planning of a job was given up.
  struct Overrun {
    int times = 0;
    std::chrono::nanoseconds not_before{0};
  };
  struct KnownCluster {
    int64_t id = 0;
    size_t hash = 0;
    std::shared_ptr<const ClusterProfile> cluster;
  };

  using KnownClusters = std::list<KnownCluster>;  ///< Those asked for last first.

  KnownClusters::const_iterator Known(const ClusterProfile& cluster, size_t hash) const;
  KnownCluster IdOf(const ClusterProfile& cluster);
  /// Forgets clusters that were asked for long ago, with their answers.
  void ForgetClusters();
  void Ask(Entry& entry, const JobSpec& spec, std::shared_ptr<const ClusterProfile> cluster);
  /// Takes the result of a request.
  void Take(const Key& key, int64_t number, bool overran, Result<PlanReport> report);
  void GiveUp(Entries::iterator entry);
  /// All for which that holds of those that are looked for.
  void GiveUpIf(const std::function<bool(const Entry&)>& which);
  Status TookTooLong() const;

  const Clock& clock_;
  PlanningPool& pool_;
  const StoppablePlanFunction plan_;
  const PlanningRules rules_;
  const Post post_;
  const PostAfter post_after_;
  const Changed changed_;
  int64_t pass_ = 0;
  std::vector<std::shared_ptr<PlanTicket>> asked_;  ///< For the queue in this pass, in its order.
  int64_t last_cluster_ = 0;
  int64_t last_number_ = 0;
  KnownClusters clusters_;
  Entries entries_;
  std::map<Key, Entries::iterator> by_key_;
  std::map<std::string, Overrun> overruns_;  ///< By shape.
};

}  // namespace weft::coordinator
