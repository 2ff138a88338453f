#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace weft::daemon {

/// Cuts a stream of bytes into lines. A line longer than `max_bytes` is delivered in pieces of that
/// size; a carriage return before the line end is dropped and bytes that are not UTF-8 become "?",
/// so that a line fits a protobuf string. Not thread-safe.
class LineSplitter {
 public:
  using OnLine = std::function<void(std::string line)>;

  LineSplitter(size_t max_bytes, OnLine on_line)
      : max_bytes_(max_bytes), on_line_(std::move(on_line)) {}

  void Feed(std::string_view bytes);

  /// The stream has ended: delivers what comes after the last line end.
  void Finish();

 private:
  void Deliver();

  size_t max_bytes_;
  OnLine on_line_;
  std::string line_;
};

/// `text` with every byte that is not part of valid UTF-8 replaced by "?".
std::string ToUtf8(std::string text);

}  // namespace weft::daemon
