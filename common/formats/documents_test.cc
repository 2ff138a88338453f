#include "common/formats/documents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Opens a file with this content; its documents, or the first error.
Result<std::vector<std::string>> Read(const std::string& name, const std::string& content,
                                      const DocumentOptions& options = {}) {
  const std::string path =
      ::testing::TempDir() + "documents_" + std::to_string(getpid()) + "_" + name;
  WEFT_RETURN_IF_ERROR(WriteFileAtomic(Env::Posix(), path, content));
  WEFT_ASSIGN_OR_RETURN(DocumentFile file, DocumentFile::Open(Env::Posix(), path, options));
  std::vector<std::string> documents;
  std::string scratch;
  for (size_t i = 0; i < file.size(); ++i) {
    WEFT_ASSIGN_OR_RETURN(std::string_view text, file.Text(i, scratch));
    documents.emplace_back(text);
  }
  return documents;
}

TEST(Documents, TextIsOneDocumentOrCutAtTheSeparator) {
  EXPECT_THAT(*Read("a.txt", "one\r\ntwo"), ElementsAre("one\r\ntwo"));
  EXPECT_THAT(*Read("a.txt", "\xef\xbb\xbfone"), ElementsAre("one"));
  EXPECT_THAT(*Read("a.txt", "\n%\nx\n%\ny\n\n%\n \n%\nz\n%\n", {.separator = "\n%\n"}),
              ElementsAre("x", "y\n", "z"));
}

TEST(Documents, JsonlTakesLineEndsBomBlankLinesAndEscapes) {
  EXPECT_THAT(
      *Read("a.jsonl",
            "\xef\xbb\xbf{\"text\":\"one\"}\r\n\r\n  \n{\"id\":1,\"text\":\"t\\u00e9\\n\"}"),
      ElementsAre("one", "té\n"));
  EXPECT_THAT(*Read("a.txt", "{\"body\":\"x\"}\n", {.format = "jsonl", .text_field = "body"}),
              ElementsAre("x"));
  EXPECT_THAT(*Read("a.jsonl", "{\"text\":\"x\"}", {.format = "text"}),
              ElementsAre("{\"text\":\"x\"}"));
  const std::string huge(3 << 20, 'h');
  EXPECT_THAT(*Read("a.jsonl", "{\"text\":\"" + huge + "\"}"), ElementsAre(huge));
}

TEST(Documents, NamesFileAndLineOfABadJsonlLine) {
  const std::string good = "{\"text\":\"x\"}\n\n";
  struct Case {
    const char* line;
    const char* reason;
  };
  for (const Case& c : {Case{"{\"text\":\"x\"", "not valid JSON"}, Case{"[1]", "not a JSON object"},
                        Case{"{\"body\":\"x\"}", "no field \"text\" (it has: body)"},
                        Case{"{\"text\":3}", "not a string"}, Case{"{} {}", "not valid JSON"},
                        Case{"{\"text\":\"\xff\"}", "not valid JSON"}}) {
    Result<std::vector<std::string>> documents = Read("bad.jsonl", good + c.line + "\n");
    ASSERT_FALSE(documents.ok()) << c.line;
    EXPECT_EQ(documents.status().code(), StatusCode::kInvalid);
    EXPECT_THAT(documents.status().message(), HasSubstr("_bad.jsonl:3: ")) << c.line;
    EXPECT_THAT(documents.status().message(), HasSubstr(c.reason)) << c.line;
  }
}

TEST(Documents, RefusesWhatIsNotText) {
  EXPECT_THAT(Read("x.txt", "").status().message(), HasSubstr("is empty"));
  EXPECT_THAT(Read("x.txt", "\xef\xbb\xbf").status().message(), HasSubstr("is empty"));
  EXPECT_THAT(Read("x.txt", " \n\n").status().message(), HasSubstr("not blank"));
  EXPECT_THAT(Read("x.jsonl", "\n\n").status().message(), HasSubstr("not blank"));
  EXPECT_THAT(Read("x.txt", std::string("ab\0c", 4)).status().message(),
              HasSubstr("byte 2 is NUL"));
  EXPECT_THAT(Read("x.txt", "\xe9\xe8\xe7 abc").status().message(), HasSubstr("3 of 7 bytes"));
  // A few stray bytes are let through: the tokenizer encodes any byte.
  EXPECT_TRUE(Read("x.txt", "nearly all of this is good text \xe9").ok());
  EXPECT_EQ(DocumentFile::Open(Env::Posix(), "/nowhere/x.txt", {}).status().code(),
            StatusCode::kNotFound);
  EXPECT_EQ(DocumentFile::Open(Env::Posix(), ::testing::TempDir(), {}).status().code(),
            StatusCode::kInvalid);
}

}  // namespace
}  // namespace weft
