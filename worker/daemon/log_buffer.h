#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "common/env.h"
#include "weft/v1/coordinator.pb.h"

namespace weft::daemon {

/// The log lines of one attempt on this worker that the coordinator has not acknowledged, numbered
/// from 1 without gaps. The oldest are in memory, ready to send; when the coordinator is away for
/// long, newer ones go to files, so that none is lost and memory stays bounded. When the files are
/// full too (or cannot be written), lines are dropped and one line says how many. Not thread-safe.
class LogBuffer {
 public:
  struct Limits {
    size_t memory_bytes = size_t{1} << 20;  ///< Of the oldest and of the newest lines, each.
    size_t file_bytes = size_t{256} << 20;  ///< Of all files together.
  };

  /// Files are named `prefix`.N and removed when acknowledged or with the buffer.
  LogBuffer(Env& env, std::string prefix, Limits limits);
  ~LogBuffer();
  LogBuffer(const LogBuffer&) = delete;
  LogBuffer& operator=(const LogBuffer&) = delete;

  void Append(v1::LogLine line);

  /// Up to `max_lines` lines after position `after`, which must not be before acknowledged(). May
  /// be fewer than there are: more can be read once these are acknowledged.
  std::vector<v1::LogLine> Read(int64_t after, size_t max_lines);

  /// Lines up to `sequence` are safe elsewhere.
  void Acknowledge(int64_t sequence);

  int64_t acknowledged() const { return acknowledged_; }
  int64_t last() const { return last_; }
  bool empty() const { return acknowledged_ == last_; }

 private:
  struct Chunk {
    std::deque<v1::LogLine> lines;
    size_t bytes = 0;
    void Add(v1::LogLine line);
  };
  struct Segment {
    std::string path;
    int64_t lines = 0;
    size_t bytes = 0;
  };

  void Push(v1::LogLine line);
  void SpillNewest();
  void Refill();
  void Remove(const Segment& segment);

  Env& env_;
  std::string prefix_;
  Limits limits_;
  Chunk oldest_;  // positions acknowledged_ + 1 and on
  std::deque<Segment> segments_;
  Chunk newest_;
  size_t segment_bytes_ = 0;
  int64_t next_segment_ = 0;
  int64_t acknowledged_ = 0;
  int64_t last_ = 0;
  int64_t dropped_ = 0;
};

}  // namespace weft::daemon
