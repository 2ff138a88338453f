#include "common/sha256.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "common/secret.h"

namespace weft {
namespace {

/// First 32 bits of the fractional parts of the cube roots of the first 64 primes.
constexpr std::array<uint32_t, 64> kRound = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

}  // namespace

void Sha256::Block(const unsigned char* bytes) {
  std::array<uint32_t, 64> w{};
  for (size_t i = 0; i < 16; ++i) {
    w[i] = uint32_t{bytes[4 * i]} << 24 | uint32_t{bytes[4 * i + 1]} << 16 |
           uint32_t{bytes[4 * i + 2]} << 8 | uint32_t{bytes[4 * i + 3]};
  }
  for (size_t i = 16; i < w.size(); ++i) {
    const uint32_t a = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const uint32_t b = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + a + w[i - 7] + b;
  }
  std::array<uint32_t, 8> s = state_;
  for (size_t i = 0; i < w.size(); ++i) {
    const uint32_t e = std::rotr(s[4], 6) ^ std::rotr(s[4], 11) ^ std::rotr(s[4], 25);
    const uint32_t choice = (s[4] & s[5]) ^ (~s[4] & s[6]);
    const uint32_t first = s[7] + e + choice + kRound[i] + w[i];
    const uint32_t a = std::rotr(s[0], 2) ^ std::rotr(s[0], 13) ^ std::rotr(s[0], 22);
    const uint32_t majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
    std::rotate(s.begin(), s.end() - 1, s.end());
    s[4] += first;
    s[0] = first + a + majority;
  }
  for (size_t i = 0; i < s.size(); ++i) state_[i] += s[i];
}

void Sha256::Update(std::string_view bytes) {
  size_ += bytes.size();
  while (!bytes.empty()) {
    const size_t part = std::min(pending_.size() - pending_size_, bytes.size());
    std::memcpy(pending_.data() + pending_size_, bytes.data(), part);
    pending_size_ += part;
    bytes.remove_prefix(part);
    if (pending_size_ < pending_.size()) return;
    Block(pending_.data());
    pending_size_ = 0;
  }
}

std::string Sha256::Digest() {
  const uint64_t bits = 8 * size_;
  Update(std::string_view("\x80", 1));
  constexpr size_t kLengthAt = 56;
  constexpr char kZero = 0;
  while (pending_size_ != kLengthAt) Update(std::string_view(&kZero, 1));
  std::string length;
  for (int shift = 56; shift >= 0; shift -= 8) length += static_cast<char>(bits >> shift);
  Update(length);
  std::string digest;
  for (const uint32_t word : state_) {
    for (int shift = 24; shift >= 0; shift -= 8) digest += static_cast<char>(word >> shift);
  }
  return digest;
}

std::string Sha256Of(std::string_view bytes) {
  Sha256 hash;
  hash.Update(bytes);
  return hash.Digest();
}

std::string Sha256Hex(std::string_view bytes) {
  return HexOf(Sha256Of(bytes));
}

std::string HmacSha256(std::string_view key, std::string_view message) {
  constexpr size_t kBlock = 64;
  std::string padded = key.size() > kBlock ? Sha256Of(key) : std::string(key);
  padded.resize(kBlock, '\0');
  std::string inner = padded, outer = padded;
  for (char& byte : inner) byte = static_cast<char>(byte ^ 0x36);
  for (char& byte : outer) byte = static_cast<char>(byte ^ 0x5c);
  inner += message;
  return Sha256Of(outer + Sha256Of(inner));
}

}  // namespace weft
