#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/formats/tokenizer_config.h"

namespace weft {

/// The tokens that have a part to play.
struct TokenRoles {
  std::optional<int32_t> begin;    ///< Begins a text where `begins` says so.
  std::optional<int32_t> end;      ///< Ends a document.
  std::optional<int32_t> mask;     ///< Hides another.
  std::optional<int32_t> padding;  ///< Fills up rows; else the one that ends a document.
  std::vector<int32_t> stops;      ///< Any of them ends what a model writes; `end` first.
};

/// Finds the roles that the files next to a tokenizer give, and puts what add_bos_token and
/// add_eos_token ask for into the forms. Where no file says, the special token named
/// <|endoftext|>, <|end_of_text|> or </s> ends a document, [MASK], <mask> or <|mask|> hides, and
/// [PAD], <pad> and the like pad. `file` is the tokenizer's name and `id_of` finds the id of a
/// spelling. kInvalid names both files where two disagree.
Result<TokenRoles> FindTokenRoles(
    const TokenizerConfig& config, const std::string& file, const TokenizerDefinition& definition,
    const std::function<std::optional<int32_t>(const std::string&)>& id_of, SequenceForm& form,
    SequenceForm& pair_form);

}  // namespace weft
