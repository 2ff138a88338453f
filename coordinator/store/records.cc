#include "coordinator/store/records.h"

#include <array>

namespace weft::coordinator {
namespace {

constexpr std::array<std::string_view, kJobStates> kJobStateNames = {
    "QUEUED",    "STARTING", "RUNNING",   "RECOVERING", "CANCELLING",
    "SUCCEEDED", "FAILED",   "CANCELLED", "PAUSING",    "PAUSED"};

constexpr std::array<std::string_view, kReasons> kReasonNames = {
    "REASON_UNSPECIFIED",
    "WAITING_FOR_WORKERS",
    "WAITING_FOR_CAPACITY",
    "USER_ERROR",
    "RANK_DIED",
    "WORKER_LOST",
    "OUT_OF_MEMORY",
    "NUMERICS",
    "RETRIES_EXHAUSTED",
    "CANCELLED_BY_USER",
    "SERVICE_FAULT",
    "COMPLETED",
    "DEVICE_FAILED",
    "REPLANNED",
    "DRAINED",
    "HUNG",
    "PLANNING",
    "WAITING_FOR_QUOTA",
    "WAITING_FOR_JOBS",
    "PREEMPTED",
    "PAUSED_BY_USER",
    "TIME_LIMIT",
    "JOB_BEFORE_FAILED",
    "MACHINE_UNHEALTHY",
    "SILENT_CORRUPTION",
};

constexpr std::array<std::string_view, kWorkerSchedulings> kWorkerSchedulingNames = {
    "SCHEDULABLE", "CORDONED", "DRAINING", "QUARANTINED"};

constexpr std::array<std::string_view, kPlacementStates> kPlacementStateNames = {
    "DISPATCHED", "STARTED", "TRAINING", "FINISHED", "FAILED", "STOPPED", "LOST"};

constexpr std::array<std::string_view, kPlacementParts> kPlacementPartNames = {"MEMBER", "JOINING",
                                                                               "LEFT"};

template <class E, size_t N>
std::optional<E> Find(const std::array<std::string_view, N>& names, std::string_view name) {
  for (size_t i = 0; i < N; ++i) {
    if (names[i] == name) return static_cast<E>(i);
  }
  return std::nullopt;
}

}  // namespace

std::string_view Name(JobState state) {
  return kJobStateNames[static_cast<size_t>(state)];
}
std::string_view Name(Reason reason) {
  return kReasonNames[static_cast<size_t>(reason)];
}
std::string_view Name(PlacementState state) {
  return kPlacementStateNames[static_cast<size_t>(state)];
}

std::string_view Name(PlacementPart part) {
  return kPlacementPartNames[static_cast<size_t>(part)];
}

std::string_view Name(WorkerScheduling scheduling) {
  return kWorkerSchedulingNames[static_cast<size_t>(scheduling)];
}

std::optional<JobState> JobStateFromName(std::string_view name) {
  return Find<JobState>(kJobStateNames, name);
}
std::optional<Reason> ReasonFromName(std::string_view name) {
  return Find<Reason>(kReasonNames, name);
}
std::optional<PlacementState> PlacementStateFromName(std::string_view name) {
  return Find<PlacementState>(kPlacementStateNames, name);
}
std::optional<PlacementPart> PlacementPartFromName(std::string_view name) {
  return Find<PlacementPart>(kPlacementPartNames, name);
}
std::optional<WorkerScheduling> WorkerSchedulingFromName(std::string_view name) {
  return Find<WorkerScheduling>(kWorkerSchedulingNames, name);
}

}  // namespace weft::coordinator
