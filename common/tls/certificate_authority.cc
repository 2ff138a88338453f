#include "common/tls/certificate_authority.h"

#include <arpa/inet.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <sstream>
#include <utility>

#include "common/clock.h"
#include "common/env.h"
#include "common/json.h"
#include "common/secret.h"
#include "common/tls/certificate.h"
#include "common/tls/openssl_types.h"
#include "common/tls/revocation_list.h"

namespace weft::tls {
namespace {

constexpr const char* kTrusted = "ca.pem";
constexpr const char* kSigner = "ca-key.pem";
constexpr const char* kRevoked = "ca-crl.pem";
constexpr const char* kIssued = "ca-issued.jsonl";
/// A CA that is trusted and does not sign yet.
constexpr const char* kNextSigner = "ca-next-key.pem";
/// Clocks of machines differ.
constexpr long kSecondsBefore = 3600;
constexpr long kSecondsPerDay = 86400;
constexpr size_t kMostNameLength = 63;

struct Signer {
  X509Certificate certificate;
  PrivateKey key;
};

std::string TextIn(const Bio& bio) {
  char* bytes = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &bytes);
  return {bytes, static_cast<size_t>(size)};
}

Result<std::string> PemOf(X509* certificate, EVP_PKEY* key) {
  const Bio bio(BIO_new(BIO_s_mem()));
  if (PEM_write_bio_X509(bio.get(), certificate) != 1) return OpensslError("write a certificate");
  if (key != nullptr &&
      PEM_write_bio_PKCS8PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr) != 1) {
    return OpensslError("write a private key");
  }
  return TextIn(bio);
}

Status AddExtension(X509* certificate, X509* issuer, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const X509Ext extension(X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str()));
  if (extension == nullptr || X509_add_ext(certificate, extension.get(), -1) != 1) {
    return OpensslError("put '" + value + "' into a certificate");
  }
  return OkStatus();
}

bool IsAddress(const std::string& host) {
  in6_addr any{};
  return inet_pton(AF_INET, host.c_str(), &any) == 1 ||
         inet_pton(AF_INET6, host.c_str(), &any) == 1;
}

std::string AlternativeNames(const Holder& holder) {
  std::string names = "URI:" + IdentityOf(holder.kind, holder.name);
  for (const std::string& host : holder.hosts) {
    names += (IsAddress(host) ? ",IP:" : ",DNS:") + host;
  }
  return names;
}

/// A certificate without extensions, for a key of its own.
Result<Signer> NewCertificate(const std::string& name, int64_t days) {
  Signer made{X509Certificate(X509_new()), PrivateKey(EVP_EC_gen("P-256"))};
  if (made.key == nullptr) return OpensslError("make a private key");
  X509* const x509 = made.certificate.get();
  // 20 bytes at most, and positive.
  const std::string serial = RandomBytes(16);
  BIGNUM* number =
      BN_bin2bn(reinterpret_cast<const unsigned char*>(serial.data()), std::ssize(serial), nullptr);
  BN_to_ASN1_INTEGER(number, X509_get_serialNumber(x509));
  BN_free(number);
  X509_set_version(x509, X509_VERSION_3);
  X509_gmtime_adj(X509_getm_notBefore(x509), -kSecondsBefore);
  X509_gmtime_adj(X509_getm_notAfter(x509), days * kSecondsPerDay);
  X509_set_pubkey(x509, made.key.get());
  X509_NAME_add_entry_by_NID(X509_get_subject_name(x509), NID_commonName, MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(name.data()),
                             static_cast<int>(name.size()), -1, 0);
  return made;
}

Result<Signer> NewAuthority(int64_t days) {
  // A name of its own tells it from the CA before it.
  WEFT_ASSIGN_OR_RETURN(Signer made, NewCertificate("Weft CA " + HexOf(RandomBytes(4)), days));
  X509* const x509 = made.certificate.get();
  X509_set_issuer_name(x509, X509_get_subject_name(x509));
  WEFT_RETURN_IF_ERROR(AddExtension(x509, x509, NID_basic_constraints, "critical,CA:TRUE"));
  WEFT_RETURN_IF_ERROR(AddExtension(x509, x509, NID_key_usage, "critical,keyCertSign,cRLSign"));
  WEFT_RETURN_IF_ERROR(AddExtension(x509, x509, NID_subject_key_identifier, "hash"));
  if (X509_sign(x509, made.key.get(), EVP_sha256()) == 0) return OpensslError("sign a CA");
  return made;
}

