#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "weft/v1/worker.pb.h"

namespace weft::daemon {

/// This worker's end of a measurement that the coordinator asked for, one at a time, on a thread of
/// its own. Answers come on the io_context's thread, on which all is called.
class LinkMeasurement {
 public:
  /// `host`: where this machine listens.
  LinkMeasurement(boost::asio::io_context& io, std::string host,
                  std::function<void(v1::LinkReply)> answer);
  ~LinkMeasurement();
  LinkMeasurement(const LinkMeasurement&) = delete;
  LinkMeasurement& operator=(const LinkMeasurement&) = delete;

  /// Begins one; one that is under way ends.
  void Start(const v1::MeasureLink& request);
  /// The one that is under way, if any, ends and answers with `why`. Its port is closed within some
  /// milliseconds.
  void Stop(const std::string& why);

 private:
  struct Run;
  void Join();
  // On the measurement's own thread, which ends before this object.
  void Measure(const std::shared_ptr<Run>& run);
  void SendReply(const std::shared_ptr<Run>& run, v1::LinkReply reply, bool last);

  boost::asio::io_context& io_;
  const std::string host_;
  std::function<void(v1::LinkReply)> answer_;
  std::shared_ptr<Run> run_;  // null: none
  std::thread thread_;
};

}  // namespace weft::daemon
