#include "coordinator/planner/device_model.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <system_error>
#include <utility>

#include "common/check.h"
#include "common/number.h"
#include "coordinator/planner/cluster/product_rates.h"

namespace weft::planner {
namespace {

// The share of a copy's rate within the device's memory that other kernels reach.
constexpr double kKernelShareOfCopy = 0.9;
// The share of the f32 rate that attention in f32 reaches, which runs on no tensor cores.
constexpr double kPlainAttentionShare = 0.3;

const AcceleratorSpec& Known(std::string_view name) {
  const auto& all = KnownAccelerators();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const auto& spec) { return spec.name == name; });
  WEFT_CHECK(found != all.end(), "no accelerator '" + std::string(name) + "'");
  return *found;
}

/// Whether `word` is in `text` with no letter or digit next to it.
bool HasWord(std::string_view text, std::string_view word) {
  const auto part_of_word = [&](size_t at) {
    return at < text.size() && std::isalnum(static_cast<unsigned char>(text[at])) != 0;
  };
  for (size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1)) {
    if ((at == 0 || !part_of_word(at - 1)) && !part_of_word(at + word.size())) return true;
  }
  return false;
}

/// "H100" of "H100-SXM", "4090" of "RTX-4090".
std::string_view ModelOf(std::string_view accelerator) {
  if (accelerator.starts_with("RTX-")) return accelerator.substr(4);
  return accelerator.substr(0, accelerator.find('-'));
}

/// "8.9" as numbers; zeros where it says none.
std::pair<int, int> Capability(std::string_view text) {
  std::pair<int, int> capability;
  const char* const begin = text.data();
  const char* const end = begin + text.size();
  const auto major = std::from_chars(begin, end, capability.first);
  if (major.ec == std::errc() && major.ptr != end) {
    std::from_chars(major.ptr + 1, end, capability.second);
  }
  return capability;
}

const AcceleratorSpec& ByCapability(std::string_view capability) {
  if (capability.starts_with("7.")) return Known("V100-SXM2-32GB");
  if (capability == "8.0") return Known("A100-SXM-80GB");
  if (capability == "8.9") return Known("L40S");
  if (capability.starts_with("8.")) return Known("RTX-3090");
  if (capability.empty() || capability.starts_with("9.")) return Known("H100-SXM");
  return Known("B200-SXM");
}

/// Operands of that precision, or the half precision that the device has.
const ProductPeak& PeakOf(const AcceleratorSpec& accelerator, std::string_view precision) {
  for (std::string_view name : {precision, std::string_view("bf16"), std::string_view("fp16")}) {
    if (const ProductPeak* peak = accelerator.Find(name)) return *peak;
  }
  return accelerator.products.front();
}

/// As it was measured in the slower direction; else what copies reach of the slot.
double HostLinkOf(const DeviceSpec& device) {
  if (device.upload_bytes_per_second > 0 && device.download_bytes_per_second > 0) {
    return std::min(device.upload_bytes_per_second, device.download_bytes_per_second);
  }
  // A lane of PCI Express 3.0 carries 8 GT/s in 128 of 130 bits, each generation twice as much.
  constexpr double kLane = 8e9 / 8 * 128 / 130;
  constexpr double kShare = 0.8;
  const auto generation =
      static_cast<double>(device.pcie_generation > 0 ? device.pcie_generation : 3);
  const auto width = static_cast<double>(device.pcie_width > 0 ? device.pcie_width : 16);
  return kShare * width * kLane * std::exp2(generation - 3);
}

}  // namespace

const AcceleratorSpec& AcceleratorOf(const DeviceSpec& device) {
  const bool slot = HasWord(device.name, "PCIe");
  const AcceleratorSpec* best = nullptr;
  double distance = 0;
  for (const AcceleratorSpec& spec : KnownAccelerators()) {
    if (!HasWord(device.name, ModelOf(spec.name))) continue;
    const double own = std::abs(spec.memory_bytes / static_cast<double>(device.memory_bytes) - 1) +
                       (slot == HasWord(spec.name, "PCIe") ? 0 : 1);
    if (best != nullptr && own >= distance) continue;
    best = &spec;
    distance = own;
  }
  return best != nullptr ? *best : ByCapability(device.compute_capability);
}

bool Multiplies(const DeviceSpec& device, const ProductFormat& format) {
  return Capability(device.compute_capability) >= Capability(format.compute_capability);
}

