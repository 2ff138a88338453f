#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"

namespace weft {

/// The part of a tokenizer between its special tokens: plain text to ids and back. Immutable, so
/// thread-safe.
class TokenModel {
 public:
  virtual ~TokenModel() = default;

  /// Appends the ids of normalized `text`. `at_start`: the text begins its document. kInvalid: a
  /// pattern that takes too long on it, or no token for a part of it and no unknown one.
  virtual Status Encode(std::string_view text, bool at_start, std::vector<int32_t>& out) const = 0;

  /// Appends the text of ids that are all of this model; `at_start`: nothing comes before them.
  virtual void Decode(std::span<const int32_t> ids, bool at_start, std::string& out) const = 0;

  /// Text may be cut between a letter and a space without changing its ids.
  virtual bool CutsAtSpaces() const = 0;
};

}  // namespace weft
