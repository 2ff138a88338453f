#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "common/dtype.h"
#include "common/model/model_counts.h"
#include "common/model/precision.h"
#include "common/spec/cluster_spec.h"
#include "common/spec/time_calibration.h"
#include "coordinator/planner/cluster/block_shapes.h"
#include "coordinator/planner/machine_links.h"

namespace weft::planner {

/// Where a rank computes.
struct RankPlace {
  int64_t threads = 1;          ///< Of the rank.
  int64_t ranks_on_worker = 1;  ///< Ranks of the job on its worker.
  bool spans_racks = false;     ///< The job's ranks are in several racks.
};

/// Ranks that exchange data, and how they are placed.
struct RankGroup {
  int64_t ranks = 1;
  int64_t on_worker = 1;  ///< Fewest of them on a worker that has any; its link is the slowest.
  MachineLink link = {};  ///< The worst that is stated between two of their workers.

  bool within_worker() const { return on_worker >= ranks; }
};

/// Collectives that run one after the other.
struct CollectiveLoad {
  double all_reduces = 0;     ///< Count.
  double reduced_bytes = 0;   ///< Payload of all of them.
  double gathers = 0;         ///< Count of all-gathers and reduce-scatters.
  double gathered_bytes = 0;  ///< Payload of all of them.
};

/// How fast a rank sends to one other rank.
struct Wire {
  double bytes_per_second = 0;
  double message_seconds = 0;
};

/// Operations (on a GPU: kernels) of a pass. Those of experts come on top of a dense block's.
struct OperationCounts {
  double forward = 0;           ///< Of a block.
  double attention = 0;         ///< Of these, inside attention: recomputed with it.
  double backward = 0;          ///< Of a block.
  double pass = 0;              ///< Outside the blocks: embedding, classifier, loading the batch.
  double forward_routing = 0;   ///< Of a block of experts: routing, dispatch, combination.
  double backward_routing = 0;  ///< The same, backward.
  double forward_expert = 0;    ///< Of each expert after the first.
  double backward_expert = 0;   ///< The same, backward.
};

/// What operations cost whatever they compute.
struct OperationCosts {
  double operation_seconds = 0;    ///< Every operation takes this on top of its work.
  double launch_seconds = 0;       ///< To launch an operation, which overlaps with earlier ones.
  double expert_wait_seconds = 0;  ///< Once in each forward pass of a block of experts.
};

/// Bytes that are read and written to copy a number of a stored matrix into the form that products
/// read: packed, or in their type.
struct OperandCopies {
  static constexpr double kCodeBytes = 0.5;  ///< Of a quantised number.

  double update = 0;    ///< Once a step, after the update, where it is made.
  double uploaded = 0;  ///< On the device, each time that a number has come up from the host.
  double gathered = 0;  ///< In each forward and each backward pass, where ranks gather parameters.
  double backward = 0;  ///< In each backward pass.
  double dequantized = 0;  ///< Of a quantised weight, in each forward and each backward pass.
};

/// How fast a worker does what a training step consists of. The step-time formula (step_time.h)
/// asks nothing else, so that it is the same on all hardware: ProcessorRates has measured rates of
/// processors, DeviceRates those of GPUs. All that the two assume differently is in here.
class StepRates {
 public:
  virtual ~StepRates() = default;
  StepRates(const StepRates&) = delete;
  StepRates& operator=(const StepRates&) = delete;

  // Products.

  /// FLOP/s of a product [m, k] x [k, n] with operands of type `products` on `threads` threads.
  virtual double GemmFlopsPerSecond(DType products, int64_t m, int64_t n, int64_t k,
                                    int64_t threads) const = 0;
  /// The same with operands of products().
  double GemmFlopsPerSecond(int64_t m, int64_t n, int64_t k, int64_t threads) const {
    return GemmFlopsPerSecond(products_, m, n, k, threads);
  }
  /// FLOP/s of flash attention.
  virtual double AttentionFlopsPerSecond(int64_t threads) const = 0;
  /// Whether operands in `format` are multiplied as such. Else they are widened, and products take
  /// as long as those with operands of products().
  virtual bool Multiplies(const ProductFormat& /*format*/) const { return false; }
  /// Seconds of a product [m, k] x [k, n] with operands in a format that Multiplies() names.
  virtual double FormatProductSeconds(const ProductFormat& /*format*/, int64_t /*m*/, int64_t /*n*/,
                                      int64_t /*k*/) const {
    return 0;
  }
  /// FLOP/s, counted as those of a dense product, of a product with the weight of an MLP in the
  /// form of a technique (TechniqueProducts::rate_name); 0: not measured.
  virtual double TechniqueFlopsPerSecond(std::string_view /*rate_name*/, GemmPass /*pass*/,
                                         int64_t /*m*/, int64_t /*n*/, int64_t /*k*/,
                                         int64_t /*threads*/) const {
    return 0;
  }
  /// How often the backward pass of attention draws its dropout again.
  virtual double backward_dropout_draws() const { return 1; }
  /// How many times longer products take with the other ranks on the worker.
  virtual double Slowdown(const RankPlace& /*place*/) const { return 1; }
  /// Whether runs have said something about blocks of some shapes, and what they say of blocks that
  /// have nearly the shape `block`.
  virtual bool has_near_shapes() const { return false; }
  virtual NearShapes Near(const MeasuredShape& /*block*/) const { return {}; }

  // Memory and files.

