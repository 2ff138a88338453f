#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <gloo/context.h>
#include <gloo/transport/unbound_buffer.h>

namespace weft::engine {

/// Notices that a peer of a connected Gloo context dies or gives up while nothing is exchanged with
/// it, by its connection; and knows which one it was. A peer that loses another says so before it
/// cuts its own connections, so that nobody takes it for the one that was lost. A machine that
/// falls silent is not noticed: timeouts are others' affair.
class PeerWatch {
 public:
  /// `lost` is called at most once, by a thread of the watch: a peer is lost, and Lost() says
  /// which, by the numbers that `names` has for the ranks. `context` outlives this.
  PeerWatch(std::shared_ptr<gloo::Context> context, std::vector<int> names,
            std::function<void()> lost);
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  /// "rank 2 is lost", "rank 1 has left"; empty when all peers seem to be there. Once something has
  /// failed: it tries the connections, and leaves messages behind.
  std::string Lost();

  /// What Gloo says when a wait takes too long. It gives all connections up then, which says
  /// nothing of the peers: none is lost, or all are.
  static bool IsTimeout(std::string_view what);

  /// Before this rank cuts its connections. Tells the peers why: the rank that is lost, as Lost()
  /// has it, or that this one gives up (or, `done`, leaves, for which nobody need stop). Once.
  void Farewell(bool done);

 private:
  static constexpr uint64_t kNotes = uint64_t{3} << 56;  ///< Tags, besides GlooLink's.
  static constexpr uint64_t kProbes = uint64_t{4} << 56;
  // Peers say the number of the rank that is lost, or one of these.
  static constexpr int32_t kNothing = -1;
  static constexpr int32_t kLeft = -2;

  void Watch();
  int32_t NoteOf(int rank) const;
  std::string Named(int rank) const;
  bool Cut(int rank);
  /// The rank that is lost first of all; kNothing where none is known.
  int32_t FirstLost();

  const std::shared_ptr<gloo::Context> context_;
  const std::vector<int> names_;
  const std::function<void()> lost_;
  std::vector<int32_t> notes_;  ///< By rank; Gloo writes them.
  std::unique_ptr<gloo::transport::UnboundBuffer> received_;
  std::atomic<bool> leaving_{false};

  std::mutex mutex_;  ///< Guards what follows.
  bool said_ = false;
  int32_t note_ = kNothing;
  char probe_ = 0;
  std::unique_ptr<gloo::transport::UnboundBuffer> sent_;
  std::unique_ptr<gloo::transport::UnboundBuffer> probes_;

  std::thread thread_;
};

}  // namespace weft::engine
