#include "worker/engine/data/token_shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "worker/engine/data/testing.h"

namespace weft::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int32_t> All(const TokenShard& shard) {
  std::vector<int32_t> tokens(shard.size());
  shard.Read(0, tokens);
  return tokens;
}

TEST(TokenShard, KeepsTokensAndDocumentsAtEveryWidth) {
  for (uint64_t vocab_size : {uint64_t{256}, uint64_t{257}, uint64_t{65536}, uint64_t{65537}}) {
    const auto last = static_cast<int32_t>(vocab_size) - 1;
    TokenSpan span = MakeSpan({{1, 2, 3}, {}, {4, last}}, vocab_size);
    const TokenShard& shard = *span.shard;
    EXPECT_THAT(All(shard), ElementsAre(1, 2, 3, 4, last));
    EXPECT_THAT(shard.document_starts(), ElementsAre(0, 3, 5));
    EXPECT_EQ(shard.vocab_size(), vocab_size);
    EXPECT_EQ(shard.tokenizer_hash(), std::string(32, 'a'));
    EXPECT_EQ(shard[4], last);
    EXPECT_TRUE(shard.Verify().ok());
  }
  EXPECT_EQ(MakeSpan({}).count, 0u);
}

TEST(TokenShard, HasTheBytesThatItsDocumentationGives) {
  MakeSpan({{1, 258, 3}}, 300);
  const std::string path = TestFolder() + "/test.tokens";
  Result<std::string> bytes = ReadFile(Env::Posix(), path);
  ASSERT_TRUE(bytes.ok()) << bytes.status().ToString();
  std::string expected("WEFTTOKS\1\0\0\0\2\0\0\0\1\0\2\1\3\0\0\0", 24);
  auto add = [&](uint64_t value) {
    expected.append(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  for (uint64_t value : {0, 3, 3, 1, 300}) add(value);  // index, then the trailer
  expected += std::string(32, 'a');
  expected += HashHex(std::as_bytes(std::span(expected)));
  expected += "WEFTTOKE";
  EXPECT_EQ(*bytes, expected);
}

TEST(TokenShard, RefusesEveryOtherLengthAndDamagedFrames) {
  MakeSpan({{1, 2, 3}, {4, 5}});
  const std::string folder = TestFolder();
  const std::string sound = *ReadFile(Env::Posix(), folder + "/test.tokens");
  const std::string path = folder + "/damaged.tokens";
  auto open = [&](const std::string& bytes) {
    Result<std::unique_ptr<WritableFile>> file = Env::Posix().NewWritableFile(path);
    EXPECT_TRUE(file.ok() && (*file)->Append(bytes).ok() && (*file)->Close().ok());
    return TokenShard::Open(Env::Posix(), path);
  };
  for (size_t length = 0; length < sound.size(); length += 3) {
    EXPECT_EQ(open(sound.substr(0, length)).status().code(), StatusCode::kCorrupt) << length;
  }
  EXPECT_EQ(open(sound + '\0').status().code(), StatusCode::kCorrupt);
  for (size_t at = 0; at < sound.size(); ++at) {
    std::string bytes = sound;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x41);
    Result<TokenShard> shard = open(bytes);
    // What opening lets through, the hash catches.
    const Status status = shard.ok() ? shard->Verify() : shard.status();
    EXPECT_EQ(status.code(), StatusCode::kCorrupt) << at;
  }
  std::string huge = sound;
  std::memset(huge.data() + huge.size() - 96, 0xff, 16);
  EXPECT_THAT(open(huge).status().message(), HasSubstr("counts"));
}

TEST(TokenShard, FindsTokensPastTheVocabulary) {
  MakeSpan({{1, 2, 3}});
  const std::string path = TestFolder() + "/test.tokens";
  std::string bytes = *ReadFile(Env::Posix(), path);
  bytes[17] = 0x7f;  // the first token becomes 32513
  const std::string hash = HashHex(std::as_bytes(std::span(bytes)).first(bytes.size() - 40));
  bytes.replace(bytes.size() - 40, 32, hash);
  ASSERT_TRUE(WriteFileAtomic(Env::Posix(), path, bytes).ok());
  Result<TokenShard> shard = TokenShard::Open(Env::Posix(), path);
  ASSERT_TRUE(shard.ok()) << shard.status().ToString();
  EXPECT_THAT(shard->Verify().message(), HasSubstr("token 32513 outside"));
}

}  // namespace
}  // namespace weft::engine
