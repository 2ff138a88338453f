#include "coordinator/service/decision_log.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <utility>
#include <vector>

#include "common/log.h"

namespace weft::coordinator {
namespace {

/// Files of the ring.
constexpr int64_t kFiles = 4;
constexpr char kEnding[] = ".jsonl";

std::string NameOf(int64_t number) {
  char name[32];
  std::snprintf(name, sizeof(name), "%08lld%s", static_cast<long long>(number), kEnding);
  return name;
}

/// The number in the name of a file of the ring; 0: it is none.
int64_t NumberOf(std::string_view name) {
  if (!name.ends_with(kEnding)) return 0;
  name.remove_suffix(sizeof(kEnding) - 1);
  int64_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  return error == std::errc() && end == name.data() + name.size() ? number : 0;
}

bool DecidesSomething(const SchedulerDecisions& decisions) {
  return !decisions.starts.empty() || !decisions.preemptions.empty() ||
         !decisions.resizes.empty() || !decisions.joins.empty();
}

}  // namespace

DecisionLog::DecisionLog(Env& env, std::string folder, int64_t most_bytes)
    : env_(env), folder_(std::move(folder)), most_bytes_(most_bytes) {}

void DecisionLog::Record(const SchedulerSnapshot& snapshot, const PlanAnswers& answers,
                         const SchedulerDecisions& decisions) {
  if (!enabled() || !DecidesSomething(decisions)) return;
  if (std::ssize(snapshot.queue) > kMostWaiting) return;
  Status status = file_ == nullptr || file_bytes_ >= most_bytes_ / kFiles ? NextFile() : OkStatus();
  if (status.ok()) status = Write(writer_.Write(snapshot, answers, decisions) + "\n");
  if (status.ok()) {
    failed_ = false;
    return;
  }
  // Later lines need what this one said: they go to another file.
  file_.reset();
  if (!std::exchange(failed_, true)) {
    WEFT_LOG_WARNING << "decisions of the scheduler are not recorded: " << status.message();
  }
}

Status DecisionLog::Write(const std::string& line) {
  file_bytes_ += std::ssize(line);
  return file_->Append(line);
}

Status DecisionLog::NextFile() {
  WEFT_RETURN_IF_ERROR(env_.CreateDirs(folder_));
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> names, env_.ListDir(folder_));
  std::vector<int64_t> numbers;
  for (const std::string& name : names) {
    if (const int64_t number = NumberOf(name); number > 0) numbers.push_back(number);
  }
  std::sort(numbers.begin(), numbers.end());
  if (next_number_ == 0) next_number_ = numbers.empty() ? 1 : numbers.back() + 1;
  for (int64_t i = 0; i + kFiles <= std::ssize(numbers); ++i) {
    WEFT_RETURN_IF_ERROR(
        env_.RemoveFile(JoinPath(folder_, NameOf(numbers[static_cast<size_t>(i)]))));
  }
  WEFT_ASSIGN_OR_RETURN(file_, env_.NewWritableFile(JoinPath(folder_, NameOf(next_number_))));
  ++next_number_;
  file_bytes_ = 0;
  writer_ = PassWriter();
  return OkStatus();
}

}  // namespace weft::coordinator
