#include <iostream>
#include <memory>

#include "cli/command.h"
#include "common/secret.h"
#include "common/sha256.h"
#include "common/yaml.h"
#include "proto/convert.h"

namespace weft::cli {
namespace {

constexpr size_t kTokenBytes = 32;

struct TokenOptions {
  std::string name;
  std::string role = "user";
  std::string file;
};

/// Writes a token and prints what the coordinator's file of people needs of it.
ExitCode MakeToken(const Session& session, const TokenOptions& options) {
  const std::string name = BareName("person", options.name);
  const std::string token = "weft_" + HexOf(RandomBytes(kTokenBytes));
  if (Status status = WriteSecretFile(options.file, token + "\n"); !status.ok()) {
    return Fail(session, status);
  }
  const Json entry = {{"name", name}, {"role", options.role}, {"token_sha256", Sha256Hex(token)}};
  std::cout << ToYaml(Json::array({entry}));
  if (!session.quiet) {
    std::cerr << "The token is in " << options.file << ", which is for " << name
              << " alone. Add the lines above to `people` in the file of --auth.\n";
  }
  return ExitCode::kOk;
}

ExitCode ShowWho(const Session& session) {
  auto who = session.Connect().WhoAmI();
  if (!who.ok()) return Fail(session, who.status());
  std::string queues;
  for (const std::string& queue : who->queues()) queues += (queues.empty() ? "" : ",") + queue;
  const std::vector<std::string> row = {who->name().empty() ? "-" : who->name(), who->role(),
                                        queues.empty() ? "all" : queues};
  Listing listing{"Person",
                  {ProtoToJson(*who)},
                  {"person/" + who->name()},
                  Table({"NAME", "ROLE", "QUEUES"}),
                  Table({"NAME", "ROLE", "QUEUES"}),
                  true};
  listing.table.Add(row);
  listing.wide.Add(row);
  Print(listing, session.output, std::cout);
  return ExitCode::kOk;
}

}  // namespace

void AddAuthCommands(CLI::App& app, Session& session) {
  CLI::App* auth = app.add_subcommand("auth", "Who may do what");
  auth->require_subcommand(1);
  auto options = std::make_shared<TokenOptions>();
  CLI::App* token =
      AddCommand(*auth, session, "token", "Make a token for a person; prints its entry for --auth",
                 [&session, options] { return MakeToken(session, *options); });
  token->add_option("name", options->name, "Name of the person or program")->required();
  token->add_option("--role", options->role, "viewer, user, operator or admin")
      ->check(CLI::IsMember({"viewer", "user", "operator", "admin"}))
      ->capture_default_str();
  token->add_option("--file", options->file, "Where the token goes, with mode 0600")->required();
  AddCommand(*auth, session, "whoami", "Whom the coordinator takes you for",
             [&session] { return ShowWho(session); });
}

}  // namespace weft::cli
