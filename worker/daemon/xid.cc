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

// Whose immediate action in NVIDIA's Xid catalog (docs.nvidia.com/deploy/xid-errors/
// analyzing-xid-catalog.html, that of October 2025) is to start the program again or to do nothing
// does not break the GPU; whose action is to reset it, to restart the machine, to look at its
// memory or links, or to ask NVIDIA does.
constexpr std::array<Known, 63> kKnown{{
    {8, "the GPU stopped a program", false},
    {11, "damaged commands of a program", false},
    {13, "exception in a kernel", false},
    {25, "commands of a program that are not allowed", false},
    {31, "a kernel touched an address that is not its own", false},
    {32, "damaged commands of a program", false},
    {37, "the driver's firmware met a method it does not know", false},
    {38, "the driver's firmware took too long", false},
    {39, "exception of a copy engine", false},
    {40, "exception of a copy engine", false},
    {41, "exception of a copy engine", false},
    {43, "the GPU stopped a program", false},
    {44, "exception while programs were switched", false},
    {45, "a program was ended after an earlier error", false},
    {46, "the GPU does not go on", true},
    {48, "memory error of two bits", true},
    {54, "the board lacks power", true},
    {60, "exception of the security processor", false},
    {61, "internal microcontroller breakpoint", true},
    {62, "internal microcontroller halt", true},
    {63, "a row of memory was remapped", false},
    {64, "a row of memory could not be remapped", true},
    {66, "the driver touched a register that is not its own", false},
    {67, "the driver touched a register that is not its own", false},
    {68, "exception of the video decoder", false},
    {69, "a kernel asked for what the GPU does not do", false},
    {70, "exception of a copy engine", false},
    {71, "exception of a copy engine", false},
    {72, "exception of a copy engine", false},
    {74, "NVLink error", true},
    {75, "exception of a copy engine", false},
    {76, "exception of a copy engine", false},
    {77, "exception of a copy engine", false},
    {79, "the GPU has fallen off the bus", true},
    {80, "commands of a program arrived damaged", false},
    {85, "exception of a copy engine", false},
    {92, "many memory errors of one bit", false},
    {93, "the board's own store is worn", false},
    {94, "uncorrected memory error, contained in one program", false},
    {95, "uncorrected memory error, not contained", true},
    {109, "switching programs took too long", true},
    {110, "security fault", true},
    {119, "the GPU's system processor does not answer", true},
    {120, "error of the GPU's system processor", true},
    {121, "error of the link to the processor", false},
    {126, "exception of a copy engine", false},
    {127, "exception of a copy engine", false},
    {128, "exception of a copy engine", false},
    {129, "exception of a copy engine", false},
    {130, "exception of a copy engine", false},
    {131, "exception of a copy engine", false},
    {132, "exception of a copy engine", false},
    {133, "exception of a copy engine", false},
    {134, "exception of a copy engine", false},
    {135, "exception of a copy engine", false},
    {136, "an NVLink did not train", true},
    {137, "a GPU beyond NVLink asked for an address that is not its own", false},
    {140, "unrecovered memory error", true},
    {141, "error of a fast path of CUDA", false},
    {143, "the GPU did not start", true},
    {154, "what the GPU needs has changed, as another XID says", false},
    {156, "a part of the GPU is to be retired", true},
    {158, "the GPU does not go on", true},
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