  /// Bytes per second, read plus write, of memory-bound work of one rank.
  virtual double MemoryBytesPerSecond(const RankPlace& place) const = 0;
  /// The same of the update, on the device or, with `on_host`, on the host.
  virtual double UpdateBytesPerSecond(const RankPlace& place, bool on_host) const = 0;
  /// Lower bound, at any place, of the seconds of memory-bound work that moves `bytes`.
  virtual double LeastMemorySeconds(double bytes) const = 0;
  /// Copies of matrices that products need. `format_share`: share of the blocks whose products have
  /// operands in precision.block_products; `gathers`: ranks gather parameters in every pass;
  /// `on_host`: the host makes the update.
  virtual OperandCopies CopiesOf(const PrecisionRecipe& precision, double format_share,
                                 bool gathers, bool on_host) const = 0;
  /// Bytes per second that one of the ranks gets of the host's memory.
  double HostBytesPerSecond(const RankPlace& place) const;
  /// Bytes per second of a file that each rank of the worker reads and writes.
  double FileBytesPerSecond(const RankPlace& place) const;
  /// Whether an update whose state is in a file goes on during the next forward pass.
  virtual bool overlaps_files_with_forward() const = 0;
  /// Bytes per second in each direction between device and host. `wanted`: what the job says.
  virtual double HostLinkBytesPerSecond(const RankPlace& place, int64_t wanted) const = 0;

  // Operations.

  virtual const OperationCounts& operations() const = 0;
  virtual OperationCosts CostsOfOperations(const RankPlace& place) const = 0;
  /// Seconds that every step takes whatever it computes.
  virtual double step_seconds() const = 0;

  // Links.

  /// Bytes per second of one stream between two ranks, on one worker or on two of a rack.
  virtual double LinkBytesPerSecond(bool within_worker) const = 0;
  /// The same of messages of one rank of the group to another. Where ranks are in several racks,
  /// messages between workers are as slow as those between racks, and those of a group as slow as
  /// over its link: a ring waits for its slowest link.
  virtual Wire PointToPoint(const RankPlace& place, const RankGroup& group) const = 0;
  virtual double CollectiveSeconds(const RankPlace& place, const RankGroup& group,
                                   const CollectiveLoad& load) const = 0;
  /// Seconds of `count` all-reduces with `bytes` in all.
  double AllReduceSeconds(const RankPlace& place, const RankGroup& group, double bytes,
                          double count) const {
    return CollectiveSeconds(place, group, {.all_reduces = count, .reduced_bytes = bytes});
  }
  /// Seconds of `count` all-gathers or reduce-scatters with `bytes` in all.
  double GatherSeconds(const RankPlace& place, const RankGroup& group, double bytes,
                       double count) const {
    return CollectiveSeconds(place, group, {.gathers = count, .gathered_bytes = bytes});
  }
  /// Seconds of `count` all-gathers between the hosts of the ranks, with `bytes` in all; ranks on
  /// devices first bring their parts to the host.
  virtual double HostGatherSeconds(const RankPlace& place, const RankGroup& group, double bytes,
                                   double count) const = 0;
  /// Seconds of an all-to-all of `bytes` that a rank has for all ranks, itself among them, in so
  /// many messages.
  virtual double AllToAllSeconds(const RankPlace& place, const RankGroup& group, double bytes,
                                 double messages) const = 0;
  /// Seconds of `times` all-to-alls of counts, which are `bytes` each.
  virtual double CountExchangeSeconds(const RankPlace& place, const RankGroup& group, double times,
                                      double bytes) const = 0;
  /// Collectives that `buckets` buckets of gradients count as.
  virtual double CollectivesOf(double buckets) const = 0;
  /// Links of `ranks` ranks of one worker that send at once.
  virtual double LinksOf(int64_t ranks) const = 0;
  /// Seconds of an exchange that takes `seconds` between ranks, where `bytes` of it are staged from
  /// and to the host, both at once.
  virtual double StagedSeconds(double seconds, double bytes) const = 0;
  /// Those of `seconds` of collectives that overlap with products that take `multiplying`.
  virtual double HiddenSeconds(const RankPlace& place, double seconds,
                               double multiplying) const = 0;
  /// Share of the products that messages of a ring attention can overlap with.
  virtual double Overlap(const RankPlace& place) const = 0;

  /// Where times come from when they are not the plain measurements of the worker; else empty.
  virtual std::string Source() const = 0;

  DType products() const { return products_; }

 protected:
  /// `worker` outlives it. `products`: type of the operands.
  StepRates(const WorkerProfile& worker, DType products) : worker_(worker), products_(products) {}

  /// Bytes per second of the worker's loopback.
  double LoopbackBytesPerSecond() const;
  /// What is left of a rate between workers of the group where ranks span racks, or a link is
  /// slower, and ranks have a share `share` of what the worker sends.
  double BetweenWorkers(const RankPlace& place, const RankGroup& group, double bytes_per_second,
                        double share = 1) const;
  /// How much longer messages between workers of the group take than those within one.
  double NetworkLatencySeconds(const RankPlace& place, const RankGroup& group) const;

  const WorkerProfile& worker_;
  const DType products_;
};

/// Rates of `worker`, which outlives them, for products with operands of type `products`: of its
/// first usable GPU with `on_devices`, where it has one, else of its processor.
std::unique_ptr<const StepRates> MakeStepRates(const WorkerProfile& worker, DType products,
                                               bool on_devices);

}  // namespace weft::planner
