// A file of a tokenizer, by the name that WEFT_FUZZ_FILE says, in a folder of its own: what loads
// encodes any text, decodes what it encoded, and writes files that load to the same tokenizer.
#include <string>
#include <vector>

#include "common/env_fault.h"
#include "common/formats/tokenizer.h"
#include "tests/fuzz/input.h"

namespace {

constexpr std::string_view kTexts[] = {"", "Hello world, 12 looms!\n\tweft",
                                       "na\xc3\xafve \xf0\x9f\xa7\xb5", "\xff\xfe broken",
                                       "<s>[MASK]</s> <|endoftext|>"};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft;
  FaultEnv env;
  WEFT_FUZZ_EXPECT(env.CreateDirs("/model").ok());
  const std::string path = std::string("/model/") + WEFT_FUZZ_FILE;
  WEFT_FUZZ_EXPECT(WriteFileAtomic(env, path, fuzz::Text(data, size)).ok());
  const Result<Tokenizer> tokenizer = Tokenizer::Load(env, path);
  if (!tokenizer.ok()) return 0;
  for (const std::string_view text : kTexts) {
    for (const SpecialTokens special : {SpecialTokens::kAsText, SpecialTokens::kAsTokens}) {
      std::vector<int32_t> ids;
      if (!tokenizer->Encode(text, ids, special).ok()) continue;
      for (const int32_t id : ids) {
        WEFT_FUZZ_EXPECT(id >= 0 && id < tokenizer->vocab_size());
      }
      WEFT_FUZZ_EXPECT(tokenizer->Decode(ids).ok());
    }
    const size_t cut = tokenizer->SafeCut(text, text.size() / 2);
    WEFT_FUZZ_EXPECT(cut <= text.size());
  }
  WEFT_FUZZ_EXPECT(env.CreateDirs("/again").ok());
  WEFT_FUZZ_EXPECT(WriteTokenizerFiles(env, "/again", tokenizer->files()).ok());
  const Result<Tokenizer> again = Tokenizer::Load(env, "/again/" + tokenizer->file_name());
  WEFT_FUZZ_EXPECT(again.ok());
  WEFT_FUZZ_EXPECT(again->hash() == tokenizer->hash());
  return 0;
}
