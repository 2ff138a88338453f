#include "coordinator/planner/cluster/product_rates.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "common/model/precision.h"

namespace weft::planner {
namespace {

// Elements of k after which a tile's pipeline is full.
constexpr double kTileStart = 160;
// How far a last wave that is not full costs a whole one: libraries split k and interleave tiles.
constexpr double kWaveShare = 0.5;
constexpr double kHalf = 2;  // bytes of bf16 and fp16

struct TileShape {
  double per_m, per_n;  ///< Of its sides, one over.
  double cost;          ///< Elements over the share of the rate that such tiles reach.
};
constexpr TileShape Tile(double m, double n, double share) {
  return {1 / m, 1 / n, m * n / share};
}
constexpr std::array<TileShape, 4> kTiles = {
    {Tile(256, 128, 1.0), Tile(128, 128, 0.95), Tile(128, 64, 0.8), Tile(64, 64, 0.6)}};

/// Rounds up a value far below 2^63; std::ceil is a call on baseline x86-64.
double Ceil(double value) {
  const double below = static_cast<double>(static_cast<int64_t>(value));
  return below < value ? below + 1 : below;
}

double OperandBytes(std::string_view precision) {
  if (precision == "fp32") return 4;
  if (precision == "bf16" || precision == "fp16") return kHalf;
  const ProductFormat* format = FindFormat(precision);
  return format != nullptr ? static_cast<double>(format->element_bytes) : kHalf;
}

}  // namespace

ProductRates::ProductRates(const AcceleratorSpec& device, const SoftwareStack& stack,
                           std::string_view precision)
    : multiprocessors_(device.multiprocessors),
      operand_(OperandBytes(precision)),
      bandwidth_(device.memory_bytes_per_second * stack.memory_share) {
  const ProductPeak* peak = device.Find(precision);
  rate_ = peak->flops_per_second * peak->sustained_share * stack.product_share;
}

double ProductRates::Seconds(double m, double n, double k, double batch) const {
  double elements = INFINITY;  // of tiles, as if all reached the rate of the best
  for (const TileShape& tile : kTiles) {
    const double tiles = Ceil(m * tile.per_m) * Ceil(n * tile.per_n) * batch;
    const double full = tiles / multiprocessors_;
    const double waves = kWaveShare * Ceil(full) + (1 - kWaveShare) * std::max(1.0, full);
    elements = std::min(elements, waves * tile.cost);
  }
  const double flops = elements * multiprocessors_ * 2 * (k + kTileStart);
  const double bytes = batch * (operand_ * (m * k + k * n) + std::max(operand_, kHalf) * m * n);
  return std::max(flops / rate_, bytes / bandwidth_);
}

double ProductSeconds(const AcceleratorSpec& device, const SoftwareStack& stack,
                      std::string_view precision, double m, double n, double k, double batch) {
  return ProductRates(device, stack, precision).Seconds(m, n, k, batch);
}

}  // namespace weft::planner
