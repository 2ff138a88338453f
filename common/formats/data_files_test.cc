#include "common/formats/data_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class DataFiles : public ::testing::Test {
 protected:
  DataFiles() : folder_(::testing::TempDir() + "data_files") {
    EXPECT_TRUE(Env::Posix().RemoveTree(folder_).ok());
    EXPECT_TRUE(Env::Posix().CreateDirs(folder_).ok());
  }
  ~DataFiles() override { (void)Env::Posix().RemoveTree(folder_); }

  std::string Write(const std::string& name, const std::string& content) {
    const std::string path = folder_ + "/" + name;
    EXPECT_TRUE(Env::Posix().CreateDirs(DirName(path)).ok());
    EXPECT_TRUE(WriteFileAtomic(Env::Posix(), path, content).ok());
    return path;
  }

  JobSpec Job(const std::string& path, const std::string& format = "auto") {
    JobSpec job;
    job.data.train = {path};
    job.data.format = format;
    return job;
  }

  std::string Format(const std::string& path) {
    const Result<std::string> format = DataFormatOf(Env::Posix(), Job(path));
    return format.ok() ? *format : format.status().message();
  }

  std::string Refusal(const JobSpec& job, const DataCheckLimits& limits = {}) {
    return CheckDataFiles(Env::Posix(), job, limits).message();
  }

  std::string folder_;
};

TEST_F(DataFiles, TheFirstFileTellsTheKind) {
  EXPECT_EQ(Format(Write("a.JSON", "{}")), "text");
  EXPECT_EQ(Format(Write("a.IDX", "")), "megatron");
  EXPECT_EQ(Format(Write("train-images-idx3-ubyte.gz", "")), "idx");
  EXPECT_THAT(Format(Write("a.BIN", "abcd")), HasSubstr("set data.format"));
  const std::string texts = DirName(Write("texts/p1.txt", "one"));
  EXPECT_EQ(Format(texts), "text");
  JobSpec images = Job(texts);
  images.model.family = "vit";
  EXPECT_EQ(*DataFormatOf(Env::Posix(), images), "image_folder");
}

TEST_F(DataFiles, AFolderStandsForItsFilesInOrder) {
  const std::string folder = DirName(Write("texts/p2.txt", "two"));
  const std::string first = Write("texts/p1.txt", "one");
  Write("texts/.hidden", "");
  const std::string other = Write("z.txt", "other");
  EXPECT_THAT(*FilesOf(Env::Posix(), {other, folder}),
              ElementsAre(other, first, folder + "/p2.txt"));
  Write("texts/inner/p3.txt", "three");
  EXPECT_THAT(FilesOf(Env::Posix(), {folder}).status().message(),
              HasSubstr("holds folders, as inner"));
  ASSERT_TRUE(Env::Posix().CreateDirs(folder_ + "/empty").ok());
  EXPECT_THAT(FilesOf(Env::Posix(), {folder_ + "/empty"}).status().message(),
              HasSubstr("holds no files"));
}

TEST_F(DataFiles, MistakesAreSeenInTheBeginningOfFiles) {
  JobSpec job = Job(Write("a.jsonl", "{\"text\":\"a\"}\n{\"text\":null}\n"));
  EXPECT_THAT(Refusal(job),
              HasSubstr("data.train[0]: " + folder_ + "/a.jsonl:2: the field \"text\" is null"));
  EXPECT_THAT(Refusal(job), HasSubstr("data.bad_lines: skip"));
  job.data.bad_lines = "skip";
  EXPECT_EQ(Refusal(job), "");
  job.data.validation = {Write("v.txt", "fine"), Write("d.csv", "a,b\n")};
  EXPECT_THAT(Refusal(job), HasSubstr("data.validation[1]: "));
  // A label is asked for only where it is used.
  job = Job(Write("b.jsonl", "{\"text\":\"a\"}\n"));
  EXPECT_EQ(Refusal(job), "");
  job.model.family = "bert";
  job.model.head = "classification";
  EXPECT_THAT(Refusal(job), HasSubstr("no field \"label\""));
  EXPECT_THAT(Refusal(Job(Write("odd.bin", "abc"), "nanogpt")), HasSubstr("3 bytes"));
  // What lies beyond the sample is found when the data are prepared.
  EXPECT_EQ(
      Refusal(Job(Write("c.jsonl", "{\"text\":\"a\"}\n{\"text\":null}\n")), {.bytes_per_file = 16}),
      "");
}

