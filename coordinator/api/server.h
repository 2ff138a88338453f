#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <string>

#include "common/tls/certificate.h"
#include "coordinator/api/admission.h"
#include "coordinator/api/audited_calls.h"
#include "coordinator/api/connection_gate.h"
#include "coordinator/api/coordinator_api.h"
#include "coordinator/api/guarded_api.h"
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
  /// A TLS connection is made anew after this, and with it its certificates are checked.
  std::chrono::milliseconds connection_age{1'800'000};
  std::chrono::milliseconds age_grace{300'000};  ///< For the calls of one that is too old.
};

/// Who reaches a server.
struct ServerSecurity {
  tls::Files tls;              ///< Empty: plain text, which only loopback may speak.
  bool plain_allowed = false;  ///< On other addresses, too.
  AccessRules access;          ///< `tls` is set by the server.
};

/// The gRPC server of a coordinator, with health service (grpc.health.v1).
class Server {
 public:
  /// Listens on "host:port" (port 0: any free one). kUnavailable when the port is in use, kInvalid
  /// when others than this machine could listen in, or the files of TLS are wrong.
  static Result<std::unique_ptr<Server>> Listen(const std::string& address, Service& service,
                                                Metrics& metrics, const ServerLimits& limits = {},
                                                ServerSecurity security = {});
  /// Ends streams and calls, waiting at most a second for those in flight.
  ~Server();

  int port() const { return gate_->port(); }

 private:
  Server(Service& service, Metrics& metrics, const AccessRules& access)
      : calls_(service.store(), metrics),
        admission_(access, service, Clock::System()),
        jobs_(service, metrics, calls_),
        guard_(jobs_, calls_, admission_, service, metrics, Clock::System()),
        workers_(service, metrics, calls_, admission_, access.tls) {}

  AuditedCalls calls_;
  Admission admission_;
  CoordinatorApi jobs_;
  GuardedApi guard_;
  WorkerApi workers_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<ConnectionGate> gate_;
};

}  // namespace weft::coordinator