Result<Signer> ReadSigner(const std::string& path) {
  WEFT_ASSIGN_OR_RETURN(const std::string pem, ReadSecretFile(path));
  const Bio first = ReaderOf(pem);
  const Bio second = ReaderOf(pem);
  Signer signer{X509Certificate(PEM_read_bio_X509(first.get(), nullptr, nullptr, nullptr)),
                PrivateKey(PEM_read_bio_PrivateKey(second.get(), nullptr, nullptr, nullptr))};
  if (signer.certificate == nullptr || signer.key == nullptr) {
    return OpensslError(path + " is not the certificate and key of a CA");
  }
  return signer;
}

std::string FileNameOf(const Holder& holder) {
  return holder.kind == "server" ? "server.pem" : holder.kind + "-" + holder.name + ".pem";
}

/// The name of a holder becomes part of a file name, of a URI and of the configuration of OpenSSL.
Status CheckName(const std::string& name) {
  const bool good = !name.empty() && name.size() <= kMostNameLength && name[0] != '.' &&
                    std::all_of(name.begin(), name.end(), [](unsigned char c) {
                      return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.' || c == ':';
                    });
  if (good) return OkStatus();
  return InvalidError("'" + name + "' is no name for a certificate; hint: 1 to " +
                      std::to_string(kMostNameLength) + " letters, digits and any of -_.:");
}

/// A certificate revocation list of these serials, signed; good for as long as its CA.
Result<std::string> SignedList(const std::set<std::string>& serials, const Signer& signer) {
  const X509RevocationList list(X509_CRL_new());
  X509_CRL_set_version(list.get(), X509_CRL_VERSION_2);
  X509_CRL_set_issuer_name(list.get(), X509_get_subject_name(signer.certificate.get()));
  const Asn1Time now(X509_gmtime_adj(nullptr, 0));
  X509_CRL_set1_lastUpdate(list.get(), now.get());
  X509_CRL_set1_nextUpdate(list.get(), X509_get0_notAfter(signer.certificate.get()));
  for (const std::string& serial : serials) {
    BIGNUM* number = nullptr;
    BN_hex2bn(&number, serial.c_str());
    ASN1_INTEGER* integer = BN_to_ASN1_INTEGER(number, nullptr);
    X509_REVOKED* entry = X509_REVOKED_new();
    X509_REVOKED_set_serialNumber(entry, integer);
    X509_REVOKED_set_revocationDate(entry, now.get());
    X509_CRL_add0_revoked(list.get(), entry);
    ASN1_INTEGER_free(integer);
    BN_free(number);
  }
  X509_CRL_sort(list.get());
  if (X509_CRL_sign(list.get(), signer.key.get(), EVP_sha256()) == 0) {
    return OpensslError("sign a certificate revocation list");
  }
  const Bio bio(BIO_new(BIO_s_mem()));
  if (PEM_write_bio_X509_CRL(bio.get(), list.get()) != 1) {
    return OpensslError("write a certificate revocation list");
  }
  return TextIn(bio);
}

/// The holder in a certificate that was issued here; kInvalid when it is none.
Result<Holder> HolderOf(const std::string& pem) {
  WEFT_ASSIGN_OR_RETURN(const Certificate certificate, ReadCertificate(pem));
  Holder holder;
  for (const char* kind : {"server", "worker", "client"}) {
    if (holder.name.empty()) holder.name = NameIn(certificate.uris, kind);
    if (!holder.name.empty() && holder.kind.empty()) holder.kind = kind;
  }
  if (holder.kind.empty()) return InvalidError("it names no server, worker or client of Weft");
  const Bio bio = ReaderOf(pem);
  const X509Certificate x509(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
  auto* names = static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(x509.get(), NID_subject_alt_name, nullptr, nullptr));
  for (int i = 0; i < sk_GENERAL_NAME_num(names); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names, i);
    if (name->type == GEN_DNS) {
      holder.hosts.emplace_back(
          reinterpret_cast<const char*>(ASN1_STRING_get0_data(name->d.dNSName)),
          static_cast<size_t>(ASN1_STRING_length(name->d.dNSName)));
    } else if (name->type == GEN_IPADD) {
      char text[INET6_ADDRSTRLEN] = "";
      const int family = ASN1_STRING_length(name->d.iPAddress) == 4 ? AF_INET : AF_INET6;
      inet_ntop(family, ASN1_STRING_get0_data(name->d.iPAddress), text, sizeof(text));
      holder.hosts.emplace_back(text);
    }
  }
  GENERAL_NAMES_free(names);
  return holder;
}

}  // namespace

std::string CertificateAuthority::Path(const std::string& name) const {
  return JoinPath(folder_, name);
}

