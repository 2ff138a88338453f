#include "common/formats/charsmap.h"

#include <cstring>

#include "common/formats/unicode.h"
#include "common/formats/utf8.h"

namespace weft {
namespace {

constexpr size_t kLongestCluster = 6;

// A unit of the trie: a byte, an offset to its children, and whether a value is among these.
uint32_t LabelOf(uint32_t unit) {
  return unit & (uint32_t{1} << 31 | 0xff);
}
bool HasLeaf(uint32_t unit) {
  return (unit >> 8 & 1) == 1;
}
uint32_t ValueOf(uint32_t unit) {
  return unit & ~(uint32_t{1} << 31);
}
uint32_t OffsetOf(uint32_t unit) {
  return unit >> 10 << ((unit & (uint32_t{1} << 9)) >> 6);
}

}  // namespace

Result<Charsmap> Charsmap::Parse(std::string_view bytes) {
  uint32_t size = 0;
  if (bytes.size() < sizeof(size)) return InvalidError("the character map is too short");
  std::memcpy(&size, bytes.data(), sizeof(size));
  bytes.remove_prefix(sizeof(size));
  if (size > bytes.size() || size % 4 != 0 || size == 0) {
    return InvalidError("the character map has a trie of " + std::to_string(size) + " of " +
                        std::to_string(bytes.size()) + " bytes");
  }
  Charsmap map;
  map.units_.resize(size / 4);
  std::memcpy(map.units_.data(), bytes.data(), size);
  map.replacements_ = bytes.substr(size);
  if (!map.replacements_.empty() && map.replacements_.back() != '\0') {
    return InvalidError("the character map is cut short");
  }
  WEFT_RETURN_IF_ERROR(map.CheckWalks());
  return map;
}

Status Charsmap::CheckWalks() const {
  Status broken = InvalidError("the trie of the character map is broken");
  std::vector<bool> seen(units_.size());
  std::vector<uint32_t> open = {0};
  while (!open.empty()) {
    const uint32_t at = open.back();
    open.pop_back();
    const uint32_t children = at ^ OffsetOf(units_[at]);
    // The labels of children are up to 255, and any of them may be tried.
    if ((children | 0xff) >= units_.size()) return broken;
    if (HasLeaf(units_[at]) && ValueOf(units_[children]) >= replacements_.size()) return broken;
    for (uint32_t label = 1; label < 256; ++label) {
      const uint32_t child = children ^ label;
      if (LabelOf(units_[child]) != label || seen[child]) continue;
      seen[child] = true;
      open.push_back(child);
    }
  }
  return OkStatus();
}

std::optional<std::string_view> Charsmap::Replacement(std::string_view key) const {
  uint32_t at = OffsetOf(units_[0]);
  for (char c : key) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte == 0) return std::nullopt;
    at ^= byte;
    const uint32_t unit = units_[at];
    if (LabelOf(unit) != byte) return std::nullopt;
    at ^= OffsetOf(unit);
    if (HasLeaf(unit)) return std::string_view(replacements_.c_str() + ValueOf(units_[at]));
  }
  return std::nullopt;
}

std::pair<std::string_view, size_t> Charsmap::LongestMatch(std::string_view text) const {
  std::pair<std::string_view, size_t> longest = {{}, 0};
  uint32_t at = OffsetOf(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte == 0) break;
    at ^= byte;
    const uint32_t unit = units_[at];
    if (LabelOf(unit) != byte) break;
    at ^= OffsetOf(unit);
    if (HasLeaf(unit)) longest = {replacements_.c_str() + ValueOf(units_[at]), i + 1};
  }
  return longest;
}

std::string Charsmap::Apply(std::string_view text) const {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const std::string_view cluster = text.substr(at, GraphemeLength(text.substr(at)));
    at += cluster.size();
    if (cluster.size() < kLongestCluster) {
      if (auto replacement = Replacement(cluster)) {
        out += *replacement;
        continue;
      }
    }
    for (size_t i = 0; i < cluster.size();) {
      const auto bytes = static_cast<size_t>(ReadUtf8(cluster, i).bytes);
      const std::string_view character = cluster.substr(i, bytes);
      out += Replacement(character).value_or(character);
      i += bytes;
    }
  }
  return out;
}

std::optional<std::string> DecodeBase64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  auto value = [](char c) -> int {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
  };
  std::string out;
  out.reserve(text.size() / 4 * 3);
  for (size_t at = 0; at < text.size(); at += 4) {
    const bool last = at + 4 == text.size();
    const size_t padding = !last || text[at + 3] != '=' ? 0 : text[at + 2] != '=' ? 1 : 2;
    uint32_t bits = 0;
    for (size_t i = 0; i < 4 - padding; ++i) {
      const int digit = value(text[at + i]);
      if (digit < 0) return std::nullopt;
      bits |= static_cast<uint32_t>(digit) << (18 - 6 * i);
    }
    for (size_t i = 0; i < 3 - padding; ++i) out += static_cast<char>(bits >> (16 - 8 * i));
  }
  return out;
}

std::string EncodeBase64(std::string_view bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t at = 0; at < bytes.size(); at += 3) {
    const size_t count = std::min<size_t>(3, bytes.size() - at);
    uint32_t bits = 0;
    for (size_t i = 0; i < count; ++i) {
      bits |= static_cast<uint32_t>(static_cast<unsigned char>(bytes[at + i])) << (16 - 8 * i);
    }
    for (size_t i = 0; i < 4; ++i) out += i > count ? '=' : kDigits[bits >> (18 - 6 * i) & 63];
  }
  return out;
}

}  // namespace weft
