#include "worker/daemon/rank_process.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/write.hpp>
#include <cerrno>
#include <chrono>
#include <string_view>
#include <utility>

#include "common/log.h"

extern char** environ;

namespace weft::daemon {
namespace asio = boost::asio;

namespace {

/// Everything the child needs between fork and exec, made before: there only async-signal-safe
/// calls are allowed.
struct ChildPlan {
  std::vector<char*> arguments;
  std::vector<char*> environment;
  int stdin_fd, stdout_fd, stderr_fd, control_fd, error_fd;
  int wanted_control_fd;
  pid_t group, parent;
};

[[noreturn]] void RunChild(const ChildPlan& plan) {
  auto fail = [&] {
    int error = errno;
    [[maybe_unused]] ssize_t written = write(plan.error_fd, &error, sizeof(error));
    _exit(127);
  };
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) fail();
  if (getppid() != plan.parent) _exit(127);
  if (setpgid(0, plan.group) != 0) fail();
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  signal(SIGPIPE, SIG_DFL);
  // Under memory pressure the kernel should take a rank, never the daemon.
  if (int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC); fd >= 0) {
    [[maybe_unused]] ssize_t written = write(fd, "500", 3);
    close(fd);
  }
  // The sources are all above the targets (see Start), so no dup2 overwrites a later source.
  if (dup2(plan.stdin_fd, 0) < 0 || dup2(plan.stdout_fd, 1) < 0 || dup2(plan.stderr_fd, 2) < 0 ||
      dup2(plan.control_fd, plan.wanted_control_fd) < 0) {
    fail();
  }
  // Whatever else this process has open, and was given open, is none of the rank's business.
  close_range(static_cast<unsigned>(plan.wanted_control_fd) + 1, ~0U, CLOSE_RANGE_CLOEXEC);
  execve(plan.arguments[0], plan.arguments.data(), plan.environment.data());
  fail();
  _exit(127);
}

/// A descriptor that closes itself.
class Fd {
 public:
  explicit Fd(int fd = -1) : fd_(fd) {}
  ~Fd() { Reset(); }
  Fd(Fd&& other) noexcept : fd_(other.Release()) {}
  Fd& operator=(Fd&& other) noexcept {
    Reset();
    fd_ = other.Release();
    return *this;
  }
  int get() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }
  void Reset() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

 private:
  int fd_;
};

/// Descriptors 0 to 9 are targets of the child's dup2.
constexpr int kFirstFreeFd = 10;

Result<Fd> MoveUp(int fd) {
  int moved = fcntl(fd, F_DUPFD_CLOEXEC, kFirstFreeFd);
  int error = errno;
  close(fd);
  if (moved < 0) return ErrnoError("duplicate a file descriptor for a rank", error);
  return Fd(moved);
}

struct FdPair {
  Fd ours, theirs;
};

Result<FdPair> OpenPipe() {
  std::array<int, 2> fds{};
  if (pipe2(fds.data(), O_CLOEXEC) != 0) return ErrnoError("open a pipe for a rank", errno);
  FdPair pair{Fd(fds[0]), Fd()};
  WEFT_ASSIGN_OR_RETURN(pair.theirs, MoveUp(fds[1]));
  return pair;
}

Result<FdPair> OpenSocketPair() {
  std::array<int, 2> fds{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()) != 0) {
    return ErrnoError("open a socket pair for a rank", errno);
  }
  FdPair pair{Fd(fds[0]), Fd()};
  WEFT_ASSIGN_OR_RETURN(pair.theirs, MoveUp(fds[1]));
  return pair;
}

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

struct RankProcess::Stream {
  asio::posix::stream_descriptor descriptor;
  std::optional<LineSplitter> splitter;  // output streams
  std::string partial;                   // control stream
  std::array<char, 16384> buffer{};

  Stream(asio::io_context& io, int fd) : descriptor(io, fd) {}
};

RankProcess::RankProcess(asio::io_context& io, Events events)
    : events_(std::move(events)), drain_timer_(io) {}

