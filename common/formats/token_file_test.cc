#include "common/formats/token_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/rng.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Path(const std::string& name) {
  return ::testing::TempDir() + "token_file_" + name;
}

std::string Write(const std::string& name, const std::string& bytes) {
  EXPECT_TRUE(WriteFileAtomic(Env::Posix(), Path(name), bytes).ok());
  return Path(name);
}

template <class T>
void Add(std::string& bytes, std::initializer_list<int64_t> values) {
  for (int64_t value : values) {
    const T typed = static_cast<T>(value);
    bytes.append(reinterpret_cast<const char*>(&typed), sizeof(typed));
  }
}

std::string Llmc(int32_t magic, int32_t version, int32_t count) {
  std::string bytes;
  Add<int32_t>(bytes, {magic, version, count});
  bytes.resize(1024);
  return bytes;
}

/// Two documents: sequences of 3 and 1 tokens, then one of 2.
std::string MegatronIndex(uint8_t type, int64_t width) {
  std::string bytes("MMIDIDX\0\0", 9);
  Add<uint64_t>(bytes, {1});
  Add<uint8_t>(bytes, {type});
  Add<uint64_t>(bytes, {3, 3});
  Add<int32_t>(bytes, {3, 1, 2});
  Add<int64_t>(bytes, {0, 3 * width, 4 * width});
  Add<int64_t>(bytes, {0, 2, 3});
  return bytes;
}

std::vector<int32_t> All(const TokenFile& file) {
  std::vector<int32_t> tokens(file.size());
  EXPECT_TRUE(file.Read(0, 1 << 24, tokens).ok());
  return tokens;
}

TEST(TokenFile, ReadsBothKindsOfLlmc) {
  std::string bytes = Llmc(20240520, 1, 3);
  Add<uint16_t>(bytes, {50256, 5, 65535});
  Result<TokenFile> gpt2 =
      TokenFile::Open(Env::Posix(), Write("gpt2.bin", bytes), TokenFileFormat::kLlmc);
  ASSERT_TRUE(gpt2.ok()) << gpt2.status().ToString();
  EXPECT_THAT(All(*gpt2), ElementsAre(50256, 5, 65535));
  EXPECT_EQ(gpt2->implied_vocab_size(), 50257);
  std::vector<int32_t> one(1);
  EXPECT_THAT(gpt2->Read(2, 50257, one).message(), HasSubstr("token 2"));
  bytes = Llmc(20240801, 7, 2);
  Add<uint32_t>(bytes, {128000, 70000});
  Result<TokenFile> llama =
      TokenFile::Open(Env::Posix(), Write("llama.bin", bytes), TokenFileFormat::kLlmc);
  ASSERT_TRUE(llama.ok());
  EXPECT_THAT(All(*llama), ElementsAre(128000, 70000));
  EXPECT_EQ(llama->document_begin(), 128000);
}

TEST(TokenFile, ReadsNanoGptAndMegatron) {
  std::string bytes;
  Add<uint16_t>(bytes, {1, 40000, 3});
  Result<TokenFile> nano =
      TokenFile::Open(Env::Posix(), Write("nano.bin", bytes), TokenFileFormat::kNanoGpt);
  ASSERT_TRUE(nano.ok());
  EXPECT_THAT(All(*nano), ElementsAre(1, 40000, 3));

  struct Type {
    uint8_t code;
    int64_t width;
  };
  for (const Type& type :
       {Type{1, 1}, Type{2, 1}, Type{3, 2}, Type{8, 2}, Type{4, 4}, Type{5, 8}}) {
    std::string tokens;
    for (int64_t token = 10; token < 16; ++token) {
      for (int64_t byte = 0; byte < type.width; ++byte) {
        tokens += static_cast<char>(byte == 0 ? token : 0);
      }
    }
    Write("m.bin", tokens);
    const std::string index = MegatronIndex(type.code, type.width);
    for (const char* modes : {"", "abc"}) {
      Result<TokenFile> file =
          TokenFile::Open(Env::Posix(), Write("m.idx", index + modes), TokenFileFormat::kMegatron);
      ASSERT_TRUE(file.ok()) << file.status().ToString();
      EXPECT_THAT(All(*file), ElementsAre(10, 11, 12, 13, 14, 15));
      EXPECT_THAT(file->document_starts(), ElementsAre(0, 4, 6));
      EXPECT_EQ(file->Bytes().size(), 2u);
    }
  }
}

