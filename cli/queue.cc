#include <iostream>

#include "cli/command.h"
#include "proto/convert.h"

namespace weft::cli {
namespace {

/// "3 of 8", with the limit where there is one: "3 of 8, at most 16".
std::string AmountText(int64_t used, int64_t quota, bool limited, int64_t limit) {
  std::string text = std::to_string(used) + " of " + std::to_string(quota);
  if (limited) text += ", at most " + std::to_string(limit);
  return text;
}

ExitCode List(const Session& session) {
  auto queues = session.Connect().ListQueues();
  if (!queues.ok()) return Fail(session, queues.status());
  const std::vector<std::string> header = {"QUEUE", "PARENT",  "WEIGHT",  "GPUS",
                                           "CORES", "RUNNING", "WAITING", "OF FAIR SHARE"};
  Listing listing{"Queue", {}, {}, Table(header), Table(header), false};
  for (const v1::Queue& queue : *queues) {
    const std::vector<std::string> row = {queue.name(),
                                          queue.parent().empty() ? "-" : queue.parent(),
                                          FixedText(queue.weight(), 1),
                                          AmountText(queue.used_gpus(), queue.quota_gpus(),
                                                     queue.has_limit_gpus(), queue.limit_gpus()),
                                          AmountText(queue.used_cores(), queue.quota_cores(),
                                                     queue.has_limit_cores(), queue.limit_cores()),
                                          std::to_string(queue.running_jobs()),
                                          std::to_string(queue.waiting_jobs()),
                                          FixedText(queue.fair_share_ratio(), 2)};
    listing.items.push_back(ProtoToJson(queue));
    listing.names.push_back("queue/" + queue.name());
    listing.table.Add(row);
    listing.wide.Add(row);
  }
  Print(listing, session.output, std::cout);
  return ExitCode::kOk;
}

}  // namespace

void AddQueueCommands(CLI::App& app, Session& session) {
  CLI::App* queue = app.add_subcommand("queue", "See the queues");
  queue->require_subcommand(1);
  AddCommand(*queue, session, "list", "List queues with what their jobs hold and wait for",
             [&session] { return List(session); });
}

}  // namespace weft::cli
