#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/formats/token_model.h"
#include "common/formats/tokenizer_config.h"
#include "common/formats/tokenizer_json.h"

namespace weft {

/// WordPiece (BERT): from the start of each word the longest piece of the vocabulary, again and
/// again; pieces within a word begin with "##". A word that cannot be made up, or is longer than
/// max_word_characters, is the unknown token.
class WordPieceModel : public TokenModel {
 public:
  /// kInvalid: the unknown token is not in the vocabulary.
  static Result<std::unique_ptr<TokenModel>> New(const TokenizerDefinition& definition);

  Status Encode(std::string_view text, bool at_start, std::vector<int32_t>& out) const override;

  /// Words with spaces between them, except before punctuation as the reference implementation
  /// has it.
  void Decode(std::span<const int32_t> ids, bool at_start, std::string& out) const override;
  bool CutsAtSpaces() const override { return weft::CutsAtSpaces(splits_); }

 private:
  WordPieceModel() = default;
  void EncodeWord(std::string_view word, std::vector<int32_t>& out) const;

  std::vector<std::string> tokens_;  ///< By id.
  std::unordered_map<std::string, int32_t> ids_;
  std::string prefix_;
  std::vector<WordSplit> splits_;
  int32_t unknown_ = 0;
  size_t max_word_characters_ = 100;
};

/// The tokenizer.json of a vocab.txt of BERT, a token a line, its number the id; an empty line
/// leaves its id out. What the config does not say of lower case: text is taken to be so when no
/// token of the vocabulary has an ASCII capital, [CLS] and the like aside. kInvalid: no [UNK],
/// [CLS] or [SEP], a token given twice, too many, or a class of tokenizers that is not BERT's.
Result<std::string> WordPieceJson(std::string_view vocab_txt, const TokenizerConfig& config = {});

}  // namespace weft
