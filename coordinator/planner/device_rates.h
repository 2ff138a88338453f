#pragma once

#include <cstdint>
#include <string>

#include "coordinator/planner/device_model.h"
#include "coordinator/planner/step_rates.h"

namespace weft::planner {

/// Rates of a worker's GPUs: those of DeviceModel, and for what is offloaded those of the worker's
/// host. Each rank has one GPU. The host launches kernels ahead of the device.
class DeviceRates final : public StepRates {
 public:
  /// `worker` outlives them; `device` is one of its GPUs.
  DeviceRates(const WorkerProfile& worker, const DeviceSpec& device, DType products);

  using StepRates::GemmFlopsPerSecond;
  /// Takes the time of the product on the device; `threads` do not matter.
  double GemmFlopsPerSecond(DType products, int64_t m, int64_t n, int64_t k,
                            int64_t threads) const override;
  double AttentionFlopsPerSecond(int64_t threads) const override;
  bool Multiplies(const ProductFormat& /*format*/) const override { return true; }
  double FormatProductSeconds(const ProductFormat& format, int64_t m, int64_t n,
                              int64_t k) const override;
  double TechniqueFlopsPerSecond(std::string_view rate_name, GemmPass pass, int64_t m, int64_t n,
                                 int64_t k, int64_t threads) const override;
  /// 2: once in each of two kernels.
  double backward_dropout_draws() const override { return 2; }

  double MemoryBytesPerSecond(const RankPlace& place) const override;
  double UpdateBytesPerSecond(const RankPlace& place, bool on_host) const override;
  double LeastMemorySeconds(double bytes) const override;
  OperandCopies CopiesOf(const PrecisionRecipe& precision, double format_share, bool gathers,
                         bool on_host) const override;
  bool overlaps_files_with_forward() const override { return false; }
  /// What was measured, or the slot allows.
  double HostLinkBytesPerSecond(const RankPlace& place, int64_t wanted) const override;

  const OperationCounts& operations() const override;
  OperationCosts CostsOfOperations(const RankPlace& place) const override;
  double step_seconds() const override { return model_.stack().step_seconds; }

  double LinkBytesPerSecond(bool within_worker) const override;
  Wire PointToPoint(const RankPlace& place, const RankGroup& group) const override;
  double CollectiveSeconds(const RankPlace& place, const RankGroup& group,
                           const CollectiveLoad& load) const override;
  double HostGatherSeconds(const RankPlace& place, const RankGroup& group, double bytes,
                           double count) const override;
  double AllToAllSeconds(const RankPlace& place, const RankGroup& group, double bytes,
                         double messages) const override;
  double CountExchangeSeconds(const RankPlace& place, const RankGroup& group, double times,
                              double bytes) const override;
  /// All buckets of a pass have one latency together.
  double CollectivesOf(double /*buckets*/) const override { return 1; }
  /// A link for each rank.
  double LinksOf(int64_t ranks) const override;
  /// Bytes go down to the host or come up from it while others are exchanged.
  double StagedSeconds(double seconds, double bytes) const override;
  double HiddenSeconds(const RankPlace& place, double seconds, double multiplying) const override;
  double Overlap(const RankPlace& /*place*/) const override { return model_.stack().overlap; }

  /// DeviceModel::Source.
  std::string Source() const override { return model_.Source(); }

 private:
  /// The rate to GPUs of the group on other workers, at that place.
  double NetworkBytesPerSecond(const RankPlace& place, const RankGroup& group) const;
  /// How much longer messages of the group take for what lies between its ranks.
  double GroupLatencySeconds(const RankPlace& place, const RankGroup& group) const;

  const DeviceModel model_;
  double link_bytes_per_second_ = 0;     ///< To GPUs of the worker: the slowest measured link.
  double network_share_ = 1;             ///< Of the worker's network, this GPU's.
  double network_bytes_per_second_ = 0;  ///< That share, to GPUs of other workers of the rack.
};

}  // namespace weft::planner
