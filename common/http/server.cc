#include "common/http/server.h"

#include <fcntl.h>

#include <boost/asio/dispatch.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <list>
#include <utility>

#include "common/http/address.h"
#include "common/log.h"

namespace weft::http {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using Tcp = asio::ip::tcp;

/// After an accept that failed, for example for lack of file descriptors.
constexpr std::chrono::milliseconds kAcceptPause{100};

const char* ReasonPhrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 431:
      return "Request Header Fields Too Large";
    case 503:
      return "Service Unavailable";
    default:
      return "Unknown";
  }
}

std::string Head(const Reply& reply) {
  return "HTTP/1.1 " + std::to_string(reply.status) + " " + ReasonPhrase(reply.status) +
         "\r\nContent-Type: " + reply.content_type +
         "\r\nContent-Length: " + std::to_string(reply.body.size()) +
         (reply.status == 405 ? "\r\nAllow: GET, HEAD" : "") + "\r\nConnection: close\r\n\r\n";
}

struct RequestLine {
  std::string method;
  std::string path;  ///< Without the query.
};

/// "GET /metrics?x=y HTTP/1.1"; nothing when it is not of that form.
std::optional<RequestLine> ParseRequestLine(const std::string& head) {
  const std::string line = head.substr(0, head.find("\r\n"));
  const size_t first = line.find(' ');
  const size_t second = line.find(' ', first == std::string::npos ? first : first + 1);
  if (second == std::string::npos || line.compare(second + 1, 7, "HTTP/1.") != 0) {
    return std::nullopt;
  }
  RequestLine request{line.substr(0, first), line.substr(first + 1, second - first - 1)};
  if (request.path.empty() || request.path[0] != '/') return std::nullopt;
  request.path = request.path.substr(0, request.path.find('?'));
  return request;
}

}  // namespace

/// All of the server that its handlers refer to; runs on one thread.
struct Server::Loop : std::enable_shared_from_this<Server::Loop> {
  struct Connection {
    explicit Connection(Tcp::socket s) : socket(std::move(s)), timer(socket.get_executor()) {}
    Tcp::socket socket;
    asio::steady_timer timer;
    std::string request;
    std::string reply;
    bool head_only = false;
    bool answered = false;
    std::list<std::shared_ptr<Connection>>::iterator place;
    bool open = true;
  };
  using ConnectionPtr = std::shared_ptr<Connection>;

  Loop(std::map<std::string, Page> p, Limits l)
      : pages(std::move(p)), limits(l), acceptor(io), pause(io) {}

  void Accept() {
    acceptor.async_accept([this](const error_code& error, Tcp::socket socket) {
      if (error == asio::error::operation_aborted) return;
      if (error) {
        if (!connections.empty()) Close(connections.front());
        pause.expires_after(kAcceptPause);
        pause.async_wait([this](const error_code& stopped) {
          if (!stopped) Accept();
        });
        return;
      }
      // Programs that the daemon starts must not hold it open.
      (void)fcntl(socket.native_handle(), F_SETFD, FD_CLOEXEC);
      if (connections.size() >= limits.connections) Close(connections.front());
      auto connection = std::make_shared<Connection>(std::move(socket));
      connections.push_back(connection);
      connection->place = std::prev(connections.end());
      Read(connection);
      Accept();
    });
  }

  void Read(const ConnectionPtr& connection) {
    Limit(connection, limits.request, [this, connection] { Close(connection); });
    asio::async_read_until(connection->socket,
                           asio::dynamic_buffer(connection->request, limits.request_bytes),
                           "\r\n\r\n", [this, connection](const error_code& error, size_t) {
                             if (!connection->open) return;
                             if (error == asio::error::not_found) {
                               Send(connection, {431, "the request is too large\n"});
                             } else if (error) {
                               Close(connection);
                             } else {
                               Handle(connection);
                             }
                           });
  }

