#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace weft {

/// Strings with a number each, found by walking through the bytes of a text.
class ByteTrie {
 public:
  ByteTrie() { roots_.fill(-1); }

  /// Adds a string that is not empty; its value is at least 0. One added again keeps the last
  /// value.
  void Add(std::string_view text, int32_t value);

  /// Value and length of the longest string that `text` begins with; length 0 when there is none.
  std::pair<int32_t, size_t> Longest(std::string_view text) const {
    std::pair<int32_t, size_t> best{-1, 0};
    ForEachPrefix(text, [&](int32_t value, size_t size) { best = {value, size}; });
    return best;
  }

  /// Calls `each(value, length)` for all strings that `text` begins with, the shortest first.
  template <class Each>
  void ForEachPrefix(std::string_view text, Each&& each) const {
    if (text.empty()) return;
    int32_t node = roots_[static_cast<unsigned char>(text[0])];
    for (size_t end = 1; node >= 0; ++end) {
      if (const int32_t value = nodes_[static_cast<size_t>(node)].value; value >= 0) {
        each(value, end);
      }
      if (end == text.size()) return;
      node = Child(node, text[end]);
    }
  }

  bool empty() const { return nodes_.empty(); }

 private:
  struct Node {
    int32_t value = -1;
    int32_t first_child = -1;
    int32_t next_sibling = -1;
    char byte = 0;
  };

  int32_t Child(int32_t node, char byte) const {
    int32_t child = nodes_[static_cast<size_t>(node)].first_child;
    while (child >= 0 && nodes_[static_cast<size_t>(child)].byte != byte) {
      child = nodes_[static_cast<size_t>(child)].next_sibling;
    }
    return child;
  }

  std::vector<Node> nodes_;
  std::array<int32_t, 256> roots_{};  ///< Nodes of the first bytes, -1 for none.
};

}  // namespace weft
