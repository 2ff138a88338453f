#pragma once

#include "worker/engine/comm/nccl_library.h"

namespace weft::engine {

/// An NCCL whose ranks are threads of this process with a device of the host execution each, which
/// must defer work. Its streams run by themselves. Operations begin when the stream comes to them,
/// and end when all ranks have come. Communicators are in progress until all ranks have called for
/// them. Reductions add from the last rank to the first, as no contract says, and maxima leave out
/// what is not a number. An operation may be recorded as part of a graph, by all ranks or none,
/// who launch what they have recorded together; as NCCL's does, a communicator's end waits until
/// the graphs that have operations of it are gone.
const NcclLibrary& FakeNccl();

/// The next operation that rank `rank` of a communicator comes to never ends, or makes its
/// communicator report an error, until it is aborted.
enum class FakeFault { kHang, kError };
void BreakFakeRank(int rank, FakeFault fault);

/// From now on the other ranks of new communicators are in other processes, which the fake does not
/// reach: the communicators are ready at once, and operations on them end only when they are
/// aborted, as those of ranks whose peer is gone.
void ExpectFakeRanksElsewhere(bool elsewhere);

/// Communicators that were made and neither destroyed nor aborted.
int OpenFakeComms();

}  // namespace weft::engine
