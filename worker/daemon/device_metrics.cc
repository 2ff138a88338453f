#include "worker/daemon/device_metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>

#include <vector>

namespace weft::daemon {
namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;

}  // namespace

struct DeviceMetrics::Families {
  prometheus::Registry& registry;

  Family<Gauge>& NewGauge(const char* name, const char* help) {
    return prometheus::BuildGauge().Name(name).Help(help).Register(registry);
  }
  Family<Counter>& NewCounter(const char* name, const char* help) {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
  }

  explicit Families(prometheus::Registry& r) : registry(r) {}

  Family<Gauge>& info = NewGauge("weft_device_info", "Always 1; names a GPU of this machine.");
  Family<Gauge>& usable =
      NewGauge("weft_device_usable", "1 while ranks may run on the GPU, 0 otherwise.");
  Family<Gauge>& memory_total = NewGauge("weft_device_memory_total_bytes", "Memory of the GPU.");
  Family<Gauge>& memory_used =
      NewGauge("weft_device_memory_used_bytes", "Memory that processes hold on the GPU.");
  Family<Gauge>& utilization =
      NewGauge("weft_device_utilization_ratio", "Share of the time in which some kernel ran.");
  Family<Gauge>& activity = NewGauge("weft_device_memory_activity_ratio",
                                     "Share of the time in which its memory was read or written.");
  Family<Gauge>& power = NewGauge("weft_device_power_watts", "Power that the GPU draws.");
  Family<Counter>& energy = NewCounter("weft_device_energy_joules_total",
                                       "Energy that the GPU has drawn since its driver started.");
  Family<Gauge>& temperature =
      NewGauge("weft_device_temperature_celsius", "Temperature of the GPU.");
  Family<Gauge>& clock = NewGauge("weft_device_clock_hertz", "Present clock, by domain.");
  Family<Counter>& memory_errors = NewCounter(
      "weft_device_memory_errors_total", "Errors of the GPU's memory since its driver started.");
  Family<Counter>& xids =
      NewCounter("weft_device_xid_errors_total", "XIDs of the GPU seen, by number.");
};

struct DeviceMetrics::Device {
  prometheus::Labels labels;
  Gauge* usable = nullptr;
  std::map<Family<Gauge>*, std::map<std::string, Gauge*>> gauges;

  /// `domain` is a further label where a family has several series for a GPU.
  void Set(Family<Gauge>& family, std::optional<double> value, const std::string& domain = "") {
    auto& slot = gauges[&family][domain];
    if (!value) {
      if (slot != nullptr) family.Remove(slot);
      slot = nullptr;
      return;
    }
    if (slot == nullptr) {
      prometheus::Labels all = labels;
      if (!domain.empty()) all["domain"] = domain;
      slot = &family.Add(all);
    }
    slot->Set(*value);
  }

  /// Brings a counter to a value that grows outside.
  void Raise(Family<Counter>& family, std::optional<double> value, const std::string& kind = "") {
    if (!value) return;
    prometheus::Labels all = labels;
    if (!kind.empty()) all["kind"] = kind;
    Counter& counter = family.Add(all);
    if (*value > counter.Value()) counter.Increment(*value - counter.Value());
  }
};

DeviceMetrics::DeviceMetrics(prometheus::Registry& registry)
    : families_(std::make_unique<Families>(registry)) {}

DeviceMetrics::~DeviceMetrics() = default;

void DeviceMetrics::Add(const DeviceSpec& spec) {
  auto device = std::make_unique<Device>();
  device->labels = {{"device", std::to_string(spec.index)}};
  prometheus::Labels names = device->labels;
  names["uuid"] = spec.uuid;
  names["name"] = spec.name;
  names["driver"] = spec.driver;
  names["compute_capability"] = spec.compute_capability;
  families_->info.Add(names).Set(1);
  device->usable = &families_->usable.Add(device->labels);
  device->usable->Set(spec.unusable.empty() ? 1 : 0);
  devices_[static_cast<int>(spec.index)] = std::move(device);
}

void DeviceMetrics::Set(int index, const DeviceSample& sample) {
  auto found = devices_.find(index);
  if (found == devices_.end()) return;
  Device& device = *found->second;
  Families& f = *families_;
  auto number = [](const std::optional<int64_t>& value) {
    return value ? std::optional<double>(static_cast<double>(*value)) : std::nullopt;
  };
  device.Set(f.memory_total, number(sample.memory_total_bytes));
  device.Set(f.memory_used, number(sample.memory_used_bytes));
  device.Set(f.utilization, sample.utilization_ratio);
  device.Set(f.activity, sample.memory_activity_ratio);
  device.Set(f.power, sample.power_watts);
  device.Raise(f.energy, sample.energy_joules);
  device.Set(f.temperature, sample.temperature_celsius);
  device.Set(f.clock, sample.sm_clock_hertz, "sm");
  device.Set(f.clock, sample.memory_clock_hertz, "memory");
  device.Raise(f.memory_errors, number(sample.corrected_errors), "corrected");
  device.Raise(f.memory_errors, number(sample.uncorrected_errors), "uncorrected");
}

void DeviceMetrics::Count(const DeviceEvent& event) {
  auto found = devices_.find(event.index);
  if (found == devices_.end()) return;
  Device& device = *found->second;
  if (event.broken) device.usable->Set(0);
  if (event.xid == 0) return;
  prometheus::Labels labels = device.labels;
  labels["xid"] = std::to_string(event.xid);
  families_->xids.Add(labels).Increment();
}

}  // namespace weft::daemon
