#pragma once

#include <functional>
#include <string>

#include <CLI/CLI.hpp>

#include "cli/client.h"
#include "cli/exit_code.h"
#include "cli/output.h"

namespace weft::cli {

/// Options every command shares, and what the chosen command will do. Commands register themselves
/// on the CLI11 tree and set `action`; main runs it after parsing.
struct Session {
  std::string server;           ///< --server, WEFT_SERVER, or what `weft up` recorded.
  tls::Files tls;               ///< --tls-cert, --tls-key, --tls-ca.
  std::string token_file;       ///< --token-file
  bool insecure = false;        ///< --insecure
  double timeout_seconds = 10;  ///< Bound of each call.
  OutputFormat output = OutputFormat::kTable;
  bool quiet = false;
  std::function<ExitCode()> action;

  /// The coordinator, and who the user is to it.
  ServerAccess Access() const { return {server, tls, token_file, insecure}; }
  /// Connects (lazily) to the coordinator.
  Client Connect() const;
};

/// Prints "error: ..." (and its hint on a line of its own) to stderr, or with -o json an object
/// with code, message and hint to stdout; gives the exit code.
ExitCode Fail(const Session& session, const Status& status);

/// Folder of `weft up`: WEFT_HOME, else $XDG_DATA_HOME/weft, else ~/.local/share/weft.
std::string HomeDir();

void AddJobCommands(CLI::App& app, Session& session);
/// `submit`, below `weft` or `weft job`.
void AddSubmitCommand(CLI::App& parent, Session& session);
/// Adds `weft job`, and the top-level commands of every day that move jobs in queues.
void AddJobQueueCommands(CLI::App& app, CLI::App& job, Session& session);
void AddQueueCommands(CLI::App& app, Session& session);
void AddPlanCommand(CLI::App& app, Session& session);
void AddProfileCommand(CLI::App& app, Session& session);
void AddCheckpointCommands(CLI::App& app, Session& session);
void AddWorkerCommands(CLI::App& app, Session& session);
void AddLocalCommands(CLI::App& app, Session& session);
void AddTrainCommand(CLI::App& app, Session& session);
void AddModelCommands(CLI::App& app, Session& session);
void AddTokenizerCommands(CLI::App& app, Session& session);
void AddCertsCommands(CLI::App& app, Session& session);
void AddAuthCommands(CLI::App& app, Session& session);
void AddAuditCommands(CLI::App& app, Session& session);
void AddVersionCommand(CLI::App& app, Session& session);
void AddCompletionCommand(CLI::App& app, Session& session);

/// Adds `name` below `parent`; `run` becomes the session's action when it is chosen.
CLI::App* AddCommand(CLI::App& parent, Session& session, const std::string& name,
                     const std::string& description, std::function<ExitCode()> run);

}  // namespace weft::cli
