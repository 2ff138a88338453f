#pragma once

#include <boost/asio/io_context.hpp>
#include <map>
#include <mutex>
#include <string>

#include "common/http/server.h"
#include "common/status.h"
#include "worker/daemon/metrics.h"

namespace weft::daemon {

/// What probes learn of this process: /healthz says that it lives (its event loop answers),
/// /readyz that it is attached to its coordinator. Thread-safe.
class Health {
 public:
  explicit Health(const Metrics& metrics) : metrics_(metrics) {}

  /// Not at work yet, and why.
  void Wait(const std::string& why);
  /// At work on `io`.
  void Serve(boost::asio::io_context& io);
  /// `io` is about to go.
  void Stop();

  /// /metrics, /healthz and /readyz.
  std::map<std::string, http::Page> Pages();

 private:
  void Alive(const http::Answer& answer);
  void Ready(const http::Answer& answer);

  const Metrics& metrics_;
  std::mutex mutex_;
  boost::asio::io_context* io_ = nullptr;
  std::string why_ = "starting";
};

/// Leaves `<data_dir>/daemon.json` with this process's pid and where `pages` are served (null:
/// nowhere), for CheckHealth and for whoever let the kernel choose the port.
Status WriteHealthFile(const std::string& data_dir, const http::Server* pages);

/// Asks the daemon of `data_dir` whether it is ready and prints what it said. Returns 0 when it is
/// attached to its coordinator, else 1: the exit code of a container probe.
int CheckHealth(const std::string& data_dir);

}  // namespace weft::daemon
