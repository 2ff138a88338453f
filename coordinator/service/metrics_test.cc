#include "coordinator/service/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <set>

#include "common/env.h"
#include "common/tls/certificate_authority.h"

namespace weft::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAreArray;

TEST(Metrics, ThePageListsExactlyWhatIsServedWithItsLabels) {
  Metrics metrics;
  metrics.JobSubmitted("default");
  metrics.JobMoved(JobState::kQueued, JobState::kStarting);
  metrics.JobFinished("default", JobState::kFailed, Reason::kUserError);
  metrics.Planned(true, 0.1, 5);
  metrics.Fenced("heartbeat");
  metrics.Recovered(Reason::kRankDied, 2);
  metrics.LinkMeasured(true);
  metrics.SetLink("a", "b", 1e9, 1e-4);
  metrics.JobTime({.useful_seconds = 1});
  metrics.AttemptFailed(Reason::kRankDied);
  metrics.MachineChecked("passed");
  metrics.SetSuspicion("a", 1);
  metrics.SetQuarantined("a", true);
  metrics.SetStraggler("job-1", "a", 1.3);
  metrics.CheckpointReported(true);
  metrics.RpcHandled("Coordinator", "GetJob", "OK");
  metrics.AuthFailed("GetJob", "UNAUTHENTICATED");
  metrics.RateLimited("GetJob");
  metrics.Audited("SubmitJob", "OK");
  const std::string folder = ::testing::TempDir() + "weft-metrics";
  ASSERT_TRUE(tls::CertificateAuthority(folder).Init().ok());
  metrics.WatchCertificate(folder + "/ca.pem");
  EXPECT_THAT(metrics.Text(), HasSubstr("weft_tls_certificate_not_after_timestamp_seconds{role="
                                        "\"coordinator\"} "));
  EXPECT_TRUE(Env::Posix().RemoveTree(folder).ok());
  std::set<std::string> served;
  for (const auto& family : metrics.registry()->Collect()) {
    ASSERT_FALSE(family.metric.empty()) << family.name;
    std::string row = family.name + " |";
    for (const auto& label : family.metric.front().label) row += " " + label.name;
    served.insert(row);
  }
  auto page = ReadFile(Env::Posix(), std::string(WEFT_SOURCE_DIR) + "/docs/metrics.md");
  ASSERT_TRUE(page.ok());
  std::string section = page->substr(page->find("## Coordinator"));
  if (size_t end = section.find("\n## ", 1); end != std::string::npos) section.resize(end);
  std::set<std::string> documented;
  std::regex pattern("\\| `(weft_[a-z_]+)` \\| [a-z]+ \\|([^|]*)\\|");
  for (std::sregex_iterator it(section.begin(), section.end(), pattern), end; it != end; ++it) {
    std::string row = (*it)[1].str() + " |";
    std::set<std::string> labels;
    std::string names = (*it)[2];
    std::regex word("[a-z_]+");
    for (std::sregex_iterator w(names.begin(), names.end(), word); w != end; ++w) {
      labels.insert(w->str());
    }
    for (const auto& label : labels) row += " " + label;
    documented.insert(row);
  }
  EXPECT_THAT(served, UnorderedElementsAreArray(documented));
}

}  // namespace
}  // namespace weft::coordinator
