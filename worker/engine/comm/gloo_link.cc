#include "worker/engine/comm/gloo_link.h"

#include <gloo/common/error.h>

namespace weft::engine {

uint64_t GlooLink::NewTag(uint64_t what, size_t bytes) {
  constexpr uint64_t kMixer = 0x9e3779b97f4a7c15;  // of splitmix64
  const uint64_t mixed = ((bytes << 8 | what) * kMixer) >> 32;
  return kCollectiveTags | (next_tag_++ & 0xffffff) << 32 | mixed;
}

GlooLink::Buffer::Buffer(GlooLink& link, void* data, size_t bytes)
    : link_(link), buffer_(link.context_->createUnboundBuffer(data, bytes)) {
  std::lock_guard lock(link_.mutex_);
  if (link_.aborted_) throw gloo::IoException("the group was aborted here");
  link_.buffers_.insert(this);
}

GlooLink::Buffer::~Buffer() {
  std::lock_guard lock(link_.mutex_);
  link_.buffers_.erase(this);
}

void GlooLink::Buffer::Send(int peer, uint64_t tag, size_t offset, size_t bytes) {
  if (bytes == 0) return;
  buffer_->send(peer, tag, offset, bytes);
  link_.sent_bytes_ += static_cast<double>(bytes);
  ++sends_;
}

void GlooLink::Buffer::Receive(int peer, uint64_t tag, size_t offset, size_t bytes) {
  if (bytes == 0) return;
  buffer_->recv(peer, tag, offset, bytes);
  ++receives_;
}

void GlooLink::Buffer::WaitReceived() {
  for (; receives_ > 0; --receives_) {
    if (!buffer_->waitRecv(link_.context_->getTimeout())) {
      throw gloo::IoException("the group was aborted here");
    }
  }
}

void GlooLink::Buffer::WaitSent() {
  for (; sends_ > 0; --sends_) {
    if (!buffer_->waitSend(link_.context_->getTimeout())) {
      throw gloo::IoException("the group was aborted here");
    }
  }
}

void GlooLink::Abort() {
  {
    std::lock_guard lock(mutex_);
    aborted_ = true;
    for (Buffer* buffer : buffers_) {
      buffer->buffer_->abortWaitRecv();
      buffer->buffer_->abortWaitSend();
    }
  }
  context_->closeConnections();
}

}  // namespace weft::engine
