#include "coordinator/planner/rate_model.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/model/device_order.h"

namespace weft::planner {
namespace {

// A rate grows with the threads to this power.
constexpr double kThreadScaling = 0.9;
// What one core can draw from memory however idle the others are.
constexpr double kBytesPerSecondPerCore = 16e9;
constexpr double kDefaultCopyBytesPerSecond = 10e9;
constexpr double kDefaultLinkBytesPerSecond = 1.5e9;
constexpr double kDefaultFileBytesPerSecond = 1e9;
// Operations up to which a product is small, and from which on it is large.
constexpr int64_t kSmallProduct = int64_t{1} << 20;
constexpr int64_t kLargeProduct = int64_t{1} << 32;

/// FLOP/s of one core on large products where nothing was measured.
double DefaultCoreRate(std::string_view isa, DType products) {
  // f16 runs as f32, and its operands are widened first.
  if (products == DType::kF16) return 0.8 * DefaultCoreRate(isa, DType::kF32);
  const bool bf16 = products == DType::kBF16;
  if (isa == "amx") return bf16 ? 400e9 : 200e9;
  if (isa == "avx512_bf16") return bf16 ? 140e9 : 70e9;
  if (isa == "avx512") return bf16 ? 55e9 : 70e9;
  if (isa == "avx2") return bf16 ? 30e9 : 40e9;
  return bf16 ? 6e9 : 8e9;
}

constexpr double kDefaultPeerBytesPerSecond = 20e9;

double Log2(int64_t value) {
  return std::log2(static_cast<double>(std::max<int64_t>(value, 1)));
}

/// Most threads measured that are not more than `threads`, or the least measured; 0: none.
int64_t NearestThreads(const std::vector<GemmRate>& measured, std::string_view precision,
                       int64_t threads) {
  int64_t below = 0, above = 0;
  for (const GemmRate& rate : measured) {
    if (rate.precision != precision || rate.flops_per_second <= 0) continue;
    if (rate.threads <= threads) {
      below = std::max(below, rate.threads);
    } else if (above == 0 || rate.threads < above) {
      above = rate.threads;
    }
  }
  return below > 0 ? below : above;
}

/// Of the measured rate, what a product reaches in training.
double ProductShare(const TimeCalibration& calibration, DType products, int64_t m, int64_t n,
                    int64_t k) {
  const double size = 1 + Log2(m) + Log2(n) + Log2(k);
  const double large = std::clamp(
      (size - Log2(kSmallProduct)) / (Log2(kLargeProduct) - Log2(kSmallProduct)), 0.0, 1.0);
  const double share =
      std::pow(calibration.small_products, 1 - large) * std::pow(calibration.large_products, large);
  return products == DType::kF32 ? share : share * calibration.half_products;
}

}  // namespace

RateModel::RateModel(const WorkerProfile& worker, DType products, bool on_devices)
    : worker_(worker), products_(products) {
  for (const DeviceSpec& device : worker.devices) {
    if (on_devices && device_ == nullptr && device.unusable.empty()) device_ = &device;
  }
  if (device_ != nullptr) model_.emplace(*device_);
  if (calibration().shapes.empty()) return;
  std::vector<WeighedShape> shapes;
  for (const MeasuredShape& each : calibration().shapes) {
    shapes.push_back({ToBlockShape(each), each.runs, each.weight});
  }
  shapes_ = std::make_shared<const std::vector<WeighedShape>>(std::move(shapes));
}

NearShapes RateModel::Near(const MeasuredShape& block) const {
  return shapes_ == nullptr ? NearShapes() : NearShapesOf(ToBlockShape(block), *shapes_);
}

BlockShape ToBlockShape(const MeasuredShape& block) {
  return {block.width, block.tensor, block.tokens, block.sequence_length,
          block.products + " " + std::to_string(block.experts)};
}

ProductKind RateModel::ProductsOf(const WorkerProfile& worker, DType products) {
  if (worker.isa == "baseline" || worker.isa == "avx2") {
    return products == DType::kF32 ? ProductKind::kUnpacked : ProductKind::kWidenedUnpacked;
  }
  if (worker.isa == "amx") {
    return products == DType::kBF16 ? ProductKind::kTiles : ProductKind::kSplit;
  }
  if (products == DType::kBF16) return ProductKind::kNative;
  return products == DType::kF32 ? ProductKind::kNative : ProductKind::kWidened;
}

double RateModel::GemmFlopsPerSecond(int64_t m, int64_t n, int64_t k, int64_t threads) const {
  std::string_view precision = GemmRateName(products_);
  if (model_) {
    const auto rows = static_cast<double>(m), columns = static_cast<double>(n),
               inner = static_cast<double>(k);
    return 2 * rows * columns * inner / model_->ProductSeconds(precision, rows, columns, inner);
  }
  double factor = ProductShare(calibration(), products_, m, n, k);
  const int64_t processors = worker_.processors > 0 ? worker_.processors : worker_.cores;
  const auto running = [&](int64_t asked) {
    return static_cast<double>(std::min(asked, processors));
  };
  // A type that was not measured is as fast as f32 times what the instruction set says.
  int64_t measured = NearestThreads(worker_.gemm, precision, threads);
  if (measured == 0 && products_ != DType::kF32) {
    precision = GemmRateName(DType::kF32);
    measured = NearestThreads(worker_.gemm, precision, threads);
    factor *= DefaultCoreRate(worker_.isa, products_) / DefaultCoreRate(worker_.isa, DType::kF32);
  }
  if (measured == 0) {
    const auto thinnest = static_cast<double>(std::min({m, n, k}));
    const double half = 48;  // so thin, half the rate is reached
    return factor * DefaultCoreRate(worker_.isa, products_) * thinnest / (thinnest + half) *
           std::pow(running(threads), kThreadScaling);
  }
  double weights = 0, logs = 0;
  for (const GemmRate& rate : worker_.gemm) {
    if (rate.precision != precision || rate.threads != measured || rate.flops_per_second <= 0) {
      continue;
    }
    const double dm = Log2(m) - Log2(rate.m), dn = Log2(n) - Log2(rate.n),
                 dk = Log2(k) - Log2(rate.k);
    const double weight = 1.0 / (dm * dm + dn * dn + dk * dk + 1e-3);
    weights += weight;
    logs += weight * std::log(rate.flops_per_second);
  }
  const double scaling = std::pow(running(threads) / running(measured), kThreadScaling);
  return factor * std::exp(logs / weights) * scaling;
}

double RateModel::AttentionFlopsPerSecond(int64_t threads) const {
  if (model_) return model_->AttentionFlopsPerSecond(GemmRateName(products_));
  return calibration().attention_share * GemmFlopsPerSecond(512, 512, 512, threads);
}

double RateModel::RanksPerProcessor(int64_t threads, int64_t ranks) const {
  if (worker_.processors == 0) return 1;
  return std::max(1.0, static_cast<double>(ranks * std::min(threads, worker_.processors)) /
                           static_cast<double>(worker_.processors));
}

double RateModel::Slowdown(int64_t threads, int64_t ranks) const {
  return RanksPerProcessor(threads, ranks) / (ranks > 1 ? calibration().beside_share : 1);
}

double RateModel::MemoryBytesPerSecond(int64_t threads, int64_t ranks) const {
  return model_ ? model_->MemoryBytesPerSecond() : HostBytesPerSecond(threads, ranks);
}

double RateModel::HostBytesPerSecond(int64_t threads, int64_t ranks) const {
  const double all = worker_.copy_bytes_per_second > 0 ? worker_.copy_bytes_per_second
                                                       : kDefaultCopyBytesPerSecond;
  return std::min(all / static_cast<double>(ranks),
                  kBytesPerSecondPerCore * static_cast<double>(threads));
}

double RateModel::FileBytesPerSecond(int64_t ranks) const {
  const double all = worker_.disk_write_bytes_per_second > 0 ? worker_.disk_write_bytes_per_second
                                                             : kDefaultFileBytesPerSecond;
  return all / static_cast<double>(ranks);
}

double RateModel::LinkBytesPerSecond(bool within_worker) const {
  if (device_ != nullptr && within_worker) {
    double slowest = 0;
    for (const DeviceLink& link : device_->links) {
      if (link.bytes_per_second <= 0) continue;
      slowest = slowest > 0 ? std::min(slowest, link.bytes_per_second) : link.bytes_per_second;
    }
    return slowest > 0 ? slowest : kDefaultPeerBytesPerSecond;
  }
  const double measured = worker_.loopback_bytes_per_second > 0 ? worker_.loopback_bytes_per_second
                                                                : kDefaultLinkBytesPerSecond;
  const double connection = device_ != nullptr ? measured : measured * calibration().link_share;
  const double network = worker_.network_bytes_per_second;
  if (within_worker || network <= 0) return connection;
  // GPUs have a share of the network each and send past the processor. Ranks on processors send no
  // faster than they do to themselves; a ring of them leaves the machine once.
  return device_ != nullptr ? network / static_cast<double>(UsableDevices(worker_.devices))
                            : std::min(network, connection);
}

}  // namespace weft::planner
