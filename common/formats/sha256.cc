#include "common/formats/sha256.h"

#include <array>
#include <bit>
#include <cstdint>

namespace weft {
namespace {

constexpr size_t kBlock = 64;

/// The first 64 primes, whose cube roots the round constants are made of.
constexpr std::array<uint32_t, 64> kPrimes = [] {
  std::array<uint32_t, 64> primes{};
  size_t count = 0;
  for (uint32_t n = 2; count < primes.size(); ++n) {
    bool prime = true;
    for (size_t i = 0; i < count; ++i) prime &= n % primes[i] != 0;
    if (prime) primes[count++] = n;
  }
  return primes;
}();

/// The first 32 bits behind the point of the `degree`th root of a prime: the largest x with
/// x^degree <= prime * 2^(32 degree), without its whole part.
uint32_t RootBits(uint32_t prime, int degree) {
  using Wide = unsigned __int128;
  auto fits = [&](uint64_t x) {
    // prime < 2^9 and x < 2^37, so x^3 < 2^111.
    Wide power = 1;
    for (int i = 0; i < degree; ++i) power *= x;
    return power <= static_cast<Wide>(prime) << (32 * degree);
  };
  uint64_t root = 0;
  for (int bit = 36; bit >= 0; --bit) {
    if (fits(root | uint64_t{1} << bit)) root |= uint64_t{1} << bit;
  }
  return static_cast<uint32_t>(root);
}

void AddBlock(std::array<uint32_t, 8>& state, const std::array<uint32_t, 64>& constants,
              const unsigned char* block) {
  std::array<uint32_t, 64> w{};
  for (size_t i = 0; i < 16; ++i) {
    w[i] = static_cast<uint32_t>(block[4 * i]) << 24 |
           static_cast<uint32_t>(block[4 * i + 1]) << 16 |
           static_cast<uint32_t>(block[4 * i + 2]) << 8 | static_cast<uint32_t>(block[4 * i + 3]);
  }
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ w[i - 15] >> 3;
    const uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ w[i - 2] >> 10;
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + constants[i] + w[i];
    const uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + t1;
    d = c;
    c = b;
    b = a;
    a = t1 + t2;
  }
  const std::array<uint32_t, 8> sum = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) state[i] += sum[i];
}

}  // namespace

std::string Sha256Hex(std::string_view bytes) {
  std::array<uint32_t, 64> constants{};
  std::array<uint32_t, 8> state{};
  for (size_t i = 0; i < 64; ++i) constants[i] = RootBits(kPrimes[i], 3);
  for (size_t i = 0; i < 8; ++i) state[i] = RootBits(kPrimes[i], 2);
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  size_t done = 0;
  for (; done + kBlock <= bytes.size(); done += kBlock) AddBlock(state, constants, data + done);
  // A one bit, zeros, and the length in bits fill up the last block or two.
  std::string tail(bytes.substr(done));
  tail += '\x80';
  while (tail.size() % kBlock != kBlock - 8) tail += '\0';
  const uint64_t bits = uint64_t{bytes.size()} * 8;
  for (int shift = 56; shift >= 0; shift -= 8) tail += static_cast<char>(bits >> shift);
  for (size_t at = 0; at < tail.size(); at += kBlock) {
    AddBlock(state, constants, reinterpret_cast<const unsigned char*>(tail.data()) + at);
  }
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (uint32_t word : state) {
    for (int shift = 28; shift >= 0; shift -= 4) hex += kDigits[word >> shift & 15];
  }
  return hex;
}

}  // namespace weft
