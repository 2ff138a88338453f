// Every registered technique has an example, which names its page.
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "common/env.h"
#include "common/model/technique_cost.h"
#include "common/spec/job_spec.h"
#include "common/spec/phases.h"
#include "common/spec/spec_json.h"
#include "common/yaml.h"

namespace weft::testing {
namespace {

const std::string kDocs = WEFT_SOURCE_DIR "/docs/";
constexpr std::string_view kPages = "docs/techniques/";

/// A job file of docs/examples, and the pages of techniques that it names.
struct Example {
  std::string path;
  JobSpec job;
  std::vector<std::string> pages;  ///< "peft"
};

/// The words before ".md" behind each "docs/techniques/".
std::vector<std::string> PagesIn(std::string_view text) {
  std::vector<std::string> pages;
  for (size_t at = text.find(kPages); at != std::string_view::npos; at = text.find(kPages, at)) {
    at += kPages.size();
    const size_t end = text.find(".md", at);
    if (end != std::string_view::npos) pages.emplace_back(text.substr(at, end - at));
  }
  return pages;
}

const std::vector<Example>& Examples() {
  static const auto* const all = [] {
    auto* const examples = new std::vector<Example>;
    for (const std::string folder : {"examples", "examples/cluster"}) {
      for (const auto& entry : std::filesystem::directory_iterator(kDocs + folder)) {
        const std::string path = entry.path().string();
        if (!path.ends_with(".yaml")) continue;
        const Result<std::string> text = ReadFile(Env::Posix(), path);
        EXPECT_TRUE(text.ok()) << text.status().message();
        if (!text.ok()) continue;
        const Result<Document> document = ParseYaml(*text, path);
        EXPECT_TRUE(document.ok()) << document.status().message();
        if (!document.ok()) continue;
        const Result<JobSpec> job = FromJson<JobSpec>(*document);
        EXPECT_TRUE(job.ok()) << job.status().message();
        if (job.ok()) examples->push_back({path, *job, PagesIn(*text)});
      }
    }
    return examples;
  }();
  return *all;
}

bool AsksFor(const JobSpec& job, const TechniqueCost& technique) {
  for (size_t phase = 0; phase < PhaseCount(job); ++phase) {
    if (technique.Asked(JobOfPhase(job, phase))) return true;
  }
  return false;
}

/// In lower case; "" where there is none.
std::string TextOf(const std::string& page) {
  Result<std::string> text = ReadFile(Env::Posix(), kDocs + "techniques/" + page + ".md");
  if (!text.ok()) return "";
  for (char& c : *text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return *text;
}

/// The page that is called as the technique, or one with a section that is called as its feature.
bool IsPageOf(const std::string& page, const TechniqueCost& technique) {
  if (page == technique.name()) return true;
  std::string heading(technique.feature().name);
  for (char& c : heading) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return TextOf(page).find("\n## " + heading + "\n") != std::string::npos;
}

TEST(Pages, OfTechniquesAreNamedByAnExampleThatAsksForThem) {
  for (const TechniqueCost* technique : TechniqueCosts()) {
    const bool found =
        std::any_of(Examples().begin(), Examples().end(), [&](const Example& example) {
          return AsksFor(example.job, *technique) &&
                 std::any_of(example.pages.begin(), example.pages.end(),
                             [&](const std::string& page) { return IsPageOf(page, *technique); });
        });
    EXPECT_TRUE(found) << "no job of docs/examples asks for " << technique->name()
                       << " and names its page; hint: add one with \"# docs/techniques/"
                       << technique->name() << ".md\", or with a page that has the section \"## "
                       << technique->feature().name << "\"";
  }
}

TEST(Pages, ThatExamplesNameAreThere) {
  for (const Example& example : Examples()) {
    for (const std::string& page : example.pages) {
      EXPECT_NE(TextOf(page), "") << example.path << " names docs/techniques/" << page << ".md";
    }
  }
}

}  // namespace
}  // namespace weft::testing
