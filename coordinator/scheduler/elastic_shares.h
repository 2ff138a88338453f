#pragma once

#include <cstdint>
#include <vector>

namespace weft::coordinator {

/// Part of a job in the GPUs, or of a job on CPUs in the cores.
struct ComputeShare {
  int64_t amount = 0;   ///< 0: any number.
  bool beyond = false;  ///< Jobs before it have all: this is what it needs at least.
};

/// A job that holds GPUs, or cores, or waits for some.
struct ShareClaim {
  int64_t priority = 0;
  double at = 0;                  ///< Its turn: seconds since 1970.
  int64_t least = 1;              ///< GPUs, or cores; as `most` for a job that keeps its number.
  int64_t most = 0;               ///< 0: any number.
  ComputeShare* share = nullptr;  ///< Output: a power of two within `least` and `most`.
};

/// Divides `total` GPUs, or cores, among jobs whose speed grows less than their number. In the
/// order of priorities and turns, each of the m jobs that are left gets 1 - ((m - 1) / m)^exponent
/// of what is left, so that a job that has little to do has much. This is the optimum for the mean
/// completion time of jobs whose speed on k of them is k^(1 - 1 / exponent) (heSRPT: Berg, Vesilo,
/// Harchol-Balter 2020, arXiv 1903.09346). 1: equal parts. Plans can be used again, since shares
/// are powers of two.
void ShareCompute(std::vector<ShareClaim> claims, int64_t total, double exponent);

}  // namespace weft::coordinator