DeviceModel::DeviceModel(const DeviceSpec& device)
    : accelerator_(AcceleratorOf(device)),
      stack_(*FindStack("weft")),
      copy_bytes_per_second_(device.copy_bytes_per_second),
      host_link_bytes_per_second_(HostLinkOf(device)) {
  double slowest = 0;
  for (const DeviceLink& link : device.links) {
    if (link.bytes_per_second <= 0) continue;
    slowest = slowest > 0 ? std::min(slowest, link.bytes_per_second) : link.bytes_per_second;
  }
  // A copy already is what the link reaches.
  if (slowest > 0) accelerator_.link_bytes_per_second = slowest / stack_.link_share;
  for (const GemmRate& rate : device.gemm) {
    if (rate.flops_per_second <= 0) continue;
    const auto m = static_cast<double>(rate.m), n = static_cast<double>(rate.n),
               k = static_cast<double>(rate.k);
    const double seconds = 2 * m * n * k / rate.flops_per_second;
    corrections_.push_back({rate.precision, std::log2(m), std::log2(n), std::log2(k),
                            std::log(seconds / Modelled(rate.precision, m, n, k))});
  }
}

double DeviceModel::Modelled(std::string_view precision, double m, double n, double k) const {
  const ProductPeak& peak = PeakOf(accelerator_, precision);
  return planner::ProductSeconds(accelerator_, stack_, peak.precision, m, n, k);
}

double DeviceModel::CorrectionOf(std::string_view precision, double m, double n, double k) const {
  const auto mean = [&](std::string_view wanted) {
    double weights = 0, logs = 0;
    for (const Correction& correction : corrections_) {
      if (correction.precision != wanted) continue;
      const double dm = std::log2(m) - correction.m, dn = std::log2(n) - correction.n,
                   dk = std::log2(k) - correction.k;
      const double weight = 1 / (dm * dm + dn * dn + dk * dk + 1e-3);
      weights += weight;
      logs += weight * correction.factor;
    }
    return weights > 0 ? std::exp(logs / weights) : 0;
  };
  if (const double own = mean(precision); own > 0) return own;
  // Tensor cores say nothing of f32, and the other way round.
  const double half = precision == "fp32" ? 0 : mean("bf16");
  return half > 0 ? half : 1;
}

double DeviceModel::ProductSeconds(std::string_view precision, double m, double n, double k) const {
  return Modelled(precision, m, n, k) * CorrectionOf(precision, m, n, k);
}

bool DeviceModel::HasMeasured(std::string_view precision) const {
  return std::any_of(corrections_.begin(), corrections_.end(),
                     [&](const Correction& of) { return of.precision == precision; });
}

double DeviceModel::AttentionFlopsPerSecond(std::string_view precision) const {
  constexpr double kLarge = 4096;
  const ProductPeak& peak = PeakOf(accelerator_, precision);
  const double share = precision == "fp32" ? kPlainAttentionShare : accelerator_.attention_share;
  return peak.flops_per_second * share * stack_.product_share /
         CorrectionOf(precision, kLarge, kLarge, kLarge);
}

double DeviceModel::MemoryBytesPerSecond() const {
  return copy_bytes_per_second_ > 0 ? copy_bytes_per_second_ * kKernelShareOfCopy
                                    : accelerator_.memory_bytes_per_second * stack_.memory_share;
}

double DeviceModel::AllReduceSeconds(int64_t ranks, int64_t on_machine,
                                     double network_bytes_per_second, double bytes,
                                     double more_latency_seconds) const {
  return planner::AllReduceSeconds(WithNetwork(network_bytes_per_second, more_latency_seconds),
                                   ranks, D(on_machine), bytes);
}

double DeviceModel::AllToAllSeconds(int64_t ranks, int64_t on_machine,
                                    double network_bytes_per_second, double bytes,
                                    double more_latency_seconds) const {
  return planner::AllToAllSeconds(WithNetwork(network_bytes_per_second, more_latency_seconds),
                                  ranks, on_machine, bytes);
}

CollectiveLinks DeviceModel::WithNetwork(double bytes_per_second,
                                         double more_latency_seconds) const {
  CollectiveLinks links = LinksOf(accelerator_, stack_);
  links.between = bytes_per_second;
  links.latency_seconds += more_latency_seconds;
  return links;
}

std::string DeviceModel::Source() const {
  const std::string tables = "the tables for " + accelerator_.name;
  return corrections_.empty() ? tables : "what the worker measured and " + tables;
}

}  // namespace weft::planner
