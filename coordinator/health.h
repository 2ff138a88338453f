#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <string>

#include "common/http/server.h"
#include "coordinator/service/service.h"

namespace weft::coordinator {

/// What probes learn of this process: /healthz says that it lives (its event loop answers),
/// /readyz that it serves, and if so what it cannot do. Thread-safe.
class Health {
 public:
  /// Not serving yet, and why.
  void Wait(const std::string& why);
  /// Serving; `writable` says why changes cannot be stored, if they cannot.
  void Serve(Service& service, std::function<Status()> writable);
  /// The service is about to go.
  void Stop();

  /// /metrics, /healthz and /readyz.
  std::map<std::string, http::Page> Pages(const Metrics& metrics);

 private:
  void Alive(const http::Answer& answer);
  void Ready(const http::Answer& answer);

  std::mutex mutex_;
  Service* service_ = nullptr;
  std::function<Status()> writable_;
  std::string why_ = "starting";
};

}  // namespace weft::coordinator
