#include "worker/daemon/xid.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace weft::daemon {
namespace {

struct Known {
  int64_t xid;
  std::string_view text;
  bool breaks;
};

constexpr std::array<Known, 24> kKnown{{
    {13, "exception in a kernel", false},
    {31, "a kernel touched an address that is not its own", false},
    {32, "damaged push buffer", true},
    {38, "firmware error of the driver", true},
    {43, "the GPU stopped a program", false},
    {45, "a program was ended after an earlier error", false},
    {48, "memory error of two bits", true},
    {61, "internal microcontroller breakpoint", true},
    {62, "internal microcontroller halt", true},
    {63, "a row of memory was remapped", false},
    {64, "a row of memory could not be remapped", true},
    {68, "exception of the video processor", false},
    {69, "exception of the graphics engine", false},
    {74, "NVLink error", true},
    {79, "the GPU has fallen off the bus", true},
    {92, "many memory errors of one bit", true},
    {94, "uncorrected memory error, contained in one program", true},
    {95, "uncorrected memory error, not contained", true},
    {109, "a program took too long to switch", false},
    {119, "the GPU's system processor does not answer", true},
    {120, "error of the GPU's system processor", true},
    {121, "error of the link to the processor", false},
    {140, "unrecovered memory error", true},
    {143, "the GPU did not start", true},
}};

}  // namespace

XidMeaning MeaningOfXid(int64_t xid) {
  const auto* known =
      std::find_if(kKnown.begin(), kKnown.end(), [&](const Known& k) { return k.xid == xid; });
  std::string text = "XID " + std::to_string(xid);
  if (known == kKnown.end()) return {text, true};
  return {text + ", " + std::string(known->text), known->breaks};
}

}  // namespace weft::daemon
