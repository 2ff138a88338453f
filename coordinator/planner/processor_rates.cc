#include "coordinator/planner/processor_rates.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string_view>

#include "common/model/precision.h"
#include "common/number.h"

namespace weft::planner {
namespace {

// A rate grows with the threads to this power.
constexpr double kThreadScaling = 0.9;
// Operations up to which a product is small, and from which on it is large.
constexpr int64_t kSmallProduct = int64_t{1} << 20;
constexpr int64_t kLargeProduct = int64_t{1} << 32;
// Share of the products that can hide messages, which take cores from them.
constexpr double kOverlap = 0.5;
// What each thread adds to an operation at the barrier of its parallel loop.
constexpr double kSecondsPerOperationAndThread = 0.3e-6;

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

double Log2(int64_t value) {
  return std::log2(D(std::max<int64_t>(value, 1)));
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

/// The share of the measured rate that a product reaches in training.
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

ProcessorRates::ProcessorRates(const WorkerProfile& worker, DType products)
    : StepRates(worker, products) {
  for (const MeasuredShape& each : worker.calibration.shapes) {
    shapes_.push_back({ToBlockShape(each), each.runs, each.weight});
  }
}

ProductKind ProcessorRates::ProductsOf(const WorkerProfile& worker, DType products) {
  if (worker.isa == "baseline" || worker.isa == "avx2") {
    return products == DType::kF32 ? ProductKind::kUnpacked : ProductKind::kWidenedUnpacked;
  }
  if (worker.isa == "amx") {
    return products == DType::kBF16 ? ProductKind::kTiles : ProductKind::kSplit;
  }
  const bool native =
      products == DType::kF32 || (products == DType::kBF16 && worker.isa != "avx512");
  return native ? ProductKind::kNative : ProductKind::kWidened;
}

double ProcessorRates::GemmFlopsPerSecond(DType products, int64_t m, int64_t n, int64_t k,
                                          int64_t threads) const {
  std::string_view precision = GemmRateName(products);
  double factor = ProductShare(worker_.calibration, products, m, n, k);
  const int64_t processors = worker_.processors > 0 ? worker_.processors : worker_.cores;
  const auto running = [&](int64_t asked) { return D(std::min(asked, processors)); };
  // A type that was not measured is as fast as f32 times what the instruction set says.
  int64_t measured = NearestThreads(worker_.gemm, precision, threads);
  if (measured == 0 && products != DType::kF32) {
    precision = GemmRateName(DType::kF32);
    measured = NearestThreads(worker_.gemm, precision, threads);
    factor *= DefaultCoreRate(worker_.isa, products) / DefaultCoreRate(worker_.isa, DType::kF32);
  }
  if (measured == 0) {
    const double thinnest = D(std::min({m, n, k}));
    const double half = 48;  // so thin, half the rate is reached
    return factor * DefaultCoreRate(worker_.isa, products) * thinnest / (thinnest + half) *
           std::pow(running(threads), kThreadScaling);
  }
  return factor * MeasuredRate(precision, m, n, k, measured, threads);
}

double ProcessorRates::TechniqueFlopsPerSecond(std::string_view rate_name, GemmPass pass, int64_t m,
                                               int64_t n, int64_t k, int64_t threads) const {
  const std::string name = TechniqueRateName(rate_name, pass, products());
  const int64_t measured = NearestThreads(worker_.gemm, name, threads);
  if (measured == 0) return 0;
  return ProductShare(worker_.calibration, products(), m, n, k) *
         MeasuredRate(name, m, n, k, measured, threads);
}

double ProcessorRates::MeasuredRate(std::string_view name, int64_t m, int64_t n, int64_t k,
                                    int64_t measured, int64_t threads) const {
  const int64_t processors = worker_.processors > 0 ? worker_.processors : worker_.cores;
  const auto running = [&](int64_t asked) { return D(std::min(asked, processors)); };
  double weights = 0, logs = 0;
  for (const GemmRate& rate : worker_.gemm) {
    if (rate.precision != name || rate.threads != measured || rate.flops_per_second <= 0) {
      continue;
    }
    const double dm = Log2(m) - Log2(rate.m), dn = Log2(n) - Log2(rate.n),
                 dk = Log2(k) - Log2(rate.k);
    const double weight = 1.0 / (dm * dm + dn * dn + dk * dk + 1e-3);
    weights += weight;
    logs += weight * std::log(rate.flops_per_second);
  }
  const double scaling = std::pow(running(threads) / running(measured), kThreadScaling);
  return std::exp(logs / weights) * scaling;
}

double ProcessorRates::AttentionFlopsPerSecond(int64_t threads) const {
  return worker_.calibration.attention_share * GemmFlopsPerSecond(512, 512, 512, threads);
}

double ProcessorRates::Slowdown(const RankPlace& place) const {
  return RanksPerProcessor(place) /
         (place.ranks_on_worker > 1 ? worker_.calibration.beside_share : 1);
}

NearShapes ProcessorRates::Near(const MeasuredShape& block) const {
  return shapes_.empty() ? NearShapes() : NearShapesOf(ToBlockShape(block), shapes_);
}

double ProcessorRates::MemoryBytesPerSecond(const RankPlace& place) const {
  return HostBytesPerSecond(place) * worker_.calibration.memory_share;
}

double ProcessorRates::UpdateBytesPerSecond(const RankPlace& place, bool /*on_host*/) const {
  return HostBytesPerSecond(place) * worker_.calibration.update_share;
}

double ProcessorRates::LeastMemorySeconds(double /*bytes*/) const {
  return 0;
}

OperandCopies ProcessorRates::CopiesOf(const PrecisionRecipe& precision, double /*format_share*/,
                                       bool gathers, bool /*on_host*/) const {
  const double packed = D(ElementBytes(precision.products));
  // What is dequantised is written, and packed as other matrices are.
  if (MultipliesStored(ProductsOf(worker_, products_))) {
    return {.dequantized = OperandCopies::kCodeBytes + packed};
  }
  const double stored = D(ElementBytes(precision.matrices));
  // Packing reads each matrix and writes its copy. Gathered parameters are packed in every pass,
  // and not after the update. Where the stored matrix is not of the products' type, the backward
  // pass packs it once more.
  return {.update = gathers ? 0 : stored + packed,
          .gathered = gathers ? stored + packed : 0,
          .backward = precision.matrices == precision.products ? 0 : 2 * packed,
          .dequantized = OperandCopies::kCodeBytes + 3 * packed};
}

double ProcessorRates::HostLinkBytesPerSecond(const RankPlace& place, int64_t wanted) const {
  return wanted > 0 ? D(wanted) : HostBytesPerSecond(place) * worker_.calibration.host_link_share;
}

const OperationCounts& ProcessorRates::operations() const {
  static constexpr OperationCounts kCounts = {
      .forward = 10, .attention = 2, .backward = 16, .pass = 40};
  return kCounts;
}

// Entering and leaving a parallel loop, checks, allocation, and what each thread adds.
OperationCosts ProcessorRates::CostsOfOperations(const RankPlace& place) const {
  const TimeCalibration& calibration = worker_.calibration;
  return {.operation_seconds =
              (calibration.operation_seconds + kSecondsPerOperationAndThread * D(place.threads)) *
              RanksPerProcessor(place)};
}

// Ranks send no faster than they do to themselves; a ring of them leaves the machine once.
double ProcessorRates::LinkBytesPerSecond(bool within_worker) const {
  const double loopback = LoopbackBytesPerSecond() * worker_.calibration.link_share;
  const double network = worker_.network_bytes_per_second;
  return within_worker || network <= 0 ? loopback : std::min(network, loopback);
}

// Processors copy what is sent, and ranks take turns on them.
Wire ProcessorRates::PointToPoint(const RankPlace& place, const RankGroup& group) const {
  const double turns = RanksPerProcessor(place);
  const double link = LinkBytesPerSecond(group.within_worker());
  const double message = worker_.calibration.message_seconds * turns;
  if (group.within_worker()) return {link / turns, message};
  return {BetweenWorkers(place, group, link) / turns,
          message + NetworkLatencySeconds(place, group)};
}

double ProcessorRates::CollectiveSeconds(const RankPlace& place, const RankGroup& group,
                                         const CollectiveLoad& load) const {
  if (group.ranks == 1) return 0;
  const double others = D(group.ranks - 1);
  const Wire wire = PointToPoint(place, group);
  return others / D(group.ranks) * (2 * load.reduced_bytes + load.gathered_bytes) /
             wire.bytes_per_second +
         (2 * load.all_reduces + load.gathers) * others * wire.message_seconds;
}

double ProcessorRates::HostGatherSeconds(const RankPlace& place, const RankGroup& group,
                                         double bytes, double count) const {
  return GatherSeconds(place, group, bytes, count);
}

double ProcessorRates::AllToAllSeconds(const RankPlace& place, const RankGroup& group, double bytes,
                                       double messages) const {
  const Wire wire = PointToPoint(place, group);
  return D(group.ranks - 1) / D(group.ranks) * bytes / wire.bytes_per_second +
         messages * wire.message_seconds;
}

double ProcessorRates::CountExchangeSeconds(const RankPlace& place, const RankGroup& group,
                                            double times, double /*bytes*/) const {
  return times * D(group.ranks - 1) * PointToPoint(place, group).message_seconds;
}

double ProcessorRates::LinksOf(int64_t /*ranks*/) const {
  return 1;
}

double ProcessorRates::StagedSeconds(double seconds, double /*bytes*/) const {
  return seconds;
}

double ProcessorRates::HiddenSeconds(const RankPlace& place, double /*seconds*/,
                                     double multiplying) const {
  return Overlap(place) * multiplying;
}

// Where ranks take turns on processors, products of others are computed meanwhile.
double ProcessorRates::Overlap(const RankPlace& place) const {
  return kOverlap / RanksPerProcessor(place);
}

double ProcessorRates::RanksPerProcessor(const RankPlace& place) const {
  if (worker_.processors == 0) return 1;
  return std::max(1.0, D(place.ranks_on_worker * std::min(place.threads, worker_.processors)) /
                           D(worker_.processors));
}

std::string ProcessorRates::Source() const {
  const TimeCalibration& calibration = worker_.calibration;
  if (calibration.runs == 0) return "";
  char text[96];
  std::snprintf(text, sizeof(text), "measured rates calibrated by %lld runs (median error %.1f %%)",
                static_cast<long long>(calibration.runs), 100 * calibration.error_ratio);
  return text;
}

ComputeUnits UnitsOf(const Plan& plan, const WorkerProfile& worker) {
  const DType products = PrecisionOf(plan.precision).products;
  return ComputeUnitsOf(plan.device == "cpu" ? ProcessorRates::ProductsOf(worker, products)
                                             : ProductKind::kStored);
}

}  // namespace weft::planner