Status CertificateAuthority::Init() const {
  Env& env = Env::Posix();
  if (env.FileExists(Path(kSigner))) {
    return ConflictError("there is a CA in " + folder_ +
                         "; hint: `weft certs rotate` replaces it without an interruption");
  }
  WEFT_RETURN_IF_ERROR(env.CreateDirs(folder_));
  if (chmod(folder_.c_str(), 0700) != 0) return ErrnoError("protect " + folder_, errno);
  WEFT_ASSIGN_OR_RETURN(const Signer made, NewAuthority(validity_.authority_days));
  WEFT_ASSIGN_OR_RETURN(const std::string secret, PemOf(made.certificate.get(), made.key.get()));
  WEFT_ASSIGN_OR_RETURN(const std::string open, PemOf(made.certificate.get(), nullptr));
  WEFT_RETURN_IF_ERROR(WriteFileAtomic(env, Path(kTrusted), open));
  WEFT_RETURN_IF_ERROR(WriteSecretFile(Path(kSigner), secret));
  return WriteRevoked({});
}

Result<std::string> CertificateAuthority::Issue(const Holder& holder) const {
  WEFT_RETURN_IF_ERROR(CheckName(holder.name));
  for (const std::string& host : holder.hosts) WEFT_RETURN_IF_ERROR(CheckName(host));
  Result<Signer> found = ReadSigner(Path(kSigner));
  if (found.status().code() == StatusCode::kNotFound) {
    return NotFoundError("there is no CA in " + folder_ + "; hint: weft certs init " + folder_);
  }
  WEFT_ASSIGN_OR_RETURN(const Signer signer, std::move(found));
  WEFT_ASSIGN_OR_RETURN(const Signer made, NewCertificate(holder.name, validity_.days));
  X509* const x509 = made.certificate.get();
  X509* const issuer = signer.certificate.get();
  X509_set_issuer_name(x509, X509_get_subject_name(issuer));
  const bool serves = holder.kind == "server";
  WEFT_RETURN_IF_ERROR(AddExtension(x509, issuer, NID_basic_constraints, "critical,CA:FALSE"));
  WEFT_RETURN_IF_ERROR(AddExtension(x509, issuer, NID_key_usage, "critical,digitalSignature"));
  WEFT_RETURN_IF_ERROR(
      AddExtension(x509, issuer, NID_ext_key_usage, serves ? "serverAuth" : "clientAuth"));
  WEFT_RETURN_IF_ERROR(AddExtension(x509, issuer, NID_subject_key_identifier, "hash"));
  WEFT_RETURN_IF_ERROR(AddExtension(x509, issuer, NID_authority_key_identifier, "keyid:always"));
  WEFT_RETURN_IF_ERROR(AddExtension(x509, issuer, NID_subject_alt_name, AlternativeNames(holder)));
  if (X509_sign(x509, signer.key.get(), EVP_sha256()) == 0) {
    return OpensslError("sign a certificate");
  }
  WEFT_ASSIGN_OR_RETURN(const std::string pem, PemOf(x509, made.key.get()));
  WEFT_ASSIGN_OR_RETURN(const Certificate certificate, ReadCertificate(pem));
  const Json issued = {{"serial", certificate.serial},
                       {"kind", holder.kind},
                       {"name", holder.name},
                       {"not_after", certificate.not_after}};
  std::ofstream index(Path(kIssued), std::ios::app);
  if (!(index << issued.dump() << std::endl)) return ErrnoError("write " + Path(kIssued), errno);
  std::string path = Path(FileNameOf(holder));
  WEFT_RETURN_IF_ERROR(WriteSecretFile(path, pem));
  return path;
}

Result<std::set<std::string>> CertificateAuthority::SerialsOf(const Holder& holder) const {
  Env& env = Env::Posix();
  const double now = Clock::System().UnixSeconds();
  std::set<std::string> serials;
  if (env.FileExists(Path(kIssued))) {
    WEFT_ASSIGN_OR_RETURN(const std::string text, ReadFile(env, Path(kIssued)));
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      WEFT_ASSIGN_OR_RETURN(const Json issued, ParseJson(line));
      if (issued.value("kind", "") == holder.kind && issued.value("name", "") == holder.name &&
          issued.value("not_after", 0.0) > now) {
        serials.insert(issued.value("serial", ""));
      }
    }
  }
  // One that is older than that file.
  if (const std::string path = Path(FileNameOf(holder)); env.FileExists(path)) {
    WEFT_ASSIGN_OR_RETURN(const std::string pem, ReadSecretFile(path));
    WEFT_ASSIGN_OR_RETURN(const Certificate certificate, ReadCertificate(pem));
    serials.insert(certificate.serial);
  }
  return serials;
}

