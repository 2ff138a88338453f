#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>

#include <gloo/context.h>
#include <gloo/transport/unbound_buffer.h>

namespace weft::engine {

/// Messages between the ranks of a connected Gloo context. Errors, lost peers and silence longer
/// than the context's timeout are Gloo's exceptions. One thread, except Abort.
class GlooLink {
 public:
  explicit GlooLink(std::shared_ptr<gloo::Context> context) : context_(std::move(context)) {}

  int rank() const { return context_->rank; }
  int size() const { return context_->size; }
  const std::shared_ptr<gloo::Context>& context() const { return context_; }

  /// Messages with the same tag arrive in the order in which they are sent. Every rank makes the
  /// same tags in the same order; `what` is one of few numbers for what the messages are, `bytes` a
  /// size that the ranks agree on. Ranks that do different things thus wait in vain for each other
  /// instead of taking one thing for another.
  uint64_t NewTag(uint64_t what, size_t bytes);
  /// The tag of messages that concern two ranks only, of this many bytes.
  static uint64_t MessageTag(size_t bytes) { return kMessageTags | bytes; }

  /// Memory that messages come from and go to. It and the memory live until all of them have been
  /// waited for, or one has thrown.
  class Buffer {
   public:
    Buffer(GlooLink& link, void* data, size_t bytes);
    ~Buffer();
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    /// Start a message of `bytes` at `offset`. One of no bytes is none.
    void Send(int peer, uint64_t tag, size_t offset, size_t bytes);
    void Receive(int peer, uint64_t tag, size_t offset, size_t bytes);

    /// Return when all that were started have arrived, and when their memory is free again.
    void WaitReceived();
    void WaitSent();

   private:
    friend class GlooLink;
    GlooLink& link_;
    std::unique_ptr<gloo::transport::UnboundBuffer> buffer_;
    int sends_ = 0;
    int receives_ = 0;
  };

  /// Bytes sent so far.
  double sent_bytes() const { return sent_bytes_; }

  /// Fails what is under way, here and at the peers, and all that comes later. From any thread.
  void Abort();
  bool aborted() const { return aborted_; }

 private:
  static constexpr uint64_t kMessageTags = uint64_t{1} << 56;
  static constexpr uint64_t kCollectiveTags = uint64_t{2} << 56;

  std::shared_ptr<gloo::Context> context_;
  uint64_t next_tag_ = 0;
  double sent_bytes_ = 0;
  std::atomic<bool> aborted_{false};
  std::mutex mutex_;
  std::set<Buffer*> buffers_;  ///< Those that live.
};

}  // namespace weft::engine
