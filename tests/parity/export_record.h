#pragma once

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/env.h"
#include "common/json.h"

// What check_exports.py has found equal in transformers and peft (testdata/exports_checked.json).

namespace weft::engine {

/// Some of the logits of each of the rows of inputs of a model.
inline Json SampledLogits(const Json& rows) {
  Json sampled = Json::array();
  for (const Json& row : rows) {
    const Json& logits = row.at("logits");
    for (size_t i = 0; i < logits.size(); i += logits.size() / 16 + 1) sampled.push_back(logits[i]);
  }
  return sampled;
}

/// The record holds what transformers and peft were given and made of it, so what is exported or
/// computed in another way has to be compared again. Logits may differ by `tolerance`.
inline void ExpectAsRecorded(const std::string& name, Json made, float tolerance) {
  constexpr const char* kPath = WEFT_SOURCE_DIR "/tests/parity/testdata/exports_checked.json";
  const std::string hint =
      "run tests/parity/check_exports.py and commit its record, testdata/exports_checked.json";
  const Result<std::string> text = ReadFile(Env::Posix(), kPath);
  ASSERT_TRUE(text.ok()) << hint;
  const Result<Json> records = ParseJson(*text);
  ASSERT_TRUE(records.ok()) << records.status().message();
  ASSERT_TRUE(records->contains(name)) << hint;
  Json expected = records->at(name);
  const auto logits = made.at("logits").get<std::vector<float>>();
  EXPECT_THAT(logits, ::testing::Pointwise(::testing::FloatNear(tolerance),
                                           expected.value("logits", std::vector<float>())))
      << hint;
  for (const char* key : {"transformers", "peft", "logits"}) {
    expected.erase(key);
    made.erase(key);
  }
  EXPECT_EQ(Json::diff(expected, made), Json::array()) << hint;
}

}  // namespace weft::engine
