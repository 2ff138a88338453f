#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "common/status.h"

namespace weft::http {

struct Reply {
  int status = 200;
  std::string body;
  std::string content_type = "text/plain; charset=utf-8";
};

/// Answers one request, now or later, from any thread. Never answering is allowed: the client then
/// gets 503 once Limits::answer has passed.
using Answer = std::function<void(Reply)>;
using Page = std::function<void(const Answer&)>;

/// What keeps a slow, silent or greedy client from taking the place of others.
struct Limits {
  size_t connections = 64;      ///< One more ends the oldest.
  size_t request_bytes = 8192;  ///< Of request line and headers; more is answered with 431.
  std::chrono::milliseconds request{5000};  ///< From the connection to the end of the headers.
  std::chrono::milliseconds answer{3000};   ///< From there until the page has answered.
  std::chrono::milliseconds send{10000};    ///< Until the client has taken the answer.
};

/// Serves a few pages by GET and HEAD over HTTP/1.1, one request a connection, on a thread of its
/// own: metrics and health of a daemon. Request bodies are not read.
class Server {
 public:
  /// Listens on "HOST:PORT" (port 0: a free one; an IPv6 address in brackets). Paths are exact,
  /// without a query. kUnavailable when that cannot be bound, kInvalid when it is no address.
  static Result<std::unique_ptr<Server>> Listen(const std::string& address,
                                                std::map<std::string, Page> pages,
                                                Limits limits = {});
  /// Ends all connections. Answers that come later are dropped.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int port() const;
  /// Where a client on this machine reaches it: "127.0.0.1:7071".
  std::string local_address() const;

 private:
  struct Loop;
  explicit Server(std::shared_ptr<Loop> loop) : loop_(std::move(loop)) {}

  std::shared_ptr<Loop> loop_;
  std::thread thread_;
};

/// GET http://ADDRESS/PATH, for probes. kUnavailable when nobody answers within `timeout`.
Result<Reply> Get(const std::string& address, const std::string& path,
                  std::chrono::milliseconds timeout);

}  // namespace weft::http
