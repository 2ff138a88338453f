#include "worker/daemon/line_splitter.h"

#include <cstdint>
#include <utility>

namespace weft::daemon {
namespace {

bool IsContinuation(char c) {
  return (static_cast<uint8_t>(c) & 0xC0u) == 0x80u;
}

/// Length of the valid sequence at `at`, 0 when there is none (RFC 3629: no overlong forms, no
/// surrogates, nothing past U+10FFFF).
size_t SequenceLength(std::string_view text, size_t at) {
  auto byte = static_cast<uint8_t>(text[at]);
  if (byte < 0x80) return 1;
  size_t length = byte >= 0xC2 && byte < 0xE0   ? 2
                  : byte >= 0xE0 && byte < 0xF0 ? 3
                  : byte >= 0xF0 && byte < 0xF5 ? 4
                                                : 0;
  if (length == 0 || at + length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if (!IsContinuation(text[at + i])) return 0;
  }
  auto second = static_cast<uint8_t>(text[at + 1]);
  if (byte == 0xE0 && second < 0xA0) return 0;
  if (byte == 0xED && second > 0x9F) return 0;
  if (byte == 0xF0 && second < 0x90) return 0;
  if (byte == 0xF4 && second > 0x8F) return 0;
  return length;
}

}  // namespace

std::string ToUtf8(std::string text) {
  for (size_t at = 0; at < text.size();) {
    size_t length = SequenceLength(text, at);
    if (length == 0) {
      text[at] = '?';
      length = 1;
    }
    at += length;
  }
  return text;
}

void LineSplitter::Feed(std::string_view bytes) {
  while (!bytes.empty()) {
    size_t end = bytes.find('\n');
    size_t take =
        std::min(end == std::string_view::npos ? bytes.size() : end, max_bytes_ - line_.size());
    line_.append(bytes.substr(0, take));
    bytes.remove_prefix(take);
    if (!bytes.empty() && bytes.front() == '\n') {
      bytes.remove_prefix(1);
      if (!line_.empty() && line_.back() == '\r') line_.pop_back();
      Deliver();
    } else if (line_.size() == max_bytes_) {
      Deliver();
    }
  }
}

void LineSplitter::Finish() {
  if (!line_.empty()) Deliver();
}

void LineSplitter::Deliver() {
  on_line_(ToUtf8(std::exchange(line_, {})));
}

}  // namespace weft::daemon
