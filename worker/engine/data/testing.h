#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "worker/engine/data/dataset.h"

namespace weft::engine {

/// Path of the running test's folder; of this process alone, for tests run side by side.
inline std::string TestFolder() {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  return ::testing::TempDir() + "data_" + test->test_suite_name() + "_" + test->name();
}

/// The same, made empty.
inline std::string MakeTestFolder() {
  std::string folder = TestFolder();
  EXPECT_TRUE(Env::Posix().RemoveTree(folder).ok());
  EXPECT_TRUE(Env::Posix().CreateDirs(folder).ok());
  return folder;
}

/// A shard with these documents.
inline TokenSpan MakeSpan(const std::vector<std::vector<int32_t>>& documents,
                          uint64_t vocab_size = 1000) {
  const std::string path = MakeTestFolder() + "/test.tokens";
  Result<TokenShardWriter> writer =
      TokenShardWriter::Create(Env::Posix(), path, vocab_size, std::string(32, 'a'));
  EXPECT_TRUE(writer.ok());
  for (const std::vector<int32_t>& document : documents) {
    EXPECT_TRUE(writer->Append(document).ok());
    writer->EndDocument();
  }
  EXPECT_TRUE(writer->Finish().ok());
  Result<TokenShard> shard = TokenShard::Open(Env::Posix(), path);
  EXPECT_TRUE(shard.ok()) << shard.status().ToString();
  auto shared = std::make_shared<TokenShard>(*std::move(shard));
  const uint64_t size = shared->size();
  return {std::move(shared), nullptr, 0, size};
}

/// The same with a label for each document.
inline TokenSpan MakeLabelledSpan(const std::vector<std::vector<int32_t>>& documents,
                                  const std::vector<int32_t>& labels, uint64_t classes,
                                  uint64_t vocab_size = 1000) {
  // The mapping outlives the file, which the next shard replaces.
  std::shared_ptr<const TokenShard> shard = MakeSpan({labels}, classes).shard;
  TokenSpan span = MakeSpan(documents, vocab_size);
  span.labels = std::move(shard);
  return span;
}

}  // namespace weft::engine
