#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/formats/byte_alphabet.h"
#include "common/formats/tokenizer.h"
#include "common/json.h"

namespace weft::tokenizer_testing {

/// Contents by name of file.
using Files = std::map<std::string, std::string>;

inline const std::string kTokenizers =
    std::string(WEFT_SOURCE_DIR) + "/common/formats/testdata/tokenizers/";

/// A folder with these files, which goes at the end.
class Folder {
 public:
  explicit Folder(const Files& files)
      : path_(::testing::TempDir() + "tokenizer_folder_" +
              ::testing::UnitTest::GetInstance()->current_test_info()->name()) {
    (void)Env::Posix().RemoveTree(path_);
    EXPECT_TRUE(Env::Posix().CreateDirs(path_).ok());
    for (const auto& [name, content] : files) {
      EXPECT_TRUE(WriteFileAtomic(Env::Posix(), JoinPath(path_, name), content).ok());
    }
  }
  ~Folder() { EXPECT_TRUE(Env::Posix().RemoveTree(path_).ok()); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  Result<Tokenizer> Load(const std::string& name = "") const {
    return Tokenizer::Load(Env::Posix(), name.empty() ? path_ : JoinPath(path_, name));
  }

 private:
  std::string path_;
};

inline Tokenizer Loaded(const Files& files, const std::string& name = "") {
  Result<Tokenizer> tokenizer = Folder(files).Load(name);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  return *std::move(tokenizer);
}

inline std::string Refusal(const Files& files, const std::string& name = "") {
  Result<Tokenizer> tokenizer = Folder(files).Load(name);
  EXPECT_FALSE(tokenizer.ok());
  EXPECT_EQ(tokenizer.status().code(), StatusCode::kInvalid);
  return tokenizer.status().message();
}

inline std::vector<int32_t> Ids(const Tokenizer& tokenizer, std::string_view text,
                                SpecialTokens special = SpecialTokens::kAsText) {
  std::vector<int32_t> ids;
  const Status status = tokenizer.Encode(text, ids, special);
  EXPECT_TRUE(status.ok()) << status.ToString();
  return ids;
}

inline Json Added(int id, const char* content, bool special, bool normalized = false) {
  return {{"id", id},        {"content", content},       {"special", special},  {"lstrip", false},
          {"rstrip", false}, {"normalized", normalized}, {"single_word", false}};
}

/// Byte-level BPE without merges: ids are bytes; then comes the special token "<|endoftext|>".
inline Json Bytes() {
  Json vocab = Json::object();
  for (int byte = 0; byte < 256; ++byte) {
    vocab[BytesToAlphabet(std::string(1, static_cast<char>(byte)))] = byte;
  }
  return {
      {"version", "1.0"},
      {"added_tokens", {Added(256, "<|endoftext|>", true)}},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", Json::array()}}}};
}

inline Json Template(const Json& before, const Json& after) {
  Json single = Json::array();
  Json special = Json::object();
  auto add = [&](const Json& token) {
    if (token.is_null()) return;
    const auto name = token[1].get<std::string>();
    single.push_back({{"SpecialToken", {{"id", name}, {"type_id", 0}}}});
    special[name] = {{"id", name}, {"ids", {token[0]}}, {"tokens", {name}}};
  };
  add(before);
  single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  add(after);
  Json pair = single;
  pair.push_back({{"Sequence", {{"id", "B"}, {"type_id", 0}}}});
  return {{"type", "TemplateProcessing"},
          {"single", single},
          {"pair", pair},
          {"special_tokens", special}};
}

}  // namespace weft::tokenizer_testing
