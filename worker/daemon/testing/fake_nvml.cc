// A libnvidia-ml.so.1 for tests: it returns what the text file named by WEFT_FAKE_NVML says at each
// call, so that a test changes it meanwhile. Lines of the file, `*` meaning every GPU:
//   driver 580.65.06            count 2
//   GPU KEY VALUE               0 name NVIDIA H100     * power 300000
//   error FUNCTION CODE [GPU]   error nvmlDeviceGetPowerUsage 15 0
//   link GPU GPU LEVEL NVLINK   link 0 1 20 1
//   xid GPU NUMBER              each is reported once, in their order
// Built with WEFT_FAKE_OLD_DRIVER it has only what every driver has, with WEFT_FAKE_BROKEN nothing.
#ifndef WEFT_FAKE_BROKEN
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

namespace {

struct Gpu {
  unsigned index;
};
Gpu gpus[8] = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}};

std::vector<std::vector<std::string>> Lines() {
  std::vector<std::vector<std::string>> lines;
  const char* path = std::getenv("WEFT_FAKE_NVML");
  std::ifstream file(path != nullptr ? path : "");
  for (std::string line; std::getline(file, line);) {
    std::istringstream text(line);
    std::vector<std::string> words;
    for (std::string word; text >> word;) words.push_back(word);
    if (!words.empty()) lines.push_back(words);
  }
  return lines;
}

unsigned IndexOf(void* device) {
  return static_cast<Gpu*>(device)->index;
}

/// What the file says of one GPU, or of all; words joined by spaces.
std::string Value(void* device, const std::string& key) {
  std::string value;
  for (const auto& words : Lines()) {
    if (words.size() < 3 || words[1] != key) continue;
    if (words[0] != "*" && words[0] != std::to_string(IndexOf(device))) continue;
    value = words[2];
    for (size_t i = 3; i < words.size(); ++i) value += " " + words[i];
  }
  return value;
}

int ErrorOf(const std::string& function, void* device = nullptr) {
  for (const auto& words : Lines()) {
    if (words.size() < 3 || words[0] != "error") continue;
    if (words[1] != function && words[1] != "*") continue;
    if (words.size() > 3 && (device == nullptr || words[3] != std::to_string(IndexOf(device)))) {
      continue;
    }
    return std::atoi(words[2].c_str());
  }
  return 0;
}

constexpr int kNotSupported = 3;

template <class T>
[[maybe_unused]] int Number(const char* function, void* device, const char* key, T* out) {
  if (int error = ErrorOf(function, device)) return error;
  std::string value = Value(device, key);
  if (value.empty()) return kNotSupported;
  *out = static_cast<T>(std::atoll(value.c_str()));
  return 0;
}

[[maybe_unused]] int Text(const char* function, void* device, const char* key, char* out,
                          unsigned size) {
  if (int error = ErrorOf(function, device)) return error;
  std::strncpy(out, Value(device, key).c_str(), size);
  return 0;
}

/// The line about two GPUs, in either order.
[[maybe_unused]] std::vector<std::string> Link(void* a, void* b) {
  std::string first = std::to_string(IndexOf(a)), second = std::to_string(IndexOf(b));
  for (const auto& words : Lines()) {
    if (words.size() < 5 || words[0] != "link") continue;
    if ((words[1] == first && words[2] == second) || (words[1] == second && words[2] == first)) {
      return words;
    }
  }
  return {};
}

struct Memory {
  unsigned long long total, free, used;
};
struct Utilization {
  unsigned gpu, memory;
};
struct Pci {
  char legacy_bus_id[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};
struct Event {
  void* device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};

[[maybe_unused]] std::mutex mutex;
[[maybe_unused]] size_t xids_told = 0;

}  // namespace

#define FAKE extern "C" __attribute__((visibility("default")))

// NOLINTBEGIN(readability-identifier-naming): the names are NVML's.

