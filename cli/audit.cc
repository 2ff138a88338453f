#include <iostream>
#include <memory>

#include "cli/command.h"
#include "common/clock.h"
#include "proto/convert.h"

namespace weft::cli {
namespace {

ExitCode List(const Session& session, const v1::ListAuditRecordsRequest& request) {
  auto response = session.Connect().ListAuditRecords(request);
  if (!response.ok()) return Fail(session, response.status());
  const std::vector<std::string> columns = {"SEQUENCE", "TIME",   "WHO",   "ROLE",
                                            "CALL",     "OBJECT", "RESULT"};
  std::vector<std::string> wide = columns;
  wide.insert(wide.end(), {"PEER", "HASH"});
  Listing listing{"AuditRecord", {}, {}, Table(columns), Table(wide), false};
  for (const v1::AuditRecord& record : response->records()) {
    listing.items.push_back(ProtoToJson(record));
    listing.names.push_back("audit/" + std::to_string(record.sequence()));
    std::vector<std::string> row = {std::to_string(record.sequence()),
                                    FormatTime(record.time()),
                                    record.who().empty() ? "-" : record.who(),
                                    record.role(),
                                    record.method(),
                                    record.object().empty() ? "-" : record.object(),
                                    record.result()};
    listing.table.Add(row);
    row.insert(row.end(), {record.peer(), record.hash()});
    listing.wide.Add(row);
  }
  Print(listing, session.output, std::cout);
  if (response->chain_holds()) return ExitCode::kOk;
  return Fail(session, CorruptError("the audit log was changed after it was written: records are "
                                    "missing or differ from their hashes; hint: compare it with a "
                                    "copy of the database"));
}

}  // namespace

void AddAuditCommands(CLI::App& app, Session& session) {
  CLI::App* audit = app.add_subcommand("audit", "Who did what");
  audit->require_subcommand(1);
  auto request = std::make_shared<v1::ListAuditRecordsRequest>();
  CLI::App* list =
      AddCommand(*audit, session, "list", "Changes and refusals, oldest first; checks their chain",
                 [&session, request] { return List(session, *request); });
  list->add_option_function<int64_t>(
      "--after", [request](int64_t after) { request->set_after_sequence(after); },
      "Records after this sequence number");
  list->add_option_function<std::string>(
      "--who", [request](const std::string& who) { request->set_who(who); },
      "Only of this person or worker");
  list->add_option_function<std::string>(
      "--object", [request](const std::string& object) { request->set_object(object); },
      "Only about this job or worker");
  list->add_option_function<int>(
          "--limit", [request](int limit) { request->set_page_size(limit); },
          "Records to show (default: 1000)")
      ->check(CLI::Range(1, 10'000));
}

}  // namespace weft::cli
