// Data whose files lead out of the folders that may be read, of each form.
#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/env_confined.h"
#include "worker/engine/data/prepare.h"
#include "worker/engine/data/testing.h"

namespace weft::engine {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const std::string kTestData = std::string(WEFT_SOURCE_DIR) + "/common/formats/testdata/";

void Write(const fs::path& path, const std::string& bytes) {
  fs::create_directories(path.parent_path());
  ASSERT_TRUE(WriteFileAtomic(Env::Posix(), path, bytes).ok());
}

template <class T>
void Add(std::string& bytes, std::initializer_list<int64_t> values) {
  for (int64_t value : values) {
    const T typed = static_cast<T>(value);
    bytes.append(reinterpret_cast<const char*>(&typed), sizeof(typed));
  }
}

class OutsideLinksTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = MakeTestFolder();
    fs::create_directories(dir_ / "data");
    fs::create_directories(dir_ / "secret");
    job_.data.validation_fraction = 0.25;
  }
  void TearDown() override { fs::remove_all(dir_); }

  /// In a cache that none before has filled.
  Status Prepare(Env& env) {
    const std::string cache = dir_ / ("cache" + std::to_string(++caches_));
    return PrepareDataset(env, job_, cache, 1).status();
  }

  /// `name` of data/ is a link: to within, where preparing works, and then to outside.
  void ExpectRefused(const std::string& name) {
    SCOPED_TRACE(name);
    std::vector<std::string> folders = {dir_ / "data"};
    for (int i = 1; i <= 3; ++i) folders.push_back(dir_ / ("cache" + std::to_string(caches_ + i)));
    ConfinedEnv env(folders, "--data-root");
    const fs::path path = dir_ / "data" / name, inside = dir_ / "data/.moved",
                   outside = dir_ / "secret/moved";
    fs::rename(path, inside);
    fs::create_symlink(inside, path);
    const Status within = Prepare(env);
    EXPECT_TRUE(within.ok()) << within.message();
    fs::remove(path);
    fs::rename(inside, outside);
    fs::create_symlink(outside, path);
    const Status refused = Prepare(env);
    EXPECT_EQ(refused.code(), StatusCode::kInvalid) << refused.message();
    EXPECT_THAT(refused.message(), HasSubstr(path.string() + " leads out of the folders"));
    EXPECT_TRUE(Prepare(Env::Posix()).ok()) << "the link alone is the reason";
    fs::remove(path);
    fs::rename(outside, path);
  }

  fs::path dir_;
  JobSpec job_;
  int caches_ = 0;
};

TEST_F(OutsideLinksTest, TextInAFolderIsRefused) {
  Write(dir_ / "data/texts/a.txt", "one two");
  Write(dir_ / "data/texts/b.txt", "three");
  job_.data.train = {dir_ / "data/texts"};
  job_.data.validation_fraction = 0;
  fs::copy(kTestData + "gpt2_part", dir_ / "data/tokenizer", fs::copy_options::recursive);
  job_.data.tokenizer.path = dir_ / "data/tokenizer";
  ExpectRefused("texts/b.txt");
  ExpectRefused("tokenizer/vocab.json");
}

TEST_F(OutsideLinksTest, ImagesAndFoldersOfClassesAreRefused) {
  Result<std::string> image = ReadFile(Env::Posix(), kTestData + "images/noise.png");
  ASSERT_TRUE(image.ok());
  for (const char* name : {"cat/a.png", "cat/b.png", "dog/c.png", "dog/d.png"}) {
    Write(dir_ / "data/photos" / name, *image);
  }
  job_.model.family = "vit";
  job_.model.image_size = 4;
  job_.model.patch_size = 2;
  job_.model.image_channels = 3;
  job_.data.train = {dir_ / "data/photos"};
  ExpectRefused("photos/dog/d.png");
  ExpectRefused("photos/dog");
}

TEST_F(OutsideLinksTest, TheLabelsOfAnIdxFileAreRefused) {
  std::string images("\0\0\x08\3\0\0\0\x08\0\0\0\4\0\0\0\4", 16);
  std::string labels("\0\0\x08\1\0\0\0\x08", 8);
  for (int i = 0; i < 8; ++i) {
    images.append(16, static_cast<char>(i * 10));
    labels += static_cast<char>(i / 4);
  }
  Write(dir_ / "data/train-images-idx3-ubyte", images);
  Write(dir_ / "data/train-labels-idx1-ubyte", labels);
  job_.model.family = "vit";
  job_.model.image_size = 4;
  job_.model.patch_size = 2;
  job_.model.image_channels = 1;
  job_.data.train = {dir_ / "data/train-images-idx3-ubyte"};
  ExpectRefused("train-labels-idx1-ubyte");
}

TEST_F(OutsideLinksTest, TheTokensOfAMegatronIndexAreRefused) {
  std::string index("MMIDIDX\0\0", 9);
  Add<uint64_t>(index, {1});
  Add<uint8_t>(index, {8});
  Add<uint64_t>(index, {3, 3});
  Add<int32_t>(index, {2, 1, 1});
  Add<int64_t>(index, {0, 4, 6});
  Add<int64_t>(index, {0, 1, 3});
  std::string tokens;
  Add<uint16_t>(tokens, {1, 2, 3, 4});
  Write(dir_ / "data/m.idx", index);
  Write(dir_ / "data/m.bin", tokens);
  job_.data.train = {dir_ / "data/m.idx"};
  job_.data.validation_fraction = 0.34;
  ExpectRefused("m.bin");
}

}  // namespace
}  // namespace weft::engine
