#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/status.h"
#include "coordinator/service/views.h"
#include "coordinator/service/worker_link.h"
#include "coordinator/store/records.h"

namespace weft::coordinator {

// What workers were asked for and have not answered yet.

/// A recording of steps under way.
struct ProfileCall {
  std::string job_id;
  std::shared_ptr<WorkerLink> link;  ///< Where it was sent.
  std::function<void(Result<JobProfile>)> done;
};

/// A measurement under way between workers of two machines.
struct LinkCall {
  LinkRecord record;                     ///< Without what is measured.
  std::shared_ptr<WorkerLink> listener;  ///< Opens a port,
  std::shared_ptr<WorkerLink> dialler;   ///< to which this one connects.
  LinkOrder order;                       ///< With the port as soon as it is known.
};

}  // namespace weft::coordinator
