#include "worker/daemon/health.h"

#include <unistd.h>

#include <boost/asio/ip/tcp.hpp>
#include <iostream>
#include <iterator>
#include <string>

#include "common/env.h"
#include "common/json.h"

namespace weft::daemon {
namespace {

constexpr std::chrono::seconds kPatience{3};

Result<int> ReadPort(const std::string& data_dir) {
  std::string path = JoinPath(data_dir, "daemon.json");
  WEFT_ASSIGN_OR_RETURN(std::string text, ReadFile(Env::Posix(), path, 1 << 16));
  WEFT_ASSIGN_OR_RETURN(Json json, ParseJson(text));
  if (!json.is_object() || !json.contains("metrics_port") ||
      !json["metrics_port"].is_number_integer()) {
    return CorruptError(path + " names no metrics port");
  }
  return json["metrics_port"].get<int>();
}

Result<std::string> FetchMetrics(int port) {
  boost::asio::ip::tcp::iostream stream;
  stream.expires_after(kPatience);
  stream.connect("127.0.0.1", std::to_string(port));
  stream << "GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n" << std::flush;
  std::string reply{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  if (!reply.empty()) return reply;
  return UnavailableError("no answer on metrics port " + std::to_string(port) + ": " +
                          stream.error().message());
}

Status Check(const std::string& data_dir) {
  WEFT_ASSIGN_OR_RETURN(int port, ReadPort(data_dir));
  if (port == 0) {
    return InvalidError("the worker serves no metrics; hint: give it --metrics-listen");
  }
  WEFT_ASSIGN_OR_RETURN(std::string metrics, FetchMetrics(port));
  if (metrics.find("\nweft_worker_attached 1") != std::string::npos) return OkStatus();
  return UnavailableError("the worker runs but is not attached to its coordinator");
}

}  // namespace

Status WriteHealthFile(const std::string& data_dir, int metrics_port) {
  Json json{{"pid", getpid()}, {"metrics_port", metrics_port}};
  return WriteFileAtomic(Env::Posix(), JoinPath(data_dir, "daemon.json"), json.dump(2) + "\n");
}

int CheckHealth(const std::string& data_dir) {
  Status status = Check(data_dir);
  (status.ok() ? std::cout : std::cerr)
      << "weft-worker: " << (status.ok() ? "attached" : status.message()) << std::endl;
  return status.ok() ? 0 : 1;
}

}  // namespace weft::daemon
