#include "worker/engine/comm/nccl_library.h"

#include <cstdlib>
#include <string>
#include <utility>

#include "common/shared_library.h"

namespace weft::engine {
namespace {

Result<const NcclLibrary*> Load() {
  // Otherwise NCCL registers buffers of recorded operations and may reduce them in another way:
  // steps as graphs would differ in bits from those before them.
  (void)setenv("NCCL_GRAPH_REGISTER", "0", 0);
  const std::string hint =
      "NCCL 2.18 or later comes with CUDA and with pip's nvidia-nccl; WEFT_NCCL_LIBRARY names its "
      "file where the loader does not find it";
  WEFT_ASSIGN_OR_RETURN(const SharedLibrary nccl,
                        SharedLibrary::Load("WEFT_NCCL_LIBRARY", "libnccl.so.2", hint));
  static NcclLibrary library;
  NcclLibrary& l = library;
  WEFT_RETURN_IF_ERROR(nccl.Find("ncclGetUniqueId", l.get_unique_id));
  WEFT_RETURN_IF_ERROR(nccl.Find("ncclCommInitRankConfig", l.comm_init_rank_config));
  WEFT_RETURN_IF_ERROR(nccl.Find("ncclCommSplit", l.comm_split));
  WEFT_RETURN_IF_ERROR(nccl.Find("ncclCommGetAsyncError", l.comm_get_async_error));
  WEFT_RETURN_IF_ERROR(nccl.Find("ncclCommFinalize", l.comm_finalize));
  WEFT_RETURN_IF_ERROR(nccl.Find("ncclCommDestroy", l.comm_destroy));
  WEFT_RETURN_IF_ERROR(nccl.Find("ncclCommAbort", l.comm_abort));
  WEFT_RETURN_IF_ERROR(nccl.Find("ncclGetErrorString", l.get_error_string));
  WEFT_RETURN_IF_ERROR(nccl.Find("ncclAllReduce", l.all_reduce));
  WEFT_RETURN_IF_ERROR(nccl.Find("ncclReduceScatter", l.reduce_scatter));
  WEFT_RETURN_IF_ERROR(nccl.Find("ncclAllGather", l.all_gather));
  WEFT_RETURN_IF_ERROR(nccl.Find("ncclBroadcast", l.broadcast));
  WEFT_RETURN_IF_ERROR(nccl.Find("ncclSend", l.send));
  WEFT_RETURN_IF_ERROR(nccl.Find("ncclRecv", l.receive));
  WEFT_RETURN_IF_ERROR(nccl.Find("ncclGroupStart", l.group_start));
  WEFT_RETURN_IF_ERROR(nccl.Find("ncclGroupEnd", l.group_end));
  // The runtime that this process has: streams are its own.
  const SharedLibrary cuda = SharedLibrary::OfProcess(hint);
  WEFT_RETURN_IF_ERROR(cuda.Find("cudaSetDevice", l.set_device));
  WEFT_RETURN_IF_ERROR(cuda.Find("cudaDeviceGetPCIBusId", l.device_bus_id));
  WEFT_RETURN_IF_ERROR(cuda.Find("cudaStreamCreateWithFlags", l.stream_create));
  WEFT_RETURN_IF_ERROR(cuda.Find("cudaStreamDestroy", l.stream_destroy));
  WEFT_RETURN_IF_ERROR(cuda.Find("cudaStreamWaitEvent", l.stream_wait_event));
  WEFT_RETURN_IF_ERROR(cuda.Find("cudaEventCreateWithFlags", l.event_create));
  WEFT_RETURN_IF_ERROR(cuda.Find("cudaEventDestroy", l.event_destroy));
  WEFT_RETURN_IF_ERROR(cuda.Find("cudaEventRecordWithFlags", l.event_record));
  WEFT_RETURN_IF_ERROR(cuda.Find("cudaEventQuery", l.event_query));
  WEFT_RETURN_IF_ERROR(cuda.Find("cudaEventElapsedTime", l.event_elapsed));
  return &std::as_const(library);
}

}  // namespace

Result<const NcclLibrary*> LoadNccl() {
  static const Result<const NcclLibrary*> loaded = Load();
  return loaded;
}

}  // namespace weft::engine
