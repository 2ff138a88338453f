#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "common/status.h"
#include "common/tls/certificate.h"

namespace weft {

/// Credentials of a server. Without files plain text; with them TLS 1.2 or newer, for which the
/// files are read again every second, so that later handshakes have the newest. A client's
/// certificate must come from one of the authorities, but it need not have one.
Result<std::shared_ptr<grpc::ServerCredentials>> ServerCredentialsOf(const tls::Files& files);

/// Credentials of a channel, from the files as they are now. Without files plain text.
Result<std::shared_ptr<grpc::ChannelCredentials>> ChannelCredentialsOf(const tls::Files& files);

/// The URIs in the certificate of the other end of a call; empty without one.
std::vector<std::string> PeerUris(const grpc::ServerContextBase& context);

/// The serial of that certificate, as tls::Certificate::serial; empty without one.
std::string PeerSerial(const grpc::ServerContextBase& context);

/// Key of the metadata that carries a token: "Bearer TOKEN".
inline constexpr const char* kTokenMetadata = "authorization";
inline constexpr std::string_view kTokenScheme = "Bearer ";

}  // namespace weft
