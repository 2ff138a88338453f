#include "common/http/address.h"

#include <arpa/inet.h>

#include <algorithm>

namespace weft::http {

Result<HostPort> ParseAddress(const std::string& address) {
  const Status wrong =
      InvalidError("'" + address + "' is not HOST:PORT; hint: for example 127.0.0.1:7071");
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return wrong;
  HostPort parts{address.substr(0, colon), address.substr(colon + 1)};
  const bool number = !parts.port.empty() && parts.port.size() <= 5 &&
                      std::all_of(parts.port.begin(), parts.port.end(),
                                  [](char c) { return c >= '0' && c <= '9'; });
  if (!number || std::stoi(parts.port) > 65535) return wrong;
  if (parts.host.size() >= 2 && parts.host.front() == '[' && parts.host.back() == ']') {
    parts.host = parts.host.substr(1, parts.host.size() - 2);
  } else if (parts.host.find(':') != std::string::npos) {
    return wrong;
  }
  return parts;
}

bool IsLoopback(const std::string& host) {
  std::string bare = host;
  if (bare.starts_with('[') && bare.ends_with(']')) bare = bare.substr(1, bare.size() - 2);
  if (bare == "localhost" || bare == "::1") return true;
  in_addr address{};
  return inet_pton(AF_INET, bare.c_str(), &address) == 1 && ntohl(address.s_addr) >> 24 == 127;
}

Status CheckPlainPages(const std::string& address, bool allowed) {
  WEFT_ASSIGN_OR_RETURN(const HostPort parts, ParseAddress(address));
  if (allowed || IsLoopback(parts.host)) return OkStatus();
  return InvalidError("metrics on " + address +
                      " would be shown to the whole network, without TLS; hint: listen on "
                      "127.0.0.1:" +
                      parts.port + ", or --metrics-insecure if only Prometheus gets there");
}

}  // namespace weft::http