TEST_F(DataFiles, APointerOfGitLfsIsNoData) {
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n";
  for (const char* name : {"a.txt", "a.jsonl", "a.json", "a.bin"}) {
    JobSpec job = Job(Write(name, pointer));
    job.data.bad_lines = "skip";
    EXPECT_THAT(Refusal(job), HasSubstr(std::string(name) + " is a git-lfs pointer"));
  }
  for (const char* format : {"text", "jsonl", "nanogpt", "llmc"}) {
    EXPECT_THAT(Refusal(Job(Write("b.bin", pointer), format)),
                HasSubstr("b.bin is a git-lfs pointer"));
  }
  // The index of Megatron-LM is small and may be there without its tokens.
  Write("m.idx", "MMIDIDX");
  Write("m.bin", pointer);
  EXPECT_THAT(Refusal(Job(folder_ + "/m.idx")), HasSubstr("m.bin is a git-lfs pointer"));
  Write("m.idx", pointer);
  EXPECT_THAT(Refusal(Job(folder_ + "/m.idx")), HasSubstr("m.idx is a git-lfs pointer"));
  JobSpec job = Job(Write("fine.txt", "fine"));
  job.data.chat_template = Write("chat.jinja", pointer);
  EXPECT_THAT(Refusal(job), HasSubstr("chat.jinja is a git-lfs pointer"));
}

TEST_F(DataFiles, ImagesAreLookedForInFoldersOfClasses) {
  JobSpec job = Job(DirName(DirName(Write("data/texts/a.txt", "one"))));
  job.model.family = "vit";
  EXPECT_THAT(Refusal(job), HasSubstr("data.train[0]: " + folder_ + "/data holds no images"));
  Write("data/b.png", "");
  EXPECT_THAT(Refusal(job), HasSubstr("holds no images")) << "it has no class";
  Write("data/cats/b.JPEG", "");
  EXPECT_EQ(Refusal(job), "");
  job.data.validation = {Write("v.txt", "two")};
  EXPECT_THAT(Refusal(job), HasSubstr("data.validation[0]: "));
}

TEST_F(DataFiles, IdxFilesAreThereWithTheirLabels) {
  const std::string images("\0\0\x08\3\0\0\0\2\0\0\0\1\0\0\0\1ab", 18);
  const std::string labels("\0\0\x08\1\0\0\0\2\0\1", 10);
  JobSpec job = Job(Write("train-images-idx3-ubyte", images));
  job.model.family = "vit";
  EXPECT_THAT(Refusal(job), HasSubstr("train-labels-idx1-ubyte"));
  Write("train-labels-idx1-ubyte", labels);
  EXPECT_EQ(Refusal(job), "");
  Write("train-labels-idx1-ubyte", std::string("\0\0\x08\1\0\0\0\3\0\1\0", 11));
  EXPECT_THAT(Refusal(job), HasSubstr("[2, 1, 1] and [3]"));
  Write("train-labels-idx1-ubyte", labels.substr(0, 9));
  EXPECT_THAT(Refusal(job), HasSubstr("train-labels-idx1-ubyte: the IDX file has 1 values"));
  Write("train-images-idx3-ubyte", "text");
  EXPECT_THAT(Refusal(job), HasSubstr("it is no IDX file"));
  // What is compressed is read up to the shape alone.
  job.data.train = {WEFT_SOURCE_DIR "/docs/examples/shapes-images-idx3-ubyte.gz"};
  EXPECT_EQ(Refusal(job), "");
}

TEST_F(DataFiles, MissingFilesAreMistakesOfTheJob) {
  const JobSpec job = Job(folder_ + "/none.txt");
  EXPECT_THAT(Refusal(job), HasSubstr("data.train[0]: there is no file " + folder_));
  EXPECT_EQ(Refusal(job, {.missing_is_error = false}), "");
  JobSpec other = Job(Write("there.txt", "one"));
  other.model.peft.adapters.resize(2);
  other.model.peft.adapters[1].train = {folder_ + "/none.txt"};
  EXPECT_THAT(Refusal(other), HasSubstr("model.peft.adapters[1].train[0]: there is no file"));
  for (const char* name : {"~/a.txt", "$DATA/a.txt", "/data/*.txt"}) {
    EXPECT_THAT(Refusal(Job(name), {.missing_is_error = false}),
                HasSubstr("expanded by the command line"));
  }
}

}  // namespace
}  // namespace weft
