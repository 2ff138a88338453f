#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <string>

#include "coordinator/api/connection_gate.h"
#include "coordinator/api/coordinator_api.h"
#include "coordinator/api/worker_api.h"

namespace weft::coordinator {

/// What one client, or many together, may take of the server.
struct ServerLimits {
  size_t connections = 1000;                    ///< One more is closed at once.
  std::chrono::milliseconds handshake{10'000};  ///< From the connection to its first settings.
  std::chrono::milliseconds idle{600'000};      ///< A connection without a call ends.
  int streams_per_connection = 256;             ///< Further calls on it wait.
  int message_bytes = 4 << 20;                  ///< Larger ones are RESOURCE_EXHAUSTED.
  size_t memory_bytes = size_t{256} << 20;      ///< Buffers of all connections together.
};

/// The gRPC server of a coordinator, with health service (grpc.health.v1).
class Server {
 public:
  /// Listens on "host:port" (port 0: any free one). kUnavailable when the port is in use.
  static Result<std::unique_ptr<Server>> Listen(const std::string& address, Service& service,
                                                Metrics& metrics, const ServerLimits& limits = {});
  /// Ends streams and calls, waiting at most a second for those in flight.
  ~Server();

  int port() const { return gate_->port(); }

 private:
  Server(Service& service, Metrics& metrics)
      : jobs_(service, metrics), workers_(service, metrics) {}

  CoordinatorApi jobs_;
  WorkerApi workers_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<ConnectionGate> gate_;
};

}  // namespace weft::coordinator
