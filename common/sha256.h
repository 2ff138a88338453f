#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace weft {

/// SHA-256 (FIPS 180-4) of a byte stream. Guards against forgery, unlike ContentHash.
class Sha256 {
 public:
  static constexpr size_t kBytes = 32;

  void Update(std::string_view bytes);
  /// The digest, kBytes bytes. Call it once, at the end.
  std::string Digest();

 private:
  void Block(const unsigned char* bytes);

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<unsigned char, 64> pending_{};
  size_t pending_size_ = 0;
  uint64_t size_ = 0;
};

/// Digest of one text, kBytes bytes.
std::string Sha256Of(std::string_view bytes);

/// The digest of one text as 64 lower-case hexadecimal digits.
std::string Sha256Hex(std::string_view bytes);

/// HMAC-SHA-256 (RFC 2104) of `message`: only who knows `key` can make it.
std::string HmacSha256(std::string_view key, std::string_view message);

}  // namespace weft
