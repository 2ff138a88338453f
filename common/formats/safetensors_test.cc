#include "common/formats/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>

#include "common/formats/safetensors_index.h"
#include "common/hash.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

std::string Fixture(const std::string& name) {
  return std::string(WEFT_SOURCE_DIR) + "/common/formats/testdata/" + name;
}

std::string MakeFolder() {
  std::string folder = ::testing::TempDir() + "safetensors_" +
                       ::testing::UnitTest::GetInstance()->current_test_info()->name();
  EXPECT_TRUE(Env::Posix().RemoveTree(folder).ok());
  EXPECT_TRUE(Env::Posix().CreateDirs(folder).ok());
  return folder;
}

std::string Load(const std::string& path) {
  Result<std::string> text = ReadFile(Env::Posix(), path);
  EXPECT_TRUE(text.ok()) << text.status().ToString();
  return text.ok() ? *text : "";
}

std::string File(const std::string& header, const std::string& data) {
  std::string file(8, '\0');
  uint64_t length = header.size();
  std::memcpy(file.data(), &length, 8);
  return file + header + data;
}

Result<SafetensorsFile> Parse(const std::string& bytes) {
  return SafetensorsFile::Parse(std::as_bytes(std::span(bytes)), "test");
}

template <class T>
std::span<const std::byte> Bytes(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

template <class T>
std::vector<T> Values(const SafetensorsView* view) {
  std::vector<T> values(view->bytes.size() / sizeof(T));
  std::memcpy(values.data(), view->bytes.data(), view->bytes.size());
  return values;
}

TEST(SafetensorsReader, ReadsTensorsInAnyOrderOfTypes) {
  Result<SafetensorsFile> file = SafetensorsFile::Open(Env::Posix(), Fixture("golden.safetensors"));
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  ASSERT_EQ(file->tensors().size(), 2u);
  EXPECT_EQ(file->metadata(), (SafetensorsMetadata{{"format", "pt"}}));
  const SafetensorsView* a = file->Find("a");
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->type, SafetensorsType::kF32);
  EXPECT_EQ(a->shape, std::vector<uint64_t>{2});
  EXPECT_EQ(Values<float>(a), (std::vector<float>{1.0f, -2.5f}));
  const SafetensorsView* s = file->Find("s");
  ASSERT_NE(s, nullptr);
  EXPECT_EQ(s->type, SafetensorsType::kI64);
  EXPECT_TRUE(s->shape.empty());
  EXPECT_EQ(Values<int64_t>(s), std::vector<int64_t>{7});
  EXPECT_EQ(file->Find("b"), nullptr);
}

TEST(SafetensorsReader, SurvivesEveryChangedHeaderByte) {
  const std::string sound = Load(Fixture("golden.safetensors"));
  int accepted = 0;
  for (size_t at = 0; at < 8 + 144; ++at) {
    for (int value = 0; value < 256; ++value) {
      std::string bytes = sound;
      bytes[at] = static_cast<char>(value);
      Result<SafetensorsFile> file = Parse(bytes);
      if (!file.ok()) {
        ASSERT_EQ(file.status().code(), StatusCode::kCorrupt);
        continue;
      }
      ++accepted;
      size_t covered = 0;
      for (const SafetensorsView& view : file->tensors()) covered += view.bytes.size();
      ASSERT_EQ(covered, 16u) << "byte " << at << " = " << value;
    }
  }
  // Renamed tensors and changed metadata are legal, as is a type of the same width.
  EXPECT_GT(accepted, 144);
  EXPECT_LT(accepted, 8000);
}

TEST(SafetensorsReader, RefusesEveryOtherLength) {
  const std::string sound = Load(Fixture("golden.safetensors"));
  for (size_t length = 0; length < sound.size(); ++length) {
    EXPECT_EQ(Parse(sound.substr(0, length)).status().code(), StatusCode::kCorrupt) << length;
  }
  EXPECT_EQ(Parse(sound + '\0').status().code(), StatusCode::kCorrupt);
  EXPECT_TRUE(Parse(sound).ok());
}

