#pragma once

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <memory>
#include <string>

#include "common/secret.h"
#include "common/status.h"

namespace weft::tls {

/// Objects of OpenSSL that free themselves.
template <class T, void (*kFree)(T*)>
struct OpensslFree {
  void operator()(T* object) const { kFree(object); }
};
using Bio = std::unique_ptr<BIO, OpensslFree<BIO, BIO_free_all>>;
using PrivateKey = std::unique_ptr<EVP_PKEY, OpensslFree<EVP_PKEY, EVP_PKEY_free>>;
using X509Certificate = std::unique_ptr<X509, OpensslFree<X509, X509_free>>;
using X509Trust = std::unique_ptr<X509_STORE, OpensslFree<X509_STORE, X509_STORE_free>>;
using X509Check = std::unique_ptr<X509_STORE_CTX, OpensslFree<X509_STORE_CTX, X509_STORE_CTX_free>>;
using X509RevocationList = std::unique_ptr<X509_CRL, OpensslFree<X509_CRL, X509_CRL_free>>;
using Asn1Time = std::unique_ptr<ASN1_TIME, OpensslFree<ASN1_TIME, ASN1_TIME_free>>;
using X509Ext = std::unique_ptr<X509_EXTENSION, OpensslFree<X509_EXTENSION, X509_EXTENSION_free>>;

/// A failure with the newest words of OpenSSL, whose queue of errors is empty then.
inline Status OpensslError(const std::string& what) {
  char words[256] = "no reason given";
  if (const unsigned long error = ERR_peek_last_error(); error != 0) {
    ERR_error_string_n(error, words, sizeof(words));
  }
  ERR_clear_error();
  return InvalidError(what + ": " + words);
}

/// A serial number as hexadecimal digits.
inline std::string SerialText(const ASN1_INTEGER* serial) {
  return HexOf({reinterpret_cast<const char*>(ASN1_STRING_get0_data(serial)),
                static_cast<size_t>(ASN1_STRING_length(serial))});
}

inline Bio ReaderOf(const std::string& text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

}  // namespace weft::tls
