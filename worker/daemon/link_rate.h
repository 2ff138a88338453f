#pragma once

#include <atomic>
#include <chrono>
#include <span>
#include <string>
#include <utility>

#include "common/status.h"

namespace weft::daemon {

/// One transfer of a measurement, timed by the end that connected.
struct LinkRound {
  double bytes = 0;    ///< Sent in one direction.
  double seconds = 0;  ///< Until the last of them had arrived, and one round trip.
};

/// Bytes per second of a link: of the rounds that are at least half as large as the largest the
/// fastest, so that other work on the machines hardly shows, without its round trip. 0 without
/// rounds.
double LinkBytesPerSecond(std::span<const LinkRound> rounds, double round_trip_seconds);

/// How long each direction of a link is measured, with so much time left for both: half a second,
/// and ten round trips where there is time.
double SecondsPerDirection(double round_trip_seconds, double seconds_left);

/// One TCP stream between two machines, without delay of small messages, as ranks use it.
struct LinkRate {
  double send_bytes_per_second = 0;  ///< From the end that connected.
  double receive_bytes_per_second = 0;
  double round_trip_seconds = 0;  ///< Of one byte.
};

/// When a measurement ends, whatever it has.
struct LinkLimit {
  std::chrono::steady_clock::time_point deadline;
  /// Set by another thread to end it within some milliseconds; null: nobody does.
  const std::atomic<bool>* stop = nullptr;
};

/// Bytes that a peer shows before it is served.
constexpr size_t kLinkTokenBytes = 32;

/// A socket, closed at its end.
class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  ~Socket();
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int fd() const { return fd_; }

 private:
  int fd_;
};

/// The end that waits. Its port is open as long as it lives.
class LinkListener {
 public:
  /// Listens on a free port of `host`, an address or name of this machine.
  static Result<LinkListener> Open(const std::string& host);
  int port() const { return port_; }
  /// Serves the first peer that shows the token, until that one is done; others are turned away.
  /// kAborted when it was stopped, kUnavailable when the limit came first; else what the system
  /// says, where it can take no connection.
  Status Serve(const std::string& token, const LinkLimit& limit);

 private:
  LinkListener(Socket socket, int port) : socket_(std::move(socket)), port_(port) {}
  Socket socket_;
  int port_;
};

/// Connects to a LinkListener and measures, in about a second at most when the link is of a usual
/// speed. kUnavailable when the peer does not answer, kAborted when it was stopped.
Result<LinkRate> MeasureLink(const std::string& host, int port, const std::string& token,
                             const LinkLimit& limit);

}  // namespace weft::daemon
