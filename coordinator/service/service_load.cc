// Jobs that waited when the coordinator started. It answers before they all are loaded, and nothing
// starts before.
#include <algorithm>
#include <chrono>

#include "common/log.h"
#include "coordinator/service/service.h"

namespace weft::coordinator {
namespace {

/// So long the loop loads jobs before it does other things.
constexpr std::chrono::milliseconds kLoadSlice(20);
/// What the store cannot read is tried again after a second, then after twice as long each time.
constexpr std::chrono::seconds kLongestRetry(60);

}  // namespace

Status Service::LoadQueued(const std::string& job_id) {
  if (live_.contains(job_id)) return OkStatus();  // a call changed it meanwhile
  const Result<LiveJob*> live = Load(job_id);
  if (live.status().code() == StatusCode::kNotFound) return OkStatus();  // deleted meanwhile
  WEFT_RETURN_IF_ERROR(live.status());
  if (IsTerminal((*live)->current.job.state)) Retire(job_id);
  return OkStatus();
}

void Service::LoadSome() {
  const Duration end = clock_.Monotonic() + kLoadSlice;
  while (!unloaded_.empty() && clock_.Monotonic() < end) {
    const std::string job_id = std::move(unloaded_.front());
    unloaded_.pop_front();
    if (const Status status = LoadQueued(job_id); !status.ok()) {
      metrics_.StoreFailed();
      WEFT_LOG_ERROR << "the queued job " << job_id
                     << " cannot be loaded, and does not start before it is: " << status.message();
      unreadable_.push_back(job_id);
    }
  }
}

void Service::LoadRest() {
  const auto load = [this] {
    LoadSome();
    if (unloaded_.empty()) ScheduleSoon();
    LoadRest();
  };
  if (!unloaded_.empty()) {
    loop_.Post(load);
  } else if (!unreadable_.empty()) {
    loop_.PostAfter(load_retry_, [this, load] {
      unloaded_.swap(unreadable_);
      load_retry_ = std::min<Duration>(2 * load_retry_, kLongestRetry);
      load();
    });
  }
}

}  // namespace weft::coordinator
