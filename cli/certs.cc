#include <iostream>
#include <memory>

#include "cli/command.h"
#include "common/tls/certificate_authority.h"

namespace weft::cli {
namespace {

struct CertsOptions {
  std::string folder;
  std::string kind;
  std::vector<std::string> names;
  int64_t days = tls::Validity().days;
  std::string step;

  tls::CertificateAuthority Authority() const {
    return tls::CertificateAuthority(folder, {tls::Validity().authority_days, days});
  }
  /// Whom the certificate is for, or is taken from; a client is a person.
  tls::Holder Holder() const {
    return {kind, BareName(kind == "client" ? "person" : kind, names[0]), {}};
  }
};

ExitCode Init(const Session& session, const CertsOptions& options) {
  if (Status status = options.Authority().Init(); !status.ok()) return Fail(session, status);
  std::cout << options.folder << "/ca.pem\n";
  return ExitCode::kOk;
}

ExitCode Issue(const Session& session, const CertsOptions& options) {
  tls::Holder holder = options.Holder();
  if (options.kind == "server") {
    holder.hosts = options.names;
  } else if (options.names.size() > 1) {
    return Fail(session, InvalidError("a " + options.kind + " has one name, but " +
                                      std::to_string(options.names.size()) + " are given"));
  }
  Result<std::string> path = options.Authority().Issue(holder);
  if (!path.ok()) return Fail(session, path.status());
  std::cout << *path << '\n';
  return ExitCode::kOk;
}

ExitCode Revoke(const Session& session, const CertsOptions& options) {
  Result<std::string> path = options.Authority().Revoke(options.Holder());
  if (!path.ok()) return Fail(session, path.status());
  std::cout << *path << '\n';
  return ExitCode::kOk;
}

ExitCode Rotate(const Session& session, const CertsOptions& options) {
  const tls::CertificateAuthority authority = options.Authority();
  if (options.step == "issue") {
    Result<std::vector<std::string>> paths = authority.SwitchAuthority();
    if (!paths.ok()) return Fail(session, paths.status());
    for (const std::string& path : *paths) std::cout << path << '\n';
    return ExitCode::kOk;
  }
  const Status status =
      options.step == "trust" ? authority.AddAuthority() : authority.DropOldAuthority();
  if (!status.ok()) return Fail(session, status);
  std::cout << options.folder << "/ca.pem\n";
  return ExitCode::kOk;
}

}  // namespace

void AddCertsCommands(CLI::App& app, Session& session) {
  auto options = std::make_shared<CertsOptions>();
  CLI::App* certs = app.add_subcommand("certs", "A certificate authority for TLS, in a folder");
  certs->require_subcommand(1);
  const auto add = [&](const char* name, const char* description, auto run) {
    CLI::App* command = AddCommand(*certs, session, name, description,
                                   [&session, options, run] { return run(session, *options); });
    command->add_option("folder", options->folder, "Folder of the CA")->required();
    return command;
  };
  add("init", "Make a CA; prints the file that everybody trusts", Init);
  CLI::App* issue =
      add("issue", "Make or renew a certificate; prints its file, which holds the key, too", Issue);
  issue->add_option("kind", options->kind, "server, worker or client")
      ->required()
      ->check(CLI::IsMember({"server", "worker", "client"}));
  issue
      ->add_option("name", options->names,
                   "Id of the worker, name of the person, or all hosts and addresses of the server")
      ->required();
  issue->add_option("--days", options->days, "Days that it is good for")
      ->check(CLI::Range(1, 36500))
      ->capture_default_str();
  CLI::App* revoke =
      add("revoke",
          "Revoke all certificates of a worker or person; prints the file for --tls-crl of the "
          "coordinator",
          Revoke);
  revoke->add_option("kind", options->kind, "worker or client")
      ->required()
      ->check(CLI::IsMember({"worker", "client"}));
  revoke->add_option("name", options->names, "Id of the worker, or name of the person")
      ->required()
      ->expected(1);
  CLI::App* rotate =
      add("rotate", "Replace the CA in three steps; prints the files that changed", Rotate);
  rotate
      ->add_option(
          "--step", options->step,
          "trust: make a CA that is trusted besides the old one; issue: have it sign and "
          "issue all certificates anew; retire: trust it alone. Between two steps bring the "
          "files to all machines")
      ->required()
      ->check(CLI::IsMember({"trust", "issue", "retire"}));
}

}  // namespace weft::cli
