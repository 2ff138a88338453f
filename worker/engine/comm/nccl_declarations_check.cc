// Compiled where NCCL's header is: our declarations are the same.

#include <nccl.h>

#include <cstddef>

#include "worker/engine/comm/nccl_library.h"

namespace weft::engine {
namespace {

using N = NcclLibrary;

static_assert(sizeof(N::UniqueId) == sizeof(ncclUniqueId));
static_assert(alignof(N::UniqueId) == alignof(ncclUniqueId));
static_assert(offsetof(N::Config, size) == offsetof(ncclConfig_t, size));
static_assert(offsetof(N::Config, magic) == offsetof(ncclConfig_t, magic));
static_assert(offsetof(N::Config, version) == offsetof(ncclConfig_t, version));
static_assert(offsetof(N::Config, blocking) == offsetof(ncclConfig_t, blocking));
static_assert(sizeof(int) == sizeof(ncclResult_t) && sizeof(int) == sizeof(ncclDataType_t) &&
              sizeof(int) == sizeof(ncclRedOp_t));
static_assert(N::kSuccess == static_cast<int>(ncclSuccess));
static_assert(N::kRemoteError == static_cast<int>(ncclRemoteError));
static_assert(N::kInProgress == static_cast<int>(ncclInProgress));
static_assert(N::kUint8 == static_cast<int>(ncclUint8));
static_assert(N::kInt32 == static_cast<int>(ncclInt32));
static_assert(N::kUint32 == static_cast<int>(ncclUint32));
static_assert(N::kFloat16 == static_cast<int>(ncclFloat16));
static_assert(N::kFloat32 == static_cast<int>(ncclFloat32));
static_assert(N::kBFloat16 == static_cast<int>(ncclBfloat16));
static_assert(N::kSum == static_cast<int>(ncclSum) && N::kMax == static_cast<int>(ncclMax));
static_assert(N::kNoColor == NCCL_SPLIT_NOCOLOR);
static_assert(N::kNonBlocking.version == NCCL_VERSION(2, 14, 0));
static_assert(N::kCudaNotReady == static_cast<int>(cudaErrorNotReady));
static_assert(N::kStreamNonBlocking == cudaStreamNonBlocking);
static_assert(N::kEventTimed == cudaEventDefault);
static_assert(N::kEventRecordDefault == cudaEventRecordDefault);
static_assert(N::kEventRecordExternal == cudaEventRecordExternal);

// What NCCL's parameters are in our declarations.
template <class T>
struct Ours {
  using Type = T;
};
template <>
struct Ours<ncclResult_t> {
  using Type = int;
};
template <>
struct Ours<ncclDataType_t> {
  using Type = int;
};
template <>
struct Ours<ncclRedOp_t> {
  using Type = int;
};
template <>
struct Ours<cudaError_t> {
  using Type = int;
};
template <>
struct Ours<ncclResult_t*> {
  using Type = int*;
};
template <>
struct Ours<ncclUniqueId> {
  using Type = N::UniqueId;
};
template <>
struct Ours<ncclUniqueId*> {
  using Type = N::UniqueId*;
};
template <>
struct Ours<ncclConfig_t*> {
  using Type = N::Config*;
};

template <class Mine, class Return, class... Params>
constexpr bool Same(Mine*, Return (*)(Params...)) {
  return __is_same(Mine, typename Ours<Return>::Type(typename Ours<Params>::Type...));
}
#define WEFT_SAME(member, function) \
  static_assert(Same(decltype(N::member)(nullptr), decltype (&(function))(nullptr)))

WEFT_SAME(get_unique_id, ncclGetUniqueId);
WEFT_SAME(comm_init_rank_config, ncclCommInitRankConfig);
WEFT_SAME(comm_split, ncclCommSplit);
WEFT_SAME(comm_get_async_error, ncclCommGetAsyncError);
WEFT_SAME(comm_finalize, ncclCommFinalize);
WEFT_SAME(comm_destroy, ncclCommDestroy);
WEFT_SAME(comm_abort, ncclCommAbort);
WEFT_SAME(get_error_string, ncclGetErrorString);
WEFT_SAME(all_reduce, ncclAllReduce);
WEFT_SAME(reduce_scatter, ncclReduceScatter);
WEFT_SAME(all_gather, ncclAllGather);
WEFT_SAME(broadcast, ncclBroadcast);
WEFT_SAME(send, ncclSend);
WEFT_SAME(receive, ncclRecv);
WEFT_SAME(group_start, ncclGroupStart);
WEFT_SAME(group_end, ncclGroupEnd);
WEFT_SAME(set_device, cudaSetDevice);
WEFT_SAME(device_bus_id, cudaDeviceGetPCIBusId);
WEFT_SAME(stream_destroy, cudaStreamDestroy);
WEFT_SAME(event_destroy, cudaEventDestroy);
WEFT_SAME(event_record, cudaEventRecordWithFlags);
WEFT_SAME(event_query, cudaEventQuery);
WEFT_SAME(event_elapsed, cudaEventElapsedTime);

}  // namespace
}  // namespace weft::engine
