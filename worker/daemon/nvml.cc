#include "worker/daemon/nvml.h"

#include <string.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "common/env.h"
#include "common/text.h"

namespace weft::daemon {
namespace {

// Written from NVIDIA's NVML reference, for calls that have not changed since driver 418. Handles
// are pointers to unknown structs, enumerations are int.
using Handle = void*;
using Code = int;

constexpr Code kSuccess = 0;
constexpr Code kTimeout = 10;
constexpr Code kGpuIsLost = 15;
constexpr Code kResetRequired = 16;

constexpr int kTemperatureOfGpu = 0;
constexpr int kClockOfSm = 1;
constexpr int kClockOfMemory = 2;
constexpr int kCorrectedError = 0;
constexpr int kUncorrectedError = 1;
constexpr int kSinceDriverLoad = 0;
constexpr int kPeerRead = 0;
constexpr int kPeerNvlink = 2;
constexpr int kPeerOk = 0;
constexpr unsigned kMostNvlinks = 18;
constexpr unsigned long long kXidEvents = 8;

struct MemoryInfo {
  unsigned long long total, free, used;
};
struct UtilizationRates {
  unsigned gpu, memory;  // percent
};
struct PciInfo {
  char legacy_bus_id[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};
struct EventData {
  Handle device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};

/// What lies between two GPUs of a machine, by nvmlGpuTopologyLevel_t.
std::string PathOfLevel(int level) {
  switch (level) {
    case 0:
    case 10:
      return "switch";
    case 20:
      return "switches";
    case 30:
      return "bridge";
    case 40:
      return "node";
    default:
      return "system";
  }
}

/// The node that the kernel names for a PCI address; -1 when unknown.
int64_t NumaNode(const std::string& sys_root, std::string bus_id) {
  // The driver writes eight digits of the domain, the kernel four.
  if (bus_id.size() > 12) bus_id.erase(0, bus_id.size() - 12);
  bus_id = AsciiLowerCase(bus_id);
  Result<std::string> text =
      ReadFile(Env::Posix(), sys_root + "/sys/bus/pci/devices/" + bus_id + "/numa_node", 64);
  if (!text.ok() || text->empty()) return -1;
  return std::max<int64_t>(-1, std::strtoll(text->c_str(), nullptr, 10));
}

}  // namespace

/// Those that may be null are of newer or older drivers, or need not be there.
struct Nvml::Functions {
  Code (*init)() = nullptr;
  Code (*shutdown)() = nullptr;
  const char* (*error_string)(Code) = nullptr;
  Code (*driver_version)(char*, unsigned) = nullptr;
  Code (*count)(unsigned*) = nullptr;
  Code (*handle)(unsigned, Handle*) = nullptr;
  Code (*name)(Handle, char*, unsigned) = nullptr;
  Code (*uuid)(Handle, char*, unsigned) = nullptr;
  Code (*capability)(Handle, int*, int*) = nullptr;
  Code (*memory)(Handle, MemoryInfo*) = nullptr;
  Code (*pci)(Handle, PciInfo*) = nullptr;
  Code (*pcie_generation)(Handle, unsigned*) = nullptr;
  Code (*pcie_width)(Handle, unsigned*) = nullptr;
  Code (*nvlink_state)(Handle, unsigned, int*) = nullptr;
  Code (*ecc_mode)(Handle, int*, int*) = nullptr;
  Code (*mig_mode)(Handle, unsigned*, unsigned*) = nullptr;
  Code (*ancestor)(Handle, Handle, int*) = nullptr;
  Code (*peer_status)(Handle, Handle, int, int*) = nullptr;
  Code (*utilization)(Handle, UtilizationRates*) = nullptr;
  Code (*power)(Handle, unsigned*) = nullptr;
  Code (*energy)(Handle, unsigned long long*) = nullptr;
  Code (*temperature)(Handle, int, unsigned*) = nullptr;
  Code (*clock)(Handle, int, unsigned*) = nullptr;
  Code (*ecc_errors)(Handle, int, int, unsigned long long*) = nullptr;
  Code (*event_set_create)(void**) = nullptr;
  Code (*event_set_free)(void*) = nullptr;
  Code (*register_events)(Handle, unsigned long long, void*) = nullptr;
  Code (*event_wait)(void*, EventData*, unsigned) = nullptr;

