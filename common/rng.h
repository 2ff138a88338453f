#pragma once

#include <array>
#include <cmath>
#include <cstdint>

#if defined(__CUDACC__)
#define WEFT_HOST_DEVICE __host__ __device__
#else
#define WEFT_HOST_DEVICE
#endif

namespace weft {

/// Counter-based random numbers: Philox-4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy
/// as 1, 2, 3", SC 2011). The number for (seed, step, site, index) depends on nothing else, so it
/// is the same on CPU and CUDA, for any thread count and any mesh, and recomputation replays it.
struct PhiloxKey {
  uint64_t seed = 0;  ///< Job seed.
  uint32_t step = 0;  ///< Optimizer step, or an epoch.
  uint32_t site = 0;  ///< Which consumer: a hash of a parameter or module name.
};

struct Philox4 {
  uint32_t v[4];
};

/// Four random words for block `block` of the key's stream (words 4*block .. 4*block+3).
WEFT_HOST_DEVICE inline Philox4 Philox(const PhiloxKey& key, uint64_t block) {
  uint32_t c0 = static_cast<uint32_t>(block), c1 = static_cast<uint32_t>(block >> 32);
  uint32_t c2 = key.step, c3 = key.site;
  uint32_t k0 = static_cast<uint32_t>(key.seed), k1 = static_cast<uint32_t>(key.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    uint64_t p0 = uint64_t{0xD2511F53} * c0;
    uint64_t p1 = uint64_t{0xCD9E8D57} * c2;
    uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    uint32_t n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return {{c0, c1, c2, c3}};
}

/// Uniform in [0, 1) with 24 bits.
WEFT_HOST_DEVICE inline float UniformFloat(uint32_t word) {
  return static_cast<float>(word >> 8) * (1.0f / 16777216.0f);
}

/// Sequential reader of one key's stream, for host code. Not thread-safe.
class PhiloxStream {
 public:
  explicit PhiloxStream(PhiloxKey key) : key_(key) {}

  uint32_t Next() {
    if (position_ == 4) {
      words_ = Philox(key_, block_++);
      position_ = 0;
    }
    return words_.v[position_++];
  }
  uint64_t Next64() {
    uint64_t high = Next();
    return high << 32 | Next();
  }

  /// Uniform integer in [0, bound), bound > 0, without modulo bias (Lemire 2019).
  uint64_t Below(uint64_t bound) {
    __extension__ using Wide = unsigned __int128;
    Wide product = static_cast<Wide>(Next64()) * bound;
    if (static_cast<uint64_t>(product) < bound) {
      uint64_t threshold = (0 - bound) % bound;
      while (static_cast<uint64_t>(product) < threshold) {
        product = static_cast<Wide>(Next64()) * bound;
      }
    }
    return static_cast<uint64_t>(product >> 64);
  }

  /// Uniform in (0, 1) with 53 bits.
  double Uniform() { return (static_cast<double>(Next64() >> 11) + 0.5) * 0x1.0p-53; }

  /// Standard normal by Box and Muller.
  double Normal() {
    double radius = std::sqrt(-2.0 * std::log(Uniform()));
    return radius * std::cos(6.283185307179586 * Uniform());
  }

 private:
  PhiloxKey key_;
  uint64_t block_ = 0;
  Philox4 words_{};
  int position_ = 4;
};

/// FNV-1a of a name, to make a PhiloxKey::site.
constexpr uint32_t SiteHash(const char* name) {
  uint32_t hash = 2166136261u;
  for (; *name != '\0'; ++name) hash = (hash ^ static_cast<uint8_t>(*name)) * 16777619u;
  return hash;
}

}  // namespace weft
