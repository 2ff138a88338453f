#include "common/formats/piece_speller.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "common/formats/sentencepiece_file.h"

namespace weft {

PieceSpeller::PieceSpeller(std::vector<std::string> pieces, PieceSpelling spelling,
                           bool byte_fallback)
    : pieces_(std::move(pieces)), spelling_(std::move(spelling)), byte_of_(pieces_.size(), -1) {
  if (!byte_fallback) return;
  std::unordered_map<std::string_view, size_t> ids;
  for (size_t id = 0; id < pieces_.size(); ++id) ids.emplace(pieces_[id], id);
  for (int byte = 0; byte < 256; ++byte) {
    const auto it = ids.find(BytePiece(byte));
    if (it == ids.end()) continue;
    bytes_[static_cast<size_t>(byte)] = static_cast<int32_t>(it->second);
    byte_of_[it->second] = byte;
  }
}

void PieceSpeller::Decode(std::span<const int32_t> ids, bool at_start, std::string& out) const {
  const std::string& metaspace = spelling_.metaspace;
  for (int32_t id : ids) {
    const bool first = std::exchange(at_start, false);
    if (const int32_t byte = byte_of_[static_cast<size_t>(id)]; byte >= 0) {
      out += static_cast<char>(byte);
      continue;
    }
    if (spelling_.spaces_between && !first) out += ' ';
    std::string_view piece = pieces_[static_cast<size_t>(id)];
    bool at_begin = first;
    while (!metaspace.empty()) {
      const size_t found = piece.find(metaspace);
      if (found == std::string_view::npos) break;
      out += piece.substr(0, found);
      // The space put before the first word is none of the text.
      if (!at_begin || found > 0 || !spelling_.drop_first_space) out += ' ';
      at_begin = false;
      piece.remove_prefix(found + metaspace.size());
    }
    out += piece;
  }
}

}  // namespace weft
