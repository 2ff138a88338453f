#include <boost/asio/ip/tcp.hpp>
#include <iterator>

#include "common/http/address.h"
#include "common/http/server.h"

namespace weft::http {

Result<Reply> Get(const std::string& address, const std::string& path,
                  std::chrono::milliseconds timeout) {
  WEFT_ASSIGN_OR_RETURN(const HostPort parts, ParseAddress(address));
  boost::asio::ip::tcp::iostream stream;
  stream.expires_after(timeout);
  stream.connect(parts.host, parts.port);
  stream << "GET " << path << " HTTP/1.0\r\nHost: " << address << "\r\n\r\n" << std::flush;
  const std::string text{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  const size_t body = text.find("\r\n\r\n");
  Reply reply;
  if (body == std::string::npos || text.rfind("HTTP/1.", 0) != 0 ||
      std::sscanf(text.c_str(), "HTTP/1.%*d %d", &reply.status) != 1) {
    return UnavailableError("no answer from http://" + address + path + ": " +
                            stream.error().message());
  }
  reply.body = text.substr(body + 4);
  return reply;
}

}  // namespace weft::http
