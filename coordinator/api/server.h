#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "coordinator/api/coordinator_api.h"
#include "coordinator/api/worker_api.h"

namespace weft::coordinator {

/// The gRPC server of a coordinator, with health service (grpc.health.v1).
class Server {
 public:
  /// Listens on "host:port" (port 0: any free one). kUnavailable when the port is in use.
  static Result<std::unique_ptr<Server>> Listen(const std::string& address, Service& service,
                                                Metrics& metrics);
  /// Ends streams and calls, waiting at most a second for those in flight.
  ~Server();

  int port() const { return port_; }

 private:
  Server(Service& service, Metrics& metrics)
      : jobs_(service, metrics), workers_(service, metrics) {}

  CoordinatorApi jobs_;
  WorkerApi workers_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
};

}  // namespace weft::coordinator
