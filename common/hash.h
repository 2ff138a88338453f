#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace weft {

/// XXH3-128 of a byte stream, as 32 lower-case hex digits: the content hash of checkpoints and
/// token shards. Guards against corruption, not against forgery.
class ContentHash {
 public:
  ContentHash();
  ~ContentHash();
  ContentHash(const ContentHash&) = delete;
  ContentHash& operator=(const ContentHash&) = delete;

  void Update(std::span<const std::byte> bytes);
  void Update(std::string_view text) { Update(std::as_bytes(std::span(text))); }
  std::string Hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// XXH3-64 of a piece of memory: for what does not outlive the process.
uint64_t Hash64(std::span<const std::byte> bytes);

/// Hash of one piece of memory.
std::string HashHex(std::span<const std::byte> bytes);

}  // namespace weft