TEST(TokenFile, NoticesIdsThatAreWiderThanItsForm) {
  auto open = [](const std::string& bytes) {
    return TokenFile::Open(Env::Posix(), Write("wide.bin", bytes), TokenFileFormat::kNanoGpt)
        .status();
  };
  PhiloxStream random({3, 3, 3});
  std::string narrow, wide, wider, large, tiny;
  for (int i = 0; i < 20000; ++i) {
    const auto token = static_cast<int64_t>(random.Below(50257));
    Add<uint16_t>(narrow, {token});
    Add<uint32_t>(wide, {token});
    Add<uint64_t>(wider, {token});
    Add<uint32_t>(large, {static_cast<int64_t>(random.Below(151936))});
    Add<uint16_t>(tiny, {static_cast<int64_t>(random.Below(4))});  // as of the bases of DNA
  }
  EXPECT_TRUE(open(narrow).ok());
  EXPECT_TRUE(open(tiny).ok());
  for (const std::string& bytes : {wide, wider, large, wide.substr(0, 64), large.substr(0, 64)}) {
    EXPECT_THAT(open(bytes).message(), HasSubstr("numpy.uint16")) << bytes.size();
  }
  // A beginning that is all padding, and a few tokens that say nothing.
  EXPECT_TRUE(open(std::string(40000, '\0') + narrow).ok());
  EXPECT_TRUE(open(wide.substr(0, 8)).ok());
  EXPECT_TRUE(open(std::string(400, '\0')).ok());
}

TEST(TokenFile, RefusesWhatDoesNotAgree) {
  auto refusal = [](const std::string& name, const std::string& bytes, TokenFileFormat format) {
    return TokenFile::Open(Env::Posix(), Write(name, bytes), format).status().message();
  };
  std::string llmc = Llmc(20240520, 1, 3);
  EXPECT_THAT(refusal("a.bin", llmc, TokenFileFormat::kLlmc),
              HasSubstr("1030 bytes long, not 1024"));
  EXPECT_THAT(refusal("a.bin", Llmc(20240520, 2, 0), TokenFileFormat::kLlmc),
              HasSubstr("version 2"));
  EXPECT_THAT(refusal("a.bin", Llmc(1, 1, 0), TokenFileFormat::kLlmc), HasSubstr("magic"));
  EXPECT_THAT(refusal("a.bin", Llmc(20240520, 1, -1), TokenFileFormat::kLlmc), HasSubstr("-1"));
  EXPECT_THAT(refusal("a.bin", "", TokenFileFormat::kLlmc), HasSubstr("magic"));
  EXPECT_THAT(refusal("a.bin", llmc, TokenFileFormat::kNanoGpt), HasSubstr("to llmc"));
  EXPECT_THAT(refusal("a.bin", "abc", TokenFileFormat::kNanoGpt), HasSubstr("3 bytes"));
  const std::string index = MegatronIndex(8, 2);
  Write("m.bin", std::string(12, '\0'));
  for (size_t size = 0; size < index.size(); ++size) {
    EXPECT_NE(refusal("m.idx", index.substr(0, size), TokenFileFormat::kMegatron), "") << size;
  }
  PhiloxStream random({2, 2, 2});
  for (int round = 0; round < 300; ++round) {
    std::string bytes = index;
    bytes[random.Below(bytes.size())] = static_cast<char>(random.Below(256));
    Result<TokenFile> file =
        TokenFile::Open(Env::Posix(), Write("m.idx", bytes), TokenFileFormat::kMegatron);
    if (file.ok()) All(*file);
  }
  Write("m.bin", std::string(14, '\0'));
  EXPECT_THAT(refusal("m.idx", index, TokenFileFormat::kMegatron), HasSubstr("12 bytes long"));
  EXPECT_THAT(refusal("m.idx", MegatronIndex(7, 4), TokenFileFormat::kMegatron),
              HasSubstr("element type 7"));
}

}  // namespace
}  // namespace weft
