#include "coordinator/api/connection_gate.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "common/http/address.h"
#include "common/log.h"

namespace weft::coordinator {
namespace {

/// After an accept that failed for lack of something, for example of file descriptors.
constexpr int kPauseMilliseconds = 100;

void SetOn(int fd, int level, int option) {
  const int on = 1;
  (void)setsockopt(fd, level, option, &on, sizeof(on));
}

int PortOf(int fd) {
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size) != 0) return 0;
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                           : reinterpret_cast<sockaddr_in&>(bound).sin_port);
}

/// Listening on the first of the addresses that can be bound, or -1 with errno.
int Bind(const addrinfo* choices) {
  for (const addrinfo* choice = choices; choice != nullptr; choice = choice->ai_next) {
    const int fd =
        socket(choice->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);
    if (fd < 0) continue;
    SetOn(fd, SOL_SOCKET, SO_REUSEADDR);
    if (bind(fd, choice->ai_addr, choice->ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0) {
      return fd;
    }
    const int error = errno;
    close(fd);
    errno = error;
  }
  return -1;
}

}  // namespace

Result<std::unique_ptr<ConnectionGate>> ConnectionGate::Listen(const std::string& address,
                                                               size_t limit) {
  WEFT_ASSIGN_OR_RETURN(const http::HostPort parts, http::ParseAddress(address));
  addrinfo wanted{};
  wanted.ai_family = AF_UNSPEC;
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* choices = nullptr;
  const int error = getaddrinfo(parts.host.empty() ? nullptr : parts.host.c_str(),
                                parts.port.c_str(), &wanted, &choices);
  if (error != 0) {
    return UnavailableError("cannot listen on " + address + ": " + gai_strerror(error));
  }
  std::unique_ptr<ConnectionGate> gate(new ConnectionGate);
  gate->limit_ = limit;
  gate->listener_ = Bind(choices);
  const int why = errno;
  freeaddrinfo(choices);
  if (gate->listener_ < 0) {
    return UnavailableError("cannot listen on " + address + ": " +
                            ErrnoError("bind", why).message() +
                            "; hint: the port is in use or the address is not of this machine");
  }
  gate->port_ = PortOf(gate->listener_);
  gate->stop_ = eventfd(0, EFD_CLOEXEC);
  if (gate->stop_ < 0) return ErrnoError("make an eventfd", errno);
  return gate;
}

void ConnectionGate::Open(std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor,
                          std::function<void()> on_refused) {
  acceptor_ = std::move(acceptor);
  on_refused_ = std::move(on_refused);
  thread_ = std::thread([this] { Run(); });
}

ConnectionGate::~ConnectionGate() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    while (write(stop_, &one, sizeof(one)) < 0 && errno == EINTR) {
    }
    thread_.join();
  }
  if (listener_ >= 0) close(listener_);
  if (stop_ >= 0) close(stop_);
}

void ConnectionGate::Run() {
  pollfd watched[] = {{stop_, POLLIN, 0}, {listener_, POLLIN, 0}};
  while (true) {
    if (poll(watched, 2, -1) < 0 && errno != EINTR) return;
    if (watched[0].revents != 0) return;
    if ((watched[1].revents & POLLIN) != 0 && !Accept()) {
      // Nobody there after all, or no descriptor left for it.
      (void)poll(watched, 1, kPauseMilliseconds);
    }
  }
}

bool ConnectionGate::HasRoom() {
  if (handed_.size() < limit_) return true;
  std::erase_if(handed_, [](const Handed& handed) {
    struct stat now {};
    return fstat(handed.fd, &now) != 0 || now.st_ino != handed.inode;
  });
  return handed_.size() < limit_;
}

bool ConnectionGate::Accept() {
  const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) return errno == EINTR || errno == ECONNABORTED;
  struct stat state {};
  if (!HasRoom() || fstat(fd, &state) != 0) {
    on_refused_();  // first: whoever sees the end finds it counted
    close(fd);
    return true;
  }
  SetOn(fd, IPPROTO_TCP, TCP_NODELAY);
  handed_.push_back({fd, state.st_ino});
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
  connection.listener_fd = listener_;
  connection.fd = fd;
  acceptor_->HandleNewConnection(&connection);
  return true;
}

}  // namespace weft::coordinator
