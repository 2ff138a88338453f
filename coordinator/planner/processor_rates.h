#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/model/memory_model.h"
#include "common/spec/plan.h"
#include "coordinator/planner/step_rates.h"

namespace weft::planner {

/// Rates of a worker's processor: what the worker measured, or defaults by instruction set where it
/// measured nothing, and what its calibration says that training reaches of them. Ranks of a worker
/// share its memory, and may take turns on its processors.
class ProcessorRates final : public StepRates {
 public:
  ProcessorRates(const WorkerProfile& worker, DType products);

  using StepRates::GemmFlopsPerSecond;
  /// The mean of the measured products of that type, weighted by nearness of the logarithms of
  /// their sizes (inverse distance weighting, Shepard 1968). Measurements with the next lower
  /// number of threads replace missing ones, at 90 % scaling. Without any: a fixed rate by
  /// instruction set, less for thin matrices.
  double GemmFlopsPerSecond(DType products, int64_t m, int64_t n, int64_t k,
                            int64_t threads) const override;
  double TechniqueFlopsPerSecond(std::string_view rate_name, GemmPass pass, int64_t m, int64_t n,
                                 int64_t k, int64_t threads) const override;
  /// Its products are small: a calibrated share of the rate of a 512-cube product.
  double AttentionFlopsPerSecond(int64_t threads) const override;
  double Slowdown(const RankPlace& place) const override;
  bool has_near_shapes() const override { return !shapes_.empty(); }
  NearShapes Near(const MeasuredShape& block) const override;

  double MemoryBytesPerSecond(const RankPlace& place) const override;
  double UpdateBytesPerSecond(const RankPlace& place, bool on_host) const override;
  /// 0: a rank alone on its worker has all of the memory's bandwidth.
  double LeastMemorySeconds(double bytes) const override;
  OperandCopies CopiesOf(const PrecisionRecipe& precision, double format_share, bool gathers,
                         bool on_host) const override;
  bool overlaps_files_with_forward() const override { return true; }
  /// What the job says, or a share of the memory's bandwidth: half of it, which reads and writes
  /// each, where no run has shown more.
  double HostLinkBytesPerSecond(const RankPlace& place, int64_t wanted) const override;

  const OperationCounts& operations() const override;
  OperationCosts CostsOfOperations(const RankPlace& place) const override;
  double step_seconds() const override { return worker_.calibration.step_seconds; }

  double LinkBytesPerSecond(bool within_worker) const override;
  Wire PointToPoint(const RankPlace& place, const RankGroup& group) const override;
  double CollectiveSeconds(const RankPlace& place, const RankGroup& group,
                           const CollectiveLoad& load) const override;
  double HostGatherSeconds(const RankPlace& place, const RankGroup& group, double bytes,
                           double count) const override;
  double AllToAllSeconds(const RankPlace& place, const RankGroup& group, double bytes,
                         double messages) const override;
  /// Their bytes count nothing.
  double CountExchangeSeconds(const RankPlace& place, const RankGroup& group, double times,
                              double bytes) const override;
  /// Each bucket has messages of its own.
  double CollectivesOf(double buckets) const override { return buckets; }
  /// 1: all ranks of a worker send over one link.
  double LinksOf(int64_t ranks) const override;
  /// Ranks compute on the host: nothing is staged.
  double StagedSeconds(double seconds, double bytes) const override;
  double HiddenSeconds(const RankPlace& place, double seconds, double multiplying) const override;
  double Overlap(const RankPlace& place) const override;

  /// Says by how many runs the rates were calibrated, where they were.
  std::string Source() const override;

  /// How the processor of `worker` multiplies operands of type `products`.
  static ProductKind ProductsOf(const WorkerProfile& worker, DType products);

 private:
  /// FLOP/s of the products called `name` (GemmRate::precision) on `threads` threads: the mean that
  /// GemmFlopsPerSecond describes over what was measured on `measured` threads.
  double MeasuredRate(std::string_view name, int64_t m, int64_t n, int64_t k, int64_t measured,
                      int64_t threads) const;
  /// How many ranks take turns on each processor of the worker; at least 1.
  double RanksPerProcessor(const RankPlace& place) const;

  std::vector<WeighedShape> shapes_;  ///< Of the calibration.
};

/// What computes the plan on that machine.
ComputeUnits UnitsOf(const Plan& plan, const WorkerProfile& worker);

}  // namespace weft::planner
