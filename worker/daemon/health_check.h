#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/spec/cluster_spec.h"
#include "weft/v1/worker.pb.h"

namespace weft::daemon {

/// The check of this machine that the coordinator asks for before it gives it ranks, in a program
/// of its own, one at a time. Answers come on the io_context's thread, on which all is called.
class HealthCheck {
 public:
  /// `program`: weft-worker, or empty: nothing is checked, and all is well. `profile`: what it
  /// offers.
  HealthCheck(boost::asio::io_context& io, std::string program, const WorkerProfile& profile,
              std::function<void(v1::HealthReply)> answer);
  ~HealthCheck();
  HealthCheck(const HealthCheck&) = delete;
  HealthCheck& operator=(const HealthCheck&) = delete;

  /// Begins one; one that is under way ends without an answer. So does one that takes longer than
  /// its limit, as a machine that has much else to do may need.
  void Start(const v1::CheckHealth& request);
  /// The one that is under way, if any, ends without an answer.
  void Stop();

 private:
  struct Run;
  std::optional<v1::HealthReply> Check(const Run& run) const;

  boost::asio::io_context& io_;
  const std::string program_;
  const int64_t cores_;
  std::vector<DeviceSpec> devices_;  ///< Those on which ranks may run.
  std::function<void(v1::HealthReply)> answer_;
  std::shared_ptr<Run> run_;  // null: none
  std::thread thread_;
};

}  // namespace weft::daemon
