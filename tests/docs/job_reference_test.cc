// docs/job_reference.md is written from the specs. WEFT_UPDATE_DOCS=1 rewrites it.

#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include <gtest/gtest.h>

#include "common/env.h"
#include "common/spec/job_spec.h"
#include "common/spec/spec_json.h"

namespace weft {
namespace {

std::string Escaped(std::string text) {
  for (size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2)
    text.insert(at, "\\");
  return text;
}

/// Finds what each field that is a whole model says, except `model`, whose rows describe them all.
template <SpecStruct T>
void FindNestedModels(const std::string& prefix, std::map<std::string, std::string>& found) {
  const T fields{};
  T::Fields(fields, [&]<class M>(const Field& field, const M&) {
    const std::string path = prefix + std::string(field.name);
    if constexpr (std::is_same_v<M, ModelSpec>) {
      if (path != "model") found[path] = field.doc;
    } else if constexpr (SpecStruct<M>) {
      FindNestedModels<M>(path + ".", found);
    }
  });
}

/// The row of the nested model that a field is part of, once; none: it is part of none.
std::optional<std::string> RowOfNestedModel(const std::string& path,
                                            std::map<std::string, std::string>& models) {
  for (auto& [model, doc] : models) {
    if (!path.starts_with(model + ".")) continue;
    const std::string said = std::exchange(doc, "");
    return said.empty() ? "" : "| `" + model + "` | as `model` | | | " + Escaped(said) + " |\n";
  }
  return std::nullopt;
}

std::string JobReference() {
  std::map<std::string, std::string> nested_models;
  FindNestedModels<JobSpec>("", nested_models);
  std::string text =
      "# Job reference\n\n"
      "Every field of a job file (YAML or JSON). Unknown fields, wrong types and values out of "
      "range are refused with file and line. Written from `common/spec/job_spec.h`; to rewrite it "
      "after a change there: `WEFT_UPDATE_DOCS=1 build/release/bin/weft_docs_test`.\n";
  std::string section = "(none)";
  for (const FieldReference& row : DescribeFields<JobSpec>()) {
    const size_t dot = row.path.find('.');
    const std::string own = dot == std::string::npos ? "" : row.path.substr(0, dot);
    if (own != section) {
      section = own;
      text += "\n## " + (section.empty() ? std::string("Top level") : "`" + section + "`") +
              "\n\n| field | type | default | legal | meaning |\n|---|---|---|---|---|\n";
    }
    if (const auto model = RowOfNestedModel(row.path, nested_models)) {
      text += *model;
      continue;
    }
    std::string type = row.type;
    if (!row.unit.empty()) type += ", " + row.unit;
    const std::string value =
        row.default_value == "required" ? "required" : "`" + row.default_value + "`";
    text += "| `" + row.path + "` | " + type + " | " + value + " | " + Escaped(row.legal) + " | " +
            Escaped(row.doc) + " |\n";
  }
  return text;
}

TEST(JobReference, PageIsWhatTheSpecsSay) {
  const std::string path = std::string(WEFT_SOURCE_DIR) + "/docs/job_reference.md";
  const std::string expected = JobReference();
  if (std::getenv("WEFT_UPDATE_DOCS") != nullptr) {
    ASSERT_TRUE(WriteFileAtomic(Env::Posix(), path, expected).ok());
  }
  Result<std::string> page = ReadFile(Env::Posix(), path);
  ASSERT_TRUE(page.ok()) << page.status().ToString();
  EXPECT_EQ(*page, expected) << "stale; run: WEFT_UPDATE_DOCS=1 build/release/bin/weft_docs_test";
}

}  // namespace
}  // namespace weft
