#pragma once

#include <functional>
#include <memory>
#include <string>

#include <gloo/common/error.h>
#include <gloo/transport/device.h>

#include "common/status.h"

namespace weft::engine {

/// A connection did not come about in time, or its other end is no rank of the attempt.
class NoConnection : public gloo::IoException {
 public:
  NoConnection(int peer, const std::string& why) : gloo::IoException(why), peer_(peer) {}
  /// The other end, by its rank in the context.
  int peer() const { return peer_; }

 private:
  int peer_;
};

/// Gloo over TCP, which listens on `host`. Throws Gloo's exceptions where that is not possible.
///
/// Gloo takes whoever connects first for the rank it waits for. Here a connection becomes one of
/// Gloo's once both of its ends have proved that they know `token` (rank_handshake.h); others are
/// turned away, and the rank goes on waiting.
///
/// A thread of Gloo handles the events of all connections. It cannot while another thread sends on
/// a connection, and then asks for the events again, without end. Where that takes the sender its
/// core, neither gets on before the scheduler's next tick, 4 ms later. Here it waits for the
/// sender.
///
/// Gloo waits for a peer that is gone as for one that is slow. Here `still_wanted`, which may be
/// empty, is asked meanwhile, and its error ends the wait.
std::shared_ptr<gloo::transport::Device> NewGlooDevice(const std::string& host,
                                                       const std::string& token,
                                                       std::function<Status()> still_wanted = {});

}  // namespace weft::engine
