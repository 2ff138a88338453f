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

}  // namespace weft::http
