#pragma once

#include <cstdint>

#include "common/spec/cluster_spec.h"

namespace weft::planner {

/// Rates of a worker, from its measurements where it made some.
class RateModel {
 public:
  /// `worker` outlives it.
  RateModel(const WorkerProfile& worker, bool bf16) : worker_(worker), bf16_(bf16) {}

  /// FLOP/s of one [m, k] x [k, n] product on `threads` threads: the mean of the measured products
  /// of that precision, weighted by nearness of the logarithms of their sizes (inverse distance
  /// weighting, Shepard 1968). Measurements with the next lower number of threads stand in for
  /// missing ones, at 90 % scaling. Without any: a fixed rate by instruction set, less for thin
  /// matrices.
  double GemmFlopsPerSecond(int64_t m, int64_t n, int64_t k, int64_t threads) const;

  /// FLOP/s of flash attention, whose products are small.
  double AttentionFlopsPerSecond(int64_t threads) const;

  /// Bytes per second, read plus write, that one of `ranks` ranks on the worker gets.
  double MemoryBytesPerSecond(int64_t threads, int64_t ranks) const;

  /// Of one stream between two ranks.
  double LinkBytesPerSecond() const;

  /// Whether the processor multiplies bf16 itself.
  static bool HasNativeBf16(const WorkerProfile& worker);

 private:
  const WorkerProfile& worker_;
  bool bf16_;
};

}  // namespace weft::planner
