#include "proto/grpc_tls.h"

#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <utility>

namespace weft {
namespace {

constexpr unsigned kReadEverySeconds = 1;

}  // namespace

Result<std::shared_ptr<grpc::ServerCredentials>> ServerCredentialsOf(const tls::Files& files) {
  if (files.empty()) return grpc::InsecureServerCredentials();
  if (files.certificate.empty()) {
    return InvalidError("a server with TLS needs a certificate; hint: --tls-cert");
  }
  // gRPC reads the files itself, but says nothing of what is wrong with them.
  WEFT_RETURN_IF_ERROR(tls::ReadCredentials(files).status());
  grpc::experimental::TlsServerCredentialsOptions options(
      std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
          files.key_path(), files.certificate, files.authorities, kReadEverySeconds));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY);
  return grpc::experimental::TlsServerCredentials(options);
}

Result<std::shared_ptr<grpc::ChannelCredentials>> ChannelCredentialsOf(const tls::Files& files) {
  if (files.empty()) return grpc::InsecureChannelCredentials();
  WEFT_ASSIGN_OR_RETURN(tls::Credentials credentials, tls::ReadCredentials(files));
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = std::move(credentials.authorities);
  options.pem_cert_chain = std::move(credentials.certificate);
  options.pem_private_key = std::move(credentials.key);
  return grpc::SslCredentials(options);
}

std::vector<std::string> PeerUris(const grpc::ServerContextBase& context) {
  std::vector<std::string> uris;
  const std::shared_ptr<const grpc::AuthContext> peer = context.auth_context();
  if (peer == nullptr) return uris;
  for (const grpc::string_ref& uri : peer->FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME)) {
    uris.emplace_back(uri.data(), uri.size());
  }
  return uris;
}

std::string PeerSerial(const grpc::ServerContextBase& context) {
  const std::shared_ptr<const grpc::AuthContext> peer = context.auth_context();
  if (peer == nullptr) return "";
  for (const grpc::string_ref& pem : peer->FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME)) {
    const Result<tls::Certificate> certificate = tls::ReadCertificate({pem.data(), pem.size()});
    if (certificate.ok()) return certificate->serial;
  }
  return "";
}

}  // namespace weft