#ifdef WEFT_FAKE_OLD_DRIVER
FAKE int nvmlInit() {
  return ErrorOf(__func__);
}
FAKE int nvmlDeviceGetCount(unsigned* count) {
  *count = 1;
  return ErrorOf(__func__);
}
FAKE int nvmlDeviceGetHandleByIndex(unsigned index, void** device) {
  *device = &gpus[index];
  return ErrorOf(__func__, *device);
}
FAKE int nvmlDeviceGetName(void* device, char* out, unsigned size) {
  return Text(__func__, device, "name", out, size);
}
#else
FAKE int nvmlInit_v2() {
  xids_told = 0;
  return ErrorOf(__func__);
}
FAKE int nvmlShutdown() {
  return 0;
}
FAKE const char* nvmlErrorString(int code) {
  return code == 15 ? "GPU is lost" : code == 16 ? "GPU requires reset" : "Unknown Error";
}
FAKE int nvmlSystemGetDriverVersion(char* out, unsigned size) {
  for (const auto& words : Lines()) {
    if (words[0] == "driver" && words.size() > 1) std::strncpy(out, words[1].c_str(), size);
  }
  return ErrorOf(__func__);
}
FAKE int nvmlDeviceGetCount_v2(unsigned* count) {
  for (const auto& words : Lines()) {
    if (words[0] == "count" && words.size() > 1)
      *count = static_cast<unsigned>(std::stoi(words[1]));
  }
  return ErrorOf(__func__);
}
FAKE int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = &gpus[index];
  return ErrorOf(__func__, *device);
}
FAKE int nvmlDeviceGetName(void* device, char* out, unsigned size) {
  return Text(__func__, device, "name", out, size);
}
FAKE int nvmlDeviceGetUUID(void* device, char* out, unsigned size) {
  return Text(__func__, device, "uuid", out, size);
}
FAKE int nvmlDeviceGetCudaComputeCapability(void* device, int* major, int* minor) {
  *minor = 0;
  return Number(__func__, device, "major", major);
}
FAKE int nvmlDeviceGetMemoryInfo(void* device, Memory* memory) {
  if (int error = Number(__func__, device, "memory_total", &memory->total)) return error;
  memory->used = 0;
  (void)Number(__func__, device, "memory_used", &memory->used);
  memory->free = memory->total - memory->used;
  return 0;
}
FAKE int nvmlDeviceGetPciInfo_v3(void* device, Pci* pci) {
  return Text(__func__, device, "bus_id", pci->bus_id, sizeof(pci->bus_id));
}
FAKE int nvmlDeviceGetMaxPcieLinkGeneration(void* device, unsigned* value) {
  return Number(__func__, device, "pcie_generation", value);
}
FAKE int nvmlDeviceGetMaxPcieLinkWidth(void* device, unsigned* value) {
  return Number(__func__, device, "pcie_width", value);
}
FAKE int nvmlDeviceGetNvLinkState(void* device, unsigned link, int* active) {
  unsigned links = 0;
  if (int error = Number(__func__, device, "nvlinks", &links)) return error;
  *active = link < links ? 1 : 0;
  return 0;
}
FAKE int nvmlDeviceGetEccMode(void* device, int* current, int* pending) {
  *pending = 0;
  return Number(__func__, device, "ecc", current);
}
FAKE int nvmlDeviceGetMigMode(void* device, unsigned* current, unsigned* pending) {
  *pending = 0;
  return Number(__func__, device, "mig", current);
}
FAKE int nvmlDeviceGetTopologyCommonAncestor(void* a, void* b, int* level) {
  if (int error = ErrorOf(__func__, a)) return error;
  std::vector<std::string> link = Link(a, b);
  if (link.empty()) return kNotSupported;
  *level = std::stoi(link[3]);
  return 0;
}
FAKE int nvmlDeviceGetP2PStatus(void* a, void* b, int what, int* status) {
  if (int error = ErrorOf(__func__, a)) return error;
  std::vector<std::string> link = Link(a, b);
  bool nvlink = !link.empty() && link[4] == "1";
  *status = !link.empty() && (what != 2 || nvlink) ? 0 : 5;
  return 0;
}
FAKE int nvmlDeviceGetUtilizationRates(void* device, Utilization* rates) {
  rates->memory = 10;
  return Number(__func__, device, "utilization", &rates->gpu);
}
FAKE int nvmlDeviceGetPowerUsage(void* device, unsigned* value) {
  return Number(__func__, device, "power", value);
}
FAKE int nvmlDeviceGetTotalEnergyConsumption(void* device, unsigned long long* value) {
  return Number(__func__, device, "energy", value);
}
FAKE int nvmlDeviceGetTemperature(void* device, int /*sensor*/, unsigned* value) {
  return Number(__func__, device, "temperature", value);
}
FAKE int nvmlDeviceGetClockInfo(void* device, int domain, unsigned* value) {
  return Number(__func__, device, domain == 1 ? "sm_clock" : "memory_clock", value);
}
FAKE int nvmlDeviceGetTotalEccErrors(void* device, int kind, int /*counter*/,
                                     unsigned long long* value) {
  return Number(__func__, device, kind == 0 ? "corrected" : "uncorrected", value);
}
FAKE int nvmlEventSetCreate(void** set) {
  *set = &mutex;
  return ErrorOf(__func__);
}
FAKE int nvmlEventSetFree(void* /*set*/) {
  return 0;
}
FAKE int nvmlDeviceRegisterEvents(void* device, unsigned long long /*types*/, void* /*set*/) {
  return ErrorOf(__func__, device);
}
FAKE int nvmlEventSetWait_v2(void* /*set*/, Event* event, unsigned milliseconds) {
  if (int error = ErrorOf(__func__)) return error;
  constexpr unsigned kTick = 5;
  for (unsigned waited = 0; waited <= milliseconds; waited += kTick) {
    size_t position = 0;
    std::lock_guard lock(mutex);
    for (const auto& words : Lines()) {
      if (words.size() < 3 || words[0] != "xid" || position++ < xids_told) continue;
      ++xids_told;
      *event = {&gpus[std::stoi(words[1])], 8, std::stoull(words[2]), 0, 0};
      return 0;
    }
    usleep(kTick * 1000);
  }
  return 10;
}
#endif
// NOLINTEND(readability-identifier-naming)
#endif  // WEFT_FAKE_BROKEN
