#include "common/tls/certificate.h"

#include <ctime>
#include <utility>

#include "common/env.h"
#include "common/secret.h"
#include "common/tls/openssl_types.h"

namespace weft::tls {
namespace {

constexpr uint64_t kLargestFile = 1 << 20;
constexpr const char* kTrustDomain = "spiffe://weft/";

/// Certificates in a text, which may hold keys besides.
std::vector<X509Certificate> CertificatesIn(const std::string& pem) {
  std::vector<X509Certificate> found;
  const Bio bio = ReaderOf(pem);
  while (X509* next = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) {
    found.emplace_back(next);
  }
  ERR_clear_error();
  return found;
}

double UnixSeconds(const ASN1_TIME* time) {
  std::tm parts{};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return 0;
  return static_cast<double>(timegm(&parts));
}

/// OK when the certificate, with the others of its text, comes from one of the authorities and is
/// valid now.
Status CheckChain(const std::vector<X509Certificate>& chain,
                  const std::vector<X509Certificate>& authorities) {
  const X509Trust trust(X509_STORE_new());
  for (const X509Certificate& authority : authorities) {
    X509_STORE_add_cert(trust.get(), authority.get());
  }
  STACK_OF(X509)* between = sk_X509_new_null();
  for (size_t i = 1; i < chain.size(); ++i) sk_X509_push(between, chain[i].get());
  const X509Check check(X509_STORE_CTX_new());
  X509_STORE_CTX_init(check.get(), trust.get(), chain[0].get(), between);
  const bool good = X509_verify_cert(check.get()) == 1;
  sk_X509_free(between);
  if (good) return OkStatus();
  ERR_clear_error();
  return InvalidError(X509_verify_cert_error_string(X509_STORE_CTX_get_error(check.get())));
}

Result<std::string> Read(const std::string& path) {
  Result<std::string> text = ReadFile(Env::Posix(), path, kLargestFile);
  if (!text.ok()) {
    return InvalidError(text.status().message() +
                        "; hint: `weft certs init` and `weft certs issue` make such files");
  }
  return text;
}

}  // namespace

Result<Certificate> ReadCertificate(const std::string& pem) {
  const std::vector<X509Certificate> chain = CertificatesIn(pem);
  if (chain.empty()) return InvalidError("there is no certificate in PEM form");
  X509* const x509 = chain[0].get();
  Certificate certificate;
  certificate.serial = SerialText(X509_get0_serialNumber(x509));
  char name[256] = "";
  X509_NAME_get_text_by_NID(X509_get_subject_name(x509), NID_commonName, name, sizeof(name));
  certificate.subject = name;
  certificate.not_before = UnixSeconds(X509_get0_notBefore(x509));
  certificate.not_after = UnixSeconds(X509_get0_notAfter(x509));
  auto* names =
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(x509, NID_subject_alt_name, nullptr, nullptr));
  for (int i = 0; i < sk_GENERAL_NAME_num(names); ++i) {
    const GENERAL_NAME* other = sk_GENERAL_NAME_value(names, i);
    if (other->type != GEN_URI) continue;
    const ASN1_IA5STRING* uri = other->d.uniformResourceIdentifier;
    certificate.uris.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(uri)),
                                  static_cast<size_t>(ASN1_STRING_length(uri)));
  }
  GENERAL_NAMES_free(names);
  return certificate;
}

Result<double> CertificateEnd(const std::string& path) {
  WEFT_ASSIGN_OR_RETURN(const std::string pem, Read(path));
  WEFT_ASSIGN_OR_RETURN(const Certificate certificate, ReadCertificate(pem));
  return certificate.not_after;
}

Result<Credentials> ReadCredentials(const Files& files) {
  Credentials credentials;
  if (files.authorities.empty()) {
    return InvalidError("TLS needs the certificate of the CA that peers come from; hint: --tls-ca");
  }
  WEFT_ASSIGN_OR_RETURN(credentials.authorities, Read(files.authorities));
  const std::vector<X509Certificate> authorities = CertificatesIn(credentials.authorities);
  if (authorities.empty()) {
    return InvalidError(files.authorities + " holds no certificate in PEM form");
  }
  if (files.certificate.empty()) return credentials;
  WEFT_ASSIGN_OR_RETURN(credentials.certificate, Read(files.certificate));
  Result<std::string> secret = ReadSecretFile(files.key_path());
  if (!secret.ok()) return secret.status().WithContext("private key");
  credentials.key = *std::move(secret);
  const std::vector<X509Certificate> chain = CertificatesIn(credentials.certificate);
  if (chain.empty()) return InvalidError(files.certificate + " holds no certificate in PEM form");
  const Bio bio = ReaderOf(credentials.key);
  const PrivateKey key(PEM_read_bio_PrivateKey(bio.get(), nullptr, nullptr, nullptr));
  if (key == nullptr) return OpensslError(files.key_path() + " holds no private key in PEM form");
  if (X509_check_private_key(chain[0].get(), key.get()) != 1) {
    return OpensslError("the key in " + files.key_path() + " is not that of the certificate in " +
                        files.certificate);
  }
  Status trusted = CheckChain(chain, authorities);
  if (!trusted.ok()) {
    return InvalidError("the certificate in " + files.certificate + " is not good for the CA in " +
                        files.authorities + ": " + trusted.message() +
                        "; hint: `weft certs issue` makes a new one");
  }
  return credentials;
}

std::string NameIn(const std::vector<std::string>& uris, const std::string& kind) {
  const std::string start = IdentityOf(kind, "");
  for (const std::string& uri : uris) {
    if (uri.starts_with(start)) return uri.substr(start.size());
  }
  return "";
}

std::string IdentityOf(const std::string& kind, const std::string& name) {
  return kTrustDomain + kind + "/" + name;
}

}  // namespace weft::tls
