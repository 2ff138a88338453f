#include "worker/daemon/link_rate.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "common/clock.h"
#include "common/failpoint.h"
#include "common/secret.h"

namespace weft::daemon {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

/// Between looks whether to stop.
constexpr milliseconds kSlice{20};
/// A peer that connects shows its token within this time.
constexpr milliseconds kTokenPatience{500};

/// Rounds grow from the one size to the other, until one takes long enough to be timed well: so
/// much, and several round trips.
constexpr uint64_t kFirstRound = uint64_t{64} << 10;
constexpr uint64_t kLargestRound = uint64_t{16} << 20;
constexpr double kLongRound = 0.02;
constexpr double kLongRoundTrips = 4;
/// This many of them are made, unless they take too long.
constexpr int kRounds = 5;
/// A direction is measured until both kEnoughSeconds and kEnoughRoundTrips, in which TCP finds its
/// pace, have passed, but at most for kMostOfTime of what is left for both directions.
constexpr double kEnoughSeconds = 0.5;
constexpr double kEnoughRoundTrips = 10;
constexpr double kMostOfTime = 0.4;
constexpr int kEchoes = 20;
constexpr double kEchoSeconds = 0.1;

constexpr size_t kChunk = size_t{256} << 10;

/// What the end that connected asks for.
enum class Operation : char { kEcho = 'e', kReceive = 'r', kSend = 's' };
constexpr size_t kCommandBytes = 9;
constexpr char kReady = 'k';

bool Stopped(const LinkLimit& limit) {
  return limit.stop != nullptr && limit.stop->load();
}

/// Waits until the socket can be read or written.
Status Await(int fd, short events, const LinkLimit& limit) {
  while (true) {
    if (Stopped(limit)) return AbortedError("the measurement was stopped");
    const auto left = std::chrono::ceil<milliseconds>(limit.deadline - steady_clock::now());
    if (left.count() <= 0) return UnavailableError("the peer did not answer in time");
    pollfd entry{fd, events, 0};
    const int ready = poll(&entry, 1, static_cast<int>(std::min(left, kSlice).count()));
    if (ready > 0) return OkStatus();
    if (ready < 0 && errno != EINTR) return ErrnoError("wait for the network", errno);
  }
}

Status SendAll(const Socket& socket, const char* data, size_t bytes, const LinkLimit& limit) {
  while (bytes > 0) {
    const ssize_t sent = send(socket.fd(), data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      data += sent;
      bytes -= static_cast<size_t>(sent);
    } else if (errno == EAGAIN || errno == EINTR) {
      WEFT_RETURN_IF_ERROR(Await(socket.fd(), POLLOUT, limit));
    } else {
      return ErrnoError("send to the peer", errno);
    }
  }
  return OkStatus();
}

Status ReceiveAll(const Socket& socket, char* data, size_t bytes, const LinkLimit& limit) {
  while (bytes > 0) {
    const ssize_t got = recv(socket.fd(), data, bytes, MSG_DONTWAIT);
    if (got > 0) {
      data += got;
      bytes -= static_cast<size_t>(got);
    } else if (got == 0) {
      return UnavailableError("the peer closed the connection");
    } else if (errno == EAGAIN || errno == EINTR) {
      WEFT_RETURN_IF_ERROR(Await(socket.fd(), POLLIN, limit));
    } else {
      return ErrnoError("receive from the peer", errno);
    }
  }
  return OkStatus();
}

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Result<AddressList> Resolve(const std::string& host, int port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    return UnavailableError("look up the address '" + host + "': " + gai_strerror(error) +
                            "; hint: give the worker a --host that others can reach");
  }
  return AddressList(found, &freeaddrinfo);
}

