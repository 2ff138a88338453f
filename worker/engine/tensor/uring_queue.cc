#include <liburing.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "worker/engine/tensor/async_file.h"

namespace weft::engine {
namespace {

constexpr unsigned kDepth = 64;

class UringQueue final : public IoQueue {
 public:
  UringQueue(int file, std::string path) : file_(file), path_(std::move(path)) {}
  // The kernel may still write into memory that goes next.
  ~UringQueue() override {
    while (!open_.empty()) {
      if (!Wait(open_.begin()->first).ok() && broken_) break;
    }
    if (made_) io_uring_queue_exit(&ring_);
  }

  Status Make() {
    const int error = io_uring_queue_init(kDepth, &ring_, 0);
    if (error < 0) {
      return UnavailableError(std::string("io_uring: ") + std::strerror(-error));
    }
    made_ = true;
    return OkStatus();
  }

  std::string_view name() const override { return "io_uring"; }

  Result<int64_t> Start(bool write, void* memory, size_t bytes, uint64_t offset) override {
    const int64_t number = ++started_;
    open_[number] = {write, static_cast<char*>(memory), bytes, offset, false, OkStatus()};
    WEFT_RETURN_IF_ERROR(Submit(number));
    return number;
  }

  Status Wait(int64_t number) override {
    while (!open_.at(number).done) WEFT_RETURN_IF_ERROR(Reap());
    Status status = std::move(open_.at(number).status);
    open_.erase(number);
    return status;
  }

 private:
  struct Operation {
    bool write;
    char* memory;
    size_t left;
    uint64_t offset;
    bool done;
    Status status;
  };

  Status Submit(int64_t number) {
    // The largest piece that one call moves.
    constexpr size_t kMost = size_t{1} << 30;
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    while (entry == nullptr) {
      WEFT_RETURN_IF_ERROR(Reap());
      entry = io_uring_get_sqe(&ring_);
    }
    const Operation& o = open_.at(number);
    const auto bytes = static_cast<unsigned>(std::min(o.left, kMost));
    if (o.write) {
      io_uring_prep_write(entry, file_, o.memory, bytes, o.offset);
    } else {
      io_uring_prep_read(entry, file_, o.memory, bytes, o.offset);
    }
    io_uring_sqe_set_data64(entry, static_cast<uint64_t>(number));
    const int submitted = io_uring_submit(&ring_);
    if (submitted >= 0) return OkStatus();
    broken_ = true;
    return IoError(o.write, path_, o.offset, -submitted);
  }

  // Takes one result, and goes on where it was a part.
  Status Reap() {
    io_uring_cqe* result = nullptr;
    int error = io_uring_wait_cqe(&ring_, &result);
    while (error == -EINTR) error = io_uring_wait_cqe(&ring_, &result);
    if (error < 0) {
      broken_ = true;
      return UnavailableError("io_uring on " + path_ + ": " + std::strerror(-error));
    }
    const auto number = static_cast<int64_t>(io_uring_cqe_get_data64(result));
    const int moved = result->res;
    io_uring_cqe_seen(&ring_, result);
    Operation& o = open_.at(number);
    if (moved == -EINTR || moved == -EAGAIN) return Submit(number);
    if (moved <= 0) {
      o.status = IoError(o.write, path_, o.offset, -moved);
      o.done = true;
      return OkStatus();
    }
    o.memory += moved;
    o.offset += static_cast<uint64_t>(moved);
    o.left -= static_cast<size_t>(moved);
    if (o.left > 0) return Submit(number);
    o.done = true;
    return OkStatus();
  }

  const int file_;
  const std::string path_;
  io_uring ring_ = {};
  bool made_ = false;
  bool broken_ = false;
  int64_t started_ = 0;
  std::map<int64_t, Operation> open_;
};

}  // namespace

Result<std::unique_ptr<IoQueue>> NewUringQueue(int file, const std::string& path) {
  auto queue = std::make_unique<UringQueue>(file, path);
  WEFT_RETURN_IF_ERROR(queue->Make());
  return std::unique_ptr<IoQueue>(std::move(queue));
}

}  // namespace weft::engine
