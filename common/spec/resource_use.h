#pragma once

#include <cstdint>
#include <string>

#include "common/spec/field.h"

namespace weft {

/// What one kind of operation between the ranks along one axis of the mesh came to, on one rank.
struct CollectiveUse {
  std::string axis;
  std::string collective;
  double calls = 0;
  double bytes = 0;
  double sent_bytes = 0;
  double seconds = 0;
  double exposed_seconds = 0;

  /// Overlapped with what the rank computed.
  double HiddenSeconds() const { return seconds > exposed_seconds ? seconds - exposed_seconds : 0; }

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("axis",
                "Which ranks take part: data, tensor, pipeline, ...; world: all, where no axis has "
                "all of them."),
          self.axis);
    visit(Field("collective",
                "all-reduce, reduce-scatter, all-gather, broadcast, send and "
                "receive, all-to-all, or control: scalars and barriers."),
          self.collective);
    visit(Field("calls", "Operations."), self.calls);
    visit(Field("bytes", "Of the larger of input and output of each.").Unit("bytes"), self.bytes);
    visit(Field("sent_bytes", "That left this rank.").Unit("bytes"), self.sent_bytes);
    visit(Field("seconds", "From the start of each to its end.").Unit("seconds"), self.seconds);
    visit(Field("exposed_seconds", "The rank waited for them.").Unit("seconds"),
          self.exposed_seconds);
  }
};

/// Where what a rank holds resides, and how long the rank waited to have it at hand.
struct TierUse {
  int64_t device_bytes = 0;
  int64_t host_bytes = 0;
  int64_t file_bytes = 0;
  double stall_seconds = 0;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("device_bytes", "Most at a time, component by component, where it computes.")
              .Unit("bytes"),
          self.device_bytes);
    visit(Field("host_bytes", "The same of what is offloaded to host memory.").Unit("bytes"),
          self.host_bytes);
    visit(Field("file_bytes", "Files of what is offloaded further.").Unit("bytes"),
          self.file_bytes);
    visit(Field("stall_seconds", "Waiting for copies between tiers and for files.").Unit("seconds"),
          self.stall_seconds);
  }
};

}  // namespace weft
