#pragma once

#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace weft::testing {

/// A TCP proxy on a port of loopback that stands for the network between a worker and its
/// coordinator. A direction that is cut delivers neither bytes nor the end of a connection. Both
/// arrive once the link is whole again, as TCP sends them again, also from connections that their
/// owner has given up. While a direction is cut no connection comes about. From any thread.
class NetworkLink {
 public:
  enum class Direction {
    kBoth,
    kToServer,
    kFromServer,
  };

  /// Listens; every connection is forwarded to `server` ("127.0.0.1:port"), which may come and go.
  /// Fails the test where no port is to be had.
  explicit NetworkLink(const std::string& server);
  ~NetworkLink();
  NetworkLink(const NetworkLink&) = delete;
  NetworkLink& operator=(const NetworkLink&) = delete;

  /// Where clients connect, "127.0.0.1:port".
  const std::string& address() const { return address_; }

  void Cut(Direction direction);
  void Heal();

 private:
  /// One direction of a connection.
  struct Stream {
    int from = -1;
    int to = -1;
    bool to_server = false;
    bool ended = false;
    std::string waiting = {};  ///< Read and not written yet.
  };

  void Run();
  void Accept();
  /// Moves what can be moved without waiting.
  static void Forward(Stream& stream);
  /// Closes connections that have ended in one direction with an error, or in both.
  void CloseEnded();
  void Wake() const;

  std::string address_;
  int server_port_ = 0;
  int listener_ = -1;
  int wake_ = -1;
  std::atomic<bool> to_server_cut_ = false;
  std::atomic<bool> from_server_cut_ = false;
  std::atomic<bool> stopping_ = false;
  std::vector<Stream> streams_;  ///< Of the thread. Those of a connection follow each other.
  std::thread thread_;
};

}  // namespace weft::testing
