#include "common/formats/documents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Opens a file with this content; its documents, or the first error.
Result<std::vector<std::string>> Read(const std::string& name, const std::string& content,
                                      const DocumentOptions& options = {}) {
  const std::string path = ::testing::TempDir() + "documents_" + name;
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

TEST(Documents, FieldsThatNobodyAsksForMayHoldAnything) {
  EXPECT_THAT(*Read("a.jsonl",
                    "{\"text\":\"a\",\"score\":NaN}\n{\"x\":1e999,\"text\":\"b\"}\n"
                    "{\"y\":[-Infinity,{\"text\":null}],\"text\":\"c\"}\n"
                    "{\"bad\":\"\\ud800\xff\",\"text\":\"d\",\"z\":1,\"z\":2}\n"),
              ElementsAre("a", "b", "c", "d"));
  EXPECT_THAT(Read("b.jsonl", "{\"text\":\"a\",\"text\":\"b\"}").status().message(),
              HasSubstr("repeats the key"));
  for (const char* value : {"null", "NaN", "1e999", "{}"}) {
    const Status status =
        Read("b.jsonl", "{\"text\":\"a\"}\n{\"text\":" + std::string(value) + "}\n").status();
    EXPECT_THAT(status.message(), HasSubstr("_b.jsonl:2: the field \"text\" is " +
                                            std::string(value) + ", which is not a string"));
  }
  // The line is the file's, and named once.
  const std::string message = Read("b.jsonl", "{\"text\":\"\\x\"}").status().message();
  EXPECT_THAT(message, HasSubstr("_b.jsonl:1: "));
  EXPECT_EQ(message.find("line 1"), std::string::npos) << message;
}

TEST(Documents, FormsAreRecognizedByContentAndName) {
  const std::string lines = "{\"text\": \"one\"}\n{\"text\": \"two\"}\n";
  for (const char* name : {"a.json", "a.jsonlines", "a.ndjson", "A.JSONL", "a.txt", "corpus"}) {
    EXPECT_THAT(*Read(name, lines), ElementsAre("one", "two")) << name;
  }
  const std::string array = " [\n {\"text\": \"o}n\\\"e\"},\n {\"text\":\n\"two\"}\n]\n";
  for (const char* name : {"a.json", "a.jsonl", "a.txt"}) {
    EXPECT_THAT(*Read(name, array), ElementsAre("o}n\"e", "two")) << name;
  }
  EXPECT_THAT(*Read("a.bin", array, {.format = "json"}), ElementsAre("o}n\"e", "two"));
  EXPECT_THAT(*Read("a.json", lines, {.format = "text"}), ElementsAre(lines));
  for (const char* text : {"[Chapter 1]\nIt was", "{x} and {y}", "{\"text\": 1}\nsome prose"}) {
    EXPECT_THAT(*Read("a.txt", text), ElementsAre(text));
  }
}

TEST(Documents, WhatIsInDoubtIsRefusedWithWhatToWrite) {
  for (const char* name : {"d.csv", "D.CSV", "d.tsv"}) {
    const Status status = Read(name, "id,text\n1,\"a b\"\n").status();
    EXPECT_EQ(status.code(), StatusCode::kInvalid);
    EXPECT_THAT(status.message(), HasSubstr("is a table"));
    EXPECT_THAT(status.message(), HasSubstr("data.format: text"));
  }
  EXPECT_THAT(*Read("d.csv", "id,text\n", {.format = "text"}), ElementsAre("id,text\n"));
  EXPECT_THAT(Read("a.json", "{\n \"text\": \"x\"\n}").status().message(),
              HasSubstr("one object over several lines"));
  EXPECT_THAT(Read("a.json", "[\"x\"]").status().message(), HasSubstr("what are no objects"));
  EXPECT_THAT(Read("a.json", "plain").status().message(), HasSubstr("holds no JSON"));
  EXPECT_THAT(Read("a.json", "[{\"text\":\"x\"}\n,\n{\"text\":\"y\"").status().message(),
              HasSubstr("_a.json:3: not valid JSON"));
  EXPECT_THAT(Read("a.json", "[{\"text\":\"x\"}\n,3]").status().message(),
              HasSubstr("_a.json:2: it is not a JSON object"));
  EXPECT_THAT(Read("a.json", "[{\"text\":\"x\"}] x").status().message(),
              HasSubstr("something follows the array"));
  EXPECT_THAT(Read("a.txt", std::string("\x1f\x8b\x08\0\0", 5)).status().message(),
              HasSubstr("it is a gzip file"));
  EXPECT_THAT(Read("a.txt", std::string("\xff\xfeh\0i\0", 6)).status().message(),
              HasSubstr("it is text in UTF-16"));
}

TEST(Documents, ASampleIsTheBeginning) {
  const std::string good = "{\"text\":\"abcdefgh\"}\n";
  EXPECT_THAT(*Read("a.jsonl", good + good + "{broken\n", {.sample_bytes = 45}),
              ElementsAre("abcdefgh", "abcdefgh"));
  EXPECT_THAT(*Read("a.jsonl", good + good, {.sample_bytes = 5}), ElementsAre());
  EXPECT_THAT(*Read("a.json", "[" + good + "," + good + "]", {.sample_bytes = 30}),
              ElementsAre("abcdefgh"));
  EXPECT_FALSE(Read("a.jsonl", "{broken\n" + good, {.sample_bytes = 10}).ok());
}

TEST(Documents, LabelsAreNumbersBooleansOrNames) {
  const std::string path = ::testing::TempDir() + "documents_labels.jsonl";
  std::string content;
  for (const char* label : {"3", "2.0", "true", "false", "1e1", "\"10\"", "-1", "0.5", "null"}) {
    content += "{\"text\":\"a\",\"label\":" + std::string(label) + "}\n";
  }
  ASSERT_TRUE(WriteFileAtomic(Env::Posix(), path, content).ok());
  Result<DocumentFile> file = DocumentFile::Open(Env::Posix(), path, {.label_field = "label"});
  ASSERT_TRUE(file.ok());
  std::vector<std::string> labels;
  DocumentContent read;
  for (size_t i = 0; i < 6; ++i) {
    ASSERT_TRUE(file->Read(i, read).ok()) << i;
    labels.push_back(read.label);
    EXPECT_EQ(read.label_is_number, i < 5);
  }
  EXPECT_THAT(labels, ElementsAre("3", "2", "1", "0", "10", "10"));
  for (size_t i = 6; i < 9; ++i) {
    EXPECT_THAT(file->Read(i, read).message(), HasSubstr("whole number from 0")) << i;
  }
  file->Remove({0, 1, 1, 1, 1, 1, 1, 1, 0});
  EXPECT_EQ(file->size(), 2u);
  EXPECT_THAT(file->Read(1, read).message(), HasSubstr("labels.jsonl:9: "));
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
