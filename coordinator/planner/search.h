#pragma once

#include <cstdint>
#include <limits>
#include <queue>
#include <string>
#include <vector>

#include "common/model/memory_model.h"
#include "common/model/remat_schedule.h"
#include "common/spec/cluster_spec.h"
#include "common/spec/job_spec.h"
#include "common/spec/plan.h"

namespace weft::planner {

/// One way to run the job, with what it costs.
struct Option {
  bool on_devices = false;  ///< Each rank has a GPU of its own.
  int64_t ranks = 1;
  int64_t tensor = 1;            ///< Of them share each matrix.
  int64_t pipeline = 1;          ///< Stages that so many ranks have each.
  int64_t context = 1;           ///< Ranks that share each sequence.
  int64_t experts = 1;           ///< Of those that see different sequences, share the experts.
  int64_t ranks_per_worker = 1;  ///< At most so many on each.
  int64_t threads = 1;
  int64_t micro_batch = 1;
  int64_t accumulation_steps = 1;
  int64_t recomputed_blocks = 0;  ///< The first ones, each once; of a schedule, all replays.
  int64_t attention_blocks = 0;   ///< After them, those that recompute attention alone.
  RematPlan schedule;             ///< Instead, where it is not empty.
  TimeBreakdown time;
  MemoryBreakdown memory;
  int64_t device_bytes = 0;  ///< Of it on the device, where that has a limit.
  std::string misfit;        ///< Why it cannot run; empty when it can.

  /// Those that see different sequences.
  int64_t data_ranks() const { return ranks / (tensor * pipeline * context); }
};

struct SearchResult {
  std::vector<Option> fitting;     ///< Fastest first, up to kSorted.
  std::vector<Option> misfitting;  ///< Least memory first, up to kSorted.
  std::vector<const WorkerProfile*> workers;
  std::vector<size_t> kinds;  ///< By worker: equal where all but names is equal.
  int64_t considered = 0;
  std::string times_from;  ///< On GPUs: where their rates come from.
};

/// Ranks on each of `workers`: filled one after the other, at most
/// option.ranks_per_worker on each, as many as its cores and its memory, or its GPUs, hold.
/// Adds up to less than option.ranks when there is no room for all.
std::vector<int64_t> PlaceRanks(const Option& option,
                                const std::vector<const WorkerProfile*>& workers);

/// So many options at the head of each list are in order.
inline constexpr size_t kSorted = 32;

/// The step times of the kSorted fastest options of one search or several. What cannot be as fast
/// as all of them need not be looked at.
class FastestSteps {
 public:
  void Add(double seconds) {
    if (fastest_.size() == kSorted && seconds >= fastest_.top()) return;
    fastest_.push(seconds);
    if (fastest_.size() > kSorted) fastest_.pop();
  }
  /// Steps that take longer are not among them.
  double Limit() const {
    return fastest_.size() < kSorted ? std::numeric_limits<double>::infinity() : fastest_.top();
  }

 private:
  std::priority_queue<double> fastest_;
};

/// Bucket of the gradient all-reduce: 25 MiB, large enough for full bandwidth.
inline constexpr int64_t kBucketBytes = int64_t{25} << 20;

/// Bucket of gradients of `job`, with the sizes of `model`. Where gradients leave the device it has
/// no more than a block, so that few are there at a time.
int64_t BucketBytes(const JobSpec& job, const ModelSpec& model);

/// What a rank of `job` has of its model, of each stage as if it were alone.
ModelShape ShapeOfRank(const JobSpec& job);

/// Whether the ranks of `job` are to compute on GPUs: it says so, or leaves the choice, has no
/// pipeline and no shared sequences, and some worker has them.
bool WantsDevices(const JobSpec& job, const ClusterProfile& cluster);

/// Tries everything. `cluster` outlives the result. With `fastest`, options are left out, but for
/// being counted, whose products alone take longer than its limit: what is among the kSorted
/// fastest of all searches that share it is found.
SearchResult Search(const JobSpec& job, const ClusterProfile& cluster,
                    FastestSteps* fastest = nullptr);

}  // namespace weft::planner
