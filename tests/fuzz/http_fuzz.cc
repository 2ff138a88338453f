// The pages of a daemon, asked for with any bytes in place of a request: a connection gets one
// whole answer or none, and always ends.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "common/http/server.h"
#include "tests/fuzz/input.h"

namespace weft::http {
namespace {

using std::chrono::milliseconds;

/// A connection that is open for longer was forgotten.
constexpr timeval kEndLimit{20, 0};

/// A page that answers, and one that never does.
Server& Pages() {
  static const std::unique_ptr<Server> server = [] {
    Limits limits;
    limits.answer = milliseconds(20);
    auto listening = Server::Listen("127.0.0.1:0",
                                    {{"/metrics",
                                      [](const Answer& answer) {
                                        answer({200, "weft_up 1\n"});
                                      }},
                                     {"/healthz", [](const Answer&) {}}},
                                    limits);
    WEFT_FUZZ_EXPECT(listening.ok());
    return std::move(*listening);
  }();
  return *server;
}

struct Heard {
  std::string reply;
  bool whole = false;  ///< The server closed in order, so that nothing was lost on the way.
};

Heard Say(std::string_view request) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  WEFT_FUZZ_EXPECT(fd >= 0);
  WEFT_FUZZ_EXPECT(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &kEndLimit, sizeof(kEndLimit)) == 0);
  // A port of an address is not free again for a minute: one address has too few of them.
  static uint32_t connections = 0;
  sockaddr_in from{};
  from.sin_family = AF_INET;
  from.sin_addr.s_addr = htonl(INADDR_LOOPBACK + ++connections % 250);
  WEFT_FUZZ_EXPECT(bind(fd, reinterpret_cast<sockaddr*>(&from), sizeof(from)) == 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(Pages().port()));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  WEFT_FUZZ_EXPECT(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  while (!request.empty()) {
    // The server may have heard enough before all is sent.
    const ssize_t sent = send(fd, request.data(), request.size(), MSG_NOSIGNAL);
    if (sent <= 0) break;
    request.remove_prefix(static_cast<size_t>(sent));
  }
  shutdown(fd, SHUT_WR);
  Heard heard;
  char part[4096];
  ssize_t got = 0;
  while ((got = recv(fd, part, sizeof(part), 0)) > 0) {
    heard.reply.append(part, static_cast<size_t>(got));
  }
  heard.whole = got == 0;
  WEFT_FUZZ_EXPECT(heard.whole || (errno != EAGAIN && errno != EWOULDBLOCK));
  close(fd);
  return heard;
}

}  // namespace
}  // namespace weft::http

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view request = weft::fuzz::Text(data, size);
  const weft::http::Heard heard = weft::http::Say(request);
  if (!heard.whole || heard.reply.empty()) return 0;
  WEFT_FUZZ_EXPECT(heard.reply.starts_with("HTTP/1.1 "));
  const size_t head = heard.reply.find("\r\n\r\n");
  WEFT_FUZZ_EXPECT(head != std::string::npos);
  constexpr std::string_view kLength = "\r\nContent-Length: ";
  const size_t length = heard.reply.find(kLength);
  WEFT_FUZZ_EXPECT(length < head);
  const size_t body = heard.reply.size() - head - 4;
  const bool head_only = body == 0 && request.starts_with("HEAD ");
  WEFT_FUZZ_EXPECT(head_only || std::stoull(heard.reply.substr(length + kLength.size())) == body);
  return 0;
}
