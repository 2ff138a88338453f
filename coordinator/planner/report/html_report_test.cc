#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/planner/report/explain.h"
#include "coordinator/planner/report/markup.h"
#include "coordinator/planner/report/svg_charts.h"
#include "coordinator/planner/report/testing.h"

namespace weft::planner {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

/// Elements of XML open and close in pairs; the names of all that were open at some time.
std::vector<std::string> ElementsOf(const std::string& text) {
  std::vector<std::string> open, all;
  for (size_t at = text.find('<'); at != std::string::npos; at = text.find('<', at + 1)) {
    if (text.compare(at, 2, "<!") == 0) continue;
    const size_t end = text.find('>', at);
    if (end == std::string::npos) {
      ADD_FAILURE() << "a tag without an end";
      return all;
    }
    const bool closes = text[at + 1] == '/';
    const size_t begin = at + (closes ? 2 : 1);
    const std::string name = text.substr(begin, text.find_first_of(" />", begin) - begin);
    if (closes) {
      if (open.empty() || open.back() != name) {
        ADD_FAILURE() << "</" << name << "> closes another element";
        return all;
      }
      open.pop_back();
    } else {
      all.push_back(name);
      if (text[end - 1] != '/') open.push_back(name);
    }
  }
  EXPECT_TRUE(open.empty());
  return all;
}

PlanExplanation Explained(const JobSpec& job, const ClusterProfile& cluster) {
  PlanQuery query;
  query.frontier = true;
  query.costs.currency = "<b>&EUR\"'";
  query.costs.machines = {{.workers = "*", .price_per_hour = 2, .watts = 400}};
  Result<PlanExplanation> explanation = ExplainPlan(job, cluster, query);
  EXPECT_TRUE(explanation.ok()) << explanation.status().message();
  return explanation.ok() ? *std::move(explanation) : PlanExplanation();
}

TEST(HtmlReport, TextOfUsersStaysText) {
  const std::string script = "</title><script>alert('x')</script><img src=x onerror=\"y\">";
  const JobSpec job = SmallGpt2();
  ClusterProfile cluster{{CpuMachine(script, 2, 16 * kGiB), CpuMachine("b'\"><svg", 4, 16 * kGiB)}};
  PlanExplanation explanation = Explained(job, cluster);
  // The name of a job is checked before, but the page does not count on it.
  explanation.job = script + "\x01\xff&amp;";
  const std::string page = HtmlReport(explanation);
  for (const std::string& element : ElementsOf(page)) {
    EXPECT_NE(element, "script");
    EXPECT_NE(element, "img");
    EXPECT_NE(element, "b");
  }
  EXPECT_THAT(page, HasSubstr("&lt;/title&gt;&lt;script&gt;alert(&#39;x&#39;)"));
  EXPECT_THAT(page, HasSubstr("&amp;amp;"));
  EXPECT_THAT(page, HasSubstr("&lt;b&gt;&amp;EUR&quot;&#39;"));
  EXPECT_THAT(page, Not(HasSubstr("\x01")));
  EXPECT_THAT(page, Not(HasSubstr("\xff")));
}

TEST(HtmlReport, NeedsNothingElse) {
  const std::string page = HtmlReport(Explained(SmallGpt2(), {{GpuMachine("g", 4, 80 * kGiB)}}));
  std::string rest = page;
  const std::string name = "http://www.w3.org/1999/xhtml";  // a name, which nobody loads
  rest.erase(rest.find(name), name.size());
  for (const char* reference : {"http:", "https:", "//", "src=", "href=", "url(", "@import",
                                "<script", "<link", "<iframe", "onload"}) {
    EXPECT_THAT(rest, Not(HasSubstr(reference)));
  }
  EXPECT_THAT(page, HasSubstr("prefers-color-scheme: dark"));
  EXPECT_THAT(page, HasSubstr("@media print"));
}

TEST(HtmlReport, HasAChartOfEachPart) {
  const std::string page = HtmlReport(
      Explained(SmallGpt2(), {{CpuMachine("a", 4, 16 * kGiB), CpuMachine("b", 4, 16 * kGiB)}}));
  for (const char* title :
       {"Time of a step by part", "Memory of a rank by part",
        "When each rank makes the passes of a step", "Gain in throughput from 10 % more of each",
        "Throughput against the number of devices", "Price of the run against its time"}) {
    EXPECT_THAT(page, HasSubstr(title));
  }
}

TEST(Markup, ClosesWhatItOpens) {
  Markup page;
  page.Open("p", {{"class", "a\"b"}}).Text("1 < 2").Add("line", {{"x", "1"}}).Close();
  EXPECT_EQ(page.Take(), "<p class=\"a&quot;b\">1 &lt; 2<line x=\"1\"/>\n</p>\n");
}

TEST(RoundTicks, AreRoundAndReachTheMost) {
  EXPECT_THAT(RoundTicks(10), ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(RoundTicks(3 * 1024.0, 1024, 3), ElementsAre(0, 1024, 2048, 3072));
  EXPECT_THAT(RoundTicks(0.9, 1, 2), ElementsAre(0, 0.5, 1));
  EXPECT_GE(RoundTicks(0).size(), 2U);
}

}  // namespace
}  // namespace weft::planner