  explicit Functions(const SharedLibrary& library) {
    Find(library, {"nvmlInit_v2", "nvmlInit"}, init);
    Find(library, {"nvmlShutdown"}, shutdown);
    Find(library, {"nvmlErrorString"}, error_string);
    Find(library, {"nvmlSystemGetDriverVersion"}, driver_version);
    Find(library, {"nvmlDeviceGetCount_v2", "nvmlDeviceGetCount"}, count);
    Find(library, {"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex"}, handle);
    Find(library, {"nvmlDeviceGetName"}, name);
    Find(library, {"nvmlDeviceGetUUID"}, uuid);
    Find(library, {"nvmlDeviceGetCudaComputeCapability"}, capability);
    Find(library, {"nvmlDeviceGetMemoryInfo"}, memory);
    Find(library, {"nvmlDeviceGetPciInfo_v3"}, pci);
    // The slot's own; the present one falls while the GPU rests.
    Find(library, {"nvmlDeviceGetMaxPcieLinkGeneration"}, pcie_generation);
    Find(library, {"nvmlDeviceGetMaxPcieLinkWidth"}, pcie_width);
    Find(library, {"nvmlDeviceGetNvLinkState"}, nvlink_state);
    Find(library, {"nvmlDeviceGetEccMode"}, ecc_mode);
    Find(library, {"nvmlDeviceGetMigMode"}, mig_mode);
    Find(library, {"nvmlDeviceGetTopologyCommonAncestor"}, ancestor);
    Find(library, {"nvmlDeviceGetP2PStatus"}, peer_status);
    Find(library, {"nvmlDeviceGetUtilizationRates"}, utilization);
    Find(library, {"nvmlDeviceGetPowerUsage"}, power);
    Find(library, {"nvmlDeviceGetTotalEnergyConsumption"}, energy);
    Find(library, {"nvmlDeviceGetTemperature"}, temperature);
    Find(library, {"nvmlDeviceGetClockInfo"}, clock);
    Find(library, {"nvmlDeviceGetTotalEccErrors"}, ecc_errors);
    Find(library, {"nvmlEventSetCreate"}, event_set_create);
    Find(library, {"nvmlEventSetFree"}, event_set_free);
    Find(library, {"nvmlDeviceRegisterEvents"}, register_events);
    Find(library, {"nvmlEventSetWait_v2", "nvmlEventSetWait"}, event_wait);
  }

