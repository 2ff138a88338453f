#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "common/status.h"
#include "worker/engine/nn/parameter_file_iterator.h"

namespace weft::engine {

/// Goes through the parameters of a file while a thread updates them, overlapped with the next
/// forward pass, which computes with each unit once it is updated. The computing thread allocates
/// and frees memory, so that memory does not depend on the disk. Units ahead of the pass are read
/// or updated, and the last one behind it is written. An updated unit is not read again for this
/// pass.
class UpdatePipeline : public UnitIterator {
 public:
  /// Units ahead of the pass: one goes to the device, one is updated, one is read.
  static constexpr size_t kAhead = 3;

  explicit UpdatePipeline(ParameterFile* file) : file_(file) {}

  /// Begins an update, once the previous one has been closed.
  Status Open();
  /// The pass, or a walk instead of one, needs no unit up to `unit` any more. Waits until these are
  /// updated, and continues. Passes go up.
  Status Pass(int64_t unit);
  /// Continues to the end, and waits until all is written. Does nothing where none is open.
  Status Close();

  bool open() const { return open_; }
  /// The first unit that has not been passed; while open().
  int64_t next() const {
    return passed_ < units_.size() ? units_[passed_] : file_->parameters().units();
  }
  /// Whether `unit` is, or will be, in memory for the pass.
  bool Brings(int64_t unit) const;

  /// Called by the thread that updates.
  Status MoveTo(int64_t unit) override;
  Status Finish() override;
  /// Fails or abandons the update: all waiting callers get `status`.
  void Fail(const Status& status);

 private:
  /// Takes memory for the next unit and begins to read it.
  Status Start();
  /// Waits until the update is done with units_[at].
  Status AwaitUpdated(size_t at);
  /// The place of `unit` in units_, or that of the next one.
  size_t PlaceOf(int64_t unit) const;

  ParameterFile* const file_;
  bool open_ = false;
  std::vector<int64_t> units_;  ///< That have values, rising.
  size_t passed_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t started_ = 0;  ///< Of units_, those that were begun to be read,
  size_t updated_ = 0;  ///< and those that the update is done with.
  Status failed_;
};

}  // namespace weft::engine
