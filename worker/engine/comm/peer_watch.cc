#include "worker/engine/comm/peer_watch.h"

#include <chrono>
#include <exception>
#include <string_view>
#include <utility>

namespace weft::engine {
namespace {

/// Longer than any attempt.
constexpr auto kForever = std::chrono::hours(24 * 365);
/// A few bytes to peers that are there.
constexpr auto kSoon = std::chrono::milliseconds(500);

}  // namespace

bool PeerWatch::IsTimeout(std::string_view what) {
  return what.find("imed out") != std::string_view::npos ||
         what.find("timeout") != std::string_view::npos;
}

PeerWatch::PeerWatch(std::shared_ptr<gloo::Context> context, std::vector<int> names,
                     std::function<void()> lost)
    : context_(std::move(context)),
      names_(std::move(names)),
      lost_(std::move(lost)),
      notes_(static_cast<size_t>(context_->size), kNothing),
      received_(context_->createUnboundBuffer(notes_.data(), notes_.size() * sizeof(int32_t))),
      sent_(context_->createUnboundBuffer(&note_, sizeof note_)),
      probes_(context_->createUnboundBuffer(&probe_, sizeof probe_)) {
  for (int rank = 0; rank < context_->size; ++rank) {
    if (rank == context_->rank) continue;
    received_->recv(rank, kNotes, static_cast<size_t>(rank) * sizeof(int32_t), sizeof(int32_t));
  }
  thread_ = std::thread([this] { Watch(); });
}

PeerWatch::~PeerWatch() {
  leaving_ = true;
  received_->abortWaitRecv();
  thread_.join();
}

// Also of a note that is about to arrive: to wait until the watch has taken note of it would let a
// connection that is cut behind it speak first.
int32_t PeerWatch::NoteOf(int rank) const {
  return __atomic_load_n(&notes_[static_cast<size_t>(rank)], __ATOMIC_ACQUIRE);
}

void PeerWatch::Watch() {
  try {
    for (int left = context_->size - 1; left > 0; --left) {
      if (!received_->waitRecv(nullptr, kForever)) return;
      bool lost = false;
      for (int rank = 0; rank < context_->size; ++rank) lost |= NoteOf(rank) >= 0;
      if (!lost) continue;
      if (!leaving_) lost_();
      return;
    }
  } catch (const std::exception& error) {
    if (!leaving_ && !IsTimeout(error.what())) lost_();
  }
}

bool PeerWatch::Cut(int rank) {
  try {
    probes_->send(rank, kProbes, 0, sizeof probe_);
    return false;
  } catch (const std::exception&) {
    return true;
  }
}

int32_t PeerWatch::FirstLost() {
  for (int rank = 0; rank < context_->size; ++rank) {
    if (const int32_t note = NoteOf(rank); note >= 0) return note;
  }
  for (int rank = 0; rank < context_->size; ++rank) {
    if (rank != context_->rank && NoteOf(rank) == kNothing && Cut(rank)) return rank;
  }
  return kNothing;
}

std::string PeerWatch::Named(int rank) const {
  return "rank " + std::to_string(names_[static_cast<size_t>(rank)]);
}

std::string PeerWatch::Lost() {
  const std::lock_guard lock(mutex_);
  // What this rank has said holds: its own connections may be cut by now.
  const int32_t first = said_ ? note_ : FirstLost();
  if (first >= 0 && first != context_->rank) return Named(first) + " is lost";
  for (int rank = 0; rank < context_->size; ++rank) {
    if (NoteOf(rank) == kLeft) return Named(rank) + " has left";
  }
  return first == context_->rank ? "the group was aborted here" : "";
}

void PeerWatch::Farewell(bool done) {
  const std::lock_guard lock(mutex_);
  if (std::exchange(said_, true)) return;
  leaving_ = true;
  const int32_t first = done ? kNothing : FirstLost();
  note_ = done ? kLeft : first >= 0 ? first : context_->rank;
  for (int rank = 0; rank < context_->size; ++rank) {
    if (rank == context_->rank || NoteOf(rank) != kNothing) continue;
    try {
      sent_->send(rank, kNotes, 0, sizeof note_);
      (void)sent_->waitSend(kSoon);
    } catch (const std::exception&) {
      continue;  // it is gone
    }
  }
}

}  // namespace weft::engine
