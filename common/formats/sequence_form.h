#pragma once

#include <cstdint>
#include <vector>

#include "common/spec/field.h"

namespace weft {

/// The special tokens around the text of a document: `begin` text `end`, or for a pair
/// `begin` first `middle` second `end`. BERT's are [CLS], [SEP] and [SEP]; a language model has
/// none but the end of the text, which counts as text.
struct SequenceForm {
  std::vector<int64_t> begin = {};
  std::vector<int64_t> middle = {};
  std::vector<int64_t> end = {};
  bool second_type = false;  ///< The second text has token type 1, with the `end`.

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("begin", "Tokens before the text.").Range(0, 16), self.begin);
    visit(Field("middle", "Tokens between the texts of a pair; empty: single texts.").Range(0, 16),
          self.middle);
    visit(Field("end", "Tokens after the text.").Range(0, 16), self.end);
    visit(Field("second_type", "The second text of a pair has token type 1."), self.second_type);
  }

  bool operator==(const SequenceForm&) const = default;

  /// Tokens of a document that are not text.
  uint64_t Overhead() const { return begin.size() + middle.size() + end.size(); }
};

}  // namespace weft