TEST(SafetensorsReader, RefusesHostileHeadersAndSaysWhy) {
  auto tensor = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return "{\"t\":{\"dtype\":" + dtype + ",\"shape\":" + shape + ",\"data_offsets\":" + offsets +
           "}}";
  };
  const std::string f32 = "\"F32\"";
  const std::string name_of_2000(2000, 'n');
  struct Case {
    std::string header;
    std::string reason;
  };
  const std::vector<Case> cases = {
      {"", "'{'"},
      {" {}", "'{'"},
      {"[]", "'{'"},
      {"{", "JSON"},
      {"{} x", "JSON"},
      {"{\"\xff\":1}", "JSON"},
      {tensor(f32, "[2]", "[0,8]").substr(1), "'{'"},
      {tensor("\"F33\"", "[2]", "[0,8]"), "unknown dtype"},
      {tensor("3", "[2]", "[0,8]"), "not a string"},
      {tensor(f32, "[-2]", "[0,8]"), "whole number"},
      {tensor(f32, "[2.0]", "[0,8]"), "whole number"},
      {tensor(f32, "[2e0]", "[0,8]"), "whole number"},
      {tensor(f32, "[18446744073709551616]", "[0,8]"), "whole number"},
      {tensor(f32, "2", "[0,8]"), "list"},
      {tensor(f32, "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,2]", "[0,8]"), "at most 16"},
      {tensor(f32, "[[2]]", "[0,8]"), "whole number"},
      {tensor(f32, std::string(40, '[') + "2" + std::string(40, ']'), "[0,8]"), "nested"},
      {tensor(f32, "[9223372036854775808,2]", "[0,8]"), "overflows"},
      {tensor(f32, "[4294967296,4294967296,0]", "[0,8]"), "overflows"},
      {tensor("\"F4\"", "[3]", "[0,8]"), "whole bytes"},
      {tensor(f32, "[3]", "[0,8]"), "takes 12 bytes, but spans 8"},
      {tensor(f32, "[2]", "[0]"), "two whole numbers"},
      {tensor(f32, "[2]", "[0,8,8]"), "two whole numbers"},
      {tensor(f32, "[2]", "[-8,0]"), "two whole numbers"},
      {tensor(f32, "[2]", "[8,16]"), "gap"},
      {tensor(f32, "[2]", "[0,16]"), "past the end"},
      {tensor(f32, "[0]", "[0,18446744073709551615]"), "past the end"},
      {tensor(f32, "[1]", "[0,4]"), "the tensors end at byte 4"},
      {"{}", "the tensors end at byte 0"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
       "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
       "overlap"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
       "\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[8,8]}}",
       "repeats"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"dtype\":\"F32\"}}",
       "repeats"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", "must have"},
      {"{\"a\":7}", "must have"},
      {"{\"a\\u0000b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", "NUL"},
      {"{\"" + name_of_2000 + "\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
       "longer"},
      {"{\"__metadata__\":{\"k\":1}}", "not a string"},
      {"{\"__metadata__\":[]}", "not an object"},
  };
  for (const Case& c : cases) {
    Result<SafetensorsFile> file = Parse(File(c.header, std::string(8, '\1')));
    ASSERT_FALSE(file.ok()) << c.header;
    EXPECT_EQ(file.status().code(), StatusCode::kCorrupt) << c.header;
    EXPECT_THAT(file.status().message(), HasSubstr(c.reason)) << c.header;
  }
  std::string huge(8, '\xff');
  EXPECT_THAT(Parse(huge + "{}").status().message(), HasSubstr("at most 100000000"));
  EXPECT_TRUE(Parse(File("{}", "")).ok());
}

TEST(SafetensorsReader, PassesOverWhatTheReferencePassesOver) {
  const std::string header =
      R"({"__metadata__":null,"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8],)"
      R"("note":"x","more":{"deep":[[[[1]]]]},"null":null}})";
  Result<SafetensorsFile> file = Parse(File(header, std::string(8, '\1')));
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_TRUE(file->metadata().empty());
  EXPECT_EQ(file->Find("t")->shape, std::vector<uint64_t>{2});
}

TEST(SafetensorsReader, KnowsPointersOfGitLfs) {
  Result<SafetensorsFile> file =
      Parse("version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 12345\n");
  EXPECT_EQ(file.status().code(), StatusCode::kInvalid);
  EXPECT_THAT(file.status().message(),
              ::testing::AllOf(HasSubstr("git-lfs pointer"), HasSubstr("git lfs pull")));
}