  void Handle(const ConnectionPtr& connection) {
    const std::optional<RequestLine> request = ParseRequestLine(connection->request);
    if (!request) return Send(connection, {400, "this is no HTTP/1 request\n"});
    connection->head_only = request->method == "HEAD";
    if (request->method != "GET" && request->method != "HEAD") {
      return Send(connection, {405, "only GET and HEAD are served\n"});
    }
    const auto page = pages.find(request->path);
    if (page == pages.end()) {
      std::string known;
      for (const auto& [path, unused] : pages) known += (known.empty() ? "" : ", ") + path;
      return Send(connection, {404, "there is no such page; there are " + known + "\n"});
    }
    Limit(connection, limits.answer, [this, connection] {
      Send(connection,
           {503, "no answer within " + std::to_string(limits.answer.count()) + " ms\n"});
    });
    page->second([loop = weak_from_this(), weak = std::weak_ptr(connection)](Reply reply) {
      auto self = loop.lock();
      if (!self) return;
      asio::dispatch(self->io, [loop, weak, reply = std::move(reply)]() mutable {
        auto server = loop.lock();
        auto waiting = weak.lock();
        if (server && waiting) server->Send(waiting, std::move(reply));
      });
    });
  }

  void Send(const ConnectionPtr& connection, Reply reply) {
    if (!connection->open || connection->answered) return;
    connection->answered = true;
    connection->reply = Head(reply);
    if (!connection->head_only) connection->reply += reply.body;
    Limit(connection, limits.send, [this, connection] { Close(connection); });
    asio::async_write(connection->socket, asio::buffer(connection->reply),
                      [this, connection](const error_code& error, size_t) {
                        Close(connection, /*sent=*/!error);
                      });
  }

  /// Does `then` unless the connection comes to its next limit before.
  template <class Then>
  void Limit(const ConnectionPtr& connection, std::chrono::milliseconds time, Then then) {
    connection->timer.expires_after(time);
    connection->timer.async_wait([connection, then](const error_code& error) {
      if (!error && connection->open) then();
    });
  }

  /// Unless all was sent, the kernel drops at once what the client has not taken.
  void Close(const ConnectionPtr connection, bool sent = false) {
    if (!connection->open) return;
    connection->open = false;
    connections.erase(connection->place);
    connection->timer.cancel();
    error_code ignored;
    if (sent) {
      connection->socket.shutdown(Tcp::socket::shutdown_send, ignored);
    } else {
      connection->socket.set_option(Tcp::socket::linger(true, 0), ignored);
    }
    connection->socket.close(ignored);
  }

  std::map<std::string, Page> pages;
  Limits limits;
  asio::io_context io{1};
  Tcp::acceptor acceptor;
  asio::steady_timer pause;
  std::list<ConnectionPtr> connections;  ///< The oldest first.
};

Result<std::unique_ptr<Server>> Server::Listen(const std::string& address,
                                               std::map<std::string, Page> pages, Limits limits) {
  auto loop = std::make_shared<Loop>(std::move(pages), limits);
  WEFT_ASSIGN_OR_RETURN(const HostPort parts, ParseAddress(address));
  error_code error;
  Tcp::resolver resolver(loop->io);
  const auto found = resolver.resolve(parts.host, parts.port, Tcp::resolver::passive, error);
  if (error || found.empty()) {
    return InvalidError("the address '" + address + "' cannot be resolved: " + error.message());
  }
  const Tcp::endpoint endpoint = *found.begin();
  loop->acceptor.open(endpoint.protocol(), error);
  if (!error) (void)fcntl(loop->acceptor.native_handle(), F_SETFD, FD_CLOEXEC);
  if (!error) loop->acceptor.set_option(Tcp::acceptor::reuse_address(true), error);
  if (!error) loop->acceptor.bind(endpoint, error);
  if (!error) loop->acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) {
    return UnavailableError("cannot listen on " + address + ": " + error.message() +
                            "; hint: choose a free port, or 0 for any");
  }
  loop->Accept();
  std::unique_ptr<Server> server(new Server(loop));
  server->thread_ = std::thread([loop] { loop->io.run(); });
  return server;
}

Server::~Server() {
  asio::post(loop_->io, [loop = loop_.get()] {
    error_code ignored;
    loop->acceptor.close(ignored);
    loop->pause.cancel();
    while (!loop->connections.empty()) loop->Close(loop->connections.front());
    loop->io.stop();
  });
  thread_.join();
}

int Server::port() const {
  error_code ignored;
  return loop_->acceptor.local_endpoint(ignored).port();
}

std::string Server::local_address() const {
  error_code ignored;
  const Tcp::endpoint bound = loop_->acceptor.local_endpoint(ignored);
  const asio::ip::address address = bound.address();
  const std::string host = address.is_unspecified() ? (address.is_v6() ? "[::1]" : "127.0.0.1")
                           : address.is_v6()        ? "[" + address.to_string() + "]"
                                                    : address.to_string();
  return host + ":" + std::to_string(bound.port());
}

}  // namespace weft::http
