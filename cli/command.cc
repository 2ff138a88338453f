#include "cli/command.h"

#include <iostream>
#include <utility>

#include "cli/terminal_text.h"
#include "common/hint.h"
#include "common/json.h"

namespace weft::cli {

Client Session::Connect() const {
  return Client(Access(), timeout_seconds);
}

CLI::App* AddCommand(CLI::App& parent, Session& session, const std::string& name,
                     const std::string& description, std::function<ExitCode()> run) {
  CLI::App* command = parent.add_subcommand(name, description);
  command->callback([&session, run = std::move(run)] { session.action = run; });
  return command;
}

ExitCode Fail(const Session& session, const Status& status) {
  const auto [message, hint] = SplitHint(status.message());
  if (session.output == OutputFormat::kJson) {
    Json error = {{"kind", "Error"},
                  {"apiVersion", "weft/v1"},
                  {"code", StatusCodeName(status.code())},
                  {"message", message}};
    if (!hint.empty()) error["hint"] = hint;
    std::cout << error.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
  } else {
    std::cout.flush();
    std::cerr << "error: " << ForTerminal(message) << '\n';
    if (!hint.empty()) std::cerr << "hint: " << ForTerminal(hint) << '\n';
  }
  return ExitCodeOf(status);
}

}  // namespace weft::cli
