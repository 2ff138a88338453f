// In the place of the loader of the machine's NCCL.

#include "tests/gpu/host/fake_nccl.h"

namespace weft::engine {

Result<const NcclLibrary*> LoadNccl() {
  return &FakeNccl();
}

}  // namespace weft::engine
