#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/shared_library.h"
#include "common/spec/cluster_spec.h"
#include "common/status.h"

namespace weft::daemon {

/// What a GPU is doing now. Absent is what its driver does not report.
struct DeviceSample {
  std::optional<int64_t> memory_total_bytes;
  std::optional<int64_t> memory_used_bytes;     ///< Of all processes.
  std::optional<double> utilization_ratio;      ///< Share of the time that some kernel ran.
  std::optional<double> memory_activity_ratio;  ///< Share of the time that memory was moved.
  std::optional<double> power_watts;
  std::optional<double> energy_joules;  ///< Since the driver was loaded.
  std::optional<double> temperature_celsius;
  std::optional<double> sm_clock_hertz;
  std::optional<double> memory_clock_hertz;
  std::optional<int64_t> corrected_errors;  ///< Of memory, since the driver was loaded.
  std::optional<int64_t> uncorrected_errors;
  std::string lost;  ///< Why nothing can be said any more; empty: it answers.
};

/// An XID: the driver's word for something that went wrong on a GPU.
struct XidEvent {
  int index = 0;
  int64_t xid = 0;
};

/// NVIDIA's management library, loaded while the program runs: no part of Weft is linked against
/// it, and functions that an older driver lacks leave what they would return unknown. GPUs are
/// named by their index in its order, that of their PCI addresses. Thread-safe.
class Nvml {
 public:
  /// kUnavailable without the library, a driver or what every driver has.
  static Result<std::unique_ptr<Nvml>> Load(const std::string& library = "libnvidia-ml.so.1");
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  /// GPUs, also those that do not answer.
  int count() const { return static_cast<int>(handles_.size()); }

  /// What does not change while the driver runs, links to the other GPUs included; without
  /// measurements. `unusable` says why one is: lost, or cut into instances (MIG). `sys_root` is ""
  /// but in tests.
  DeviceSpec Describe(int index, const std::string& sys_root = "") const;

  DeviceSample Sample(int index) const;

  /// Waits for an XID on any of `indices`. Not thread-safe.
  class Events {
   public:
    ~Events();
    Events(const Events&) = delete;
    Events& operator=(const Events&) = delete;

    /// Nothing when `patience` passed without one. kUnavailable when the driver cannot wait now.
    Result<std::optional<XidEvent>> Wait(std::chrono::milliseconds patience);

   private:
    friend class Nvml;
    Events(const Nvml& nvml, void* set) : nvml_(nvml), set_(set) {}
    const Nvml& nvml_;
    void* set_;
  };
  /// kUnavailable when the driver offers none on any of them. The result does not outlive this.
  Result<std::unique_ptr<Events>> Watch(const std::vector<int>& indices) const;

 private:
  struct Functions;
  Nvml();
  std::string ErrorText(int code) const;
  /// What `code` means for a GPU that is lost; empty for other codes.
  std::string Lost(int code) const;
  std::string LinkPath(int index, int other, int64_t nvlinks) const;

  std::optional<SharedLibrary> library_;
  bool started_ = false;
  std::unique_ptr<Functions> call_;
  std::vector<void*> handles_;     // null: the GPU does not answer
  std::vector<std::string> lost_;  // why
  std::string driver_;
};

}  // namespace weft::daemon