 private:
  /// The newest of several versions of a function.
  template <class F>
  static void Find(const SharedLibrary& library, std::initializer_list<const char*> names,
                   F& function) {
    for (const char* symbol : names) {
      if (function == nullptr) (void)library.Find(symbol, function);
    }
  }
};

Nvml::Nvml() = default;

Nvml::~Nvml() {
  if (started_ && call_->shutdown != nullptr) (void)call_->shutdown();
}

std::string Nvml::ErrorText(int code) const {
  const char* text = call_->error_string != nullptr ? call_->error_string(code) : nullptr;
  return (text != nullptr ? text : "unknown error") + std::string(" (NVML error ") +
         std::to_string(code) + ")";
}

std::string Nvml::Lost(int code) const {
  return code == kGpuIsLost || code == kResetRequired ? ErrorText(code) : "";
}

Result<std::unique_ptr<Nvml>> Nvml::Load(const std::string& library) {
  std::unique_ptr<Nvml> nvml(new Nvml);
  // The next one loads what a new driver has installed.
  WEFT_ASSIGN_OR_RETURN(
      nvml->library_, SharedLibrary::LoadWhileUsed(library.c_str(), "NVIDIA's driver installs it"));
  nvml->call_ = std::make_unique<Functions>(*nvml->library_);
  const Functions& call = *nvml->call_;
  if (call.init == nullptr || call.count == nullptr || call.handle == nullptr) {
    return UnavailableError(library + " is not NVIDIA's management library, or damaged");
  }
  if (Code code = call.init(); code != kSuccess) {
    return UnavailableError("NVIDIA's driver does not start: " + nvml->ErrorText(code));
  }
  nvml->started_ = true;
  std::array<char, 96> text{};
  if (call.driver_version != nullptr && call.driver_version(text.data(), text.size()) == kSuccess) {
    nvml->driver_.assign(text.data(), strnlen(text.data(), text.size()));
  }
  unsigned count = 0;
  if (Code code = call.count(&count); code != kSuccess) {
    return UnavailableError("cannot count the GPUs: " + nvml->ErrorText(code));
  }
  for (unsigned index = 0; index < std::min(count, 1024u); ++index) {
    Handle handle = nullptr;
    Code code = call.handle(index, &handle);
    bool ok = code == kSuccess && handle != nullptr;
    nvml->handles_.push_back(ok ? handle : nullptr);
    nvml->lost_.push_back(ok ? "" : nvml->ErrorText(code));
  }
  return nvml;
}

std::string Nvml::LinkPath(int index, int other, int64_t nvlinks) const {
  int state = -1;
  if (nvlinks > 0 && call_->peer_status != nullptr &&
      call_->peer_status(handles_[index], handles_[other], kPeerNvlink, &state) == kSuccess &&
      state == kPeerOk) {
    return "nvlink";
  }
  int level = 50;
  if (call_->ancestor != nullptr) (void)call_->ancestor(handles_[index], handles_[other], &level);
  return PathOfLevel(level);
}

DeviceSpec Nvml::Describe(int index, const std::string& sys_root) const {
  const Functions& call = *call_;
  DeviceSpec device;
  device.index = index;
  device.driver = driver_;
  Handle handle = handles_.at(static_cast<size_t>(index));
  if (handle == nullptr) {
    device.unusable = lost_[index];
    return device;
  }
  auto tell = [&](Code code) {
    if (device.unusable.empty()) device.unusable = Lost(code);
    return code == kSuccess;
  };
  std::array<char, 128> text{};
  auto read = [&](Code (*function)(Handle, char*, unsigned)) {
    text.fill('\0');
    bool ok = function != nullptr && tell(function(handle, text.data(), text.size()));
    return ok ? ClipText(std::string_view(text.data(), strnlen(text.data(), text.size())))
              : std::string();
  };
  auto number = [&](Code (*function)(Handle, unsigned*)) -> int64_t {
    unsigned value = 0;
    return function != nullptr && tell(function(handle, &value)) ? value : 0;
  };
  device.name = read(call.name);
  device.uuid = read(call.uuid);
  int major = 0, minor = 0;
  if (call.capability != nullptr && tell(call.capability(handle, &major, &minor))) {
    device.compute_capability = std::to_string(major) + "." + std::to_string(minor);
  }
  MemoryInfo memory{};
  if (call.memory != nullptr && tell(call.memory(handle, &memory))) {
    device.memory_bytes = static_cast<int64_t>(memory.total);
  }
  PciInfo pci{};
  if (call.pci != nullptr && tell(call.pci(handle, &pci))) {
    device.numa_node =
        NumaNode(sys_root, std::string(pci.bus_id, strnlen(pci.bus_id, sizeof(pci.bus_id))));
  }
  device.pcie_generation = number(call.pcie_generation);
  device.pcie_width = number(call.pcie_width);
  for (unsigned link = 0; call.nvlink_state != nullptr && link < kMostNvlinks; ++link) {
    int active = 0;
    if (call.nvlink_state(handle, link, &active) == kSuccess && active != 0) ++device.nvlinks;
  }
  int current = 0, pending = 0;
  if (call.ecc_mode != nullptr && tell(call.ecc_mode(handle, &current, &pending))) {
    device.ecc = current != 0;
  }
  unsigned mig = 0, mig_pending = 0;
  if (call.mig_mode != nullptr && tell(call.mig_mode(handle, &mig, &mig_pending))) {
    device.mig = mig != 0;
  }
  if (device.mig && device.unusable.empty()) {
    device.unusable = "it is cut into instances (MIG), which Weft does not use";
  }
  for (int other = 0; other < count(); ++other) {
    if (other == index || handles_[other] == nullptr) continue;
    DeviceLink link;
    link.index = other;
    link.path = LinkPath(index, other, device.nvlinks);
    int state = -1;
    link.peer = call.peer_status != nullptr &&
                call.peer_status(handle, handles_[other], kPeerRead, &state) == kSuccess &&
                state == kPeerOk;
    device.links.push_back(link);
  }
  return device;
}

DeviceSample Nvml::Sample(int index) const {
  const Functions& call = *call_;
  DeviceSample sample;
  Handle handle = handles_.at(static_cast<size_t>(index));
  if (handle == nullptr) {
    sample.lost = lost_[index];
    return sample;
  }
  auto tell = [&](Code code) {
    if (sample.lost.empty()) sample.lost = Lost(code);
    return code == kSuccess;
  };
  MemoryInfo memory{};
  if (call.memory != nullptr && tell(call.memory(handle, &memory))) {
    sample.memory_total_bytes = static_cast<int64_t>(memory.total);
    sample.memory_used_bytes = static_cast<int64_t>(memory.used);
  }
  UtilizationRates rates{};
  if (call.utilization != nullptr && tell(call.utilization(handle, &rates))) {
    sample.utilization_ratio = rates.gpu / 100.0;
    sample.memory_activity_ratio = rates.memory / 100.0;
  }
  unsigned value = 0;
  if (call.power != nullptr && tell(call.power(handle, &value))) sample.power_watts = value / 1e3;
  unsigned long long large = 0;
  if (call.energy != nullptr && tell(call.energy(handle, &large))) {
    sample.energy_joules = static_cast<double>(large) / 1e3;
  }
  if (call.temperature != nullptr && tell(call.temperature(handle, kTemperatureOfGpu, &value))) {
    sample.temperature_celsius = value;
  }
  if (call.clock != nullptr && tell(call.clock(handle, kClockOfSm, &value))) {
    sample.sm_clock_hertz = value * 1e6;
  }
  if (call.clock != nullptr && tell(call.clock(handle, kClockOfMemory, &value))) {
    sample.memory_clock_hertz = value * 1e6;
  }
  auto errors = [&](int kind) -> std::optional<int64_t> {
    if (call.ecc_errors == nullptr ||
        !tell(call.ecc_errors(handle, kind, kSinceDriverLoad, &large))) {
      return std::nullopt;
    }
    return static_cast<int64_t>(large);
  };
  sample.corrected_errors = errors(kCorrectedError);
  sample.uncorrected_errors = errors(kUncorrectedError);
  return sample;
}

// --------------------------------------------------------------------------------- events

Result<std::unique_ptr<Nvml::Events>> Nvml::Watch(const std::vector<int>& indices) const {
  const Functions& call = *call_;
  if (call.event_set_create == nullptr || call.event_set_free == nullptr ||
      call.register_events == nullptr || call.event_wait == nullptr) {
    return UnavailableError("the driver has no events");
  }
  void* set = nullptr;
  if (Code code = call.event_set_create(&set); code != kSuccess) {
    return UnavailableError("cannot make a set of events: " + ErrorText(code));
  }
  std::unique_ptr<Events> events(new Events(*this, set));
  Code last = kSuccess;
  bool any = false;
  for (int index : indices) {
    Handle handle = handles_.at(static_cast<size_t>(index));
    if (handle == nullptr) continue;
    Code code = call.register_events(handle, kXidEvents, set);
    if (code == kSuccess) {
      any = true;
    } else {
      last = code;
    }
  }
  if (!any) return UnavailableError("no GPU tells of XIDs: " + ErrorText(last));
  return events;
}

Nvml::Events::~Events() {
  (void)nvml_.call_->event_set_free(set_);
}

Result<std::optional<XidEvent>> Nvml::Events::Wait(std::chrono::milliseconds patience) {
  EventData data{};
  Code code = nvml_.call_->event_wait(set_, &data, static_cast<unsigned>(patience.count()));
  if (code == kTimeout) return std::optional<XidEvent>();
  if (code != kSuccess) return UnavailableError("cannot wait for XIDs: " + nvml_.ErrorText(code));
  auto found = std::find(nvml_.handles_.begin(), nvml_.handles_.end(), data.device);
  if ((data.type & kXidEvents) == 0 || found == nvml_.handles_.end() || data.device == nullptr) {
    return std::optional<XidEvent>();
  }
  return std::optional<XidEvent>(
      {static_cast<int>(found - nvml_.handles_.begin()), static_cast<int64_t>(data.data)});
}

}  // namespace weft::daemon
