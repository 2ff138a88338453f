#include "worker/daemon/options.h"

#include <CLI/CLI.hpp>

#include "common/version.h"

namespace weft::daemon {
namespace {

/// WEFT_WORKER_DATA_DIR of "data-dir".
std::string Variable(const std::string& name) {
  std::string variable = "WEFT_WORKER_";
  for (char c : name) variable += c == '-' ? '_' : static_cast<char>(std::toupper(c));
  return variable;
}

/// "--data-dir" or WEFT_WORKER_DATA_DIR.
template <class T>
CLI::Option* Add(CLI::App& app, const std::string& name, T& value, const std::string& help) {
  return app.add_option("--" + name, value, help)->envname(Variable(name));
}

/// "--insecure" or WEFT_WORKER_INSECURE.
void AddFlag(CLI::App& app, const std::string& name, bool& value, const std::string& help) {
  app.add_flag("--" + name, value, help)->envname(Variable(name));
}

}  // namespace

bool ParseOptions(int argc, char** argv, Options& options, int& exit_code) {
  CLI::App app{
      "weft-worker runs the ranks of training jobs on this machine.\n"
      "Every option can be given as WEFT_WORKER_NAME in the environment."};
  app.set_version_flag("--version", std::string("weft-worker ") + kVersion);
  Add(app, "coordinator", options.coordinator, "Coordinator to attach to, HOST:PORT")
      ->capture_default_str();
  Add(app, "data-dir", options.data_dir,
      "Folder of this daemon: id, lock, measurements, token shards; one for each worker");
  Add(app, "run-root", options.run_root,
      "Refuse jobs whose folder is not inside this one (shared by all workers); empty: accept any");
  Add(app, "data-root", options.data_roots,
      "Refuse jobs that name files which are not below one of these folders; needed when the "
      "coordinator is on another machine");
  Add(app, "tls-cert", options.tls.certificate,
      "TLS: file with the certificate of this worker, PEM; read again for each connection");
  Add(app, "tls-key", options.tls.key, "File with its private key; default: --tls-cert");
  Add(app, "tls-ca", options.tls.authorities,
      "File with the CA that the coordinator has its certificate from");
  AddFlag(app, "insecure", options.insecure,
          "Attach without TLS to a coordinator on another machine, too");
  Add(app, "worker-id", options.worker_id,
      "Name of this worker; default: the one kept in the data folder");
  Add(app, "host", options.host,
      "Address of this machine that ranks on others can reach; default: the one that reaches the "
      "coordinator");
  Add(app, "machine", options.machine,
      "Name of this machine: no network is measured between workers of one name; default: host "
      "name and boot of the kernel");
  Add(app, "rack", options.rack,
      "Name of what this machine shares a switch with, such as its rack: a job is kept within one "
      "where that is possible");
  Add(app, "network-gbps", options.network_gbps,
      "Network to other machines in Gbit/s, all cards together, where that is known; 0: as "
      "measured")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  Add(app, "cores", options.cores, "Cores offered to ranks; 0: all this process may use")
      ->check(CLI::Range(0, 65536));
  Add(app, "memory-limit", options.memory_limit_bytes,
      "Memory offered to ranks, for example 8GiB; 0: nine tenths of what this process may use")
      ->transform(CLI::AsSizeValue(false));
  Add(app, "devices", options.devices,
      "GPUs offered to ranks: all, none, or indices and UUIDs with commas between")
      ->capture_default_str();
  Add(app, "snapshot-dir", options.snapshot_dir,
      "Folder in memory for snapshots of jobs with checkpoint.peer_every_steps; empty: none")
      ->capture_default_str();
  Add(app, "metrics-listen", options.metrics_listen,
      "Where /metrics, /healthz and /readyz are served, HOST:PORT; port 0: any free one; empty: "
      "nowhere")
      ->capture_default_str();
  AddFlag(app, "metrics-insecure", options.metrics_insecure,
          "Serve them on other addresses than loopback, too, without TLS");
  Add(app, "trainer", options.trainer,
      "Program run for each rank; default: weft-trainer next to this program");
  Add(app, "drain-seconds", options.drain_seconds,
      "Time ranks have to save and stop after SIGTERM before they are killed")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
  Add(app, "spin-seconds", options.spin_seconds,
      "A rank that only uses a processor for so long before its first step shows no sign of life")
      ->check(CLI::Range(0.1, 1e6))
      ->capture_default_str();
  app.add_option("--measure-device", options.measure_device,
                 "Print the rates of a GPU, counted among those that CUDA sees, and exit")
      ->group("");
  app.add_option("--check-machine", options.check_machine,
                 "Check this machine with this many cores and all GPUs that CUDA sees, and exit")
      ->group("");
  app.add_flag("--reprobe", options.reprobe, "Measure this machine again");
  app.add_flag("--healthcheck", options.healthcheck,
               "Ask the worker that runs on --data-dir whether it is attached; exit 0 if so");
  try {
    app.parse(argc, argv);
    if (options.data_dir.empty() && options.measure_device < 0 && options.check_machine <= 0) {
      throw CLI::RequiredError("--data-dir");
    }
  } catch (const CLI::ParseError& error) {
    exit_code = app.exit(error) == 0 ? kExitOk : kExitUsage;
    return false;
  }
  return true;
}

}  // namespace weft::daemon