TEST(SafetensorsWriter, WritesTheSameBytesAsTheReferenceImplementation) {
  const std::vector<float> zeta = {0, 0.25f, 0.5f, 0.75f, 1, 1.25f};
  const std::vector<uint16_t> alpha = {0x0000, 0x3c00, 0x4000};
  const std::vector<uint8_t> flags = {1, 0, 1};
  const std::vector<int64_t> scalar = {-7};
  const std::vector<uint8_t> weights = {1, 2, 3};
  const std::vector<double> wide = {0.5};
  const std::string path = MakeFolder() + "/out.safetensors";
  SafetensorsTensor streamed{"zeta", SafetensorsType::kF32, {2, 3}, {}, {}};
  streamed.produce = [&](const ByteSink& sink) -> Status {
    for (const float& value : zeta) {
      WEFT_RETURN_IF_ERROR(sink(std::as_bytes(std::span(&value, 1))));
    }
    return OkStatus();
  };
  Result<SafetensorsWritten> written =
      WriteSafetensors(Env::Posix(), path,
                       {streamed,
                        {"alpha", SafetensorsType::kF16, {3}, Bytes(alpha), {}},
                        {"flags", SafetensorsType::kBool, {3}, Bytes(flags), {}},
                        {"scalar", SafetensorsType::kI64, {}, Bytes(scalar), {}},
                        {"nothing", SafetensorsType::kF32, {0, 5}, {}, {}},
                        {"poids.é", SafetensorsType::kU8, {3}, Bytes(weights), {}},
                        {"double", SafetensorsType::kF64, {1, 1}, Bytes(wide), {}}});
  ASSERT_TRUE(written.ok()) << written.status().ToString();
  const std::string expected = Load(Fixture("reference.safetensors"));
  const std::string actual = Load(path);
  EXPECT_EQ(actual, expected);
  EXPECT_EQ(written->bytes, expected.size());
  EXPECT_EQ(written->hash, HashHex(std::as_bytes(std::span(expected))));
  Result<SafetensorsFile> file = SafetensorsFile::Open(Env::Posix(), path);
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_EQ(Values<float>(file->Find("zeta")), zeta);
  EXPECT_EQ(file->Find("nothing")->shape, (std::vector<uint64_t>{0, 5}));
}

TEST(SafetensorsWriter, RefusesWhatReadersWouldRefuseAndLeavesNoFile) {
  const std::string folder = MakeFolder();
  const std::string path = folder + "/out.safetensors";
  const std::vector<float> two = {1, 2};
  auto write = [&](std::vector<SafetensorsTensor> tensors) {
    return WriteSafetensors(Env::Posix(), path, std::move(tensors)).status();
  };
  const SafetensorsTensor sound{"a", SafetensorsType::kF32, {2}, Bytes(two), {}};
  SafetensorsTensor wrong = sound;
  wrong.shape = {3};
  EXPECT_THAT(write({wrong}).message(), HasSubstr("takes 12 bytes, but 8 were given"));
  EXPECT_THAT(write({sound, sound}).message(), HasSubstr("twice"));
  wrong = sound;
  wrong.name = "__metadata__";
  EXPECT_THAT(write({wrong}).message(), HasSubstr("reserved"));
  wrong.name = "\xff";
  EXPECT_THAT(write({wrong}).message(), HasSubstr("UTF-8"));
  wrong = sound;
  wrong.produce = [](const ByteSink&) { return OkStatus(); };
  EXPECT_EQ(write({wrong}).code(), StatusCode::kInternal);
  wrong.produce = [](const ByteSink&) { return ExhaustedError("no source"); };
  EXPECT_EQ(write({wrong}).code(), StatusCode::kExhausted);
  Result<std::vector<std::string>> names = Env::Posix().ListDir(folder);
  ASSERT_TRUE(names.ok());
  EXPECT_TRUE(names->empty());
}