void SendAtOnce(const Socket& socket) {
  const int on = 1;
  (void)setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

Result<Socket> Connect(const std::string& host, int port, const LinkLimit& limit) {
  WEFT_ASSIGN_OR_RETURN(const AddressList addresses, Resolve(host, port, AI_NUMERICSERV));
  Socket socket(::socket(addresses->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket.fd() < 0) return ErrnoError("open a socket", errno);
  const std::string what = "connect to " + host + " port " + std::to_string(port);
  if (connect(socket.fd(), addresses->ai_addr, addresses->ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return ErrnoError(what, errno);
    WEFT_RETURN_IF_ERROR(Await(socket.fd(), POLLOUT, limit).WithContext(what));
    int error = 0;
    socklen_t size = sizeof(error);
    (void)getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return ErrnoError(what, error);
  }
  SendAtOnce(socket);
  return socket;
}

/// Receives `bytes` bytes and drops them. The failpoint slows the link down in tests.
Status TakeChunks(const Socket& socket, uint64_t bytes, std::vector<char>& buffer,
                  const LinkLimit& limit) {
  while (bytes > 0) {
    const size_t part = std::min<uint64_t>(bytes, buffer.size());
    WEFT_RETURN_IF_ERROR(Failpoint("worker.link.chunk"));
    WEFT_RETURN_IF_ERROR(ReceiveAll(socket, buffer.data(), part, limit));
    bytes -= part;
  }
  return OkStatus();
}

/// Sends `bytes` bytes: the buffer, repeated.
Status GiveChunks(const Socket& socket, uint64_t bytes, const std::vector<char>& buffer,
                  const LinkLimit& limit) {
  while (bytes > 0) {
    const size_t part = std::min<uint64_t>(bytes, buffer.size());
    WEFT_RETURN_IF_ERROR(Failpoint("worker.link.chunk"));
    WEFT_RETURN_IF_ERROR(SendAll(socket, buffer.data(), part, limit));
    bytes -= part;
  }
  return OkStatus();
}

/// Does what the peer asks for until it closes the connection.
Status ServePeer(const Socket& peer, const LinkLimit& limit) {
  std::vector<char> buffer(kChunk, 1);
  WEFT_RETURN_IF_ERROR(SendAll(peer, &kReady, 1, limit));
  while (true) {
    std::array<char, kCommandBytes> command;
    // The peer may close between commands.
    WEFT_RETURN_IF_ERROR(Await(peer.fd(), POLLIN, limit));
    char none = 0;
    if (recv(peer.fd(), &none, 1, MSG_PEEK | MSG_DONTWAIT) == 0) return OkStatus();
    WEFT_RETURN_IF_ERROR(ReceiveAll(peer, command.data(), command.size(), limit));
    uint64_t bytes = 0;
    std::memcpy(&bytes, command.data() + 1, sizeof(bytes));
    if (bytes > kLargestRound) return InvalidError("the peer asks for too large a transfer");
    const auto operation = static_cast<Operation>(command[0]);
    if (operation == Operation::kReceive) {
      WEFT_RETURN_IF_ERROR(TakeChunks(peer, bytes, buffer, limit));
    } else if (operation == Operation::kSend) {
      WEFT_RETURN_IF_ERROR(GiveChunks(peer, bytes, buffer, limit));
    } else if (operation != Operation::kEcho) {
      return InvalidError("the peer asks for something unknown");
    }
    if (operation != Operation::kSend) WEFT_RETURN_IF_ERROR(SendAll(peer, &kReady, 1, limit));
  }
}

/// The end that connected.
class Meter {
 public:
  Meter(const Socket& socket, const LinkLimit& limit) : socket_(socket), limit_(limit) {}

  Result<LinkRate> Measure() {
    LinkRate rate;
    WEFT_ASSIGN_OR_RETURN(rate.round_trip_seconds, RoundTrip());
    const double left = -SecondsSince(limit_.deadline);
    const double enough = SecondsPerDirection(rate.round_trip_seconds, left);
    WEFT_ASSIGN_OR_RETURN(rate.send_bytes_per_second,
                          Rate(Operation::kReceive, rate.round_trip_seconds, enough));
    WEFT_ASSIGN_OR_RETURN(rate.receive_bytes_per_second,
                          Rate(Operation::kSend, rate.round_trip_seconds, enough));
    return rate;
  }

 private:
  Status Command(Operation operation, uint64_t bytes) {
    std::array<char, kCommandBytes> command;
    command[0] = static_cast<char>(operation);
    std::memcpy(command.data() + 1, &bytes, sizeof(bytes));
    return SendAll(socket_, command.data(), command.size(), limit_);
  }

  /// The shortest of some.
  Result<double> RoundTrip() {
    double shortest = 1e30;
    const auto begin = steady_clock::now();
    for (int i = 0; i == 0 || (i < kEchoes && SecondsSince(begin) < kEchoSeconds); ++i) {
      const auto sent = steady_clock::now();
      char answer = 0;
      WEFT_RETURN_IF_ERROR(Command(Operation::kEcho, 0));
      WEFT_RETURN_IF_ERROR(ReceiveAll(socket_, &answer, 1, limit_));
      shortest = std::min(shortest, SecondsSince(sent));
    }
    return shortest;
  }

  Result<double> Round(Operation operation, uint64_t bytes) {
    const auto begin = steady_clock::now();
    WEFT_RETURN_IF_ERROR(Command(operation, bytes));
    if (operation == Operation::kReceive) {
      char answer = 0;
      WEFT_RETURN_IF_ERROR(GiveChunks(socket_, bytes, buffer_, limit_));
      WEFT_RETURN_IF_ERROR(ReceiveAll(socket_, &answer, 1, limit_));
    } else {
      WEFT_RETURN_IF_ERROR(TakeChunks(socket_, bytes, buffer_, limit_));
    }
    return SecondsSince(begin);
  }

  Result<double> Rate(Operation operation, double round_trip, double enough) {
    const double long_round = std::max(kLongRound, kLongRoundTrips * round_trip);
    std::vector<LinkRound> rounds;
    const auto begin = steady_clock::now();
    uint64_t bytes = kFirstRound;
    // A short round shows that longer ones before it were held up.
    for (int full = 0; full < kRounds && (rounds.empty() || SecondsSince(begin) < enough);) {
      WEFT_ASSIGN_OR_RETURN(const double seconds, Round(operation, bytes));
      rounds.push_back({static_cast<double>(bytes), seconds});
      if (seconds - round_trip < long_round && bytes < kLargestRound) {
        bytes *= 2;
        full = 0;
      } else {
        ++full;
      }
    }
    return LinkBytesPerSecond(rounds, round_trip);
  }

  const Socket& socket_;
  const LinkLimit& limit_;
  std::vector<char> buffer_ = std::vector<char>(kChunk, 1);
};

}  // namespace

double LinkBytesPerSecond(std::span<const LinkRound> rounds, double round_trip_seconds) {
  double largest = 0, best = 0;
  for (const LinkRound& round : rounds) largest = std::max(largest, round.bytes);
  for (const LinkRound& round : rounds) {
    if (2 * round.bytes < largest) continue;
    // A round trip that varies may be longer than that of this round.
    const double seconds = std::max(round.seconds - round_trip_seconds, round.seconds / 10);
    best = std::max(best, round.bytes / std::max(seconds, 1e-9));
  }
  return best;
}

double SecondsPerDirection(double round_trip_seconds, double seconds_left) {
  return std::min(std::max(kEnoughSeconds, kEnoughRoundTrips * round_trip_seconds),
                  kMostOfTime * seconds_left);
}

Socket::~Socket() {
  if (fd_ >= 0) close(fd_);
}

Result<LinkListener> LinkListener::Open(const std::string& host) {
  WEFT_ASSIGN_OR_RETURN(const AddressList addresses, Resolve(host, 0, AI_NUMERICSERV | AI_PASSIVE));
  Socket socket(::socket(addresses->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  auto* any = reinterpret_cast<sockaddr*>(&bound);
  if (socket.fd() < 0 || bind(socket.fd(), addresses->ai_addr, addresses->ai_addrlen) != 0 ||
      listen(socket.fd(), 4) != 0 || getsockname(socket.fd(), any, &size) != 0) {
    return ErrnoError("listen on " + host, errno);
  }
  const int port =
      ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                        : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
  return LinkListener(std::move(socket), port);
}

Status LinkListener::Serve(const std::string& token, const LinkLimit& limit) {
  while (true) {
    WEFT_RETURN_IF_ERROR(Await(socket_.fd(), POLLIN, limit));
    const Socket peer(accept4(socket_.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (peer.fd() < 0) {
      if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) continue;
      return ErrnoError("take a connection", errno);
    }
    SendAtOnce(peer);
    const LinkLimit soon{std::min(limit.deadline, steady_clock::now() + kTokenPatience),
                         limit.stop};
    std::array<char, kLinkTokenBytes> shown{};
    if (ReceiveAll(peer, shown.data(), shown.size(), soon).ok() &&
        SameSecret({shown.data(), shown.size()}, token)) {
      return ServePeer(peer, limit);
    }
  }
}

Result<LinkRate> MeasureLink(const std::string& host, int port, const std::string& token,
                             const LinkLimit& limit) {
  WEFT_ASSIGN_OR_RETURN(const Socket socket, Connect(host, port, limit));
  char answer = 0;
  WEFT_RETURN_IF_ERROR(SendAll(socket, token.data(), token.size(), limit));
  WEFT_RETURN_IF_ERROR(ReceiveAll(socket, &answer, 1, limit));
  return Meter(socket, limit).Measure();
}

}  // namespace weft::daemon
