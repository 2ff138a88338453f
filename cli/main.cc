#include <csignal>
#include <cstdlib>
#include <iostream>
#include <utility>

#include "cli/command.h"
#include "cli/command_words.h"
#include "cli/completion.h"
#include "cli/local.h"
#include "common/log.h"
#include "common/spec/spec_json.h"
#include "common/version.h"

namespace weft::cli {
namespace {

constexpr char kExitCodes[] = R"(exit codes
  0    done; with --follow, wait or logs -f: the job SUCCEEDED
  1    the operation failed
  2    wrong usage or invalid job file
  3    not found
  4    not permitted
  5    conflict: already exists, or the state does not allow it
  6    coordinator unavailable; trying again may help
  7    does not fit: memory, disk, quota
  8    cancelled
  10   the job FAILED
  11   the job was CANCELLED
  12   wait timed out
  130  interrupted
)";

void AddHelpTopic(CLI::App& app, Session& session) {
  CLI::App* help = app.add_subcommand("help", "More help");
  help->require_subcommand(1);
  AddCommand(*help, session, "exit-codes", "What weft returns to the shell", [] {
    std::cout << kExitCodes;
    return ExitCode::kOk;
  });
}

/// Where no coordinator is named: what `weft up` started, with its certificates unless others are.
void SetDefaults(std::string& server, tls::Files& tls) {
  if (!server.empty()) return;
  ServerAccess local = LocalAccess();
  server = local.address.empty() ? "127.0.0.1:7070" : local.address;
  if (tls.empty()) tls = std::move(local.tls);
}

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// Ids of the newest jobs; none when no coordinator answers at once, because the user waits.
std::vector<std::string> JobsForCompletion() {
  constexpr double kPatienceSeconds = 0.5;
  constexpr int kMostJobs = 100;
  const std::string insecure = Variable("WEFT_INSECURE");
  ServerAccess access{
      Variable("WEFT_SERVER"),
      {Variable("WEFT_TLS_CERT"), Variable("WEFT_TLS_KEY"), Variable("WEFT_TLS_CA")},
      Variable("WEFT_TOKEN_FILE"),
      insecure == "1" || insecure == "true"};
  SetDefaults(access.address, access.tls);
  Client client(access, kPatienceSeconds);
  std::vector<std::string> ids;
  if (auto jobs = client.ListJobs(v1::ListJobsRequest(), kMostJobs); jobs.ok()) {
    for (const v1::Job& job : *jobs) ids.push_back(job.id());
  }
  return ids;
}

/// `weft __complete -- WORD...`
int PrintCompletions(CLI::App& app, std::vector<std::string> words) {
  words.erase(words.begin());
  if (!words.empty() && words[0] == "--") words.erase(words.begin());
  for (const std::string& word : Completions(app, std::move(words), &JobsForCompletion)) {
    std::cout << word << '\n';
  }
  return 0;
}

/// Why a command line was not understood, when that is a command or an option that does not exist.
Status UnknownWord(CLI::App& app, const std::vector<std::string>& words) {
  const CommandWords read = ReadWords(app, words);
  if (read.of_unknown == nullptr) return OkStatus();
  const bool is_command = !read.unknown_command.empty();
  const std::string& word = is_command ? read.unknown_command : read.unknown_option;
  const std::vector<std::string> known =
      is_command ? CommandNames(*read.of_unknown) : OptionNames(*read.of_unknown);
  const std::string path = PathOf(*read.of_unknown);
  const std::string nearest = NearestName(word, known);
  return InvalidError(
      "`" + path + "` has no " + (is_command ? "command" : "option") + " '" + word + "'; hint: " +
      (nearest.empty() ? "see `" + path + " --help`" : "did you mean '" + nearest + "'?"));
}

int Run(int argc, char** argv) {
  CLI::App app("Weft trains transformers on the machines you have.", "weft");
  app.set_version_flag("--version", std::string("weft ") + kVersion);
  app.require_subcommand(1);
  app.fallthrough();

  Session session;
  std::string format = "table";
  std::vector<std::string> formats;
  for (const auto& [name, value] : OutputFormats()) formats.push_back(name);
  app.add_option("--server", session.server,
                 "Coordinator, HOST:PORT (default: what `weft up` started, else 127.0.0.1:7070)")
      ->envname("WEFT_SERVER");
  app.add_option("--tls-ca", session.tls.authorities,
                 "TLS: file with the CA that the coordinator has its certificate from")
      ->envname("WEFT_TLS_CA");
  app.add_option("--tls-cert", session.tls.certificate,
                 "File with your certificate, if you show one (`weft certs issue DIR client NAME`)")
      ->envname("WEFT_TLS_CERT");
  app.add_option("--tls-key", session.tls.key, "File with its private key; default: --tls-cert")
      ->envname("WEFT_TLS_KEY");
  app.add_option("--token-file", session.token_file,
                 "File with your token, of mode 0600 (`weft auth token NAME`)")
      ->envname("WEFT_TOKEN_FILE");
  app.add_flag("--insecure", session.insecure,
               "Talk without TLS to a coordinator on another machine, too")
      ->envname("WEFT_INSECURE");
  app.add_option("--timeout", session.timeout_seconds, "Seconds a call may take")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("-o,--output", format, "table, wide, json, yaml or name; html: of `weft plan`")
      ->check(CLI::IsMember(formats))
      ->capture_default_str();
  app.add_flag("-q,--quiet", session.quiet, "Only what was asked for");

  AddLocalCommands(app, session);
  AddJobCommands(app, session);
  AddQueueCommands(app, session);
  AddPlanCommand(app, session);
  AddProfileCommand(app, session);
  AddCheckpointCommands(app, session);
  AddWorkerCommands(app, session);
  AddTrainCommand(app, session);
  AddModelCommands(app, session);
  AddTokenizerCommands(app, session);
  AddCertsCommands(app, session);
  AddAuthCommands(app, session);
  AddAuditCommands(app, session);
  AddVersionCommand(app, session);
  AddCompletionCommand(app, session);
  AddHelpTopic(app, session);

  const std::vector<std::string> words(argv + 1, argv + argc);
  if (!words.empty() && words[0] == kCompleteWord) return PrintCompletions(app, words);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) {
      if (const Status unknown = UnknownWord(app, words); !unknown.ok()) {
        return static_cast<int>(Fail(session, unknown));
      }
    }
    return app.exit(error) == 0 ? 0 : static_cast<int>(ExitCode::kUsage);
  }
  for (const auto& [name, value] : OutputFormats()) {
    if (name == format) session.output = value;
  }
  if (session.output == OutputFormat::kHtml && !app.got_subcommand("plan")) {
    return static_cast<int>(
        Fail(session, InvalidError("-o html is a form of `weft plan`, and of nothing else")));
  }
  SetDefaults(session.server, session.tls);
  return static_cast<int>(session.action());
}

}  // namespace

}  // namespace weft::cli

int main(int argc, char** argv) {
  // A person at the terminal has the follow view.
  weft::InitLog("weft", weft::LogLevel::kWarning);
  return weft::cli::Run(argc, argv);
}
