#pragma once

#include <string>
#include <vector>

#include "common/formats/sequence_form.h"
#include "common/formats/text_normalizer.h"
#include "common/formats/tokenizer_json.h"
#include "common/formats/word_splitter.h"
#include "common/json.h"

/// Readers of the parts of a tokenizer.json. All errors are kInvalid and name the part.
namespace weft::tokenizer_json {

/// The member of an object, or null when absent.
const Json& Member(const Json& object, const char* key);

/// The "type" of a component, or words that say it has none.
std::string TypeOf(const Json& component);

/// FailureKind::kUnsupported: the file is sound, but has this part.
Status Unsupported(const std::string& what);

/// Reads an optional boolean; null and absent leave `out` alone.
Status ReadFlag(const Json& object, const char* key, bool& out);

/// The parts of a Sequence in order, or the component alone; nothing for null.
Result<std::vector<Json>> Parts(const Json& component, const char* list);

Result<std::vector<NormalizerStep>> ReadNormalizer(const Json& json);

/// Steps of a pre-tokenizer, all but ByteLevel.
Result<std::vector<WordSplit>> ReadWordSplits(const std::vector<Json>& parts);

/// How the decoder writes pieces of characters; where there is none, by the steps.
Result<PieceSpelling> ReadSpelling(const Json& decoder, const std::vector<WordSplit>& splits);

/// What the post-processor puts around one text and around two.
Status ReadPostProcessor(const Json& json, SequenceForm& single, SequenceForm& pair);

}  // namespace weft::tokenizer_json
