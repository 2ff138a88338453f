#include "worker/daemon/devices.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <sstream>

#include "common/env.h"
#include "common/json.h"
#include "common/log.h"
#include "common/spec/spec_json.h"
#include "common/version.h"

namespace weft::daemon {
namespace {

/// The share of a GPU's memory that is offered: the CUDA context and the driver keep the rest.
constexpr double kOfferedMemory = 0.92;
/// The share that is offered of what is free when the worker starts, should others hold some.
constexpr double kOfferedFreeMemory = 0.97;

/// Whether a name of a choice means the GPU.
bool Means(const std::string& name, const DeviceSpec& device) {
  return name == std::to_string(device.index) ||
         (name.size() > 4 && device.uuid.compare(0, name.size(), name) == 0);
}

std::vector<std::string> Names(const std::string& choice) {
  std::vector<std::string> names;
  std::istringstream text(choice);
  for (std::string name; std::getline(text, name, ',');) names.push_back(name);
  return names;
}

bool Chosen(const std::string& choice, const DeviceSpec& device) {
  if (choice == "all") return true;
  std::vector<std::string> names = Names(choice);
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return Means(name, device); });
}

Status CheckOffered(const std::string& choice, const std::vector<DeviceSpec>& devices) {
  if (choice == "all" || choice == "none") return OkStatus();
  for (const std::string& name : Names(choice)) {
    bool found = std::any_of(devices.begin(), devices.end(),
                             [&](const DeviceSpec& device) { return Means(name, device); });
    if (!found) {
      return InvalidError("--devices: this machine has no GPU '" + name + "' among its " +
                          std::to_string(devices.size()) +
                          "; hint: all, none, or indices and UUIDs as nvidia-smi -L shows them");
    }
  }
  return OkStatus();
}

void TakeRates(DeviceSpec rates, DeviceSpec& device) {
  device.gemm = std::move(rates.gemm);
  device.copy_bytes_per_second = rates.copy_bytes_per_second;
  device.upload_bytes_per_second = rates.upload_bytes_per_second;
  device.download_bytes_per_second = rates.download_bytes_per_second;
  for (DeviceLink& link : device.links) {
    for (const DeviceLink& measured : rates.links) {
      if (measured.index == link.index) link.bytes_per_second = measured.bytes_per_second;
    }
  }
}

/// Kept measurements of this version: GPUs with their rates.
std::vector<DeviceSpec> ReadCache(const std::string& path) {
  Result<std::string> text = ReadFile(Env::Posix(), path, 4 << 20);
  if (!text.ok()) return {};
  Result<Json> json = ParseJson(*text);
  if (!json.ok() || !json->is_object() || json->value("version", Json()) != kVersion) return {};
  Result<WorkerProfile> kept = FromJson<WorkerProfile>(json->value("profile", Json::object()));
  return kept.ok() ? std::move(kept->devices) : std::vector<DeviceSpec>();
}

const DeviceSpec* FindKept(const std::vector<DeviceSpec>& kept, const DeviceSpec& device) {
  auto found = std::find_if(kept.begin(), kept.end(), [&](const DeviceSpec& other) {
    return other.uuid == device.uuid && other.driver == device.driver && !other.gemm.empty() &&
           other.links.size() == device.links.size();
  });
  return found == kept.end() || device.uuid.empty() ? nullptr : &*found;
}

/// Measures those of `usable` that are not kept; why not is written into each.
void MeasureAll(const MeasureDevice& measure, const std::vector<DeviceSpec>& kept,
                const std::vector<DeviceSpec*>& usable) {
  std::vector<DeviceSpec> list;
  for (const DeviceSpec* device : usable) list.push_back(*device);
  for (size_t i = 0; i < usable.size(); ++i) {
    DeviceSpec& device = *usable[i];
    if (const DeviceSpec* known = FindKept(kept, device)) {
      TakeRates(*known, device);
      continue;
    }
    Result<DeviceSpec> rates = measure(list, i);
    if (!rates.ok()) {
      device.unusable = "it cannot be computed on: " + rates.status().message();
      continue;
    }
    for (DeviceLink& link : rates->links) {
      auto other = static_cast<size_t>(link.index);
      link.index = other < list.size() ? list[other].index : -1;
    }
    TakeRates(*std::move(rates), device);
  }
}

}  // namespace

std::string CudaName(const DeviceSpec& device) {
  return device.uuid.empty() ? std::to_string(device.index) : device.uuid;
}

Result<std::vector<DeviceSpec>> FindDevices(const Nvml& nvml, const DeviceChoice& choice,
                                            const MeasureDevice& measure,
                                            const std::string& cache_path, bool again) {
  std::vector<DeviceSpec> devices;
  for (int index = 0; index < nvml.count(); ++index) devices.push_back(nvml.Describe(index));
  WEFT_RETURN_IF_ERROR(CheckOffered(choice.offered, devices));
  std::vector<DeviceSpec*> usable;
  for (DeviceSpec& device : devices) {
    DeviceSample sample = nvml.Sample(static_cast<int>(device.index));
    auto memory = static_cast<double>(device.memory_bytes);
    double free = memory - static_cast<double>(sample.memory_used_bytes.value_or(0));
    device.memory_limit_bytes =
        std::llround(std::max(0.0, std::min(kOfferedMemory * memory, kOfferedFreeMemory * free)));
    if (!device.unusable.empty()) continue;
    if (!Chosen(choice.offered, device)) {
      device.unusable = "--devices does not offer it";
    } else if (!Chosen(choice.visible, device)) {
      device.unusable = "CUDA_VISIBLE_DEVICES hides it";
    } else if (device.memory_limit_bytes <= 0) {
      device.unusable = "its driver does not say how much memory it has free";
    } else {
      usable.push_back(&device);
    }
  }
  MeasureAll(measure, again ? std::vector<DeviceSpec>() : ReadCache(cache_path), usable);
  WorkerProfile profile;
  profile.devices = devices;
  Json json{{"version", kVersion}, {"profile", ToJson(profile)}};
  WEFT_RETURN_IF_ERROR(WriteFileAtomic(Env::Posix(), cache_path, json.dump(2) + "\n"));
  return devices;
}

}  // namespace weft::daemon
