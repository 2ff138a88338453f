#pragma once

#include <cstdint>
#include <string>

namespace weft::daemon {

/// What an XID is taken for. Codes are those of NVIDIA's "XID Errors" guide.
struct XidMeaning {
  std::string text;     ///< For people.
  bool breaks = false;  ///< The GPU itself is in doubt, not what ran on it.
};

/// Errors of programs (a bad address in a kernel, for example) and what follows from one do not
/// speak against the GPU; everything else does, codes that are unknown here too.
XidMeaning MeaningOfXid(int64_t xid);

}  // namespace weft::daemon
