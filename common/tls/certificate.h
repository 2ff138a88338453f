#pragma once

#include <string>
#include <vector>

#include "common/status.h"

namespace weft::tls {

/// What Weft reads of an X.509 certificate.
struct Certificate {
  std::string serial;             ///< Hexadecimal digits; tells it from all others of its CA.
  std::string subject;            ///< Common name, for people.
  std::vector<std::string> uris;  ///< Subject alternative names that are URIs.
  double not_before = 0;          ///< Seconds since 1970 UTC, as the next.
  double not_after = 0;
};

/// The first certificate in a PEM text; kInvalid when there is none.
Result<Certificate> ReadCertificate(const std::string& pem);

/// When the certificate in that file ends, seconds since 1970 UTC.
Result<double> CertificateEnd(const std::string& path);

/// Where a process has its certificate and what it trusts. All empty: no TLS.
struct Files {
  std::string certificate;  ///< PEM: own certificate, then those between it and the CA.
  std::string key;          ///< PEM: its private key; empty: in the same file.
  std::string authorities;  ///< PEM: the CAs that certificates of peers must come from.

  bool empty() const { return certificate.empty() && key.empty() && authorities.empty(); }
  const std::string& key_path() const { return key.empty() ? certificate : key; }
};

/// The contents of Files, as PEM.
struct Credentials {
  std::string certificate;  ///< Empty: this process only checks the other side.
  std::string key;
  std::string authorities;
};

/// Reads the files and checks them: the key belongs to the certificate, which is valid now and
/// comes from one of the authorities, and nobody else can read the key. kInvalid or kNotFound says
/// which file is wrong. Without a certificate only the authorities are read.
Result<Credentials> ReadCredentials(const Files& files);

/// The worker or person that an identity of Weft names, such as "spiffe://weft/worker/a"; empty
/// when it is none of that kind ("worker", "client" or "server").
std::string NameIn(const std::vector<std::string>& uris, const std::string& kind);

/// "spiffe://weft/KIND/NAME".
std::string IdentityOf(const std::string& kind, const std::string& name);

}  // namespace weft::tls
