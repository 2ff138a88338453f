#pragma once

#include <memory>
#include <vector>

#include "common/json.h"
#include "kernels/testing/op_case.h"

namespace weft::kernels::testing {

/// Where kernels_bench runs. While a target exists, tensors made by its thread live there.
class BenchTarget {
 public:
  virtual ~BenchTarget() = default;

  virtual Device device() const = 0;

  /// Rows, columns and inner size of the product whose rate is the ceiling of others.
  virtual int64_t ceiling_product_size() const = 0;

  /// Seconds of each of several runs of a case within about `budget` seconds, after a warm-up. The
  /// inputs are not in a cache.
  virtual Result<std::vector<double>> Seconds(OpRun& run, double budget) = 0;

  /// Likewise of copying a large tensor, and how many bytes a run reads and writes.
  struct Copies {
    std::vector<double> seconds;
    double bytes = 0;
  };
  virtual Result<Copies> Copy(double budget) = 0;

  /// The machine, for the report.
  virtual Json Describe() const = 0;
};

std::unique_ptr<BenchTarget> NewCpuTarget();

/// kUnavailable when there is no such device, or no CUDA in this build.
Result<std::unique_ptr<BenchTarget>> NewCudaTarget(int index);

}  // namespace weft::kernels::testing
