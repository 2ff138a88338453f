#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/tls/certificate.h"

namespace weft::daemon {

/// Exit codes of weft-worker; listed in docs/operations.md.
enum ExitCode : int {
  kExitOk = 0,        ///< Drained, or --help, --version.
  kExitInternal = 1,  ///< Unexpected; the message says what.
  kExitUsage = 2,     ///< Flags, environment or files are wrong.
  kExitRefused = 4,   ///< The coordinator does not take this worker (version, duplicate id).
  kExitInUse = 6,     ///< Another process holds the data folder or the metrics port.
};

/// What the user says about a worker: flags, or WEFT_WORKER_* in the environment.
struct Options {
  std::string coordinator = "127.0.0.1:7070";
  std::string data_dir;
  std::string run_root;
  std::vector<std::string> data_roots;
  tls::Files tls;
  bool insecure = false;
  std::string worker_id;
  std::string host;
  std::string machine;
  std::string rack;
  double network_gbps = 0;
  std::string metrics_listen = "127.0.0.1:0";
  bool metrics_insecure = false;
  std::string trainer;
  int64_t cores = 0;
  uint64_t memory_limit_bytes = 0;
  double drain_seconds = 60;
  double spin_seconds = 1800;
  std::string devices = "all";
  std::string snapshot_dir = "/dev/shm";
  int measure_device = -1;    ///< Do that, and nothing else; negative: be a daemon.
  int64_t check_machine = 0;  ///< The same with this many cores; 0: be a daemon.
  bool reprobe = false;
  bool healthcheck = false;
};

/// Parses the command line. Fills `options` and returns true, or prints help, the version or what
/// is wrong, sets `exit_code` and returns false.
bool ParseOptions(int argc, char** argv, Options& options, int& exit_code);

}  // namespace weft::daemon
