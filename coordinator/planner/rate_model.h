#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "common/model/memory_model.h"
#include "common/model/precision.h"
#include "common/spec/cluster_spec.h"
#include "common/spec/time_calibration.h"
#include "coordinator/planner/cluster/block_shapes.h"
#include "coordinator/planner/device_model.h"

namespace weft::planner {

/// Rates of a worker, from its measurements where it made some, and from what its calibration says
/// that training reaches of them. A GPU's are those of DeviceModel.
class RateModel {
 public:
  /// Rates of products with operands of type `products`, on the processor or on the first of the
  /// usable GPUs. `worker` outlives it.
  RateModel(const WorkerProfile& worker, DType products, bool on_devices = false);

  /// FLOP/s of one [m, k] x [k, n] product on `threads` threads: the mean of the measured products
  /// of that type, weighted by nearness of the logarithms of their sizes (inverse distance
  /// weighting, Shepard 1968). Measurements with the next lower number of threads stand in for
  /// missing ones, at 90 % scaling. Without any: a fixed rate by instruction set, less for thin
  /// matrices. On a GPU, where threads do not matter, DeviceModel says it.
  double GemmFlopsPerSecond(int64_t m, int64_t n, int64_t k, int64_t threads) const;

  /// FLOP/s of flash attention, whose products are small.
  double AttentionFlopsPerSecond(int64_t threads) const;

  /// How many ranks of so many threads take turns on each processor of the worker; at least 1.
  double RanksPerProcessor(int64_t threads, int64_t ranks) const;

  /// So many times longer products take where so many ranks compute on the worker.
  double Slowdown(int64_t threads, int64_t ranks) const;

  /// Bytes per second, read plus write, that one of `ranks` ranks on the worker gets. A GPU is not
  /// shared.
  double MemoryBytesPerSecond(int64_t threads, int64_t ranks) const;

  /// The same of the processor, also where ranks have GPUs.
  double HostBytesPerSecond(int64_t threads, int64_t ranks) const;

  /// Of the same worker with operands of another type.
  RateModel With(DType products) const {
    RateModel other = *this;
    other.products_ = products;
    return other;
  }

  /// Of one stream between two ranks, both on this worker or not.
  double LinkBytesPerSecond(bool within_worker) const;

  /// Of a file that each of `ranks` ranks on the worker reads and writes: what its disk was
  /// measured to write.
  double FileBytesPerSecond(int64_t ranks) const;

  /// What else is assumed of the worker's processor; of its GPUs nothing, neither their steps.
  const TimeCalibration& calibration() const {
    static const TimeCalibration kNone;
    return device_ != nullptr ? kNone : worker_.calibration;
  }

  /// What runs with blocks of nearly that shape say of it, where the calibration has some.
  NearShapes Near(const MeasuredShape& block) const;

  /// Of the GPU, or null on the processor.
  const DeviceModel* device() const { return model_ ? &*model_ : nullptr; }

  /// Whether products on the processor need no copies of matrices.
  bool NeedsNoCopies() const {
    return device_ == nullptr && MultipliesStored(ProductsOf(worker_, products_));
  }

  /// How the worker's processor multiplies operands of that type.
  static ProductKind ProductsOf(const WorkerProfile& worker, DType products);

 private:
  const WorkerProfile& worker_;
  const DeviceSpec* device_ = nullptr;
  std::optional<DeviceModel> model_;
  DType products_;
  /// Those of the calibration; null: none. Many rates of one worker have them.
  std::shared_ptr<const std::vector<WeighedShape>> shapes_;
};

/// As runs near each other have it.
BlockShape ToBlockShape(const MeasuredShape& block);

}  // namespace weft::planner
