#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/status.h"
#include "worker/daemon/line_splitter.h"

namespace weft::daemon {

/// What to start.
struct RankCommand {
  std::vector<std::string> arguments;    ///< The program's path first.
  std::vector<std::string> environment;  ///< "NAME=value", before this process's own.
  int control_fd = 3;                    ///< Where the child finds its end of the control channel.
  pid_t group = 0;                       ///< Process group to join; 0: lead a new one.
};

/// One child process: its output, its control channel and its end. The child gets SIGKILL when the
/// thread that started it dies. All calls and callbacks are on the io_context's one thread; a
/// callback must not destroy the object.
class RankProcess {
 public:
  struct Events {
    std::function<void(bool is_stderr, std::string line)> on_output;
    std::function<void(std::string line)> on_control;
    /// Last call: the process is reaped and its streams are read to the end (or were still held
    /// open by another process a second later). `wait_status` as of waitpid(2).
    std::function<void(int wait_status)> on_end;
  };

  /// Longest line of output that is kept in one piece, and longest control message.
  static constexpr size_t kMaxOutputLine = 8192;
  static constexpr size_t kMaxControlLine = size_t{4} << 20;

  /// kNotFound or kInternal when the program cannot be started.
  static Result<std::unique_ptr<RankProcess>> Start(boost::asio::io_context& io,
                                                    const RankCommand& command, Events events);

  /// Kills and reaps the process if it still lives; no callback comes afterwards.
  ~RankProcess();
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  /// Sends one line (without the line end) on the control channel; silently nothing once the
  /// process has closed it.
  void SendControl(std::string line);

  void Signal(int signal_number);

  /// Looks whether the process has ended; to be called after SIGCHLD.
  void Reap();

  pid_t pid() const { return pid_; }
  bool alive() const { return !wait_status_.has_value(); }

 private:
  struct Stream;
  RankProcess(boost::asio::io_context& io, Events events);

  void ReadOutput(const std::shared_ptr<Stream>& stream);
  void ReadControl(const std::shared_ptr<Stream>& stream);
  void WriteControl();
  void StreamEnded();
  void EndIfDone(bool waited_enough);

  Events events_;
  pid_t pid_ = -1;
  std::optional<int> wait_status_;
  std::vector<std::shared_ptr<Stream>> streams_;  // stdout, stderr, control
  int open_streams_ = 0;
  bool ended_ = false;
  std::deque<std::string> outgoing_;
  boost::asio::steady_timer drain_timer_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // false: callbacks do nothing
};

}  // namespace weft::daemon
