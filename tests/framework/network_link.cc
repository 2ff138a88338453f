#include "tests/framework/network_link.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <utility>

namespace weft::testing {
namespace {

/// Bytes that wait in the proxy for one direction of a connection, at most.
constexpr size_t kMostWaiting = 64 << 10;

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

void WithoutDelay(int fd) {
  const int on = 1;
  (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

/// A socket connected to a port of loopback; -1: nobody listens there.
int ConnectTo(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  const sockaddr_in address = Loopback(port);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) return fd;
  close(fd);
  return -1;
}

}  // namespace

NetworkLink::NetworkLink(const std::string& server)
    : server_port_(std::atoi(server.substr(server.rfind(':') + 1).c_str())) {
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  const bool listens = wake_ >= 0 && listener_ >= 0 &&
                       bind(listener_, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                       listen(listener_, SOMAXCONN) == 0 &&
                       getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  EXPECT_TRUE(listens) << "the proxy has no port: errno " << errno;
  address_ = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  thread_ = std::thread([this] { Run(); });
}

NetworkLink::~NetworkLink() {
  stopping_ = true;
  Wake();
  thread_.join();
  for (const Stream& stream : streams_) close(stream.from);
  if (listener_ >= 0) close(listener_);
  if (wake_ >= 0) close(wake_);
}

void NetworkLink::Cut(Direction direction) {
  if (direction != Direction::kFromServer) to_server_cut_ = true;
  if (direction != Direction::kToServer) from_server_cut_ = true;
  Wake();
}

void NetworkLink::Heal() {
  to_server_cut_ = from_server_cut_ = false;
  Wake();
}

void NetworkLink::Wake() const {
  const uint64_t one = 1;
  while (write(wake_, &one, sizeof(one)) < 0 && errno == EINTR) {
  }
}

void NetworkLink::Run() {
  while (!stopping_) {
    // Both are looked at once: a connection must not come about while one direction is cut.
    const bool to_server_cut = to_server_cut_, from_server_cut = from_server_cut_;
    std::vector<pollfd> watched = {{wake_, POLLIN, 0}};
    // A descriptor below 0 is not watched.
    watched.push_back({to_server_cut || from_server_cut ? -1 : listener_, POLLIN, 0});
    for (const Stream& stream : streams_) {
      const bool cut = stream.to_server ? to_server_cut : from_server_cut;
      const bool idle = cut || stream.ended;
      const bool full = stream.waiting.size() >= kMostWaiting;
      watched.push_back({idle || full ? -1 : stream.from, POLLIN, 0});
      watched.push_back({idle || stream.waiting.empty() ? -1 : stream.to, POLLOUT, 0});
    }
    if (poll(watched.data(), watched.size(), -1) < 0 && errno != EINTR) return;
    uint64_t woken = 0;
    while (read(wake_, &woken, sizeof(woken)) < 0 && errno == EINTR) {
    }
    if (to_server_cut != to_server_cut_ || from_server_cut != from_server_cut_) continue;
    for (size_t i = 0; i < streams_.size(); ++i) {
      const bool ready = watched[2 + 2 * i].revents != 0 || watched[3 + 2 * i].revents != 0;
      if (ready) Forward(streams_[i]);
    }
    if (watched[1].revents != 0) Accept();
    CloseEnded();
  }
}

void NetworkLink::Accept() {
  const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
  if (client < 0) return;
  const int server = ConnectTo(server_port_);
  if (server < 0) {
    close(client);
    return;
  }
  WithoutDelay(client);
  WithoutDelay(server);
  streams_.push_back({.from = client, .to = server, .to_server = true});
  streams_.push_back({.from = server, .to = client, .to_server = false});
}

void NetworkLink::Forward(Stream& stream) {
  char buffer[16 << 10];
  while (stream.waiting.size() < kMostWaiting) {
    const ssize_t got = recv(stream.from, buffer, sizeof(buffer), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got > 0) {
      stream.waiting.append(buffer, static_cast<size_t>(got));
      continue;
    }
    stream.ended = got == 0 || errno != EAGAIN;
    break;
  }
  // What came before an end goes first: it is little enough for the socket's own memory.
  while (!stream.waiting.empty()) {
    const ssize_t sent =
        send(stream.to, stream.waiting.data(), stream.waiting.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) {
      stream.ended |= errno != EAGAIN;
      break;
    }
    stream.waiting.erase(0, static_cast<size_t>(sent));
  }
}

void NetworkLink::CloseEnded() {
  for (size_t i = 0; i < streams_.size();) {
    // Neither side of gRPC goes on with half a connection.
    if (!streams_[i].ended && !streams_[i + 1].ended) {
      i += 2;
      continue;
    }
    close(streams_[i].from);
    close(streams_[i].to);
    streams_.erase(streams_.begin() + static_cast<std::ptrdiff_t>(i),
                   streams_.begin() + static_cast<std::ptrdiff_t>(i + 2));
  }
}

}  // namespace weft::testing
