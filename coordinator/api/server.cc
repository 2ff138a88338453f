#include "coordinator/api/server.h"

#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>

#include "common/http/address.h"
#include "proto/grpc_tls.h"

namespace weft::coordinator {

Result<std::unique_ptr<Server>> Server::Listen(const std::string& address, Service& service,
                                               Metrics& metrics, const ServerLimits& limits,
                                               ServerSecurity security) {
  security.access.tls = !security.tls.empty();
  WEFT_ASSIGN_OR_RETURN(const http::HostPort parts, http::ParseAddress(address));
  if (!security.access.tls && !security.plain_allowed && !http::IsLoopback(parts.host)) {
    return InvalidError("listening on " + address +
                        " without TLS would let the whole network read and command; hint: "
                        "--tls-cert, --tls-key and --tls-ca (docs/security.md), or --insecure if "
                        "the network is yours alone");
  }
  WEFT_ASSIGN_OR_RETURN(std::shared_ptr<grpc::ServerCredentials> credentials,
                        ServerCredentialsOf(security.tls));
  std::unique_ptr<Server> server(new Server(service, metrics, security.access));
  WEFT_ASSIGN_OR_RETURN(server->gate_, ConnectionGate::Listen(address, limits.connections));
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  auto acceptor = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials);
  builder.RegisterService(&server->guard_);
  builder.RegisterService(&server->workers_);
  builder.SetMaxReceiveMessageSize(limits.message_bytes);
  builder.SetResourceQuota(grpc::ResourceQuota("coordinator").Resize(limits.memory_bytes));
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS,
                             static_cast<int>(limits.handshake.count()));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS,
                             static_cast<int>(limits.idle.count()));
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, 16 << 10);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, limits.streams_per_connection);
  // Find dead peers, and let workers and clients ping every 10 s or more even when idle.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 20000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10000);
  if (security.access.tls) {
    // A certificate counts when a connection begins: none lasts for long.
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS,
                               static_cast<int>(limits.connection_age.count()));
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS,
                               static_cast<int>(limits.age_grace.count()));
  }
  server->server_ = builder.BuildAndStart();
  if (server->server_ == nullptr) return InternalError("gRPC does not start a server");
  server->gate_->Open(std::move(acceptor), [&metrics] { metrics.ConnectionRefused(); });
  return server;
}

Server::~Server() {
  if (server_ == nullptr) return;
  gate_.reset();
  if (auto* health = server_->GetHealthCheckService()) health->Shutdown();
  server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
  server_->Wait();
}

}  // namespace weft::coordinator
