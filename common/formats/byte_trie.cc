#include "common/formats/byte_trie.h"

namespace weft {

void ByteTrie::Add(std::string_view text, int32_t value) {
  int32_t node = -1;
  for (size_t i = 0; i < text.size(); ++i) {
    int32_t& root = roots_[static_cast<unsigned char>(text[0])];
    int32_t next = i == 0 ? root : Child(node, text[i]);
    if (next < 0) {
      next = static_cast<int32_t>(nodes_.size());
      nodes_.push_back({.byte = text[i]});
      if (i == 0) {
        root = next;
      } else {
        Node& parent = nodes_[static_cast<size_t>(node)];
        nodes_.back().next_sibling = parent.first_child;
        parent.first_child = next;
      }
    }
    node = next;
  }
  nodes_[static_cast<size_t>(node)].value = value;
}

}  // namespace weft
