#pragma once

#include <string>

#include "common/status.h"

namespace weft::http {

struct HostPort {
  std::string host;  ///< Without brackets; empty: all addresses of this machine.
  std::string port;
};

/// Splits "HOST:PORT", "[IPV6]:PORT" or ":PORT"; kInvalid for anything else.
Result<HostPort> ParseAddress(const std::string& address);

/// Whether only this machine reaches `host`: "localhost", 127.0.0.0/8 or ::1, with or without
/// brackets.
bool IsLoopback(const std::string& host);

/// Whether pages without TLS may be served on `address` (ParseAddress): on loopback, and elsewhere
/// if `allowed` (--metrics-insecure of the daemons). kInvalid says why not.
Status CheckPlainPages(const std::string& address, bool allowed);

}  // namespace weft::http
