// Folders of models and adapters whose files lead out of the folders that may be read.
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/env_confined.h"
#include "common/formats/chat_template.h"
#include "common/formats/data_files.h"
#include "common/formats/huggingface.h"
#include "common/formats/imported_weights.h"
#include "common/formats/peft_adapter.h"
#include "common/formats/safetensors_index.h"
#include "common/formats/tokenizer.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const std::string kModel = WEFT_SOURCE_DIR "/tests/parity/testdata/gpt2/start";
const std::string kAdapter = WEFT_SOURCE_DIR "/tests/parity/testdata/gpt2/lora/start";
const std::string kTokenizer = WEFT_SOURCE_DIR "/common/formats/testdata/gpt2_part";

class OutsideLinksTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = JoinPath(::testing::TempDir(), "weft-outside-XXXXXX");
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
    fs::create_directories(dir_ / "data");
    fs::create_directories(dir_ / "secret");
  }
  void TearDown() override { fs::remove_all(dir_); }

  /// A copy of `from` in data/NAME.
  std::string Copy(const std::string& from, const std::string& name) {
    fs::copy(from, dir_ / "data" / name, fs::copy_options::recursive);
    return dir_ / "data" / name;
  }

  /// Each file of the folder in turn is a link: to within, where reading it still works, and then
  /// to outside, where it is refused.
  void ExpectRefused(const std::string& folder, const std::vector<std::string>& files,
                     const std::function<Status(Env&)>& read) {
    ConfinedEnv env({dir_ / "data"}, "--data-root");
    ASSERT_TRUE(read(env).ok()) << read(env).message();
    for (const std::string& file : files) {
      SCOPED_TRACE(file);
      const fs::path path = fs::path(folder) / file, inside = dir_ / "data" / ("of-" + file),
                     outside = dir_ / "secret" / file;
      fs::rename(path, inside);
      fs::create_symlink(inside, path);
      EXPECT_TRUE(read(env).ok()) << read(env).message();
      fs::remove(path);
      fs::rename(inside, outside);
      fs::create_symlink(outside, path);
      const Status refused = read(env);
      EXPECT_EQ(refused.code(), StatusCode::kInvalid) << refused.message();
      EXPECT_THAT(refused.message(), HasSubstr(path.string() + " leads out of the folders"));
      EXPECT_TRUE(read(Env::Posix()).ok()) << "the link alone is the reason";
      fs::remove(path);
      fs::copy(outside, path);
    }
  }

  fs::path dir_;
};

TEST_F(OutsideLinksTest, ModelsAreRefused) {
  JobSpec job;
  job.model.import_path = job.data.tokenizer.path = Copy(kModel, "model");
  ExpectRefused(job.model.import_path, {"config.json", "model.safetensors"}, [&](Env& env) {
    JobSpec resolved = job;
    WEFT_RETURN_IF_ERROR(ResolveImportedModel(env, resolved));
    return CheckImportedWeights(env, resolved, /*missing_is_error=*/false);
  });
}

TEST_F(OutsideLinksTest, PartsOfWeightsAreRefused) {
  const std::string folder = Copy(kModel, "parts");
  fs::rename(folder + "/model.safetensors", folder + "/part.safetensors");
  const Result<SafetensorsFile> part =
      SafetensorsFile::Open(Env::Posix(), folder + "/part.safetensors");
  ASSERT_TRUE(part.ok()) << part.status().message();
  SafetensorsIndex index;
  for (const SafetensorsView& tensor : part->tensors()) {
    index.weight_map[tensor.name] = "part.safetensors";
  }
  const std::string name(kSafetensorsIndexName);
  ASSERT_TRUE(WriteSafetensorsIndex(Env::Posix(), JoinPath(folder, name), index).ok());
  ExpectRefused(folder, {"part.safetensors", name},
                [&](Env& env) { return SafetensorsFolder::Open(env, folder).status(); });
}

TEST_F(OutsideLinksTest, AdaptersAreRefused) {
  JobSpec job;
  job.model.import_path = job.data.tokenizer.path = Copy(kModel, "model");
  job.model.peft.method = "lora";
  job.model.peft.import_path = Copy(kAdapter, "adapter");
  ExpectRefused(job.model.peft.import_path, {"adapter_config.json", "adapter_model.safetensors"},
                [&](Env& env) {
                  JobSpec resolved = job;
                  WEFT_RETURN_IF_ERROR(ResolveImportedModel(env, resolved));
                  return CheckImportedWeights(env, resolved, /*missing_is_error=*/true);
                });
}

TEST_F(OutsideLinksTest, TokenizersAreRefused) {
  const std::string folder = Copy(kTokenizer, "tokenizer");
  ExpectRefused(folder, {"vocab.json", "merges.txt"},
                [&](Env& env) { return Tokenizer::Load(env, folder).status(); });
}

TEST_F(OutsideLinksTest, TextsInFoldersAndChatTemplatesAreRefused) {
  const std::string texts = dir_ / "data/texts", chats = dir_ / "data/chats";
  for (const std::string& path : {texts + "/a.txt", chats + "/chat.jinja"}) {
    fs::create_directories(DirName(path));
    ASSERT_TRUE(WriteFileAtomic(Env::Posix(), path, "text").ok());
  }
  JobSpec job;
  job.data.train = {texts};
  job.data.chat_template = chats + "/chat.jinja";
  const auto check = [&](Env& env) { return CheckDataFiles(env, job, DataCheckLimits()); };
  ExpectRefused(texts, {"a.txt"}, check);
  ExpectRefused(chats, {"chat.jinja"}, check);
}

}  // namespace
}  // namespace weft