TEST(SafetensorsFolder, SplitsOverShardsAndReadsThemBack) {
  const std::string folder = MakeFolder();
  std::vector<std::vector<float>> data;
  std::vector<SafetensorsTensor> tensors;
  for (int i = 0; i < 7; ++i) data.push_back(std::vector<float>(10 + 10 * i, 0.5f * i));
  for (int i = 0; i < 7; ++i) {
    tensors.push_back(
        {"t" + std::to_string(i), SafetensorsType::kF32, {data[i].size()}, Bytes(data[i]), {}});
  }
  ASSERT_TRUE(WriteSafetensorsFolder(Env::Posix(), folder, tensors, 400).ok());
  Result<SafetensorsIndex> index =
      ReadSafetensorsIndex(Env::Posix(), folder + "/model.safetensors.index.json");
  ASSERT_TRUE(index.ok()) << index.status().ToString();
  EXPECT_EQ(index->total_bytes, 280u * 4);
  EXPECT_EQ(index->weight_map["t0"], "model-00001-of-00004.safetensors");
  Result<SafetensorsFolder> read = SafetensorsFolder::Open(Env::Posix(), folder);
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  ASSERT_EQ(read->tensors().size(), 7u);
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(Values<float>(read->Find("t" + std::to_string(i))), data[i]);
  }
  EXPECT_EQ(read->Find("t7"), nullptr);
}

TEST(SafetensorsFolder, RefusesAnIndexThatLiesOrLeavesTheFolder) {
  const std::string folder = MakeFolder();
  const std::string path = folder + "/model.safetensors.index.json";
  EXPECT_EQ(SafetensorsFolder::Open(Env::Posix(), folder).status().code(), StatusCode::kInvalid);
  for (const char* text : {"", "[]", "{}", R"({"weight_map":[]})", R"({"weight_map":{"a":1}})",
                           R"({"weight_map":{"a":"../x.safetensors"}})",
                           R"({"weight_map":{"a":"/etc/x"}})", R"({"weight_map":{"a":".."}})",
                           R"({"weight_map":{"a":""}})", R"({"weight_map":{"a":"x\u0000"}})"}) {
    ASSERT_TRUE(WriteFileAtomic(Env::Posix(), path, text).ok());
    EXPECT_EQ(ReadSafetensorsIndex(Env::Posix(), path).status().code(), StatusCode::kCorrupt)
        << text;
  }
  ASSERT_TRUE(
      WriteFileAtomic(Env::Posix(), folder + "/x.safetensors", Load(Fixture("golden.safetensors")))
          .ok());
  ASSERT_TRUE(
      WriteFileAtomic(Env::Posix(), path, R"({"weight_map":{"missing":"x.safetensors"}})").ok());
  Result<SafetensorsFolder> read = SafetensorsFolder::Open(Env::Posix(), folder);
  EXPECT_THAT(read.status().message(), HasSubstr("\"missing\" is in x.safetensors"));
}

TEST(SafetensorsFolder, SaysWhatIsThereInstead) {
  const struct {
    const char* file;
    const char* what;
    const char* hint;
  } cases[] = {
      {"pytorch_model.bin", "PyTorch pickles (pytorch_model.bin)", "safe_serialization=True"},
      {"pytorch_model-00001-of-00002.bin", "PyTorch pickles", "from_pretrained"},
      {"model-00001-of-00002.safetensors", "shards of safetensors without their index",
       "model.safetensors.index.json"},
      {"adapter_model.safetensors", "a PEFT adapter", "--peft FOLDER"},
      {"adapter_model.bin", "a PEFT adapter", "--peft FOLDER"},
      {"llama-q4.gguf", "GGUF (llama-q4.gguf)", "gguf_file"},
      {"tf_model.h5", "TensorFlow", "from_tf"},
      {"flax_model.msgpack", "Flax", "from_flax"},
      {"consolidated.00.pth", "names of their maker", "Hugging Face"},
      {"best.pt", "a PyTorch checkpoint (best.pt)", "save_pretrained"},
      {"weights.safetensors", "under another name (weights.safetensors)", "model.safetensors"},
      {"README.md", "has no model.safetensors", "must hold config.json"},
  };
  for (const auto& c : cases) {
    const std::string folder = MakeFolder();
    ASSERT_TRUE(WriteFileAtomic(Env::Posix(), JoinPath(folder, c.file), "x").ok());
    const Status status = SafetensorsFolder::Open(Env::Posix(), folder).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalid) << c.file;
    EXPECT_THAT(status.message(), ::testing::AllOf(HasSubstr(folder), HasSubstr(c.what),
                                                   HasSubstr("hint: "), HasSubstr(c.hint)));
  }
  const Status nothing = SafetensorsFolder::Open(Env::Posix(), "/no/such/folder").status();
  EXPECT_EQ(nothing.code(), StatusCode::kNotFound);
  EXPECT_EQ(nothing.message(), "there is no folder /no/such/folder");
}

}  // namespace
}  // namespace weft
