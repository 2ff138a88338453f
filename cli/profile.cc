#include <iostream>
#include <memory>

#include "cli/command.h"
#include "cli/profile_table.h"
#include "cli/terminal_text.h"
#include "common/spec/spec_json.h"

namespace weft::cli {
namespace {

struct ProfileOptions {
  std::string id;
  int steps = 5;
  double wait_seconds = 600;
};

ExitCode Profile(const Session& session, const ProfileOptions& options) {
  // A missing coordinator is known within --timeout, not only after the longer wait.
  auto job = session.Connect().GetJob(options.id);
  if (!job.ok()) return Fail(session, job.status());
  Client client(session.Access(), options.wait_seconds);
  auto response = client.ProfileJob(job->id(), options.steps);
  if (!response.ok()) return Fail(session, response.status());
  Result<Json> json = ParseJson(response->report_json());
  if (!json.ok()) return Fail(session, json.status().WithContext("the profile"));
  auto report = FromJson<trainer::ProfileReport>(*json);
  if (!report.ok()) return Fail(session, report.status().WithContext("the profile"));
  PrintProfile(*report, session.output, std::cout);
  return ExitCode::kOk;
}

std::string RateText(const std::optional<double>& rate) {
  return rate ? FixedText(*rate / 1e9, 1) : "-";
}

std::string MebibytesText(double bytes) {
  return FixedText(bytes / (1 << 20), 3);
}

/// Who sent what to whom, and what is where.
void PrintUse(const trainer::ProfileReport& report, std::ostream& out) {
  if (!report.collectives.empty()) {
    Table table({"AXIS", "COLLECTIVE", "CALLS", "SENT MIB", "MS/STEP", "EXPOSED", "HIDDEN"});
    for (const CollectiveUse& use : report.collectives) {
      table.Add({use.axis, use.collective, FixedText(use.calls, 1), MebibytesText(use.sent_bytes),
                 FixedText(use.seconds * 1e3, 3), FixedText(use.exposed_seconds * 1e3, 3),
                 FixedText(use.HiddenSeconds() * 1e3, 3)});
    }
    out << "\n";
    table.Print(out);
  }
  const TierUse& tiers = report.tiers;
  out << "\nmemory: device " << HumanBytes(static_cast<double>(tiers.device_bytes));
  if (tiers.host_bytes > 0) out << ", host " << HumanBytes(static_cast<double>(tiers.host_bytes));
  if (tiers.file_bytes > 0) out << ", file " << HumanBytes(static_cast<double>(tiers.file_bytes));
  if (tiers.host_bytes > 0) {
    out << "; waits for them " << FixedText(tiers.stall_seconds * 1e3, 3) << " ms/step";
  }
  out << "\n";
}

}  // namespace

void PrintProfile(const trainer::ProfileReport& report, OutputFormat format, std::ostream& out) {
  Listing listing{"Profile",
                  {ToJson(report)},
                  {"profile/" + report.trace_path},
                  Table({"OPERATION", "CALLS", "MS/STEP", "SHARE", "GFLOP/S"}),
                  Table({"KIND", "OPERATION", "CALLS", "MS/STEP", "SHARE", "GFLOP/S", "GB/S"}),
                  true};
  std::string kind;
  for (const trainer::ProfileOperation& row : report.operations) {
    const std::string calls = FixedText(row.calls_per_step, 1);
    const std::string time = FixedText(row.seconds_per_step * 1e3, 3);
    const std::string share = FixedText(row.share * 100, 1) + "%";
    if (row.kind != kind) listing.table.Add({"[" + row.kind + "s]", "", "", "", ""});
    kind = row.kind;
    listing.table.Add({row.name, calls, time, share, RateText(row.flops_per_second)});
    listing.wide.Add({row.kind, row.name, calls, time, share, RateText(row.flops_per_second),
                      RateText(row.bytes_per_second)});
  }
  Print(listing, format, out);
  if (format != OutputFormat::kTable && format != OutputFormat::kWide) return;
  PrintUse(report, out);
  out << report.steps << " steps from step " << report.first_step << " on " << report.ranks
      << (report.ranks == 1 ? " rank, " : " ranks (the table is of rank 0), ")
      << HumanDuration(report.seconds_per_step)
      << " per step\ntrace: " << ForTerminal(report.trace_path)
      << "  (open it in https://ui.perfetto.dev or chrome://tracing)\n";
  if (report.dropped_events > 0) {
    out << report.dropped_events << " events are left out of the trace; record fewer steps\n";
  }
}

void AddProfileCommand(CLI::App& app, Session& session) {
  auto options = std::make_shared<ProfileOptions>();
  CLI::App* command =
      AddCommand(app, session, "profile", "Record some steps of a running job: where its time goes",
                 [&session, options] { return Profile(session, *options); });
  command->add_option("job", options->id, "Job id or a prefix of it")->required();
  command->add_option("--steps", options->steps, "Optimizer steps to record")
      ->check(CLI::Range(int64_t{1}, trainer::kMaxProfileSteps))
      ->capture_default_str();
  command->add_option("--wait", options->wait_seconds, "Give up after this many seconds")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
}

}  // namespace weft::cli
