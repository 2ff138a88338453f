#pragma once

#include <cstdint>
#include <string>

namespace weft::daemon {

/// What an XID is taken for. Codes are those of NVIDIA's Xid catalog.
struct XidMeaning {
  std::string text;     ///< For people.
  bool breaks = false;  ///< The GPU itself is in doubt, not what ran on it.
};

/// Errors of programs (a bad address in a kernel, for example), what follows from one, and what the
/// GPU has mended or contained itself do not speak against it; everything else does, codes that are
/// unknown here too.
XidMeaning MeaningOfXid(int64_t xid);

}  // namespace weft::daemon
