#pragma once

#include <grpcpp/server_builder.h>
#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/status.h"

namespace weft::coordinator {

/// Accepts the connections of a gRPC server and hands them over, at most this many at a time: gRPC
/// has no limit of its own, and stops listening for good when the process runs out of file
/// descriptors. One beyond the limit is closed at once.
class ConnectionGate {
 public:
  /// Listens on "HOST:PORT" (port 0: any free one). kUnavailable when that cannot be bound.
  static Result<std::unique_ptr<ConnectionGate>> Listen(const std::string& address, size_t limit);
  /// Stops listening; what was handed over stays open.
  ~ConnectionGate();
  ConnectionGate(const ConnectionGate&) = delete;
  ConnectionGate& operator=(const ConnectionGate&) = delete;

  /// Hands connections to the server of `acceptor`, which must be started. `on_refused` is called
  /// for each that was one too many. Once.
  void Open(std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor,
            std::function<void()> on_refused);

  int port() const { return port_; }

 private:
  /// A socket that was handed over. gRPC closes it without a word, and then its number may name
  /// another file: the inode shows it.
  struct Handed {
    int fd;
    ino_t inode;
  };

  ConnectionGate() = default;
  void Run();
  /// Takes one connection from the queue of the kernel; false when there is none.
  bool Accept();
  /// There is room for one more.
  bool HasRoom();

  size_t limit_ = 0;
  int listener_ = -1;
  int stop_ = -1;  ///< An eventfd.
  int port_ = 0;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::function<void()> on_refused_;
  std::vector<Handed> handed_;
  std::thread thread_;
};

}  // namespace weft::coordinator
