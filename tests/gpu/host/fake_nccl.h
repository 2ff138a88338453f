#pragma once

#include "worker/engine/comm/nccl_library.h"

namespace weft::engine {

/// An NCCL whose ranks are threads of this process, with streams that run beside their callers: a
/// thread each. Operations begin when the stream comes to them, and end when all ranks have come.
/// Communicators are in progress until all ranks have called for them. Reductions add from the last
/// rank to the first, as no contract says.
const NcclLibrary& FakeNccl();

/// Returns when `stream`, one of FakeNccl's or a handle that it was given, has done everything.
void SynchronizeFakeStream(CUstream_st* stream);

/// The next operation that rank `rank` of a communicator comes to never ends, or makes its
/// communicator report an error, until it is aborted.
enum class FakeFault { kHang, kError };
void BreakFakeRank(int rank, FakeFault fault);

/// Communicators that were made and neither destroyed nor aborted.
int OpenFakeComms();

}  // namespace weft::engine