Result<std::unique_ptr<RankProcess>> RankProcess::Start(asio::io_context& io,
                                                        const RankCommand& command, Events events) {
  WEFT_CHECK(command.control_fd > 2 && command.control_fd < kFirstFreeFd, "control fd of a rank");
  const std::string& program = command.arguments.at(0);
  WEFT_ASSIGN_OR_RETURN(FdPair output, OpenPipe());
  WEFT_ASSIGN_OR_RETURN(FdPair errors, OpenPipe());
  WEFT_ASSIGN_OR_RETURN(FdPair control, OpenSocketPair());
  WEFT_ASSIGN_OR_RETURN(FdPair exec_error, OpenPipe());
  int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (null_fd < 0) return ErrnoError("open /dev/null", errno);
  WEFT_ASSIGN_OR_RETURN(Fd null_input, MoveUp(null_fd));

  std::vector<std::string> arguments = command.arguments;
  std::vector<std::string> environment = command.environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    std::string_view inherited = *entry;
    bool replaced = std::any_of(
        command.environment.begin(), command.environment.end(), [&](const std::string& given) {
          return inherited.starts_with(given.substr(0, given.find('=') + 1));
        });
    if (!replaced) environment.emplace_back(inherited);
  }
  ChildPlan plan{Pointers(arguments),     Pointers(environment),
                 null_input.get(),        output.theirs.get(),
                 errors.theirs.get(),     control.theirs.get(),
                 exec_error.theirs.get(), command.control_fd,
                 command.group,           getpid()};
  pid_t pid = fork();
  if (pid < 0) return ErrnoError("fork for " + program, errno);
  if (pid == 0) RunChild(plan);
  // Also here, so that the group is there when the next rank wants to join it.
  setpgid(pid, command.group == 0 ? pid : command.group);

  exec_error.theirs.Reset();
  int error = 0;
  ssize_t got = 0;
  do {
    got = read(exec_error.ours.get(), &error, sizeof(error));
  } while (got < 0 && errno == EINTR);
  if (got > 0) {
    waitpid(pid, nullptr, 0);
    return ErrnoError("start " + program, error);
  }

  std::unique_ptr<RankProcess> process(new RankProcess(io, std::move(events)));
  process->pid_ = pid;
  for (Fd* fd : {&output.ours, &errors.ours, &control.ours}) {
    process->streams_.push_back(std::make_shared<Stream>(io, fd->Release()));
  }
  process->open_streams_ = 3;
  for (bool is_stderr : {false, true}) {
    auto stream = process->streams_[is_stderr ? 1 : 0];
    stream->splitter.emplace(kMaxOutputLine, [self = process.get(), is_stderr](std::string line) {
      self->events_.on_output(is_stderr, std::move(line));
    });
    process->ReadOutput(stream);
  }
  process->ReadControl(process->streams_[2]);
  return process;
}

RankProcess::~RankProcess() {
  *alive_ = false;
  if (!alive()) return;
  kill(pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void RankProcess::ReadOutput(const std::shared_ptr<Stream>& stream) {
  stream->descriptor.async_read_some(
      asio::buffer(stream->buffer),
      [this, stream, alive = alive_](const boost::system::error_code& error, size_t bytes) {
        if (!*alive) return;
        stream->splitter->Feed(std::string_view(stream->buffer.data(), bytes));
        if (!error) return ReadOutput(stream);
        stream->splitter->Finish();
        StreamEnded();
      });
}

void RankProcess::ReadControl(const std::shared_ptr<Stream>& stream) {
  stream->descriptor.async_read_some(
      asio::buffer(stream->buffer),
      [this, stream, alive = alive_](const boost::system::error_code& error, size_t bytes) {
        if (!*alive) return;
        if (error) return StreamEnded();
        stream->partial.append(stream->buffer.data(), bytes);
        size_t begin = 0;
        for (size_t end = 0; (end = stream->partial.find('\n', begin)) != std::string::npos;
             begin = end + 1) {
          events_.on_control(stream->partial.substr(begin, end - begin));
        }
        stream->partial.erase(0, begin);
        if (stream->partial.size() > kMaxControlLine) {
          WEFT_LOG_ERROR << "pid " << pid_ << " sent a control message of more than "
                         << kMaxControlLine << " bytes; killing it";
          Signal(SIGKILL);
          return StreamEnded();
        }
        ReadControl(stream);
      });
}

void RankProcess::SendControl(std::string line) {
  line += '\n';
  outgoing_.push_back(std::move(line));
  if (outgoing_.size() == 1) WriteControl();
}

void RankProcess::WriteControl() {
  asio::async_write(streams_[2]->descriptor, asio::buffer(outgoing_.front()),
                    [this, stream = streams_[2], alive = alive_](
                        const boost::system::error_code& error, size_t /*bytes*/) {
                      if (!*alive) return;
                      outgoing_.pop_front();
                      if (error) outgoing_.clear();
                      if (!outgoing_.empty()) WriteControl();
                    });
}

void RankProcess::Signal(int signal_number) {
  if (alive()) kill(pid_, signal_number);
}

void RankProcess::Reap() {
  if (!alive()) return;
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) != pid_) return;
  wait_status_ = status;
  drain_timer_.expires_after(std::chrono::seconds(1));
  drain_timer_.async_wait([this, alive = alive_](const boost::system::error_code& error) {
    if (*alive && !error) EndIfDone(true);
  });
  EndIfDone(false);
}

void RankProcess::StreamEnded() {
  --open_streams_;
  EndIfDone(false);
}

void RankProcess::EndIfDone(bool waited_enough) {
  if (ended_ || alive() || (open_streams_ > 0 && !waited_enough)) return;
  ended_ = true;
  drain_timer_.cancel();
  events_.on_end(*wait_status_);
}

}  // namespace weft::daemon
