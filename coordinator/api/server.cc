#include "coordinator/api/server.h"

#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>

namespace weft::coordinator {

Result<std::unique_ptr<Server>> Server::Listen(const std::string& address, Service& service,
                                               Metrics& metrics, const ServerLimits& limits) {
  std::unique_ptr<Server> server(new Server(service, metrics));
  WEFT_ASSIGN_OR_RETURN(server->gate_, ConnectionGate::Listen(address, limits.connections));
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  auto acceptor = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
      grpc::InsecureServerCredentials());
  builder.RegisterService(&server->jobs_);
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
