#include "worker/daemon/log_buffer.h"

#include <utility>

#include "common/log.h"
#include "weft/v1/worker.pb.h"

namespace weft::daemon {

void LogBuffer::Chunk::Add(v1::LogLine line) {
  bytes += line.ByteSizeLong();
  lines.push_back(std::move(line));
}

LogBuffer::LogBuffer(Env& env, std::string prefix, Limits limits)
    : env_(env), prefix_(std::move(prefix)), limits_(limits) {}

LogBuffer::~LogBuffer() {
  for (const Segment& segment : segments_) {
    Remove(segment);
  }
}

void LogBuffer::Remove(const Segment& segment) {
  Status status = env_.RemoveFile(segment.path);
  if (!status.ok()) {
    WEFT_LOG_WARNING << status.message();
  }
}

void LogBuffer::Append(v1::LogLine line) {
  if (segment_bytes_ + newest_.bytes + line.ByteSizeLong() > limits_.file_bytes) {
    ++dropped_;
    return;
  }
  if (dropped_ > 0) {
    v1::LogLine note = line;
    note.set_is_stderr(true);
    note.set_text("[weft-worker] " + std::to_string(dropped_) +
                  " lines dropped here: the coordinator did not take them in time");
    dropped_ = 0;
    Push(std::move(note));
  }
  Push(std::move(line));
}

void LogBuffer::Push(v1::LogLine line) {
  ++last_;
  if (segments_.empty() && newest_.lines.empty() && oldest_.bytes < limits_.memory_bytes) {
    oldest_.Add(std::move(line));
    return;
  }
  newest_.Add(std::move(line));
  if (newest_.bytes >= limits_.memory_bytes) SpillNewest();
}

void LogBuffer::SpillNewest() {
  v1::LogBatch batch;
  for (v1::LogLine& line : newest_.lines) *batch.add_lines() = std::move(line);
  Segment segment{prefix_ + "." + std::to_string(next_segment_++),
                  static_cast<int64_t>(newest_.lines.size()), newest_.bytes};
  newest_ = {};
  Status status;
  if (auto file = env_.NewWritableFile(segment.path); !file.ok()) {
    status = file.status();
  } else {
    status = (*file)->Append(batch.SerializeAsString());
    if (status.ok()) status = (*file)->Close();
  }
  if (status.ok()) {
    segment_bytes_ += segment.bytes;
    segments_.push_back(std::move(segment));
    return;
  }
  if (dropped_ == 0) {
    WEFT_LOG_WARNING << "cannot keep log lines on disk, dropping them: " << status.message();
  }
  last_ -= segment.lines;
  dropped_ += segment.lines;
}

void LogBuffer::Refill() {
  while (oldest_.lines.empty() && !segments_.empty()) {
    Segment segment = std::move(segments_.front());
    segments_.pop_front();
    segment_bytes_ -= segment.bytes;
    v1::LogBatch batch;
    Result<std::string> bytes = ReadFile(env_, segment.path);
    if (bytes.ok() && batch.ParseFromString(*bytes) && batch.lines_size() == segment.lines) {
      for (v1::LogLine& line : *batch.mutable_lines()) oldest_.Add(std::move(line));
    } else {
      // Positions were given out already, so each lost line leaves a mark in its place.
      for (int64_t i = 0; i < segment.lines; ++i) {
        v1::LogLine mark;
        mark.set_is_stderr(true);
        mark.set_text("[weft-worker] line lost: " + segment.path + " could not be read back");
        oldest_.Add(std::move(mark));
      }
    }
    Remove(segment);
  }
  if (oldest_.lines.empty()) oldest_ = std::exchange(newest_, {});
}

std::vector<v1::LogLine> LogBuffer::Read(int64_t after, size_t max_lines) {
  std::vector<v1::LogLine> lines;
  for (auto i = static_cast<size_t>(after - acknowledged_);
       i < oldest_.lines.size() && lines.size() < max_lines; ++i) {
    lines.push_back(oldest_.lines[i]);
  }
  return lines;
}

void LogBuffer::Acknowledge(int64_t sequence) {
  while (acknowledged_ < sequence && !oldest_.lines.empty()) {
    oldest_.bytes -= oldest_.lines.front().ByteSizeLong();
    oldest_.lines.pop_front();
    ++acknowledged_;
    if (oldest_.lines.empty()) Refill();
  }
}

}  // namespace weft::daemon