Status CertificateAuthority::WriteRevoked(std::set<std::string> serials) const {
  Env& env = Env::Posix();
  WEFT_ASSIGN_OR_RETURN(const Signer signer, ReadSigner(Path(kSigner)));
  if (env.FileExists(Path(kRevoked))) {
    WEFT_ASSIGN_OR_RETURN(const std::string pem, ReadFile(env, Path(kRevoked)));
    WEFT_ASSIGN_OR_RETURN(const std::string trusted, ReadFile(env, Path(kTrusted)));
    Result<std::set<std::string>> before = ReadRevokedSerials(pem, trusted);
    if (!before.ok()) return before.status().WithContext(Path(kRevoked));
    serials.merge(*before);
  }
  WEFT_ASSIGN_OR_RETURN(const std::string list, SignedList(serials, signer));
  return WriteFileAtomic(env, Path(kRevoked), list);
}

Result<std::string> CertificateAuthority::Revoke(const Holder& holder) const {
  WEFT_RETURN_IF_ERROR(CheckName(holder.name));
  WEFT_ASSIGN_OR_RETURN(std::set<std::string> serials, SerialsOf(holder));
  if (serials.empty()) {
    return NotFoundError("no certificate of " + holder.kind + " '" + holder.name +
                         "' that is still good was issued in " + folder_);
  }
  WEFT_RETURN_IF_ERROR(WriteRevoked(std::move(serials)));
  if (const std::string path = Path(FileNameOf(holder)); Env::Posix().FileExists(path)) {
    WEFT_RETURN_IF_ERROR(Env::Posix().RemoveFile(path));
  }
  return Path(kRevoked);
}

Status CertificateAuthority::AddAuthority() const {
  Env& env = Env::Posix();
  if (env.FileExists(Path(kNextSigner))) {
    return ConflictError("a new CA is trusted already; hint: weft certs rotate " + folder_ +
                         " --step issue");
  }
  WEFT_ASSIGN_OR_RETURN(const Signer now, ReadSigner(Path(kSigner)));
  WEFT_ASSIGN_OR_RETURN(const Signer next, NewAuthority(validity_.authority_days));
  WEFT_ASSIGN_OR_RETURN(const std::string secret, PemOf(next.certificate.get(), next.key.get()));
  WEFT_ASSIGN_OR_RETURN(const std::string old_open, PemOf(now.certificate.get(), nullptr));
  WEFT_ASSIGN_OR_RETURN(const std::string open, PemOf(next.certificate.get(), nullptr));
  WEFT_RETURN_IF_ERROR(WriteSecretFile(Path(kNextSigner), secret));
  return WriteFileAtomic(env, Path(kTrusted), open + old_open);
}

Result<std::vector<std::string>> CertificateAuthority::SwitchAuthority() const {
  Env& env = Env::Posix();
  if (!env.FileExists(Path(kNextSigner))) {
    return ConflictError("there is no new CA to sign with; hint: weft certs rotate " + folder_ +
                         " --step trust");
  }
  WEFT_RETURN_IF_ERROR(env.Rename(Path(kNextSigner), Path(kSigner)));
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> names, env.ListDir(folder_));
  std::vector<std::string> issued;
  for (const std::string& name : names) {
    if (!name.ends_with(".pem") || name.starts_with("ca")) continue;
    WEFT_ASSIGN_OR_RETURN(const std::string pem, ReadSecretFile(Path(name)));
    Result<Holder> holder = HolderOf(pem);
    if (!holder.ok()) return holder.status().WithContext(Path(name));
    WEFT_ASSIGN_OR_RETURN(std::string path, Issue(*holder));
    issued.push_back(std::move(path));
  }
  WEFT_RETURN_IF_ERROR(WriteRevoked({}));
  issued.push_back(Path(kRevoked));
  return issued;
}

Status CertificateAuthority::DropOldAuthority() const {
  if (Env::Posix().FileExists(Path(kNextSigner))) {
    return ConflictError("the old CA still signs; hint: weft certs rotate " + folder_ +
                         " --step issue");
  }
  WEFT_ASSIGN_OR_RETURN(const Signer now, ReadSigner(Path(kSigner)));
  WEFT_ASSIGN_OR_RETURN(const std::string open, PemOf(now.certificate.get(), nullptr));
  return WriteFileAtomic(Env::Posix(), Path(kTrusted), open);
}

}  // namespace weft::tls
