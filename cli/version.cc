#include <iostream>

#include "cli/command.h"
#include "cli/terminal_text.h"
#include "common/version.h"
#include "common/yaml.h"

namespace weft::cli {
namespace {

ExitCode Version(const Session& session, bool client_only) {
  Json json = {{"client", {{"version", kVersion}, {"api_level", kApiLevel}}}};
  Status skew;
  if (!client_only) {
    auto server = Client(session.Access(), 1).GetVersion();
    if (server.ok()) {
      json["server"] = {{"version", server->version()}, {"api_level", server->api_level()}};
      if (server->api_level() != kApiLevel) {
        skew = ConflictError("the coordinator speaks API level " +
                             std::to_string(server->api_level()) + ", this client " +
                             std::to_string(kApiLevel) + "; hint: install the same version");
      }
    }
  }
  if (session.output == OutputFormat::kJson) {
    std::cout << json.dump(2) << '\n';
  } else if (session.output == OutputFormat::kYaml) {
    std::cout << ToYaml(json);
  } else {
    std::cout << "weft " << kVersion << '\n';
    if (json.contains("server")) {
      std::cout << "coordinator " << ForOneLine(json["server"]["version"].get<std::string>())
                << " at " << session.server << '\n';
    } else if (!client_only) {
      std::cout << "coordinator: none at " << session.server << '\n';
    }
  }
  return skew.ok() ? ExitCode::kOk : Fail(session, skew);
}

}  // namespace

void AddVersionCommand(CLI::App& app, Session& session) {
  auto client_only = std::make_shared<bool>(false);
  CLI::App* command =
      AddCommand(app, session, "version", "Versions of this client and of the coordinator",
                 [&session, client_only] { return Version(session, *client_only); });
  command->add_flag("--client", *client_only, "Do not ask the coordinator");
}

}  // namespace weft::cli
