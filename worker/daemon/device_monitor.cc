#include "worker/daemon/device_monitor.h"

#include <map>
#include <utility>

#include "common/log.h"
#include "worker/daemon/xid.h"

namespace weft::daemon {
namespace {

using std::chrono::milliseconds;

/// How long one wait for XIDs, and so the end of the monitor, may take.
constexpr milliseconds kWait{200};

/// After the driver could not wait: often a GPU was lost, and the sampler finds out which.
constexpr milliseconds kAfterError{1000};

}  // namespace

DeviceMonitor::DeviceMonitor(const Nvml& nvml, std::vector<int> indices, milliseconds interval,
                             Listener listener)
    : nvml_(nvml),
      indices_(std::move(indices)),
      interval_(interval),
      listener_(std::move(listener)),
      sampler_([this] { SampleAll(); }),
      waiter_([this] { WaitForXids(); }) {}

DeviceMonitor::~DeviceMonitor() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_all();
  sampler_.join();
  waiter_.join();
}

bool DeviceMonitor::Rest(milliseconds time) {
  std::unique_lock lock(mutex_);
  return !wake_.wait_for(lock, time, [&] { return ending_; });
}

bool DeviceMonitor::Ending() {
  std::lock_guard lock(mutex_);
  return ending_;
}

void DeviceMonitor::ReportEvent(const DeviceEvent& event) {
  if (event.broken) {
    std::lock_guard lock(mutex_);
    bool known = !reported_broken_.insert(event.index).second;
    if (known && event.xid == 0) return;
  }
  listener_.on_event(event);
}

void DeviceMonitor::SampleAll() {
  std::map<int, int64_t> uncorrected;
  do {
    for (int index : indices_) {
      DeviceSample sample = nvml_.Sample(index);
      listener_.on_sample(index, sample);
      if (!sample.lost.empty()) {
        ReportEvent({index, 0, "the GPU does not answer: " + sample.lost, true});
      }
      if (!sample.uncorrected_errors) continue;
      auto [before, first] = uncorrected.try_emplace(index, *sample.uncorrected_errors);
      int64_t more = *sample.uncorrected_errors - before->second;
      before->second = *sample.uncorrected_errors;
      if (more > 0) {
        ReportEvent({index, 0, std::to_string(more) + " uncorrected memory errors", true});
      }
    }
  } while (Rest(interval_));
}

void DeviceMonitor::WaitForXids() {
  auto events = nvml_.Watch(indices_);
  if (!events.ok()) {
    WEFT_LOG_WARNING << "XIDs of the GPUs are not seen: " << events.status().message();
    return;
  }
  while (!Ending()) {
    Result<std::optional<XidEvent>> event = (*events)->Wait(kWait);
    if (!event.ok()) {
      if (!Rest(kAfterError)) return;
    } else if (*event) {
      XidMeaning meaning = MeaningOfXid((*event)->xid);
      ReportEvent({(*event)->index, (*event)->xid, meaning.text, meaning.breaks});
    }
  }
}

}  // namespace weft::daemon
